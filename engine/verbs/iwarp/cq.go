package iwarp

import (
	"sync"

	"o2ibd/engine/verbs"
)

// cq implements verbs.CQ. Its capacity is a limit of the caller's, not an allocation.
type cq struct {
	waiter verbs.Waiter

	mu    sync.Mutex
	ring  []verbs.WC // a power of two long
	head  int
	n     int
	armed bool
}

func newCQ(w verbs.Waiter) *cq { return &cq{waiter: w, ring: make([]verbs.WC, 64)} }

// add queues one completion and wakes the owner if it asked for that.
func (c *cq) add(wc verbs.WC) {
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

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
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

func (c *cq) Arm() error {
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	return nil
}

func (c *cq) Close() error { return nil }
