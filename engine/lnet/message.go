package lnet

import (
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// kind says what a msg is in the middle of, so what its Finalize means.
type kind uint8

const (
	kindEvent     kind = iota // carries an event only
	kindPut                   // our PUT on its way out
	kindGet                   // our GET on its way out
	kindAck                   // our ACK on its way out
	kindReply                 // our REPLY on its way out, as a message
	kindServe                 // our answer to a GET_REQ, by RDMA
	kindRecvPut               // a PUT on its way in
	kindRecvReply             // a REPLY on its way in
)

// msg is one message of the node, in any role. It is pooled and is its own Message's Owner.
type msg struct {
	o2iblnd.Message

	kind      kind
	counted   bool // in msgs_alloc
	optimised bool // GET whose answer comes by RDMA, without a REPLY
	ni        *ni
	peer      *peer // next hop outward, immediate sender inward; nil inside the node
	credited  bool  // holds, or waits for, a credit of peer
	md        *md
	ev        Event
	deadline  time.Time
	next      *msg

	// A PUT that is parked on a lazy portal has either rx or aside.
	rx    o2iblnd.Rx
	aside arena.Buffer

	loop loopRx
}

// msgQueue is a FIFO linked through msg.next.
type msgQueue struct {
	head, tail *msg
	n          int
}

func (q *msgQueue) push(m *msg) {
	m.next = nil
	if q.tail == nil {
		q.head = m
	} else {
		q.tail.next = m
	}
	q.tail = m
	q.n++
}

func (q *msgQueue) pop() *msg {
	m := q.head
	if m == nil {
		return nil
	}
	q.head = m.next
	if q.head == nil {
		q.tail = nil
	}
	m.next = nil
	q.n--
	return m
}

// take empties the queue into the caller's hands.
func (q *msgQueue) take() msgQueue {
	all := *q
	*q = msgQueue{}
	return all
}

// newMsg gives a message that counts in msgs_alloc.
func (n *Node) newMsg(k kind) *msg {
	m := n.newCarrier()
	m.kind, m.counted = k, true
	alive := n.stats.msgsAlloc.Add(1)
	for {
		most := n.stats.msgsMax.Load()
		if alive <= most || n.stats.msgsMax.CompareAndSwap(most, alive) {
			return m
		}
	}
}

// newCarrier gives a message that only carries an event.
func (n *Node) newCarrier() *msg {
	return n.msgs.Get().(*msg)
}

func (n *Node) freeMsg(m *msg) {
	if m.counted {
		n.stats.msgsAlloc.Add(-1)
	}
	m.Hdr = wire.LNetHeader{}
	m.Peer, m.Len, m.Router = 0, 0, false
	clear(m.Segs)
	m.Segs = m.Segs[:0]
	m.Status, m.RDMALen, m.Health = 0, -1, o2iblnd.HealthOK
	m.kind, m.counted, m.optimised, m.credited = kindEvent, false, false, false
	m.ni, m.peer, m.md, m.next = nil, nil, nil, nil
	m.ev = Event{}
	m.deadline = time.Time{}
	m.rx, m.aside = nil, arena.Buffer{}
	n.msgs.Put(m)
}

// appendSegs adds the part of segs that starts at off and is length bytes long to dst.
func appendSegs(dst, segs []arena.Buffer, off, length int) []arena.Buffer {
	for _, b := range segs {
		if length == 0 {
			break
		}
		if off >= b.Len() {
			off -= b.Len()
			continue
		}
		k := min(b.Len()-off, length)
		dst = append(dst, b.Slice(off, k))
		off, length = 0, length-k
	}
	return dst
}

// copySegs copies length bytes from src to dst, each of which has that many.
func copySegs(dst, src []arena.Buffer, length int) {
	var d, s []byte
	for length > 0 {
		if len(d) == 0 {
			d, dst = dst[0].Bytes(), dst[1:]
			continue
		}
		if len(s) == 0 {
			s, src = src[0].Bytes(), src[1:]
			continue
		}
		k := copy(d[:min(len(d), length)], s)
		d, s, length = d[k:], s[k:], length-k
	}
}
