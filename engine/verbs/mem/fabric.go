// Package mem is an in-memory fabric: a verbs.Provider for simulation and for benchmarks of the engine
// alone. It behaves as a reliable HCA does: sends retry while no receive is posted, a write that the peer
// may not do fails at the one who asked.
//
// Immediate, work is carried out inside Post and events are there at once; any goroutine may call.
// Stepped, nothing happens until Step does one thing: which of those that could happen is for the given
// random source to choose, while each queue pair's and each id's own order holds. Driven from one
// goroutine, the same seed replays the same run.
//
// Faults are methods of Fabric: drop the ready-to-use, hold an id's events, fail the n-th call of a kind,
// cut a link, let a node vanish, lose and return a device.
package mem

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// Options of a fabric.
type Options struct {
	Stepped bool
	Rand    *rand.Rand        // chooses among what could happen; nil: the oldest
	Trace   func(what string) // hears of every step
	// PadPrivate pads private data with zeros to what InfiniBand's messages hold.
	PadPrivate bool
}

// Fabric joins nodes. One lock guards all of it.
type Fabric struct {
	opt Options

	mu        sync.Mutex
	nodes     map[netip.Addr]*node
	listeners map[netip.AddrPort]*id
	bound     map[netip.AddrPort]bool
	lanes     []lane // what could move, in the order of its making
	dropRTU   int
	qpNum     uint32
	nextPort  uint16
}

// lane is something whose work is done one after the other.
type lane interface {
	ready() bool
	step() string // what was done
	dead() bool
}

// NewFabric makes an empty fabric.
func NewFabric(opt Options) *Fabric {
	return &Fabric{opt: opt, nodes: make(map[netip.Addr]*node), listeners: make(map[netip.AddrPort]*id), bound: make(map[netip.AddrPort]bool), nextPort: 32768}
}

// Step does one thing, if there is one to do.
func (f *Fabric) Step() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prune()
	n := 0
	for _, l := range f.lanes {
		if l.ready() {
			n++
		}
	}
	if n == 0 {
		return false
	}
	pick := 0
	if f.opt.Rand != nil {
		pick = f.opt.Rand.IntN(n)
	}
	for _, l := range f.lanes {
		if !l.ready() {
			continue
		}
		if pick == 0 {
			what := l.step()
			if f.opt.Trace != nil {
				f.opt.Trace(what)
			}
			return true
		}
		pick--
	}
	return false
}

// prune forgets the lanes of what was closed.
func (f *Fabric) prune() {
	kept := f.lanes[:0]
	for _, l := range f.lanes {
		if !l.dead() {
			kept = append(kept, l)
		}
	}
	clear(f.lanes[len(kept):])
	f.lanes = kept
}

func (f *Fabric) add(l lane) {
	if len(f.lanes) == cap(f.lanes) {
		f.prune()
	}
	f.lanes = append(f.lanes, l)
}

// kick does the work of a lane at once where the fabric is not stepped.
func (f *Fabric) kick(l lane) {
	if f.opt.Stepped {
		return
	}
	for l.ready() {
		l.step()
	}
}

// Calls that can be made to fail.
type Call int

const (
	CallPost Call = iota
	CallRegister
	CallCreateCQ
	CallCreateQP
	calls
)

var errInjected = errors.New("failed as the test asked")

// node is one provider.
type node struct {
	f        *Fabric
	keys     *soft.Table
	devices  []*device
	vanished bool
	failIn   [calls]int // 0: never; n: the n-th call from now
}

// fails says whether this call is the one to fail; mu is held.
func (n *node) fails(c Call) error {
	if n.failIn[c] == 0 {
		return nil
	}
	if n.failIn[c]--; n.failIn[c] > 0 {
		return nil
	}
	return errInjected
}

// Provider adds a node with these addresses, each a device.
func (f *Fabric) Provider(addrs ...netip.Addr) verbs.Provider {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := &node{f: f, keys: soft.NewTable()}
	for i, a := range addrs {
		d := &device{n: n, info: verbs.DeviceInfo{
			Name: fmt.Sprintf("mem%d", i), Interface: fmt.Sprintf("mem%d", i), LinkLayer: "memory", Addr: a, Port: 1, State: verbs.PortActive, MTU: 4096,
			Caps: verbs.Caps{MaxSGE: verbs.MaxSGE, MemoryWindow: true, SendInv: true, Read: true, RNRRetry: true, RemoteAck: true},
		}}
		n.devices = append(n.devices, d)
		f.nodes[a] = n
	}
	return n
}

func (f *Fabric) node(a netip.Addr) *node {
	n := f.nodes[a]
	if n == nil {
		panic(fmt.Sprintf("mem: no node at %v", a))
	}
	return n
}

