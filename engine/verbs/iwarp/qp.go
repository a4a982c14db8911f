package iwarp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// qpState only grows.
type qpState uint8

const (
	qpIdle  qpState = iota // made, not connected: receives may be posted
	qpReady                // connected
	qpError                // everything completes as flushed
)

// maxAnswers bounds the reads of a peer that wait for their answer.
const maxAnswers = 128

// sendOp is one piece of work for the writer: a posted request, or the answer to a peer's read.
type sendOp struct {
	kind     opKind
	id       uint64
	signaled bool
	fence    bool
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
}

type opKind uint8

const (
	opSend opKind = iota
	opWrite
	opReadRequest
	opReadResponse
	opBind
	opInvalidate
)

// begun says that some of o is in FPDUs and more is not; written, that all of it is.
func (o *sendOp) begun() bool   { return o.built && o.done < o.total }
func (o *sendOp) written() bool { return o.built && o.done == o.total }

// local says that o needs no stream: it is bad, or changes keys.
func (o *sendOp) local() bool {
	return o.bad != verbs.WCSuccess || o.kind == opBind || o.kind == opInvalidate
}

// recvOp is a posted receive.
type recvOp struct {
	id   uint64
	nsge uint8
	sge  [verbs.MaxSGE][]byte
	room int
	bad  bool
}

// awaited is a request that was written and may not complete yet: a read whose response is not here, or
// what was posted behind one.
type awaited struct {
	id       uint64
	op       verbs.Opcode
	signaled bool
	sink     []byte // reads
	to       uint64
	stag     uint32
	got      int
}

// qp implements verbs.QP. Posts come from one goroutine; the reader and the writer goroutine of the
// connection run beside it. mu guards the queues and the state; out is held by whoever writes to the
// stream, and comes before mu. Posters never wait for out: who holds it looks at the queues again.
type qp struct {
	pd     *pd
	cq     *soft.CQ
	num    uint32
	attr   verbs.QPAttr
	id     *id
	placer *soft.Placer
	stream Stream
	crc    bool

	kick    chan struct{}
	stopped chan struct{} // closed when the reader touches no memory any more
	quit    chan struct{} // closed when the reader is done

	mu       sync.Mutex
	state    qpState
	why      error          // the first reason for qpError; nil: an orderly end
	failed   verbs.WCStatus // of the oldest request then
	sends    fifo[sendOp]
	nsend    int // posted requests without completion
	waiting  fifo[awaited]
	answers  fifo[sendOp] // to reads of the peer, which wait for nothing that was posted
	recvs    fifo[recvOp]
	ended    bool        // requests complete at once
	flushed  bool        // receives complete at once: nothing is placed any more
	posted   sync.Cond   // a receive came, or the state changed
	blocked  bool        // the stream takes no more: the writer goroutine waits for it
	fenced   bool        // the head of sends waits for our reads
	answered bool        // the last message that was framed is an answer
	hold     bool        // the peer must send first (RFC 6581 peer-to-peer)
	lastSend bool        // close our direction once the queues are empty
	shut     bool        // it is closed
	patience *time.Timer // for the peer to close its direction

	out     sync.Mutex
	msn     uint32
	readMSN uint32
	iov     [][]byte
	iovAt   int // first entry of iov that is not written whole
	pending int // bytes of iov not yet written
	fpdus   [batchFPDUs]struct {
		head [maxHead + terminateSize]byte
		tail [maxTrailer]byte
	}
}

func newQP(i *id, p *pd, cq *soft.CQ, attr verbs.QPAttr) *qp {
	q := &qp{pd: p, cq: cq, num: i.prov.lastQP.Add(1), attr: attr, id: i, kick: make(chan struct{}, 1),
		stopped: make(chan struct{}), quit: make(chan struct{}), iov: make([][]byte, 0, 4*batchFPDUs)}
	q.posted.L = &q.mu
	q.placer = p.dev.prov.keys.NewPlacer(q.cutOff)
	return q
}

func (q *qp) Num() uint32 { return q.num }

// ready connects the queue pair. False: it is in error.
func (q *qp) ready(s Stream, crc, hold bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != qpIdle {
		return false
	}
	q.stream, q.crc, q.hold, q.state = s, crc, hold, qpReady
	return true
}

// postRecvs takes receives.
func (q *qp) postRecvs(wrs []verbs.RecvWR) (int, error) {
	keys := q.pd.dev.prov.keys
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		wr := &wrs[i]
		if q.recvs.n >= q.attr.MaxRecvWR {
			return i, fmt.Errorf("receive queue of %d: %w", q.attr.MaxRecvWR, verbs.ErrQueueFull)
		}
		if q.flushed {
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
		if q.ended || q.state == qpReady && q.lastSend {
			q.cq.Add(verbs.WC{ID: wr.ID, Op: wr.Op, Status: verbs.WCFlushed, QPNum: q.num})
			continue
		}
		q.nsend++
		q.sends.next().fill(keys, q.pd, wr)
	}
	write := q.writable()
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
	return taken, err
}

