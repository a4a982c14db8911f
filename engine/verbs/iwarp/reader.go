package iwarp

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"

	"o2ibd/engine/verbs"
)

// readAhead is what is read of the stream beyond what the current segment needs: heads, small sends.
const readAhead = 16 << 10

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// reader is the connection's goroutine for what the peer sends. It places payload in registered memory and
// posted receives, straight from the stream where there is no CRC.
type reader struct {
	q    *qp
	buf  []byte
	at   int // first unread byte of buf
	end  int
	vec  [2][]byte
	sum  uint32
	eof  bool // the stream has ended
	hold bool // the peer's first frame is due (RFC 6581 peer-to-peer)

	head    [untaggedSize]byte // of the current segment, for a Terminate
	nextMSN uint32             // of the next send
	readMSN uint32             // of the next read request
	recv    *recvOp            // being filled
	got     int                // bytes in it
	inv     uint32             // key that its send invalidates
	small   [readRequestSize]byte

	aside *[]byte // payload of the segment whose CRC is not known yet
	laid  int     // bytes in it
	sinks [][]byte
}

// newReader makes the reader of a connection whose stream has given rest already.
func newReader(q *qp, rest []byte, hold bool) *reader {
	r := &reader{q: q, hold: hold, nextMSN: 1, readMSN: 1, buf: make([]byte, max(readAhead, len(rest)))}
	r.end = copy(r.buf, rest)
	return r
}

// run reads until the connection ends, flushes, waits for the peer's end, and says so.
func (r *reader) run() {
	q := r.q
	err := r.loop()
	r.dropAside()
	status := verbs.WCFlushed
	var ours *terminate
	var theirs *terminated
	switch {
	case err == io.EOF:
		err = nil
	case errors.As(err, &ours):
	case errors.As(err, &theirs) && theirs.read:
		status = verbs.WCRemoteAccess
	}
	q.out.Lock()
	q.fail(status, err, ours)
	q.out.Unlock()
	q.mu.Lock()
	why := q.why
	q.flushSends()
	q.flushRecvs()
	q.mu.Unlock()
	close(q.stopped)
	close(q.quit)
	if r.eof {
		q.stream.Close()
	} else {
		hangUp(q.stream, r.buf)
	}
	q.id.disconnected(why)
}

// terminated is the reason when the peer's RNIC ends the connection.
type terminated struct {
	text string
	read bool // because of a read of ours
}

func (t *terminated) Error() string { return t.text }

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

// asides are buffers for the payload of a segment until its CRC is known.
var asides = sync.Pool{New: func() any { b := make([]byte, maxPayload); return &b }}

// place takes the next bytes of a segment's payload to dst. Where there is a CRC they get there with finish:
// until then nothing is known to be right, and what lies in dst may be changed by others, who may write there
// too.
func (r *reader) place(dst []byte) error {
	if !r.q.crc {
		return r.read(dst)
	}
	if r.aside == nil {
		r.aside = asides.Get().(*[]byte)
	}
	b := (*r.aside)[r.laid : r.laid+len(dst)]
	r.laid += len(dst)
	r.sinks = append(r.sinks, dst)
	if err := r.read(b); err != nil {
		return err
	}
	r.sum = crc32.Update(r.sum, castagnoli, b)
	return nil
}

// settle moves the payload that was laid aside to where it belongs.
func (r *reader) settle() {
	if r.aside == nil {
		return
	}
	b := *r.aside
	for _, dst := range r.sinks {
		b = b[copy(dst, b):]
	}
	r.dropAside()
}

func (r *reader) dropAside() {
	if r.aside != nil {
		asides.Put(r.aside)
	}
	clear(r.sinks)
	r.aside, r.laid, r.sinks = nil, 0, r.sinks[:0]
}

// read fills dst from the stream: what is buffered first, the rest straight from the socket.
func (r *reader) read(dst []byte) error {
	n := copy(dst, r.buf[r.at:r.end])
	r.at += n
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
	return nil
}

