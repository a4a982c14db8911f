package lnet_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/engine/lnet"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// The numbers in names are those of the assertions in spec lnet section 8.

func TestL8_04PutHeader(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(160, 1, 0, l)
	must(t, g.n.Put(h, toP(51, 1), false))
	m := g.lnd.take()
	want := wire.LNetHeader{
		DestNID: nidP, SrcNID: nidN, DestPID: pid, SrcPID: pid, Type: wire.LNetPUT,
		PayloadLength: 160, Handle: wire.NoHandle, MatchBits: 1, Portal: 51,
	}
	if d := cmp.Diff(want, m.Hdr); d != "" {
		t.Error(d)
	}
	if m.Peer != nidP || m.Len != 160 || len(m.Segs) != 1 || m.Router {
		t.Errorf("message to %v with %d bytes in %d pieces, router %v", m.Peer, m.Len, len(m.Segs), m.Router)
	}
	g.lnd.finish(m, 0)
}

func TestL8_21OutboundGet(t *testing.T) {
	t.Run("REPLY comes as a message", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, b := g.bind(3976, 2, 0, l)
		must(t, g.n.Get(h, toP(52, 9)))
		m := g.lnd.take()
		want := wire.LNetHeader{
			DestNID: nidP, SrcNID: nidN, DestPID: pid, SrcPID: pid, Type: wire.LNetGET,
			Handle: wire.Handle{Iface: cookieN, Object: uint64(h)}, MatchBits: 9, Portal: 52, Length: 3976,
		}
		if d := cmp.Diff(want, m.Hdr); d != "" || m.Len != 3976 {
			t.Errorf("%d bytes of sink: %s", m.Len, d)
		}
		reply := answerTo(m, wire.LNetREPLY, 200)
		g.lnd.finish(m, 0)
		if ev := g.one(l, lnet.EventSend); ev.Unlinked || ev.Target.NID != nidP || ev.MsgType != wire.LNetGET {
			t.Errorf("SEND event %+v", ev)
		}
		g.imm(reply, pattern(200))
		ev := g.one(l, lnet.EventReply)
		if ev.RLength != 200 || ev.MLength != 200 || !ev.Unlinked || ev.Status != 0 || ev.Initiator.NID != nidP {
			t.Errorf("REPLY event %+v", ev)
		}
		if !bytes.Equal(b.Bytes()[:200], pattern(200)) {
			t.Error("the data is not in place")
		}
		s, ni := g.n.Stats(), g.n.NIs()[0].Traffic
		if s.SendCount != 1 || s.RecvCount != 1 || s.RecvLength != 200 || ni.Sent.Get != 1 || ni.Received.Reply != 1 {
			t.Errorf("counted %+v, NI %+v", s, ni)
		}
	})
	t.Run("REPLY before SEND", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.bind(3976, 2, 0, l)
		must(t, g.n.Get(h, toP(52, 9)))
		m := g.lnd.take()
		g.imm(answerTo(m, wire.LNetREPLY, 200), pattern(200))
		if ev := g.one(l, lnet.EventReply); ev.Unlinked {
			t.Error("unlinked before its SEND")
		}
		g.lnd.finish(m, 0)
		if ev := g.one(l, lnet.EventSend); !ev.Unlinked {
			t.Error("not unlinked by its SEND")
		}
	})
	t.Run("by RDMA", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.bind(3977, 2, 0, l)
		must(t, g.n.Get(h, toP(52, 9)))
		m := g.lnd.take()
		m.RDMALen = 1234
		g.lnd.finish(m, 0)
		evs := l.take()
		if len(evs) != 2 || evs[0].Type != lnet.EventSend || evs[0].Unlinked ||
			evs[1].Type != lnet.EventReply || evs[1].MLength != 1234 || !evs[1].Unlinked || evs[1].Initiator.NID != nidP {
			t.Errorf("events %+v", evs)
		}
		s, ni := g.n.Stats(), g.n.NIs()[0].Traffic
		if s.SendCount != 1 || s.RecvCount != 1 || s.RecvLength != 1234 || ni.Received.Get != 1 || ni.Received.Reply != 0 {
			t.Errorf("counted %+v, NI %+v", s, ni)
		}
	})
	t.Run("by RDMA, nothing there", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.bind(3977, 2, 0, l)
		must(t, g.n.Get(h, toP(52, 9)))
		m := g.lnd.take()
		m.Health = o2iblnd.HealthRemoteError
		g.lnd.finish(m, -61)
		evs := l.take()
		if len(evs) != 2 || evs[0].Type != lnet.EventSend || evs[0].Status != -61 ||
			evs[1].Type != lnet.EventReply || evs[1].Status != -61 || evs[1].MLength != 0 || !evs[1].Unlinked {
			t.Errorf("events %+v", evs)
		}
		p := g.n.Peers()[0]
		if p.Health != 900 || p.Failures.Error != 1 || p.Error == "" || g.n.NIs()[0].Health != 1000 {
			t.Errorf("peer after a remote error: %+v", p)
		}
	})
	t.Run("longer than asked", func(t *testing.T) {
		g, l := newRig(t), new(eventLog)
		h, _ := g.bind(5000, 2, 0, l)
		must(t, g.n.Get(h, toP(52, 9)))
		m := g.lnd.take()
		m.RDMALen = 5001
		g.lnd.finish(m, 0)
		for _, ev := range l.take() {
			if ev.Status != -71 {
				t.Errorf("%v with status %d, want -71", ev.Type, ev.Status)
			}
		}
	})
}

