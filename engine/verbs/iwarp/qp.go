package iwarp

import (
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

const (
	// batchFPDUs go out in one vectored write: a write of 1 MiB and the send behind it fit.
	batchFPDUs = 18
	// inlineBytes is what a poster writes itself before it leaves the rest to the connection's writer.
	inlineBytes = 256 << 10
)

// qpState only grows.
type qpState uint8

const (
	qpIdle  qpState = iota // made, not connected: receives may be posted
	qpReady                // connected
	qpError                // everything completes as flushed
)

// sendOp is one piece of work in the send queue: a posted request, or an answer of ours.
type sendOp struct {
	kind     opKind
	id       uint64
	signaled bool
	silent   bool // no completion: an answer to the peer
	op       verbs.Opcode
	nsge     uint8
	sge      [verbs.MaxSGE][]byte
	total    int
	done     int    // bytes that are in FPDUs
	built    bool   // its first FPDU is, or it was carried out
	stag     uint32 // sink of a write or read response; key to invalidate of a send
	to       uint64
	read     readRequest
	bind     verbs.BindMWAttr
	bad      verbs.WCStatus // fails with this when its turn comes
	head     [untaggedSize + readRequestSize]byte
}

type opKind uint8

const (
	opSend opKind = iota
	opWrite
	opReadRequest
	opReadResponse
	opBind
	opInvalidate
	opTerminate
)

// readRequest is the content of an RDMA Read Request.
type readRequest struct {
	sinkTag uint32
	sinkTo  uint64
	size    uint32
	srcTag  uint32
	srcTo   uint64
}

// recvOp is a posted receive.
type recvOp struct {
	id   uint64
	nsge uint8
	sge  [verbs.MaxSGE][]byte
	room int
	bad  bool
}

// qp implements verbs.QP. Posts come from one goroutine; the reader and the writer goroutine of the
// connection run beside it. mu guards the queues and the state; out is held by whoever writes to the
// stream, and comes before mu.
type qp struct {
	pd     *pd
	cq     *soft.CQ
	num    uint32
	attr   verbs.QPAttr
	id     *id
	stream Stream
	crc    bool

	mu       sync.Mutex
	state    qpState
	sends    fifo[sendOp]
	nsend    int // posted requests without completion
	recvs    fifo[recvOp]
	posted   sync.Cond // a receive came, or the state changed
	kick     chan struct{}
	stopped  chan struct{} // closed when the reader touches no memory any more
	quit     chan struct{} // closed when the reader is done
	why      error         // the first reason for qpError; nil: an orderly end
	blocked  bool          // the stream takes no more: the writer goroutine waits for it
	hold     bool          // the peer must send first (RFC 6581 peer-to-peer)
	lastSend bool          // close our direction once the queue is empty
	shut     bool          // it is closed
	reads    fifo[pendingRead]

	out     sync.Mutex
	msn     uint32
	readMSN uint32
	iov     [][]byte
	iovAt   int // first entry of iov that is not written whole
	pending int // bytes of iov not yet written
	fpdus   [batchFPDUs]struct {
		head [maxHead + readRequestSize]byte
		tail [maxTrailer]byte
	}
}

// pendingRead is a read of ours that waits for its response.
type pendingRead struct {
	sink   []byte
	to     uint64
	stag   uint32
	got    int
	id     uint64
	signal bool
}

func (q *qp) Num() uint32 { return q.num }

// postRecvs takes receives; q.mu is not held.
func (q *qp) postRecvs(wrs []verbs.RecvWR) (int, error) {
	keys := q.pd.dev.prov.keys
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		wr := &wrs[i]
		if q.recvs.n >= q.attr.MaxRecvWR {
			return i, fmt.Errorf("receive queue of %d: %w", q.attr.MaxRecvWR, verbs.ErrQueueFull)
		}
		if q.state == qpError {
			q.cq.Add(verbs.WC{ID: wr.ID, Op: verbs.OpRecv, Status: verbs.WCFlushed, QPNum: q.num})
			continue
		}
		op := recvOp{id: wr.ID, nsge: wr.NSGE}
		for k := range wr.SGE[:wr.NSGE] {
			mem, err := keys.Local(q.pd, wr.SGE[k], true)
			if err != nil {
				op.bad = true
				break
			}
			op.sge[k] = mem
			op.room += len(mem)
		}
		q.recvs.push(op)
	}
	q.posted.Broadcast()
	return len(wrs), nil
}

