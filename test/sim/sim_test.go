// Package sim runs whole engines against each other, with their goroutines, in a synctest bubble: a seed
// fixes the nodes, the traffic and the schedule of faults, the scheduler of the runtime does the rest. The
// simulation that steps the driver by hand, and replays exactly, stands in engine/o2iblnd.
package sim

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"o2ibd/engine"
	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// A failing seed is run again with
//
//	go test ./test/sim -sim.seed N
var (
	oneSeed = flag.Uint64("sim.seed", 0, "run with this seed alone")
	seeds   = flag.Int("sim.seeds", 20, "how many seeds to run")
	stops   = flag.Int("sim.stops", 300, "how many seeds to run and stop in the middle")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	portal  = 40
	maxSize = 100_000
	putBit  = 1 << 32 // match bits of what takes PUTs; without it, of what GETs read
	ops     = 150
	rounds  = 10               // of messages from everybody to everybody, until all must pass
	settled = 10 * time.Minute // after the last fault everything has ended by then
)

type world struct {
	t     *testing.T
	rng   *rand.Rand // the driver's alone
	mem   *mem.Fabric
	pipes *iwarp.Pipes
	nodes []*node

	stopping atomic.Bool

	mu   sync.Mutex
	open map[int]*operation
	seen map[uint64]bool // PUTs whose data arrived whole, by header data

	acked []uint64
	told  []string // events of the nodes since the last round began
}

type node struct {
	addr   netip.Addr
	nid    wire.NID
	e      *engine.Engine
	values tunables.Values
	lost   bool
	served arena.Buffer
	sink   arena.Buffer
}

// operation is one PUT or GET of ours.
type operation struct {
	id    int
	get   bool
	from  *node
	buf   arena.Buffer
	size  int
	began time.Time
	last  lnet.EventType
	ok    bool // ACK or REPLY of status 0
	said  []lnet.Event
}

// pattern is what node n has to be read.
func pattern(n *node, size int) []byte {
	b := make([]byte, size)
	k := int(n.nid.Addr() & 0xff)
	for i := range b {
		b[i] = byte(i*7 + k*31)
	}
	return b
}

func (w *world) values() tunables.Values {
	v := tunables.Values{}
	set := func(name string, options ...string) {
		v[tunables.Scoped{Scope: tunables.GlobalScope, Name: name}] = options[w.rng.IntN(len(options))]
	}
	set("use_privileged_port", "0")
	set("peer_credits", "8", "16", "32")
	set("concurrent_sends", "0", "8")
	set("timeout", "4", "10", "50")
	set("keepalive", "0", "3", "100")
	set("exposure", "transfer", "cached", "device")
	set("cksum", "0", "1")
	set("conns_per_peer", "1", "3")
	return v
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 5)), open: make(map[int]*operation), seen: make(map[uint64]bool)}
	if seed%2 == 0 {
		w.pipes = iwarp.NewPipes()
	} else {
		w.mem = mem.NewFabric(mem.Options{NoWindows: seed%3 == 0})
	}
	for i := range 2 + w.rng.IntN(7) {
		n := &node{addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), values: w.values()}
		n.nid = engine.NISpec{Net: wire.NetO2IB, Addr: n.addr}.NID()
		w.nodes = append(w.nodes, n)
		w.start(n)
	}
	return w
}

func (w *world) provider(n *node) verbs.Provider {
	if w.mem != nil {
		return w.mem.Provider(n.addr)
	}
	return iwarp.New(iwarp.Options{Transport: w.pipes, Interfaces: []iwarp.Interface{{Name: "ib0", Addr: n.addr}}})
}

