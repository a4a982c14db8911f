package mem_test

import (
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

const slab = 1 << 16

// rig is two nodes and a connection from the first to the second, made by hand.
type rig struct {
	t     testing.TB
	f     *mem.Fabric
	at    netip.AddrPort // of the listener
	mem   []byte
	sides [2]*side
}

type side struct {
	r    *rig
	addr netip.Addr
	prov verbs.Provider
	w    verbs.Waiter
	cm   verbs.CM
	id   verbs.ID
	dev  verbs.Device
	pd   verbs.PD
	cq   verbs.CQ
	mr   verbs.MR
	qp   verbs.QP
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRig makes the nodes.
func newRig(t testing.TB, f *mem.Fabric) *rig {
	t.Helper()
	r := &rig{t: t, f: f, at: netip.AddrPortFrom(addrB, 987)}
	var err error
	r.mem, err = unix.Mmap(-1, 0, slab, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(r.mem)) })
	for i, a := range []netip.Addr{addrA, addrB} {
		s := &side{r: r, addr: a, prov: f.Provider(a)}
		s.w, err = s.prov.NewWaiter()
		must(t, err)
		s.cm, err = s.prov.OpenCM(s.w)
		must(t, err)
		r.sides[i] = s
	}
	return r
}

// run steps until nothing moves.
func (r *rig) run() {
	for r.f.Step() {
	}
}

// listen makes a listener on the second node.
func (r *rig) listen() verbs.ID {
	r.t.Helper()
	l, err := r.sides[1].cm.NewID("listener")
	must(r.t, err)
	must(r.t, l.Bind(r.at, false))
	must(r.t, l.Listen(0))
	return l
}

// dial makes a client id with a queue pair that is ready to connect.
func (r *rig) dial() *side {
	r.t.Helper()
	s := r.sides[0]
	var err error
	s.id, err = s.cm.NewID("client")
	must(r.t, err)
	must(r.t, s.id.ResolveAddr(netip.AddrPortFrom(addrA, 0), r.at, false, 0))
	must(r.t, s.id.ResolveRoute(0))
	s.build()
	return s
}

// connect makes a connection; retries is what both sides give as RNR retry count.
func (r *rig) connect(retries uint8) (a, b *side) {
	r.t.Helper()
	a, b = r.dial(), r.sides[1]
	must(r.t, a.id.Connect(verbs.ConnParam{Private: []byte("hello"), RNRRetryCount: retries}))
	b.id = b.event(verbs.EventConnectRequest).ID
	b.build()
	must(r.t, b.id.Accept(verbs.ConnParam{Private: []byte("welcome"), RNRRetryCount: retries}))
	a.event(verbs.EventEstablished)
	r.run()
	return a, b
}

// connected makes a listener and a connection on a new fabric.
func connected(t testing.TB, opt mem.Options, retries uint8) (r *rig, a, b *side) {
	t.Helper()
	r = newRig(t, mem.NewFabric(opt))
	r.listen()
	a, b = r.connect(retries)
	b.event(verbs.EventEstablished)
	return r, a, b
}

// build makes what a connection stands on.
func (s *side) build() {
	t := s.r.t
	t.Helper()
	s.dev = s.id.Device()
	var err error
	s.pd, err = s.dev.AllocPD()
	must(t, err)
	s.cq, err = s.dev.CreateCQ(10, s.w)
	must(t, err)
	s.mr, err = s.pd.RegMR(s.r.mem, verbs.LocalWrite|verbs.RemoteWrite)
	must(t, err)
	s.qp, err = s.id.CreateQP(s.attr())
	must(t, err)
}

func (s *side) attr() verbs.QPAttr {
	return verbs.QPAttr{PD: s.pd, CQ: s.cq, MaxSendWR: 100, MaxRecvWR: 100, MaxSendSGE: 1, MaxRecvSGE: 1}
}

// event takes the next event of a type, passing others over; that there is none fails.
func (s *side) event(typ verbs.EventType) verbs.Event {
	s.r.t.Helper()
	s.r.run()
	for {
		var evs [1]verbs.Event
		if n, err := s.cm.Poll(evs[:]); n == 0 {
			s.r.t.Fatalf("no %v at %v (%v)", typ, s.addr, err)
		}
		if evs[0].Type == typ {
			return evs[0]
		}
	}
}

// quiet says that no events are left, but for those of the given types.
func (s *side) quiet(but ...verbs.EventType) {
	s.r.t.Helper()
	s.r.run()
	var evs [16]verbs.Event
	n, err := s.cm.Poll(evs[:])
	must(s.r.t, err)
next:
	for _, ev := range evs[:n] {
		for _, t := range but {
			if ev.Type == t {
				continue next
			}
		}
		s.r.t.Fatalf("unexpected %v at %v", ev.Type, s.addr)
	}
}

// completions takes those that are there; there must be n.
func (s *side) completions(n int) []verbs.WC {
	s.r.t.Helper()
	s.r.run()
	wcs := make([]verbs.WC, n+1)
	k, err := s.cq.Poll(wcs)
	must(s.r.t, err)
	if k != n {
		s.r.t.Fatalf("%d completions at %v, want %d: %+v", k, s.addr, n, wcs[:k])
	}
	return wcs[:k]
}

func (s *side) status(want verbs.WCStatus) {
	s.r.t.Helper()
	if wc := s.completions(1)[0]; wc.Status != want {
		s.r.t.Fatalf("completion at %v: %+v, want %v", s.addr, wc, want)
	}
}

func (s *side) post(recvs []verbs.RecvWR, sends ...verbs.SendWR) error {
	b := []verbs.Posting{{QP: s.qp, Recvs: recvs, Sends: sends}}
	s.dev.Post(b)
	return b[0].Err
}

func (s *side) sge(off, n int) (e [verbs.MaxSGE]verbs.SGE) {
	e[0] = verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(&s.r.mem[off]))), Length: uint32(n), LKey: s.mr.LKey()}
	return e
}

// recv and send are one request each, of a small message.
func (s *side) recv() []verbs.RecvWR {
	return []verbs.RecvWR{{ID: 1, NSGE: 1, SGE: s.sge(4096, 4096)}}
}

func (s *side) send() verbs.SendWR {
	return verbs.SendWR{ID: 2, Op: verbs.OpSend, Signaled: true, NSGE: 1, SGE: s.sge(0, 64)}
}
