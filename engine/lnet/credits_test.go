package lnet_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"o2ibd/engine/lnet"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

func few(ni, peer int) func(*lnet.Config) {
	return func(c *lnet.Config) { c.NIs[0].Credits, c.NIs[0].PeerCredits = ni, peer }
}

func to(nid wire.NID, bits uint64) lnet.Operation {
	op := toP(51, bits)
	op.Target.NID = nid
	return op
}

func TestNICredits(t *testing.T) {
	g, l := newRig(t, few(4, 3)), new(eventLog)
	h, _ := g.bind(160, lnet.Unlimited, 0, l)
	// P gets its 3, the other 1 of its 3 and waits for the NI with 2; 2 of P's wait for P.
	for i, nid := range []wire.NID{nidP, nidP, nidP, nidP, nidP, nidOther, nidOther, nidOther} {
		must(t, g.n.Put(h, to(nid, uint64(i)), false))
	}
	ni, peers := g.n.NIs()[0], g.n.Peers()
	if ni.Available != -2 || ni.MinCredits != -2 || g.lnd.inFlight() != 4 {
		t.Errorf("%d in flight, NI %+v", g.lnd.inFlight(), ni)
	}
	if peers[0].Available != -2 || peers[0].Queued != 2 || peers[1].Available != 0 || peers[1].Queued != 2 {
		t.Errorf("peers %+v", peers)
	}
	// Each return serves who has waited longest for the NI first.
	var order []uint64
	for range 8 {
		m := g.lnd.take()
		order = append(order, m.Hdr.MatchBits)
		g.lnd.finish(m, 0)
	}
	if got, want := fmt.Sprint(order), "[0 1 2 5 6 7 3 4]"; got != want {
		t.Errorf("order %v, want %v", got, want)
	}
	ni = g.n.NIs()[0]
	if ni.Available != 4 || ni.MinCredits != -2 {
		t.Errorf("after the drain %+v", ni)
	}
	for _, p := range g.n.Peers() {
		if p.Available != 3 || p.QueueBytes != 0 {
			t.Errorf("after the drain %+v", p)
		}
	}
}

func TestRetune(t *testing.T) {
	g, l := newRig(t, few(4, 2)), new(eventLog)
	h, _ := g.bind(160, lnet.Unlimited, 0, l)
	for i := range 10 {
		must(t, g.n.Put(h, to(nidP, uint64(i)), false))
	}
	steps := []struct{ credits, peerCredits, inFlight, available int }{
		{4, 2, 2, -8}, {4, 4, 4, -6}, {6, 6, 6, -4}, {3, 1, 6, -9}, {16, 16, 10, 6},
	}
	for _, s := range steps {
		must(t, g.n.Retune(nidN, s.credits, s.peerCredits))
		p := g.n.Peers()[0]
		if g.lnd.inFlight() != s.inFlight || p.Available != s.available || p.Credits != s.peerCredits {
			t.Errorf("%+v: %d in flight, %+v", s, g.lnd.inFlight(), p)
		}
	}
	for g.lnd.inFlight() > 0 {
		g.lnd.finish(g.lnd.take(), 0)
	}
	if ni := g.n.NIs()[0]; ni.Available != 16 || ni.Credits != 16 || ni.PeerCredits != 16 {
		t.Errorf("after the drain %+v", ni)
	}
	for _, bad := range [][2]int{{0, 0}, {4, 5}, {4, 0}, {-1, -1}} {
		if g.n.Retune(nidN, bad[0], bad[1]) == nil {
			t.Errorf("credits %d, peer_credits %d was allowed", bad[0], bad[1])
		}
	}
	if g.n.Retune(nidP, 4, 4) == nil {
		t.Error("an NI that is not ours was allowed")
	}
}

// More credits go first to who has waited for them.
func TestRetuneKeepsTheOrder(t *testing.T) {
	g, l := newRig(t, few(1, 1)), new(eventLog)
	h, _ := g.bind(160, lnet.Unlimited, 0, l)
	for i, nid := range []wire.NID{nidP, nidOther, nidP} {
		must(t, g.n.Put(h, to(nid, uint64(i)), false))
	}
	must(t, g.n.Retune(nidN, 2, 2))
	for want := range uint64(2) {
		if m := g.lnd.take(); m.Hdr.MatchBits != want {
			t.Errorf("message %d was sent, want %d", m.Hdr.MatchBits, want)
		}
	}
	if g.lnd.inFlight() != 0 {
		t.Error("more are in flight than there are credits")
	}
}

