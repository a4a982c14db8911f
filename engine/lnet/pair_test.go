package lnet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// pair is two nodes joined by a fabric.
type pair struct {
	arena *arena.Arena
	n, p  *lnet.Node
	f     *fabric
}

func newPair(t testing.TB, credits, peerCredits int) *pair {
	t.Helper()
	a := arena.New(8 * arena.SlabSize)
	x := &pair{arena: a}
	for _, nid := range []wire.NID{nidN, nidP} {
		n, err := lnet.New(lnet.Config{NIs: []lnet.NIConfig{{NID: nid, Credits: credits, PeerCredits: peerCredits}}, Arena: a})
		if err != nil {
			t.Fatal(err)
		}
		if nid == nidN {
			x.n = n
		} else {
			x.p = n
		}
	}
	x.f = newFabric(x.n, x.p)
	t.Cleanup(func() {
		for _, n := range []*lnet.Node{x.n, x.p} {
			n.Close()
			if s := n.Stats(); s.MsgsAlloc != 0 || s.RstAlloc != 0 {
				t.Errorf("after Close: %d messages and %d trackers are left", s.MsgsAlloc, s.RstAlloc)
			}
		}
		for _, err := range x.f.errs {
			t.Errorf("Parse: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func (x *pair) buf(t testing.TB, n int) arena.Buffer {
	t.Helper()
	b, err := x.arena.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPing(t *testing.T) {
	x := newPair(t, 256, 8)
	want := lnet.PingInfo{
		Features: lnet.FeatNIStatus | lnet.FeatRTEDisabled, PID: pid, Entries: 2,
		NIs: []lnet.PingNI{{NID: nidP, Status: lnet.NIUp}},
	}
	ignore := cmpopts.IgnoreFields(lnet.PingInfo{}, "RTT")
	got, err := x.n.Ping(context.Background(), nidP, time.Second)
	if d := cmp.Diff(want, got, ignore); err != nil || d != "" || got.RTT <= 0 {
		t.Errorf("ping: %v, round trip %v, %s", err, got.RTT, d)
	}
	if p := x.n.Peers()[0]; p.Ping == nil || p.Ping.NIs[0].NID != nidP {
		t.Errorf("not remembered: %+v", p)
	}
	if p := x.p.Peers()[0]; p.NID != nidN || p.Traffic.Received.Get != 1 {
		t.Errorf("the other end: %+v", p)
	}

	want.NIs[0].NID = nidN // ourselves, without the wire
	got, err = x.n.Ping(context.Background(), nidN, time.Second)
	if d := cmp.Diff(want, got, ignore); err != nil || d != "" {
		t.Errorf("ping of ourselves: %v, %s", err, d)
	}

	if _, err := x.n.Ping(context.Background(), nidOther, time.Second); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("ping of nobody: %v", err)
	}
	if _, err := x.n.Ping(context.Background(), nidTCP, time.Second); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("ping on a network that we are not on: %v", err)
	}
	x.n.Close()
	if _, err := x.n.Ping(context.Background(), nidP, time.Second); !errors.Is(err, lnet.ErrClosed) {
		t.Errorf("ping after Close: %v", err)
	}
}

// How a ping ends when the peer, played by the test, does what it should not.
func TestPingThatFails(t *testing.T) {
	rows := []struct {
		name   string
		answer func(g *rig, m *o2iblnd.Message)
		want   string
	}{
		{"35 malformed", func(g *rig, m *o2iblnd.Message) {
			g.imm(answerTo(m, wire.LNetREPLY, 48), pattern(48))
			g.lnd.finish(m, 0)
		}, "ping 10.0.0.2@o2ib: ping info with magic 0x150e0700: 0x70696e67 is needed"},
		{"35 empty", func(g *rig, m *o2iblnd.Message) {
			reply := answerTo(m, wire.LNetREPLY, 0)
			g.lnd.finish(m, 0)
			g.imm(reply, nil)
		}, "ping 10.0.0.2@o2ib: ping info of 0 bytes: at least 32 are needed"},
		{"no connection", func(g *rig, m *o2iblnd.Message) { g.lnd.finish(m, -113) }, "ping 10.0.0.2@o2ib: no route to host"},
		{"no answer", func(g *rig, m *o2iblnd.Message) { g.lnd.finish(m, 0) }, "ping 10.0.0.2@o2ib: no answer within 1s: context deadline exceeded"},
		{"stuck in the LND", func(*rig, *o2iblnd.Message) {}, "ping 10.0.0.2@o2ib: no answer within 1s: context deadline exceeded"},
		{"closed meanwhile", func(g *rig, m *o2iblnd.Message) {
			g.lnd.finish(m, 0)
			g.n.Close()
		}, "ping 10.0.0.2@o2ib: LNet is shut down"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				used, _ := g.arena.Used()
				result := make(chan error)
				go func() {
					_, err := g.n.Ping(context.Background(), nidP, time.Second)
					result <- err
				}()
				synctest.Wait()
				m := g.lnd.take()
				if m.Hdr.Portal != 0 || m.Hdr.MatchBits != pingBits || m.Hdr.Length != 3960 || m.Len != 3960 {
					t.Errorf("asked with %+v", m.Hdr)
				}
				hdr := *m
				row.answer(g, m)
				if err := <-result; err == nil || err.Error() != row.want {
					t.Errorf("error %v, want %s", err, row.want)
				}
				g.lnd.abort()
				if g.n.Stats().MsgsAlloc == 0 { // it is over: a late answer meets nothing
					late := answerTo(&hdr, wire.LNetREPLY, 48)
					if err := g.n.Parse(g.lnd, nidN, nidP, &late, &rx{lnd: g.lnd, payload: pattern(48)}, false); err != nil && !errors.Is(err, lnet.ErrClosed) {
						t.Error(err)
					}
				}
				if g.lnd.inFlight() != 0 {
					t.Error("it was tried again")
				}
				if now, _ := g.arena.Used(); now > used {
					t.Errorf("%d bytes of memory are lost", now-used)
				}
			})
		})
	}
}

func TestPingIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error)
		go func() {
			_, err := g.n.Ping(ctx, nidP, 0)
			result <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// Data of every size, over every form, in pieces, with and without ACK.
func TestDataBetweenNodes(t *testing.T) {
	for _, size := range []int{0, 1, 160, 3976, 3977, 65536, 1 << 20} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d own %v", size, own), func(t *testing.T) {
				x := newPair(t, 256, 8)
				target, server := nidP, x.p
				if own {
					target, server = nidN, x.n
				}
				far, near := new(eventLog), new(eventLog)
				there := x.buf(t, max(size, 1))
				_, err := server.Attach(lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 3}, lnet.MD{
					Segs: split(there, size), Threshold: 2, Options: lnet.OptPut | lnet.OptGet | lnet.OptManageRemote, Handler: far.add,
				})
				must(t, err)
				out, in := x.buf(t, max(size, 1)), x.buf(t, max(size, 1))
				copy(out.Bytes(), pattern(size))
				clear(in.Bytes())
				op := lnet.Operation{Target: lnet.ProcessID{NID: target, PID: pid}, Portal: 40, MatchBits: 3}
				src, err := x.n.Bind(lnet.MD{Segs: split(out, size), Threshold: 2, Handler: near.add})
				must(t, err)
				must(t, x.n.Put(src, op, true))
				evs := near.take()
				if len(evs) != 2 || evs[1].Unlinked != true || evs[0].Status != 0 || evs[1].Status != 0 {
					t.Fatalf("events of the PUT %+v", evs)
				}
				sink, err := x.n.Bind(lnet.MD{Segs: split(in, size), Threshold: 2, Handler: near.add})
				must(t, err)
				must(t, x.n.Get(sink, op))
				evs = near.take()
				if len(evs) != 2 || !evs[1].Unlinked || evs[0].Status != 0 || evs[1].Status != 0 {
					t.Fatalf("events of the GET %+v", evs)
				}
				if !bytes.Equal(in.Bytes()[:size], pattern(size)) {
					t.Error("the data did not come back as it went")
				}
				if got := fmt.Sprint(far.types()); got != "[PUT GET]" {
					t.Errorf("events there %v", got)
				}
				if own && len(x.n.Peers())+len(x.p.Peers()) != 0 {
					t.Error("messages to ourselves left the node")
				}
				if own && x.n.NIs()[0].MinCredits != 256 {
					t.Error("messages to ourselves took credits")
				}
			})
		}
	}
}

// split cuts the first size bytes of b into three pieces.
func split(b arena.Buffer, size int) []arena.Buffer {
	switch {
	case size == 0:
		return nil
	case size < 3:
		return seg(b.Slice(0, size))
	}
	third := size / 3
	return []arena.Buffer{b.Slice(0, third), b.Slice(third, third), b.Slice(2*third, size-2*third)}
}

