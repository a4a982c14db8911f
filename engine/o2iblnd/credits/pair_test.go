package credits_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/wire"
)

// A pair is two nodes with a connection between them, as far as credits go: it queues, posts, delivers and
// reposts like the send engine and the receive path of spec o2iblnd 3.2 to 3.5, but nothing in it moves by
// itself. Whoever drives it chooses what happens next, so every interleaving is possible.
type pair struct {
	nodes [2]*node
	depth int
}

type node struct {
	acct       credits.Conn
	peer       *node
	rsrvd, tx  []wire.MsgType // requests that wait for a reserved credit; messages that wait for a credit
	nocred     []wire.MsgType
	noops      int // version 1's, queued
	posted     int // receives of ours that the peer may use
	wire       []frame
	sends      []bool         // posted and not completed: whether each is a NOOP
	parsed     []wire.MsgType // received, and LNet has not decided
	promised   int            // PUT_REQs that we answered: their receives are kept for the PUT_DONE
	asked      int            // requests of ours that are promoted and not answered
	accepted   int            // messages that LNet handed over
	got        int            // messages of the peer that are done with
	noopsSent  int
	noopsDrops int
}

type frame struct {
	typ      wire.MsgType
	credits  uint8
	credited bool
}

func newPair(v wire.Version, depth int, highWater, sends [2]int) *pair {
	p := &pair{depth: depth}
	for i := range p.nodes {
		p.nodes[i] = &node{acct: credits.New(v, depth, highWater[i], sends[i]), posted: credits.RxMsgs(v, depth)}
	}
	p.nodes[0].peer, p.nodes[1].peer = p.nodes[1], p.nodes[0]
	return p
}

func (n *node) queues() credits.Queues {
	return credits.Queues{Nocred: len(n.nocred) > 0, Noops: n.noops > 0, Tx: len(n.tx) > 0}
}

// send queues a message of LNet's: IMMEDIATE, PUT_REQ or GET_REQ.
func (n *node) send(typ wire.MsgType) {
	n.accepted++
	if typ == wire.MsgImmediate {
		n.tx = append(n.tx, typ)
	} else {
		n.rsrvd = append(n.rsrvd, typ)
	}
	n.engine(false)
}

// engine is one pass of the send engine (spec o2iblnd 3.5).
func (n *node) engine(keepalive bool) {
	for len(n.rsrvd) > 0 && n.acct.Reserve() {
		n.tx = append(n.tx, n.rsrvd[0])
		n.rsrvd = n.rsrvd[1:]
		n.asked++
	}
	if n.acct.NeedNoop(n.queues(), keepalive) {
		if n.acct.Version == wire.Version1 {
			n.noops++
		} else {
			n.nocred = append(n.nocred, wire.MsgNoop)
		}
	}
	for n.post(keepalive) {
	}
}

func (n *node) post(keepalive bool) bool {
	f := frame{credited: true}
	switch {
	case len(n.nocred) > 0:
		f.typ, f.credited = n.nocred[0], false
	case n.noops > 0:
		f.typ = wire.MsgNoop
	case len(n.tx) > 0:
		f.typ = n.tx[0]
	default:
		return false
	}
	noop := f.typ == wire.MsgNoop
	if n.acct.MaySend(f.credited, noop) != credits.OK {
		return false
	}
	switch {
	case !f.credited:
		n.nocred = n.nocred[1:]
	case noop:
		n.noops--
	default:
		n.tx = n.tx[1:]
	}
	if noop {
		if n.acct.DropNoop(n.queues(), keepalive) {
			n.noopsDrops++
			return true
		}
		n.noopsSent++
	}
	f.credits = n.acct.Send(f.credited, noop)
	n.wire = append(n.wire, f)
	n.sends = append(n.sends, noop)
	return true
}

// deliver takes the next message of the peer in.
func (n *node) deliver() error {
	if len(n.peer.wire) == 0 {
		return nil
	}
	f := n.peer.wire[0]
	n.peer.wire = n.peer.wire[1:]
	n.posted--
	if err := n.acct.TakeIn(f.credits, f.typ == wire.MsgNoop); err != nil {
		return err
	}
	if f.credits > 0 {
		n.engine(false)
	}
	switch f.typ {
	case wire.MsgNoop:
		n.repost(n.acct.NoopPost(f.credits))
	case wire.MsgPutAck:
		n.asked--
		n.nocred = append(n.nocred, wire.MsgPutDone)
		n.repost(credits.RsrvdCredit)
	case wire.MsgPutNak, wire.MsgGetDone:
		n.asked--
		n.repost(credits.RsrvdCredit)
	case wire.MsgPutDone:
		n.promised--
		n.got++
		n.repost(credits.PeerCredit)
	default:
		n.parsed = append(n.parsed, f.typ)
	}
	return nil
}

func (n *node) repost(p credits.Post) {
	n.posted++
	n.acct.Reposted(p)
	n.engine(false)
}

