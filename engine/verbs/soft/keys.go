package soft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"o2ibd/engine/verbs"
)

// Why a peer may not have what it asks for. Errors of Remote wrap one of these.
var (
	ErrKey    = errors.New("the key is not valid")
	ErrOwner  = errors.New("the key is not this connection's")
	ErrBounds = errors.New("it is outside of what the key covers")
	ErrAccess = errors.New("the key does not allow it")
)

// Table holds every region and window of one provider. A key (STag) is an index, scrambled so that keys
// of two providers do not fit each other, and 8 bits of generation, so that an old key does not fit what
// took its place. Reading takes no lock.
type Table struct {
	salt uint32
	mu   sync.Mutex
	rng  *rand.Rand
	free []uint32 // last key of each index that is free, not scrambled
	all  atomic.Pointer[[]*region]

	placers map[*Placer]struct{}
	left    sync.Cond    // a placer left what is being closed
	closing atomic.Int32 // regions that wait for it
}

// Placer is one connection's place where bytes of its peer go into memory, one region at a time. Closing a
// region waits until no placer is in it.
type Placer struct {
	table   *Table
	in      atomic.Pointer[region]
	reading atomic.Int32 // reads of the peer that are still to be answered, of whatever regions
	cut     func()
}

// NewPlacer makes one. cut has the placer leave its region soon, by ending the connection; it is called
// without locks. nil: it leaves soon by itself.
func (t *Table) NewPlacer(cut func()) *Placer {
	p := &Placer{table: t, cut: cut}
	t.mu.Lock()
	t.placers[p] = struct{}{}
	t.mu.Unlock()
	return p
}

// Close forgets the placer.
func (p *Placer) Close() {
	p.Done()
	p.table.mu.Lock()
	delete(p.table.placers, p)
	p.table.mu.Unlock()
}

// Reading counts the reads of the peer whose answer is still to be sent: what Remote gave for them is used
// until then.
func (p *Placer) Reading(n int) {
	p.reading.Add(int32(n))
	if n < 0 {
		p.tell()
	}
}

// Done says that what Remote gave is not touched any more.
func (p *Placer) Done() {
	p.in.Store(nil)
	p.tell()
}

// uses says whether the placer may touch r.
func (p *Placer) uses(r *region) bool {
	if in := p.in.Load(); in != nil && (in == r || in.parent.Load() == r) {
		return true
	}
	return p.reading.Load() > 0 && r.readable.Load()
}

func (p *Placer) tell() {
	if p.table.closing.Load() > 0 {
		p.table.mu.Lock()
		p.table.left.Broadcast()
		p.table.mu.Unlock()
	}
}

// region is registered memory, or a window on it. Its key counts while valid.
type region struct {
	table  *Table
	idx    uint32
	key    atomic.Uint32
	valid  atomic.Bool
	pd     verbs.PD
	window bool
	owner  atomic.Uint32          // windows: number of the only queue pair that may use it, 0: none yet
	parent atomic.Pointer[region] // windows: the region that it opens
	bound  binding                // of a window, to be read by its owner alone, with the key pinned

	readable atomic.Bool // it or a window on it was open for reading
}

// binding is what a key gives access to. A window's changes with every bind.
type binding struct {
	mem    []byte
	base   uint64
	access verbs.Access
}

