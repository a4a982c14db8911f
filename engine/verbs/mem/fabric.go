// Package mem is an in-memory fabric: a verbs.Provider for simulation and for benchmarks of the engine
// alone (spec o2iblnd, appendix C). It behaves as a reliable HCA does: sends wait while no receive is
// posted, a write that the peer may not do fails at the one who asked, a node that is gone is noticed by
// whoever sends to it.
//
// Immediate, work is carried out inside Post and events are there at once; any goroutine may call.
// Stepped, nothing happens until Step does one thing: which of those that could happen is for the given
// random source to choose, while the order of each lane holds. A lane is an id's events, a queue pair's
// send queue, or the completions of one of its two queues. Driven from one goroutine, the same seed
// replays the same run.
//
// Faults are methods of Fabric (faults.go). One lock guards the whole fabric, all but the completion
// queues.
package mem

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// Options of a fabric.
type Options struct {
	Stepped bool
	Rand    *rand.Rand        // chooses among what could happen; nil: in turn
	Trace   func(what string) // hears of everything that is done; it must not call the fabric
	// PadPrivate pads private data with zeros to what InfiniBand's messages hold.
	PadPrivate bool
	NoWindows  bool // devices without memory windows
	Bonded     bool // every address is a bond's, for SwitchDevice
}

// Fabric joins nodes.
type Fabric struct {
	opt Options

	mu        sync.Mutex
	nodes     map[netip.Addr]*node
	listeners map[netip.AddrPort]*id
	bound     map[netip.AddrPort]int // how many ids hold a local address
	ids       []*id                  // those that are not closed
	moving    []lane                 // stepped: those that could take a step
	waiting   []*qp                  // those whose send at the head found no receive; some no longer wait
	dropRTU   int
	stale     int
	qpNum     uint32
	nextPort  uint16
}

// NewFabric makes an empty fabric.
func NewFabric(opt Options) *Fabric {
	return &Fabric{opt: opt, nodes: make(map[netip.Addr]*node), listeners: make(map[netip.AddrPort]*id), bound: make(map[netip.AddrPort]int), nextPort: firstPort}
}

// firstPort of those that are given to ids without one of their own.
const firstPort = 32768

// Provider adds a node with these addresses, each a device.
func (f *Fabric) Provider(addrs ...netip.Addr) verbs.Provider {
	f.mu.Lock()
	defer f.mu.Unlock()
	rng := f.opt.Rand
	if rng != nil { // a source of its own: its calls are no steps
		rng = rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
	}
	n := &node{f: f, keys: soft.NewTable(rng)}
	n.placer = n.keys.NewPlacer(nil)
	for i, a := range addrs {
		n.devices = append(n.devices, newDevice(n, i, a))
		f.nodes[a] = n
	}
	return n
}

// lane is something whose work is done one after the other.
type lane interface {
	ready() bool
	step() // does one thing
	isMoving() *bool
}

// moves is the part that all lanes have: whether it is in Fabric.moving.
type moves bool

func (m *moves) isMoving() *bool { return (*bool)(m) }

// kick is called whenever a lane may have become ready. Where the fabric is not stepped, its work is done
// at once.
func (f *Fabric) kick(l lane) {
	if !f.opt.Stepped {
		for l.ready() {
			l.step()
		}
		return
	}
	if in := l.isMoving(); !*in && l.ready() {
		*in = true
		f.moving = append(f.moving, l)
	}
}

// Step does one thing. False: there is nothing to do, until somebody posts or calls Elapse.
func (f *Fabric) Step() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.moving) > 0 {
		k := 0
		if f.opt.Rand != nil {
			k = f.opt.Rand.IntN(len(f.moving))
		}
		l := f.moving[k]
		done := l.ready()
		if done {
			l.step()
		}
		switch more := l.ready(); {
		case more && f.opt.Rand == nil:
			f.moving = append(slices.Delete(f.moving, k, k+1), l)
		case !more:
			*l.isMoving() = false
			f.moving = slices.Delete(f.moving, k, k+1)
		}
		if done {
			return true
		}
	}
	return false
}

// Elapse lets the time of one retry pass in a stepped fabric: a send that found no receive, and has no
// retry left, fails. False: none counts its retries. (Where the fabric is not stepped a timer does this.)
func (f *Fabric) Elapse() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	waiting := f.waiting
	f.waiting = nil
	any := false
	for _, q := range waiting {
		if !q.waits {
			q.inWaiting = false
			continue
		}
		f.waiting = append(f.waiting, q)
		if q.rnrRetries() == foreverRNR {
			continue
		}
		any = true
		if q.rnr--; q.rnr < 0 {
			q.fail(verbs.WCRNRRetry, errNoReceive)
		}
	}
	return any
}

// trace tells of what is done, if somebody listens.
func (f *Fabric) trace(format string, args ...any) {
	if f.opt.Trace != nil {
		f.opt.Trace(fmt.Sprintf(format, args...))
	}
}
