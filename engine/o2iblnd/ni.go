package o2iblnd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/o2iblnd/pool"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// ni is one LNet interface of ours: a NID on a device. connd owns it, but for the atomics and the pools.
type ni struct {
	nid         wire.NID
	incarnation uint64
	dev         *device
	tun         atomic.Pointer[tunables.NI]
	txs         []*pool.Set[*tx] // by CPT
	regs        []*regSet        // by CPT
	down        bool             // as LNet was told
	shutdown    bool
	peers       int // not yet destroyed

	cksumErrors                                          atomic.Uint64
	unpackErrors                                         unpackCounts
	rejectsSent, rejectsReceived                         rejectCounts
	connectsActive, connectsPassive, established, failed atomic.Uint64
	races, stale, reconnects                             atomic.Uint64
	npeers, nconns                                       atomic.Int32
}

// NIConfig of an NI to bring up.
type NIConfig struct {
	NID      wire.NID
	Addr     netip.Addr // address of the interface; the listener is there
	Tunables tunables.NI
}

// AddNI brings up an NI: its device if it is the first there, its pools, and from then on connections.
func (l *LND) AddNI(ctx context.Context, cfg NIConfig) error {
	return l.connd.call(ctx, func(done func(error)) { done(l.connd.addNI(cfg)) })
}

// DelNI takes an NI down: peers are deleted, connections drained, pools freed (spec o2iblnd 7.3).
func (l *LND) DelNI(ctx context.Context, nid wire.NID) error {
	return l.connd.call(ctx, func(done func(error)) { l.connd.delNI(nid, done) })
}

// Incarnation of an NI, for LNet and for tests; 0 when there is none.
func (l *LND) Incarnation(nid wire.NID) uint64 {
	if n := l.ni(nid); n != nil {
		return n.incarnation
	}
	return 0
}

// Expect says that an NI is coming up, or comes back: until AddNI its peers are asked to try later instead of
// being refused for good (spec o2iblnd 2.5, EARLY).
func (l *LND) Expect(nid wire.NID) { l.expected.Store(nid, true) }

func (d *connd) addNI(cfg NIConfig) error {
	if d.lnd.ni(cfg.NID) != nil {
		return fmt.Errorf("NI %v is there already", cfg.NID)
	}
	service := d.lnd.global.Load().Service
	var dev *device
	for _, v := range d.devices {
		if v.addr == cfg.Addr {
			dev = v
		}
	}
	if dev == nil {
		dev = &device{addr: cfg.Addr, service: service}
		h, err := d.openHCA(dev)
		if err != nil {
			return fmt.Errorf("NI %v: %w", cfg.NID, err)
		}
		dev.hdev.Store(h)
		dev.portDown.Store(h.info.State == verbs.PortDown)
		d.devices = append(d.devices, dev)
	}
	n := &ni{nid: cfg.NID, dev: dev, incarnation: d.newIncarnation()}
	n.tun.Store(&cfg.Tunables)
	if err := d.newPools(n, &cfg.Tunables); err != nil {
		n.closePools(d.lnd.now())
		if dev.nets == 0 {
			d.dropDevice(dev, d.buried(dev.hdev.Load()))
		}
		return fmt.Errorf("NI %v: %w", cfg.NID, err)
	}
	dev.nets++
	all := append(append([]*ni(nil), *d.lnd.nis.Load()...), n)
	d.lnd.nis.Store(&all)
	d.lnd.expected.Delete(n.nid)
	d.lnd.upper.NIStatus(n.nid, true)
	d.tellStatus(dev, "the port is down")
	return nil
}

// newPools makes the pool sets of an NI, registrations first (spec o2iblnd 7.2).
func (d *connd) newPools(n *ni, t *tunables.NI) error {
	size := tunables.TxPoolSize(t.NTX, d.lnd.cpts)
	for cpt := range d.lnd.cpts {
		regs, err := d.lnd.newRegSet(n, cpt, t)
		if err != nil {
			return fmt.Errorf("registration pool: %w", err)
		}
		n.regs = append(n.regs, regs)
		set, err := d.lnd.newTxSet(n, cpt, size)
		if err != nil {
			return fmt.Errorf("transmit pool: %w", err)
		}
		n.txs = append(n.txs, set)
	}
	return nil
}

func (n *ni) closePools(now time.Time) {
	for _, t := range n.txs {
		t.Close()
	}
	for _, r := range n.regs {
		r.close(now)
	}
}