// fill makes o of a posted request; what is wrong with it shows when its turn comes.
func (o *sendOp) fill(keys *soft.Table, p *pd, wr *verbs.SendWR) {
	o.kind, o.id, o.signaled, o.fence, o.op = opSend, wr.ID, wr.Signaled, wr.Fence, wr.Op
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

// answer queues the response to a read of the peer. False: there are too many already.
func (q *qp) answer(req *readRequest, mem []byte) bool {
	q.mu.Lock()
	if q.answers.n >= maxAnswers {
		q.mu.Unlock()
		return false
	}
	if q.state == qpReady && !q.shut {
		q.placer.Reading(+1)
		o := q.answers.next()
		*o = sendOp{kind: opReadResponse, op: verbs.OpRead, stag: req.sinkTag, to: req.sinkTo, total: len(mem), nsge: 1}
		o.sge[0] = mem
	}
	write := q.writable()
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
	return true
}

// oldestRead is the read whose response is due, nil without one. It stays where it is until responded.
func (q *qp) oldestRead() *awaited {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting.n == 0 {
		return nil
	}
	return q.waiting.at(0)
}

// responded completes the oldest read, and what only waited for it.
func (q *qp) responded() {
	q.mu.Lock()
	for first := true; q.waiting.n > 0; first = false {
		a := q.waiting.at(0)
		if !first && a.op == verbs.OpRead {
			break
		}
		q.succeed(a.id, a.op, a.signaled)
		q.waiting.pop()
	}
	if q.waiting.n == 0 {
		q.fenced = false
	}
	write := q.writable()
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
}

// succeed completes a posted request; mu is held.
func (q *qp) succeed(id uint64, op verbs.Opcode, signaled bool) {
	q.nsend--
	if signaled {
		q.cq.Add(verbs.WC{ID: id, Op: op, QPNum: q.num})
	}
}

// complete takes what is written whole off the queues. Requests complete unless a read is before them; a
// read completes when its response came.
func (q *qp) complete() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; q.sends.n > 0 && q.sends.at(0).written(); q.sends.pop() {
		o := q.sends.at(0)
		switch {
		case o.kind == opReadRequest: // it waits already
		case q.waiting.n > 0:
			*q.waiting.next() = awaited{id: o.id, op: o.op, signaled: o.signaled}
		default:
			q.succeed(o.id, o.op, o.signaled)
		}
	}
	for q.answers.n > 0 && q.answers.at(0).written() {
		q.answers.pop()
		q.placer.Reading(-1)
	}
}

// fail moves the queue pair to error; out is held, mu is not. The oldest request completes with status, all
// others as flushed; receives are flushed by the reader, which may be filling one, and requests too where it
// may be placing the answer to a read. why is nil for an orderly
// end. With t the peer is sent a Terminate, as far as the stream takes it at once.
func (q *qp) fail(status verbs.WCStatus, why error, t *terminate) {
	q.mu.Lock()
	if q.state == qpError {
		q.mu.Unlock()
		return
	}
	connected := q.state == qpReady
	q.state, q.why = qpError, why
	q.failed = status
	if q.patience != nil {
		q.patience.Stop()
	}
	q.posted.Broadcast()
	if !connected {
		q.flushSends()
		q.flushRecvs()
		q.mu.Unlock()
		close(q.stopped)
		return
	}
	q.mu.Unlock()
	if t != nil {
		q.terminate(t)
	}
	q.iov, q.iovAt, q.pending = q.iov[:0], 0, 0
	q.mu.Lock()
	q.placer.Reading(-q.answers.n)
	for q.answers.n > 0 {
		q.answers.pop()
	}
	if q.waiting.n == 0 {
		q.flushSends()
	} // else the reader, which may be placing the answer to a read
	q.mu.Unlock()
	q.stream.CloseWrite()
	// The reader may be waiting for bytes of the peer: it has to look at the state.
	q.stream.SetReadDeadline(longAgo)
}

// flushSends completes the requests, and those that will be posted: the oldest with the status of the failure,
// the others as flushed; mu is held.
func (q *qp) flushSends() {
	status := q.failed
	flush := func(id uint64, op verbs.Opcode) {
		q.cq.Add(verbs.WC{ID: id, Op: op, Status: status, QPNum: q.num})
		status = verbs.WCFlushed
	}
	for ; q.waiting.n > 0; q.waiting.pop() {
		flush(q.waiting.at(0).id, q.waiting.at(0).op)
	}
	for ; q.sends.n > 0; q.sends.pop() {
		// A read whose request is framed is among the waiting.
		if o := q.sends.at(0); o.kind != opReadRequest || !o.built {
			flush(o.id, o.op)
		}
	}
	q.nsend = 0
	q.failed, q.ended = verbs.WCFlushed, true
}

// flushRecvs completes the posted receives as flushed, and those that will be posted. When it is called
// nothing of the peer is placed any more, so that a receive which is posted in error tells when that is;
// mu is held.
func (q *qp) flushRecvs() {
	q.flushed = true
	for ; q.recvs.n > 0; q.recvs.pop() {
		q.cq.Add(verbs.WC{ID: q.recvs.at(0).id, Op: verbs.OpRecv, Status: verbs.WCFlushed, QPNum: q.num})
	}
}

// errPatience is the reason when an orderly end took too long.
var errPatience = errors.New("the peer did not end the connection in time after we did")

// finish has our direction closed behind what is posted. The peer has d to close the other.
func (q *qp) finish(d time.Duration) {
	q.mu.Lock()
	if q.state == qpReady && !q.lastSend {
		q.patience = time.AfterFunc(d, func() {
			q.out.Lock()
			q.fail(verbs.WCFlushed, errPatience, nil)
			q.out.Unlock()
		})
	}
	q.lastSend = true
	write := q.writable()
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
}

// cutOff ends the connection because a region goes away that the peer is using.
func (q *qp) cutOff() {
	q.out.Lock()
	t := protection(0, "a region was closed while the peer used it")
	q.fail(verbs.WCFlushed, t, t)
	q.out.Unlock()
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
	q.placer.Close()
	q.id.forgetQP(q)
	return nil
}
