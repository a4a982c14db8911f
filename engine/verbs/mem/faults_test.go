package mem_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
)

// modes runs a test on both kinds of fabric.
func modes(t *testing.T, f func(t *testing.T, opt mem.Options)) {
	t.Run("immediate", func(t *testing.T) { f(t, mem.Options{}) })
	t.Run("stepped", func(t *testing.T) { f(t, mem.Options{Stepped: true}) })
}

func TestDropRTU(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r := newRig(t, mem.NewFabric(opt))
		r.listen()
		r.f.DropRTU(1)
		a, b := r.connect(7)
		b.quiet()
		for range 2 {
			must(t, b.post(b.recv()))
			must(t, a.post(nil, a.send()))
			b.status(verbs.WCSuccess)
		}
		b.event(verbs.EventCommEst)
		b.quiet() // one is enough

		_, b = r.connect(7)
		b.event(verbs.EventEstablished)
	})
}

func TestHold(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r, a, b := connected(t, opt, 7)
		r.f.Hold(b.id, true)
		must(t, a.id.Disconnect())
		a.event(verbs.EventDisconnected)
		b.quiet()
		r.f.Hold(b.id, false)
		b.event(verbs.EventDisconnected)
	})
}

func TestFailNth(t *testing.T) {
	for _, row := range []struct {
		name string
		call mem.Call
		do   func(s *side) error
	}{
		{"post", mem.CallPost, func(s *side) error { return s.post(s.recv()) }},
		{"poll", mem.CallPoll, func(s *side) error { _, err := s.cq.Poll(make([]verbs.WC, 1)); return err }},
		{"register", mem.CallRegister, func(s *side) error { _, err := s.pd.RegMR(s.r.mem, 0); return err }},
		{"protection domain", mem.CallAllocPD, func(s *side) error { _, err := s.dev.AllocPD(); return err }},
		{"window", mem.CallAllocMW, func(s *side) error { _, err := s.pd.AllocMW(); return err }},
		{"completion queue", mem.CallCreateCQ, func(s *side) error { _, err := s.dev.CreateCQ(1, s.w); return err }},
		{"queue pair", mem.CallCreateQP, func(s *side) error { _, err := s.id.CreateQP(s.attr()); return err }},
	} {
		t.Run(row.name, func(t *testing.T) {
			r, a, b := connected(t, mem.Options{}, 7)
			r.f.FailNth(addrA, row.call, 2)
			for i, wantErr := range []bool{false, true, false} {
				if err := row.do(a); (err != nil) != wantErr {
					t.Errorf("call %d: %v", i+1, err)
				}
			}
			if err := row.do(b); err != nil {
				t.Errorf("the other node's: %v", err)
			}
		})
	}
}

func TestRefuseStale(t *testing.T) {
	r := newRig(t, mem.NewFabric(mem.Options{}))
	r.listen()
	r.f.RefuseStale(1)
	a := r.dial()
	must(t, a.id.Connect(verbs.ConnParam{}))
	if ev := a.event(verbs.EventRejected); ev.Reject != verbs.RejectStaleConn || ev.Status != 10 {
		t.Errorf("%+v", ev)
	}
	r.connect(7)
}

// TestCut: what waits at the head of both queues fails for want of an answer, all else is flushed, and
// the next connection works.
func TestCut(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r, a, b := connected(t, opt, 7)
		for _, s := range []*side{a, b} {
			must(t, s.post(nil, s.send(), s.send()))
		}
		r.run()
		r.f.Cut(addrB, addrA)
		for _, s := range []*side{a, b} {
			if wcs := s.completions(2); wcs[0].Status != verbs.WCRetryExceeded || wcs[1].Status != verbs.WCFlushed {
				t.Errorf("%+v", wcs)
			}
			if ev := s.event(verbs.EventDisconnected); ev.Err == nil {
				t.Error("a cut link is an orderly end")
			}
			s.quiet()
		}
		_, b = r.connect(7)
		b.event(verbs.EventEstablished)
	})
}

