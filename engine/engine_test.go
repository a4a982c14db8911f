package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"o2ibd/engine"
	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node starts an engine on iwarp over loopback TCP.
func node(t testing.TB, addr string, service int, set ...string) *engine.Engine {
	t.Helper()
	a := netip.MustParseAddr(addr)
	v := tunables.Values{
		{Scope: tunables.GlobalScope, Name: "service"}:             fmt.Sprint(service),
		{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
	}
	for i := 0; i < len(set); i += 2 {
		v[tunables.Scoped{Scope: tunables.GlobalScope, Name: set[i]}] = set[i+1]
	}
	e, err := engine.New(engine.Config{
		Provider: iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "lo", Addr: a, MTU: 65536}}}),
		NIs:      []engine.NISpec{{Net: wire.NetO2IB, Addr: a}},
		Tunables: v,
		OnEvent: func(ev engine.Event) {
			if os.Getenv("O2IBD_TEST_EVENTS") != "" {
				t.Log(addr, ev.Kind, ev.Peer, ev.Text)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

func nid(t testing.TB, s string) wire.NID {
	t.Helper()
	n, err := wire.ParseNID(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPing(t *testing.T) {
	node(t, "127.0.0.21", 19870)
	a := node(t, "127.0.0.22", 19870)
	info, err := a.LNet().Ping(t.Context(), nid(t, "127.0.0.21@o2ib"), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.NIs) != 1 || info.NIs[0].NID != nid(t, "127.0.0.21@o2ib") || info.Features != lnet.FeatNIStatus|lnet.FeatRTEDisabled {
		t.Fatalf("ping answer %+v", info)
	}
	s := a.Snapshot()
	if len(s.Conns) != 1 || s.Conns[0].State != "established" || s.Conns[0].QueueDepth != 8 || s.Conns[0].RxPosted != 18 {
		t.Fatalf("conns %+v", s.Conns)
	}
}

// operate runs an LNet operation on from and waits for its last event.
func operate(t testing.TB, from *engine.Engine, buf []lnet.Event, start func(lnet.Handler) error) []lnet.Event {
	t.Helper()
	done := make(chan lnet.Event, 4)
	if err := start(func(ev lnet.Event) { done <- ev }); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case ev := <-done:
			buf = append(buf, ev)
			if ev.Unlinked {
				return buf
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the operation did not end; so far %+v", buf)
		}
	}
}

// TestPutAndGet moves messages of every kind both ways: immediate and by RDMA, with and without ACK, in
// one piece and in many.
func TestPutAndGet(t *testing.T) {
	b := node(t, "127.0.0.23", 19872)
	a := node(t, "127.0.0.24", 19872)
	target := lnet.ProcessID{NID: nid(t, "127.0.0.23@o2ib"), PID: wire.LustrePID}
	for _, row := range []struct {
		name   string
		size   int
		pieces int
	}{
		{"empty", 0, 1}, {"one byte", 1, 1}, {"largest immediate", 3976, 1}, {"smallest RDMA", 3977, 1},
		{"64 KiB", 64 << 10, 1}, {"1 MiB", 1 << 20, 1}, {"1 MiB in 256 pieces", 1 << 20, 256},
	} {
		t.Run(row.name, func(t *testing.T) {
			here, there := buffers(t, a, row.size, row.pieces), buffers(t, b, row.size, 1)
			fill(here, 7)
			got := make(chan lnet.Event, 2)
			if _, err := b.LNet().Attach(lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 1},
				lnet.MD{Segs: there, Threshold: 1, Options: lnet.OptPut, Handler: func(ev lnet.Event) { got <- ev }}); err != nil {
				t.Fatal(err)
			}
			events := operate(t, a, nil, func(h lnet.Handler) error {
				md, err := a.LNet().Bind(lnet.MD{Segs: here, Threshold: 2, Handler: h})
				if err != nil {
					return err
				}
				return a.LNet().Put(md, lnet.Operation{Target: target, Portal: 40, MatchBits: 1}, true)
			})
			if len(events) != 2 || events[0].Status != 0 || events[1].Status != 0 {
				t.Fatalf("events of the PUT: %+v", events)
			}
			if ev := <-got; ev.Status != 0 || ev.MLength != row.size {
				t.Fatalf("event at the target: %+v", ev)
			}
			if !same(here, there) {
				t.Fatal("the data differs after the PUT")
			}
			back := buffers(t, a, row.size, row.pieces)
			fill(there, 11)
			if _, err := b.LNet().Attach(lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 2},
				lnet.MD{Segs: there, Threshold: 1, Options: lnet.OptGet, Handler: func(ev lnet.Event) { got <- ev }}); err != nil {
				t.Fatal(err)
			}
			events = operate(t, a, nil, func(h lnet.Handler) error {
				md, err := a.LNet().Bind(lnet.MD{Segs: back, Threshold: 2, Handler: h})
				if err != nil {
					return err
				}
				return a.LNet().Get(md, lnet.Operation{Target: target, Portal: 40, MatchBits: 2})
			})
			for _, ev := range events {
				if ev.Status != 0 || ev.Type == lnet.EventReply && ev.MLength != row.size {
					t.Fatalf("events of the GET: %+v", events)
				}
			}
			if ev := <-got; ev.Status != 0 {
				t.Fatalf("event at the target: %+v", ev)
			}
			if !same(back, there) {
				t.Fatal("the data differs after the GET")
			}
		})
	}
	t.Run("unmatched", func(t *testing.T) {
		for _, size := range []int{100, 100000} {
			buf := buffers(t, a, size, 1)
			put := operate(t, a, nil, func(h lnet.Handler) error {
				md, err := a.LNet().Bind(lnet.MD{Segs: buf, Threshold: 1, Handler: h})
				if err != nil {
					return err
				}
				return a.LNet().Put(md, lnet.Operation{Target: target, Portal: 41, MatchBits: 9}, false)
			})
			if len(put) != 1 || put[0].Status != 0 {
				t.Fatalf("a PUT that nothing matches is a success for its sender: %+v", put)
			}
		}
		buf := buffers(t, a, 100000, 1)
		get := operate(t, a, nil, func(h lnet.Handler) error {
			md, err := a.LNet().Bind(lnet.MD{Segs: buf, Threshold: 2, Handler: h})
			if err != nil {
				return err
			}
			return a.LNet().Get(md, lnet.Operation{Target: target, Portal: 41, MatchBits: 9})
		})
		if last := get[len(get)-1]; last.Status != -61 {
			t.Fatalf("a GET that nothing matches ends with ENODATA: %+v", get)
		}
	})
	if s := a.Snapshot(); s.Conns[0].State != "established" || s.Stats.SendCount == 0 {
		t.Fatalf("after all that: %+v", s.Conns)
	}
	conns, err := a.Recent(t.Context(), nid(t, "127.0.0.24@o2ib"), target.NID)
	if err != nil || len(conns) != 1 || conns[0].EndedAt != nil {
		t.Fatalf("last messages: %+v, %v", conns, err)
	}
	last := conns[0].Messages[len(conns[0].Messages)-1]
	if last.Type != "GET_DONE" || last.Direction != "received" || *last.Status != -61 || !strings.Contains(last.Failure, "ENODATA") || last.Cookie == "" || last.LNet != "" {
		t.Fatalf("the last message: %+v", last)
	}
}

// buffers allocates size bytes in so many pieces that no two touch.
func buffers(t testing.TB, e *engine.Engine, size, pieces int) []arena.Buffer {
	t.Helper()
	if size == 0 {
		return nil
	}
	n := size / pieces
	whole, err := e.Alloc(pieces * (n + 64))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Free(whole) })
	var segs []arena.Buffer
	for i := range pieces {
		segs = append(segs, whole.Slice(i*(n+64), n))
	}
	return segs
}

func fill(segs []arena.Buffer, seed int) {
	i := seed
	for _, b := range segs {
		for k := range b.Bytes() {
			i++
			b.Bytes()[k] = byte(i * 31)
		}
	}
}

func same(a, b []arena.Buffer) bool {
	var x, y []byte
	for _, s := range a {
		x = append(x, s.Bytes()...)
	}
	for _, s := range b {
		y = append(y, s.Bytes()...)
	}
	return bytes.Equal(x, y)
}
