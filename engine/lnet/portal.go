package lnet

import (
	"fmt"
	"sync"

	"o2ibd/engine/arena"
	"o2ibd/engine/wire"
)

const (
	numPortals     = 64
	reservedPortal = 0
)

// portal is one index of the match table (spec lnet 3.1 to 3.3).
type portal struct {
	index uint32
	mu    sync.Mutex
	wild  mdList            // MEs that ignore bits, searched first
	exact map[uint64]mdList // the others by match bits

	lazy   bool
	closed bool
	parked msgQueue
	most   int // PUTs that may be parked
}

// mdList is a list of MDs through md.prev and md.next.
type mdList struct{ head, tail *md }

// request is what matching looks at.
type request struct {
	op     Options // OptPut or OptGet
	bits   uint64
	nid    wire.NID
	pid    uint32
	length int
	offset uint32
}

// place is where in an MD a message goes.
type place struct {
	md             *md
	offset, length int
}

type verdict uint8

const (
	noMatch verdict = iota
	matched
	tooLong // an MD matched but the message does not fit: the search ends
	canPark
	parked
)

// SetLazy makes a portal keep PUTs that match nothing yet, or stops that and drops those it kept.
func (n *Node) SetLazy(index uint32, lazy bool) error {
	if index >= numPortals || index == reservedPortal {
		return fmt.Errorf("lazy portal %d: 1 to %d are possible", index, numPortals-1)
	}
	pt := &n.portals[index]
	var dropped msgQueue
	pt.mu.Lock()
	pt.lazy = lazy
	if !lazy {
		dropped = pt.parked.take()
	}
	pt.mu.Unlock()
	for m := dropped.pop(); m != nil; m = dropped.pop() {
		n.dropParked(m)
	}
	return nil
}

// match finds and commits the MD for r. Without one the answer of a lazy portal to a PUT is canPark, or
// parked when m is given and was kept.
func (pt *portal) match(r *request, m *msg) (place, verdict) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	for _, list := range [2]mdList{pt.wild, pt.exact[r.bits]} {
		for d := list.head; d != nil; d = d.next {
			if at, v := pt.try(d, r); v != noMatch {
				return at, v
			}
		}
	}
	if r.op != OptPut || !pt.parks(r.bits) || pt.parked.n >= pt.most {
		return place{}, noMatch
	}
	if m == nil {
		return place{}, canPark
	}
	pt.parked.push(m)
	return place{}, parked
}

// parks says whether an unmatched PUT may wait, with pt.mu held. On LNet's own portal only pushes may:
// nothing else will ever be posted there.
func (pt *portal) parks(bits uint64) bool {
	return pt.lazy && !pt.closed && (pt.index != reservedPortal || bits == PingMatchBits)
}

// try commits r to d if it is for it, with pt.mu held.
func (pt *portal) try(d *md, r *request) (place, verdict) {
	e := &d.me
	if (e.MatchBits^r.bits)&^e.IgnoreBits != 0 ||
		e.PID != AnyPID && e.PID != r.pid ||
		e.NID != wire.AnyNID && e.NID != r.nid {
		return place{}, noMatch
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.exhausted() || d.options&r.op == 0 {
		return place{}, noMatch
	}
	offset := d.offset
	if d.options&OptManageRemote != 0 {
		offset = int(min(uint64(r.offset), uint64(d.length)))
	}
	room := d.length - offset
	if d.maxSize > 0 {
		room = min(room, d.maxSize)
	}
	length := r.length
	if length > room {
		if d.options&OptTruncate == 0 {
			return place{}, tooLong
		}
		length = room
	}
	d.consume()
	d.refs++
	d.offset = offset + length
	if d.exhausted() && !d.retain {
		pt.remove(d)
	}
	return place{d, offset, length}, matched
}

// offerParked gives the new MD d its parked PUTs, oldest first, with pt.mu held.
func (pt *portal) offerParked(d *md) (fit, refused msgQueue) {
	waiting := pt.parked.take()
	for m := waiting.pop(); m != nil; m = waiting.pop() {
		v := noMatch
		if d.attached {
			r := putRequest(&m.Hdr)
			var at place
			if at, v = pt.try(d, &r); v == matched {
				m.accept(at)
			}
		}
		switch v {
		case matched:
			fit.push(m)
		case tooLong:
			refused.push(m)
		default:
			pt.parked.push(m)
		}
	}
	return fit, refused
}

func (pt *portal) insert(d *md) {
	l := pt.wild
	if d.me.IgnoreBits == 0 {
		l = pt.exact[d.me.MatchBits]
	}
	switch {
	case l.head == nil:
		l.head, l.tail = d, d
	case d.me.Head:
		d.next, l.head.prev = l.head, d
		l.head = d
	default:
		d.prev, l.tail.next = l.tail, d
		l.tail = d
	}
	d.attached = true
	pt.store(d, l)
}

// remove takes d off its list if it is on it, with pt.mu held.
func (pt *portal) remove(d *md) {
	if !d.attached {
		return
	}
	l := pt.wild
	if d.me.IgnoreBits == 0 {
		l = pt.exact[d.me.MatchBits]
	}
	if d.prev != nil {
		d.prev.next = d.next
	} else {
		l.head = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		l.tail = d.prev
	}
	d.prev, d.next, d.attached = nil, nil, false
	pt.store(d, l)
}

func (pt *portal) store(d *md, l mdList) {
	switch {
	case d.me.IgnoreBits != 0:
		pt.wild = l
	case l.head == nil:
		delete(pt.exact, d.me.MatchBits)
	default:
		pt.exact[d.me.MatchBits] = l
	}
}

func putRequest(h *wire.LNetHeader) request {
	return request{OptPut, h.MatchBits, h.SrcNID, h.SrcPID, int(h.PayloadLength), h.Offset}
}

func getRequest(h *wire.LNetHeader) request {
	return request{OptGet, h.MatchBits, h.SrcNID, h.SrcPID, int(h.Length), h.Offset}
}

// resumeParked receives a PUT that was parked and has been committed to an MD.
func (n *Node) resumeParked(m *msg) {
	if m.rx != nil {
		rx := m.rx
		m.rx = nil
		rx.ReceiveLater(&m.Message)
		return
	}
	if m.Len > 0 {
		copySegs(m.Segs, []arena.Buffer{m.aside}, m.Len)
	}
	n.aside.put(m.aside)
	m.aside = arena.Buffer{}
	n.Finalize(n.sender, &m.Message)
}

// dropParked drops a PUT that was parked.
func (n *Node) dropParked(m *msg) {
	n.countDrop(m.ni, &m.Hdr, m.peerNID())
	if m.rx != nil {
		m.rx.ReceiveLater(nil)
	} else {
		n.aside.put(m.aside)
	}
	n.freeMsg(m)
}