// TestVanish: a peer that is gone is noticed by who sends to it or waits for its answer, and by nobody else.
func TestVanish(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r, a, b := connected(t, opt, 7)
		connectedID, connectedQP := a.id, a.qp
		a = r.dial()
		must(t, a.id.Connect(verbs.ConnParam{}))
		b.event(verbs.EventConnectRequest)
		a.quiet(verbs.EventAddrResolved, verbs.EventRouteResolved)
		r.f.Vanish(addrB)
		if ev := a.event(verbs.EventUnreachable); ev.ID != a.id {
			t.Error("the wrong id waits for an answer")
		}
		a.quiet()
		r.dial()
		must(t, a.id.Connect(verbs.ConnParam{}))
		a.event(verbs.EventUnreachable)

		idle := a.id
		a.id, a.qp = connectedID, connectedQP
		a.mr, _ = a.pd.RegMR(r.mem, 0)
		must(t, a.post(nil, a.send()))
		if ev := a.event(verbs.EventDisconnected); ev.ID != connectedID || ev.Err == nil {
			t.Errorf("%+v", ev)
		}
		a.quiet()
		b.quiet()
		must(t, idle.Close())
	})
}

func TestPort(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r, a, b := connected(t, opt, 7)
		async := func(want verbs.AsyncType, state verbs.PortState) {
			t.Helper()
			var evs [4]verbs.AsyncEvent
			if n, err := b.dev.PollAsync(evs[:]); n != 1 || err != nil || evs[0] != (verbs.AsyncEvent{Type: want, Port: 1}) {
				t.Errorf("%+v %v", evs[:n], err)
			}
			if s := b.dev.Info().State; s != state {
				t.Errorf("port state %d", s)
			}
		}
		r.f.PortDown(addrB)
		async(verbs.AsyncPortError, verbs.PortDown)
		r.f.PortUp(addrB)
		async(verbs.AsyncPortActive, verbs.PortActive)
		// Nobody sent anything meanwhile.
		must(t, b.post(b.recv()))
		must(t, a.post(nil, a.send()))
		a.status(verbs.WCSuccess)
		b.status(verbs.WCSuccess)

		r.f.PortDown(addrB)
		must(t, a.post(nil, a.send()))
		a.status(verbs.WCRetryExceeded)
		a.event(verbs.EventDisconnected)
		b.quiet()
		r.dial()
		must(t, a.id.Connect(verbs.ConnParam{}))
		a.event(verbs.EventUnreachable)
	})
}

// TestPortDownWhileAsking: both sides of a request are told once that the other is not there, whatever the
// server then says.
func TestPortDownWhileAsking(t *testing.T) {
	for _, row := range []struct {
		name   string
		up     bool // again, before the server decides
		decide func(b *side) error
		event  verbs.EventType // that the server gets; EventAddrChange: none
	}{
		{"accept", false, func(b *side) error { return b.id.Accept(verbs.ConnParam{}) }, verbs.EventUnreachable},
		{"reject", false, func(b *side) error { return b.id.Reject(nil) }, verbs.EventAddrChange},
		{"close", false, func(b *side) error { return b.id.Close() }, verbs.EventAddrChange},
		{"accept too late", true, func(b *side) error { return b.id.Accept(verbs.ConnParam{}) }, verbs.EventConnectError},
		{"reject too late", true, func(b *side) error { return b.id.Reject(nil) }, verbs.EventAddrChange},
	} {
		t.Run(row.name, func(t *testing.T) {
			modes(t, func(t *testing.T, opt mem.Options) {
				r := newRig(t, mem.NewFabric(opt))
				r.listen()
				a, b := r.dial(), r.sides[1]
				must(t, a.id.Connect(verbs.ConnParam{}))
				b.id = b.event(verbs.EventConnectRequest).ID
				b.build()
				r.f.PortDown(addrA)
				a.event(verbs.EventUnreachable)
				if row.up {
					r.f.PortUp(addrA)
				}
				must(t, row.decide(b))
				if row.event != verbs.EventAddrChange {
					b.event(row.event)
				}
				a.quiet()
				b.quiet()
			})
		})
	}
}