// endsInside is an LND that ends each message inside Send, without success.
type endsInside struct {
	n           *lnet.Node
	depth, most int
}

func (e *endsInside) Send(m *o2iblnd.Message) {
	e.depth++
	e.most = max(e.most, e.depth)
	m.Status = -113
	e.n.Finalize(e, m)
	e.depth--
}

func TestSendIsNotEnteredTwice(t *testing.T) {
	g := newRig(t)
	e := &endsInside{n: g.n}
	g.n.SetSender(e)
	left := 1000
	h, err := g.n.Bind(lnet.MD{Threshold: lnet.Unlimited, Handler: func(ev lnet.Event) {
		if left--; left > 0 && ev.Type == lnet.EventSend {
			must(t, g.n.Put(ev.MD, toP(51, 1), false))
		}
	}})
	must(t, err)
	must(t, g.n.Put(h, toP(51, 1), false))
	if left != 0 || e.most != 1 {
		t.Errorf("%d messages left, Send %d deep; want 0 and 1", left, e.most)
	}
}

func TestQueuedMessagesExpire(t *testing.T) {
	g, l := newRig(t, few(2, 2)), new(eventLog)
	h, _ := g.bind(100, lnet.Unlimited, 0, l)
	for i, nid := range []wire.NID{nidP, nidP, nidP, nidP, nidOther} { // 2 sent, 2 wait for P, 1 for the NI
		must(t, g.n.Put(h, to(nid, uint64(i)), false))
	}
	g.now = g.now.Add(150 * time.Second)
	g.n.Tick(g.now)
	g.none(l)
	g.now = g.now.Add(time.Nanosecond)
	g.n.Tick(g.now)
	evs := l.take()
	if len(evs) != 3 {
		t.Fatalf("%d events, want 3", len(evs))
	}
	for _, ev := range evs {
		if ev.Type != lnet.EventSend || ev.Status != -110 {
			t.Errorf("%v with status %d, want SEND with -110", ev.Type, ev.Status)
		}
	}
	if s, ni := g.n.Stats(), g.n.NIs()[0]; s.DropCount != 3 || s.DropLength != 300 || ni.Traffic.Dropped.Put != 3 || s.SendCount != 0 {
		t.Errorf("counted %+v", s)
	}
	peers := g.n.Peers()
	if peers[0].Traffic.Dropped.Put != 2 || peers[1].Traffic.Dropped.Put != 1 || peers[0].Health != 1000 {
		t.Errorf("peers %+v", peers)
	}
	for range 2 {
		g.lnd.finish(g.lnd.take(), 0)
	}
	if ni := g.n.NIs()[0]; ni.Available != 2 || ni.MinCredits != -1 {
		t.Errorf("after the drain %+v", ni)
	}
}

// A credit that comes too late does not send.
func TestLateCreditDoesNotSend(t *testing.T) {
	g, l := newRig(t, few(1, 1)), new(eventLog)
	h, _ := g.bind(100, lnet.Unlimited, 0, l)
	must(t, g.n.Put(h, to(nidP, 0), false))
	must(t, g.n.Put(h, to(nidP, 1), false))
	g.now = g.now.Add(151 * time.Second)
	g.lnd.finish(g.lnd.take(), 0)
	if g.lnd.inFlight() != 0 {
		t.Error("the second was sent")
	}
	if evs := l.take(); len(evs) != 2 || evs[0].Status != -110 || evs[1].Status != 0 {
		t.Errorf("events %+v, want status -110 and 0", evs)
	}
	if s := g.n.Stats(); s.DropCount != 1 {
		t.Errorf("%d drops, want 1", s.DropCount)
	}
}