// start brings a node up, with memory that serves others.
func (w *world) start(n *node) {
	w.t.Helper()
	var err error
	n.e, err = engine.New(engine.Config{Provider: w.provider(n), NIs: []engine.NISpec{{Net: wire.NetO2IB, Addr: n.addr}}, Tunables: n.values, CPTs: [][]int{{0, 1}},
		OnEvent: func(ev engine.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, fmt.Sprintf("%s %v with %s: %s: %s", time.UnixMilli(ev.At).UTC().Format("15:04:05"), n.nid, ev.Peer, ev.Kind, ev.Text))
		}})
	if err == nil {
		err = n.e.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if n.served, err = n.e.Alloc(maxSize); err != nil {
		w.t.Fatal(err)
	}
	copy(n.served.Bytes(), pattern(n, maxSize))
	if n.sink, err = n.e.Alloc(maxSize); err != nil {
		w.t.Fatal(err)
	}
	everybody := lnet.ME{Portal: portal, NID: wire.AnyNID, PID: lnet.AnyPID}
	if _, err := n.e.LNet().Attach(everybody, lnet.MD{Segs: []arena.Buffer{n.served}, Threshold: lnet.Unlimited,
		Options: lnet.OptGet | lnet.OptManageRemote | lnet.OptTruncate, Handler: func(ev lnet.Event) {
			if ev.Unlinked {
				n.e.Free(n.served)
			}
		}}); err != nil {
		w.t.Fatal(err)
	}
	everybody.MatchBits = putBit
	if _, err := n.e.LNet().Attach(everybody, lnet.MD{Segs: []arena.Buffer{n.sink}, Threshold: lnet.Unlimited,
		Options: lnet.OptPut | lnet.OptManageRemote, Handler: func(ev lnet.Event) {
			if ev.Type == lnet.EventPut && ev.Status == 0 && ev.MLength == ev.RLength {
				w.mu.Lock()
				w.seen[ev.HdrData] = true
				w.mu.Unlock()
			}
			if ev.Unlinked {
				n.e.Free(n.sink)
			}
		}}); err != nil {
		w.t.Fatal(err)
	}
}

