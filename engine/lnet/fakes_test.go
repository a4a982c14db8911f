package lnet_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// Nodes of the spec's assertions: N is ours, P the peer.
const (
	nidN     wire.NID = 0x000500000a000001 // 10.0.0.1@o2ib
	nidP     wire.NID = 0x000500000a000002 // 10.0.0.2@o2ib
	nidOther wire.NID = 0x000500000a000063 // 10.0.0.99@o2ib
	nidTCP   wire.NID = 0x000200000a090909 // 10.9.9.9@tcp
	nidN1    wire.NID = 0x000500010a000001 // 10.0.0.1@o2ib1

	pid      = wire.LustrePID
	pingBits = uint64(1) << 63
	cookieN  = 0x1122334455667788
)

// lnd is an LND that only records: the test plays the peer.
type lnd struct {
	t    *testing.T
	node *lnet.Node

	mu   sync.Mutex
	sent []*o2iblnd.Message        // not taken
	open map[*o2iblnd.Message]bool // not finished
}

func (l *lnd) Send(m *o2iblnd.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, m)
	l.open[m] = true
}

// take gives the oldest message that was sent and not taken.
func (l *lnd) take() *o2iblnd.Message {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		l.t.Fatal("nothing was sent")
	}
	m := l.sent[0]
	l.sent = l.sent[1:]
	return m
}

func (l *lnd) inFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sent)
}

// finish ends m with a status.
func (l *lnd) finish(m *o2iblnd.Message, status o2iblnd.Errno) {
	l.mu.Lock()
	delete(l.open, m)
	l.mu.Unlock()
	m.Status = status
	l.node.Finalize(l, m)
}

// abort ends all messages, as an LND that closes.
func (l *lnd) abort() {
	for {
		l.mu.Lock()
		var m *o2iblnd.Message
		for m = range l.open {
			break
		}
		l.mu.Unlock()
		if m == nil {
			return
		}
		l.finish(m, -103)
	}
}

// rx is one received message. What LNet did with it is in got.
type rx struct {
	lnd     *lnd
	payload []byte // IMMEDIATE
	data    []byte // PUT_REQ: what the RDMA would bring
	hold    bool   // do not finish a Receive by itself
	before  int    // messages in flight at the Receive

	got     int // Receive calls
	nothing bool
	m       *o2iblnd.Message
	reply   []byte
}

func (r *rx) Payload() []byte { return r.payload }

func (r *rx) Receive(s o2iblnd.Sender, m *o2iblnd.Message) {
	r.got++
	r.nothing, r.m = m == nil, m
	r.before = r.lnd.inFlight()
	if m == nil || r.hold {
		return
	}
	src := r.payload
	if r.payload == nil {
		src = r.data
	}
	switch {
	case m.Hdr.Type == wire.LNetREPLY && m.Hdr.SrcNID == nidN: // serving a GET_REQ
		r.reply = bytesOf(m)
	default:
		if len(src) < m.Len {
			m.Status = -71
			break
		}
		for _, b := range m.Segs {
			src = src[copy(b.Bytes(), src[:min(len(src), m.Len)]):]
		}
	}
	r.lnd.node.Finalize(s, m)
}

func (r *rx) ReceiveLater(m *o2iblnd.Message) { r.Receive(r.lnd, m) }

// bytesOf is the payload of a message on its way out.
func bytesOf(m *o2iblnd.Message) []byte {
	var all []byte
	for _, b := range m.Segs {
		all = append(all, b.Bytes()...)
	}
	return all[:m.Len]
}

// rig is a node over a recording LND, with a clock that stands still.
type rig struct {
	t       *testing.T
	n       *lnet.Node
	lnd     *lnd
	arena   *arena.Arena
	now     time.Time
	notices []lnet.Notice
}

