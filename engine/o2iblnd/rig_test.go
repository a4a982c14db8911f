package o2iblnd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire"
)

// The rig is a node under test (dut) and a scripted peer (tp) that speaks raw bytes through the verbs, on
// iWARP over in-memory streams, in a synctest bubble: time passes only when everybody waits.

var (
	lowAddr  = netip.MustParseAddr("10.0.0.1")
	highAddr = netip.MustParseAddr("10.0.0.2")
)

const service = 987

func nidOf(a netip.Addr) wire.NID {
	b := a.As4()
	return wire.MakeNID(wire.NetO2IB, uint32(b[0])<<24|uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3]))
}

type rig struct {
	t     *testing.T
	net   *iwarp.Pipes
	lnd   *o2iblnd.LND
	upper *upper
	arena *arena.Arena
	nid   wire.NID
	tun   tunables.NI
	tp    *tp
}

func (r *rig) niConfig() o2iblnd.NIConfig {
	return o2iblnd.NIConfig{NID: r.nid, Addr: r.nid.IPv4(), Tunables: r.tun}
}

type option func(*options)

type options struct {
	set      map[string]string
	dut, tp  netip.Addr
	tpListen bool
}

func with(name, value string) option { return func(o *options) { o.set[name] = value } }

// dutLower gives the node under test the lower NID; by default it has the higher one.
func dutLower(o *options) { o.dut, o.tp = lowAddr, highAddr }

// tpAway leaves the scripted peer without a listener.
func tpAway(o *options) { o.tpListen = false }

// run runs f in a bubble with a rig.
func run(t *testing.T, f func(r *rig), opts ...option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := options{set: map[string]string{"use_privileged_port": "0"}, dut: highAddr, tp: lowAddr, tpListen: true}
		for _, f := range opts {
			f(&o)
		}
		r := &rig{t: t, net: iwarp.NewPipes(), arena: arena.New(64 << 20), nid: nidOf(o.dut)}
		r.upper = &upper{t: t, arena: r.arena}
		v := tunables.Values{}
		for k, s := range o.set {
			v[tunables.Scoped{Scope: tunables.GlobalScope, Name: k}] = s
		}
		g, n, _ := tunables.Derive(v, "o2ib")
		var err error
		r.lnd, err = o2iblnd.New(o2iblnd.Config{
			Provider: iwarp.New(iwarp.Options{Transport: r.net, Interfaces: []iwarp.Interface{{Name: "ib0", Addr: o.dut}}}),
			Upper:    r.upper, Payload: r.arena, Global: g, Scheds: 2,
			OnEvent: func(e o2iblnd.Event) { r.upper.event(e) },
		})
		r.must(err)
		r.lnd.Start()
		r.tun = n
		r.must(r.lnd.AddNI(t.Context(), r.niConfig()))
		r.tp = newTP(r, o.tp, o.tpListen)
		f(r)
		r.tp.close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r.must(r.lnd.Stop(ctx))
		r.upper.check()
		r.must(r.arena.Close())
	})
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// conn gives the only connection, or fails.
func (r *rig) conn() o2iblnd.ConnState {
	r.t.Helper()
	synctest.Wait()
	// A scheduler publishes when it goes idle, which it is now.
	s := r.lnd.Snapshot()
	if len(s.Conns) != 1 {
		r.t.Fatalf("%d connections: %+v", len(s.Conns), s.Conns)
	}
	return s.Conns[0]
}

// credits fails unless the connection's counters are these.
func (r *rig) credits(credits, outstanding, reserved int) {
	r.t.Helper()
	if c := r.conn(); c.Credits != credits || c.Outstanding != outstanding || c.Reserved != reserved {
		r.t.Fatalf("credits/outstanding/reserved are %d/%d/%d, wanted %d/%d/%d", c.Credits, c.Outstanding, c.Reserved, credits, outstanding, reserved)
	}
}

