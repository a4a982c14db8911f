// Package verbstest is the conformance suite that every provider of engine/verbs must pass (spec o2iblnd,
// appendix C): set-up with private data, rejects, sends, RDMA writes, access rights, errors and flushes,
// disconnects, vanished peers. It uses the seam alone. What a device may do differently it says in its
// Caps, and the suite then expects that.
//
// Besides what each test looks at, the harness keeps books in all of them: every receive and every
// signalled send completes exactly once, an unsignalled send at most once, a closed id has no events, and
// no goroutine is left behind.
package verbstest

import (
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// Env makes the two nodes of one test.
type Env struct {
	// New gives two providers that reach each other at these addresses.
	New func(t *testing.T) (client, server Node)
	// Pump advances a provider that only moves when it is stepped, time included; nil where it runs by
	// itself. False: there is nothing to do.
	Pump func() bool
	// Nowhere is an address that the client's node tries and gets no answer from, within Patience; the zero
	// value where that cannot be had.
	Nowhere netip.AddrPort
	// Vanish makes the server's node disappear without a word; nil where that cannot be done.
	Vanish func()
	// Vague devices say of some local errors only that there was one (WCGeneral).
	Vague bool
	// QuietEnd says that the device cannot tell a connection that broke from one that the peer closed.
	QuietEnd bool
	// LooseWindows says that the device does not keep a peer inside of a memory window.
	LooseWindows bool
	// Patience bounds every wait.
	Patience time.Duration
}

// Node is one side.
type Node struct {
	Provider verbs.Provider
	Addr     netip.Addr
}

const slabSize = 4 << 20

// side is one node with what stands on its device.
type side struct {
	t      *testing.T
	env    *Env
	node   Node
	w      verbs.Waiter
	cm     verbs.CM
	dev    verbs.Device
	pd     verbs.PD
	cq     verbs.CQ
	mem    []byte
	mr     verbs.MR
	attr   verbs.QPAttr
	events []verbs.Event // not taken yet
	wcs    []verbs.WC
	deaf   bool              // events are left where they are
	closed map[verbs.ID]bool // must have no events
	books  map[uint32]*book  // by queue pair number
}

// book is what a queue pair was given and what came back.
type book struct{ recvs, signaled, unsignaled, recvd, sent int }

func (s *side) book(qp uint32) *book {
	b := s.books[qp]
	if b == nil {
		b = &book{}
		s.books[qp] = b
	}
	return b
}

func newSide(t *testing.T, env *Env, n Node) *side {
	t.Helper()
	s := &side{t: t, env: env, node: n, closed: make(map[verbs.ID]bool), books: make(map[uint32]*book)}
	var err error
	s.w, err = n.Provider.NewWaiter()
	s.must(err)
	s.cm, err = n.Provider.OpenCM(s.w)
	s.must(err)
	s.mem, err = unix.Mmap(-1, 0, slabSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	s.must(err)
	return s
}

func (s *side) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// open brings up what needs a device.
func (s *side) open(d verbs.Device) {
	s.t.Helper()
	if s.dev != nil {
		return
	}
	if d == nil {
		s.t.Fatal("the id has no device")
	}
	s.dev = d
	var err error
	s.pd, err = d.AllocPD()
	s.must(err)
	s.cq, err = d.CreateCQ(1024, s.w)
	s.must(err)
	s.mr, err = s.pd.RegMR(s.mem, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.BindMW)
	s.must(err)
	s.attr = verbs.QPAttr{PD: s.pd, CQ: s.cq, MaxSendWR: 512, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 1}
}

func (s *side) close() {
	for _, c := range []interface{ Close() error }{s.mr, s.cq, s.pd} {
		if c != nil {
			s.must(c.Close())
		}
	}
	s.must(s.cm.Close())
	s.must(s.w.Close())
	s.must(s.node.Provider.Close())
	s.must(unix.Munmap(s.mem))
}

// wait turns until ok says so, or patience ends.
func (s *side) wait(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(s.env.Patience)
	for {
		s.poll()
		if ok() {
			return
		}
		if s.env.Pump != nil {
			if !s.env.Pump() {
				s.poll()
				if ok() {
					return
				}
				s.t.Fatalf("nothing moves any more while waiting for %s; events %v, completions %v", what, s.events, s.wcs)
			}
			continue
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for %s; events %v, completions %v", what, s.events, s.wcs)
		}
		if s.cq != nil {
			s.must(s.cq.Arm())
			if s.poll() {
				continue
			}
		}
		s.w.Wait(time.Now().Add(50 * time.Millisecond))
	}
}

// poll takes in what is there and says whether there was anything.
func (s *side) poll() bool {
	s.t.Helper()
	n := 0
	if !s.deaf {
		var evs [16]verbs.Event
		var err error
		n, err = s.cm.Poll(evs[:])
		s.must(err)
		for _, ev := range evs[:n] {
			if s.closed[ev.ID] {
				s.t.Fatalf("event of a closed id: %v", ev.Type)
			}
			ev.Private = append([]byte(nil), ev.Private...)
			s.events = append(s.events, ev)
		}
	}
	if s.cq == nil {
		return n > 0
	}
	return s.reap(s.cq) || n > 0
}

// reap takes the completions of a queue.
func (s *side) reap(cq verbs.CQ) bool {
	s.t.Helper()
	var wcs [64]verbs.WC
	k, err := cq.Poll(wcs[:])
	s.must(err)
	for _, wc := range wcs[:k] {
		if b := s.book(wc.QPNum); wc.Op == verbs.OpRecv {
			b.recvd++
		} else {
			b.sent++
		}
	}
	s.wcs = append(s.wcs, wcs[:k]...)
	return k > 0
}

// settle runs a stepped provider until nothing moves, and takes in what is there.
func (s *side) settle() {
	s.t.Helper()
	if s.env.Pump != nil {
		for s.env.Pump() {
		}
	}
	for s.poll() {
	}
}

// event waits for the next event of a type for id (any with nil) and takes it; others stay.
func (s *side) event(id verbs.ID, types ...verbs.EventType) verbs.Event {
	s.t.Helper()
	var found verbs.Event
	s.wait("event", func() bool {
		for i, ev := range s.events {
			if id != nil && ev.ID != id {
				continue
			}
			for _, t := range types {
				if ev.Type == t {
					found = ev
					s.events = append(s.events[:i], s.events[i+1:]...)
					return true
				}
			}
		}
		return false
	})
	return found
}

// noEvent says that no event of a type is there for id.
func (s *side) noEvent(id verbs.ID, typ verbs.EventType) {
	s.t.Helper()
	s.settle()
	for _, ev := range s.events {
		if ev.ID == id && ev.Type == typ {
			s.t.Fatalf("unexpected %v", typ)
		}
	}
}

// completions waits for n and takes them.
func (s *side) completions(n int) []verbs.WC {
	s.t.Helper()
	s.wait("completions", func() bool { return len(s.wcs) >= n })
	got := append([]verbs.WC(nil), s.wcs[:n]...)
	s.wcs = append(s.wcs[:0], s.wcs[n:]...)
	return got
}

// completion waits for the one of a work request.
func (s *side) completion(id uint64) verbs.WC {
	s.t.Helper()
	var found verbs.WC
	s.wait("a completion", func() bool {
		for i, wc := range s.wcs {
			if wc.ID == id {
				found = wc
				s.wcs = append(s.wcs[:i], s.wcs[i+1:]...)
				return true
			}
		}
		return false
	})
	return found
}

// failedAs says whether wc has failed with status, or so that a vague device can say no more.
func (s *side) failedAs(wc verbs.WC, status verbs.WCStatus) bool {
	return wc.Status == status || s.env.Vague && wc.Status == verbs.WCGeneral
}

// at gives n bytes of the slab, and sge their element.
func (s *side) at(off, n int) []byte { return s.mem[off : off+n] }

func (s *side) addr(off int) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))) + uint64(off)
}

