package main

import (
	"fmt"
	"log"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// Targets for 10,000 idle peers.
const (
	memoryTarget = 16 << 10 // bytes a connection, beside its receive buffers
	passTarget   = 10 * time.Millisecond

	watch      = 8 * time.Second // how long idle nodes are watched
	queueDepth = 8
)

var (
	hubAddr = netip.MustParseAddr("127.0.0.43")
	farAddr = netip.MustParseAddr("127.0.0.44")
	hubNID  = engine.NISpec{Net: wire.NetO2IB, Addr: hubAddr}.NID()
)

// idle is what connections cost that are established and do nothing.
type idle struct {
	what     string
	n        int
	heap     int           // bytes of Go heap and stacks a connection
	resident int           // bytes of resident memory a connection
	pass     time.Duration // one pass over all deadlines
	worst    time.Duration
	how      string // the pass was made
}

// idlePeers measures thousands of established idle peers of one node beside as many plain connections.
func idlePeers(n, tcp int) {
	rows := []idle{memPeers(n), plainPipes(n), tcpPeers(tcp), plainTCP(tcp)}
	recv := credits.RxMsgs(wire.Version2, queueDepth) * wire.MsgSize
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nidle connections\tnumber\tKiB of heap each\tKiB resident each\tpass over deadlines, ms\tworst\thow\n")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t%s\n", r.what, r.n, float64(r.heap)/1024, float64(r.resident)/1024, ms(r.pass), ms(r.worst), r.how)
	}
	w.Flush()
	fmt.Printf("receive buffers of a connection: %d KiB of mapped memory, resident once they are used\n", recv>>10)
	r := rows[0]
	verdict := func(met bool) string {
		if met {
			return "met"
		}
		return "MISSED"
	}
	fmt.Printf("target of %d KiB each beside them: %s; target of %.0f ms a pass: %s\n",
		memoryTarget>>10, verdict(r.heap <= memoryTarget), ms(passTarget), verdict(r.pass <= passTarget))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// memPeers has both ends in this process: the heap of the far end, queue pairs without receives, counts too.
func memPeers(n int) idle {
	f := mem.NewFabric(mem.Options{})
	far := f.Provider(farAddr)
	return hubWith("o2ib, in memory, and the peers' queue pairs", n, f.Provider(hubAddr), func(port int) func() {
		end := dial(far, netip.AddrPortFrom(hubAddr, uint16(port)), n)
		return end.close
	})
}

// tcpPeers has the far end in a second process.
func tcpPeers(n int) idle {
	p := iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "lo", Addr: hubAddr}}})
	return hubWith("o2ib over iWARP and TCP", n, p, func(port int) func() {
		return secondProcess("o2ib", netip.AddrPortFrom(hubAddr, uint16(port)).String(), n)
	})
}

// hubWith measures a node with n peers, which connect makes and gives a way to end.
func hubWith(what string, n int, p verbs.Provider, connect func(port int) (end func())) idle {
	const port = service + 1
	tp := &timedProvider{Provider: p}
	e, err := engine.New(engine.Config{
		Provider: tp, NIs: []engine.NISpec{{Net: wire.NetO2IB, Addr: hubAddr}},
		Tunables: tunables.Values{
			{Scope: tunables.GlobalScope, Name: "service"}: fmt.Sprint(port), {Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
			{Scope: tunables.GlobalScope, Name: "keepalive"}: "0",
		},
	})
	if err == nil {
		err = e.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	before := footprint()
	end := connect(port)
	for deadline := time.Now().Add(time.Minute); established(e) < n; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			log.Fatalf("%d of %d peers are connected after a minute", established(e), n)
		}
	}
	after := footprint()
	tp.watch(watch)
	pass, worst := tp.pass()
	if got := established(e); got != n {
		log.Fatalf("%d of %d peers are left", got, n)
	}
	end()
	stop(e)
	return idle{what, n, (after.heap - before.heap) / n, (after.resident - before.resident) / n, pass, worst,
		fmt.Sprintf("turns of %d schedulers and connd, once a second", len(tp.waiters)-1)}
}

func established(e *engine.Engine) int {
	s := e.Snapshot()
	n := 0
	for i := range s.Conns {
		if s.Conns[i].State == "established" {
			n++
		}
	}
	return n
}

// memory is what the process uses, in bytes.
type memory struct{ heap, resident int }

func footprint() memory {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		log.Fatal(err)
	}
	var total, resident int
	if _, err := fmt.Fscan(strings.NewReader(string(b)), &total, &resident); err != nil {
		log.Fatal(err)
	}
	return memory{int(m.HeapAlloc + m.StackInuse), resident * os.Getpagesize()}
}

// timedProvider times the turns of every goroutine that sleeps in one of its waiters: from waking up to
// the next sleep. Those of an idle engine are its timeout scans.
type timedProvider struct {
	verbs.Provider
	waiters []*timedWaiter
}

type timedWaiter struct {
	verbs.Waiter
	mu    sync.Mutex
	on    bool
	woke  time.Time
	turns []time.Duration
}

func (p *timedProvider) NewWaiter() (verbs.Waiter, error) {
	w, err := p.Provider.NewWaiter()
	if err != nil {
		return nil, err
	}
	t := &timedWaiter{Waiter: w}
	p.waiters = append(p.waiters, t)
	return t, nil
}

func (w *timedWaiter) Wait(deadline time.Time) {
	w.mu.Lock()
	if w.on && !w.woke.IsZero() {
		w.turns = append(w.turns, time.Since(w.woke))
	}
	w.mu.Unlock()
	w.Waiter.Wait(deadline)
	w.mu.Lock()
	w.woke = time.Now()
	w.mu.Unlock()
}

func (p *timedProvider) watch(d time.Duration) {
	set := func(on bool) {
		for _, w := range p.waiters {
			w.mu.Lock()
			w.on = on
			w.mu.Unlock()
		}
	}
	set(true)
	time.Sleep(d)
	set(false)
}

// pass is the time of one turn of everybody: of the median turns, and of the longest ones.
func (p *timedProvider) pass() (median, worst time.Duration) {
	for _, w := range p.waiters {
		w.mu.Lock()
		if n := len(w.turns); n > 0 {
			slices.Sort(w.turns)
			median += w.turns[n/2]
			worst += w.turns[n-1]
		}
		w.mu.Unlock()
	}
	return median, worst
}
