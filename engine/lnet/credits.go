package lnet

import (
	"time"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// Send credits (spec lnet 5.1). A message waits on its peer for a peer credit, then on its peer for one
// of the NI, and is sent by whoever pumps the peer: one goroutine at a time, so a peer's messages keep
// their order, and a Sender that ends a message inside Send does not recurse.

// submit takes m over: it is sent now or when credits allow. s may be nil.
func (n *Node) submit(s o2iblnd.Sender, m *msg) {
	if m.peer == nil {
		n.loop(s, m)
		return
	}
	if s == nil {
		s = n.sender
	}
	now := n.cfg.Now()
	m.deadline = now.Add(n.cfg.TransactionTimeout)
	m.peer.lastUsed.Store(now.UnixNano())
	for {
		p := m.peer
		p.mu.Lock()
		if !p.gone {
			p.enqueue(m)
			p.mu.Unlock()
			n.pump(s, p)
			return
		}
		p.mu.Unlock()
		fresh, err := n.peerOf(p.ni, p.nid)
		if err != nil {
			n.fail(s, m, errnoOf(err))
			return
		}
		m.peer = fresh
	}
}

// enqueue puts m in the queue and grants what can be granted, with p.mu held.
func (p *peer) enqueue(m *msg) {
	m.credited = true
	p.bytes += queuedSize(m)
	p.waiting.push(m)
	p.credits.note(p.waiting.n)
	p.grant()
}

// grant gives free peer credits to waiting messages, with p.mu held.
func (p *peer) grant() {
	for p.waiting.n > 0 && p.credits.used < p.credits.max {
		p.credits.used++
		p.ready.push(p.waiting.pop())
		if p.ni.take(p) {
			p.sendable++
		}
	}
}

// granted says that p has got a credit of its NI.
func (n *Node) granted(s o2iblnd.Sender, p *peer) {
	p.mu.Lock()
	p.sendable++
	p.mu.Unlock()
	n.pump(s, p)
}

// pump sends the messages of p that have both credits.
func (n *Node) pump(s o2iblnd.Sender, p *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pumping {
		return
	}
	p.pumping = true
	for p.sendable > 0 {
		m := p.ready.pop()
		p.sendable--
		p.mu.Unlock()
		n.transmit(s, m)
		p.mu.Lock()
	}
	p.pumping = false
}

// transmit hands m to the LND, unless it is too late for that.
func (n *Node) transmit(s o2iblnd.Sender, m *msg) {
	switch {
	case n.closed.Load():
		n.fail(s, m, eShutdown)
	case s == nil:
		n.fail(s, m, eNetDown)
	case m.md != nil && m.md.cancelled():
		n.fail(s, m, eCanceled)
	case n.cfg.Now().After(m.deadline):
		n.countSendDrop(m)
		n.fail(s, m, eTimedOut)
	default:
		s.Send(&m.Message)
	}
}

// fail ends a message that never reached the LND.
func (n *Node) fail(s o2iblnd.Sender, m *msg, e o2iblnd.Errno) {
	m.Status, m.Health = e, o2iblnd.HealthOK
	n.Finalize(s, &m.Message)
}

// giveBack returns the credits of m and sends what waited for them.
func (n *Node) giveBack(s o2iblnd.Sender, m *msg) {
	p := m.peer
	m.credited = false
	next := p.ni.release()
	p.mu.Lock()
	p.bytes -= queuedSize(m)
	p.credits.used--
	p.grant()
	p.mu.Unlock()
	if s == nil {
		s = n.sender
	}
	if next != nil {
		n.granted(s, next)
	}
	n.pump(s, p)
}

// expireQueued fails the messages of p whose time ran out while they waited.
func (n *Node) expireQueued(p *peer, now time.Time) {
	late := p.unqueue(func(m *msg) bool { return now.After(m.deadline) })
	for m := late.pop(); m != nil; m = late.pop() {
		n.countSendDrop(m)
		n.fail(nil, m, eTimedOut)
	}
}

// failQueued fails all messages of p that wait.
func (n *Node) failQueued(p *peer, e o2iblnd.Errno) {
	late := p.unqueue(func(*msg) bool { return true })
	for m := late.pop(); m != nil; m = late.pop() {
		n.fail(nil, m, e)
	}
}

// unqueue takes the oldest messages out of the queues for as long as out says so. They give their
// credits back themselves, so each comes with a claim on none.
func (p *peer) unqueue(out func(*msg) bool) msgQueue {
	var taken msgQueue
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.ready.n > p.sendable && out(p.ready.head) {
		if !p.ni.cancel(p) {
			break // its credit is on the way: it is judged when it is sent
		}
		m := p.ready.pop()
		p.credits.used--
		p.bytes -= queuedSize(m)
		m.credited = false
		taken.push(m)
	}
	for p.waiting.n > 0 && out(p.waiting.head) {
		m := p.waiting.pop()
		p.bytes -= queuedSize(m)
		m.credited = false
		taken.push(m)
	}
	p.grant()
	return taken
}

// queuedSize is what m counts for in tx_q_num_of_buf.
func queuedSize(m *msg) int { return int(m.Hdr.PayloadLength) + wire.LNetHeaderSize }

// cancelled says that an active MD was unlinked while its message waited. What answers a peer is sent
// all the same.
func (d *md) cancelled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.aborted && d.portal == nil
}
