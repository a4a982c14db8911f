package iwarp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

var (
	be         = binary.BigEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// An FPDU (RFC 5044 section 4): 16-bit length of the ULPDU, the ULPDU, padding to 4 bytes, CRC32c. The
// ULPDU is a DDP segment (RFC 5041 section 4) whose first reserved byte is RDMAP's (RFC 5040 section 4).
const (
	fpduLen      = 2
	taggedSize   = 14 // control, RDMAP control, STag, tagged offset
	untaggedSize = 18 // control, RDMAP control, reserved, queue, MSN, offset
	crcSize      = 4
	maxTrailer   = 3 + crcSize
	maxHead      = fpduLen + untaggedSize

	// maxSegment is the payload that we put in one FPDU: the 16-bit length allows a little more.
	maxSegment = 65472

	ddpTagged  = 0x80
	ddpLast    = 0x40
	ddpVersion = 0x01
	ddpVerMask = 0x03

	rdmapVersion = 0x40
	rdmapVerMask = 0xc0
	rdmapOpMask  = 0x0f

	queueSend      = 0
	queueRead      = 1
	queueTerminate = 2
)

// RDMAP opcodes (RFC 5040 section 4.3).
const (
	rdmapWrite        = 0
	rdmapReadRequest  = 1
	rdmapReadResponse = 2
	rdmapSend         = 3
	rdmapSendInv      = 4
	rdmapSendSE       = 5
	rdmapSendSEInv    = 6
	rdmapTerminate    = 7
)

const readRequestSize = 28 // sink STag and offset, size, source STag and offset

// padOf is the padding behind a ULPDU of n bytes.
func padOf(n int) int { return -(fpduLen + n) & 3 }

// segment is the decoded head of a DDP segment.
type segment struct {
	tagged, last bool
	op           uint8
	stag         uint32 // tagged; of an invalidating send the key to invalidate
	offset       uint64 // tagged offset
	queue        uint32
	msn          uint32
	mo           uint32
	payload      int
}

// terminate is the content of a Terminate message (RFC 5040 section 4.8): layer, type and code of the
// error.
type terminate struct {
	layer, etype, code uint8
	why                string
}

func (t *terminate) Error() string { return t.why }

// The errors that we report (RFC 5040 section 7, RFC 5041 section 8, RFC 5044 section 8).
const (
	layerRDMAP = 0
	layerDDP   = 1
	layerMPA   = 2

	rdmapLocalCatastrophic = 0
	rdmapRemoteProtection  = 1
	rdmapRemoteOperation   = 2
	ddpTaggedError         = 1
	ddpUntaggedError       = 2
)

func protection(code uint8, format string, args ...any) *terminate {
	return &terminate{layerRDMAP, rdmapRemoteProtection, code, fmt.Sprintf(format, args...)}
}

func operation(code uint8, format string, args ...any) *terminate {
	return &terminate{layerRDMAP, rdmapRemoteOperation, code, fmt.Sprintf(format, args...)}
}

func taggedError(code uint8, format string, args ...any) *terminate {
	return &terminate{layerDDP, ddpTaggedError, code, fmt.Sprintf(format, args...)}
}

func untaggedError(code uint8, format string, args ...any) *terminate {
	return &terminate{layerDDP, ddpUntaggedError, code, fmt.Sprintf(format, args...)}
}

func mpaError(code uint8, format string, args ...any) *terminate {
	return &terminate{layerMPA, 0, code, fmt.Sprintf(format, args...)}
}

// parseSegment reads the head of a ULPDU of n bytes from b, which holds the head.
func parseSegment(b []byte, n int) (segment, *terminate) {
	s := segment{tagged: b[0]&ddpTagged != 0, last: b[0]&ddpLast != 0, op: b[1] & rdmapOpMask}
	head := headSize(b[0])
	switch {
	case b[0]&ddpVerMask != ddpVersion && s.tagged:
		return s, taggedError(4, "DDP version %d", b[0]&ddpVerMask)
	case b[0]&ddpVerMask != ddpVersion:
		return s, untaggedError(6, "DDP version %d", b[0]&ddpVerMask)
	case b[1]&rdmapVerMask != rdmapVersion:
		return s, operation(5, "RDMAP version %d", b[1]>>6)
	case n < head:
		return s, mpaError(2, "segment of %d bytes, its head alone has %d", n, head)
	}
	s.payload = n - head
	if s.tagged {
		s.stag, s.offset = be.Uint32(b[2:]), be.Uint64(b[6:])
		if s.op != rdmapWrite && s.op != rdmapReadResponse {
			return s, operation(6, "RDMAP opcode %d in a tagged segment", s.op)
		}
		return s, nil
	}
	s.stag, s.queue, s.msn, s.mo = be.Uint32(b[2:]), be.Uint32(b[6:]), be.Uint32(b[10:]), be.Uint32(b[14:])
	want := uint32(queueSend)
	switch s.op {
	case rdmapSend, rdmapSendInv, rdmapSendSE, rdmapSendSEInv:
	case rdmapReadRequest:
		want = queueRead
	case rdmapTerminate:
		want = queueTerminate
	default:
		return s, operation(6, "RDMAP opcode %d in an untagged segment", s.op)
	}
	if s.queue != want {
		return s, untaggedError(1, "queue %d for RDMAP opcode %d", s.queue, s.op)
	}
	return s, nil
}

// headSize is the size of a DDP head by its control byte.
func headSize(ctrl byte) int {
	if ctrl&ddpTagged != 0 {
		return taggedSize
	}
	return untaggedSize
}

// putTagged writes length and head of a tagged FPDU and gives their size.
func putTagged(b []byte, op uint8, last bool, stag uint32, offset uint64, payload int) int {
	be.PutUint16(b, uint16(taggedSize+payload))
	b[2], b[3] = ddpTagged|ddpVersion, rdmapVersion|op
	if last {
		b[2] |= ddpLast
	}
	be.PutUint32(b[4:], stag)
	be.PutUint64(b[8:], offset)
	return fpduLen + taggedSize
}

// putUntagged writes length and head of an untagged FPDU and gives their size.
func putUntagged(b []byte, op uint8, last bool, inv, queue, msn, mo uint32, payload int) int {
	be.PutUint16(b, uint16(untaggedSize+payload))
	b[2], b[3] = ddpVersion, rdmapVersion|op
	if last {
		b[2] |= ddpLast
	}
	be.PutUint32(b[4:], inv)
	be.PutUint32(b[8:], queue)
	be.PutUint32(b[12:], msn)
	be.PutUint32(b[16:], mo)
	return fpduLen + untaggedSize
}

// terminateText says in words what a peer's Terminate means.
func terminateText(p []byte) string {
	if len(p) < 2 {
		return "the peer's RNIC ended the connection"
	}
	layer, etype, code := p[0]>>4, p[0]&0x0f, p[1]
	what := "unknown error"
	switch {
	case layer == layerRDMAP && etype == rdmapRemoteProtection:
		what = [...]string{"invalid key", "address out of bounds", "access right missing", "key belongs to another connection", "address wraps", "", "", "", "", "key cannot be invalidated"}[min(int(code), 9)]
	case layer == layerRDMAP && etype == rdmapRemoteOperation:
		what = "operation refused"
	case layer == layerRDMAP:
		what = "its own fault"
	case layer == layerDDP && etype == ddpTaggedError:
		what = "invalid key or bounds of a tagged segment"
	case layer == layerDDP && etype == ddpUntaggedError && code == 2:
		what = "no receive was posted for our message"
	case layer == layerDDP && etype == ddpUntaggedError && code == 5:
		what = "our message is longer than its receive"
	case layer == layerDDP:
		what = "malformed DDP segment"
	case layer == layerMPA:
		what = "MPA: CRC or framing error"
	}
	return fmt.Sprintf("the peer's RNIC ended the connection: %s (Terminate layer %d type %d code %#x)", what, layer, etype, code)
}
