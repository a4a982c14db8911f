package soft

import (
	"sync"

	"o2ibd/engine/verbs"
)

// CQ implements verbs.CQ. Its capacity is a limit of the caller's, not an allocation.
type CQ struct {
	waiter verbs.Waiter

	mu    sync.Mutex
	ring  []verbs.WC // a power of two long
	head  int
	n     int
	armed bool
}

// NewCQ makes one whose completions wake w.
func NewCQ(w verbs.Waiter) *CQ { return &CQ{waiter: w, ring: make([]verbs.WC, 64)} }

// Add queues one completion and wakes the owner if it asked for that. Any goroutine may call it.
func (c *CQ) Add(wc verbs.WC) {
	c.mu.Lock()
	if c.n == len(c.ring) {
		bigger := make([]verbs.WC, 2*len(c.ring))
		for i := range c.n {
			bigger[i] = c.ring[(c.head+i)&(len(c.ring)-1)]
		}
		c.ring, c.head = bigger, 0
	}
	c.ring[(c.head+c.n)&(len(c.ring)-1)] = wc
	c.n++
	wake := c.armed
	c.armed = false
	c.mu.Unlock()
	if wake {
		c.waiter.Wake()
	}
}

func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(wcs), c.n)
	for i := range n {
		wcs[i] = c.ring[(c.head+i)&(len(c.ring)-1)]
	}
	c.head = (c.head + n) & (len(c.ring) - 1)
	c.n -= n
	return n, nil
}

// Each visits what is queued, in order, and leaves it there: for tests that account for every completion.
func (c *CQ) Each(visit func(*verbs.WC)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.n {
		visit(&c.ring[(c.head+i)&(len(c.ring)-1)])
	}
}

func (c *CQ) Arm() error {
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	return nil
}

func (c *CQ) Close() error { return nil }
