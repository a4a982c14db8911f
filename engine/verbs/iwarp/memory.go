package iwarp

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"o2ibd/engine/verbs"
)

// keyTable holds every region and window of one provider. A key (STag) is an index, scrambled so that
// keys of two providers do not fit each other, and 8 bits of generation, so that an old key does not fit
// what took its place. Reading takes no lock.
type keyTable struct {
	salt uint32
	mu   sync.Mutex
	free []uint32
	all  atomic.Pointer[[]*region]
}

// region is registered memory, or a window on it. Its key counts while valid.
type region struct {
	table  *keyTable
	idx    uint32
	key    atomic.Uint32
	valid  atomic.Bool
	pd     *pd
	bound  atomic.Pointer[binding]
	window bool
}

// binding is what a key gives access to. A window's changes with every bind.
type binding struct {
	mem    []byte
	base   uint64
	access verbs.Access
	qp     *qp // windows: the only one that may use it
}

func newKeyTable() *keyTable {
	t := &keyTable{salt: rand.Uint32()}
	// Index 0 stays empty, so that key 0 is never one.
	all := make([]*region, 1, 64)
	t.all.Store(&all)
	return t
}

func (t *keyTable) add(r *region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.table = t
	old := *t.all.Load()
	all := make([]*region, len(old), max(len(old)+1, cap(old)))
	copy(all, old)
	if n := len(t.free); n > 0 {
		r.idx = t.free[n-1]
		t.free = t.free[:n-1]
		all[r.idx] = r
	} else {
		r.idx = uint32(len(all))
		all = append(all, r)
	}
	r.key.Store((r.idx<<8 | rand.Uint32()&0xff) ^ t.salt)
	t.all.Store(&all)
}

func (t *keyTable) remove(r *region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.valid.Store(false)
	old := *t.all.Load()
	all := make([]*region, len(old), cap(old))
	copy(all, old)
	all[r.idx] = nil
	t.free = append(t.free, r.idx)
	t.all.Store(&all)
}

// find gives the region of a valid key, or nil.
func (t *keyTable) find(key uint32) *region {
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

// local resolves a local element of a work request on a queue pair of protection domain p.
func (t *keyTable) local(p *pd, e verbs.SGE, write bool) ([]byte, error) {
	r := t.find(e.LKey)
	if r == nil || r.window || r.pd != p {
		return nil, fmt.Errorf("local key %#x is not valid here", e.LKey)
	}
	b := r.bound.Load()
	if write && b.access&verbs.LocalWrite == 0 {
		return nil, fmt.Errorf("local key %#x does not allow writing", e.LKey)
	}
	mem := b.bytes(e.Addr, int(e.Length))
	if mem == nil && e.Length > 0 {
		return nil, fmt.Errorf("%d bytes at %#x are outside of the region of local key %#x", e.Length, e.Addr, e.LKey)
	}
	return mem, nil
}

// remote resolves what a peer asks for on q.
func (t *keyTable) remote(q *qp, key uint32, addr uint64, n int, need verbs.Access) ([]byte, *terminate) {
	r := t.find(key)
	if r == nil {
		return nil, taggedError(0, "the peer used the key %#x, which is not valid", key)
	}
	b := r.bound.Load()
	if b == nil || r.pd != q.pd || b.qp != nil && b.qp != q {
		return nil, taggedError(2, "the peer used the key %#x, which is not this connection's", key)
	}
	if b.access&need == 0 {
		return nil, protection(2, "the peer used the key %#x in a way that it does not allow", key)
	}
	mem := b.bytes(addr, n)
	if mem == nil && n > 0 {
		return nil, taggedError(1, "the peer addressed %d bytes at %#x, outside of what the key %#x covers", n, addr, key)
	}
	return mem, nil
}

// pd implements verbs.PD.
type pd struct{ dev *device }

func (p *pd) Close() error { return nil }

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("register an empty region")
	}
	r := &region{pd: p}
	r.bound.Store(&binding{mem: mem, base: addrOf(mem), access: access})
	p.dev.prov.keys.add(r)
	r.valid.Store(true)
	return (*mr)(r), nil
}

func addrOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

func (p *pd) AllocMW() (verbs.MW, error) {
	r := &region{pd: p, window: true}
	p.dev.prov.keys.add(r)
	return (*mw)(r), nil
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

func (m *mw) RKey() uint32 {
	return m.key.Load()
}

func (m *mw) Close() error {
	m.table.remove((*region)(m))
	return nil
}

// bind carries out an OpBindMW on q. The key that was asked for before it becomes valid; when it was
// valid already, it changes first, as the next RKey would have said.
func (t *keyTable) bind(q *qp, a *verbs.BindMWAttr) error {
	w, ok := a.MW.(*mw)
	if !ok || w.table != t {
		return fmt.Errorf("bind a window of another provider")
	}
	m, ok := a.MR.(*mr)
	if !ok || m.table != t || !m.valid.Load() || m.pd != q.pd || w.pd != q.pd {
		return fmt.Errorf("bind to a region that is not valid here")
	}
	b := m.bound.Load()
	mem := b.bytes(a.Addr, int(a.Length))
	switch {
	case b.access&verbs.BindMW == 0:
		return fmt.Errorf("bind to a region that does not allow windows")
	case mem == nil:
		return fmt.Errorf("bind %d bytes at %#x outside of the region", a.Length, a.Addr)
	case a.Access&verbs.RemoteWrite != 0 && b.access&verbs.LocalWrite == 0:
		return fmt.Errorf("bind for writing to a region that does not allow it")
	case w.valid.Load():
		return fmt.Errorf("bind a window that is bound: invalidate it first")
	}
	w.bound.Store(&binding{mem: mem, base: a.Addr, access: a.Access, qp: q})
	w.valid.Store(true)
	return nil
}

// invalidate ends a window's key; the next bind has another.
func (t *keyTable) invalidate(q *qp, key uint32) error {
	r := t.find(key)
	if r == nil || !r.window {
		return fmt.Errorf("key %#x is no bound window", key)
	}
	if b := r.bound.Load(); b == nil || b.qp != q {
		return fmt.Errorf("key %#x is bound on another connection", key)
	}
	r.valid.Store(false)
	old := r.key.Load() ^ t.salt
	r.key.Store((old&^0xff | (old+1)&0xff) ^ t.salt)
	return nil
}