// message makes an LNet message from the node under test to the peer.
func (r *rig) message(typ wire.LNetType, n int) *o2iblnd.Message {
	m := &o2iblnd.Message{Peer: r.tp.nid, Len: n}
	m.Hdr = wire.LNetHeader{DestNID: r.tp.nid, SrcNID: r.nid, DestPID: wire.LustrePID, SrcPID: wire.LustrePID, Type: typ, Handle: wire.NoHandle}
	if typ == wire.LNetGET {
		m.Hdr.Length = uint32(n)
	} else {
		m.Hdr.PayloadLength = uint32(n)
	}
	if n > 0 {
		b, err := r.arena.Alloc(n)
		r.must(err)
		copy(b.Bytes(), pattern(n, 1))
		m.Segs = append(m.Segs, b)
	}
	r.upper.sent(m)
	return m
}

func (r *rig) send(typ wire.LNetType, n int) *o2iblnd.Message {
	m := r.message(typ, n)
	r.lnd.Send(m)
	return m
}

// finished waits until m came back and fails unless with this status.
func (r *rig) finished(m *o2iblnd.Message, status unix.Errno) {
	r.t.Helper()
	synctest.Wait()
	if !r.upper.done(m) {
		r.t.Fatal("the message did not come back")
	}
	if m.Status != -o2iblnd.Errno(status) {
		r.t.Fatalf("the message ended with %v, wanted %v", m.Status, -o2iblnd.Errno(status))
	}
}

func (r *rig) unfinished(m *o2iblnd.Message) {
	r.t.Helper()
	synctest.Wait()
	if r.upper.done(m) {
		r.t.Fatalf("the message ended with %v", m.Status)
	}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*13 + seed*17 + i>>8)
	}
	return b
}

// upper is a small LNet: it records, and does with what arrives what the test says.
type upper struct {
	t     *testing.T
	arena *arena.Arena

	mu      sync.Mutex
	pending map[*o2iblnd.Message]bool // with the LND
	ended   map[*o2iblnd.Message]int
	down    []string
	status  []bool // of the NI, as it was told
	events  []o2iblnd.Event
	parsed  []wire.LNetHeader
	data    [][]byte // of finished receives
	held    []o2iblnd.Rx

	// on says what happens to a received message: how many bytes are wanted, -1: nothing matches, -2:
	// LNet keeps it, -3: it is refused. nil: nothing matches.
	on func(h *wire.LNetHeader) int
}

func (u *upper) sent(m *o2iblnd.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.pending, u.ended = make(map[*o2iblnd.Message]bool), make(map[*o2iblnd.Message]int)
	}
	u.pending[m] = true
}

func (u *upper) done(m *o2iblnd.Message) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ended[m] == 1
}

// check fails unless every message came back exactly once.
func (u *upper) check() {
	u.t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for m := range u.pending {
		if u.ended[m] != 1 {
			u.t.Errorf("a %v of %d bytes came back %d times", m.Hdr.Type, m.Len, u.ended[m])
		}
	}
}

func (u *upper) event(e o2iblnd.Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.events = append(u.events, e)
}

// said tells whether an event of a kind has text in it.
func (u *upper) said(kind, text string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range u.events {
		if e.Kind == kind && bytes.Contains([]byte(e.Text), []byte(text)) {
			return true
		}
	}
	return false
}

// lastData are the numbers of the last event of a kind.
func (u *upper) lastData(kind string) map[string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range slices.Backward(u.events) {
		if e.Kind == kind {
			return e.Data
		}
	}
	return nil
}

func (u *upper) Parse(s o2iblnd.Sender, ni, from wire.NID, h *wire.LNetHeader, rx o2iblnd.Rx, rdma bool) error {
	want := -1
	u.mu.Lock()
	u.parsed = append(u.parsed, *h)
	if u.on != nil {
		want = u.on(h)
	}
	if want == -2 {
		u.held = append(u.held, rx)
	}
	u.mu.Unlock()
	switch want {
	case -1:
		rx.Receive(s, nil)
	case -2:
	case -3:
		return errors.New("refused by the test")
	default:
		rx.Receive(s, u.receive(h, want))
	}
	return nil
}

