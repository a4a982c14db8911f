package o2iblnd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// twins are two nodes on a stepped fabric whose steps a test calls by hand, in an order that the running
// engine takes by chance only.
type twins struct {
	t     *testing.T
	f     *mem.Fabric
	now   time.Time
	nodes [2]*twin
}

type twin struct {
	lnd   *LND
	nid   wire.NID
	arena *arena.Arena

	received int
	ended    []*Message
	events   []Event
	down     int                        // PeerDown
	sink     []arena.Buffer             // where the next large PUT goes; nil: memory of its own
	answer   func(s Sender, m *Message) // when a received message has ended; may be nil
}

// newTwins makes them; wrap changes what the first one has for a provider.
func newTwins(t *testing.T, set map[string]string, wrap ...func(verbs.Provider) verbs.Provider) *twins {
	w := &twins{t: t, f: mem.NewFabric(mem.Options{Stepped: true}), now: time.Unix(1_700_000_000, 0)}
	v := tunables.Values{{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0"}
	for name, value := range set {
		v[tunables.Scoped{Scope: tunables.GlobalScope, Name: name}] = value
	}
	g, n, _ := tunables.Derive(v, "o2ib")
	for i := range w.nodes {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		x := &twin{nid: wire.MakeNID(wire.NetO2IB, 0x0a000001+uint32(i)), arena: arena.New(1 << 30)}
		p := w.f.Provider(addr)
		if i == 0 {
			for _, f := range wrap {
				p = f(p)
			}
		}
		var err error
		x.lnd, err = New(Config{Provider: p, OnEvent: func(e Event) { x.events = append(x.events, e) }, Upper: x, Payload: x.arena, Global: g, Scheds: 1, Now: func() time.Time { return w.now }})
		if err != nil {
			t.Fatal(err)
		}
		w.nodes[i] = x
		w.call(func(ctx context.Context) error {
			return x.lnd.AddNI(ctx, NIConfig{NID: x.nid, Addr: addr, Tunables: n})
		})
	}
	t.Cleanup(w.stop)
	return w
}

func (w *twins) stop() {
	left := slices.DeleteFunc(w.nodes[:], func(x *twin) bool { return x == nil })
	for _, x := range left {
		w.call(func(ctx context.Context) error { return x.lnd.DelNI(ctx, x.nid) })
	}
	for _, x := range left {
		if err := errors.Join(x.lnd.slots.Close(), x.arena.Close()); err != nil {
			w.t.Error(err)
		}
	}
}

// call runs a control call, with everybody stepped until it is done.
func (w *twins) call(f func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	for range 100_000 {
		w.settle()
		select {
		case err := <-done:
			if err != nil {
				w.t.Fatal(err)
			}
			return
		default:
		}
		w.now = w.now.Add(10 * time.Millisecond)
	}
	w.t.Fatal("a control call does not end")
}

// deliver lets the fabric do all that it can.
func (w *twins) deliver() {
	for w.f.Step() {
	}
}

func (w *twins) settle() {
	for range 4 {
		for _, x := range w.nodes {
			if x != nil {
				x.lnd.steps(w.now)
			}
		}
		w.deliver()
	}
}

// until gives everybody turns until ok.
func (w *twins) until(what string, ok func() bool) {
	w.t.Helper()
	for range 200 {
		if ok() {
			return
		}
		w.settle()
	}
	w.t.Fatalf("never came: %s", what)
}

// put sends a PUT of n bytes from the first node to the second.
func (w *twins) put(n int) *Message {
	w.t.Helper()
	return w.putFrom(0, n)
}

// putFrom sends one from that node to the other.
func (w *twins) putFrom(i, n int) *Message {
	w.t.Helper()
	a, b := w.nodes[i], w.nodes[1-i]
	m := &Message{Peer: b.nid, Len: n, Hdr: wire.LNetHeader{DestNID: b.nid, SrcNID: a.nid, Type: wire.LNetPUT, Handle: wire.NoHandle, PayloadLength: uint32(n)}}
	m.Segs = append(m.Segs, a.buffer(n))
	a.lnd.Send(m)
	return m
}

func (x *twin) buffer(n int) arena.Buffer {
	b, err := x.arena.Alloc(n)
	if err != nil {
		panic(err)
	}
	return b
}

// conns are those that the node's scheduler has.
func (x *twin) conns() []*conn {
	var list []*conn
	for _, c := range x.lnd.scheds[0].conns {
		if c != nil {
			list = append(list, c)
		}
	}
	return list
}

func (x *twin) in(state connState) (n int) {
	for _, c := range x.conns() {
		if c.state == state {
			n++
		}
	}
	return n
}

func (x *twin) Parse(s Sender, _, _ wire.NID, hdr *wire.LNetHeader, rx Rx, _ bool) error {
	x.received++
	m := &Message{Hdr: *hdr, Len: int(hdr.PayloadLength), Owner: "receive"}
	switch {
	case m.Len > wire.MaxImmediate && x.sink != nil:
		m.Segs = append(m.Segs, x.sink...)
	case m.Len > 0:
		m.Segs = append(m.Segs, x.buffer(m.Len))
	}
	rx.Receive(s, m)
	return nil
}

func (x *twin) Finalize(s Sender, m *Message) {
	x.ended = append(x.ended, m)
	if m.Owner == "receive" && x.answer != nil {
		x.answer(s, m)
	}
}

func (x *twin) NIStatus(wire.NID, bool) {}

func (x *twin) PeerDown(_, _ wire.NID, _ error, _ time.Time) { x.down++ }

// TestEarlyMessageIsKept: a message that a scheduler sees before connd knows of the connection waits, and
// is handled when the connection is made (spec o2iblnd 2.14).
func TestEarlyMessageIsKept(t *testing.T) {
	w := newTwins(t, nil)
	a, b := w.nodes[0], w.nodes[1]
	w.f.DropRTU(1)
	w.put(10)
	for i := 0; len(b.lnd.connd.conns) == 0; i++ {
		a.lnd.steps(w.now)
		w.deliver()
		b.lnd.connd.Step(w.now)
		if i > 100 {
			t.Fatal("the second node has no connection")
		}
	}
	for range 10 { // the first node alone: it connects and sends
		w.deliver()
		a.lnd.steps(w.now)
	}
	b.lnd.scheds[0].Step(w.now)
	if c := b.conns()[0]; c.state != connPassiveWait || len(c.early) != 1 || b.received != 0 {
		t.Fatalf("conn is %v with %d early messages, LNet has %d", c.state, len(c.early), b.received)
	}
	w.until("the early message", func() bool { return b.received == 1 })
	if c := b.conns()[0]; c.state != connEstablished || c.nrx != len(c.rxs) {
		t.Fatalf("conn is %v, %d of %d receives are posted", c.state, c.nrx, len(c.rxs))
	}
}

// TestAnswerAnnouncesNoCreditForWhatItAnswers: the receive of a message goes back to work after LNet has
// dealt with it, so an answer that LNet sends meanwhile must not announce it (spec o2iblnd 3.2).
func TestAnswerAnnouncesNoCreditForWhatItAnswers(t *testing.T) {
	w := newTwins(t, nil)
	a, b := w.nodes[0], w.nodes[1]
	b.answer = func(s Sender, m *Message) {
		s.Send(&Message{Peer: a.nid, Hdr: wire.LNetHeader{DestNID: a.nid, SrcNID: b.nid, Type: wire.LNetACK}})
	}
	w.put(10)
	w.until("the ACK", func() bool { return a.received == 1 })
	w.settle()
	if got := a.conns()[0].acct.Credits; got != 7 {
		t.Errorf("the sender has %d credits of 8: its message is not announced yet", got)
	}
	if got := b.conns()[0].acct.Outstanding; got != 1 {
		t.Errorf("the receiver owes %d credits, for one message", got)
	}
}

// TestDeadlineOfPutDone: a PUT has the whole timeout for each of its two messages (spec o2iblnd 4.7).
func TestDeadlineOfPutDone(t *testing.T) {
	w := newTwins(t, map[string]string{"timeout": "50"})
	a, b := w.nodes[0], w.nodes[1]
	w.put(10)
	w.until("a connection", func() bool { return b.received == 1 })
	m := w.put(9000)
	for range 4 { // the request goes out, and its answer lies there
		a.lnd.scheds[0].Step(w.now)
		w.deliver()
		b.lnd.scheds[0].Step(w.now)
		w.deliver()
		if b.received == 2 {
			break
		}
	}
	if b.received != 2 {
		t.Fatal("the request did not arrive")
	}
	sent := w.now
	at := func(seconds int) connState {
		w.now = sent.Add(time.Duration(seconds) * time.Second)
		a.lnd.scheds[0].Step(w.now)
		return a.conns()[0].state
	}
	for seconds := 40; seconds < 90; seconds++ { // from the first step on PUT_DONE is posted, and never completes
		if s := at(seconds); s != connEstablished {
			t.Fatalf("conn is %v after %d s: %v", s, seconds, a.conns()[0].closeWhy)
		}
	}
	if tx := a.conns()[0].activeTxs.head; tx == nil || tx.typ != wire.MsgPutDone || tx.msg != m {
		t.Fatalf("PUT_DONE is not under way: %+v", tx)
	}
	if s := at(91); s != connClosing {
		t.Fatalf("conn is %v 91 s after the request and 51 s after PUT_DONE", s)
	}
}

// TestMessagesTakeTurnsOnConns: a peer's connections are used one after the other.
func TestMessagesTakeTurnsOnConns(t *testing.T) {
	w := newTwins(t, map[string]string{"conns_per_peer": "3"})
	a := w.nodes[0]
	w.put(10)
	w.until("three connections", func() bool { return a.in(connEstablished) == 3 })
	w.settle()
	before := make(map[*conn]uint64)
	for _, c := range a.conns() {
		before[c] = c.count.txMsgs
	}
	for range 6 {
		w.put(10)
	}
	w.settle()
	for _, c := range a.conns() {
		if n := c.count.txMsgs - before[c]; n != 2 {
			t.Errorf("connection %d carried %d of 6 messages", c.id, n)
		}
	}
}

// TestDeadlinesOfManyConns: however many connections a scheduler has, each deadline is acted on within a
// quarter of the timeout (spec o2iblnd 5.2).
func TestDeadlinesOfManyConns(t *testing.T) {
	const conns, timeout = 40, 50
	w := newTwins(t, map[string]string{"conns_per_peer": fmt.Sprint(conns), "timeout": fmt.Sprint(timeout)})
	a := w.nodes[0]
	w.put(10)
	w.until("the connections", func() bool { return a.in(connEstablished) == conns })
	w.settle()
	for range conns {
		w.put(9000) // on each of them one that nobody answers: the other node takes no more turns
	}
	start := w.now
	for s := 0; s <= timeout+timeout/4+1; s++ {
		w.now = start.Add(time.Duration(s) * time.Second)
		a.lnd.scheds[0].Step(w.now)
		w.deliver()
		if s < timeout && a.in(connEstablished) != conns {
			t.Fatalf("a connection closed after %d s", s)
		}
	}
	if n := a.in(connEstablished); n > 0 {
		t.Fatalf("%d of %d connections are still open a quarter of the timeout after their deadline", n, conns)
	}
}
