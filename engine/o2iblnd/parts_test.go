package o2iblnd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// TestWorkRequestIDs: kind, index and generation come out as they went in, up to the ends of their ranges,
// and nothing of one runs into another (spec o2iblnd 4.8).
func TestWorkRequestIDs(t *testing.T) {
	seen := make(map[uint64]bool)
	for _, k := range []wrKind{wrInvalid, wrTx, wrRx, wrRDMA, wrMR} {
		for _, idx := range []uint32{0, 1, 1<<rxNumBits - 1, 1 << rxNumBits, 1<<wrIdxBits - 1} {
			for _, gen := range []uint32{0, 1, 1<<32 - 1} {
				id := makeWRID(k, idx, gen)
				if k2, idx2, gen2 := splitWRID(id); k2 != k || idx2 != idx || gen2 != gen {
					t.Errorf("%d, %#x, %#x became %d, %#x, %#x", k, idx, gen, k2, idx2, gen2)
				}
				if seen[id] {
					t.Errorf("%#x twice", id)
				}
				seen[id] = true
			}
		}
	}
	c := &conn{slot: maxSlots - 1, gen: 7}
	if k, idx, gen := splitWRID(rxWRID(c, 511)); k != wrRx || idx>>rxNumBits != maxSlots-1 || idx&(1<<rxNumBits-1) != 511 || gen != 7 {
		t.Errorf("the last receive of the last slot: %d, %#x, %#x", k, idx, gen)
	}
}

// TestConnStates: states have the reference's order and only go up, and readers see each (spec o2iblnd 2.1).
func TestConnStates(t *testing.T) {
	for i, want := range []string{"init", "active_connect", "passive_wait", "established", "closing", "disconnected"} {
		if got := connState(i).String(); got != want {
			t.Errorf("state %d is %s, wanted %s", i, got, want)
		}
	}
	w := newTwins(t, nil)
	var seen [2][]string
	look := func() {
		for i, x := range w.nodes {
			for _, c := range x.lnd.Snapshot().Conns {
				if n := len(seen[i]); n == 0 || seen[i][n-1] != c.State {
					seen[i] = append(seen[i], c.State)
				}
			}
		}
	}
	a, b := w.nodes[0], w.nodes[1]
	w.put(10)
	turn := func() {
		for _, step := range []func(){
			func() { a.lnd.connd.Step(w.now) }, func() { a.lnd.scheds[0].Step(w.now) },
			func() { b.lnd.connd.Step(w.now) }, func() { b.lnd.scheds[0].Step(w.now) }, func() { w.f.Step() },
		} {
			step()
			look()
		}
	}
	for i := 0; b.received == 0 || a.in(connEstablished) == 0; i++ {
		turn()
		if i > 500 {
			t.Fatal("no connection")
		}
	}
	c := a.conns()[0]
	c.sched.submit(op{kind: opClose, c: c, why: orderly("the test closed it")})
	for i := 0; len(a.lnd.connd.conns)+len(b.lnd.connd.conns) > 0; i++ {
		turn()
		w.now = w.now.Add(10 * time.Millisecond)
		if i > 5000 {
			t.Fatal("the connection does not end")
		}
	}
	for i, want := range []string{"active_connect established closing disconnected", "passive_wait established closing disconnected"} {
		if got := strings.Join(seen[i], " "); got != want {
			t.Errorf("node %d: %s, wanted %s", i, got, want)
		}
	}
	s := c.sched
	s.close(c, because(eIO, "too late"))
	if c.state != connDisconnected {
		t.Errorf("closing a disconnected conn makes it %v", c.state)
	}
}

// single is a node by itself.
func single(t *testing.T, f *mem.Fabric, cfg Config, addrs ...netip.Addr) (*LND, func(func(ctx context.Context) error) error) {
	t.Helper()
	g, _, _ := tunables.Derive(nil, "o2ib")
	cfg.Provider, cfg.Upper, cfg.Payload, cfg.Global = f.Provider(addrs...), &sponge{}, arena.New(1), g
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.Start()
	call := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return do(ctx)
	}
	t.Cleanup(func() {
		if err := call(l.Stop); err != nil {
			t.Error(err)
		}
	})
	return l, call
}