func TestLoopbackUnmatched(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	self := lnet.Operation{Target: lnet.ProcessID{NID: nidN, PID: pid}, Portal: 30, MatchBits: 1}
	h, _ := g.bind(100, 1, 0, l)
	must(t, g.n.Put(h, self, false))
	if ev := g.one(l, lnet.EventSend); ev.Status != 0 || !ev.Unlinked {
		t.Errorf("SEND event %+v", ev)
	}
	h, _ = g.bind(100, 2, 0, l)
	must(t, g.n.Get(h, self))
	if evs := l.take(); len(evs) != 2 || evs[1].Status != -61 || !evs[1].Unlinked {
		t.Errorf("events of the GET %+v", evs)
	}
	// Parked, the source waits until the target's memory comes.
	must(t, g.n.SetLazy(30, true))
	h, b := g.bind(100, 1, 0, l)
	copy(b.Bytes(), pattern(100))
	must(t, g.n.Put(h, self, false))
	g.none(l)
	_, sink := g.attach(lnet.ME{Portal: 30, MatchBits: 1}, 100, lnet.MD{Threshold: 1}, l)
	if got := fmt.Sprint(l.types()); got != "[PUT SEND]" || !bytes.Equal(sink.Bytes(), pattern(100)) {
		t.Errorf("events %v, or the data is wrong", got)
	}
	if s := g.n.Stats(); s.DropCount != 2 || g.lnd.inFlight() != 0 {
		t.Errorf("%d drops, want 2", s.DropCount)
	}
}

// Handlers that answer every message from within. Among ourselves none runs inside another.
func TestHandlersThatSend(t *testing.T) {
	const rounds = 20000
	for _, own := range []bool{false, true} {
		x := newPair(t, 8, 1)
		a, b := x.n, x.p
		nidB := nidP
		if own {
			b, nidB = a, nidN
		}
		left, depth := rounds, 0
		play := func(n *lnet.Node, portal uint32, other wire.NID) {
			h, err := n.Bind(lnet.MD{Segs: seg(x.buf(t, 16)), Threshold: lnet.Unlimited})
			must(t, err)
			_, err = n.Attach(lnet.ME{Portal: portal, NID: wire.AnyNID, PID: lnet.AnyPID}, lnet.MD{
				Segs: seg(x.buf(t, 16)), Threshold: lnet.Unlimited, Options: lnet.OptPut | lnet.OptManageRemote,
				Handler: func(ev lnet.Event) {
					if depth++; own && depth > 1 {
						t.Fatal("a handler runs inside another")
					}
					defer func() { depth-- }()
					if left--; left > 0 {
						must(t, n.Put(h, lnet.Operation{Target: lnet.ProcessID{NID: other, PID: pid}, Portal: 41 - portal%2, Via: ev.Via}, false))
					}
				},
			})
			must(t, err)
		}
		play(a, 40, nidB)
		play(b, 41, nidN)
		h, err := a.Bind(lnet.MD{Threshold: 1})
		must(t, err)
		must(t, a.Put(h, lnet.Operation{Target: lnet.ProcessID{NID: nidB, PID: pid}, Portal: 41}, false))
		if left != 0 {
			t.Errorf("own %v: %d rounds left", own, left)
		}
	}
}

