package mem

import (
	"fmt"
	"time"

	"o2ibd/engine/verbs"
)

const (
	foreverRNR = 7                      // retries without end
	rnrTick    = 200 * time.Millisecond // one retry, where the fabric is not stepped
)

type qpState uint8

const (
	qpIdle  qpState = iota // made, not connected: receives may be posted
	qpReady                // connected
	qpError                // everything completes as flushed
)

// opDisconnect is a disconnect in its place among the sends.
const opDisconnect = verbs.OpRecv

// qp implements verbs.QP; fabric.mu guards it. Its send queue is a lane.
type qp struct {
	moves
	id   *id
	pd   *pd
	attr verbs.QPAttr
	num  uint32

	peer   *qp // once connected
	state  qpState
	closed bool
	told   bool  // its owner knows that it is connected
	ending bool  // the peer has ended, which is still to be heard of
	why    error // of ending

	sends queue[verbs.SendWR]
	recvs queue[verbs.RecvWR]
	nsend int // posted requests among sends
	sent  completions
	recvd completions

	waits     bool // the send at the head found no receive
	counts    bool // and its retries are counted: those left, or the timer
	rnr       int
	timer     *time.Timer
	inWaiting bool // of the fabric
}

// completions are those of one of a queue pair's two queues, on their way to the completion queue: a lane.
type completions struct {
	moves
	q      *qp
	cq     *cq
	coming queue[verbs.WC]
}

func (c *completions) add(wc verbs.WC) {
	wc.QPNum = c.q.num
	if !c.q.id.n.f.opt.Stepped {
		c.cq.Add(wc)
		return
	}
	c.coming.push(wc)
	c.q.id.n.f.kick(c)
}

func (c *completions) ready() bool { return c.coming.n > 0 && !c.q.closed }

func (c *completions) step() {
	wc := *c.coming.first()
	c.coming.pop()
	c.cq.Add(wc)
	c.q.id.n.f.trace("qp %d completes %v %d: %v", wc.QPNum, wc.Op, wc.ID, wc.Status)
}

func newQP(i *id, p *pd, c *cq, attr verbs.QPAttr) *qp {
	q := &qp{id: i, pd: p, attr: attr, num: i.n.f.qpNum}
	q.sent.q, q.sent.cq = q, c
	q.recvd.q, q.recvd.cq = q, c
	return q
}

func (q *qp) Num() uint32 { return q.num }

// ToError implements verbs.QP. The peer finds out by its connection manager.
func (q *qp) ToError() error {
	q.id.n.f.mu.Lock()
	defer q.id.n.f.mu.Unlock()
	q.fail(verbs.WCFlushed, nil)
	return nil
}

// Close implements verbs.QP. Completions that are still on their way are lost, as a queue pair's are that
// is not drained.
func (q *qp) Close() error {
	q.id.n.f.mu.Lock()
	defer q.id.n.f.mu.Unlock()
	q.fail(verbs.WCFlushed, nil)
	q.closed = true
	return nil
}

// postRecvs takes receives up to the first that cannot be.
func (q *qp) postRecvs(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		switch {
		case q.recvs.n >= q.attr.MaxRecvWR:
			return i, fmt.Errorf("receive queue of %d: %w", q.attr.MaxRecvWR, verbs.ErrQueueFull)
		case int(wrs[i].NSGE) > min(q.attr.MaxRecvSGE, verbs.MaxSGE):
			return i, fmt.Errorf("receive of %d elements: at most %d", wrs[i].NSGE, q.attr.MaxRecvSGE)
		case q.state == qpError:
			q.recvd.add(verbs.WC{ID: wrs[i].ID, Op: verbs.OpRecv, Status: verbs.WCFlushed})
		default:
			q.recvs.push(wrs[i])
		}
	}
	if p := q.peer; p != nil && p.waits && q.recvs.n > 0 {
		p.waits = false
		q.id.n.f.kick(p)
	}
	return len(wrs), nil
}