func niAt(addr string, net wire.Net) NIConfig {
	_, n, _ := tunables.Derive(nil, "o2ib")
	a := netip.MustParseAddr(addr)
	b := a.As4()
	return NIConfig{NID: wire.MakeNID(net, uint32(b[0])<<24|uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3])), Addr: a, Tunables: n}
}

// TestSchedulerIDs: a scheduler's id says its CPT and its place there; every CPT has transmits of its own
// (spec o2iblnd 6.2, 8.2).
func TestSchedulerIDs(t *testing.T) {
	l, call := single(t, mem.NewFabric(mem.Options{}), Config{CPTs: [][]int{{0}, {0}}, Scheds: 3}, netip.MustParseAddr("10.0.0.1"))
	if err := call(func(ctx context.Context) error { return l.AddNI(ctx, niAt("10.0.0.1", wire.NetO2IB)) }); err != nil {
		t.Fatal(err)
	}
	st := l.Snapshot()
	var got []string
	for _, s := range st.Schedulers {
		got = append(got, fmt.Sprintf("%#x of %d", s.ID, s.CPT))
	}
	if want := "0x0 of 0, 0x1 of 0, 0x2 of 0, 0x10000 of 1, 0x10001 of 1, 0x10002 of 1"; strings.Join(got, ", ") != want {
		t.Errorf("schedulers %v, wanted %s", got, want)
	}
	var pools []string
	for _, p := range st.Pools {
		pools = append(pools, fmt.Sprintf("%s %d: %d", p.Kind, p.CPT, p.Size))
	}
	if want := "tx 0: 256, tx 1: 256, fmr 0: 256, fmr 1: 256"; strings.Join(pools, ", ") != want {
		t.Errorf("pools %v, wanted %s", pools, want)
	}
}

// TestTwoNIsOnOneDevice: NIs at one address share the device, which goes with the last of them.
func TestTwoNIsOnOneDevice(t *testing.T) {
	l, call := single(t, mem.NewFabric(mem.Options{}), Config{}, netip.MustParseAddr("10.0.0.1"))
	one, two := niAt("10.0.0.1", wire.NetO2IB), niAt("10.0.0.1", wire.NetO2IB+1)
	for _, n := range []NIConfig{one, two} {
		if err := call(func(ctx context.Context) error { return l.AddNI(ctx, n) }); err != nil {
			t.Fatal(err)
		}
	}
	devices := func(want int) {
		t.Helper()
		if got := len(l.Snapshot().Devices); got != want {
			t.Fatalf("%d devices, wanted %d", got, want)
		}
	}
	devices(1)
	if err := call(func(ctx context.Context) error { return l.AddNI(ctx, one) }); err == nil {
		t.Fatal("an NI twice")
	}
	for i, n := range []NIConfig{one, two} {
		if err := call(func(ctx context.Context) error { return l.DelNI(ctx, n.NID) }); err != nil {
			t.Fatal(err)
		}
		devices(1 - i)
	}
}

// TestRegistrationFails: an NI whose transmits cannot be registered is one clear error, and leaves nothing.
func TestRegistrationFails(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	addr := netip.MustParseAddr("10.0.0.1")
	l, call := single(t, f, Config{}, addr)
	f.FailNth(addr, mem.CallRegister, 1)
	err := call(func(ctx context.Context) error { return l.AddNI(ctx, niAt("10.0.0.1", wire.NetO2IB)) })
	if err == nil || !strings.Contains(err.Error(), "10.0.0.1@o2ib") || !strings.Contains(err.Error(), "register a slab") {
		t.Fatalf("%v", err)
	}
	if used, _ := l.slots.Used(); used != 0 || len(l.Snapshot().NIs) != 0 {
		t.Fatalf("%d bytes of slots, NIs %+v", used, l.Snapshot().NIs)
	}
	if err := call(func(ctx context.Context) error { return l.AddNI(ctx, niAt("10.0.0.1", wire.NetO2IB)) }); err != nil {
		t.Fatalf("the second time: %v", err)
	}
}