func TestUnlink(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{User: "me"}, l)
		must(t, g.n.Unlink(h))
		if ev := g.one(l, lnet.EventUnlink); !ev.Unlinked || ev.Status != 0 || ev.MD != h || ev.User != "me" {
			t.Errorf("UNLINK event %+v", ev)
		}
		if err := g.n.Unlink(h); !errors.Is(err, lnet.ErrStaleHandle) {
			t.Errorf("second Unlink: %v", err)
		}
		if r := g.imm(put(51, 1, 1), pattern(1)); !r.nothing {
			t.Error("an unlinked MD took a PUT")
		}
	})
	t.Run("while data arrives", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 65536, lnet.MD{}, l)
		r := g.parse(put(51, 1, 65536), &rx{hold: true}, true)
		must(t, g.n.Unlink(h))
		g.none(l)
		g.lnd.finish(r.m, 0)
		if ev := g.one(l, lnet.EventPut); !ev.Unlinked || ev.Status != -110 {
			t.Errorf("PUT event %+v", ev)
		}
	})
	t.Run("while it waits for credits", func(t *testing.T) {
		g, l := newRig(t, few(1, 1)), new(eventLog)
		first, _ := g.bind(100, 1, 0, new(eventLog))
		h, _ := g.bind(100, 2, 0, l)
		must(t, g.n.Put(first, to(nidP, 0), false))
		must(t, g.n.Get(h, to(nidP, 1)))
		must(t, g.n.Unlink(h))
		g.none(l)
		if g.n.Put(h, to(nidP, 2), false) == nil {
			t.Error("an unlinked MD sends")
		}
		g.lnd.finish(g.lnd.take(), 0)
		if ev := g.one(l, lnet.EventSend); !ev.Unlinked || ev.Status != -125 {
			t.Errorf("SEND event %+v", ev)
		}
		if g.lnd.inFlight() != 0 {
			t.Error("it was sent")
		}
	})
	t.Run("while it waits for the answer", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.bind(100, 2, 0, l)
		must(t, g.n.Get(h, toP(52, 1)))
		m := g.lnd.take()
		reply := answerTo(m, wire.LNetREPLY, 10)
		g.lnd.finish(m, 0)
		g.one(l, lnet.EventSend)
		must(t, g.n.Unlink(h))
		if ev := g.one(l, lnet.EventUnlink); !ev.Unlinked {
			t.Errorf("UNLINK event %+v", ev)
		}
		if r := g.imm(reply, pattern(10)); !r.nothing {
			t.Error("a late REPLY was taken")
		}
	})
	t.Run("inside its handler", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		b := g.buf(100)
		_, err := g.n.Attach(lnet.ME{Portal: 51, NID: wire.AnyNID, PID: lnet.AnyPID}, lnet.MD{
			Segs: seg(b), Threshold: lnet.Unlimited, Options: lnet.OptPut,
			Handler: func(ev lnet.Event) {
				if ev.Type == lnet.EventPut {
					must(t, g.n.Unlink(ev.MD))
				}
				l.add(ev)
			},
		})
		must(t, err)
		g.imm(put(51, 0, 10), pattern(10))
		if got := fmt.Sprint(l.types()); got != "[PUT UNLINK]" {
			t.Errorf("events %v", got)
		}
	})
}

func TestResponseTimeout(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h1, _ := g.bind(100, 2, 0, l)
	must(t, g.n.Get(h1, toP(52, 1)))
	g.now = g.now.Add(time.Second)
	h2, _ := g.bind(100, 2, 0, l)
	must(t, g.n.Put(h2, toP(52, 1), true))
	answered, _ := g.bind(100, 2, 0, new(eventLog))
	must(t, g.n.Get(answered, toP(52, 1)))
	for range 2 {
		g.lnd.finish(g.lnd.take(), 0)
	}
	m := g.lnd.take()
	g.imm(answerTo(m, wire.LNetREPLY, 1), pattern(1))
	g.lnd.finish(m, 0)
	l.take()

	g.now = g.now.Add(149 * time.Second)
	g.n.Tick(g.now)
	g.none(l)
	g.now = g.now.Add(1)
	g.n.Tick(g.now)
	if ev := g.one(l, lnet.EventUnlink); ev.MD != h1 || !ev.Unlinked {
		t.Errorf("event %+v, want the first MD's", ev)
	}
	p := g.n.Peers()[0]
	if s := g.n.Stats(); s.ResponseTimeoutCount != 1 || s.RemoteTimeout != 1 || p.Health != 900 || p.Failures.Timeout != 1 || p.Error == "" {
		t.Errorf("counted %+v, peer %+v", s, p)
	}
	if k := len(g.notices); k != 1 || g.notices[0].Kind != "response_timeout" || g.notices[0].Peer != nidP {
		t.Errorf("notices %v", g.notices)
	}
	g.now = g.now.Add(time.Second)
	g.n.Tick(g.now)
	if ev := g.one(l, lnet.EventUnlink); ev.MD != h2 {
		t.Errorf("event %+v, want the second MD's", ev)
	}
	g.n.Tick(g.now.Add(time.Hour))
	g.none(l)
	if s := g.n.Stats(); s.ResponseTimeoutCount != 2 || s.RstAlloc != 0 {
		t.Errorf("counted %+v", s)
	}
	g.imm(put(51, 1, 1), pattern(1))
	if p := g.n.Peers()[0]; p.Health != 900 {
		t.Errorf("health %d after one more message, want 900", p.Health) // 800 + 100
	}
}