// finish takes the padding and CRC behind a ULPDU of n bytes.
func (r *reader) finish(n int) error {
	pad := padOf(n)
	b, err := r.need(pad + crcSize)
	if err != nil {
		return short(err)
	}
	r.at += pad + crcSize
	if !r.q.crc {
		return nil
	}
	sum := crc32.Update(r.sum, castagnoli, b[:pad])
	b = b[pad:]
	if got := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24; got != sum {
		return mpaError(codeMPACRC, "CRC of an FPDU is %#08x where %#08x belongs", got, sum)
	}
	r.settle()
	return nil
}

func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// loop handles FPDUs until the stream or the queue pair ends. The error is io.EOF for an orderly end and a
// *terminate where the peer broke a rule.
func (r *reader) loop() error {
	if r.hold {
		r.deadline(time.Now().Add(r.q.id.prov.opt.StartTimeout))
	}
	for {
		b, err := r.need(fpduLen + 2)
		if err != nil {
			return r.ended(err)
		}
		n := int(be.Uint16(b))
		size := headSize(b[2])
		if n < size {
			return mpaError(codeMPALength, "an FPDU of %d bytes is shorter than its head", n)
		}
		if b, err = r.need(fpduLen + size); err != nil {
			return r.ended(short(err))
		}
		r.sum = 0
		if r.q.crc {
			r.sum = crc32.Update(0, castagnoli, b)
		}
		copy(r.head[:], b[fpduLen:])
		s, t := parseSegment(b[fpduLen:])
		r.at += fpduLen + size
		if t == nil {
			s.payload = n - size
			err = r.segment(&s, n)
			t, _ = err.(*terminate) // as it is: errors.As would allocate for each segment
		}
		if t != nil {
			t.about(n, r.head[:size])
			return t
		}
		if err != nil {
			return r.ended(err)
		}
	}
}

// deadline bounds the reader's waiting, unless the queue pair is in error: then it must not wait at all.
func (r *reader) deadline(t time.Time) {
	r.q.mu.Lock()
	if r.q.state == qpReady {
		r.q.stream.SetReadDeadline(t)
	}
	r.q.mu.Unlock()
}

// ended turns the error of a read into the reason that the connection has.
func (r *reader) ended(err error) error {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	var theirs *terminated
	switch {
	case r.q.state == qpError:
		return r.q.why
	case err == io.EOF || errors.As(err, &theirs):
		return err
	case err == io.ErrUnexpectedEOF:
		return errors.New("the peer ended the stream in the middle of a frame")
	case r.hold && errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("the peer's first frame of a peer-to-peer set-up did not come")
	}
	return fmt.Errorf("reading from the peer: %w", err)
}

// released notes the peer's first frame in a peer-to-peer set-up: only now we may send. True: it was a send
// of no bytes, which means just that and consumes no receive.
func (r *reader) released(s *segment) bool {
	r.deadline(time.Time{})
	r.hold = false
	q := r.q
	q.id.released()
	q.mu.Lock()
	q.hold = false
	write := q.writable()
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
	return s.op == rdmapSend && s.payload == 0 && s.last && s.msn == r.nextMSN
}

// segment handles one DDP segment whose head was read.
func (r *reader) segment(s *segment, n int) error {
	if r.hold && r.released(s) {
		r.nextMSN++
		return r.finish(n)
	}
	switch s.op {
	case rdmapWrite:
		if s.payload == 0 {
			return r.finish(n) // touches nothing, whatever its key
		}
		mem, t := r.q.remote(s.stag, s.offset, s.payload, verbs.RemoteWrite)
		if t != nil {
			return t
		}
		err := r.place(mem)
		if err == nil {
			err = r.finish(n)
		}
		r.q.placer.Done()
		return err
	case rdmapReadResponse:
		return r.response(s, n)
	case rdmapReadRequest:
		return r.readRequest(s, n)
	case rdmapTerminate:
		b := make([]byte, min(s.payload, terminateSize))
		if err := r.read(b); err != nil {
			return err
		}
		return &terminated{terminateText(b), terminatesRead(b)}
	}
	return r.send(s, n)
}