// receive makes the message that takes n bytes, or answers a GET with n.
func (u *upper) receive(h *wire.LNetHeader, n int) *o2iblnd.Message {
	m := &o2iblnd.Message{Hdr: *h, Peer: h.SrcNID, Len: n}
	if n > 0 {
		b, err := u.arena.Alloc(n)
		if err != nil {
			u.t.Error(err)
			return nil
		}
		if h.Type == wire.LNetGET {
			copy(b.Bytes(), pattern(n, 2))
		}
		m.Segs = append(m.Segs, b)
	}
	u.sent(m)
	return m
}

func (u *upper) Finalize(_ o2iblnd.Sender, m *o2iblnd.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended[m]++
	if m.Len > 0 {
		u.data = append(u.data, bytes.Clone(m.Segs[0].Bytes()))
	}
}

func (u *upper) NIStatus(_ wire.NID, up bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.status = append(u.status, up)
}

func (u *upper) PeerDown(_, nid wire.NID, err error, _ time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.down = append(u.down, fmt.Sprintf("%v: %v", nid, err))
}

func (u *upper) downs() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.down)
}

// tp is the scripted peer.
type tp struct {
	r        *rig
	addr     netip.Addr
	nid      wire.NID
	stamp    uint64
	prov     verbs.Provider
	w        verbs.Waiter
	cm       verbs.CM
	listener verbs.ID
	mem      []byte
	conns    []*tpConn
	evs      []verbs.Event
	dev      verbs.Device
	pd       verbs.PD
	mr       verbs.MR
}

const (
	tpMem   = 8 << 20
	tpRxs   = 64
	tpSlots = 1 << 20 // behind the receive rings: what is sent, and RDMA memory
)

