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
	losses    int // calls of Fail
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

// New makes a set with its first pool. create makes the size nodes of one pool; destroy gets them back.
// Both are called without the set's lock.
func New[T Noder](name string, size int, create func(size int) ([]T, error), destroy func([]T), now time.Time) (*Set[T], error) {
	if len(name) > nameMax {
		name = name[:nameMax]
	}
	if size < 1 {
		return nil, fmt.Errorf("%s: a pool of %d nodes: 1 is the least", name, size)
	}
	s := &Set[T]{name: name, size: size, create: create, destroy: destroy}
	s.grown.L = &s.mu
	all, err := create(size)
	if err != nil {
		return nil, s.noPool(err)
	}
	s.add(all, now)
	return s, nil
}

// Alloc takes a node. When all are in use the set grows; when that fails, or failed less than Retry ago,
// there is none. It waits only for a pool that another caller is making, or for a node that comes back
// meanwhile.
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
		if err := s.grow(now); err != nil {
			return none, err
		}
	}
}

// grow makes one more pool. The caller holds the lock, which is free while the pool is made.
func (s *Set[T]) grow(now time.Time) error {
	losses := s.losses
	s.growing = true
	var all []T
	var err error
	s.unlocked(func() { all, err = s.create(s.size) })
	s.growing = false
	s.grown.Broadcast()
	switch {
	case err != nil:
		s.nextRetry = now.Add(Retry)
		s.stats.GrowFailures++
		return s.noPool(err)
	case s.closed || s.losses != losses:
		// It is too late for it, or it belongs to the device that was lost: Alloc looks again.
		s.unlocked(func() { s.destroy(all) })
		return nil
	}
	s.add(all, now)
	s.stats.Grows++
	s.nextRetry = time.Time{}
	return nil
}

// unlocked runs a callback of the owner without the lock, which is held again even after a panic.
func (s *Set[T]) unlocked(f func()) {
	s.mu.Unlock()
	defer s.mu.Lock()
	f()
}

// add appends a pool.
func (s *Set[T]) add(all []T, now time.Time) {
	p := &pool[T]{all: all, free: make([]T, len(all)), deadline: now.Add(Deadline)}
	for i, t := range all {
		t.node().pool = p
		p.free[len(all)-1-i] = t
	}
	s.pools = append(s.pools, p)
}

func (s *Set[T]) noPool(err error) error {
	return fmt.Errorf("%s: make a pool of %d: %w", s.name, s.size, err)
}

// Free gives a node back, and pools that nobody needs any more.
func (s *Set[T]) Free(now time.Time, t T) {
	s.mu.Lock()
	p := t.node().pool.(*pool[T])
	p.free = append(p.free, t)
	p.allocated--
	if s.growing {
		s.grown.Signal() // somebody may wait for less than a whole pool
	}
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
	s.losses++
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
