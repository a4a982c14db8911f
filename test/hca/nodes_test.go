//go:build hca && !nordma

package hca

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/verbs/rdmacore"
	"o2ibd/engine/wire"
)

const (
	service  = 19887
	portal   = 40
	patience = 30 * time.Second
)

// node is an engine on one address.
type node struct {
	t    *testing.T
	name string
	*engine.Engine
	nid wire.NID

	mu     sync.Mutex
	events []string
}

// start makes a node as a variable of the environment says: "rdmacore 10.0.0.1" or "iwarp 10.0.0.1".
func start(t *testing.T, variable string, set map[string]string) *node {
	t.Helper()
	kind, addr, ok := strings.Cut(os.Getenv(variable), " ")
	a, err := netip.ParseAddr(addr)
	if !ok || err != nil {
		t.Fatalf("%s is %q: a provider and an address are wanted, see test/hca", variable, os.Getenv(variable))
	}
	var p verbs.Provider
	switch kind {
	case "rdmacore":
		p, err = rdmacore.New(rdmacore.Options{})
	case "iwarp":
		p = iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "hca", Addr: a}}})
	default:
		t.Fatalf("provider %q", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
	values := tunables.Values{
		{Scope: tunables.GlobalScope, Name: "service"}: fmt.Sprint(service), {Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
	}
	for k, v := range set {
		values[tunables.Scoped{Scope: tunables.GlobalScope, Name: k}] = v
	}
	n := &node{t: t, name: kind}
	n.Engine, err = engine.New(engine.Config{Provider: p, NIs: []engine.NISpec{{Net: wire.NetO2IB, Addr: a}}, Tunables: values, OnEvent: n.event})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(); err != nil {
		t.Fatalf("%s on %v: %v", kind, a, err)
	}
	n.nid = engine.NISpec{Net: wire.NetO2IB, Addr: a}.NID()
	return n
}

func (n *node) event(ev engine.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, fmt.Sprintf("%s: %s: %s", n.name, ev.Kind, ev.Text))
}

// stop ends the node, and shows what it said where the test has failed.
func (n *node) stop() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		n.t.Errorf("stop of the %s node: %v", n.name, err)
	}
	if n.t.Failed() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.t.Log(strings.Join(n.events, "\n"))
	}
}

func (n *node) ping(to *node) {
	n.t.Helper()
	info, err := n.LNet().Ping(context.Background(), to.nid, patience)
	if err != nil {
		n.t.Fatalf("ping of the %s node by the %s node: %v", to.name, n.name, err)
	}
	if len(info.NIs) == 0 {
		n.t.Fatalf("an empty answer to a ping: %+v", info)
	}
}

func (n *node) alloc(size int) arena.Buffer {
	n.t.Helper()
	b, err := n.Alloc(size)
	if err != nil {
		n.t.Fatal(err)
	}
	return b
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// move PUTs and GETs size bytes and compares them.
func move(t *testing.T, from, to *node, size int, put bool) {
	t.Helper()
	there, here := to.alloc(size), from.alloc(size)
	defer to.Free(there)
	defer from.Free(here)
	opt, want, src, dst := lnet.OptGet, lnet.EventReply, there, here
	if put {
		opt, want, src, dst = lnet.OptPut, lnet.EventAck, here, there
	}
	fill(src.Bytes(), size)
	clear(dst.Bytes())
	sink, err := to.LNet().Attach(lnet.ME{Portal: portal, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: uint64(size)},
		lnet.MD{Segs: []arena.Buffer{there}, Threshold: lnet.Unlimited, Options: opt | lnet.OptManageRemote, Handler: func(lnet.Event) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer to.LNet().Unlink(sink)
	done := make(chan lnet.Event, 16)
	md, err := from.LNet().Bind(lnet.MD{Segs: []arena.Buffer{here}, Threshold: lnet.Unlimited, Retain: true, Handler: func(ev lnet.Event) { done <- ev }})
	if err != nil {
		t.Fatal(err)
	}
	defer from.LNet().Unlink(md)
	op := lnet.Operation{Target: lnet.ProcessID{NID: to.nid, PID: wire.LustrePID}, Portal: portal, MatchBits: uint64(size)}
	if put {
		err = from.LNet().Put(md, op, true)
	} else {
		err = from.LNet().Get(md, op)
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case ev := <-done:
			if ev.Status != 0 {
				t.Fatalf("%d bytes, put %v: %v", size, put, ev.Status)
			}
			if ev.Type == want {
				if !bytes.Equal(src.Bytes(), dst.Bytes()) {
					t.Fatalf("%d bytes, put %v: they differ", size, put)
				}
				return
			}
		case <-time.After(patience):
			t.Fatalf("%d bytes, put %v: no end", size, put)
		}
	}
}

// TestNodes connects two nodes, in both directions.
func TestNodes(t *testing.T) {
	for _, way := range [][2]string{{"O2IBD_HCA_A", "O2IBD_HCA_B"}, {"O2IBD_HCA_B", "O2IBD_HCA_A"}} {
		t.Run(os.Getenv(way[0])+" to "+os.Getenv(way[1]), func(t *testing.T) {
			a, b := start(t, way[0], nil), start(t, way[1], nil)
			defer b.stop()
			defer a.stop()
			a.ping(b)
			for _, size := range []int{1, 100, 4000, 4096, 65536, 1 << 20} {
				move(t, a, b, size, true)
				move(t, a, b, size, false)
			}
			b.ping(a)
			move(t, b, a, 1<<20, true)
			move(t, b, a, 1<<20, false)
		})
	}
}

// TestRestart ends one node and starts it again: the other finds it.
func TestRestart(t *testing.T) {
	a, b := start(t, "O2IBD_HCA_A", nil), start(t, "O2IBD_HCA_B", nil)
	defer a.stop()
	a.ping(b)
	b.stop()
	b = start(t, "O2IBD_HCA_B", nil)
	defer b.stop()
	// The first tries may still go to the connection of before.
	deadline := time.Now().Add(patience)
	for {
		_, err := a.LNet().Ping(context.Background(), b.nid, 5*time.Second)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a node that was started again is not found: %v", err)
		}
	}
	move(t, a, b, 1<<20, true)
}

// TestDepths has nodes of different depth find a common one, which a reject tells.
func TestDepths(t *testing.T) {
	a := start(t, "O2IBD_HCA_A", map[string]string{"peer_credits": "16"})
	defer a.stop()
	b := start(t, "O2IBD_HCA_B", map[string]string{"peer_credits": "8"})
	defer b.stop()
	a.ping(b)
	move(t, a, b, 1<<20, true)
	b.ping(a)
}