func (s *side) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.addr(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (s *side) recv(id uint64, off, n int) verbs.RecvWR {
	return verbs.RecvWR{ID: id, NSGE: 1, SGE: [verbs.MaxSGE]verbs.SGE{s.sge(off, n)}}
}

func (s *side) send(id uint64, off, n int) verbs.SendWR {
	wr := verbs.SendWR{ID: id, Op: verbs.OpSend, Signaled: true}
	if n > 0 {
		wr.NSGE, wr.SGE[0] = 1, s.sge(off, n)
	}
	return wr
}

// end is one side of a connection.
type end struct {
	*side
	id verbs.ID
	qp verbs.QP
}

func (e *end) post(recvs []verbs.RecvWR, sends ...verbs.SendWR) verbs.Posting {
	batch := []verbs.Posting{{QP: e.qp, Recvs: recvs, Sends: sends}}
	e.dev.Post(batch)
	e.enter(&batch[0])
	return batch[0]
}

// enter puts what a posting took into the books.
func (s *side) enter(p *verbs.Posting) {
	b := s.book(p.QP.Num())
	b.recvs += p.NRecvs
	for _, wr := range p.Sends[:p.NSends] {
		if wr.Signaled {
			b.signaled++
		} else {
			b.unsignaled++
		}
	}
}

func (e *end) mustPost(recvs []verbs.RecvWR, sends ...verbs.SendWR) {
	e.t.Helper()
	p := e.post(recvs, sends...)
	if p.Err != nil || p.NRecvs != len(recvs) || p.NSends != len(sends) {
		e.t.Fatalf("posted %d of %d receives and %d of %d sends: %v", p.NRecvs, len(recvs), p.NSends, len(sends), p.Err)
	}
}

// shut ends the connection's side: error, drain, close. The books must balance.
func (e *end) shut() {
	e.t.Helper()
	e.must(e.qp.ToError())
	e.settle()
	own := e.qp.Num()
	b := e.book(own)
	e.wait("the queue pair to drain", func() bool { return b.recvd >= b.recvs && b.sent >= b.signaled })
	if b.recvd != b.recvs || b.sent > b.signaled+b.unsignaled {
		e.t.Fatalf("completions do not match what was posted: %+v", *b)
	}
	e.must(e.qp.Close())
	e.must(e.id.Close())
	e.closed[e.id] = true
	e.events = slices.DeleteFunc(e.events, func(ev verbs.Event) bool { return ev.ID == e.id })
	e.wcs = slices.DeleteFunc(e.wcs, func(wc verbs.WC) bool { return wc.QPNum == own })
}

// world is a listener and its two nodes.
type world struct {
	t        *testing.T
	a, b     *side // client, server
	listener verbs.ID
	port     netip.AddrPort
}

func newWorld(t *testing.T, env *Env) *world {
	t.Helper()
	ca, cb := env.New(t)
	w := &world{t: t, a: newSide(t, env, ca), b: newSide(t, env, cb)}
	l, err := w.b.cm.NewID("listener")
	w.b.must(err)
	w.b.must(l.Bind(netip.AddrPortFrom(cb.Addr, 0), false))
	w.b.must(l.Listen(0))
	w.listener, w.port = l, l.Local()
	w.b.open(l.Device())
	return w
}

func (w *world) close() {
	w.t.Helper()
	w.b.must(w.listener.Close())
	w.a.close()
	w.b.close()
}

// resolve gives a client id that is ready to connect to at.
func (w *world) resolve(at netip.AddrPort) verbs.ID {
	w.t.Helper()
	id, err := w.a.cm.NewID("client")
	w.a.must(err)
	w.a.must(id.ResolveAddr(netip.AddrPortFrom(w.a.node.Addr, 0), at, false, w.a.env.Patience))
	w.a.event(id, verbs.EventAddrResolved)
	w.a.must(id.ResolveRoute(w.a.env.Patience))
	w.a.event(id, verbs.EventRouteResolved)
	w.a.open(id.Device())
	return id
}

// client makes a client's end that is ready to connect to at.
func (w *world) client(at netip.AddrPort) *end {
	w.t.Helper()
	c := &end{side: w.a, id: w.resolve(at)}
	var err error
	c.qp, err = c.id.CreateQP(w.a.attr)
	w.a.must(err)
	return c
}

// server makes the server's end of a request.
func (w *world) server(req verbs.Event) *end {
	w.t.Helper()
	s := &end{side: w.b, id: req.ID}
	var err error
	s.qp, err = s.id.CreateQP(w.b.attr)
	w.b.must(err)
	return s
}

// connect makes a connection.
func (w *world) connect() (c, s *end) {
	w.t.Helper()
	c = w.client(w.port)
	w.a.must(c.id.Connect(param(pattern(56, 1))))
	s = w.server(w.b.event(nil, verbs.EventConnectRequest))
	w.b.must(s.id.Accept(param(pattern(56, 2))))
	w.a.event(c.id, verbs.EventEstablished)
	w.b.event(s.id, verbs.EventEstablished)
	return c, s
}

// param leaves room for one read, without which a device would never carry one out.
func param(private []byte) verbs.ConnParam {
	return verbs.ConnParam{Private: private, ResponderResources: 1, InitiatorDepth: 1, FlowControl: true, RetryCount: 1, RNRRetryCount: 1}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*31 + i>>8)
	}
	return b
}
