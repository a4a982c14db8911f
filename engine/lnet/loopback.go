package lnet

import (
	"sync"
	"sync/atomic"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// loopback carries messages between NIDs of our own: no wire, no credits (spec lnet 2.6). A handler that
// sends to us again only adds to the queue, so nothing recurses. Its lock is a leaf.
type loopback struct {
	mu    sync.Mutex
	queue msgQueue
	busy  bool
}

// loop takes m over and delivers what is queued, unless another goroutine does.
func (n *Node) loop(s o2iblnd.Sender, m *msg) {
	l := &n.local
	l.mu.Lock()
	l.queue.push(m)
	if l.busy {
		l.mu.Unlock()
		return
	}
	l.busy = true
	for m := l.queue.pop(); m != nil; m = l.queue.pop() {
		l.mu.Unlock()
		n.loopOne(s, m)
		l.mu.Lock()
	}
	l.busy = false
	l.mu.Unlock()
}

func (n *Node) loopOne(s o2iblnd.Sender, m *msg) {
	if n.closed.Load() {
		n.fail(s, m, eShutdown)
		return
	}
	m.loop.n, m.loop.m = n, m
	m.loop.open.Store(2)
	// A GET is answered as by RDMA, into its sink; of a PUT the data stays where it is until wanted.
	n.receive(s, n.ni(m.Hdr.DestNID), nil, &m.Hdr, &m.loop, m.Hdr.Type != wire.LNetACK)
	m.loop.close(s)
}

// loopRx is the receiving end of a message to ourselves. The message ends when it has been received and
// the call that brought it has returned.
type loopRx struct {
	n    *Node
	m    *msg
	open atomic.Int32
}

var _ o2iblnd.Rx = (*loopRx)(nil)

// Payload implements o2iblnd.Rx.
func (*loopRx) Payload() []byte { return nil }

// Receive implements o2iblnd.Rx.
func (r *loopRx) Receive(s o2iblnd.Sender, to *o2iblnd.Message) {
	from := &r.m.Message
	switch {
	case from.Hdr.Type == wire.LNetGET && to == nil:
		from.Status = eNoData
	case from.Hdr.Type == wire.LNetGET:
		copySegs(from.Segs, to.Segs, to.Len)
		from.RDMALen = to.Len
	case to != nil:
		copySegs(to.Segs, from.Segs, to.Len)
	}
	if to != nil {
		to.Status = 0
		r.n.Finalize(s, to)
	}
	r.close(s)
}

// ReceiveLater implements o2iblnd.Rx.
func (r *loopRx) ReceiveLater(to *o2iblnd.Message) { r.Receive(nil, to) }

func (r *loopRx) close(s o2iblnd.Sender) {
	if r.open.Add(-1) == 0 {
		r.n.Finalize(s, &r.m.Message)
	}
}
