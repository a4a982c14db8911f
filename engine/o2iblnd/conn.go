package o2iblnd

import (
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// connState of a connection; it only increases (spec o2iblnd 2.1).
type connState uint8

const (
	connInit connState = iota
	connActiveConnect
	connPassiveWait
	connEstablished
	connClosing
	connDisconnected
)

func (s connState) String() string {
	return [...]string{"init", "active_connect", "passive_wait", "established", "closing", "disconnected"}[s]
}

// conn is one connection. It is built by connd, which owns the fields under "connd"; everything under
// "scheduler" belongs to sched from attach to drained; the rest is written before attach only, but for
// the negotiated values that come with establish.
type conn struct {
	id       uint64
	peer     *peer
	ni       *ni
	hdev     *hcaDev
	sched    *scheduler
	schedIdx int
	slot     uint32 // index in sched.conns, and in the id of receive work requests
	gen      uint32
	active   bool // we sent the CONNREQ
	cm       verbs.ID
	qp       verbs.QP
	rxs      []rx
	rxMem    []arena.Buffer

	// connd
	started      time.Time
	attempt      *attempt // active, until it is decided
	offered      wire.ConnParams
	est          *establishment // what was negotiated
	version      wire.Version
	setup        connState // connd's view
	reconnect    bool
	disconnected bool // the CM said so
	drained      bool
	reapBy       time.Time // when it is closed even though the CM is silent

	// scheduler
	state       connState
	acct        credits.Conn
	incarnation uint64
	maxFrags    int
	closeWhy    *reason
	brokenAt    time.Time // when its QP was first seen to flush
	finalised   bool
	flushed     bool // the queue pair is: nothing is placed any more
	drainSent   bool
	nrx         int // receive buffers that are posted, or held by LNet
	early       []*rx
	txQueue     txList
	txNocred    txList
	txRsrvd     txList
	txNoops     txList
	activeTxs   txList
	lastSend    time.Time
	ready       time.Time // when it was established
	sending     bool      // checkSends is running
	again       bool      // and must run once more
	dirty       bool      // on sched.dirty: has something to post or to publish
	unsettled   bool      // on sched.unsettled: its published counters are old
	stalled     bool      // the head of txQueue waits for a credit
	toPost      []*tx
	toRevoke    []*tx // whose windows are to be invalidated
	toRecv      []uint16
	cksum       wire.CksumKind // the variant the peer was seen to use
	count       connCounts
	recent      heads

	pub connPub
}

// connCounts are a connection's counters, since its start.
type connCounts struct {
	txMsgs, rxMsgs, txBytes, rxBytes, writes, noopsSent, noopsReceived, creditStalls uint64
}

// connPub is what readers see of a connection: the scheduler stores it when the state changes, when it
// goes idle and every publishEvery, so that reading never slows it.
type connPub struct {
	state, credits, outstanding, reserved, depth, highWater, maxFrags, version      atomic.Int32
	sendsPosted, noopsPosted, txQueue, txNocred, txRsrvd, txNoops, activeTxs, nrx   atomic.Int32
	lastSend, ready                                                                 atomic.Int64 // ms since the epoch, 0 = never
	incarnation                                                                     atomic.Uint64
	cksum                                                                           atomic.Int32
	txMsgs, rxMsgs, txBytes, rxBytes, writes, noopsSent, noopsReceived, creditStall atomic.Uint64
}

func (c *conn) publish() {
	p := &c.pub
	p.state.Store(int32(c.state))
	p.credits.Store(int32(c.acct.Credits))
	p.outstanding.Store(int32(c.acct.Outstanding))
	p.reserved.Store(int32(c.acct.Reserved))
	p.depth.Store(int32(c.acct.Depth))
	p.highWater.Store(int32(c.acct.HighWater))
	p.version.Store(int32(c.acct.Version))
	p.maxFrags.Store(int32(c.maxFrags))
	p.sendsPosted.Store(int32(c.acct.SendsPosted))
	p.noopsPosted.Store(int32(c.acct.NoopsPosted))
	p.txQueue.Store(int32(c.txQueue.n))
	p.txNocred.Store(int32(c.txNocred.n))
	p.txRsrvd.Store(int32(c.txRsrvd.n))
	p.txNoops.Store(int32(c.txNoops.n))
	p.activeTxs.Store(int32(c.activeTxs.n))
	p.nrx.Store(int32(c.nrx))
	p.lastSend.Store(millis(c.lastSend))
	p.ready.Store(millis(c.ready))
	p.incarnation.Store(c.incarnation)
	p.cksum.Store(int32(c.cksum))
	p.txMsgs.Store(c.count.txMsgs)
	p.rxMsgs.Store(c.count.rxMsgs)
	p.txBytes.Store(c.count.txBytes)
	p.rxBytes.Store(c.count.rxBytes)
	p.writes.Store(c.count.writes)
	p.noopsSent.Store(c.count.noopsSent)
	p.noopsReceived.Store(c.count.noopsReceived)
	p.creditStall.Store(c.count.creditStalls)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// queues lists the five tx lists with the names that the reference prints.
func (c *conn) queues() [5]struct {
	name string
	list *txList
} {
	return [5]struct {
		name string
		list *txList
	}{
		{"tx_queue", &c.txQueue}, {"tx_noops", &c.txNoops}, {"tx_queue_rsrvd", &c.txRsrvd},
		{"tx_queue_nocred", &c.txNocred}, {"active_txs", &c.activeTxs},
	}
}

// Work request ids: kind in the low 3 bits, then a 29-bit index, then a 32-bit generation
// (spec o2iblnd 4.8). A receive's index is the conn's slot and the number of the buffer.
type wrKind uint64

const (
	wrInvalid wrKind = iota
	wrTx
	wrRx
	wrRDMA
	wrMR    // invalidation of a window
	wrBind  // binding of one
	wrDrain // the receive behind all others of a queue pair in error

	wrKindBits = 3
	wrIdxBits  = 29
	rxNumBits  = 9 // 2 * 255 + 2 receives at most
	maxSlots   = 1 << (wrIdxBits - rxNumBits)
)

func makeWRID(k wrKind, idx, gen uint32) uint64 {
	return uint64(k) | uint64(idx)<<wrKindBits | uint64(gen)<<(wrKindBits+wrIdxBits)
}

func splitWRID(id uint64) (k wrKind, idx, gen uint32) {
	return wrKind(id & (1<<wrKindBits - 1)), uint32(id>>wrKindBits) & (1<<wrIdxBits - 1), uint32(id >> (wrKindBits + wrIdxBits))
}

func drainWRID(c *conn) uint64 { return makeWRID(wrDrain, c.slot<<rxNumBits, c.gen) }

func rxWRID(c *conn, num uint16) uint64 {
	return makeWRID(wrRx, c.slot<<rxNumBits|uint32(num), c.gen)
}
