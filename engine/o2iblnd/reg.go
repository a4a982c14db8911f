package o2iblnd

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/pool"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
)

// The registration pool (spec o2iblnd 6.3, 6.4): what makes the memory of one RDMA reachable for the peer
// under one remote key. How long that key is good is the exposure:
//
//	transfer  for that RDMA alone: a memory window, bound on the connection's own queue pair with the message
//	          that announces it and invalidated when the peer is done; on an HCA without windows a region that
//	          is registered and deregistered
//	cached    for as long as the buffer is used again and again: a region that stays until a flush
//	device    always: the slab's own region
type exposure string

const (
	exposeTransfer exposure = "transfer"
	exposeCached   exposure = "cached"
	exposeDevice   exposure = "device"
)

// span is a piece of memory that is contiguous.
type span struct {
	slab *arena.Slab
	addr uint64
	n    int
}

func (sp span) mem() []byte {
	off := int(sp.addr - arena.Addr(sp.slab.Mem()))
	return sp.slab.Mem()[off : off+sp.n : off+sp.n]
}

// reg is one registration descriptor: a window, or a region of its own. From take to give it belongs to one
// tx, or, in the cache, to as many as use the same memory.
type reg struct {
	pool.Node
	hdev  *hcaDev
	win   verbs.MW // where the HCA has windows
	bound bool     // a bind of win was posted, and no invalidation has completed

	mr         verbs.MR // without: the region
	at         span
	refs       int
	prev, next *reg // of the cache's unused
}

// key is the remote key, for a window that of the bind to come.
func (r *reg) key() uint32 {
	if r.win != nil {
		return r.win.RKey()
	}
	return r.mr.RKey()
}

// close gives back what makes memory reachable. It waits until nothing is placed there any more.
func (r *reg) close() error {
	var errs []error
	if r.win != nil {
		errs = append(errs, r.win.Close())
	}
	if r.mr != nil {
		errs = append(errs, r.mr.Close())
	}
	r.win, r.mr, r.bound = nil, nil, false
	return errors.Join(errs...)
}

// regSet is the pool set of registration descriptors of an NI on one CPT, with the cache. Its schedulers
// share it.
type regSet struct {
	ni     *ni
	expose exposure
	flush  int // unused regions in the cache that are too many
	set    *pool.Set[*reg]

	mu     sync.Mutex
	cache  map[span]*reg
	unused reg // head of the ring of those without users, the oldest first
	idle   int

	maps, hits, flushes, failures atomic.Uint64
}

func (l *LND) newRegSet(n *ni, cpt int, t *tunables.NI) (*regSet, error) {
	rs := &regSet{ni: n, expose: exposure(t.Exposure), flush: tunables.FMRFlushTrigger(t.FMRFlushTrigger, l.cpts), cache: make(map[span]*reg)}
	rs.unused.prev, rs.unused.next = &rs.unused, &rs.unused
	var err error
	rs.set, err = pool.New(fmt.Sprintf("FMR %v %d", n.nid, cpt), tunables.FMRPoolSize(t.FMRPoolSize, l.cpts), rs.create, rs.destroy, l.now())
	return rs, err
}

// create makes the descriptors of one pool, with their windows.
func (rs *regSet) create(size int) ([]*reg, error) {
	h := rs.ni.dev.hdev.Load()
	if h == nil {
		return nil, fmt.Errorf("no HCA at %v", rs.ni.dev.addr)
	}
	all := make([]*reg, size)
	for i := range all {
		all[i] = &reg{hdev: h}
		if rs.expose != exposeTransfer || !h.info.Caps.MemoryWindow {
			continue
		}
		var err error
		if all[i].win, err = h.pd.AllocMW(); err != nil {
			rs.destroy(all[:i])
			return nil, fmt.Errorf("memory window on %s: %w", h.info.Name, err)
		}
	}
	return all, nil
}

func (rs *regSet) destroy(all []*reg) {
	for _, r := range all {
		if err := r.close(); err != nil {
			r.hdev.lnd.fault(r.hdev, "give a registration back", err)
		}
	}
}

// errOtherHCA is the answer to a conn on an HCA that has been replaced.
var errOtherHCA = errors.New("the connection's HCA is not the interface's any more")

// RegCounts are what registrations have done since the NI is up.
type RegCounts struct{ Maps, Hits, Flushes, Failures uint64 }

func (rs *regSet) counts() RegCounts {
	return RegCounts{rs.maps.Load(), rs.hits.Load(), rs.flushes.Load(), rs.failures.Load()}
}

// take makes sp reachable for the peer of a conn on h. A window is still to be bound.
func (rs *regSet) take(now time.Time, h *hcaDev, sp span) (*reg, error) {
	r, err := rs.find(now, h, sp)
	if err != nil {
		rs.failures.Add(1)
		return nil, err
	}
	rs.maps.Add(1)
	return r, nil
}