// NewTable makes an empty table whose keys come from rng; nil: from chance.
func NewTable(rng *rand.Rand) *Table {
	if rng == nil {
		rng = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	t := &Table{salt: rng.Uint32(), rng: rng, placers: make(map[*Placer]struct{})}
	t.left.L = &t.mu
	// Index 0 stays empty, so that no region has it.
	all := make([]*region, 1, 64)
	t.all.Store(&all)
	return t
}

func (t *Table) add(r *region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.table = t
	old := *t.all.Load()
	all := make([]*region, len(old), max(len(old)+1, cap(old)))
	copy(all, old)
	if n := len(t.free); n > 0 {
		last := t.free[n-1]
		t.free = t.free[:n-1]
		r.idx = last >> 8
		all[r.idx] = r
		r.key.Store(next(last) ^ t.salt)
	} else {
		r.idx = uint32(len(all))
		all = append(all, r)
		r.key.Store((r.idx<<8 | t.rng.Uint32()&0xff) ^ t.salt)
	}
	t.all.Store(&all)
}

// next is the key of the same index and the generation after.
func next(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// remove ends a region. Who places into it at this moment is cut off first: the memory may be gone as soon
// as this returns.
func (t *Table) remove(r *region) {
	r.valid.Store(false)
	t.closing.Add(1)
	defer t.closing.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.placers {
		if !p.uses(r) {
			continue
		}
		if p.cut != nil {
			t.mu.Unlock()
			p.cut()
			t.mu.Lock()
		}
		for p.uses(r) {
			t.left.Wait()
		}
	}
	old := *t.all.Load()
	all := make([]*region, len(old), cap(old))
	copy(all, old)
	all[r.idx] = nil
	t.free = append(t.free, r.key.Load()^t.salt)
	t.all.Store(&all)
}

// find gives the region of a valid key, or nil.
func (t *Table) find(key uint32) *region {
	all := *t.all.Load()
	idx := (key ^ t.salt) >> 8
	if int(idx) >= len(all) {
		return nil
	}
	if r := all[idx]; r != nil && r.key.Load() == key && r.valid.Load() {
		return r
	}
	return nil
}

// bytes gives the n bytes at addr, or nil when they are not all inside.
func (b *binding) bytes(addr uint64, n int) []byte {
	off := addr - b.base
	if addr < b.base || off > uint64(len(b.mem)) || uint64(n) > uint64(len(b.mem))-off {
		return nil
	}
	return b.mem[off : off+uint64(n) : off+uint64(n)]
}

// Local resolves a local element of a work request on a queue pair of protection domain p.
func (t *Table) Local(p verbs.PD, e verbs.SGE, write bool) ([]byte, error) {
	r := t.find(e.LKey)
	if r == nil || r.window || r.pd != p {
		return nil, fmt.Errorf("local key %#x is not valid here", e.LKey)
	}
	b := &r.bound
	if write && b.access&verbs.LocalWrite == 0 {
		return nil, fmt.Errorf("local key %#x does not allow writing", e.LKey)
	}
	mem := b.bytes(e.Addr, int(e.Length))
	if mem == nil && e.Length > 0 {
		return nil, fmt.Errorf("%d bytes at %#x are outside of the region of local key %#x", e.Length, e.Addr, e.LKey)
	}
	return mem, nil
}

// Remote resolves what a peer asks for on q, a queue pair of protection domain p. The bytes are to be used
// until pl.Done alone; with an error there is nothing to be done.
func (t *Table) Remote(pl *Placer, p verbs.PD, q verbs.QP, key uint32, addr uint64, n int, need verbs.Access) ([]byte, error) {
	r := t.find(key)
	if r == nil {
		return nil, fmt.Errorf("the peer used the key %#x: %w", key, ErrKey)
	}
	// In this order: who ends the key now either sees us in the region, or we see that it ended.
	pl.in.Store(r)
	mem, err := r.reach(p, q, key, addr, n, need)
	if err != nil {
		pl.Done()
	}
	return mem, err
}

func (r *region) reach(p verbs.PD, q verbs.QP, key uint32, addr uint64, n int, need verbs.Access) ([]byte, error) {
	if !r.valid.Load() || r.key.Load() != key {
		return nil, fmt.Errorf("the peer used the key %#x: %w", key, ErrKey)
	}
	if r.pd != p || r.window && r.owner.Load() != q.Num() {
		return nil, fmt.Errorf("the peer used the key %#x: %w", key, ErrOwner)
	}
	if m := r.parent.Load(); m != nil && !m.valid.Load() {
		return nil, fmt.Errorf("the peer used the key %#x: %w", key, ErrKey)
	}
	b := &r.bound
	if b.access&need == 0 {
		return nil, fmt.Errorf("the peer used the key %#x: %w", key, ErrAccess)
	}
	mem := b.bytes(addr, n)
	if mem == nil && n > 0 {
		return nil, fmt.Errorf("the peer used the key %#x for %d bytes at %#x: %w", key, n, addr, ErrBounds)
	}
	return mem, nil
}

// Register makes a region of mem, which lies outside the Go heap.
func (t *Table) Register(p verbs.PD, mem []byte, access verbs.Access) (verbs.MR, error) {
	if len(mem) == 0 {
		return nil, errors.New("register an empty region")
	}
	r := &region{pd: p, bound: binding{mem, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), access}}
	r.readable.Store(access&verbs.RemoteRead != 0)
	t.add(r)
	r.valid.Store(true)
	return (*mr)(r), nil
}

// Window makes a type 2 window that is not bound.
func (t *Table) Window(p verbs.PD) verbs.MW {
	r := &region{pd: p, window: true}
	t.add(r)
	return (*mw)(r)
}

// mr implements verbs.MR.
type mr region

func (m *mr) LKey() uint32 { return m.key.Load() }
func (m *mr) RKey() uint32 { return m.key.Load() }

func (m *mr) Close() error {
	m.table.remove((*region)(m))
	return nil
}

// mw implements verbs.MW. Its key is the one that the next bind makes valid.
type mw region

func (m *mw) RKey() uint32 { return m.key.Load() }

func (m *mw) Close() error {
	m.table.remove((*region)(m))
	return nil
}

// Bind carries out an OpBindMW on q: the window's key becomes valid.
func (t *Table) Bind(p verbs.PD, q verbs.QP, a *verbs.BindMWAttr) error {
	w, ok := a.MW.(*mw)
	if !ok || w.table != t {
		return errors.New("bind a window of another provider")
	}
	m, ok := a.MR.(*mr)
	if !ok || m.table != t || !m.valid.Load() || m.pd != p || w.pd != p {
		return errors.New("bind to a region that is not valid here")
	}
	b := &m.bound
	mem := b.bytes(a.Addr, int(a.Length))
	switch {
	case b.access&verbs.BindMW == 0:
		return errors.New("bind to a region that does not allow windows")
	case mem == nil:
		return fmt.Errorf("bind %d bytes at %#x outside of the region", a.Length, a.Addr)
	case a.Access&verbs.RemoteWrite != 0 && b.access&verbs.LocalWrite == 0:
		return errors.New("bind for writing to a region that does not allow it")
	case w.valid.Load():
		return errors.New("bind a window that is bound: invalidate it first")
	}
	if a.Access&verbs.RemoteRead != 0 {
		(*region)(m).readable.Store(true)
		w.readable.Store(true)
	}
	w.bound = binding{mem, a.Addr, a.Access}
	w.parent.Store((*region)(m))
	w.owner.Store(q.Num())
	w.valid.Store(true)
	return nil
}

// Invalidate ends a window's key; the next bind has another. pl is the placer of q, the only one that the
// window lets in: if it is inside, the peer writes with a key that it should be done with.
func (t *Table) Invalidate(pl *Placer, q verbs.QP, key uint32) error {
	r := t.find(key)
	if r == nil || !r.window {
		return fmt.Errorf("key %#x is no bound window", key)
	}
	if r.owner.Load() != q.Num() {
		return fmt.Errorf("key %#x is bound on another connection", key)
	}
	r.valid.Store(false)
	if pl.in.Load() == r {
		return fmt.Errorf("key %#x: the peer still writes with it", key)
	}
	r.key.Store(next(r.key.Load()^t.salt) ^ t.salt)
	return nil
}
