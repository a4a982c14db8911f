package credits_test

import (
	"fmt"
	"strings"
	"testing"

	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/wire"
)

// The tests named T12_… are assertions of spec o2iblnd 12: node 0 of a pair is the node under test, node 1
// its peer.

func samePair(v wire.Version, depth, highWater, sends int) (p *pair, dut, peer *node) {
	p = newPair(v, depth, [2]int{highWater, highWater}, [2]int{sends, sends})
	return p, p.nodes[0], p.nodes[1]
}

func must(t *testing.T, p *pair, err error) {
	t.Helper()
	if err == nil {
		err = p.check()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestT12_32IdleReceiverReturnsCredits(t *testing.T) {
	p, dut, peer := samePair(wire.Version2, 8, 4, 8)
	arrive := func() {
		t.Helper()
		peer.send(wire.MsgImmediate)
		must(t, p, dut.deliver())
		peer.complete()
		dut.decide(0, true)
		must(t, p, nil)
	}
	for i := 1; i <= 8; i++ {
		arrive()
		if dut.noopsSent != i/4 {
			t.Fatalf("after %d messages %d NOOPs", i, dut.noopsSent)
		}
		if i%4 == 0 {
			must(t, p, peer.deliver())
			dut.complete()
			if dut.acct.Credits != 8 || peer.acct.Credits != 8 || dut.acct.Outstanding != 0 || peer.acct.Outstanding != 0 {
				t.Fatalf("the NOOP cost a credit: %+v, %+v", dut.acct, peer.acct)
			}
		}
	}
	for i := 1; i <= 3; i++ {
		arrive()
		if dut.noopsSent != 2 || dut.acct.Outstanding != i || peer.acct.Credits != 8-i {
			t.Fatalf("below the mark %d are kept back, %d NOOPs were sent, the peer has %d", dut.acct.Outstanding, dut.noopsSent, peer.acct.Credits)
		}
	}
}

func TestT12_33ShallowConnectionReturnsInTime(t *testing.T) {
	p, dut, peer := samePair(wire.Version2, 4, credits.HighWater(wire.Version2, 4, 16, 32), 32)
	for i := range 4 {
		peer.send(wire.MsgImmediate)
		must(t, p, dut.deliver())
		dut.decide(0, true)
		if want := (i + 1) / 2; dut.noopsSent != want {
			t.Fatalf("after %d messages %d NOOPs, wanted %d", i+1, dut.noopsSent, want)
		}
	}
}

// TestScaledHighWater: the mark follows the tunable in proportion (spec o2iblnd 3.6).
func TestScaledHighWater(t *testing.T) {
	for hiw := 16; hiw <= 23; hiw++ {
		want := 4
		if hiw >= 20 {
			want = 5
		}
		if got := credits.HighWater(wire.Version2, 8, hiw, 32); got != want {
			t.Errorf("peer_credits_hiw %d of 32 on depth 8: %d, wanted %d", hiw, got, want)
		}
	}
	// Version 1 has a fixed mark for its fixed depth. Below that depth it has to be within reach.
	for depth, want := range map[int]int{8: 7, 7: 6, 4: 3, 3: 2} {
		if got := credits.HighWater(wire.Version1, depth, 4, 8); got != want {
			t.Errorf("version 1, depth %d: %d, wanted %d", depth, got, want)
		}
	}
}

func TestT12_34CreditNotOwed(t *testing.T) {
	for _, v := range []wire.Version{wire.Version1, wire.Version2} {
		c := credits.New(v, 8, 4, 8)
		c.Send(true, false)
		c.Send(true, false)
		before := c
		err := c.TakeIn(3, false)
		if err == nil {
			t.Fatal("3 credits were taken where 2 were owed")
		}
		for _, n := range []string{"3", "6 of 8", "2 were owed"} {
			if !strings.Contains(err.Error(), n) {
				t.Errorf("%q does not say %q", err, n)
			}
		}
		if c != before {
			t.Errorf("a violation changed %+v to %+v", before, c)
		}
		if err := c.TakeIn(2, false); err != nil || c.Credits != 8 {
			t.Errorf("credits that are owed: %v, %d", err, c.Credits)
		}
	}
}

func TestT12_35NoCreditNoMessage(t *testing.T) {
	p, dut, peer := samePair(wire.Version2, 8, 8, 16)
	for range 10 {
		dut.send(wire.MsgImmediate)
	}
	if len(dut.wire) != 8 || len(dut.tx) != 2 || dut.acct.MaySend(true, false) != credits.NoCredits {
		t.Fatalf("%d of 10 went out with 8 credits", len(dut.wire))
	}
	must(t, p, peer.deliver())
	peer.decide(0, true)
	peer.engine(true) // a keepalive returns the one
	must(t, p, dut.deliver())
	if len(dut.wire) != 8 || len(dut.tx) != 1 {
		t.Fatalf("after one credit came back, %d wait", len(dut.tx))
	}
}

func TestT12_36OldVersionKeepsTheLastCredit(t *testing.T) {
	_, dut, _ := samePair(wire.Version1, 8, 7, 16)
	for range 10 {
		dut.send(wire.MsgImmediate)
	}
	if len(dut.wire) != 7 || dut.acct.Credits != 1 || dut.acct.MaySend(true, false) != credits.LastCredit {
		t.Fatalf("%d of 10 went out, %d credits are left", len(dut.wire), dut.acct.Credits)
	}
}

func TestT12_37OldVersionSpendsTheLastCreditOnANoop(t *testing.T) {
	p, dut, peer := samePair(wire.Version1, 8, 7, 16)
	for range 8 {
		dut.send(wire.MsgImmediate)
	}
	for i := range 7 {
		peer.send(wire.MsgImmediate)
		must(t, p, dut.deliver())
		dut.decide(0, true)
		if want := (i + 1) / 7; dut.noopsSent != want {
			t.Fatalf("owing %d: %d NOOPs", i+1, dut.noopsSent)
		}
	}
	if dut.acct.Credits != 0 || dut.acct.Outstanding != 0 || len(dut.tx) != 1 || dut.wire[7] != (frame{wire.MsgNoop, 7, true}) {
		t.Fatalf("%+v, %d wait, the last on the wire is %+v", dut.acct, len(dut.tx), dut.wire[len(dut.wire)-1])
	}
	if err := p.run(deliver, complete, takeOldest); err != nil {
		t.Fatal(err)
	}
}

func TestT12_39NoopsWithoutCredits(t *testing.T) {
	p, dut, peer := samePair(wire.Version2, 8, 4, 8)
	for range 100 {
		peer.engine(true)
		must(t, p, dut.deliver())
		peer.complete()
	}
	if peer.noopsSent != 100 || dut.noopsSent != 0 || dut.acct != credits.New(wire.Version2, 8, 4, 8) {
		t.Fatalf("%d keepalives came, %d NOOPs answered, %+v", peer.noopsSent, dut.noopsSent, dut.acct)
	}
}

func TestT12_58ReservedCreditsBoundRequests(t *testing.T) {
	for _, typ := range []wire.MsgType{wire.MsgGetReq, wire.MsgPutReq} {
		_, dut, _ := samePair(wire.Version2, 8, 4, 64)
		for range 20 {
			dut.send(typ)
		}
		if len(dut.wire) != 8 || len(dut.rsrvd) != 12 || len(dut.tx) != 0 || dut.acct.Reserved != 0 {
			t.Errorf("%v: %d on the wire, %d held", typ, len(dut.wire), len(dut.rsrvd))
		}
	}
}

func TestT12_59AnswersNeedNoCredit(t *testing.T) {
	for _, v := range []wire.Version{wire.Version1, wire.Version2} {
		t.Run(fmt.Sprintf("%#x", uint16(v)), func(t *testing.T) {
			p, dut, peer := samePair(v, 8, credits.HighWater(v, 8, 4, 8), 8)
			for i := range 20 {
				dut.send(kinds[1+i%2])
				peer.send(kinds[1+i%2])
			}
			least := 8 - len(dut.wire) // version 1 keeps one back
			if dut.acct.Credits != least || peer.acct.Credits != least || dut.acct.Reserved != 0 || peer.acct.Reserved != 0 {
				t.Fatalf("not out of credits: %+v, %+v", dut.acct, peer.acct)
			}
			if err := p.run(deliver, complete, takeOldest); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestOneWayTraffic: a receiver that sends nothing returns credits once for each mark that it reaches.
func TestOneWayTraffic(t *testing.T) {
	for _, v := range []wire.Version{wire.Version1, wire.Version2} {
		highWater := credits.HighWater(v, 8, 4, 8)
		p, a, b := samePair(v, 8, highWater, 8)
		for range 1000 {
			a.send(wire.MsgImmediate)
			if err := p.settle(deliver, complete, takeOldest); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.rest(); err != nil {
			t.Fatal(err)
		}
		most := 1000/highWater + 1
		if b.noopsSent < most-2 || v == wire.Version2 && (b.noopsSent > most || a.noopsSent > 0) {
			t.Errorf("version %#x: %d NOOPs for 1000 messages, %d the other way", uint16(v), b.noopsSent, a.noopsSent)
		}
	}
}

// TestSendsAreBoundedByBoth: concurrent_sends bounds what is posted, the queue depth what the peer gets.
func TestSendsAreBoundedByBoth(t *testing.T) {
	for sends, want := range map[int]int{32: 16, 8: 8} {
		_, a, _ := samePair(wire.Version2, 16, 8, sends)
		for range 50 {
			a.send(wire.MsgImmediate)
		}
		if len(a.wire) != want {
			t.Errorf("depth 16, concurrent_sends %d: %d posted, wanted %d", sends, len(a.wire), want)
		}
	}
}

// TestTwoNoopsAtMost: version 2 has two receives for NOOPs, so a third waits until one has completed.
func TestTwoNoopsAtMost(t *testing.T) {
	p, a, b := samePair(wire.Version2, 8, 1, 32)
	for range 4 {
		b.send(wire.MsgImmediate)
		must(t, p, a.deliver())
	}
	for range 4 {
		a.decide(0, true)
		must(t, p, nil)
	}
	if a.noopsSent != 2 || a.noopsDrops == 0 || a.acct.Outstanding != 2 {
		t.Fatalf("%d NOOPs under way, %d dropped, %d kept back", a.noopsSent, a.noopsDrops, a.acct.Outstanding)
	}
	must(t, p, b.deliver())
	a.complete()
	if a.noopsSent != 3 || a.acct.Outstanding != 0 {
		t.Fatalf("after a completion %d NOOPs, %d kept back", a.noopsSent, a.acct.Outstanding)
	}
}

// TestNeedlessNoopIsDropped: a NOOP that waited is judged again when its turn comes.
func TestNeedlessNoopIsDropped(t *testing.T) {
	for _, row := range []struct {
		name      string
		v         wire.Version
		edit      func(*credits.Conn)
		q         credits.Queues
		keepalive bool
		want      bool
	}{
		{"still needed", wire.Version2, func(*credits.Conn) {}, credits.Queues{}, false, false},
		{"an answer follows", wire.Version2, func(*credits.Conn) {}, credits.Queues{Nocred: true}, false, true},
		{"a message follows", wire.Version2, func(*credits.Conn) {}, credits.Queues{Tx: true}, false, true},
		{"the credits went with another message", wire.Version2, func(c *credits.Conn) { c.Outstanding = 0 }, credits.Queues{}, false, true},
		{"for the keepalive", wire.Version2, func(c *credits.Conn) { c.Outstanding = 0 }, credits.Queues{}, true, false},
		{"two are under way", wire.Version2, func(c *credits.Conn) { c.SendsPosted, c.NoopsPosted = 2, 2 }, credits.Queues{}, false, true},
		{"version 1 has no such limit", wire.Version1, func(c *credits.Conn) { c.SendsPosted, c.NoopsPosted = 2, 2 }, credits.Queues{}, false, false},
		{"version 1, another NOOP is queued", wire.Version1, func(*credits.Conn) {}, credits.Queues{Noops: true}, false, true},
	} {
		c := credits.New(row.v, 8, 7, 16)
		c.Outstanding = 7
		row.edit(&c)
		if got := c.DropNoop(row.q, row.keepalive); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}

// TestCheckNamesTheBrokenBound tries each counter just outside its bounds.
func TestCheckNamesTheBrokenBound(t *testing.T) {
	for _, row := range []struct {
		name string
		v    wire.Version
		edit func(*credits.Conn)
	}{
		{"credits -1", wire.Version2, func(c *credits.Conn) { c.Credits = -1 }},
		{"credits 9", wire.Version2, func(c *credits.Conn) { c.Credits = 9 }},
		{"outstanding credits -1", wire.Version2, func(c *credits.Conn) { c.Outstanding = -1 }},
		{"outstanding credits 9", wire.Version2, func(c *credits.Conn) { c.Outstanding = 9 }},
		{"reserved credits -1", wire.Version2, func(c *credits.Conn) { c.Reserved = -1 }},
		{"reserved credits 9", wire.Version2, func(c *credits.Conn) { c.Reserved = 9 }},
		{"sends posted -1", wire.Version2, func(c *credits.Conn) { c.SendsPosted = -1 }},
		{"sends posted 17", wire.Version2, func(c *credits.Conn) { c.SendsPosted = 17 }},
		{"noops posted 1", wire.Version1, func(c *credits.Conn) { c.NoopsPosted = 1 }},
		{"noops posted 3", wire.Version2, func(c *credits.Conn) { c.SendsPosted, c.NoopsPosted = 4, 3 }},
		{"", wire.Version1, func(c *credits.Conn) { c.SendsPosted, c.NoopsPosted = 4, 3 }},
		{"", wire.Version2, func(c *credits.Conn) { c.Credits, c.Outstanding, c.Reserved, c.SendsPosted = 0, 8, 0, 16 }},
	} {
		c := credits.New(row.v, 8, 4, 16)
		row.edit(&c)
		err := c.Check()
		if row.name == "" && err != nil || row.name != "" && (err == nil || !strings.HasPrefix(err.Error(), row.name+":")) {
			t.Errorf("%q: %v", row.name, err)
		}
	}
}
