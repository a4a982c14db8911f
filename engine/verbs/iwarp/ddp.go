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
	// maxPayload is the most that a peer can put in one.
	maxPayload = 65535 - taggedSize

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

// readRequest is the content of an RDMA Read Request (RFC 5040 section 4.4).
type readRequest struct {
	sinkTag uint32
	sinkTo  uint64
	size    uint32
	srcTag  uint32
	srcTo   uint64
}

func (r *readRequest) put(b []byte) int {
	be.PutUint32(b, r.sinkTag)
	be.PutUint64(b[4:], r.sinkTo)
	be.PutUint32(b[12:], r.size)
	be.PutUint32(b[16:], r.srcTag)
	be.PutUint64(b[20:], r.srcTo)
	return readRequestSize
}

func (r *readRequest) get(b []byte) {
	*r = readRequest{be.Uint32(b), be.Uint64(b[4:]), be.Uint32(b[12:]), be.Uint32(b[16:]), be.Uint64(b[20:])}
}

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

// terminate is a rule that the peer broke, as a Terminate reports it (RFC 5040 section 4.8): layer, type and
// code of the error, and of the segment that it is about, where that could be understood, length, head, and
// the content of a read request.
type terminate struct {
	layer, etype, code uint8
	why                string
	length             int
	head               []byte
	read               []byte
}

// terminateSize is what a Terminate carries at most.
const terminateSize = 4 + 2 + untaggedSize + readRequestSize

// Bits that say what follows (RFC 5040 section 4.8).
const (
	terminateLength = 0x80
	terminateHead   = 0x40
	terminateRead   = 0x20
)

func (t *terminate) Error() string { return t.why }

// about notes the segment that the error is about. Nothing can be said of one whose framing, version or
// opcode is not understood, and a fault of our own is no segment's.
func (t *terminate) about(ulpdu int, head []byte) {
	switch {
	case t.layer == layerMPA, t.layer == layerRDMAP && t.etype == rdmapLocalCatastrophic:
	case t.layer == layerRDMAP && t.etype == rdmapRemoteOperation && (t.code == codeVersion || t.code == codeOpcode):
	case t.layer == layerDDP && t.etype == ddpTaggedError && t.code == codeTaggedVersion:
	case t.layer == layerDDP && t.etype == ddpUntaggedError && t.code == codeUntaggedVersion:
	default:
		t.length, t.head = ulpdu, head
	}
}

// append writes it.
func (t *terminate) append(b []byte) []byte {
	b = append(b, t.layer<<4|t.etype, t.code, 0, 0)
	flags := &b[len(b)-2]
	if t.head != nil {
		*flags |= terminateLength | terminateHead
		b = be.AppendUint16(b, uint16(t.length))
		b = append(b, t.head...)
	}
	if t.read != nil {
		*flags |= terminateRead
		b = append(b, t.read...)
	}
	return b
}

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

	codeVersion         = 5 // of rdmapRemoteOperation
	codeOpcode          = 6
	codeUnspecified     = 0xff
	codeCannotInv       = 9 // of rdmapRemoteProtection
	codeTaggedVersion   = 4
	codeUntaggedVersion = 6
	codeMPACRC          = 2
	codeMPALength       = 3 // of an FPDU against what is in it
)

func protection(code uint8, format string, args ...any) *terminate {
	return &terminate{layer: layerRDMAP, etype: rdmapRemoteProtection, code: code, why: fmt.Sprintf(format, args...)}
}

func operation(code uint8, format string, args ...any) *terminate {
	return &terminate{layer: layerRDMAP, etype: rdmapRemoteOperation, code: code, why: fmt.Sprintf(format, args...)}
}

func taggedError(code uint8, format string, args ...any) *terminate {
	return &terminate{layer: layerDDP, etype: ddpTaggedError, code: code, why: fmt.Sprintf(format, args...)}
}

