// Package arena is the memory that an HCA may read and write: slabs outside the Go heap, registered
// once with each device, out of which payload buffers and message slots are cut. A Buffer is always
// contiguous in virtual memory, so it is one fragment of an RDMA descriptor.
//
// An Arena is safe for use by several goroutines. Sizes are rounded up to a power of two, at least one
// page, at most a slab; free pieces are merged again (a buddy system), so a long life does not crumble it.
package arena

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	minOrder = 12 // 4 KiB
	// SlabSize is the size of one slab in bytes and the largest buffer.
	SlabSize  = 32 << 20
	slabOrder = 25
)

// ErrLimit says that the arena may not grow further.
var ErrLimit = errors.New("arena limit reached")

// Arena hands out buffers.
type Arena struct {
	mu    sync.Mutex
	limit int
	slabs []*Slab
	used  int
}

// Slab is one mapping. Its bytes never move; devices register it as one region.
type Slab struct {
	mem   []byte
	free  [slabOrder + 1]pieces // by order
	order []uint8               // of each piece handed out, by the page that it starts on; 0: none starts there
}

// pieces are the free ones of one order: a bit for each place where one may lie.
type pieces struct {
	bits []uint64
	n    int
	low  int // no word before this one has a bit
}

func (p *pieces) add(i int) {
	p.bits[i/64] |= 1 << (i % 64)
	p.n++
	p.low = min(p.low, i/64)
}

// remove takes piece i out, if it is there.
func (p *pieces) remove(i int) bool {
	if p.bits[i/64]>>(i%64)&1 == 0 {
		return false
	}
	p.bits[i/64] &^= 1 << (i % 64)
	p.n--
	return true
}

// first takes the one that lies first out; there is one.
func (p *pieces) first() int {
	for p.bits[p.low] == 0 {
		p.low++
	}
	i := p.low*64 + bits.TrailingZeros64(p.bits[p.low])
	p.remove(i)
	return i
}

// Buffer is a contiguous piece of a slab. The zero Buffer is empty. A Buffer is a value: copies name the same bytes.
type Buffer struct {
	slab   *Slab
	off, n int
}

// New makes an arena that grows slab by slab up to limit bytes (at least one slab).
func New(limit int) *Arena {
	return &Arena{limit: max(limit, SlabSize)}
}

// Alloc gives n zeroed or reused bytes, n from 1 to SlabSize.
func (a *Arena) Alloc(n int) (Buffer, error) {
	if n < 1 || n > SlabSize {
		return Buffer{}, fmt.Errorf("buffer of %d bytes: 1 to %d are possible", n, SlabSize)
	}
	order := max(minOrder, bits.Len(uint(n-1)))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slabs {
		if off, ok := s.take(order); ok {
			a.used += 1 << order
			return Buffer{s, off, n}, nil
		}
	}
	if (len(a.slabs)+1)*SlabSize > a.limit {
		return Buffer{}, fmt.Errorf("buffer of %d bytes with %d of %d in use: %w", n, a.used, a.limit, ErrLimit)
	}
	mem, err := unix.Mmap(-1, 0, SlabSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return Buffer{}, fmt.Errorf("map a slab of %d bytes: %w", SlabSize, err)
	}
	// Huge pages are a wish: without them the slab works the same.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	s := &Slab{mem: mem, order: make([]uint8, SlabSize>>minOrder)}
	for o := minOrder; o <= slabOrder; o++ {
		s.free[o].bits = make([]uint64, (SlabSize>>o+63)/64)
	}
	s.free[slabOrder].add(0)
	a.slabs = append(a.slabs, s)
	off, _ := s.take(order)
	a.used += 1 << order
	return Buffer{s, off, n}, nil
}

// Free gives a buffer back. It must be one that Alloc returned, not a slice of it, and no device may
// still reach it.
func (a *Arena) Free(b Buffer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	order := 0
	if b.off%(1<<minOrder) == 0 {
		order = int(b.slab.order[b.off>>minOrder])
	}
	if order == 0 {
		panic(fmt.Sprintf("arena: free of a buffer at offset %d that is not handed out", b.off))
	}
	a.used -= 1 << order
	b.slab.give(b.off, order)
}

// Used and Size are the bytes handed out (rounded up) and mapped.
func (a *Arena) Used() (used, size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, len(a.slabs) * SlabSize
}

// Close unmaps everything. No buffer may be used afterwards, by us or by a device.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	for _, s := range a.slabs {
		err = errors.Join(err, unix.Munmap(s.mem))
	}
	a.slabs, a.used = nil, 0
	return err
}

func (s *Slab) take(order int) (int, bool) {
	o := order
	for o <= slabOrder && s.free[o].n == 0 {
		o++
	}
	if o > slabOrder {
		return 0, false
	}
	off := s.free[o].first() << o
	for o > order { // keep the lower half, free the upper
		o--
		s.free[o].add((off + 1<<o) >> o)
	}
	s.order[off>>minOrder] = uint8(order)
	return off, true
}

func (s *Slab) give(off, order int) {
	s.order[off>>minOrder] = 0
	for order < slabOrder && s.free[order].remove((off^1<<order)>>order) { // its buddy
		order++
		off &^= 1<<order - 1
	}
	s.free[order].add(off >> order)
}

// Mem is the whole slab, for registration.
func (s *Slab) Mem() []byte { return s.mem }

// Bytes are the buffer's bytes. A device may write them while an operation names them.
func (b Buffer) Bytes() []byte {
	if b.slab == nil {
		return nil
	}
	return b.slab.mem[b.off : b.off+b.n : b.off+b.n]
}

// Len is the buffer's length in bytes.
func (b Buffer) Len() int { return b.n }

// Slab is where the buffer lies; nil for the zero Buffer.
func (b Buffer) Slab() *Slab { return b.slab }

// Addr is the virtual address that work requests and descriptors carry.
func (b Buffer) Addr() uint64 { return Addr(b.slab.mem) + uint64(b.off) }

// Addr is the virtual address of memory outside the Go heap.
func Addr(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// Slice is the part from off for n bytes. It panics outside of the buffer.
func (b Buffer) Slice(off, n int) Buffer {
	if off < 0 || n < 0 || off+n > b.n {
		panic(fmt.Sprintf("arena: slice [%d:+%d] of a buffer of %d bytes", off, n, b.n))
	}
	return Buffer{b.slab, b.off + off, n}
}