// decide is LNet being done with the i-th message that it looks at; it takes a PUT or refuses it.
func (n *node) decide(i int, take bool) {
	typ := n.parsed[i]
	n.parsed = append(n.parsed[:i], n.parsed[i+1:]...)
	post := credits.PeerCredit
	switch {
	case typ == wire.MsgPutReq && take:
		n.nocred = append(n.nocred, wire.MsgPutAck)
		n.promised++
		post = credits.NoCredit
	case typ == wire.MsgPutReq:
		n.nocred = append(n.nocred, wire.MsgPutNak)
	case typ == wire.MsgGetReq:
		n.nocred = append(n.nocred, wire.MsgGetDone)
	}
	n.engine(false) // the answer goes before the repost: it cannot carry the credit of its own request
	if post == credits.PeerCredit {
		n.got++
	}
	n.repost(post)
}

// complete is the completion of the oldest send.
func (n *node) complete() {
	noop := n.sends[0]
	n.sends = n.sends[1:]
	n.acct.SendDone(noop)
	n.engine(false)
}

// completable says whether the oldest send has arrived: a reliable connection does not complete it before.
func (n *node) completable() bool { return len(n.sends) > len(n.wire) }

// check holds the invariants of spec o2iblnd 3.1 and decision 18 against both nodes.
func (p *pair) check() error {
	for i, n := range p.nodes {
		if err := n.acct.Check(); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if len(n.wire) > n.peer.posted {
			return fmt.Errorf("node %d has %d messages under way to %d receives", i, len(n.wire), n.peer.posted)
		}
		if n.acct.SendsPosted != len(n.sends) {
			return fmt.Errorf("node %d counts %d sends posted of %d", i, n.acct.SendsPosted, len(n.sends))
		}
		sum := n.acct.Credits + n.peer.acct.Outstanding + len(n.peer.parsed) + n.peer.promised
		for _, f := range n.wire {
			if f.credited {
				sum++
			}
		}
		for _, f := range n.peer.wire {
			sum += int(f.credits)
		}
		if sum != p.depth {
			return fmt.Errorf("node %d: credits %d, owed to it %d, with the peer's LNet %d, held for PUT_DONE %d, and what is under way make %d of %d",
				i, n.acct.Credits, n.peer.acct.Outstanding, len(n.peer.parsed), n.peer.promised, sum, p.depth)
		}
		if n.acct.Reserved+n.asked != p.depth {
			return fmt.Errorf("node %d: %d reserved credits and %d requests make no %d", i, n.acct.Reserved, n.asked, p.depth)
		}
	}
	return nil
}

// rest says why the pair, in which nothing can happen any more, is not done (invariants C2 and C3).
func (p *pair) rest() error {
	for i, n := range p.nodes {
		switch {
		case len(n.rsrvd)+len(n.tx)+len(n.nocred)+n.noops > 0:
			return fmt.Errorf("deadlock: node %d has %v %v %v queued, its account is %+v, the peer's %+v", i, n.rsrvd, n.tx, n.nocred, n.acct, n.peer.acct)
		case n.peer.got != n.accepted:
			return fmt.Errorf("%d of the %d messages of node %d were delivered", n.peer.got, n.accepted, i)
		case n.acct.Reserved != p.depth || n.acct.SendsPosted != 0 || n.acct.NoopsPosted != 0:
			return fmt.Errorf("node %d at rest: %+v", i, n.acct)
		case n.acct.Credits+n.peer.acct.Outstanding != p.depth:
			return fmt.Errorf("node %d at rest has %d credits and is owed %d of %d", i, n.acct.Credits, n.peer.acct.Outstanding, p.depth)
		case n.acct.Outstanding >= n.acct.HighWater:
			return fmt.Errorf("node %d at rest keeps %d credits back, its high-water mark is %d", i, n.acct.Outstanding, n.acct.HighWater)
		}
	}
	return nil
}

// An event happens on a node; it says whether there was anything to happen.
type event func(n *node) (bool, error)

func deliver(n *node) (bool, error) {
	if len(n.peer.wire) == 0 {
		return false, nil
	}
	return true, n.deliver()
}

func complete(n *node) (bool, error) {
	if !n.completable() {
		return false, nil
	}
	n.complete()
	return true, nil
}

func takeOldest(n *node) (bool, error) {
	if len(n.parsed) == 0 {
		return false, nil
	}
	n.decide(0, true)
	return true, nil
}

func refuseNewest(n *node) (bool, error) {
	if len(n.parsed) == 0 {
		return false, nil
	}
	n.decide(len(n.parsed)-1, false)
	return true, nil
}

// run settles the pair, after which it has to be at rest.
func (p *pair) run(order ...event) error {
	if err := p.settle(order...); err != nil {
		return err
	}
	return p.rest()
}

