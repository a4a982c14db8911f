package arena_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"o2ibd/engine/arena"
)

// TestBuffersDoNotOverlap fills every live buffer with a mark of its own and looks at all of them while
// others come and go; in the end everything is one piece again.
func TestBuffersDoNotOverlap(t *testing.T) {
	a := arena.New(2 * arena.SlabSize)
	defer a.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	live := make(map[byte]arena.Buffer)
	for range 3000 {
		mark := byte(rng.IntN(100))
		if b, ok := live[mark]; ok {
			for _, x := range b.Bytes() {
				if x != mark {
					t.Fatalf("a buffer of %d bytes was written by another", b.Len())
				}
			}
			a.Free(b)
			delete(live, mark)
			continue
		}
		b, err := a.Alloc(1 + rng.IntN(1<<rng.IntN(19)))
		if err != nil {
			t.Fatal(err)
		}
		if b.Addr()%4096 != 0 {
			t.Fatalf("address %#x is not at a page", b.Addr())
		}
		for i := range b.Bytes() {
			b.Bytes()[i] = mark
		}
		live[mark] = b
	}
	for _, b := range live {
		a.Free(b)
	}
	used, size := a.Used()
	if used != 0 {
		t.Fatalf("%d bytes in use after everything came back", used)
	}
	// Every slab that there is, so that none of them is a fresh one.
	for range size / arena.SlabSize {
		if _, err := a.Alloc(arena.SlabSize); err != nil {
			t.Fatalf("the pieces did not merge: %v", err)
		}
	}
	if _, now := a.Used(); now != size {
		t.Fatalf("the pieces did not merge: %d bytes are mapped where %d were", now, size)
	}
}

func TestLimits(t *testing.T) {
	a := arena.New(arena.SlabSize)
	defer a.Close()
	for _, n := range []int{0, -1, arena.SlabSize + 1} {
		if _, err := a.Alloc(n); err == nil {
			t.Errorf("a buffer of %d bytes", n)
		}
	}
	b, err := a.Alloc(arena.SlabSize)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(1); !errors.Is(err, arena.ErrLimit) {
		t.Errorf("past the limit: %v", err)
	}
	a.Free(b)
	if _, err := a.Alloc(1); err != nil {
		t.Error(err)
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return
}

func TestMisuse(t *testing.T) {
	a := arena.New(arena.SlabSize)
	defer a.Close()
	b, err := a.Alloc(5000)
	if err != nil {
		t.Fatal(err)
	}
	if s := b.Slice(100, 200); s.Len() != 200 || s.Addr() != b.Addr()+100 || s.Slab() != b.Slab() {
		t.Errorf("slice %+v", s)
	}
	for _, f := range []func(){func() { b.Slice(4900, 200) }, func() { b.Slice(-1, 2) }, func() { b.Slice(0, -1) }} {
		if !panics(f) {
			t.Error("a slice outside of the buffer")
		}
	}
	a.Free(b)
	if !panics(func() { a.Free(b) }) {
		t.Error("freed twice")
	}
	if (arena.Buffer{}).Bytes() != nil {
		t.Error("the zero buffer has bytes")
	}
}

func TestConcurrent(t *testing.T) {
	a := arena.New(4 * arena.SlabSize)
	defer a.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 500 {
				b, err := a.Alloc(4096 << (k % 5))
				if err != nil {
					t.Error(err)
					return
				}
				b.Bytes()[0] = byte(i)
				if b.Bytes()[0] != byte(i) {
					t.Error("shared")
				}
				a.Free(b)
			}
		})
	}
	wg.Wait()
}

func BenchmarkAllocFree1MiB(b *testing.B) {
	a := arena.New(arena.SlabSize)
	defer a.Close()
	for b.Loop() {
		x, err := a.Alloc(1 << 20)
		if err != nil {
			b.Fatal(err)
		}
		a.Free(x)
	}
}