// DropRTU loses the ready-to-use of the next n connections: the passive side is not told that it is
// established, but gets EventCommEst with the first message.
func (f *Fabric) DropRTU(n int) {
	f.mu.Lock()
	f.dropRTU = n
	f.mu.Unlock()
}

// Hold keeps the events of an id back, until it is called with false.
func (f *Fabric) Hold(i verbs.ID, hold bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := i.(*id)
	x.held = hold
	f.kick(x)
}

// FailNth makes the n-th call of a kind from now fail at the node with this address.
func (f *Fabric) FailNth(a netip.Addr, c Call, n int) {
	f.mu.Lock()
	f.node(a).failIn[c] = n
	f.mu.Unlock()
}

// Cut breaks the connections between two addresses, as if the cable were out for longer than the retries.
func (f *Fabric) Cut(a, b netip.Addr) {
	f.breakOff(func(x, y netip.Addr) bool { return x == a && y == b || x == b && y == a })
}

// Vanish takes a node away without a word: its peers' work fails, and it hears nothing of them.
func (f *Fabric) Vanish(a netip.Addr) {
	f.mu.Lock()
	f.node(a).vanished = true
	f.mu.Unlock()
	f.breakOff(func(x, y netip.Addr) bool { return y == a })
}

// breakOff fails the queue pairs of the connections from x to y that which selects.
func (f *Fabric) breakOff(which func(x, y netip.Addr) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range append([]lane(nil), f.lanes...) {
		if q, ok := l.(*qp); ok && q.state == qpReady && which(q.id.local.Addr(), q.id.remote.Addr()) {
			q.fail(verbs.WCRetryExceeded, errors.New("the peer does not answer"))
		}
	}
}

// LoseDevice reports the device at an address as failed and removed; ReturnDevice as there again.
func (f *Fabric) LoseDevice(a netip.Addr) {
	f.deviceEvents(a, verbs.PortDown, verbs.AsyncPortError, verbs.AsyncDeviceFatal)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range append([]lane(nil), f.lanes...) {
		if x, ok := l.(*id); ok && x.local.Addr() == a && !x.closed {
			x.event(verbs.Event{Type: verbs.EventDeviceRemoval})
		}
	}
}

// ReturnDevice brings a lost device back.
func (f *Fabric) ReturnDevice(a netip.Addr) {
	f.deviceEvents(a, verbs.PortActive, verbs.AsyncPortActive)
}

func (f *Fabric) deviceEvents(a netip.Addr, state verbs.PortState, types ...verbs.AsyncType) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.node(a).devices {
		if d.info.Addr == a {
			d.info.State = state
			for _, t := range types {
				d.async = append(d.async, verbs.AsyncEvent{Type: t, Port: 1})
			}
		}
	}
}

func (n *node) Name() string { return "mem" }

func (n *node) Devices() ([]verbs.DeviceInfo, error) {
	var list []verbs.DeviceInfo
	for _, d := range n.devices {
		list = append(list, d.Info())
	}
	return list, nil
}

func (n *node) NewWaiter() (verbs.Waiter, error) { return verbs.NewChanWaiter(), nil }

func (n *node) OpenCM(w verbs.Waiter) (verbs.CM, error) { return &cm{n: n, w: w}, nil }

func (n *node) Close() error { return nil }

// device implements verbs.Device; fabric.mu guards it.
type device struct {
	n     *node
	info  verbs.DeviceInfo
	async []verbs.AsyncEvent
}

func (d *device) Info() verbs.DeviceInfo {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	return d.info
}

func (d *device) AllocPD() (verbs.PD, error) { return &pd{d}, nil }

func (d *device) CreateCQ(_ int, w verbs.Waiter) (verbs.CQ, error) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	if err := d.n.fails(CallCreateCQ); err != nil {
		return nil, err
	}
	return soft.NewCQ(w), nil
}

// Post implements verbs.Device.
func (d *device) Post(batch []verbs.Posting) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	for i := range batch {
		b := &batch[i]
		b.NRecvs, b.NSends, b.Err = 0, 0, d.n.fails(CallPost)
		q := b.QP.(*qp)
		if b.Err == nil {
			b.NRecvs, b.Err = q.postRecvs(b.Recvs)
		}
		if b.Err == nil {
			b.NSends, b.Err = q.postSends(b.Sends)
		}
	}
}

func (d *device) PollAsync(evs []verbs.AsyncEvent) (int, error) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	k := copy(evs, d.async)
	d.async = d.async[k:]
	return k, nil
}

func (d *device) Close() error { return nil }

type pd struct{ d *device }

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	p.d.n.f.mu.Lock()
	err := p.d.n.fails(CallRegister)
	p.d.n.f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return p.d.n.keys.Register(p, mem, access)
}

func (p *pd) AllocMW() (verbs.MW, error) { return p.d.n.keys.Window(p), nil }

func (p *pd) Close() error { return nil }