// TestPeerTable: a peer is found by NI and NID while it is linked, whoever shares its bucket.
func TestPeerTable(t *testing.T) {
	var table peerTable
	nis := []*ni{{nid: wire.MakeNID(wire.NetO2IB, 1)}, {nid: wire.MakeNID(wire.NetO2IB+1, 1)}}
	var all []*peer
	used := make(map[int]bool)
	for i := range 3 * nbuckets {
		p := &peer{ni: nis[i%2], nid: wire.MakeNID(wire.NetO2IB, 0x0a000000+uint32(i/2))}
		all = append(all, p)
		table.add(p)
		used[bucketOf(p.ni, p.nid)] = true
	}
	if len(used) < nbuckets/2 {
		t.Errorf("%d peers of one net are in %d of %d buckets", len(all), len(used), nbuckets)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	gone, left := all[:nbuckets], all[nbuckets:]
	for _, p := range gone {
		table.remove(p)
	}
	for _, p := range gone {
		if table.find(p.ni, p.nid) != nil || p.linked {
			t.Fatalf("%v is found after it went", p.nid)
		}
	}
	for _, p := range left {
		if table.find(p.ni, p.nid) != p || !p.linked {
			t.Fatalf("%v is not found", p.nid)
		}
	}
	// One NID seen from two NIs, in one bucket.
	shared := wire.MakeNID(wire.NetO2IB+2, 1)
	other := &ni{}
	for a := uint32(2); other.nid == 0 || bucketOf(other, shared) != bucketOf(nis[0], shared); a++ {
		other.nid = wire.MakeNID(wire.NetO2IB, a)
	}
	for _, n := range []*ni{nis[0], other} {
		p := &peer{ni: n, nid: shared}
		table.add(p)
		left = append(left, p)
	}
	for _, p := range left[len(left)-2:] {
		if table.find(p.ni, p.nid) != p {
			t.Fatalf("%v seen from %v is another's", p.nid, p.ni.nid)
		}
	}
	n := 0
	table.each(func(p *peer) {
		n++
		if !slices.Contains(left, p) {
			t.Fatalf("%v is still listed", p.nid)
		}
	})
	if n != len(left) {
		t.Fatalf("%d peers are listed of %d", n, len(left))
	}
}

// TestCountsOfAnNI: an NI counts its peers and connections, and forgets those that end.
func TestCountsOfAnNI(t *testing.T) {
	w := newTwins(t, map[string]string{"conns_per_peer": "2"})
	a := w.nodes[0]
	counts := func(peers, conns int) {
		t.Helper()
		if n := a.lnd.Snapshot().NIs[0]; n.Peers != peers || n.Conns != conns {
			t.Fatalf("%d peers and %d connections, wanted %d and %d", n.Peers, n.Conns, peers, conns)
		}
	}
	counts(0, 0)
	w.put(10)
	w.until("two connections", func() bool { return a.in(connEstablished) == 2 })
	counts(1, 2)
	w.call(func(ctx context.Context) error { return a.lnd.DelPeer(ctx, a.nid, w.nodes[1].nid) })
	w.until("the end of them", func() bool { return len(a.lnd.connd.conns) == 0 })
	counts(0, 0)
}

// TestPeerIsHeard: every message is a sign of life (spec o2iblnd 5.5).
func TestPeerIsHeard(t *testing.T) {
	w := newTwins(t, nil)
	w.put(10)
	w.until("the message", func() bool { return w.nodes[1].received == 1 })
	w.settle()
	w.now = w.now.Add(7 * time.Second)
	w.put(10)
	w.until("another message", func() bool { return w.nodes[1].received == 2 })
	for i, x := range w.nodes {
		if at := x.lnd.Snapshot().Peers[0].LastAlive; !at.Equal(w.now) {
			t.Errorf("node %d heard of the other at %v, it is %v", i, at, w.now)
		}
	}
}

// TestTurnIsBounded: however much arrives, a scheduler looks at its inbox after so many completions.
func TestTurnIsBounded(t *testing.T) {
	w := newTwins(t, map[string]string{"peer_credits": "200"})
	a, b := w.nodes[0], w.nodes[1]
	w.put(10)
	w.until("a connection", func() bool { return b.received == 1 })
	w.settle()
	for range 150 {
		w.put(10)
	}
	a.lnd.scheds[0].Step(w.now)
	w.deliver()
	if more, _ := b.lnd.scheds[0].Step(w.now); !more || b.received != 1+reschedule {
		t.Fatalf("%d messages in one turn, more %v: the bound is %d", b.received-1, more, reschedule)
	}
	if b.lnd.scheds[0].Step(w.now); b.received != 151 {
		t.Fatalf("%d messages after two turns", b.received-1)
	}
}