// Many goroutines at once: each operation ends exactly once, all data arrives, all credits come back.
func TestConcurrent(t *testing.T) {
	const workers, rounds = 8, 120
	x := newPair(t, 24, 4)
	x.f.queued = true
	var carriers sync.WaitGroup
	for range 3 {
		carriers.Go(x.f.serve)
	}
	ticking := make(chan struct{})
	carriers.Go(func() {
		for k := 0; ; k++ {
			select {
			case <-ticking:
				return
			default:
			}
			x.n.Tick(time.Now())
			x.p.Tick(time.Now())
			x.n.Peers()
			x.p.Stats()
			x.n.NIs()
			if err := x.n.Retune(nidN, 16+k%9, 1+k%5); err != nil {
				t.Error(err)
			}
			x.p.NIStatus(nidP, k%2 == 0)
		}
	})
	var served atomic.Int64
	must(t, x.p.SetLazy(44, true))
	var workersDone sync.WaitGroup
	for w := range workers {
		workersDone.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for r := range rounds {
				size := []int{0, 10, 3976, 3977, 20000}[rng.IntN(5)]
				bits := uint64(w)<<32 | uint64(r)
				out, there, in := x.buf(t, max(size, 1)), x.buf(t, max(size, 1)), x.buf(t, max(size, 1))
				for i := range size {
					out.Bytes()[i] = byte(i + r + w)
				}
				var last sync.WaitGroup
				event := func(count *int) lnet.Handler {
					last.Add(1)
					return func(ev lnet.Event) {
						*count++
						if ev.Status != 0 {
							t.Errorf("%v with status %d", ev.Type, ev.Status)
						}
						if ev.Unlinked {
							last.Done()
						}
					}
				}
				attach := func(count *int) {
					_, err := x.p.Attach(lnet.ME{Portal: 44, NID: nidN, PID: pid, MatchBits: bits}, lnet.MD{
						Segs: split(there, size), Threshold: 2, Options: lnet.OptPut | lnet.OptGet | lnet.OptManageRemote, Handler: event(count),
					})
					if err != nil {
						t.Error(err)
					}
					served.Add(1)
				}
				var puts, gets, far int
				op := lnet.Operation{Target: lnet.ProcessID{NID: nidP, PID: pid}, Portal: 44, MatchBits: bits}
				late := rng.IntN(2) == 0 // the PUT is parked first, or races with the attach
				if !late {
					attach(&far)
				}
				acked := make(chan struct{})
				putEvent := event(&puts)
				src, err := x.n.Bind(lnet.MD{Segs: split(out, size), Threshold: 2, Handler: func(ev lnet.Event) {
					putEvent(ev)
					if ev.Type == lnet.EventAck {
						close(acked)
					}
				}})
				if err == nil {
					err = x.n.Put(src, op, true)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if late {
					attach(&far)
				}
				<-acked
				sink, err := x.n.Bind(lnet.MD{Segs: split(in, size), Threshold: 2, Handler: event(&gets)})
				if err == nil {
					err = x.n.Get(sink, op)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if r%16 == 0 {
					if _, err := x.n.Ping(context.Background(), nidP, time.Minute); err != nil {
						t.Error(err)
					}
				}
				last.Wait()
				if puts != 2 || gets != 2 || far != 2 {
					t.Errorf("%d, %d and %d events, want 2 of each", puts, gets, far)
				}
				if !bytes.Equal(in.Bytes()[:size], out.Bytes()[:size]) {
					t.Error("the data did not come back as it went")
				}
				for _, b := range []arena.Buffer{out, there, in} {
					x.arena.Free(b)
				}
			}
		})
	}
	workersDone.Wait()
	close(ticking)
	x.f.stop()
	carriers.Wait()
	must(t, x.n.Retune(nidN, 24, 4))
	for _, n := range []*lnet.Node{x.n, x.p} {
		if p := n.Peers()[0]; p.Available != 4 || p.QueueBytes != 0 || p.Queued != 0 {
			t.Errorf("credits are lost: %+v", p)
		}
		if ni := n.NIs()[0]; ni.Available != 24 {
			t.Errorf("credits are lost: %+v", ni)
		}
		if s := n.Stats(); s.DropCount != 0 || s.MsgsAlloc != 0 || s.Parked != 0 {
			t.Errorf("counted %+v", s)
		}
	}
	if s := x.n.Stats(); served.Load() != workers*rounds || s.RecvLength < s.SendLength {
		t.Errorf("%d rounds, %d bytes out and %d in", served.Load(), s.SendLength, s.RecvLength)
	}
}

// Close in the middle of traffic: what was begun ends exactly once.
func TestCloseUnderLoad(t *testing.T) {
	x := newPair(t, 8, 2)
	x.f.queued = true
	var carriers, senders sync.WaitGroup
	for range 2 {
		carriers.Go(x.f.serve)
	}
	var begun, ended, bound, unlinked atomic.Int64
	for range 4 {
		b := x.buf(t, 64)
		senders.Go(func() {
			for {
				h, err := x.n.Bind(lnet.MD{Segs: seg(b), Threshold: 2, Handler: func(ev lnet.Event) {
					if ev.Type == lnet.EventSend {
						ended.Add(1)
					}
					if ev.Unlinked {
						unlinked.Add(1)
					}
				}})
				if err != nil {
					break
				}
				bound.Add(1)
				if err := x.n.Put(h, lnet.Operation{Target: lnet.ProcessID{NID: nidP, PID: pid}, Portal: 9}, true); err == nil {
					begun.Add(1)
				}
			}
		})
	}
	for begun.Load() < 200 {
		runtime.Gosched()
	}
	x.n.Close()
	senders.Wait()
	x.f.stop()
	carriers.Wait()
	if begun.Load() != ended.Load() || bound.Load() != unlinked.Load() {
		t.Errorf("%d PUTs begun and %d ended, %d MDs bound and %d unlinked", begun.Load(), ended.Load(), bound.Load(), unlinked.Load())
	}
	x.f.errs = nil // the peer's answers met a closed node
}
