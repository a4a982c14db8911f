package credits_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/wire"
)

// TestNeedNoop is the truth table of spec o2iblnd 3.6, row by row.
func TestNeedNoop(t *testing.T) {
	const v1, v2 = wire.Version1, wire.Version2
	for _, row := range []struct {
		name      string
		v         wire.Version
		credits   int
		owed      int
		q         credits.Queues
		keepalive bool
		want      bool
	}{
		{"v2 below high-water", v2, 8, 3, credits.Queues{}, false, false},
		{"v2 at high-water, idle", v2, 8, 4, credits.Queues{}, false, true},
		{"v2 keepalive, nothing owed", v2, 8, 0, credits.Queues{}, true, true},
		{"v2 an answer will carry them", v2, 8, 4, credits.Queues{Nocred: true}, false, false},
		{"v2 an answer carries the keepalive", v2, 0, 0, credits.Queues{Nocred: true, Tx: true}, true, false},
		{"v2 a message will carry them", v2, 1, 4, credits.Queues{Tx: true}, false, false},
		{"v2 the queue cannot move", v2, 0, 4, credits.Queues{Tx: true}, false, true},
		{"v1 below high-water", v1, 8, 6, credits.Queues{}, false, false},
		{"v1 at high-water, idle", v1, 8, 7, credits.Queues{}, false, true},
		{"v1 a NOOP is queued", v1, 8, 7, credits.Queues{Noops: true}, false, false},
		{"v1 an answer is queued", v1, 8, 7, credits.Queues{Nocred: true}, false, false},
		{"v1 without a credit", v1, 0, 7, credits.Queues{}, false, false},
		{"v1 last credit, nothing to return", v1, 1, 0, credits.Queues{}, true, false},
		{"v1 last credit, queue waits", v1, 1, 7, credits.Queues{Tx: true}, false, true},
		{"v1 a message will carry them", v1, 2, 7, credits.Queues{Tx: true}, false, false},
		{"v1 keepalive, idle", v1, 8, 0, credits.Queues{}, true, true},
	} {
		c := credits.New(row.v, 8, credits.HighWater(row.v, 8, 4, 8), 8)
		c.Credits, c.Outstanding = row.credits, row.owed
		if got := c.NeedNoop(row.q, row.keepalive); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}

func TestT12_33HighWaterProportional(t *testing.T) {
	for _, row := range []struct {
		v                wire.Version
		depth, hiw, peer int
		want             int
	}{
		{wire.Version2, 8, 4, 8, 4}, {wire.Version2, 4, 16, 32, 2}, {wire.Version2, 1, 4, 8, 1}, {wire.Version2, 255, 127, 255, 127},
		{wire.Version2, 8, 31, 32, 7}, {wire.Version1, 8, 4, 8, 7},
	} {
		if got := credits.HighWater(row.v, row.depth, row.hiw, row.peer); got != row.want {
			t.Errorf("version %#x depth %d hiw %d of %d: %d, wanted %d", uint16(row.v), row.depth, row.hiw, row.peer, got, row.want)
		}
	}
}

func TestLimits(t *testing.T) {
	if credits.RxMsgs(wire.Version2, 8) != 18 || credits.RxMsgs(wire.Version1, 8) != 16 || credits.RxMsgs(wire.Version2, 255) != 512 {
		t.Error("receives for a depth")
	}
	for c, want := range map[int]int{1: 4, 8: 8, 99: 16} {
		if got := credits.ConcurrentSends(wire.Version1, c); got != want {
			t.Errorf("version 1 clamps %d to %d", c, got)
		}
		if got := credits.ConcurrentSends(wire.Version2, c); got != c {
			t.Errorf("version 2 clamps %d to %d", c, got)
		}
	}
}

func TestMaySend(t *testing.T) {
	c := credits.New(wire.Version1, 2, 7, 2)
	if c.MaySend(true, false) != credits.OK {
		t.Fatal("two credits")
	}
	c.Send(true, false)
	if c.MaySend(true, false) != credits.LastCredit || c.MaySend(true, true) != credits.OK || c.MaySend(false, false) != credits.OK {
		t.Fatal("version 1 keeps the last credit for a NOOP")
	}
	c.Send(true, true)
	if c.MaySend(false, false) != credits.Throttled {
		t.Fatal("two sends of two are posted")
	}
	c.SendDone(false)
	if c.MaySend(true, true) != credits.NoCredits {
		t.Fatal("no credit is left")
	}
	c.SendDone(true)
	d := credits.New(wire.Version2, 1, 1, 8)
	if d.MaySend(true, false) != credits.OK {
		t.Fatal("version 2 uses its last credit")
	}
	if err := d.TakeIn(1, false); err == nil {
		t.Fatal("T12_34: a credit that is not owed was taken")
	}
	d.Reposted(credits.PeerCredit)
	before := d
	if announce := d.Send(true, false); announce != 1 || d.Outstanding != 0 {
		t.Fatalf("announced %d", announce)
	}
	d.Undo(true, false, 1)
	if d != before {
		t.Fatalf("after undo %+v, before %+v", d, before)
	}
}

// TestWorkedSequences is spec o2iblnd 4.11: credits, owed and reserved of both sides after each step.
func TestWorkedSequences(t *testing.T) {
	newPair := func() (a, b credits.Conn) {
		return credits.New(wire.Version2, 8, 4, 8), credits.New(wire.Version2, 8, 4, 8)
	}
	is := func(step string, c credits.Conn, credits, owed, reserved int) {
		t.Helper()
		if c.Credits != credits || c.Outstanding != owed || c.Reserved != reserved {
			t.Errorf("%s: %d/%d/%d, wanted %d/%d/%d", step, c.Credits, c.Outstanding, c.Reserved, credits, owed, reserved)
		}
	}
	a, b := newPair()
	a.Reserve()
	a.Send(true, false) // PUT_REQ
	is("PUT_REQ posted", a, 7, 0, 7)
	b.Send(false, false) // PUT_ACK
	b.Reposted(credits.NoCredit)
	is("PUT_ACK posted", b, 8, 0, 8)
	a.Reposted(credits.RsrvdCredit)
	a.Send(false, false) // PUT_DONE
	is("PUT_DONE posted", a, 7, 0, 8)
	b.Reposted(credits.PeerCredit)
	is("PUT_DONE received", b, 8, 1, 8)
	if err := a.TakeIn(b.Send(false, true), true); err != nil {
		t.Error(err)
	}
	is("credit returned", a, 8, 0, 8)
	is("credit returned", b, 8, 0, 8)
	a, b = newPair()
	a.Reserve()
	a.Send(true, false) // GET_REQ
	if n := b.Send(false, false); n != 0 {
		t.Errorf("GET_DONE announces %d", n)
	}
	b.Reposted(credits.PeerCredit)
	is("GET_DONE posted", b, 8, 1, 8)
	a.Reposted(credits.RsrvdCredit)
	is("GET_DONE received", a, 7, 0, 8)
}

// side is one end of a simulated connection.
type side struct {
	credits.Conn
	queue    int      // credited messages that wait
	noops    int      // version 1's, queued
	flight   []packet // towards the other side
	held     int      // received, not yet reposted
	posted   int      // receives of ours that are posted
	delivers int
}

type packet struct {
	credits  uint8
	credited bool
	noop     bool
}

// TestConservation runs two honest sides in random order: the sum of decision 18 holds after every step,
// no bound is broken, no message finds no receive, and everything that waits goes out in the end.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SampledFrom([]wire.Version{wire.Version1, wire.Version2}).Draw(t, "version")
		depth := rapid.IntRange(1, 255).Draw(t, "depth")
		if v == wire.Version1 {
			depth = 8
		}
		hiw := rapid.IntRange(max(1, depth/2), max(1, depth-1)).Draw(t, "hiw")
		sides := [2]*side{}
		for i := range sides {
			sides[i] = &side{Conn: credits.New(v, depth, credits.HighWater(v, depth, hiw, depth), credits.ConcurrentSends(v, max(depth, 4))), posted: credits.RxMsgs(v, depth)}
		}
		check := func() {
			for i, s := range sides {
				o := sides[1-i]
				if err := s.Check(); err != nil {
					t.Fatal(err)
				}
				if s.posted < 0 {
					t.Fatal("a message found no receive")
				}
				// Credits of s for messages to o: in hand, owed by o, coming back, and standing for messages on the way or held.
				sum := s.Credits + o.Outstanding + o.held
				for _, p := range s.flight {
					if p.credited {
						sum++
					}
				}
				for _, p := range o.flight {
					sum += int(p.credits)
				}
				if sum != depth {
					t.Fatalf("side %d: %d credits of %d are accounted for", i, sum, depth)
				}
			}
		}
		send := func(s *side) bool {
			q := credits.Queues{Tx: s.queue > 0, Noops: s.noops > 0}
			if s.NeedNoop(q, false) && s.NoopsPosted < 2 {
				credited := v == wire.Version1
				if s.MaySend(credited, true) == credits.OK && !s.DropNoop(q, false) {
					s.flight = append(s.flight, packet{s.Send(credited, true), credited, true})
					return true
				}
			}
			if s.queue > 0 && s.MaySend(true, false) == credits.OK {
				s.queue--
				s.flight = append(s.flight, packet{s.Send(true, false), true, false})
				return true
			}
			return false
		}
		deliver := func(from, to *side) bool {
			if len(from.flight) == 0 {
				return false
			}
			p := from.flight[0]
			from.flight = from.flight[1:]
			from.SendDone(p.noop)
			to.posted--
			check := to.Outstanding
			if err := to.TakeIn(p.credits, p.noop); err != nil {
				t.Fatal(err)
			}
			if p.noop {
				to.Reposted(to.NoopPost(p.credits))
				if v == wire.Version1 && to.Outstanding != check+1 {
					t.Fatal("a NOOP of version 1 is a credit that is owed")
				}
				to.posted++
			} else {
				to.delivers++
				to.held++
			}
			return true
		}
		repost := func(s *side) bool {
			if s.held == 0 {
				return false
			}
			s.held--
			s.posted++
			s.Reposted(credits.PeerCredit)
			return true
		}
		total := 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			i := rapid.IntRange(0, 1).Draw(t, "side")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				sides[i].queue++
				total++
			case 1:
				send(sides[i])
			case 2:
				deliver(sides[i], sides[1-i])
			case 3:
				repost(sides[i])
			}
			check()
		}
		for progress := true; progress; {
			progress = false
			for i := range sides {
				progress = send(sides[i]) || progress
				progress = deliver(sides[i], sides[1-i]) || progress
				progress = repost(sides[i]) || progress
				check()
			}
		}
		if got := sides[0].delivers + sides[1].delivers; got != total {
			t.Fatalf("%d of %d messages arrived; %s", got, total, fmt.Sprintf("%+v %+v", sides[0].Conn, sides[1].Conn))
		}
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	c, d := credits.New(wire.Version2, 8, 4, 8), credits.New(wire.Version2, 8, 4, 8)
	b.ReportAllocs()
	for b.Loop() {
		_ = d.TakeIn(c.Send(true, false), false)
		c.SendDone(false)
		d.Reposted(credits.PeerCredit)
		_ = c.TakeIn(d.Send(true, false), false)
		d.SendDone(false)
		c.Reposted(credits.PeerCredit)
	}
}