func newTP(r *rig, a netip.Addr, listen bool) *tp {
	p := &tp{r: r, addr: a, nid: nidOf(a), stamp: 0x1111000, prov: iwarp.New(iwarp.Options{Transport: r.net, Interfaces: []iwarp.Interface{{Name: "ib0", Addr: a}}})}
	var err error
	p.w, err = p.prov.NewWaiter()
	r.must(err)
	p.cm, err = p.prov.OpenCM(p.w)
	r.must(err)
	p.mem, err = unix.Mmap(-1, 0, tpMem, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	r.must(err)
	port := service
	if !listen {
		port = 1 // it needs the device all the same
	}
	p.listener, err = p.cm.NewID("listener")
	r.must(err)
	r.must(p.listener.Bind(netip.AddrPortFrom(a, uint16(port)), false))
	r.must(p.listener.Listen(0))
	p.dev = p.listener.Device()
	p.pd, err = p.dev.AllocPD()
	r.must(err)
	p.mr, err = p.pd.RegMR(p.mem, verbs.LocalWrite|verbs.RemoteWrite)
	r.must(err)
	return p
}

func (p *tp) close() {
	for _, c := range p.conns {
		c.drop()
	}
	for _, ev := range p.evs {
		ev.ID.Close()
	}
	p.r.must(p.listener.Close())
	p.r.must(p.prov.Close())
	p.r.must(unix.Munmap(p.mem))
}

// event gives the next event of a type; none is an error.
func (p *tp) event(typ verbs.EventType) verbs.Event {
	p.r.t.Helper()
	ev, ok := p.maybe(typ)
	if !ok {
		p.r.t.Fatalf("the peer saw no %v; it has %v", typ, p.evs)
	}
	return ev
}

func (p *tp) maybe(typ verbs.EventType) (verbs.Event, bool) {
	synctest.Wait()
	var evs [16]verbs.Event
	n, err := p.cm.Poll(evs[:])
	p.r.must(err)
	for _, ev := range evs[:n] {
		ev.Private = bytes.Clone(ev.Private)
		p.evs = append(p.evs, ev)
	}
	for i, ev := range p.evs {
		if ev.Type == typ {
			p.evs = append(p.evs[:i], p.evs[i+1:]...)
			return ev, true
		}
	}
	return verbs.Event{}, false
}

// request takes the node's CONNREQ.
func (p *tp) request() (verbs.ID, *wire.Msg, verbs.ConnParam) {
	p.r.t.Helper()
	ev := p.event(verbs.EventConnectRequest)
	m := new(wire.Msg)
	if _, err := m.Unpack(ev.Private); err != nil || m.Type != wire.MsgConnReq {
		p.r.t.Fatalf("CONNREQ %x: %v", ev.Private, err)
	}
	return ev.ID, m, ev.Param
}

func (p *tp) noRequest() {
	p.r.t.Helper()
	if _, ok := p.maybe(verbs.EventConnectRequest); ok {
		p.r.t.Fatal("an unexpected CONNREQ")
	}
}

func (p *tp) reject(id verbs.ID, rej wire.Reject) {
	p.r.t.Helper()
	rej.Magic = wire.Magic
	var b [wire.RejectSize]byte
	rej.Encode(b[:])
	p.r.must(id.Reject(b[:]))
	p.r.must(id.Close())
	synctest.Wait()
}

// tpConn is a connection of the scripted peer.
type tpConn struct {
	p       *tp
	id      verbs.ID
	qp      verbs.QP
	cq      verbs.CQ
	version wire.Version
	stamp   uint64 // of the node
	base    int    // of its memory
	raw     [][]byte
	wcs     []verbs.WC
	slot    int
	big     bool
}

func (p *tp) newConn(id verbs.ID) *tpConn {
	p.r.t.Helper()
	c := &tpConn{p: p, id: id, version: wire.Version2, base: len(p.conns) % 4 * 2 << 20}
	var err error
	c.cq, err = p.dev.CreateCQ(1000, p.w)
	p.r.must(err)
	c.qp, err = id.CreateQP(verbs.QPAttr{PD: p.pd, CQ: c.cq, MaxSendWR: 1000, MaxRecvWR: 100, MaxSendSGE: 2, MaxRecvSGE: 1})
	p.r.must(err)
	for i := range tpRxs {
		c.postRecv(uint64(i))
	}
	p.conns = append(p.conns, c)
	return c
}

func (c *tpConn) at(off, n int) []byte { return c.p.mem[c.base+off : c.base+off+n] }

func (c *tpConn) addr(off int) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c.p.mem)))) + uint64(c.base+off)
}

func (c *tpConn) postRecv(i uint64) {
	c.p.r.t.Helper()
	wr := verbs.RecvWR{ID: i, NSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: c.addr(int(i) * wire.MsgSize), Length: wire.MsgSize, LKey: c.p.mr.LKey()}
	batch := []verbs.Posting{{QP: c.qp, Recvs: []verbs.RecvWR{wr}}}
	c.p.dev.Post(batch)
	c.p.r.must(batch[0].Err)
}

// accept answers the node's CONNREQ m with a CONNACK, changed by edit.
func (p *tp) accept(id verbs.ID, m *wire.Msg, edit func(*wire.Msg)) *tpConn {
	p.r.t.Helper()
	c := p.newConn(id)
	c.version, c.stamp = m.Version, m.SrcStamp
	ack := wire.Msg{Params: m.Params}
	ack.Header = wire.Header{Version: m.Version, Type: wire.MsgConnAck, SrcNID: p.nid, SrcStamp: p.stamp, DstNID: m.SrcNID, DstStamp: m.SrcStamp}
	if edit != nil {
		edit(&ack)
	}
	var b [wire.ConnMsgSize]byte
	_, err := ack.Encode(b[:], wire.CksumNone)
	p.r.must(err)
	p.r.must(id.Accept(verbs.ConnParam{Private: b[:], RetryCount: 1, RNRRetryCount: 1}))
	p.event(verbs.EventEstablished)
	return c
}