func untaggedError(code uint8, format string, args ...any) *terminate {
	return &terminate{layer: layerDDP, etype: ddpUntaggedError, code: code, why: fmt.Sprintf(format, args...)}
}

func mpaError(code uint8, format string, args ...any) *terminate {
	return &terminate{layer: layerMPA, etype: 0, code: code, why: fmt.Sprintf(format, args...)}
}

// parseSegment reads the head of a ULPDU from b, which holds it whole.
func parseSegment(b []byte) (segment, *terminate) {
	s := segment{tagged: b[0]&ddpTagged != 0, last: b[0]&ddpLast != 0, op: b[1] & rdmapOpMask}
	switch {
	case b[0]&ddpVerMask != ddpVersion && s.tagged:
		return s, taggedError(codeTaggedVersion, "DDP version %d", b[0]&ddpVerMask)
	case b[0]&ddpVerMask != ddpVersion:
		return s, untaggedError(codeUntaggedVersion, "DDP version %d", b[0]&ddpVerMask)
	case b[1]&rdmapVerMask != rdmapVersion:
		return s, operation(codeVersion, "RDMAP version %d", b[1]>>6)
	}
	if s.tagged {
		s.stag, s.offset = be.Uint32(b[2:]), be.Uint64(b[6:])
		if s.op != rdmapWrite && s.op != rdmapReadResponse {
			return s, operation(codeOpcode, "RDMAP opcode %d in a tagged segment", s.op)
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
		return s, operation(codeOpcode, "RDMAP opcode %d in an untagged segment", s.op)
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

// What Terminates mean, by type and code.
var (
	protectionText = map[uint8]string{0: "invalid key", 1: "address out of bounds", 2: "access right missing", 3: "the key belongs to another connection",
		4: "the address wraps", codeCannotInv: "the key cannot be invalidated"}
	operationText = map[uint8]string{codeVersion: "RDMAP version", codeOpcode: "unexpected opcode", 7: "a fault of this connection", 8: "a fault of the whole device",
		9: "the key cannot be invalidated"}
	taggedText   = map[uint8]string{0: "invalid key", 1: "address out of bounds", 2: "the key belongs to another connection", 3: "the address wraps", codeTaggedVersion: "DDP version"}
	untaggedText = map[uint8]string{1: "invalid queue", 2: "no receive was posted for our message", 3: "message out of sequence", 4: "segment out of sequence",
		5: "our message is longer than its receive", codeUntaggedVersion: "DDP version"}
	mpaText = map[uint8]string{1: "stream lost", codeMPACRC: "CRC error", codeMPALength: "framing error", 4: "start-up frame"}
)

// terminateText says in words what a peer's Terminate means.
func terminateText(p []byte) string {
	if len(p) < 2 {
		return "the peer's RNIC ended the connection"
	}
	layer, etype, code := p[0]>>4, p[0]&0x0f, p[1]
	var what string
	switch {
	case layer == layerRDMAP && etype == rdmapLocalCatastrophic:
		what = "a fault of its own"
	case layer == layerRDMAP && etype == rdmapRemoteProtection:
		what = protectionText[code]
	case layer == layerRDMAP && etype == rdmapRemoteOperation:
		what = operationText[code]
	case layer == layerDDP && etype == ddpTaggedError:
		what = taggedText[code]
	case layer == layerDDP && etype == ddpUntaggedError:
		what = untaggedText[code]
	case layer == layerMPA:
		what = mpaText[code]
	}
	if what == "" {
		what = "unspecified error"
	}
	return fmt.Sprintf("the peer's RNIC ended the connection: %s (Terminate layer %d type %d code %#x)", what, layer, etype, code)
}

// terminatesRead says that a peer's Terminate is about a read of ours.
func terminatesRead(p []byte) bool {
	return len(p) >= 4 && p[0]>>4 == layerRDMAP && p[0]&0x0f == rdmapRemoteProtection && p[2]&terminateRead != 0
}
