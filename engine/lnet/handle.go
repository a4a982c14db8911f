package lnet

import (
	"errors"
	"sync"
)

// Handle names an MD of this node until its last event; it is the object cookie on the wire. Handles
// are never used twice. The zero Handle names nothing.
type Handle uint64

// ErrStaleHandle says that the MD of a handle is gone.
var ErrStaleHandle = errors.New("MD is gone")

// A handle is generation, slot and the type code of an MD, from the high bits down (spec lnet 2.2).
const (
	handleTypeBits = 2
	handleTypeMD   = 1
	handleSlotBits = 24
	handleGenShift = handleTypeBits + handleSlotBits
	handleMaxSlots = 1 << handleSlotBits
	handleMaxGen   = 1<<(64-handleGenShift) - 1
)

// handleTable finds MDs by handle. Its lock is a leaf.
type handleTable struct {
	mu     sync.Mutex
	slots  []handleSlot
	free   []uint32
	closed bool
}

type handleSlot struct {
	gen uint64
	md  *md
}

func (t *handleTable) add(d *md) (Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, ErrClosed
	}
	var i uint32
	if k := len(t.free); k > 0 {
		i, t.free = t.free[k-1], t.free[:k-1]
	} else if len(t.slots) < handleMaxSlots {
		i = uint32(len(t.slots))
		t.slots = append(t.slots, handleSlot{})
	} else {
		return 0, errors.New("too many MDs: 16777216 are possible")
	}
	s := &t.slots[i]
	s.gen++
	s.md = d
	return Handle(s.gen<<handleGenShift | uint64(i)<<handleTypeBits | handleTypeMD), nil
}

// get gives the MD of h or nil. The caller locks it and checks that it still has this handle.
func (t *handleTable) get(h Handle) *md {
	if h&(1<<handleTypeBits-1) != handleTypeMD {
		return nil
	}
	i := int(h>>handleTypeBits) & (handleMaxSlots - 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if i >= len(t.slots) || t.slots[i].gen != uint64(h>>handleGenShift) {
		return nil
	}
	return t.slots[i].md
}

func (t *handleTable) remove(h Handle) {
	i := uint32(h>>handleTypeBits) & (handleMaxSlots - 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.slots[i]
	s.md = nil
	if s.gen < handleMaxGen { // a used-up slot is not worth a repeated handle
		t.free = append(t.free, i)
	}
}

// close refuses further MDs and lists those that are left.
func (t *handleTable) close() []Handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var left []Handle
	for i, s := range t.slots {
		if s.md != nil {
			left = append(left, Handle(s.gen<<handleGenShift|uint64(i)<<handleTypeBits|handleTypeMD))
		}
	}
	return left
}