// connreq is a sound CONNREQ to the node.
func (p *tp) connreq() *wire.Msg {
	m := &wire.Msg{Params: wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: wire.MsgSize}}
	m.Header = wire.Header{Version: wire.Version2, Type: wire.MsgConnReq, SrcNID: p.nid, SrcStamp: p.stamp, DstNID: p.r.nid}
	return m
}

// ask sends private data as a connection request from a source port and gives the id.
func (p *tp) ask(private []byte, port uint16) *tpConn {
	p.r.t.Helper()
	id, err := p.cm.NewID("tp")
	p.r.must(err)
	p.r.must(id.ResolveAddr(netip.AddrPortFrom(p.addr, port), netip.AddrPortFrom(p.r.addr(), service), true, time.Second))
	p.event(verbs.EventAddrResolved)
	p.r.must(id.ResolveRoute(time.Second))
	p.event(verbs.EventRouteResolved)
	c := p.newConn(id)
	p.r.must(id.Connect(verbs.ConnParam{Private: private, RetryCount: 1, RNRRetryCount: 1}))
	synctest.Wait()
	return c
}

func (r *rig) addr() netip.Addr { return r.nid.IPv4() }

func (p *tp) encode(m *wire.Msg) []byte {
	p.r.t.Helper()
	b := make([]byte, wire.ConnMsgSize)
	n, err := m.Encode(b, wire.CksumNone)
	p.r.must(err)
	return b[:n]
}

// connect makes a connection to the node with CONNREQ m and gives its CONNACK.
func (p *tp) connect(m *wire.Msg) (*tpConn, *wire.Msg) {
	p.r.t.Helper()
	c := p.ask(p.encode(m), 0)
	ev := p.event(verbs.EventEstablished)
	ack := new(wire.Msg)
	if _, err := ack.Unpack(ev.Private); err != nil || ack.Type != wire.MsgConnAck {
		p.r.t.Fatalf("CONNACK %x: %v", ev.Private, err)
	}
	c.version, c.stamp, c.big = m.Version, ack.SrcStamp, m.BigEndian
	synctest.Wait()
	return c, ack
}

// refused sends private data and gives the node's reject.
func (p *tp) refused(private []byte, port uint16) wire.Reject {
	p.r.t.Helper()
	c := p.ask(private, port)
	ev := p.event(verbs.EventRejected)
	if len(ev.Private) != wire.RejectSize || ev.Reject != verbs.RejectConsumer {
		p.r.t.Fatalf("reject of kind %v with %d bytes", ev.Reject, len(ev.Private))
	}
	rej, err := wire.ParseReject(ev.Private)
	if err != nil {
		p.r.t.Fatal(err)
	}
	c.drop()
	return rej
}

func (c *tpConn) drop() {
	if c.qp == nil {
		return
	}
	c.p.r.must(c.qp.Close())
	c.p.r.must(c.id.Close())
	c.qp = nil
}

// msg makes a message on the connection.
func (c *tpConn) msg(typ wire.MsgType, credits uint8) *wire.Msg {
	m := &wire.Msg{BigEndian: c.big}
	m.Header = wire.Header{Version: c.version, Type: typ, Credits: credits, SrcNID: c.p.nid, SrcStamp: c.p.stamp, DstNID: c.p.r.nid, DstStamp: c.stamp}
	return m
}