func TestLoseDevice(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r, a, b := connected(t, opt, 7)
		must(t, b.post(b.recv()))
		r.f.LoseDevice(addrB)
		b.event(verbs.EventDeviceRemoval) // of the listener
		b.event(verbs.EventDeviceRemoval) // of the connection
		b.event(verbs.EventDisconnected)
		b.status(verbs.WCFlushed)
		var evs [4]verbs.AsyncEvent
		if n, err := b.dev.PollAsync(evs[:]); n != 2 || err != nil || evs[0].Type != verbs.AsyncPortError || evs[1].Type != verbs.AsyncDeviceFatal {
			t.Errorf("%+v %v", evs[:n], err)
		}
		a.quiet()
		must(t, a.post(nil, a.send()))
		a.status(verbs.WCRetryExceeded)

		if list, err := b.prov.Devices(); len(list) != 0 || err != nil {
			t.Errorf("devices %v, %v", list, err)
		}
		id, err := b.cm.NewID(nil)
		must(t, err)
		calls := map[string]func() error{
			"bind":              func() error { return id.Bind(r.at, true) },
			"register":          func() error { _, err := b.pd.RegMR(r.mem, 0); return err },
			"protection domain": func() error { _, err := b.dev.AllocPD(); return err },
			"completion queue":  func() error { _, err := b.dev.CreateCQ(1, b.w); return err },
			"queue pair":        func() error { _, err := b.id.CreateQP(b.attr()); return err },
		}
		for name, call := range calls {
			if err := call(); !errors.Is(err, verbs.ErrNoDevice) {
				t.Errorf("%s on a lost device: %v", name, err)
			}
		}
		r.dial()
		must(t, a.id.Connect(verbs.ConnParam{}))
		a.event(verbs.EventUnreachable)

		r.f.ReturnDevice(addrB)
		if list, err := b.prov.Devices(); len(list) != 1 || list[0].State != verbs.PortActive || err != nil {
			t.Errorf("devices %v, %v", list, err)
		}
		if err := calls["register"](); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("the old protection domain is back: %v", err)
		}
		r.at = netipPort(r.at, 988) // the old listener still holds its port
		must(t, id.Bind(r.at, false))
		must(t, id.Listen(0))
		old := b.dev
		_, b = r.connect(7)
		b.event(verbs.EventEstablished)
		if b.dev == old {
			t.Error("the device that came back is the one that was lost")
		}
		if n, err := b.dev.PollAsync(evs[:]); n != 1 || err != nil || evs[0].Type != verbs.AsyncPortActive {
			t.Errorf("%+v %v", evs[:n], err)
		}
	})
}

// TestPadding: private data as InfiniBand delivers it.
func TestPadding(t *testing.T) {
	for _, row := range []struct {
		name                   string
		pad                    bool
		request, reply, reject int
	}{
		{"as given", false, 5, 7, 3},
		{"padded", true, 56, 196, 148},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t, mem.NewFabric(mem.Options{PadPrivate: row.pad}))
			r.listen()
			check := func(what string, ev verbs.Event, want string, size int) {
				t.Helper()
				if len(ev.Private) != size || string(ev.Private[:len(want)]) != want {
					t.Errorf("%s: %d bytes %q", what, len(ev.Private), ev.Private)
				}
			}
			a, b := r.dial(), r.sides[1]
			must(t, a.id.Connect(verbs.ConnParam{Private: []byte("hello")}))
			req := b.event(verbs.EventConnectRequest)
			check("request", req, "hello", row.request)
			must(t, req.ID.Reject([]byte("no!")))
			check("reject", a.event(verbs.EventRejected), "no!", row.reject)
			a = r.dial()
			must(t, a.id.Connect(verbs.ConnParam{Private: []byte("hello")}))
			b.id = b.event(verbs.EventConnectRequest).ID
			b.build()
			must(t, b.id.Accept(verbs.ConnParam{Private: []byte("welcome")}))
			check("reply", a.event(verbs.EventEstablished), "welcome", row.reply)
		})
	}
}