// settle lets events happen, always the first in order that can, until none can, checking after each.
func (p *pair) settle(order ...event) error {
	for again, events := true, 0; again; events++ {
		if again = false; events == 100_000 {
			return fmt.Errorf("there is no end to it: %d and %d NOOPs so far", p.nodes[0].noopsSent, p.nodes[1].noopsSent)
		}
		for _, e := range order {
			for _, n := range p.nodes {
				ok, err := e(n)
				if err == nil && ok {
					err = p.check()
				}
				if err != nil {
					return err
				}
				again = again || ok
			}
			if again {
				break
			}
		}
	}
	return nil
}

var kinds = []wire.MsgType{wire.MsgImmediate, wire.MsgPutReq, wire.MsgGetReq}

// TestPairProperty: whatever two honest nodes do in whatever order, no credit is lost or made, no message
// meets a missing receive, and all that was queued is delivered in the end (decision 18).
func TestPairProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, depth := wire.Version2, rapid.IntRange(1, 255).Draw(t, "depth")
		if rapid.IntRange(0, 3).Draw(t, "old") == 0 {
			v, depth = wire.Version1, rapid.IntRange(3, 8).Draw(t, "old depth")
		} else if rapid.Bool().Draw(t, "shallow") {
			depth = min(depth, 4)
		}
		var highWater, sends [2]int
		for i := range highWater {
			peerCredits := rapid.IntRange(max(8, depth), 255).Draw(t, "peer_credits")
			hiw := rapid.IntRange(peerCredits/2, peerCredits-1).Draw(t, "peer_credits_hiw")
			highWater[i] = credits.HighWater(v, depth, hiw, peerCredits)
			sends[i] = credits.ConcurrentSends(v, rapid.IntRange(peerCredits/2, 2*peerCredits).Draw(t, "concurrent_sends"))
		}
		p := newPair(v, depth, highWater, sends)
		for range rapid.IntRange(0, 500).Draw(t, "steps") {
			n := p.nodes[rapid.IntRange(0, 1).Draw(t, "node")]
			var err error
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0, 1:
				n.send(rapid.SampledFrom(kinds).Draw(t, "message"))
			case 2, 3:
				_, err = deliver(n)
			case 4:
				_, err = complete(n)
			case 5:
				if len(n.parsed) > 0 {
					n.decide(rapid.IntRange(0, len(n.parsed)-1).Draw(t, "which"), rapid.Bool().Draw(t, "take"))
				}
			case 6:
				n.engine(true) // the keepalive is due
			}
			if err == nil {
				err = p.check()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.run(deliver, complete, takeOldest); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNoDeadlockAtAnyDepth floods connections of every depth both ways, with the tunables at their ends
// and with completions, deliveries or LNet as late as possible.
func TestNoDeadlockAtAnyDepth(t *testing.T) {
	orders := map[string][]event{
		"completions last": {deliver, takeOldest, complete},
		"LNet last":        {deliver, complete, takeOldest},
		"deliveries last":  {complete, refuseNewest, takeOldest, deliver},
	}
	try := func(name string, v wire.Version, depth, highWater, sends int, order []event) {
		t.Helper()
		p := newPair(v, depth, [2]int{highWater, highWater}, [2]int{sends, sends})
		rnd := rand.New(rand.NewPCG(uint64(depth), uint64(highWater)))
		for range 2*depth + 3 {
			for _, n := range p.nodes {
				n.send(kinds[rnd.IntN(len(kinds))])
			}
		}
		if err := p.run(order...); err != nil {
			t.Errorf("version %#x, depth %d, high-water %d, %d sends, %s: %v", uint16(v), depth, highWater, sends, name, err)
		}
	}
	for name, order := range orders {
		for depth := 1; depth <= 255; depth++ {
			try(name, wire.Version2, depth, 1, max(8, 2*depth), order)
			try(name, wire.Version2, depth, credits.HighWater(wire.Version2, depth, 254, 255), max(4, depth/2), order)
		}
		for depth := 3; depth <= 8; depth++ {
			for _, sends := range []int{4, 16} {
				try(name, wire.Version1, depth, credits.HighWater(wire.Version1, depth, 4, 8), sends, order)
			}
		}
	}
}

// TestUndo: a post that fails leaves no trace, in any state.
func TestUndo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SampledFrom([]wire.Version{wire.Version1, wire.Version2}).Draw(t, "version")
		c := credits.New(v, 255, 127, 255)
		c.Credits = rapid.IntRange(1, 255).Draw(t, "credits")
		c.Outstanding = rapid.IntRange(0, 255).Draw(t, "outstanding")
		credited, noop := rapid.Bool().Draw(t, "credited"), rapid.Bool().Draw(t, "noop")
		before := c
		announce := c.Send(credited, noop)
		if int(announce) != before.Outstanding || c.Outstanding != 0 || c.SendsPosted != 1 {
			t.Fatalf("sent: announces %d, %+v, before %+v", announce, c, before)
		}
		c.Undo(credited, noop, announce)
		if c != before {
			t.Fatalf("undone %+v, before %+v", c, before)
		}
	})
}