// postSends takes a chain up to the first that cannot be, and carries it out where the fabric is not
// stepped.
func (q *qp) postSends(wrs []verbs.SendWR) (n int, err error) {
	for n = range wrs {
		switch {
		case q.state == qpIdle:
			err = fmt.Errorf("send on a queue pair that is not connected: %w", verbs.ErrState)
		case q.nsend >= q.attr.MaxSendWR:
			err = fmt.Errorf("send queue of %d: %w", q.attr.MaxSendWR, verbs.ErrQueueFull)
		case int(wrs[n].NSGE) > min(q.attr.MaxSendSGE, verbs.MaxSGE):
			err = fmt.Errorf("send of %d elements: at most %d", wrs[n].NSGE, q.attr.MaxSendSGE)
		case wrs[n].Op >= opDisconnect:
			err = fmt.Errorf("%v is not a send request: %w", wrs[n].Op, verbs.ErrUnsupported)
		case q.state == qpError:
			q.sent.add(verbs.WC{ID: wrs[n].ID, Op: wrs[n].Op, Status: verbs.WCFlushed})
		default:
			q.nsend++
			q.sends.push(wrs[n])
		}
		if err != nil {
			q.id.n.f.kick(q)
			return n, err
		}
	}
	q.id.n.f.kick(q)
	return len(wrs), nil
}

// ready implements lane.
func (q *qp) ready() bool {
	return q.state == qpReady && (q.ending || q.sends.n > 0 && !q.waits)
}

// step carries out the request at the head.
func (q *qp) step() {
	f := q.id.n.f
	if q.ending {
		f.trace("qp %d hears that its peer has ended", q.num)
		q.fail(verbs.WCFlushed, q.why)
		return
	}
	wr := q.sends.first()
	status, why := q.execute(wr)
	if f.opt.Trace != nil { // the arguments alone would be allocations
		f.trace("qp %d %v %d: %v", q.num, wr.Op, wr.ID, status)
	}
	switch {
	case status == verbs.WCRNRRetry:
		q.await()
	case status != verbs.WCSuccess:
		q.fail(status, why)
	case q.state == qpReady:
		q.nsend--
		if wr.Signaled {
			q.sent.add(verbs.WC{ID: wr.ID, Op: wr.Op})
		}
		q.sends.pop()
	}
}