func newRig(t *testing.T, change ...func(*lnet.Config)) *rig {
	t.Helper()
	g := &rig{t: t, arena: arena.New(arena.SlabSize), now: time.Unix(1_800_000_000, 0)}
	cfg := lnet.Config{
		NIs:   []lnet.NIConfig{{NID: nidN, Credits: 256, PeerCredits: 8}},
		Arena: g.arena, Cookie: cookieN,
		Now: func() time.Time { return g.now },
		Log: func(x lnet.Notice) { g.notices = append(g.notices, x) },
	}
	for _, c := range change {
		c(&cfg)
	}
	n, err := lnet.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.n, g.lnd = n, &lnd{t: t, node: n, open: make(map[*o2iblnd.Message]bool)}
	n.SetSender(g.lnd)
	t.Cleanup(func() {
		g.n.Close()
		g.lnd.abort()
		if s := g.n.Stats(); s.MsgsAlloc != 0 || s.RstAlloc != 0 {
			t.Errorf("after Close: %d messages and %d trackers are left", s.MsgsAlloc, s.RstAlloc)
		}
		if err := g.arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// parse gives the node a message from P and fails where it is refused.
func (g *rig) parse(h wire.LNetHeader, r *rx, rdma bool) *rx {
	g.t.Helper()
	r.lnd = g.lnd
	if err := g.n.Parse(g.lnd, nidN, nidP, &h, r, rdma); err != nil {
		g.t.Fatalf("Parse: %v", err)
	}
	return r
}

// imm is an IMMEDIATE with these bytes.
func (g *rig) imm(h wire.LNetHeader, payload []byte) *rx {
	g.t.Helper()
	if payload == nil {
		payload = []byte{}
	}
	return g.parse(h, &rx{payload: payload}, false)
}

func (g *rig) buf(n int) arena.Buffer {
	g.t.Helper()
	b, err := g.arena.Alloc(n)
	if err != nil {
		g.t.Fatal(err)
	}
	clear(b.Bytes())
	return b
}

// log collects events.
type eventLog struct {
	mu     sync.Mutex
	events []lnet.Event
}

func (l *eventLog) add(ev lnet.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ev.Via = nil
	l.events = append(l.events, ev)
}

func (l *eventLog) take() []lnet.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	evs := l.events
	l.events = nil
	return evs
}

// types are the types of the events so far, which are taken.
func (l *eventLog) types() []lnet.EventType {
	var all []lnet.EventType
	for _, ev := range l.take() {
		all = append(all, ev.Type)
	}
	return all
}

func (g *rig) one(l *eventLog, want lnet.EventType) lnet.Event {
	g.t.Helper()
	evs := l.take()
	if len(evs) != 1 || evs[0].Type != want {
		g.t.Fatalf("events %v, want one %v", evs, want)
	}
	return evs[0]
}

func (g *rig) none(l *eventLog) {
	g.t.Helper()
	if evs := l.take(); len(evs) != 0 {
		g.t.Fatalf("events %v, want none", evs)
	}
}

// attach posts n bytes on a portal for anybody.
func (g *rig) attach(e lnet.ME, n int, d lnet.MD, l *eventLog) (lnet.Handle, arena.Buffer) {
	g.t.Helper()
	if e.NID == 0 {
		e.NID, e.PID = wire.AnyNID, lnet.AnyPID
	}
	b := g.buf(n)
	d.Segs = []arena.Buffer{b}
	if d.Options&(lnet.OptPut|lnet.OptGet) == 0 {
		d.Options |= lnet.OptPut
	}
	if d.Threshold == 0 {
		d.Threshold = lnet.Unlimited
	}
	d.Handler = l.add
	h, err := g.n.Attach(e, d)
	if err != nil {
		g.t.Fatal(err)
	}
	return h, b
}

// bind makes an active MD of n bytes.
func (g *rig) bind(n, threshold int, o lnet.Options, l *eventLog) (lnet.Handle, arena.Buffer) {
	g.t.Helper()
	b := g.buf(n)
	h, err := g.n.Bind(lnet.MD{Segs: []arena.Buffer{b}, Threshold: threshold, Options: o, Handler: l.add})
	if err != nil {
		g.t.Fatal(err)
	}
	return h, b
}

func put(portal uint32, bits uint64, length int) wire.LNetHeader {
	return wire.LNetHeader{
		DestNID: nidN, SrcNID: nidP, DestPID: pid, SrcPID: pid, Type: wire.LNetPUT,
		PayloadLength: uint32(length), Handle: wire.NoHandle, MatchBits: bits, Portal: portal,
	}
}

func get(portal uint32, bits uint64, sink int) wire.LNetHeader {
	return wire.LNetHeader{
		DestNID: nidN, SrcNID: nidP, DestPID: pid, SrcPID: pid, Type: wire.LNetGET,
		Handle: wire.Handle{Iface: 0xaaaa, Object: 0xbbbb}, MatchBits: bits, Portal: portal, Length: uint32(sink),
	}
}

// answerTo is the header of P's answer to a message that N sent.
func answerTo(m *o2iblnd.Message, t wire.LNetType, payload int) wire.LNetHeader {
	h := wire.LNetHeader{
		DestNID: m.Hdr.SrcNID, SrcNID: m.Hdr.DestNID, DestPID: m.Hdr.SrcPID, SrcPID: m.Hdr.DestPID,
		Type: t, Handle: m.Hdr.Handle,
	}
	if t == wire.LNetACK {
		h.MatchBits, h.Length = m.Hdr.MatchBits, uint32(payload)
	} else {
		h.PayloadLength = uint32(payload)
	}
	return h
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func toP(portal uint32, bits uint64) lnet.Operation {
	return lnet.Operation{Target: lnet.ProcessID{NID: nidP, PID: pid}, Portal: portal, MatchBits: bits}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fabric joins nodes by LNDs that follow upper.go: what one sends the other parses at once, and the
// sender's message ends inside Send, the hardest case for LNet. With queued set, messages wait for step.
type fabric struct {
	ports  map[wire.NID]*port
	queued bool

	mu     sync.Mutex
	queue  []*o2iblnd.Message
	wake   sync.Cond
	closed bool
	errs   []error
	rxs    sync.Pool
}

type port struct {
	f    *fabric
	node *lnet.Node
}

func newFabric(nodes ...*lnet.Node) *fabric {
	f := &fabric{ports: make(map[wire.NID]*port)}
	f.wake.L = &f.mu
	f.rxs.New = func() any { return &fabricRx{buf: make([]byte, 0, wire.MaxImmediate)} }
	for _, n := range nodes {
		p := &port{f, n}
		n.SetSender(p)
		for _, i := range n.NIs() {
			f.ports[i.NID] = p
		}
	}
	return f
}

func (p *port) Send(m *o2iblnd.Message) {
	f := p.f
	if !f.queued {
		f.carry(m)
		return
	}
	f.mu.Lock()
	f.queue = append(f.queue, m)
	f.mu.Unlock()
	f.wake.Signal()
}

// serve carries queued messages until stop.
func (f *fabric) serve() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		for len(f.queue) > 0 {
			m := f.queue[0]
			f.queue = slices.Delete(f.queue, 0, 1)
			f.mu.Unlock()
			f.carry(m)
			f.mu.Lock()
		}
		if f.closed {
			return
		}
		f.wake.Wait()
	}
}

func (f *fabric) stop() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.wake.Broadcast()
}

// carry brings m to the node that it is for and ends it.
func (f *fabric) carry(m *o2iblnd.Message) {
	from, to := f.ports[m.Hdr.SrcNID], f.ports[m.Peer]
	if to == nil {
		m.Status, m.Health = -113, o2iblnd.HealthNetworkTimeout
		from.node.Finalize(from, m)
		return
	}
	r := f.rxs.Get().(*fabricRx)
	r.from, r.to, r.m, r.hdr = from, to, m, m.Hdr
	r.rdma = m.Hdr.Type != wire.LNetACK && m.Len > wire.MaxImmediate && !(m.Hdr.Type == wire.LNetGET && m.Router)
	r.buf = r.buf[:0]
	r.done.Store(false)
	if !r.rdma && m.Hdr.Type != wire.LNetGET {
		for _, b := range m.Segs {
			r.buf = append(r.buf, b.Bytes()...)
		}
		r.buf = r.buf[:m.Len]
	}
	rdma := r.rdma
	err := to.node.Parse(to, m.Peer, m.Hdr.SrcNID, &r.hdr, r, rdma)
	if err != nil {
		f.mu.Lock()
		f.errs = append(f.errs, err)
		f.mu.Unlock()
		m.Status = -103
	}
	if !rdma || err != nil {
		from.node.Finalize(from, m)
	}
	if r.done.Load() { // else LNet has set it aside
		f.rxs.Put(r)
	}
}

// fabricRx is a received message of a fabric.
type fabricRx struct {
	from, to *port
	m        *o2iblnd.Message // the sender's
	hdr      wire.LNetHeader
	rdma     bool
	buf      []byte
	done     atomic.Bool
}

func (r *fabricRx) Payload() []byte {
	if r.rdma {
		return nil
	}
	return r.buf
}

func (r *fabricRx) Receive(s o2iblnd.Sender, m *o2iblnd.Message) {
	src := r.m
	switch {
	case !r.rdma:
		if m != nil {
			b := r.buf[:m.Len]
			for _, seg := range m.Segs {
				b = b[copy(seg.Bytes(), b):]
			}
		}
	case r.hdr.Type == wire.LNetGET:
		if m == nil {
			src.Status, src.Health = -61, o2iblnd.HealthRemoteError
		} else {
			move(src.Segs, m.Segs, m.Len)
			src.RDMALen = m.Len
		}
	case m != nil:
		move(m.Segs, src.Segs, m.Len)
	}
	if m != nil {
		r.to.node.Finalize(s, m)
	}
	if r.rdma {
		r.from.node.Finalize(r.from, src)
	}
	r.done.Store(true)
}

func (r *fabricRx) ReceiveLater(m *o2iblnd.Message) { r.Receive(r.to, m) }

func move(dst, src []arena.Buffer, n int) {
	var d, s []byte
	for n > 0 {
		if len(d) == 0 {
			d, dst = dst[0].Bytes(), dst[1:]
		}
		if len(s) == 0 {
			s, src = src[0].Bytes(), src[1:]
		}
		k := copy(d[:min(len(d), n)], s)
		d, s, n = d[k:], s[k:], n-k
	}
}

func seg(b arena.Buffer) []arena.Buffer { return []arena.Buffer{b} }