func TestFailedSendAwaitsNoAnswer(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(100, 2, 0, l)
	must(t, g.n.Get(h, toP(52, 1)))
	m := g.lnd.take()
	m.Health = o2iblnd.HealthNetworkTimeout
	g.lnd.finish(m, -113)
	if ev := g.one(l, lnet.EventSend); ev.Status != -113 || ev.Unlinked {
		t.Errorf("SEND event %+v", ev)
	}
	s, p := g.n.Stats(), g.n.Peers()[0]
	if s.RstAlloc != 0 || s.NetworkTimeout != 1 || s.SendCount != 0 || p.Health != 900 || p.Error == "" {
		t.Errorf("counted %+v, peer %+v", s, p)
	}
	must(t, g.n.Unlink(h))
	g.one(l, lnet.EventUnlink)

	h, _ = g.bind(100, 1, 0, l)
	must(t, g.n.Put(h, toP(52, 1), false))
	m = g.lnd.take()
	m.Health = o2iblnd.HealthLocalTimeout
	g.lnd.finish(m, -110)
	if ni := g.n.NIs()[0]; ni.Health != 900 || ni.Failures.Timeout != 1 || g.n.Peers()[0].Health != 900 {
		t.Errorf("after a local failure %+v", ni)
	}
}

func TestPeerRecords(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	if len(g.n.Peers()) != 0 {
		t.Fatal("peers at the start")
	}
	start := g.now
	h, _ := g.bind(100, lnet.Unlimited, 0, l)
	must(t, g.n.Put(h, toP(51, 1), false))
	p := g.n.Peers()[0]
	if p.NI != nidN || p.NID != nidP || !p.FirstSeen.Equal(start) || !p.LastAlive.IsZero() || p.Down || p.Error != "" {
		t.Errorf("after the first send %+v", p)
	}
	g.lnd.finish(g.lnd.take(), -113)

	g.now = g.now.Add(time.Minute)
	alive := start.Add(30 * time.Second)
	g.n.PeerDown(nidN, nidP, errors.New("connection refused"), alive)
	p = g.n.Peers()[0]
	if !p.Down || p.Error != "connection refused" || !p.ErrorAt.Equal(g.now) || !p.LastAlive.Equal(alive) {
		t.Errorf("down %+v", p)
	}
	since := g.now
	g.now = g.now.Add(time.Minute)
	must(t, g.n.Put(h, toP(51, 1), false))
	g.n.PeerDown(nidN, nidP, errors.New("connection refused"), alive)
	g.lnd.finish(g.lnd.take(), -113)
	if p = g.n.Peers()[0]; p.Error != "connection refused" || !p.ErrorAt.Equal(since) {
		t.Errorf("still down %+v", p)
	}
	g.now = g.now.Add(time.Minute)
	g.imm(put(51, 1, 1), pattern(1))
	p = g.n.Peers()[0]
	if p.Down || p.Error == "" || !p.LastAlive.Equal(g.now) || p.Traffic.Received.Put != 0 {
		t.Errorf("heard again %+v", p)
	}
	g.n.PeerDown(nidN, nidOther, nil, time.Time{})
	if ps := g.n.Peers(); len(ps) != 2 || !ps[1].Down || ps[1].Error == "" {
		t.Errorf("peers %+v", ps)
	}
	g.n.PeerDown(nidTCP, nidP, nil, time.Time{}) // no NI of ours

	for range 10 {
		must(t, g.n.Put(h, toP(51, 1), false))
	}
	if n := g.n.DelPeer(nidN, nidP); n != 1 {
		t.Errorf("%d peers were deleted", n)
	}
	l.take()
	if ps := g.n.Peers(); len(ps) != 1 || ps[0].NID != nidOther {
		t.Errorf("peers after deletion %+v", ps)
	}
	must(t, g.n.Put(h, toP(51, 1), false)) // a new record
	if p := g.n.Peers()[0]; p.Available != 7 || p.Error != "" {
		t.Errorf("anew %+v", p)
	}
	for g.lnd.inFlight() > 0 {
		g.lnd.finish(g.lnd.take(), 0)
	}
	if p := g.n.Peers()[0]; p.Available != 8 || p.Traffic.Sent.Put != 1 {
		t.Errorf("anew, idle %+v", p)
	}
	if ni := g.n.NIs()[0]; ni.Available != 256 || ni.Peers != 2 {
		t.Errorf("NI %+v", ni)
	}
	if g.n.DelPeer(nidN, nidTCP) != 0 || g.n.DelPeer(nidTCP, nidP) != 0 {
		t.Error("deleted what is not there")
	}

	must(t, g.n.Put(h, toP(51, 1), false)) // in use: stays
	g.now = g.now.Add(8 * 24 * time.Hour)
	g.n.Tick(g.now)
	if ps := g.n.Peers(); len(ps) != 1 || ps[0].NID != nidP {
		t.Errorf("peers after a week %+v", ps)
	}
	g.lnd.finish(g.lnd.take(), 0)
}

