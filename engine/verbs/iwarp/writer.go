package iwarp

import (
	"errors"
	"fmt"
	"hash/crc32"

	"o2ibd/engine/verbs"
)

const (
	// batchFPDUs go out in one vectored write: a write of 1 MiB and the send behind it fit.
	batchFPDUs = 18
	// inlineBytes is what a poster writes itself before it leaves the rest to the connection's writer.
	inlineBytes = 256 << 10
)

// writable says that there is something to write and nothing to wait for; mu is held.
func (q *qp) writable() bool {
	if q.state != qpReady || q.blocked || q.hold {
		return false
	}
	return q.answers.n > 0 || q.sends.n > 0 && !q.fenced || q.lastSend && !q.shut && q.sends.n == 0
}

// pump writes until the queues are empty, the stream is full, or limit bytes are written; the writer
// goroutine does the rest. If somebody else is at it, the work is left to him.
func (q *qp) pump(limit int) {
	for q.out.TryLock() {
		limit = q.write(limit)
		q.out.Unlock()
		q.mu.Lock()
		more := q.writable()
		q.mu.Unlock()
		if !more {
			return
		}
	}
}

// write builds and writes batches; out is held. It gives what is left of limit.
func (q *qp) write(limit int) int {
	for {
		if q.pending == 0 && !q.build() {
			return limit
		}
		n, err := q.stream.TryWritev(q.iov[q.iovAt:])
		q.written(n)
		limit -= n
		switch {
		case q.pending == 0:
			q.complete()
			if limit > 0 {
				continue
			}
		case err != nil && !errors.Is(err, ErrWouldBlock):
			q.fail(verbs.WCRetryExceeded, fmt.Errorf("writing to the peer: %w", err), nil)
			return limit
		}
		q.mu.Lock()
		left := q.sends.n+q.answers.n > 0
		q.blocked = left
		q.mu.Unlock()
		if left {
			select {
			case q.kick <- struct{}{}:
			default:
			}
		}
		return limit
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
		q.mu.Lock()
		waits := q.blocked && q.state == qpReady
		q.mu.Unlock()
		if !waits {
			continue
		}
		err := q.stream.WaitWritable()
		q.mu.Lock()
		q.blocked = false
		q.mu.Unlock()
		if err != nil {
			q.out.Lock()
			q.fail(verbs.WCRetryExceeded, fmt.Errorf("writing to the peer: %w", err), nil)
			q.out.Unlock()
			continue
		}
		q.pump(1 << 62)
	}
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

// build turns the heads of the queues into one batch of FPDUs. False: there is nothing to write.
func (q *qp) build() bool {
	q.iov, q.iovAt, q.pending = q.iov[:0], 0, 0
	var sends, answers int // in this batch: they stay in place while out is held
	for n := 0; n < batchFPDUs; {
		o, last := q.take(&sends, &answers)
		if last {
			q.stream.CloseWrite()
		}
		if o == nil {
			break
		}
		if o.local() {
			if !q.carryOut(o) {
				return false
			}
			sends = 0
			continue
		}
		for ; !o.written() && n < batchFPDUs; n++ {
			q.frame(o, n)
		}
	}
	return q.pending > 0
}

// take gives what goes next, where sends and answers are in the batch already; nil: nothing now. What is
// begun goes first, then answers and posted requests in turn. last: nothing will come any more.
func (q *qp) take(sends, answers *int) (o *sendOp, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != qpReady || q.hold {
		return nil, false
	}
	if q.sends.n == 0 && q.answers.n == 0 {
		last = q.lastSend && !q.shut
		q.shut = q.shut || last
		return nil, last
	}
	first := *sends+*answers == 0
	begun := first && q.sends.n > 0 && q.sends.at(0).begun()
	if !begun && *answers < q.answers.n && (!q.answered || *sends == q.sends.n || q.answers.at(*answers).begun()) {
		q.answered = true
		*answers++
		return q.answers.at(*answers - 1), false
	}
	if *sends == q.sends.n {
		return nil, false
	}
	q.answered = false
	o = q.sends.at(*sends)
	switch {
	case begun:
	case q.waiting.n > 0 && (o.fence || o.local()):
		// At the head only: what is in front of it must be written before reads are all it waits for.
		q.fenced = *sends == 0
		return nil, false
	case !first && (o.fence || o.local() || o.kind == opReadRequest):
		return nil, false // what is in front of it goes and completes first
	}
	*sends++
	return o, false
}

// carryOut does what needs no stream, at the head of the queue. False: it failed, and the queue pair with it.
func (q *qp) carryOut(o *sendOp) bool {
	keys := q.pd.dev.prov.keys
	status := verbs.WCBindError
	var err error
	switch {
	case o.bad != verbs.WCSuccess:
		status, err = o.bad, fmt.Errorf("a posted %v cannot be carried out: %v", o.op, o.bad)
	case o.kind == opBind:
		err = keys.Bind(q.pd, q, &o.bind)
	default:
		err = keys.Invalidate(q.placer, q, o.stag)
	}
	if err != nil {
		q.fail(status, err, nil)
		return false
	}
	o.built = true
	q.complete()
	return true
}

// frame puts the next FPDU of o into the batch as number n.
func (q *qp) frame(o *sendOp, n int) {
	f := &q.fpdus[n]
	k := min(o.total-o.done, maxSegment)
	last := o.done+k == o.total
	payload := o.sge[:o.nsge]
	var h int
	switch o.kind {
	case opWrite:
		h = putTagged(f.head[:], rdmapWrite, last, o.stag, o.to+uint64(o.done), k)
	case opReadResponse:
		h = putTagged(f.head[:], rdmapReadResponse, last, o.stag, o.to+uint64(o.done), k)
	case opReadRequest:
		q.readMSN++
		h = putUntagged(f.head[:], rdmapReadRequest, true, 0, queueRead, q.readMSN, 0, readRequestSize)
		h += o.read.put(f.head[h:])
		payload = nil
		q.mu.Lock()
		*q.waiting.next() = awaited{id: o.id, op: verbs.OpRead, signaled: o.signaled, sink: o.sge[0], stag: o.read.sinkTag, to: o.read.sinkTo}
		q.mu.Unlock()
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
	q.seal(n, h, payload, o.done, k)
	o.done += k
	o.built = true
}

// seal puts FPDU n into the batch: its head of h bytes, k bytes of payload from offset skip on, padding
// and CRC.
func (q *qp) seal(n, h int, payload [][]byte, skip, k int) {
	f := &q.fpdus[n]
	q.add(f.head[:h])
	sum := uint32(0)
	if q.crc {
		sum = crc32.Update(0, castagnoli, f.head[:h])
	}
	for _, b := range payload {
		if k == 0 {
			break
		}
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:]
		skip = 0
		b = b[:min(len(b), k)]
		k -= len(b)
		q.add(b)
		if q.crc {
			sum = crc32.Update(sum, castagnoli, b)
		}
	}
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

// terminate writes a Terminate behind what is half written, if the stream takes both at once; out is held.
func (q *qp) terminate(t *terminate) {
	if q.pending > 0 {
		n, _ := q.stream.TryWritev(q.iov[q.iovAt:])
		if q.written(n); q.pending > 0 {
			return
		}
	}
	q.iov, q.iovAt, q.pending = q.iov[:0], 0, 0
	head := q.fpdus[0].head[:]
	body := t.append(head[maxHead:maxHead])
	h := putUntagged(head, rdmapTerminate, true, 0, queueTerminate, 1, 0, len(body))
	q.seal(0, h+len(body), nil, 0, 0)
	// Whether it arrives or not, the connection ends.
	_, _ = q.stream.TryWritev(q.iov)
}
