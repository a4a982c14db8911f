// Package pool is the pool set of spec o2iblnd section 6: nodes that are made a pool at a time, handed
// out last in first out, grown when they run short and shrunk when they were idle for long. The first
// pool is permanent.
//
// A Set is safe for use by several goroutines. Making a pool happens outside of its lock; whoever runs
// short meanwhile waits for that pool. Times are the caller's.
package pool

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// TxPool is the least size of a transmit pool (IBLND_TX_POOL).
	TxPool = 256
	// Deadline is how long an extra pool stays after its last use (IBLND_POOL_DEADLINE).
	Deadline = 300 * time.Second
	// Retry is how long a set does not try to grow after it could not (IBLND_POOL_RETRY).
	Retry = time.Second
	// nameMax bounds a set's name (IBLND_POOL_NAME_LEN).
	nameMax = 31
)

// ErrRetry says that the set is used up and may not try to grow yet.
var ErrRetry = errors.New("pool is used up, and growing it failed a moment ago")

// ErrClosed says that the set was closed.
var ErrClosed = errors.New("pool set is closed")

// Node is embedded in what a Set hands out: it leads back to the pool.
type Node struct {
	pool any
}

func (n *Node) node() *Node { return n }

// Noder is a pointer to a struct that embeds Node.
type Noder interface{ node() *Node }

// Set is one pool set.
type Set[T Noder] struct {
	name    string
	size    int
	create  func(size int) ([]T, error)
	destroy func([]T)

	mu        sync.Mutex
	grown     sync.Cond
	pools     []*pool[T]
	failed    []*pool[T]
	nextRetry time.Time
	growing   bool
	closed    bool
	stats     Stats
}

type pool[T Noder] struct {
	all       []T
	free      []T
	deadline  time.Time
	allocated int
	failed    bool
}

// Stats of a set. Size and Used count nodes.
type Stats struct {
	Size, Used, Pools, FailedPools int
	Grows, Shrinks, GrowFailures   int
	NextRetry                      time.Time // zero: it may grow
	Deadline                       time.Time // of the extra pool that may go last; zero: there is none
}

// New makes a set with its first pool. create makes the nodes of one pool; destroy gets them back.
func New[T Noder](name string, size int, create func(size int) ([]T, error), destroy func([]T), now time.Time) (*Set[T], error) {
	if len(name) > nameMax {
		name = name[:nameMax]
	}
	s := &Set[T]{name: name, size: size, create: create, destroy: destroy}
	s.grown.L = &s.mu
	if err := s.grow(now); err != nil {
		return nil, err
	}
	s.stats.Grows = 0 // the first pool is no growth
	return s, nil
}

// Alloc takes a node. When all are in use the set grows; when that fails, or failed less than Retry ago,
// there is none.
func (s *Set[T]) Alloc(now time.Time) (T, error) {
	var none T
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return none, ErrClosed
		}
		for _, p := range s.pools {
			if n := len(p.free); n > 0 {
				t := p.free[n-1]
				p.free = p.free[:n-1]
				p.allocated++
				p.deadline = now.Add(Deadline)
				return t, nil
			}
		}
		if s.growing {
			s.grown.Wait()
			continue
		}
		if now.Before(s.nextRetry) {
			return none, fmt.Errorf("%s: %w", s.name, ErrRetry)
		}
		s.growing = true
		s.mu.Unlock()
		err := s.grow(now)
		s.mu.Lock()
		s.growing = false
		s.grown.Broadcast()
		if err != nil {
			s.nextRetry = now.Add(Retry)
			s.stats.GrowFailures++
			return none, err
		}
	}
}

// grow makes one more pool. The caller does not hold the lock.
func (s *Set[T]) grow(now time.Time) error {
	all, err := s.create(s.size)
	if err != nil {
		return fmt.Errorf("%s: make a pool of %d: %w", s.name, s.size, err)
	}
	p := &pool[T]{all: all, free: make([]T, len(all)), deadline: now.Add(Deadline)}
	for i, t := range all {
		t.node().pool = p
		p.free[len(all)-1-i] = t
	}
	s.mu.Lock()
	s.pools = append(s.pools, p)
	s.stats.Grows++
	s.nextRetry = time.Time{}
	s.mu.Unlock()
	return nil
}

// Free gives a node back, and pools that nobody needs any more.
func (s *Set[T]) Free(now time.Time, t T) {
	s.mu.Lock()
	p := t.node().pool.(*pool[T])
	p.free = append(p.free, t)
	p.allocated--
	var gone []*pool[T]
	if p.failed || len(s.pools) > 1 {
		gone = s.idle(now)
	}
	s.mu.Unlock()
	for _, g := range gone {
		s.destroy(g.all)
	}
}

// idle takes the pools off the set that may go: failed ones that are unused, and extra ones that are
// unused past their deadline.
func (s *Set[T]) idle(now time.Time) []*pool[T] {
	var gone []*pool[T]
	kept := s.pools[:0]
	for i, p := range s.pools {
		if i > 0 && p.allocated == 0 && !now.Before(p.deadline) {
			gone = append(gone, p)
			s.stats.Shrinks++
			continue
		}
		kept = append(kept, p)
	}
	clear(s.pools[len(kept):])
	s.pools = kept
	still := s.failed[:0]
	for _, p := range s.failed {
		if p.allocated == 0 {
			gone = append(gone, p)
		} else {
			still = append(still, p)
		}
	}
	clear(s.failed[len(still):])
	s.failed = still
	return gone
}

// Fail takes every pool out of use, for a device that is lost: unused ones go at once, the others when
// their last node comes back. The next Alloc makes a new one.
func (s *Set[T]) Fail() {
	s.mu.Lock()
	for _, p := range s.pools {
		p.failed = true
	}
	s.failed = append(s.failed, s.pools...)
	s.pools, s.nextRetry = nil, time.Time{}
	gone := s.idle(time.Time{})
	s.mu.Unlock()
	for _, g := range gone {
		s.destroy(g.all)
	}
}

// Stats reads the set's counters.
func (s *Set[T]) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Pools, st.FailedPools, st.NextRetry = len(s.pools), len(s.failed), s.nextRetry
	for i, p := range s.pools {
		st.Size += len(p.all)
		st.Used += p.allocated
		if i > 0 && p.deadline.After(st.Deadline) {
			st.Deadline = p.deadline
		}
	}
	for _, p := range s.failed {
		st.Used += p.allocated
	}
	return st
}

// Close destroys every pool. All nodes must be back.
func (s *Set[T]) Close() {
	s.mu.Lock()
	s.closed = true
	all := append(s.pools, s.failed...)
	s.pools, s.failed = nil, nil
	s.grown.Broadcast()
	s.mu.Unlock()
	for _, p := range all {
		s.destroy(p.all)
	}
}