func TestTooManyPeers(t *testing.T) {
	g, l := newRig(t, func(c *lnet.Config) { c.MaxPeers = 2 }), new(eventLog)
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{}, l)
	for i := range wire.NID(3) {
		r := &rx{lnd: g.lnd, payload: pattern(1)}
		h := put(51, 1, 1)
		h.SrcNID = nidP + i
		must(t, g.n.Parse(g.lnd, nidN, nidP+i, &h, r, false))
		if r.got != 1 || r.nothing != (i == 2) {
			t.Errorf("peer %d: received %d times, nothing wanted: %v", i, r.got, r.nothing)
		}
	}
	h, _ := g.bind(100, 1, 0, l)
	if err := g.n.Put(h, to(nidP+5, 1), false); err == nil {
		t.Error("a PUT to one peer more was begun")
	}
	must(t, g.n.Put(h, to(nidP, 1), false)) // the refused one cost nothing
}

func TestOperationErrors(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(100, 1, 0, l)
	passive, _ := g.attach(lnet.ME{Portal: 51}, 100, lnet.MD{}, l)
	from := toP(51, 1)
	from.Source = nidOther
	rows := []struct {
		name string
		do   func() error
	}{
		{"no NI on the network", func() error { return g.n.Put(h, to(nidTCP, 1), false) }},
		{"any NID", func() error { return g.n.Put(h, to(wire.AnyNID, 1), false) }},
		{"source not ours", func() error { return g.n.Put(h, from, false) }},
		{"attached MD", func() error { return g.n.Put(passive, toP(51, 1), false) }},
		{"no MD", func() error { return g.n.Put(0, toP(51, 1), false) }},
		{"threshold too low for an ACK", func() error { return g.n.Put(h, toP(51, 1), true) }},
		{"threshold too low for a REPLY", func() error { return g.n.Get(h, toP(51, 1)) }},
		{"bind with a permission", func() error { return bindErr(g, lnet.MD{Threshold: 1, Options: lnet.OptPut}) }},
		{"bind of too much", func() error { return bindErr(g, lnet.MD{Threshold: 1, Segs: seg(g.buf(1<<20 + 1))}) }},
		{"threshold 0", func() error { return bindErr(g, lnet.MD{}) }},
		{"threshold -2", func() error { return bindErr(g, lnet.MD{Threshold: -2}) }},
		{"max_size over the length", func() error { return bindErr(g, lnet.MD{Threshold: 1, MaxSize: 1}) }},
		{"empty piece", func() error {
			return bindErr(g, lnet.MD{Threshold: 1, Segs: append(seg(g.buf(9)), g.buf(9).Slice(0, 0))})
		}},
		{"257 pieces", func() error {
			d, b := lnet.MD{Threshold: 1}, g.buf(4096)
			for range 257 {
				d.Segs = append(d.Segs, b)
			}
			return bindErr(g, d)
		}},
	}
	for _, row := range rows {
		if err := row.do(); err == nil {
			t.Errorf("%s: no error", row.name)
		}
	}
	g.none(l)
	if g.lnd.inFlight() != 0 || g.n.Stats().MsgsAlloc != 0 {
		t.Error("something was begun")
	}
}

