package o2iblnd

import (
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/pool"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// tx is a transmit descriptor with its 4096-byte message slot. From allocation to txDone it belongs to
// the scheduler of its conn. It is finished when it is neither queued, nor sending, nor waiting
// (spec o2iblnd 4.7), and when nothing of the peer can go into its memory any more.
type tx struct {
	pool.Node
	idx  uint32 // in txTable, and in work request ids
	gen  atomic.Uint32
	hdev *hcaDev
	key  uint32 // local key of slot there

	slot arena.Buffer
	mem  arena.Buffer // what slot was cut from, in the first tx of a piece

	conn     *conn
	msg      *Message // the LNet message that ends with this tx, nil for NOOPs and answers without one
	typ      wire.MsgType
	nob      uint32
	cookie   uint64
	head     Head
	deadline time.Time
	status   Errno
	health   Health
	sending  int  // SENDs posted and not completed, 0..2
	queued   bool // on one of the conn's four queues
	waiting  bool // the peer must still answer
	exposed  bool // the peer was told where to write, and may still do so
	revoking bool // an invalidation is posted, or will be
	draining bool // ends with the queue pair's flush
	done     bool
	reg      *reg           // what the peer reaches its sink by
	rkey     uint32         // and the key of it that the peer was told
	sinkSize int            // GET_REQ, PUT_ACK: bytes described to the peer
	bounce   arena.Buffer   // contiguous stand-in for pieces that do not fit one descriptor
	copyOut  bool           // bounce is a sink: its bytes go to msg.Segs when data came
	wrs      []verbs.SendWR // what goes before the message: RDMA writes, or the binding of reg

	list       *txList
	prev, next *tx
}

// txList is a FIFO of transmits; a tx is on at most one.
type txList struct {
	head, tail *tx
	n          int
}

func (l *txList) push(t *tx) {
	if t.list != nil {
		panic("o2iblnd: tx is on a list already")
	}
	t.list, t.prev, t.next = l, l.tail, nil
	if l.tail != nil {
		l.tail.next = t
	} else {
		l.head = t
	}
	l.tail = t
	l.n++
}

// unlink takes t off the list that it is on, if any.
func (t *tx) unlink() {
	l := t.list
	if l == nil {
		return
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.tail = t.prev
	}
	l.n--
	t.list, t.prev, t.next = nil, nil, nil
}

func (t *tx) idle() bool {
	return t.sending == 0 && !t.queued && !t.waiting && !t.revoking && !t.draining
}

func (t *tx) wrID(k wrKind) uint64 { return makeWRID(k, t.idx, t.gen.Load()) }

// txTable finds a tx by the index in a work request id. Indexes are given out a pool at a time and used
// again when a pool is gone. Reading takes no lock.
type txTable struct {
	mu   sync.Mutex
	free []uint32
	all  atomic.Pointer[[]*tx]
}

func (tt *txTable) get(idx uint32) *tx {
	if p := tt.all.Load(); p != nil && int(idx) < len(*p) {
		return (*p)[idx]
	}
	return nil
}

func (tt *txTable) add(txs []*tx) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	var old []*tx
	if p := tt.all.Load(); p != nil {
		old = *p
	}
	all := make([]*tx, len(old), len(old)+len(txs))
	copy(all, old)
	for _, t := range txs {
		if n := len(tt.free); n > 0 {
			t.idx = tt.free[n-1]
			tt.free = tt.free[:n-1]
			all[t.idx] = t
			continue
		}
		t.idx = uint32(len(all))
		all = append(all, t)
	}
	tt.all.Store(&all)
}

func (tt *txTable) remove(txs []*tx) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	old := *tt.all.Load()
	all := make([]*tx, len(old))
	copy(all, old)
	for _, t := range txs {
		all[t.idx] = nil
		tt.free = append(tt.free, t.idx)
	}
	tt.all.Store(&all)
}
