package iwarp

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"o2ibd/engine/verbs"
)

const (
	// readAhead is what is read of the stream beyond what the current segment needs: heads, small sends.
	readAhead = 16 << 10
	// lingerFor bounds how long a closed connection waits for the peer's end.
	lingerFor = 2 * time.Second
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// reader is the connection's goroutine for what the peer sends. It places payload straight into
// registered memory and posted receives.
type reader struct {
	q   *qp
	buf []byte
	at  int // first unread byte of buf
	end int
	vec [2][]byte
	sum uint32
	eof bool // the stream has ended

	nextMSN uint32  // of the next send
	readMSN uint32  // of the next read request
	recv    *recvOp // being filled
	got     int     // bytes in it
	inv     uint32  // key that its send invalidates
	small   [readRequestSize]byte
}

// run reads until the connection ends, flushes, waits for the peer's end, and says so.
func (r *reader) run() {
	q := r.q
	err, t := r.loop()
	var term *terminate
	if errors.As(err, &term) {
		t = term
	}
	if err == io.EOF {
		err = nil
	}
	q.out.Lock()
	q.fail(verbs.WCFlushed, err, t)
	q.out.Unlock()
	q.mu.Lock()
	why := q.why
	q.flushRecvs()
	q.mu.Unlock()
	close(q.stopped)
	close(q.quit)
	r.linger()
	q.stream.Close()
	q.id.disconnected(why)
}

// linger reads on into nowhere, so that what we wrote last reaches the peer before the stream is closed:
// closing with unread bytes would take it away.
func (r *reader) linger() {
	if r.eof {
		return
	}
	r.q.stream.SetReadDeadline(time.Now().Add(lingerFor))
	for n := 0; n < 16<<20; {
		r.vec[0], r.vec[1] = r.buf, nil
		k, err := r.q.stream.Readv(r.vec[:1])
		if err != nil {
			return
		}
		n += k
	}
}

// fill reads at least one byte behind what is buffered.
func (r *reader) fill() error {
	if r.at == r.end {
		r.at, r.end = 0, 0
	} else if r.end == len(r.buf) {
		r.end = copy(r.buf, r.buf[r.at:r.end])
		r.at = 0
	}
	r.vec[0], r.vec[1] = r.buf[r.end:], nil
	n, err := r.q.stream.Readv(r.vec[:1])
	r.end += n
	if n > 0 {
		return nil
	}
	r.eof = err == io.EOF
	return err
}

// need makes n bytes available in the buffer.
func (r *reader) need(n int) ([]byte, error) {
	for r.end-r.at < n {
		if err := r.fill(); err != nil {
			if err == io.EOF && r.end > r.at {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	b := r.buf[r.at : r.at+n]
	return b, nil
}

// place fills dst from the stream: what is buffered first, the rest straight from the socket.
func (r *reader) place(dst []byte) error {
	n := copy(dst, r.buf[r.at:r.end])
	r.at += n
	done := dst
	rest := dst[n:]
	for len(rest) > 0 {
		r.at, r.end = 0, 0
		r.vec[0], r.vec[1] = rest, r.buf
		k, err := r.q.stream.Readv(r.vec[:])
		if err == io.EOF {
			r.eof, err = true, io.ErrUnexpectedEOF
		}
		if k == 0 && err != nil {
			return err
		}
		if k > len(rest) {
			r.end = k - len(rest)
			k = len(rest)
		}
		rest = rest[k:]
	}
	if r.q.crc {
		r.sum = crc32.Update(r.sum, castagnoli, done)
	}
	return nil
}

// finish takes the padding and CRC behind a ULPDU of n bytes.
func (r *reader) finish(n int) (*terminate, error) {
	pad := padOf(n)
	b, err := r.need(pad + crcSize)
	if err != nil {
		return nil, short(err)
	}
	r.at += pad + crcSize
	if !r.q.crc {
		return nil, nil
	}
	sum := crc32.Update(r.sum, castagnoli, b[:pad])
	b = b[pad:]
	if got := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24; got != sum {
		return mpaError(2, "CRC of an FPDU is %#08x where %#08x belongs", got, sum), nil
	}
	return nil, nil
}

func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// loop handles FPDUs until the stream or the queue pair ends. The error is io.EOF for an orderly end.
func (r *reader) loop() (error, *terminate) {
	for {
		b, err := r.need(fpduLen + 2)
		if err != nil {
			return r.ended(err), nil
		}
		n := int(be.Uint16(b))
		head := headSize(b[2])
		if n < head {
			t := mpaError(2, "an FPDU of %d bytes is shorter than its head", n)
			return t, t
		}
		if b, err = r.need(fpduLen + head); err != nil {
			return r.ended(short(err)), nil
		}
		r.sum = 0
		if r.q.crc {
			r.sum = crc32.Update(0, castagnoli, b)
		}
		s, t := parseSegment(b[fpduLen:], n)
		r.at += fpduLen + head
		if t == nil {
			r.released()
			t, err = r.segment(&s, n)
		}
		if err != nil {
			return r.ended(err), nil
		}
		if t != nil {
			return t, t
		}
	}
}

// ended turns the error of a read into the reason that the connection has.
func (r *reader) ended(err error) error {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	if r.q.state == qpError {
		return r.q.why
	}
	if err == io.EOF {
		return err
	}
	if err == io.ErrUnexpectedEOF {
		return errors.New("the peer ended the stream in the middle of a frame")
	}
	return fmt.Errorf("reading from the peer: %w", err)
}

// released notes the peer's first frame: with the peer-to-peer set-up only now we may send.
func (r *reader) released() {
	q := r.q
	q.mu.Lock()
	held := q.hold
	q.hold = false
	q.mu.Unlock()
	if held {
		q.id.released()
		q.pump(inlineBytes)
	}
}

// segment handles one DDP segment whose head was read.
func (r *reader) segment(s *segment, n int) (*terminate, error) {
	switch s.op {
	case rdmapWrite:
		mem, t := r.q.remote(s.stag, s.offset, s.payload, verbs.RemoteWrite)
		if s.payload == 0 {
			t = nil // a zero-length write touches nothing
		}
		if t != nil {
			return t, nil
		}
		if err := r.place(mem); err != nil {
			return nil, err
		}
		return r.finish(n)
	case rdmapReadResponse:
		return r.response(s, n)
	case rdmapReadRequest:
		return r.readRequest(s, n)
	case rdmapTerminate:
		b := make([]byte, min(s.payload, 64))
		if err := r.place(b); err != nil {
			return nil, err
		}
		return nil, errors.New(terminateText(b))
	}
	return r.send(s, n)
}

// send puts a segment of a Send where the receive that it consumes says.
func (r *reader) send(s *segment, n int) (*terminate, error) {
	if s.msn != r.nextMSN {
		return untaggedError(3, "send number %d where %d is due", s.msn, r.nextMSN), nil
	}
	if r.recv == nil {
		t, err := r.takeRecv()
		if t != nil || err != nil {
			return t, err
		}
		r.got, r.inv = 0, 0
	}
	switch {
	case int(s.mo) != r.got:
		return untaggedError(4, "segment at %d of a send, %d is due", s.mo, r.got), nil
	case r.recv.bad:
		r.endRecv(verbs.WCLocalAccess)
		return &terminate{layerRDMAP, rdmapLocalCatastrophic, 7, "a posted receive names memory that is not registered for it"}, nil
	case r.got+s.payload > r.recv.room:
		room := r.recv.room
		r.endRecv(verbs.WCLocalLength)
		return untaggedError(5, "a message of more than %d bytes, which is what the receive has", room), nil
	}
	left := s.payload
	skip := r.got
	for i := 0; i < int(r.recv.nsge) && left > 0; i++ {
		b := r.recv.sge[i]
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:]
		skip = 0
		b = b[:min(len(b), left)]
		if err := r.place(b); err != nil {
			return nil, err
		}
		left -= len(b)
	}
	if t, err := r.finish(n); t != nil || err != nil {
		return t, err
	}
	r.got += s.payload
	if s.op == rdmapSendInv || s.op == rdmapSendSEInv {
		r.inv = s.stag
	}
	if !s.last {
		return nil, nil
	}
	if r.inv != 0 {
		if err := r.q.pd.dev.prov.keys.Invalidate(r.q, r.inv); err != nil {
			r.endRecv(verbs.WCLocalAccess)
			return protection(9, "the peer invalidates the key %#x: %v", r.inv, err), nil
		}
	}
	r.nextMSN++
	r.endRecv(verbs.WCSuccess)
	return nil, nil
}

// takeRecv waits for a posted receive. TCP pushes back meanwhile; after the time that the peer's
// rnr_retry_count stands for the connection ends.
func (r *reader) takeRecv() (*terminate, error) {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.recvs.n == 0 && q.state == qpReady {
		expired := false
		if d := q.id.rnrTime(); d > 0 {
			timer := time.AfterFunc(d, func() {
				q.mu.Lock()
				expired = true
				q.posted.Broadcast()
				q.mu.Unlock()
			})
			defer timer.Stop()
		}
		for q.recvs.n == 0 && q.state == qpReady && !expired {
			q.posted.Wait()
		}
	}
	switch {
	case q.state != qpReady:
		return nil, errQPError
	case q.recvs.n == 0:
		return untaggedError(2, "no receive was posted for a message in time"), nil
	}
	// It stays on the queue until it completes, so that a flush finds it.
	r.recv = q.recvs.at(0)
	return nil, nil
}

var errQPError = errors.New("the queue pair went to error")

// endRecv completes the receive that is being filled.
func (r *reader) endRecv(status verbs.WCStatus) {
	q := r.q
	q.mu.Lock()
	q.cq.Add(verbs.WC{ID: r.recv.id, Op: verbs.OpRecv, Status: status, ByteLen: uint32(r.got), QPNum: q.num, InvKey: r.inv})
	q.recvs.pop()
	q.mu.Unlock()
	r.recv = nil
}

// readRequest answers an RDMA Read of the peer.
func (r *reader) readRequest(s *segment, n int) (*terminate, error) {
	if s.payload != readRequestSize || s.mo != 0 || !s.last {
		return untaggedError(4, "a read request of %d bytes", s.payload), nil
	}
	if s.msn != r.readMSN {
		return untaggedError(3, "read request number %d where %d is due", s.msn, r.readMSN), nil
	}
	r.readMSN++
	b := r.small[:]
	if err := r.place(b); err != nil {
		return nil, err
	}
	if t, err := r.finish(n); t != nil || err != nil {
		return t, err
	}
	req := readRequest{be.Uint32(b), be.Uint64(b[4:]), be.Uint32(b[12:]), be.Uint32(b[16:]), be.Uint64(b[20:])}
	var mem []byte
	if req.size > 0 {
		var t *terminate
		if mem, t = r.q.remote(req.srcTag, req.srcTo, int(req.size), verbs.RemoteRead); t != nil {
			return t, nil
		}
	}
	r.q.answer(func(o *sendOp) {
		o.kind, o.op, o.stag, o.to, o.total = opReadResponse, verbs.OpRead, req.sinkTag, req.sinkTo, len(mem)
		o.sge[0], o.nsge = mem, 1
	})
	return nil, nil
}

// response places a segment of the answer to our oldest read.
func (r *reader) response(s *segment, n int) (*terminate, error) {
	q := r.q
	q.mu.Lock()
	if q.reads.n == 0 {
		q.mu.Unlock()
		return operation(6, "a read response that nobody asked for"), nil
	}
	p := q.reads.at(0)
	q.mu.Unlock()
	if s.stag != p.stag || s.offset != p.to+uint64(p.got) || p.got+s.payload > len(p.sink) {
		return taggedError(1, "a read response outside of what was asked for"), nil
	}
	if err := r.place(p.sink[p.got : p.got+s.payload]); err != nil {
		return nil, err
	}
	if t, err := r.finish(n); t != nil || err != nil {
		return t, err
	}
	p.got += s.payload
	if !s.last {
		return nil, nil
	}
	if p.got != len(p.sink) {
		return taggedError(1, "a read response of %d bytes where %d were asked for", p.got, len(p.sink)), nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reads.n == 0 {
		return nil, errQPError
	}
	q.nsend--
	if p.signal {
		q.cq.Add(verbs.WC{ID: p.id, Op: verbs.OpRead, QPNum: q.num})
	}
	q.reads.pop()
	return nil, nil
}
