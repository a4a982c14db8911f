package mem_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func netipPort(at netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr(), port)
}

func env(opt mem.Options) verbstest.Env {
	var f *mem.Fabric
	e := verbstest.Env{
		New: func(*testing.T) (c, s verbstest.Node) {
			f = mem.NewFabric(opt)
			return verbstest.Node{Provider: f.Provider(addrA), Addr: addrA}, verbstest.Node{Provider: f.Provider(addrB), Addr: addrB}
		},
		Nowhere: netip.MustParseAddrPort("10.0.0.3:987"),
		Vanish:  func() { f.Vanish(addrB) },
		// Retries for want of a receive are the longest that anything takes.
		Patience: 5 * time.Second,
	}
	if opt.Stepped {
		e.Pump = func() bool { return f.Step() || f.Elapse() }
	}
	return e
}

func TestConformanceImmediate(t *testing.T) { verbstest.Run(t, env(mem.Options{})) }

func TestConformanceWithoutWindows(t *testing.T) { verbstest.Run(t, env(mem.Options{NoWindows: true})) }

func TestConformanceStepped(t *testing.T) {
	t.Run("in turn", func(t *testing.T) { verbstest.Run(t, env(mem.Options{Stepped: true})) })
	for seed := range uint64(5) {
		t.Run("random", func(t *testing.T) {
			t.Logf("seed %d", seed)
			verbstest.Run(t, env(mem.Options{Stepped: true, Rand: rand.New(rand.NewPCG(seed, 1)), PadPrivate: true}))
		})
	}
}

// TestReplay runs the suite twice with one seed and once with another: the traces of the first two are the
// same.
func TestReplay(t *testing.T) {
	run := func(seed uint64) []string {
		var trace []string
		e := env(mem.Options{Stepped: true, Rand: rand.New(rand.NewPCG(seed, 2)), Trace: func(what string) { trace = append(trace, what) }})
		verbstest.Run(t, e)
		return trace
	}
	a, b, c := run(7), run(7), run(8)
	if len(a) < 1000 {
		t.Fatalf("the suite took only %d steps", len(a))
	}
	if !slices.Equal(a, b) {
		t.Error("the same seed gave another run")
	}
	if slices.Equal(a, c) {
		t.Error("another seed gave the same run")
	}
}

// TestStill: stepped, nothing happens by itself, and every step does one thing.
func TestStill(t *testing.T) {
	var steps []string
	r, a, b := connected(t, mem.Options{Stepped: true, Trace: func(s string) { steps = append(steps, s) }}, 7)
	must(t, b.post(b.recv()))
	must(t, a.post(nil, a.send()))
	steps = nil
	seen := func() (n int) {
		var wcs [4]verbs.WC
		for _, s := range []*side{a, b} {
			k, err := s.cq.Poll(wcs[:])
			must(t, err)
			n += k
		}
		return n
	}
	for i, want := range []int{0, 1, 1} {
		if n := seen(); n != 0 {
			t.Fatalf("%d completions before step %d", n, i)
		}
		if !r.f.Step() {
			t.Fatalf("no step %d", i)
		}
		if n := seen(); n != want {
			t.Fatalf("%d completions after step %d, want %d", n, i, want)
		}
	}
	if r.f.Step() || len(steps) != 3 {
		t.Errorf("steps %q", steps)
	}
}

// TestChoices: over some seeds, either side hears first of a message, and events overtake completions.
func TestChoices(t *testing.T) {
	senderFirst, eventFirst := map[bool]bool{}, map[bool]bool{}
	for seed := range uint64(40) {
		r, a, b := connected(t, mem.Options{Stepped: true, Rand: rand.New(rand.NewPCG(seed, 3))}, 7)
		must(t, b.post(b.recv()))
		must(t, a.post(nil, a.send()))
		var wcs [2]verbs.WC
		var evs [2]verbs.Event
		for n := 0; n == 0; {
			if !r.f.Step() {
				t.Fatal("nothing moves")
			}
			if n, _ = a.cq.Poll(wcs[:]); n > 0 {
				senderFirst[true] = true
			} else if n, _ = b.cq.Poll(wcs[:]); n > 0 {
				senderFirst[false] = true
			}
		}
		r.run()
		b.cq.Poll(wcs[:])
		must(t, b.post(b.recv()))
		must(t, a.id.Disconnect())
		for done := false; !done; {
			if !r.f.Step() {
				t.Fatal("nothing moves")
			}
			n, _ := b.cm.Poll(evs[:])
			k, _ := b.cq.Poll(wcs[:])
			if done = n+k > 0; done {
				eventFirst[n > 0] = true
			}
		}
	}
	if len(senderFirst) != 2 || len(eventFirst) != 2 {
		t.Errorf("sender first %v, event first %v", senderFirst, eventFirst)
	}
}