// postSends takes a chain and writes what the stream takes at once.
func (q *qp) postSends(wrs []verbs.SendWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	keys := q.pd.dev.prov.keys
	q.mu.Lock()
	taken := 0
	var err error
	for i := range wrs {
		wr := &wrs[i]
		if q.state == qpIdle {
			err = fmt.Errorf("send on a queue pair that is not connected: %w", verbs.ErrState)
			break
		}
		if q.nsend >= q.attr.MaxSendWR {
			err = fmt.Errorf("send queue of %d: %w", q.attr.MaxSendWR, verbs.ErrQueueFull)
			break
		}
		taken++
		if q.state == qpError || q.lastSend {
			q.cq.Add(verbs.WC{ID: wr.ID, Op: wr.Op, Status: verbs.WCFlushed, QPNum: q.num})
			continue
		}
		q.nsend++
		op := q.sends.next()
		op.fill(keys, q.pd, wr)
	}
	write := !q.blocked && !q.hold && q.state == qpReady && q.sends.n > 0
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
	return taken, err
}

// fill makes o of a posted request; what is wrong with it shows when its turn comes.
func (o *sendOp) fill(keys *soft.Table, p *pd, wr *verbs.SendWR) {
	o.kind, o.id, o.signaled, o.silent, o.op = opSend, wr.ID, wr.Signaled, false, wr.Op
	o.nsge, o.total, o.done, o.built, o.stag, o.to, o.bad = 0, 0, 0, false, 0, 0, verbs.WCSuccess
	switch wr.Op {
	case verbs.OpSend:
	case verbs.OpSendInv:
		o.stag = wr.RKey
	case verbs.OpWrite:
		o.kind, o.stag, o.to = opWrite, wr.RKey, wr.RemoteAddr
	case verbs.OpRead:
		o.kind = opReadRequest
		o.read = readRequest{srcTag: wr.RKey, srcTo: wr.RemoteAddr}
		if wr.NSGE != 1 {
			o.bad = verbs.WCLocalAccess
			return
		}
		mem, err := keys.Local(p, wr.SGE[0], true)
		if err != nil {
			o.bad = verbs.WCLocalAccess
			return
		}
		o.sge[0], o.nsge = mem, 1
		o.read.sinkTag, o.read.sinkTo, o.read.size = wr.SGE[0].LKey, wr.SGE[0].Addr, wr.SGE[0].Length
		o.total = readRequestSize
		return
	case verbs.OpBindMW:
		o.kind, o.bind = opBind, wr.Bind
		return
	case verbs.OpLocalInv:
		o.kind, o.stag = opInvalidate, wr.RKey
		return
	default:
		o.bad = verbs.WCGeneral
		return
	}
	for k := range wr.SGE[:wr.NSGE] {
		mem, err := keys.Local(p, wr.SGE[k], false)
		if err != nil {
			o.bad = verbs.WCLocalAccess
			return
		}
		o.sge[o.nsge] = mem
		o.nsge++
		o.total += len(mem)
	}
}

// answer queues what the peer's request calls for, in order behind what was posted.
func (q *qp) answer(fill func(*sendOp)) {
	q.mu.Lock()
	if q.state != qpReady {
		q.mu.Unlock()
		return
	}
	o := q.sends.next()
	*o = sendOp{silent: true}
	fill(o)
	write := !q.blocked
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
}

// pump builds and writes batches until the queue is empty, the stream is full, or limit bytes were
// written; the writer goroutine does the rest.
func (q *qp) pump(limit int) {
	q.out.Lock()
	defer q.out.Unlock()
	for {
		if q.pending == 0 && !q.build() {
			return
		}
		n, err := q.stream.TryWritev(q.iov[q.iovAt:])
		q.written(n)
		if q.pending == 0 {
			q.complete()
			if limit -= n; limit > 0 {
				continue
			}
			q.mu.Lock()
			more := q.sends.n > 0
			q.blocked = q.blocked || more
			q.mu.Unlock()
			if more {
				q.wakeWriter()
			}
			return
		}
		if err != nil && !errors.Is(err, ErrWouldBlock) {
			q.fail(verbs.WCRetryExceeded, fmt.Errorf("writing to the peer: %w", err), nil)
			return
		}
		q.mu.Lock()
		q.blocked = true
		q.mu.Unlock()
		q.wakeWriter()
		return
	}
}

func (q *qp) wakeWriter() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// writer is the connection's own goroutine for what posters leave.
func (q *qp) writer() {
	for {
		select {
		case <-q.kick:
		case <-q.quit:
			return
		}
		for {
			q.mu.Lock()
			again := q.blocked && q.state == qpReady
			q.mu.Unlock()
			if !again {
				break
			}
			if q.pendingBytes() > 0 {
				if err := q.stream.WaitWritable(); err != nil {
					q.out.Lock()
					q.fail(verbs.WCRetryExceeded, fmt.Errorf("writing to the peer: %w", err), nil)
					q.out.Unlock()
					break
				}
			}
			q.mu.Lock()
			q.blocked = false
			q.mu.Unlock()
			q.pump(1 << 62)
		}
	}
}

