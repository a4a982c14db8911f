package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"o2ibd/engine/wire"
)

// MPA, DDP and RDMAP as far as sends need them (RFC 5044, 6581, 5041, 5040).
const (
	startUpSize  = 20
	maxPrivate   = 512
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagRejected = 0x20
	flagEnhanced = 0x10
	enhancedSize = 4 // IRD and ORD

	fpduLength     = 2
	crcSize        = 4
	taggedHeader   = 14
	untaggedHeader = 18
	ddpTagged      = 0x80
	ddpLast        = 0x40
	ddpVersion     = 1
	rdmapVersion   = 1
	opSend         = 3
	opSendSEInv    = 6 // the last of the four kinds of send
)

var (
	requestKey = []byte("MPA ID Req Frame")
	replyKey   = []byte("MPA ID Rep Frame")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// isStartUp tells whether bytes begin with an MPA start-up frame.
func isStartUp(b []byte) bool { return bytes.HasPrefix(b, requestKey) || bytes.HasPrefix(b, replyKey) }

// connection is what both directions of a stream share.
type connection struct {
	crc     bool    // one side asked for it, so both send it
	markers [2]bool // by role: the other side asked this one to send them
	over    bool    // one direction has nothing more to read, so the other may be forgotten too
}

// Roles in a connection.
const (
	initiator = iota
	responder
)

type streamState uint8

const (
	atStart   streamState = iota // the start-up frame comes next
	inFrames                     // FPDUs come next
	searching                    // waits for a TCP segment that begins with a frame of ours
	notOurs                      // or nothing more to read
)

// stream reads one direction of an iWARP connection.
type stream struct {
	d     *decoder
	of    string // names the stream in errors
	conn  *connection
	role  int
	state streamState
	buf   []byte // what is not a whole frame yet

	msg    []byte // segments of the message under way
	msn    uint32
	open   bool
	broken bool // a segment is missing: nothing is printed until the last one went by
}

// feed takes the next bytes in order; searching, they are the beginning of a TCP segment.
func (s *stream) feed(b []byte) {
	if s.state == searching {
		s.buf = s.buf[:0]
		switch {
		case isStartUp(b):
			s.state = atStart
		case beginsMessage(b):
			s.state = inFrames
		}
	}
	if s.state == searching || s.state == notOurs {
		return
	}
	s.buf = append(s.buf, b...)
	rest := s.buf
	for {
		n := 0
		switch s.state {
		case atStart:
			n = s.startUp(rest)
		case inFrames:
			n = s.frame(rest)
		default:
			rest = nil
		}
		if n == 0 {
			break
		}
		rest = rest[n:]
	}
	s.buf = append(s.buf[:0], rest...)
}

// stop reads nothing more.
func (s *stream) stop() { s.state, s.conn.over = notOurs, true }

// gap says that n bytes are not in the capture.
func (s *stream) gap(n uint32) {
	if s.state == inFrames {
		s.fail(fmt.Errorf("%d bytes of the stream are not in the capture", n))
	}
	s.lose()
}

// lose gives up the place in the stream.
func (s *stream) lose() {
	if s.state != notOurs {
		s.state = searching
	}
	s.buf, s.msg, s.open, s.broken = s.buf[:0], s.msg[:0], false, false
}

// end says that nothing more comes.
func (s *stream) end() {
	if n := len(s.buf); n > 0 && (s.state == inFrames || s.state == atStart && isStartUp(s.buf)) {
		s.fail(fmt.Errorf("the stream ends %d bytes into a frame", n))
	}
}

func (s *stream) fail(err error) { s.d.fail(s.of, err) }

// startUp reads the start-up frame and gives its size, 0 as long as it is not all there.
func (s *stream) startUp(b []byte) int {
	n := min(len(b), len(requestKey))
	isReply := bytes.HasPrefix(replyKey, b[:n])
	if !isReply && !bytes.HasPrefix(requestKey, b[:n]) {
		s.stop()
		return 0
	}
	if len(b) < startUpSize {
		return 0
	}
	flags, rev, size := b[16], b[17], int(binary.BigEndian.Uint16(b[18:]))
	if size > maxPrivate {
		s.stop()
		s.fail(fmt.Errorf("MPA private data of %d bytes, at most %d are allowed", size, maxPrivate))
		return 0
	}
	if len(b) < startUpSize+size {
		return 0
	}
	private := b[startUpSize : startUpSize+size]
	if rev == 2 && flags&flagEnhanced != 0 && size >= enhancedSize {
		private = private[enhancedSize:]
	}
	rejected := isReply && flags&flagRejected != 0
	s.state = inFrames
	switch {
	case !isOurs(private) && !(rejected && hasMagic(private, wire.LNetProtoMagic)):
		s.stop()
	case rejected:
		s.stop()
		s.d.reject(s.of, private)
	default:
		s.d.message(s.of, private)
	}
	if isReply {
		s.role = responder
	}
	s.conn.crc = s.conn.crc || flags&flagCRC != 0
	s.conn.markers[1-s.role] = flags&flagMarkers != 0
	return startUpSize + size
}

// frame reads one FPDU and gives its size, 0 as long as it is not all there.
func (s *stream) frame(b []byte) int {
	if len(b) < fpduLength {
		return 0
	}
	if s.conn.markers[s.role] {
		s.stop()
		s.fail(errors.New("the stream has MPA markers, which are not decoded"))
		return 0
	}
	n := int(binary.BigEndian.Uint16(b))
	padded := (fpduLength + n + 3) &^ 3
	if n < taggedHeader {
		s.fail(fmt.Errorf("FPDU of %d bytes, at least %d are needed", n, taggedHeader))
		s.lose()
		return 0
	}
	if len(b) < padded+crcSize {
		return 0
	}
	segment := b[fpduLength : fpduLength+n]
	if s.conn.crc {
		if want, got := crc32.Checksum(b[:padded], castagnoli), binary.LittleEndian.Uint32(b[padded:]); want != got {
			s.fail(fmt.Errorf("FPDU with CRC %#08x, its bytes give %#08x", got, want))
			s.broken = true
			return padded + crcSize
		}
	}
	if v := segment[0] & 3; v != ddpVersion {
		s.fail(fmt.Errorf("DDP version %d, only %d is known", v, ddpVersion))
		s.lose()
		return 0
	}
	if segment[0]&ddpTagged == 0 {
		s.untagged(segment)
	}
	return padded + crcSize
}

// isSend tells whether an untagged segment is part of a message: a send of any kind, on queue 0.
func isSend(b []byte) bool {
	op := b[1] & 0xf
	return b[1]>>6 == rdmapVersion && op >= opSend && op <= opSendSEInv && binary.BigEndian.Uint32(b[6:]) == 0
}

// beginsMessage tells whether a TCP segment begins with the first segment of a message of ours.
func beginsMessage(b []byte) bool {
	const head = fpduLength + untaggedHeader
	return len(b) >= head+4 && b[2]&ddpTagged == 0 && b[2]&3 == ddpVersion && isSend(b[fpduLength:]) &&
		binary.BigEndian.Uint32(b[16:]) == 0 && isOurs(b[head:])
}

// untagged takes a segment of a message, or leaves it when it is something else.
func (s *stream) untagged(b []byte) {
	if len(b) < untaggedHeader {
		s.fail(fmt.Errorf("untagged segment of %d bytes, its header has %d", len(b), untaggedHeader))
		return
	}
	if !isSend(b) {
		return
	}
	msn, offset, last := binary.BigEndian.Uint32(b[10:]), binary.BigEndian.Uint32(b[14:]), b[0]&ddpLast != 0
	payload := b[untaggedHeader:]
	if offset == 0 {
		if s.open && !s.broken {
			s.fail(fmt.Errorf("message %d ends without its last segment", s.msn))
		}
		s.msg, s.msn, s.open, s.broken = s.msg[:0], msn, true, false
	}
	switch {
	case s.broken:
	case !s.open || msn != s.msn || int64(offset) != int64(len(s.msg)):
		s.fail(fmt.Errorf("segment of message %d at offset %d, message %d has %d bytes so far", msn, offset, s.msn, len(s.msg)))
		s.broken = true
	case len(s.msg)+len(payload) > wire.MsgSize:
		s.fail(fmt.Errorf("message %d has more than %d bytes", msn, wire.MsgSize))
		s.broken = true
	default:
		s.msg = append(s.msg, payload...)
	}
	if !last {
		return
	}
	if !s.broken && len(s.msg) > 0 { // an empty one says that the initiator is ready to receive
		s.d.message(s.of, s.msg)
	}
	s.msg, s.open, s.broken = s.msg[:0], false, false
}