// failPools takes the pools out of use with the HCA that they were made on.
func (n *ni) failPools(now time.Time) {
	for _, t := range n.txs {
		t.Fail()
	}
	for _, r := range n.regs {
		r.fail(now)
	}
}

// newIncarnation is the wall clock in microseconds, never 0 and never twice the same.
func (d *connd) newIncarnation() uint64 {
	d.lastIncarnation = max(uint64(d.lnd.now().UnixMicro()), d.lastIncarnation+1)
	return d.lastIncarnation
}

func (d *connd) delNI(nid wire.NID, done func(error)) {
	n := d.lnd.ni(nid)
	if n == nil || n.shutdown {
		done(fmt.Errorf("no NI %v", nid))
		return
	}
	n.shutdown = true
	var rest []*ni
	for _, m := range *d.lnd.nis.Load() {
		if m != n {
			rest = append(rest, m)
		}
	}
	d.lnd.nis.Store(&rest)
	for _, p := range d.peersOf(n, wire.AnyNID) {
		d.delPeer(p, orderly("the NI is shut down"))
	}
	d.dying = append(d.dying, dyingNI{n, done})
	d.reapNIs()
}

// dyingNI is an NI that waits for its last peer.
type dyingNI struct {
	ni   *ni
	done func(error)
}

// reapNIs ends the NIs whose peers are all gone.
func (d *connd) reapNIs() {
	kept := d.dying[:0]
	for _, x := range d.dying {
		if x.ni.peers > 0 {
			kept = append(kept, x)
			continue
		}
		x.ni.closePools(d.now)
		x.ni.dev.nets--
		dev := x.ni.dev
		if dev.nets > 0 {
			x.done(nil)
			continue
		}
		d.dropDevice(dev, x.done)
	}
	d.dying = kept
}

// dropDevice ends a device without NIs.
func (d *connd) dropDevice(dev *device, done func(error)) {
	d.devices = slices.DeleteFunc(d.devices, func(v *device) bool { return v == dev })
	d.failedDevs = slices.DeleteFunc(d.failedDevs, func(v *device) bool { return v == dev })
	if h := dev.hdev.Load(); h != nil {
		d.retire(h, done)
	} else {
		done(nil)
	}
}

// newTxSet makes the pool set of transmits of an NI on one CPT (spec o2iblnd 6.2).
func (l *LND) newTxSet(n *ni, cpt, size int) (*pool.Set[*tx], error) {
	create := func(size int) ([]*tx, error) { return l.newTxs(n, size) }
	return pool.New(fmt.Sprintf("TX %v %d", n.nid, cpt), size, create, l.freeTxs, l.now())
}

// newTxs makes the transmits of one pool, with their message slots registered.
func (l *LND) newTxs(n *ni, size int) ([]*tx, error) {
	h := n.dev.hdev.Load()
	if h == nil {
		return nil, fmt.Errorf("no HCA at %v", n.dev.addr)
	}
	var txs []*tx
	for left := size; left > 0; {
		// Powers of two, so that nothing of a buffer is wasted.
		k := 1
		for k*2 <= left && k*2*wire.MsgSize <= arena.SlabSize {
			k *= 2
		}
		mem, err := l.slots.Alloc(k * wire.MsgSize)
		if err != nil {
			l.freeSlots(txs)
			return nil, err
		}
		mr, err := h.region(mem.Slab())
		if err != nil {
			l.slots.Free(mem)
			l.freeSlots(txs)
			return nil, err
		}
		for i := range k {
			t := &tx{hdev: h, key: mr.LKey(), slot: mem.Slice(i*wire.MsgSize, wire.MsgSize), done: true}
			if i == 0 {
				t.mem = mem
			}
			txs = append(txs, t)
		}
		left -= k
	}
	l.txs.add(txs)
	return txs, nil
}

// freeTxs gives a pool's memory back.
func (l *LND) freeTxs(txs []*tx) {
	l.txs.remove(txs)
	l.freeSlots(txs)
}

func (l *LND) freeSlots(txs []*tx) {
	for _, t := range txs {
		if t.mem.Slab() != nil {
			l.slots.Free(t.mem)
		}
	}
}

// newAccount is the credit account of a conn as it was negotiated.
func newAccount(g *tunables.Global, n *tunables.NI, e *establishment) credits.Conn {
	hw := credits.HighWater(e.version, e.depth, n.PeerCreditsHiw, n.PeerCredits)
	return credits.New(e.version, e.depth, hw, credits.ConcurrentSends(e.version, n.ConcurrentSends))
}
