package lnet

import (
	"sync"

	"o2ibd/engine/arena"
	"o2ibd/engine/wire"
)

// asideKept pieces stay for the next parked PUTs instead of going back to the arena.
const asideKept = 64

// asideMemory holds the data of parked PUTs. All pieces have the same size: what an IMMEDIATE can carry
// fits. Its lock is a leaf.
type asideMemory struct {
	arena  *arena.Arena
	mu     sync.Mutex
	free   []arena.Buffer
	closed bool
}

func (a *asideMemory) get(n int) (arena.Buffer, error) {
	if n <= wire.MsgSize {
		a.mu.Lock()
		if k := len(a.free); k > 0 {
			b := a.free[k-1]
			a.free = a.free[:k-1]
			a.mu.Unlock()
			return b, nil
		}
		a.mu.Unlock()
		n = wire.MsgSize
	}
	return a.arena.Alloc(n)
}

// put takes b back; an empty one is ignored.
func (a *asideMemory) put(b arena.Buffer) {
	if b.Len() == 0 {
		return
	}
	a.mu.Lock()
	keep := !a.closed && b.Len() == wire.MsgSize && len(a.free) < asideKept
	if keep {
		a.free = append(a.free, b)
	}
	a.mu.Unlock()
	if !keep {
		a.arena.Free(b)
	}
}

func (a *asideMemory) close() {
	a.mu.Lock()
	free := a.free
	a.free, a.closed = nil, true
	a.mu.Unlock()
	for _, b := range free {
		a.arena.Free(b)
	}
}