// execute does what wr asks for. WCRNRRetry: not now.
func (q *qp) execute(wr *verbs.SendWR) (verbs.WCStatus, error) {
	p, keys := q.peer, q.id.n.keys
	if wr.Op == opDisconnect {
		q.fail(verbs.WCFlushed, nil)
		return verbs.WCSuccess, nil
	}
	switch wr.Op {
	case verbs.OpBindMW:
		if err := keys.Bind(q.pd, q, &wr.Bind); err != nil {
			return verbs.WCBindError, err
		}
		return verbs.WCSuccess, nil
	case verbs.OpLocalInv:
		if err := keys.Invalidate(q.id.n.placer, q, wr.RKey); err != nil {
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
	if q.id.dark() || p.id.dark() || p.state != qpReady {
		return verbs.WCRetryExceeded, errNoAnswer
	}
	switch {
	case wr.Op != verbs.OpWrite && wr.Op != verbs.OpRead:
		return q.deliver(wr, pieces[:wr.NSGE], total)
	case total == 0:
		return verbs.WCSuccess, nil // touches nothing, so its key does not count
	}
	need := verbs.RemoteWrite
	if wr.Op == verbs.OpRead {
		need = verbs.RemoteRead
	}
	placer := p.id.n.placer
	there, err := p.id.n.keys.Remote(placer, p.pd, p, wr.RKey, wr.RemoteAddr, total, need)
	if err != nil {
		return verbs.WCRemoteAccess, err
	}
	defer placer.Done()
	for _, b := range pieces[:wr.NSGE] {
		if wr.Op == verbs.OpRead {
			copy(b, there)
		} else {
			copy(there, b)
		}
		there = there[len(b):]
	}
	return verbs.WCSuccess, nil
}

// deliver puts a send into the peer's next receive.
func (q *qp) deliver(wr *verbs.SendWR, pieces [][]byte, total int) (verbs.WCStatus, error) {
	p := q.peer
	if p.recvs.n == 0 {
		return verbs.WCRNRRetry, nil
	}
	q.stopCounting()
	wc := verbs.WC{ID: p.recvs.first().ID, Op: verbs.OpRecv, ByteLen: uint32(total)}
	status, err := p.place(p.recvs.first(), pieces, total)
	if status == verbs.WCSuccess && wr.Op == verbs.OpSendInv {
		if err = p.id.n.keys.Invalidate(p.id.n.placer, p, wr.RKey); err != nil {
			status = verbs.WCLocalAccess
		}
		wc.InvKey = wr.RKey
	}
	wc.Status = status
	p.recvs.pop()
	if !p.told {
		p.told = true
		p.id.event(verbs.Event{Type: verbs.EventCommEst})
	}
	p.recvd.add(wc)
	if status != verbs.WCSuccess {
		return verbs.WCRemoteInvalid, err
	}
	return verbs.WCSuccess, nil
}

// place copies a message of total bytes into the memory of receive r of q.
func (q *qp) place(r *verbs.RecvWR, pieces [][]byte, total int) (verbs.WCStatus, error) {
	room := 0
	var sinks [verbs.MaxSGE][]byte
	for i := range r.SGE[:r.NSGE] {
		b, err := q.id.n.keys.Local(q.pd, r.SGE[i], true)
		if err != nil {
			return verbs.WCLocalAccess, err
		}
		sinks[i] = b
		room += len(b)
	}
	if total > room {
		return verbs.WCLocalLength, fmt.Errorf("a message of %d bytes for a receive of %d", total, room)
	}
	k := 0
	for _, b := range pieces {
		for len(b) > 0 {
			if len(sinks[k]) == 0 {
				k++
				continue
			}
			n := copy(sinks[k], b)
			sinks[k], b = sinks[k][n:], b[n:]
		}
	}
	return verbs.WCSuccess, nil
}

// rnrRetries is how often the peer wants to be asked again for a receive: each side says that for itself
// when it connects.
func (q *qp) rnrRetries() int { return int(q.peer.id.param.RNRRetryCount) }

// await leaves the send at the head until the peer posts a receive or the retries are used up.
func (q *qp) await() {
	f := q.id.n.f
	q.waits = true
	if f.opt.Stepped && !q.inWaiting {
		q.inWaiting = true
		f.waiting = append(f.waiting, q)
	}
	if q.counts {
		return
	}
	q.counts, q.rnr = true, q.rnrRetries()
	if f.opt.Stepped || q.rnr == foreverRNR {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(time.Duration(q.rnr+1)*rnrTick, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if q.timer == t {
			q.fail(verbs.WCRNRRetry, errNoReceive)
		}
	})
	q.timer = t
}

func (q *qp) stopCounting() {
	q.counts = false
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// fail ends q as end does and lets the peer know, if word can still pass.
func (q *qp) fail(status verbs.WCStatus, why error) {
	was := q.state
	q.end(status, why)
	p := q.peer
	if was != qpReady || p.state != qpReady || q.id.dark() || p.id.dark() {
		return
	}
	p.ending, p.why = true, why
	q.id.n.f.kick(p)
}

// end moves q to error: the request at the head completes with status, what is behind it and the receives
// as flushed, and the owner is told. It does so once, so that a connection ends once.
func (q *qp) end(status verbs.WCStatus, why error) {
	if q.state == qpError {
		return
	}
	was := q.state
	q.state, q.waits = qpError, false
	q.stopCounting()
	for ; q.sends.n > 0; q.sends.pop() {
		if wr := q.sends.first(); wr.Op != opDisconnect {
			q.sent.add(verbs.WC{ID: wr.ID, Op: wr.Op, Status: status})
		}
		status = verbs.WCFlushed
	}
	q.nsend = 0
	for ; q.recvs.n > 0; q.recvs.pop() {
		q.recvd.add(verbs.WC{ID: q.recvs.first().ID, Op: verbs.OpRecv, Status: verbs.WCFlushed})
	}
	if was == qpReady {
		q.id.event(verbs.Event{Type: verbs.EventDisconnected, Err: why})
	}
}

// disconnect ends an established connection behind what was posted. A send that waits for a receive is
// not waited for.
func (q *qp) disconnect() {
	switch {
	case q.state != qpReady:
	case q.waits:
		q.fail(verbs.WCFlushed, nil)
	default:
		q.sends.push(verbs.SendWR{Op: opDisconnect})
		q.id.n.f.kick(q)
	}
}
