package engine_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"o2ibd/engine"
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