// begin starts an operation.
func (w *world) begin(id int, from, to *node) {
	o := &operation{id: id, get: w.rng.IntN(2) == 0, from: from, size: []int{1, 500, 3976, 3977, 20000, maxSize}[w.rng.IntN(6)], began: time.Now()}
	var err error
	if o.buf, err = from.e.Alloc(o.size); err != nil {
		w.t.Fatal(err)
	}
	if !o.get {
		copy(o.buf.Bytes(), pattern(from, o.size))
	}
	w.mu.Lock()
	w.open[id] = o
	w.mu.Unlock()
	md, err := from.e.LNet().Bind(lnet.MD{Segs: []arena.Buffer{o.buf}, Threshold: 2, Handler: func(ev lnet.Event) { w.event(o, to, ev) }})
	if err != nil {
		w.t.Fatal(err)
	}
	op := lnet.Operation{Target: lnet.ProcessID{NID: to.nid, PID: wire.LustrePID}, Portal: portal, HdrData: uint64(id)}
	if o.get {
		err = from.e.LNet().Get(md, op)
	} else {
		op.MatchBits = putBit
		err = from.e.LNet().Put(md, op, true)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) event(o *operation, to *node, ev lnet.Event) {
	if ev.Type == lnet.EventSend && ev.Status != 0 && !ev.Unlinked {
		// Nothing will answer it.
		// A node that is stopping unlinks it as well.
		if err := o.from.e.LNet().Unlink(ev.MD); err != nil && !w.stopping.Load() {
			w.t.Errorf("operation %d: unlink: %v", o.id, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o.said = append(o.said, ev)
	if w.open[o.id] != o {
		w.t.Errorf("an event after the last: %v", o)
		return
	}
	if ev.Status == 0 && (ev.Type == lnet.EventAck || ev.Type == lnet.EventReply) {
		o.ok = true
		if o.get && !bytes.Equal(o.buf.Bytes(), pattern(to, o.size)) {
			w.t.Errorf("operation %d: a GET of %d bytes ended well, and its data is not in place", o.id, o.size)
		}
		if !o.get {
			w.acked = append(w.acked, uint64(o.id))
		}
	}
	if ev.Unlinked {
		delete(w.open, o.id)
		o.from.e.Free(o.buf)
	}
}

// String tells the story of an operation.
func (o *operation) String() string {
	s := fmt.Sprintf("operation %d of %v, GET %v, %d bytes:", o.id, o.from.nid, o.get, o.size)
	for _, ev := range o.said {
		s += fmt.Sprintf(" %v %v", ev.Type, ev.Status)
		if ev.Unlinked {
			s += " unlinked"
		}
	}
	return s
}

func (w *world) pick() *node { return w.nodes[w.rng.IntN(len(w.nodes))] }

// fault does one thing that operators and fabrics do.
func (w *world) fault() {
	a, b := w.pick(), w.pick()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	switch k := w.rng.IntN(8); {
	case k == 0:
		// What is not there cannot be deleted; either is fine.
		_ = a.e.DelPeer(ctx, 0, b.nid)
	case k == 1:
		_, _ = a.e.CloseConns(ctx, a.nid, b.nid)
	case k == 2:
		v := w.values()
		if err := a.e.Retune(ctx, v); err == nil {
			a.values = v
		} else if !a.lost {
			w.t.Errorf("%v: retune: %v", a.nid, err)
		}
	case k == 3:
		if _, err := a.e.LNet().Ping(ctx, b.nid, 30*time.Second); err == nil && a != b && (a.lost || b.lost) {
			w.t.Errorf("%v pinged %v, and a device is lost", a.nid, b.nid)
		}
	case w.mem != nil && k < 6:
		w.mem.Cut(a.addr, b.addr)
	case w.mem != nil && a.lost:
		w.mem.ReturnDevice(a.addr)
		a.lost = false
	case w.mem != nil:
		w.mem.LoseDevice(a.addr)
		a.lost = true
	case k == 4 && a != b:
		w.pipes.Vanish(a.addr)
		time.Sleep(time.Duration(w.rng.IntN(20)) * time.Second)
		w.pipes.Return(a.addr)
	}
}

// traffic begins n operations, and in between does what goes wrong.
func (w *world) traffic(n int) {
	for id := range n {
		a, b := w.pick(), w.pick()
		w.begin(id, a, b)
		switch w.rng.IntN(12) {
		case 0:
			w.fault()
		case 1, 2:
			time.Sleep(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
		}
	}
}

// cutShort is one seed of a fabric that is stopped in the middle of it all, with devices away.
func cutShort(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		w.traffic(1 + w.rng.IntN(ops))
		w.stop()
		w.ended("stopped")
	})
}

// run is one seed.
func run(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		defer w.stop()
		w.traffic(ops)
		for _, n := range w.nodes {
			if n.lost {
				w.mem.ReturnDevice(n.addr)
				n.lost = false
			}
		}
		time.Sleep(settled)
		synctest.Wait()
		w.ended("with faults")
		// All is well again: everybody reaches everybody. Each connection that broke unnoticed fails a message.
		for round := range rounds {
			w.mu.Lock()
			w.told = nil
			w.mu.Unlock()
			for i, a := range w.nodes {
				for k, b := range w.nodes {
					w.begin(1000*(round+1)+100*i+k, a, b)
				}
			}
			last := make(map[int]*operation)
			w.mu.Lock()
			for id, o := range w.open {
				last[id] = o
			}
			w.mu.Unlock()
			time.Sleep(settled)
			synctest.Wait()
			w.ended("at rest")
			for _, o := range last {
				if round == rounds-1 && !o.ok {
					t.Errorf("nothing is wrong any more, and it failed: %v", o)
				}
			}
			if t.Failed() {
				t.Log(strings.Join(w.told, "\n"))
				return
			}
		}
	})
}

// ended fails unless every operation has, and what was acknowledged has arrived.
func (w *world) ended(when string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.open {
		w.t.Errorf("%s: begun %v ago and not ended: %v", when, time.Since(o.began), o)
	}
	for _, id := range w.acked {
		if !w.seen[id] {
			w.t.Errorf("%s: operation %d: a PUT was acknowledged that did not arrive", when, id)
		}
	}
}

// stop ends all nodes, in whatever state they are.
func (w *world) stop() {
	w.stopping.Store(true)
	var all sync.WaitGroup
	for _, n := range w.nodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := n.e.Stop(ctx); err != nil {
				w.t.Errorf("%v: %v\n%s", n.nid, err, left(n.e))
			}
		})
	}
	all.Wait()
}

// left is what a node that does not stop still has.
func left(e *engine.Engine) string {
	s := e.Snapshot()
	return fmt.Sprintf("conns %+v\npeers %+v\nnets %+v", s.Conns, s.Peers, s.Nets)
}

// each runs one with n seeds, or with the one that is asked for.
func each(t *testing.T, n uint64, one func(*testing.T, uint64)) {
	first := uint64(1)
	if *oneSeed != 0 {
		first, n = *oneSeed, 1
	}
	for seed := first; seed < first+n; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { one(t, seed) }) {
			t.Fatalf("run it again with: go test ./test/sim -run %s -sim.seed %d", t.Name(), seed)
		}
	}
}

func TestEngines(t *testing.T) { each(t, uint64(*seeds), run) }

func TestStopInTheMiddle(t *testing.T) { each(t, uint64(*stops), cutShort) }
