package engine_test

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// memNode is an engine on an in-memory fabric that keeps its events.
type memNode struct {
	*engine.Engine
	mu     sync.Mutex
	events []engine.Event
}

func onFabric(t *testing.T, f *mem.Fabric, addr string) *memNode {
	t.Helper()
	a := netip.MustParseAddr(addr)
	n := &memNode{}
	e, err := engine.New(engine.Config{
		Provider: f.Provider(a), NIs: []engine.NISpec{{Net: wire.NetO2IB, Addr: a}},
		Tunables: tunables.Values{{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0"},
		OnEvent: func(ev engine.Event) {
			n.mu.Lock()
			n.events = append(n.events, ev)
			n.mu.Unlock()
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
	n.Engine = e
	return n
}

func (n *memNode) ping(t *testing.T, to string) error {
	t.Helper()
	_, err := n.LNet().Ping(t.Context(), nid(t, to), 10*time.Second)
	return err
}

// TestT12_71ReadyToUseLost: the passive side is never told that the connection is established; the first
// message says so.
func TestT12_71ReadyToUseLost(t *testing.T) {
	f := mem.NewFabric(mem.Options{PadPrivate: true})
	onFabric(t, f, "10.0.0.1")
	a := onFabric(t, f, "10.0.0.2")
	f.DropRTU(1)
	if err := a.ping(t, "10.0.0.1@o2ib"); err != nil {
		t.Fatal(err)
	}
}

// TestFaults: what the fabric does to a connection ends it with a reason, and traffic makes a new one.
func TestFaults(t *testing.T) {
	for _, row := range []struct {
		name  string
		fault func(f *mem.Fabric, a, b netip.Addr)
		kind  string
		text  string
	}{
		{"cut link", func(f *mem.Fabric, a, b netip.Addr) { f.Cut(a, b) }, "conn_closed", ""},
		{"refused post", func(f *mem.Fabric, a, _ netip.Addr) { f.FailNth(a, mem.CallPost, 1) }, "conn_closed", "refused a work request"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := mem.NewFabric(mem.Options{})
			onFabric(t, f, "10.0.0.1")
			a := onFabric(t, f, "10.0.0.2")
			if err := a.ping(t, "10.0.0.1@o2ib"); err != nil {
				t.Fatal(err)
			}
			row.fault(f, netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"))
			deadline := time.Now().Add(20 * time.Second)
			for err := a.ping(t, "10.0.0.1@o2ib"); err != nil; err = a.ping(t, "10.0.0.1@o2ib") {
				if time.Now().After(deadline) {
					t.Fatalf("traffic does not recover: %v", err)
				}
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, ev := range a.events {
				if ev.Kind == row.kind && strings.Contains(ev.Text, row.text) {
					return
				}
			}
			t.Errorf("no %s with %q: %+v", row.kind, row.text, a.events)
		})
	}
}

// TestNoDevice: an address that nobody serves is one clear error, and the engine stops again.
func TestNoDevice(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	e, err := engine.New(engine.Config{Provider: f.Provider(netip.MustParseAddr("10.0.0.1")), NIs: []engine.NISpec{{Net: wire.NetO2IB, Addr: netip.MustParseAddr("10.9.9.9")}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err == nil || !strings.Contains(err.Error(), "10.9.9.9@o2ib") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%v", err)
	}
}

// TestRetune restarts the NI for what needs that, and only then.
func TestRetune(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	onFabric(t, f, "10.0.0.1")
	a := onFabric(t, f, "10.0.0.2")
	if err := a.ping(t, "10.0.0.1@o2ib"); err != nil {
		t.Fatal(err)
	}
	before := a.Snapshot().Nets[0]
	set := func(name, value string) tunables.Values {
		return tunables.Values{{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0", {Scope: tunables.GlobalScope, Name: name}: value}
	}
	if err := a.Retune(t.Context(), set("keepalive", "7")); err != nil {
		t.Fatal(err)
	}
	if n := a.Snapshot().Nets[0]; n.Incarnation != before.Incarnation || n.Conns != 1 {
		t.Fatalf("keepalive restarted the NI: %+v", n)
	}
	if err := a.Retune(t.Context(), set("peer_credits", "16")); err != nil {
		t.Fatal(err)
	}
	if n := a.Snapshot().Nets[0]; n.Incarnation == before.Incarnation || n.PeerCredits != 16 || n.Conns != 0 {
		t.Fatalf("peer_credits did not restart the NI: %+v", n)
	}
	// The other side knows the old life, and has a depth of 8: two rounds.
	if err := a.ping(t, "10.0.0.1@o2ib"); err != nil {
		t.Fatal(err)
	}
	if c := a.Snapshot().Conns; len(c) != 1 || c[0].QueueDepth != 8 {
		t.Fatalf("%+v", c)
	}
	if err := a.Retune(t.Context(), set("peer_credits", "nonsense")); err == nil || a.Snapshot().Nets[0].PeerCredits != 16 {
		t.Fatalf("a wrong value: %v", err)
	}
}