// TestNoReceiveImmediate: time ends the wait for a receive, as often as the receiver said.
func TestNoReceiveImmediate(t *testing.T) {
	for _, row := range []struct {
		name    string
		retries uint8
		after   time.Duration // until the receive is posted; 0: never
		want    verbs.WCStatus
		took    time.Duration
	}{
		{"in time", 2, 500 * time.Millisecond, verbs.WCSuccess, 500 * time.Millisecond},
		{"never", 2, 0, verbs.WCRNRRetry, 600 * time.Millisecond},
		{"no retry", 0, 0, verbs.WCRNRRetry, 200 * time.Millisecond},
		{"without end", 7, time.Hour, verbs.WCSuccess, time.Hour},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, a, b := connected(t, mem.Options{}, row.retries)
				must(t, a.cq.Arm())
				start := time.Now()
				must(t, a.post(nil, a.send()))
				if row.after > 0 {
					time.Sleep(row.after)
					must(t, b.post(b.recv()))
				}
				for a.w.Wait(time.Time{}); time.Since(start) < row.took; {
					a.w.Wait(time.Time{}) // a wake of an event from before
				}
				if took := time.Since(start); took != row.took {
					t.Errorf("it took %v, want %v", took, row.took)
				}
				a.status(row.want)
			})
		})
	}
}

// TestNoReceiveStepped: only Elapse lets retries be used up.
func TestNoReceiveStepped(t *testing.T) {
	for _, row := range []struct {
		name    string
		retries uint8
		elapse  int // calls that find somebody waiting
	}{
		{"no retry", 0, 1},
		{"two retries", 2, 3},
		{"without end", 7, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r, a, b := connected(t, mem.Options{Stepped: true}, row.retries)
			must(t, a.post(nil, a.send()))
			a.completions(0)
			for i := range row.elapse {
				a.completions(0)
				if !r.f.Elapse() {
					t.Fatalf("nobody waits at call %d", i+1)
				}
			}
			if r.f.Elapse() {
				t.Error("somebody still counts")
			}
			if row.elapse > 0 {
				a.status(verbs.WCRNRRetry)
				a.event(verbs.EventDisconnected)
				b.event(verbs.EventDisconnected)
				return
			}
			must(t, b.post(b.recv()))
			a.status(verbs.WCSuccess)
			b.status(verbs.WCSuccess)
		})
	}
}

// TestRetriesAreOfOneSend: one that was late does not take from the next one's.
func TestRetriesAreOfOneSend(t *testing.T) {
	r, a, b := connected(t, mem.Options{Stepped: true}, 1)
	for range 3 {
		must(t, a.post(nil, a.send()))
		r.run()
		if !r.f.Elapse() {
			t.Fatal("nobody waits")
		}
		must(t, b.post(b.recv()))
		a.status(verbs.WCSuccess)
		b.status(verbs.WCSuccess)
	}
}

// TestDisconnectDoesNotWait: a send that finds no receive does not hold the end of the connection up.
func TestDisconnectDoesNotWait(t *testing.T) {
	modes(t, func(t *testing.T, opt mem.Options) {
		r, a, b := connected(t, opt, 7)
		must(t, a.post(nil, a.send()))
		r.run()
		must(t, a.id.Disconnect())
		a.event(verbs.EventDisconnected)
		b.event(verbs.EventDisconnected)
		a.status(verbs.WCFlushed)
	})
}
