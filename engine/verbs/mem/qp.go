package mem

import (
	"errors"
	"fmt"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

type qpState uint8

const (
	qpIdle qpState = iota
	qpReady
	qpError
)

// opDisconnect is a disconnect in its place among the sends.
const opDisconnect = verbs.OpRecv

// qp implements verbs.QP; fabric.mu guards it. Its send queue is a lane.
type qp struct {
	id     *id
	pd     *pd
	cq     *soft.CQ
	attr   verbs.QPAttr
	num    uint32
	peer   *qp
	state  qpState
	closed bool
	sends  queue[verbs.SendWR]
	recvs  queue[verbs.RecvWR]
	nsend  int
	rnr    int // attempts left for the send at the head
	waits  bool
	timer  *time.Timer
	rtu    bool // the passive side was told
}

// queue is a FIFO that allocates only to grow.
type queue[T any] struct {
	ring []T
	head int
	n    int
}

func (q *queue[T]) push(v T) {
	if q.n == len(q.ring) {
		bigger := make([]T, max(8, 2*len(q.ring)))
		for i := range q.n {
			bigger[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = v
	q.n++
}

func (q *queue[T]) first() *T { return &q.ring[q.head] }

func (q *queue[T]) pop() {
	var zero T
	q.ring[q.head] = zero
	q.head = (q.head + 1) % len(q.ring)
	q.n--
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) postRecvs(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		if q.recvs.n >= q.attr.MaxRecvWR {
			return i, fmt.Errorf("receive queue of %d: %w", q.attr.MaxRecvWR, verbs.ErrQueueFull)
		}
		if q.state == qpError {
			q.cq.Add(verbs.WC{ID: wrs[i].ID, Op: verbs.OpRecv, Status: verbs.WCFlushed, QPNum: q.num})
			continue
		}
		q.recvs.push(wrs[i])
	}
	if p := q.peer; p != nil && p.waits && q.recvs.n > 0 {
		p.waits = false
		q.id.n.f.kick(p)
	}
	return len(wrs), nil
}

func (q *qp) postSends(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		switch {
		case q.state == qpIdle:
			return i, fmt.Errorf("send on a queue pair that is not connected: %w", verbs.ErrState)
		case q.nsend >= q.attr.MaxSendWR:
			return i, fmt.Errorf("send queue of %d: %w", q.attr.MaxSendWR, verbs.ErrQueueFull)
		case q.state == qpError:
			q.cq.Add(verbs.WC{ID: wrs[i].ID, Op: wrs[i].Op, Status: verbs.WCFlushed, QPNum: q.num})
			continue
		}
		q.nsend++
		q.sends.push(wrs[i])
		if q.sends.n == 1 {
			q.rnr = q.retries()
		}
	}
	q.id.n.f.kick(q)
	return len(wrs), nil
}

func (q *qp) retries() int { return int(q.id.param.RNRRetryCount) }

func (q *qp) ready() bool { return q.state == qpReady && q.sends.n > 0 && !q.waits }

func (q *qp) dead() bool { return q.closed }

// step carries out the request at the head.
func (q *qp) step() string {
	wr := q.sends.first()
	what := ""
	if q.id.n.f.opt.Trace != nil {
		what = fmt.Sprintf("qp %d %v %d", q.num, wr.Op, wr.ID)
	}
	status, why := q.execute(wr)
	switch {
	case status == verbs.WCRNRRetry:
		return what
	case status != verbs.WCSuccess:
		q.fail(status, why)
		return what + status.String()
	case q.state != qpReady:
		return what
	}
	if wr.Op != opDisconnect {
		q.nsend--
		if wr.Signaled {
			q.cq.Add(verbs.WC{ID: wr.ID, Op: wr.Op, QPNum: q.num})
		}
	}
	q.sends.pop()
	q.rnr = q.retries()
	return what
}

// execute does what wr asks for. WCRNRRetry: not now.
func (q *qp) execute(wr *verbs.SendWR) (verbs.WCStatus, error) {
	p := q.peer
	keys := q.id.n.keys
	if wr.Op == opDisconnect {
		q.end(nil)
		p.end(nil)
		return verbs.WCSuccess, nil
	}
	if p.id.n.vanished || p.state != qpReady {
		return verbs.WCRetryExceeded, errors.New("the peer does not answer")
	}
	switch wr.Op {
	case verbs.OpBindMW:
		if err := keys.Bind(q.pd, q, &wr.Bind); err != nil {
			return verbs.WCBindError, err
		}
		return verbs.WCSuccess, nil
	case verbs.OpLocalInv:
		if err := keys.Invalidate(q, wr.RKey); err != nil {
			return verbs.WCBindError, err
		}
		return verbs.WCSuccess, nil
	}
	var pieces [verbs.MaxSGE][]byte
	total := 0
	for i := range wr.SGE[:wr.NSGE] {
		b, err := keys.Local(q.pd, wr.SGE[i], wr.Op == verbs.OpRead)
		if err != nil {
			return verbs.WCLocalAccess, err
		}
		pieces[i] = b
		total += len(b)
	}
	switch wr.Op {
	case verbs.OpWrite:
		if total == 0 {
			return verbs.WCSuccess, nil
		}
		to, err := p.id.n.keys.Remote(p.pd, p, wr.RKey, wr.RemoteAddr, total, verbs.RemoteWrite)
		if err != nil {
			return verbs.WCRemoteAccess, err
		}
		gather(to, pieces[:wr.NSGE])
		return verbs.WCSuccess, nil
	case verbs.OpRead:
		from, err := p.id.n.keys.Remote(p.pd, p, wr.RKey, wr.RemoteAddr, total, verbs.RemoteRead)
		if err != nil {
			return verbs.WCRemoteAccess, err
		}
		for _, b := range pieces[:wr.NSGE] {
			from = from[copy(b, from):]
		}
		return verbs.WCSuccess, nil
	}
	return q.deliver(wr, pieces[:wr.NSGE], total)
}

func gather(to []byte, pieces [][]byte) {
	for _, b := range pieces {
		to = to[copy(to, b):]
	}
}

// deliver puts a send into the peer's next receive.
func (q *qp) deliver(wr *verbs.SendWR, pieces [][]byte, total int) (verbs.WCStatus, error) {
	p := q.peer
	if p.recvs.n == 0 {
		return q.notReady()
	}
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	r := p.recvs.first()
	wc := verbs.WC{ID: r.ID, Op: verbs.OpRecv, ByteLen: uint32(total), QPNum: p.num}
	status, why := verbs.WCSuccess, error(nil)
	left := pieces
	for i := range r.SGE[:r.NSGE] {
		b, err := p.id.n.keys.Local(p.pd, r.SGE[i], true)
		if err != nil {
			wc.Status, status, why = verbs.WCLocalAccess, verbs.WCRemoteInvalid, err
			break
		}
		for len(b) > 0 && len(left) > 0 {
			k := copy(b, left[0])
			b = b[k:]
			if left[0] = left[0][k:]; len(left[0]) == 0 {
				left = left[1:]
			}
		}
	}
	for _, b := range left {
		if len(b) > 0 && status == verbs.WCSuccess {
			wc.Status, status, why = verbs.WCLocalLength, verbs.WCRemoteInvalid, errors.New("the message is longer than the peer's receive")
		}
	}
	if wr.Op == verbs.OpSendInv && status == verbs.WCSuccess {
		if err := p.id.n.keys.Invalidate(p, wr.RKey); err != nil {
			wc.Status, status, why = verbs.WCLocalAccess, verbs.WCRemoteInvalid, err
		}
		wc.InvKey = wr.RKey
	}
	p.recvs.pop()
	if !p.rtu {
		p.rtu = true
		p.id.event(verbs.Event{Type: verbs.EventCommEst})
	}
	p.cq.Add(wc)
	return status, why
}

// notReady counts an attempt that found no receive. Stepped, each turn is one; else a timer ends it.
func (q *qp) notReady() (verbs.WCStatus, error) {
	f := q.id.n.f
	gone := errors.New("the peer posts no receive")
	switch {
	case q.retries() == 7:
		q.waits = true
	case !f.opt.Stepped:
		q.waits = true
		if q.timer == nil {
			q.timer = time.AfterFunc(time.Duration(q.retries()+1)*200*time.Millisecond, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				if q.state == qpReady && q.waits {
					q.fail(verbs.WCRNRRetry, gone)
				}
			})
		}
	case q.rnr == 0:
		q.fail(verbs.WCRNRRetry, gone)
	default:
		q.rnr--
	}
	return verbs.WCRNRRetry, nil
}

// fail ends the connection: the request at the head completes with status, the rest as flushed, on both
// sides.
func (q *qp) fail(status verbs.WCStatus, why error) {
	if q.state == qpReady && q.sends.n > 0 && q.sends.first().Op != opDisconnect {
		wr := q.sends.first()
		q.cq.Add(verbs.WC{ID: wr.ID, Op: wr.Op, Status: status, QPNum: q.num})
		q.sends.pop()
	}
	q.end(why)
	if p := q.peer; p != nil && !p.id.n.vanished {
		p.end(why)
	}
}

// end moves q to error and tells its owner once.
func (q *qp) end(why error) {
	was := q.state
	q.flush()
	if was == qpReady {
		q.id.disconnected(why)
	}
}

func (q *qp) flush() {
	q.state, q.waits = qpError, false
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	for ; q.sends.n > 0; q.sends.pop() {
		if wr := q.sends.first(); wr.Op != opDisconnect {
			q.cq.Add(verbs.WC{ID: wr.ID, Op: wr.Op, Status: verbs.WCFlushed, QPNum: q.num})
		}
	}
	for ; q.recvs.n > 0; q.recvs.pop() {
		q.cq.Add(verbs.WC{ID: q.recvs.first().ID, Op: verbs.OpRecv, Status: verbs.WCFlushed, QPNum: q.num})
	}
	q.nsend = 0
}

// ToError implements verbs.QP. The peer finds out by its connection manager.
func (q *qp) ToError() error {
	q.id.n.f.mu.Lock()
	defer q.id.n.f.mu.Unlock()
	if q.state != qpError {
		q.fail(verbs.WCFlushed, nil)
	}
	return nil
}

func (q *qp) Close() error {
	if err := q.ToError(); err != nil {
		return err
	}
	q.id.n.f.mu.Lock()
	q.closed = true
	q.id.n.f.mu.Unlock()
	return nil
}