// TestLimits: what a queue pair was not made for is refused, as far as it goes.
func TestLimits(t *testing.T) {
	_, a, b := connected(t, mem.Options{}, 7)
	must(t, b.post(b.recv()))
	wide, wrong, far := a.send(), a.send(), a.send()
	wide.NSGE, wrong.Op, far.NSGE = 2, verbs.OpRecv, verbs.MaxSGE+1
	for name, wr := range map[string]verbs.SendWR{"too many elements": wide, "not a send": wrong, "more elements than there are": far} {
		if err := a.post(nil, wr); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	recv := b.recv()
	recv[0].NSGE = 2
	if err := b.post(recv); err == nil {
		t.Error("a receive of too many elements: taken")
	}
	must(t, a.post(nil, a.send()))
	a.status(verbs.WCSuccess)
	b.status(verbs.WCSuccess)
	for name, attr := range map[string]verbs.QPAttr{"nothing": {}, "another device's": b.attr()} {
		if _, err := a.id.CreateQP(attr); err == nil {
			t.Errorf("queue pair of %s objects: made", name)
		}
	}
}

// TestListenerGone: a request that its listener did not live to see is refused, and nobody hears of it.
func TestListenerGone(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r := newRig(t, mem.NewFabric(opt))
		l := r.listen()
		a, b := r.dial(), r.sides[1]
		must(t, a.id.Connect(verbs.ConnParam{}))
		r.run()
		must(t, l.Close())
		b.quiet()
		a.event(verbs.EventRejected)
		must(t, l.Close()) // again changes nothing
		r.listen()
	})
}

// TestClosedQueuePair: completions that are still on their way when it is closed do not arrive.
func TestClosedQueuePair(t *testing.T) {
	_, a, _ := connected(t, mem.Options{Stepped: true}, 7)
	must(t, a.post(a.recv()))
	must(t, a.qp.Close())
	a.completions(0)
}

// TestConcurrent has connections of one immediate fabric used by a goroutine for each end.
func TestConcurrent(t *testing.T) {
	const pairs, rounds = 4, 500
	f := mem.NewFabric(mem.Options{})
	var wg sync.WaitGroup
	for i := range pairs {
		r := newRig(t, f)
		r.at = netipPort(r.at, uint16(1000+i))
		r.listen()
		a, b := r.connect(7)
		// Each end sends and waits for the other's, asleep in between.
		for _, s := range []*side{a, b} {
			recv, send := s.recv(), s.send()
			wg.Go(func() {
				var wcs [4]verbs.WC
				deadline := time.Now().Add(20 * time.Second)
				sent, got := 0, 0
				for round := range rounds {
					if err := s.post(recv, send); err != nil {
						t.Error(err)
						return
					}
					for sent <= round || got <= round {
						if s.cq.Arm() != nil || time.Now().After(deadline) {
							t.Errorf("%d sent and %d received of %d", sent, got, rounds)
							return
						}
						n, _ := s.cq.Poll(wcs[:])
						for _, wc := range wcs[:n] {
							switch {
							case wc.Status != verbs.WCSuccess:
								t.Errorf("%+v", wc)
								return
							case wc.Op == verbs.OpRecv:
								got++
							default:
								sent++
							}
						}
						if n == 0 {
							s.w.Wait(deadline)
						}
					}
				}
			})
		}
	}
	wg.Wait()
}

// TestNoAllocation: a message costs none where the fabric is not stepped.
func TestNoAllocation(t *testing.T) {
	_, a, b := connected(t, mem.Options{}, 7)
	one := message(t, a, b)
	if n := testing.AllocsPerRun(1000, one); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// message gives a function that posts a receive and a send and takes both completions.
func message(t testing.TB, a, b *side) func() {
	recv, send := []verbs.Posting{{QP: b.qp, Recvs: b.recv()}}, []verbs.Posting{{QP: a.qp, Sends: []verbs.SendWR{a.send()}}}
	wcs := make([]verbs.WC, 4)
	return func() {
		b.dev.Post(recv)
		a.dev.Post(send)
		for _, s := range []*side{a, b} {
			if n, err := s.cq.Poll(wcs); n != 1 || err != nil || wcs[0].Status != verbs.WCSuccess {
				t.Fatalf("%+v %v", wcs[:n], err)
			}
		}
	}
}

func BenchmarkSend(b *testing.B) {
	_, x, y := connected(b, mem.Options{}, 7)
	one := message(b, x, y)
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
}