func TestReplyThatDoesNotFit(t *testing.T) {
	for _, truncate := range []bool{false, true} {
		g, l := newRig(t), new(eventLog)
		var o lnet.Options
		if truncate {
			o = lnet.OptTruncate
		}
		h, _ := g.bind(100, 2, o, l)
		must(t, g.n.Get(h, toP(52, 9)))
		m := g.lnd.take()
		r := g.imm(answerTo(m, wire.LNetREPLY, 101), pattern(101))
		if !truncate {
			if !r.nothing || g.n.NIs()[0].Traffic.Dropped.Reply != 1 {
				t.Error("taken without truncation")
			}
			g.none(l)
			must(t, g.n.Unlink(h))
		} else if ev := g.one(l, lnet.EventReply); ev.RLength != 101 || ev.MLength != 100 {
			t.Errorf("REPLY of %d, %d taken", ev.RLength, ev.MLength)
		}
		g.lnd.finish(m, 0)
	}
}

func TestL8_22StaleAnswers(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	passive, _ := g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{}, l)
	h, _ := g.bind(100, 2, 0, l)
	must(t, g.n.Get(h, toP(52, 9)))
	m := g.lnd.take()
	rows := []struct {
		name string
		h    wire.Handle
	}{
		{"unknown interface", wire.Handle{Iface: cookieN + 1, Object: uint64(h)}},
		{"unknown object", wire.Handle{Iface: cookieN, Object: uint64(h) + 1<<40}},
		{"never used slot", wire.Handle{Iface: cookieN, Object: 1<<26 | 4000<<2 | 1}},
		{"no MD", wire.Handle{Iface: cookieN, Object: uint64(h) + 1}},
		{"attached MD", wire.Handle{Iface: cookieN, Object: uint64(passive)}},
		{"nothing", wire.Handle{}},
		{"no handle", wire.NoHandle},
	}
	for i, row := range rows {
		for _, typ := range []wire.LNetType{wire.LNetREPLY, wire.LNetACK} {
			hdr := answerTo(m, typ, 0)
			hdr.Handle = row.h
			if r := g.imm(hdr, nil); !r.nothing {
				t.Errorf("%s: type %d taken", row.name, typ)
			}
			g.none(l)
		}
		if d := g.n.NIs()[0].Traffic.Dropped; d.Reply != uint64(i+1) || d.Ack != uint64(i+1) {
			t.Errorf("%s: dropped %+v", row.name, d)
		}
	}
	if len(g.notices) != 0 {
		t.Errorf("late answers are normal, but: %v", g.notices)
	}
	hdr := answerTo(m, wire.LNetREPLY, 3)
	g.imm(hdr, pattern(3))
	g.one(l, lnet.EventReply)
	if r := g.imm(hdr, pattern(3)); !r.nothing {
		t.Error("a second REPLY was taken")
	}
	g.lnd.finish(m, 0)
}