func (q *qp) pendingBytes() int {
	q.out.Lock()
	defer q.out.Unlock()
	return q.pending
}

// written advances over n bytes that the stream took.
func (q *qp) written(n int) {
	q.pending -= n
	for n > 0 {
		b := q.iov[q.iovAt]
		if n < len(b) {
			q.iov[q.iovAt] = b[n:]
			return
		}
		n -= len(b)
		q.iov[q.iovAt] = nil
		q.iovAt++
	}
}

// build turns the head of the send queue into one batch of FPDUs. False: there is nothing to write.
func (q *qp) build() bool {
	q.iov, q.iovAt, q.pending = q.iov[:0], 0, 0
	n := 0
	for i := 0; n < batchFPDUs; i++ {
		q.mu.Lock()
		if q.state != qpReady || i >= q.sends.n || q.hold {
			last := q.lastSend && q.sends.n == 0 && !q.shut && q.state == qpReady
			q.shut = q.shut || last
			q.mu.Unlock()
			if last {
				q.stream.CloseWrite()
			}
			break
		}
		o := q.sends.at(i)
		q.mu.Unlock()
		// The op stays in place while out is held: only complete and fail take it off.
		if o.bad != verbs.WCSuccess {
			if n > 0 {
				break // what is in front of it goes first
			}
			q.fail(o.bad, errors.New("a work request names memory that is not registered for it"), nil)
			return false
		}
		switch o.kind {
		case opBind, opInvalidate:
			if n > 0 {
				return true // its effect comes after what is in front of it
			}
			var err error
			if o.kind == opBind {
				err = q.pd.dev.prov.keys.Bind(q.pd, q, &o.bind)
			} else {
				err = q.pd.dev.prov.keys.Invalidate(q, o.stag)
			}
			if err != nil {
				q.fail(verbs.WCBindError, err, nil)
				return false
			}
			o.built = true
			q.complete()
			i = -1
			continue
		}
		for ; (!o.built || o.done < o.total) && n < batchFPDUs; n++ {
			q.frame(o, n)
		}
		if o.done < o.total {
			break
		}
	}
	return q.pending > 0
}

// frame puts the next FPDU of o into the batch as number n.
func (q *qp) frame(o *sendOp, n int) {
	f := &q.fpdus[n]
	k := min(o.total-o.done, maxSegment)
	last := o.done+k == o.total
	var h int
	switch o.kind {
	case opWrite:
		h = putTagged(f.head[:], rdmapWrite, last, o.stag, o.to+uint64(o.done), k)
	case opReadResponse:
		h = putTagged(f.head[:], rdmapReadResponse, last, o.stag, o.to+uint64(o.done), k)
	case opReadRequest:
		q.readMSN++
		h = putUntagged(f.head[:], rdmapReadRequest, true, 0, queueRead, q.readMSN, 0, readRequestSize)
		r := &o.read
		p := f.head[h:]
		be.PutUint32(p, r.sinkTag)
		be.PutUint64(p[4:], r.sinkTo)
		be.PutUint32(p[12:], r.size)
		be.PutUint32(p[16:], r.srcTag)
		be.PutUint64(p[20:], r.srcTo)
		h += readRequestSize
		q.mu.Lock()
		q.reads.push(pendingRead{sink: o.sge[0], stag: r.sinkTag, to: r.sinkTo, id: o.id, signal: o.signaled})
		q.mu.Unlock()
	case opTerminate:
		h = putUntagged(f.head[:], rdmapTerminate, true, 0, queueTerminate, 1, 0, o.total)
		copy(f.head[h:], o.head[:o.total])
		h += o.total
	default:
		if !o.built {
			q.msn++
		}
		op := uint8(rdmapSend)
		if o.op == verbs.OpSendInv {
			op = rdmapSendInv
		}
		h = putUntagged(f.head[:], op, last, o.stag, queueSend, q.msn, uint32(o.done), k)
	}
	q.add(f.head[:h])
	sum := uint32(0)
	if q.crc {
		sum = crc32.Update(0, castagnoli, f.head[:h])
	}
	if o.kind != opReadRequest && o.kind != opTerminate {
		skip, left := o.done, k
		for s := range o.sge[:o.nsge] {
			b := o.sge[s]
			if skip >= len(b) {
				skip -= len(b)
				continue
			}
			b = b[skip:]
			skip = 0
			b = b[:min(len(b), left)]
			left -= len(b)
			q.add(b)
			if q.crc {
				sum = crc32.Update(sum, castagnoli, b)
			}
			if left == 0 {
				break
			}
		}
	}
	o.done += k
	o.built = true
	pad := padOf(int(be.Uint16(f.head[:])))
	clear(f.tail[:])
	if q.crc {
		sum = crc32.Update(sum, castagnoli, f.tail[:pad])
		// CRC32c travels as iSCSI has it: least significant byte first.
		f.tail[pad], f.tail[pad+1], f.tail[pad+2], f.tail[pad+3] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	}
	q.add(f.tail[:pad+crcSize])
}