func (rs *regSet) find(now time.Time, h *hcaDev, sp span) (*reg, error) {
	if rs.expose == exposeCached {
		if r := rs.hit(h, sp); r != nil {
			rs.hits.Add(1)
			return r, nil
		}
	}
	r, err := rs.alloc(now)
	if err != nil {
		return nil, err
	}
	if r.hdev != h {
		rs.set.Free(now, r)
		return nil, errOtherHCA
	}
	windows := rs.expose == exposeTransfer && h.info.Caps.MemoryWindow
	switch {
	case windows && r.win == nil: // lost with its conn
		r.win, err = h.pd.AllocMW()
	case !windows:
		r.mr, err = h.pd.RegMR(sp.mem(), verbs.LocalWrite|verbs.RemoteWrite)
	}
	if err != nil {
		rs.set.Free(now, r)
		return nil, fmt.Errorf("make %d bytes reachable on %s: %w", sp.n, h.info.Name, err)
	}
	r.at, r.refs = sp, 1
	if rs.expose == exposeCached {
		return rs.keep(now, r), nil
	}
	return r, nil
}

// alloc takes a descriptor. When there is none, the unused of the cache go.
func (rs *regSet) alloc(now time.Time) (*reg, error) {
	r, err := rs.set.Alloc(now)
	if err == nil || rs.expose != exposeCached {
		return r, err
	}
	rs.mu.Lock()
	gone := rs.evict(rs.idle)
	rs.mu.Unlock()
	if len(gone) == 0 {
		return nil, err
	}
	rs.flushes.Add(1)
	rs.drop(now, gone)
	return rs.set.Alloc(now)
}

// hit finds a region that covers just sp.
func (rs *regSet) hit(h *hcaDev, sp span) *reg {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.cache[sp]
	if r == nil || r.hdev != h {
		return nil
	}
	if r.refs == 0 {
		rs.unlink(r)
	}
	r.refs++
	return r
}

// keep puts a new region into the cache, unless another scheduler was first.
func (rs *regSet) keep(now time.Time, r *reg) *reg {
	rs.mu.Lock()
	other := rs.cache[r.at]
	if other == nil || other.hdev != r.hdev {
		rs.cache[r.at] = r
		rs.mu.Unlock()
		return r
	}
	if other.refs == 0 {
		rs.unlink(other)
	}
	other.refs++
	rs.mu.Unlock()
	rs.drop(now, []*reg{r})
	return other
}

// give ends one use. Of a window the caller has seen the invalidation complete, or the queue pair drained.
func (rs *regSet) give(now time.Time, r *reg) {
	if r.bound {
		// It went down with its queue pair: the next one is new.
		if err := r.close(); err != nil {
			r.hdev.lnd.fault(r.hdev, "close a memory window", err)
		}
	}
	if r.win != nil || r.mr == nil {
		rs.set.Free(now, r)
		return
	}
	rs.mu.Lock()
	r.refs--
	var gone []*reg
	switch {
	case r.refs > 0:
	case rs.cache[r.at] != r:
		gone = []*reg{r}
	default:
		last := rs.unused.prev
		r.prev, r.next, last.next, rs.unused.prev = last, &rs.unused, r, r
		if rs.idle++; rs.idle > rs.flush {
			gone = rs.evict(rs.idle)
			rs.flushes.Add(1)
		}
	}
	rs.mu.Unlock()
	rs.drop(now, gone)
}

func (rs *regSet) unlink(r *reg) {
	r.prev.next, r.next.prev = r.next, r.prev
	r.prev, r.next = nil, nil
	rs.idle--
}

// evict takes up to n unused regions out of the cache, the oldest first.
func (rs *regSet) evict(n int) []*reg {
	var gone []*reg
	for ; n > 0 && rs.idle > 0; n-- {
		r := rs.unused.next
		rs.unlink(r)
		delete(rs.cache, r.at)
		gone = append(gone, r)
	}
	return gone
}

// drop deregisters regions and gives their descriptors back.
func (rs *regSet) drop(now time.Time, gone []*reg) {
	rs.destroy(gone)
	for _, r := range gone {
		rs.set.Free(now, r)
	}
}

// fail takes everything out of use: its HCA is not the NI's any more. What is in use goes with its tx.
func (rs *regSet) fail(now time.Time) {
	rs.mu.Lock()
	gone := rs.evict(rs.idle)
	clear(rs.cache)
	rs.mu.Unlock()
	rs.drop(now, gone)
	rs.set.Fail()
}

// close ends the set; nothing is in use.
func (rs *regSet) close(now time.Time) {
	rs.mu.Lock()
	gone := rs.evict(rs.idle)
	rs.mu.Unlock()
	rs.drop(now, gone)
	rs.set.Close()
}