func TestL8_23RestartMakesHandlesStale(t *testing.T) {
	before, after, l := newRig(t, freshCookie), newRig(t, freshCookie), new(eventLog)
	hb, _ := before.bind(100, 2, 0, l)
	ha, _ := after.bind(100, 2, 0, l)
	if ha != hb {
		t.Fatalf("the test wants equal object cookies, not %#x and %#x", uint64(hb), uint64(ha))
	}
	must(t, before.n.Get(hb, toP(52, 9)))
	must(t, after.n.Get(ha, toP(52, 9)))
	late := answerTo(before.lnd.take(), wire.LNetREPLY, 3)
	if r := after.imm(late, pattern(3)); !r.nothing {
		t.Error("a REPLY from before the restart was taken")
	}
	after.none(l)
}

func TestL8_24PutWithoutAck(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(4096, 1, 0, l)
	must(t, g.n.Put(h, toP(51, 1), false))
	if err := g.n.Put(h, toP(51, 1), false); err == nil {
		t.Error("a second PUT with threshold 1 was begun")
	}
	g.lnd.finish(g.lnd.take(), 0)
	if ev := g.one(l, lnet.EventSend); !ev.Unlinked || ev.Status != 0 || ev.MLength != 4096 {
		t.Errorf("SEND event %+v", ev)
	}
	if err := g.n.Unlink(h); !errors.Is(err, lnet.ErrStaleHandle) {
		t.Errorf("Unlink: %v, want a stale handle", err)
	}
	s := g.n.Stats()
	if s.SendCount != 1 || s.SendLength != 4096 || g.n.NIs()[0].Traffic.Sent.Put != 1 {
		t.Errorf("counted %+v", s)
	}
}

func TestPutWithAck(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(160, 2, 0, l)
	must(t, g.n.Put(h, toP(51, 0x42), true))
	if s := g.n.Stats(); s.RstAlloc != 1 {
		t.Errorf("%d trackers, want 1", s.RstAlloc)
	}
	m := g.lnd.take()
	ack := answerTo(m, wire.LNetACK, 100)
	g.lnd.finish(m, 0)
	g.one(l, lnet.EventSend)
	g.imm(ack, nil)
	if ev := g.one(l, lnet.EventAck); ev.MLength != 100 || ev.MatchBits != 0x42 || !ev.Unlinked || ev.Source.NID != nidP {
		t.Errorf("ACK event %+v", ev)
	}
	s := g.n.Stats()
	if s.RstAlloc != 0 || s.RecvCount != 1 || g.n.NIs()[0].Traffic.Received.Ack != 1 {
		t.Errorf("counted %+v", s)
	}
}

func TestL8_36Credits(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(160, lnet.Unlimited, 0, l)
	for i := range 12 {
		must(t, g.n.Put(h, toP(51, uint64(i)), false))
	}
	p := g.n.Peers()[0]
	if g.lnd.inFlight() != 8 || p.Available != -4 || p.MinCredits != -4 || p.QueueBytes != 2784 || p.Queued != 4 || p.Credits != 8 {
		t.Errorf("%d in flight, %+v", g.lnd.inFlight(), p)
	}
	for i := range 12 {
		m := g.lnd.take()
		if m.Hdr.MatchBits != uint64(i) {
			t.Fatalf("message %d overtook message %d", m.Hdr.MatchBits, i)
		}
		g.lnd.finish(m, 0)
	}
	p = g.n.Peers()[0]
	if p.Available != 8 || p.MinCredits != -4 || p.QueueBytes != 0 || p.Queued != 0 {
		t.Errorf("after the drain %+v", p)
	}
}

// An answer that nobody waits for is dropped even where the MD could take it.
func TestUnaskedAnswers(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(100, lnet.Unlimited, lnet.OptTruncate, l)
	must(t, g.n.Get(h, toP(52, 9)))
	m := g.lnd.take()
	reply, ack := answerTo(m, wire.LNetREPLY, 3), answerTo(m, wire.LNetACK, 3)
	g.imm(reply, pattern(3))
	g.one(l, lnet.EventReply)
	for _, again := range []wire.LNetHeader{reply, ack} {
		if r := g.imm(again, pattern(int(again.PayloadLength))); !r.nothing {
			t.Errorf("%v taken twice", again.Type)
		}
	}
	g.none(l)
	g.lnd.finish(m, 0)
}