func bindErr(g *rig, d lnet.MD) error {
	_, err := g.n.Bind(d)
	return err
}

func TestClose(t *testing.T) {
	g, l := newRig(t, few(2, 1)), new(eventLog)
	h, _ := g.bind(100, lnet.Unlimited, 0, l)
	for i := range 3 {
		must(t, g.n.Put(h, to(nidP, uint64(i)), true))
	}
	g.attach(lnet.ME{Portal: 51}, 100, lnet.MD{}, l)
	busy, _ := g.attach(lnet.ME{Portal: 52}, 65536, lnet.MD{}, new(eventLog))
	must(t, g.n.SetLazy(50, true))
	g.imm(put(50, 1, 10), pattern(10))
	parked := g.parse(put(50, 1, 65536), &rx{}, true)
	arriving := g.parse(put(52, 0, 65536), &rx{hold: true}, true)

	g.n.Close()
	if !parked.nothing || parked.got != 1 {
		t.Error("a parked PUT_REQ was not given back")
	}
	count := map[string]int{}
	for _, ev := range l.take() {
		count[fmt.Sprintf("%v%d", ev.Type, ev.Status)]++
	}
	if got, want := fmt.Sprint(count), "map[SEND-108:2 UNLINK0:1]"; got != want {
		t.Errorf("events %v, want %v", got, want)
	}
	g.lnd.finish(g.lnd.take(), -103)
	if ev := g.one(l, lnet.EventSend); !ev.Unlinked || ev.Status != -103 {
		t.Errorf("last event %+v", ev)
	}
	g.lnd.finish(arriving.m, -103)
	g.n.Close()
	g.n.Tick(g.now.Add(time.Hour))
	g.none(l)

	if err := g.n.Unlink(busy); !errors.Is(err, lnet.ErrStaleHandle) {
		t.Errorf("Unlink after Close: %v", err)
	}
	_, attachErr := g.n.Attach(lnet.ME{Portal: 5, NID: nidP}, lnet.MD{Threshold: 1, Options: lnet.OptPut})
	for name, err := range map[string]error{
		"bind": bindErr(g, lnet.MD{Threshold: 1}), "attach": attachErr, "put": g.n.Put(h, toP(51, 1), false),
	} {
		if !errors.Is(err, lnet.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	hdr := put(51, 1, 1)
	if err := g.n.Parse(g.lnd, nidN, nidP, &hdr, &rx{}, false); !errors.Is(err, lnet.ErrClosed) {
		t.Errorf("Parse after Close: %v", err)
	}
	if used, _ := g.arena.Used(); used != 4096+4096+65536 {
		t.Errorf("%d bytes of the arena are in use, the test has %d", used, 4096+4096+65536)
	}
}

func TestNewErrors(t *testing.T) {
	good := lnet.NIConfig{NID: nidN, Credits: 256, PeerCredits: 8}
	g := newRig(t)
	rows := []struct {
		name string
		cfg  lnet.Config
	}{
		{"no NI", lnet.Config{Arena: g.arena}},
		{"no arena", lnet.Config{NIs: []lnet.NIConfig{good}}},
		{"twice the same", lnet.Config{Arena: g.arena, NIs: []lnet.NIConfig{good, good}}},
		{"loopback", lnet.Config{Arena: g.arena, NIs: []lnet.NIConfig{{NID: wire.LoopbackNID, Credits: 8, PeerCredits: 8}}}},
		{"no credits", lnet.Config{Arena: g.arena, NIs: []lnet.NIConfig{{NID: nidN}}}},
		{"too many", lnet.Config{Arena: g.arena, NIs: make([]lnet.NIConfig, 246)}},
	}
	for _, row := range rows {
		if _, err := lnet.New(row.cfg); err == nil {
			t.Errorf("%s: no error", row.name)
		}
	}
}