// send puts a segment of a Send where the receive that it consumes says.
func (r *reader) send(s *segment, n int) error {
	if s.msn != r.nextMSN {
		return untaggedError(3, "send number %d where %d is due", s.msn, r.nextMSN)
	}
	if r.recv == nil {
		if err := r.takeRecv(); err != nil {
			return err
		}
		r.got, r.inv = 0, 0
	}
	switch {
	case int(s.mo) != r.got:
		return untaggedError(4, "segment at %d of a send, %d is due", s.mo, r.got)
	case r.recv.bad:
		r.endRecv(verbs.WCLocalAccess)
		return &terminate{layer: layerRDMAP, etype: rdmapLocalCatastrophic, why: "a posted receive names memory that is not registered for it"}
	case r.got+s.payload > r.recv.room:
		room := r.recv.room
		r.endRecv(verbs.WCLocalLength)
		return untaggedError(5, "a message of more than %d bytes, which is what the receive has", room)
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
			return err
		}
		left -= len(b)
	}
	if err := r.finish(n); err != nil {
		return err
	}
	r.got += s.payload
	if s.op == rdmapSendInv || s.op == rdmapSendSEInv {
		r.inv = s.stag
	}
	if !s.last {
		return nil
	}
	if key := r.inv; key != 0 {
		if err := r.q.pd.dev.prov.keys.Invalidate(r.q.placer, r.q, key); err != nil {
			r.endRecv(verbs.WCLocalAccess)
			return protection(codeCannotInv, "the peer invalidates the key %#x: %v", key, err)
		}
	}
	r.nextMSN++
	r.endRecv(verbs.WCSuccess)
	return nil
}

// takeRecv waits for a posted receive. TCP pushes back meanwhile; after the time that the peer's
// rnr_retry_count stands for the connection ends.
func (r *reader) takeRecv() error {
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
		return errQPError
	case q.recvs.n == 0:
		return untaggedError(2, "no receive was posted for a message in time")
	}
	// It stays on the queue until it completes, so that a flush finds it.
	r.recv = q.recvs.at(0)
	return nil
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
func (r *reader) readRequest(s *segment, n int) error {
	switch {
	case s.msn != r.readMSN:
		return untaggedError(3, "read request number %d where %d is due", s.msn, r.readMSN)
	case s.mo != 0:
		return untaggedError(4, "a read request at %d", s.mo)
	case s.payload > readRequestSize:
		return untaggedError(5, "a read request of %d bytes", s.payload)
	case s.payload < readRequestSize || !s.last:
		return operation(codeUnspecified, "a read request of %d bytes", s.payload)
	}
	r.readMSN++
	b := r.small[:]
	if err := r.place(b); err != nil {
		return err
	}
	if err := r.finish(n); err != nil {
		return err
	}
	var req readRequest
	req.get(b)
	var mem []byte
	if req.size > 0 {
		var t *terminate
		if mem, t = r.q.remote(req.srcTag, req.srcTo, int(req.size), verbs.RemoteRead); t != nil {
			t.read = b
			return t
		}
	}
	ok := r.q.answer(&req, mem)
	r.q.placer.Done()
	if !ok {
		return untaggedError(2, "more than %d reads at once", maxAnswers)
	}
	return nil
}

// response places a segment of the answer to our oldest read.
func (r *reader) response(s *segment, n int) error {
	p := r.q.oldestRead()
	if p == nil {
		return operation(codeOpcode, "a read response that nobody asked for")
	}
	if s.stag != p.stag || s.offset != p.to+uint64(p.got) || p.got+s.payload > len(p.sink) {
		return taggedError(1, "a read response outside of what was asked for")
	}
	if err := r.place(p.sink[p.got : p.got+s.payload]); err != nil {
		return err
	}
	if err := r.finish(n); err != nil {
		return err
	}
	p.got += s.payload
	if !s.last {
		return nil
	}
	if p.got != len(p.sink) {
		return operation(codeUnspecified, "a read response of %d bytes where %d were asked for", p.got, len(p.sink))
	}
	r.q.responded()
	return nil
}
