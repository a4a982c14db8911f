// Package demo is the fabric that a newcomer sees with serve --demo: further engine nodes, each a child
// process of the same binary with a loopback address of its own, and a mixed, bounded load among all of
// them (the appliance's own node included).
//
// Run makes one node's share of the load, in one goroutine and the few that wait for answers. Supervisor
// owns the child processes; its state is under one mutex. Node processes speak to their parent by two
// pipes only: a Spec comes in on stdin, whose end is also the order to stop, and one line goes out on
// stdout, ready or the error (see Serve).
package demo

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"o2ibd/engine/wire"
)

// Node is the engine node that the load is put on. Each call waits for the answer: a ping's reply, a
// PUT's ACK, a GET's data; Send is a PUT without ACK and waits for the local end only. Calls come from
// several goroutines.
type Node interface {
	NID() wire.NID
	Ping(ctx context.Context, to wire.NID) error
	Put(ctx context.Context, to wire.NID, n int) error
	Send(ctx context.Context, to wire.NID, n int) error
	Get(ctx context.Context, to wire.NID, n int) error
}

// Load bounds what one node sends.
type Load struct {
	PerSecond float64 // operations, on average over a swell
	InFlight  int     // operations that may wait for their answers at once
	Burst     int     // operations of a burst, all to one peer and of BurstSize bytes
	BurstSize int     // bytes
	Train     int     // small messages of a train, all to one peer, one way and TrainGap apart
	TrainGap  time.Duration
	Gap       time.Duration // from a burst to a train, and from that to a burst
	Timeout   time.Duration // of one operation
}

// DefaultLoad keeps five nodes together at some tens of operations and a few MiB a second. A burst is
// larger than the default peer_credits, so that queues are seen to fill. A train has no answers that would
// carry credits back: they are seen to run down and to come back at the high-water mark.
var DefaultLoad = Load{
	PerSecond: 4, InFlight: 48,
	Burst: 16, BurstSize: 128 << 10, Train: 60, TrainGap: 150 * time.Millisecond, Gap: 5 * time.Second,
	Timeout: 20 * time.Second,
}

const (
	warmUp     = 2 * time.Second // until nodes that start together are all up
	smallMax   = 3 << 10         // bytes of a payload that travels inside its message
	swell      = 40.0            // seconds from one high of the rate to the next
	quietFirst = time.Second     // pause towards a peer that failed once
	quietMost  = 15 * time.Second
)

// Run puts the load on n until ctx ends, and returns when every operation has ended. A peer that does not
// answer is left alone for a while that grows with each failure.
func Run(ctx context.Context, n Node, peers []wire.NID, load Load) {
	if len(peers) == 0 {
		return
	}
	g := &generator{
		node: n, load: load,
		rnd:   rand.New(rand.NewPCG(uint64(n.NID()), 0x6f326962)),
		slots: make(chan struct{}, load.InFlight),
	}
	for _, nid := range peers {
		g.peers = append(g.peers, &peer{nid: nid})
	}
	g.run(ctx)
	g.running.Wait()
}

type generator struct {
	node    Node
	load    Load
	rnd     *rand.Rand // of the loop only
	peers   []*peer
	slots   chan struct{}
	running sync.WaitGroup
}

// peer remembers when a peer may be tried again.
type peer struct {
	nid wire.NID

	mu    sync.Mutex
	until time.Time
	pause time.Duration
}

func (g *generator) run(ctx context.Context) {
	start := time.Now()
	special := start.Add(warmUp + time.Duration(g.rnd.Int64N(int64(g.load.Gap))))
	specials := []func(context.Context, time.Time){g.burst, g.train}
	timer := time.NewTimer(warmUp + g.gap(0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		if now.After(special) {
			specials[0](ctx, now)
			specials[0], specials[1] = specials[1], specials[0]
			special = now.Add(g.load.Gap)
		} else if p := g.pick(now); p != nil {
			g.start(ctx, p, g.operation())
		}
		timer.Reset(g.gap(now.Sub(start)))
	}
}

// gap is the time to the next operation: exponential around a rate that swells and ebbs.
func (g *generator) gap(elapsed time.Duration) time.Duration {
	rate := g.load.PerSecond * (1 + 0.8*math.Sin(2*math.Pi*elapsed.Seconds()/swell))
	return time.Duration(min(g.rnd.ExpFloat64()/rate, 5) * float64(time.Second))
}

// operation draws what to do: small PUTs mostly, large PUTs and GETs up to 1 MiB, now and then a ping.
func (g *generator) operation() func(context.Context, wire.NID) error {
	size := int(math.Exp2(g.rnd.Float64() * math.Log2(wire.MaxPayload)))
	switch x := g.rnd.Float64(); {
	case x < 0.10:
		return g.node.Ping
	case x < 0.55:
		return g.put(1 + g.rnd.IntN(smallMax))
	case x < 0.75:
		return g.put(size)
	default:
		return func(ctx context.Context, to wire.NID) error { return g.node.Get(ctx, to, size) }
	}
}

func (g *generator) put(n int) func(context.Context, wire.NID) error {
	return func(ctx context.Context, to wire.NID) error { return g.node.Put(ctx, to, n) }
}

func (g *generator) burst(ctx context.Context, now time.Time) {
	p := g.pick(now)
	if p == nil {
		return
	}
	for range g.load.Burst {
		g.start(ctx, p, g.put(g.load.BurstSize))
	}
}

// train sends its messages beside the other operations.
func (g *generator) train(ctx context.Context, now time.Time) {
	p := g.pick(now)
	if p == nil {
		return
	}
	size := 1 + g.rnd.IntN(smallMax)
	g.start(ctx, p, func(ctx context.Context, to wire.NID) error {
		tick := time.NewTicker(g.load.TrainGap)
		defer tick.Stop()
		for range g.load.Train {
			if err := g.node.Send(ctx, to, size); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
}

// pick draws a peer that may be tried now, nil when there is none.
func (g *generator) pick(now time.Time) *peer {
	first := g.rnd.IntN(len(g.peers))
	for i := range g.peers {
		if p := g.peers[(first+i)%len(g.peers)]; p.open(now) {
			return p
		}
	}
	return nil
}

// start runs one operation, or drops it when as many wait as may.
func (g *generator) start(ctx context.Context, p *peer, do func(context.Context, wire.NID) error) {
	select {
	case g.slots <- struct{}{}:
	default:
		return
	}
	g.running.Go(func() {
		defer func() { <-g.slots }()
		ctx, cancel := context.WithTimeout(ctx, g.load.Timeout)
		defer cancel()
		p.note(do(ctx, p.nid))
	})
}

func (p *peer) open(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.until)
}

// note takes an operation's outcome. Failures while the peer is left alone already are of the same cause.
func (p *peer) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		p.pause, p.until = 0, time.Time{}
	case !now.Before(p.until):
		p.pause = min(max(2*p.pause, quietFirst), quietMost)
		p.until = now.Add(p.pause)
	}
}