func (q *qp) add(b []byte) {
	if len(b) > 0 {
		q.iov = append(q.iov, b)
		q.pending += len(b)
	}
}

// complete takes the requests off the queue that are written whole. Reads complete when their response
// came.
func (q *qp) complete() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.sends.n > 0 {
		o := q.sends.at(0)
		if !o.built || o.done < o.total {
			return
		}
		read := o.kind == opReadRequest
		if !o.silent && !read {
			q.nsend--
			if o.signaled {
				q.cq.Add(verbs.WC{ID: o.id, Op: o.op, QPNum: q.num})
			}
		}
		q.sends.pop()
	}
}

// fail moves the queue pair to error; out is held, mu is not. The request at the head completes with
// status, all others as flushed; receives are flushed by the reader, which may be filling one. why is nil
// for an orderly end. With t the peer is sent a Terminate, as far as the stream takes it at once.
func (q *qp) fail(status verbs.WCStatus, why error, t *terminate) {
	q.mu.Lock()
	if q.state == qpError {
		q.mu.Unlock()
		return
	}
	connected := q.state == qpReady
	q.state, q.why = qpError, why
	for i := 0; q.sends.n > 0; i++ {
		o := q.sends.at(0)
		if !o.silent && o.kind != opReadRequest {
			q.cq.Add(verbs.WC{ID: o.id, Op: o.op, Status: status, QPNum: q.num})
			status = verbs.WCFlushed
		}
		if o.kind == opReadRequest && !o.built {
			q.cq.Add(verbs.WC{ID: o.id, Op: o.op, Status: verbs.WCFlushed, QPNum: q.num})
		}
		q.sends.pop()
	}
	for q.reads.n > 0 {
		r := q.reads.at(0)
		q.cq.Add(verbs.WC{ID: r.id, Op: verbs.OpRead, Status: status, QPNum: q.num})
		status = verbs.WCFlushed
		q.reads.pop()
	}
	q.nsend = 0
	if !connected {
		q.flushRecvs()
	}
	q.posted.Broadcast()
	q.mu.Unlock()
	if !connected {
		close(q.stopped)
		return
	}
	if t != nil {
		q.terminate(t)
	}
	q.iov, q.iovAt, q.pending = q.iov[:0], 0, 0
	q.stream.CloseWrite()
	// The reader may be waiting for bytes of the peer: it has to look at the state.
	q.stream.SetReadDeadline(longAgo)
}

// flushRecvs completes the posted receives as flushed; mu is held.
func (q *qp) flushRecvs() {
	for q.recvs.n > 0 {
		q.cq.Add(verbs.WC{ID: q.recvs.at(0).id, Op: verbs.OpRecv, Status: verbs.WCFlushed, QPNum: q.num})
		q.recvs.pop()
	}
}

// terminate writes a Terminate behind what is half written, if the stream takes both at once.
func (q *qp) terminate(t *terminate) {
	if q.pending > 0 {
		n, _ := q.stream.TryWritev(q.iov[q.iovAt:])
		if q.written(n); q.pending > 0 {
			return
		}
	}
	o := sendOp{kind: opTerminate, total: 4}
	o.head[0], o.head[1] = t.layer<<4|t.etype, t.code
	q.iov, q.iovAt, q.pending = q.iov[:0], 0, 0
	q.frame(&o, 0)
	// Whether it arrives or not, the connection ends.
	_, _ = q.stream.TryWritev(q.iov)
}

// ToError implements verbs.QP.
func (q *qp) ToError() error {
	q.out.Lock()
	q.fail(verbs.WCFlushed, nil, nil)
	q.out.Unlock()
	return nil
}

// Close implements verbs.QP. It waits until the reader and the writer can touch no memory any more.
func (q *qp) Close() error {
	if err := q.ToError(); err != nil {
		return err
	}
	<-q.stopped
	q.id.forgetQP(q)
	return nil
}