// lnet is a message with an LNet header of ours.
func (c *tpConn) lnet(typ wire.MsgType, l wire.LNetType, payload int) *wire.Msg {
	m := c.msg(typ, 0)
	m.LNet = wire.LNetHeader{DestNID: c.p.r.nid, SrcNID: c.p.nid, DestPID: wire.LustrePID, SrcPID: wire.LustrePID, Type: l, Handle: wire.NoHandle, Portal: 40}
	if l == wire.LNetGET {
		m.LNet.Length = uint32(payload)
	} else {
		m.LNet.PayloadLength = uint32(payload)
	}
	if typ == wire.MsgImmediate && l != wire.LNetGET {
		m.Payload = pattern(payload, 5)
	}
	return m
}

// sendMsg sends m, with a checksum of kind ck.
func (c *tpConn) sendMsg(m *wire.Msg) { c.sendBytes(c.bytes(m, wire.CksumNone)) }

func (c *tpConn) bytes(m *wire.Msg, ck wire.CksumKind) []byte {
	c.p.r.t.Helper()
	b := make([]byte, wire.MsgSize)
	n, err := m.Encode(b, ck)
	c.p.r.must(err)
	return b[:n]
}

func (c *tpConn) sendBytes(b []byte) {
	c.p.r.t.Helper()
	off := tpSlots + c.slot%64*wire.MsgSize
	c.slot++
	copy(c.at(off, len(b)), b)
	wr := verbs.SendWR{ID: 1000, Op: verbs.OpSend, Signaled: true, NSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: c.addr(off), Length: uint32(len(b)), LKey: c.p.mr.LKey()}
	batch := []verbs.Posting{{QP: c.qp, Sends: []verbs.SendWR{wr}}}
	c.p.dev.Post(batch)
	c.p.r.must(batch[0].Err)
	synctest.Wait()
}

// take gives the messages that came since, reposting their buffers.
func (c *tpConn) take() []*wire.Msg {
	c.p.r.t.Helper()
	synctest.Wait()
	var wcs [64]verbs.WC
	n, err := c.cq.Poll(wcs[:])
	c.p.r.must(err)
	var got []*wire.Msg
	for _, wc := range wcs[:n] {
		if wc.Op != verbs.OpRecv || wc.Status != verbs.WCSuccess {
			c.wcs = append(c.wcs, wc)
			continue
		}
		m := new(wire.Msg)
		b := bytes.Clone(c.at(int(wc.ID)*wire.MsgSize, int(wc.ByteLen)))
		if kind, err := m.Unpack(b); err != nil {
			c.p.r.t.Fatalf("the node sent %x: %v (checksum %v)", b, err, kind)
		}
		if m.SrcNID != c.p.r.nid || m.DstNID != c.p.nid || m.SrcStamp != c.stamp || m.DstStamp != c.p.stamp || m.Version != c.version {
			c.p.r.t.Fatalf("header of the node's message: %+v", m.Header)
		}
		got = append(got, m)
		c.raw = append(c.raw, b)
		c.postRecv(wc.ID)
	}
	return got
}

// expect takes messages and fails unless they are of these types.
func (c *tpConn) expect(types ...wire.MsgType) []*wire.Msg {
	c.p.r.t.Helper()
	got := c.take()
	var have []wire.MsgType
	for _, m := range got {
		have = append(have, m.Type)
	}
	if fmt.Sprint(have) != fmt.Sprint(types) {
		c.p.r.t.Fatalf("the node sent %v, wanted %v", have, types)
	}
	return got
}

// closed fails unless the node has closed the connection.
func (c *tpConn) closed() {
	c.p.r.t.Helper()
	if _, ok := c.p.maybe(verbs.EventDisconnected); !ok {
		c.p.r.t.Fatalf("the connection is still open; events %v", c.p.evs)
	}
}

func (c *tpConn) open() {
	c.p.r.t.Helper()
	if _, ok := c.p.maybe(verbs.EventDisconnected); ok {
		c.p.r.t.Fatalf("the connection was closed; events %v", c.p.r.upper.events)
	}
}

func param(private []byte) verbs.ConnParam {
	return verbs.ConnParam{Private: private, RetryCount: 1, RNRRetryCount: 1}
}
