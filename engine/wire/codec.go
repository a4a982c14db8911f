package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Why a message does not unpack. Errors of Unpack, Parse and ParseReject wrap one of these.
var (
	ErrShort   = errors.New("too short")
	ErrMagic   = errors.New("wrong magic")
	ErrVersion = errors.New("unknown protocol version")
	ErrNob     = errors.New("wrong length field")
	ErrCksum   = errors.New("wrong checksum")
	ErrSrcNID  = errors.New("source NID is the wildcard")
	ErrType    = errors.New("unknown message type")
	ErrSize    = errors.New("too small for its type")
	ErrFrags   = errors.New("wrong fragment count")
	ErrDesc    = errors.New("RDMA descriptor out of bounds")
)

// minNob is the least size of each message type, 0 for an unknown one.
func minNob(t MsgType) uint32 {
	switch t {
	case MsgConnReq, MsgConnAck:
		return ConnMsgSize
	case MsgNoop:
		return HeaderSize
	case MsgImmediate:
		return ImmediateSize
	case MsgPutReq:
		return PutReqSize
	case MsgPutNak, MsgPutDone, MsgGetDone:
		return CompletionSize
	case MsgPutAck:
		return PutAckBase
	case MsgGetReq:
		return GetReqBase
	}
	return 0
}

// Unpack checks and decodes the message at the start of buf in the order of spec o2iblnd 1.8, the
// checksum before anything that it covers is believed. Bytes behind the message's own length are
// ignored. m.Payload and nothing else points into buf.
func (m *Msg) Unpack(buf []byte) (CksumKind, error) {
	o, err := m.header(buf)
	if err != nil {
		return CksumNone, err
	}
	kind := verify(buf[:m.Nob], m.Cksum)
	if kind == CksumBad {
		return kind, fmt.Errorf("%w: %#x", ErrCksum, m.Cksum)
	}
	return kind, m.body(buf, o)
}

// Parse is Unpack without a look at the checksum, for tools that show a message whatever its checksum says.
// Who acts on a message calls Unpack, or Verify before believing what Parse read: a corrupt message may well
// parse, or fail for a reason that its sender never wrote.
func (m *Msg) Parse(buf []byte) error {
	o, err := m.header(buf)
	if err != nil {
		return err
	}
	return m.body(buf, o)
}

// Verify judges the checksum of a message whose header is sound; else it is CksumBad.
func Verify(buf []byte) CksumKind {
	if len(buf) < HeaderSize {
		return CksumBad
	}
	o, ok := order(buf, Magic)
	if !ok {
		return CksumBad
	}
	nob := o.Uint32(buf[8:])
	if nob < HeaderSize || uint64(nob) > uint64(len(buf)) {
		return CksumBad
	}
	return verify(buf[:nob], o.Uint32(buf[cksumOffset:]))
}

func (m *Msg) header(buf []byte) (binary.ByteOrder, error) {
	if len(buf) < 6 {
		return nil, fmt.Errorf("%w: %d bytes, the magic and version alone are 6", ErrShort, len(buf))
	}
	o, ok := order(buf, Magic)
	if !ok {
		return nil, fmt.Errorf("%w: %#08x", ErrMagic, binary.LittleEndian.Uint32(buf))
	}
	m.BigEndian = o == binary.BigEndian
	m.Version = Version(o.Uint16(buf[4:]))
	if m.Version != Version1 && m.Version != Version2 {
		return nil, fmt.Errorf("%w: %#x", ErrVersion, uint16(m.Version))
	}
	if len(buf) < HeaderSize {
		return nil, fmt.Errorf("%w: %d bytes, the header is %d", ErrShort, len(buf), HeaderSize)
	}
	m.Type = MsgType(buf[6])
	m.Credits = buf[7]
	m.Nob = o.Uint32(buf[8:])
	m.Cksum = o.Uint32(buf[cksumOffset:])
	if uint64(m.Nob) > uint64(len(buf)) || m.Nob > MsgSize {
		return nil, fmt.Errorf("%w: says %d bytes, %d came", ErrNob, m.Nob, len(buf))
	}
	if m.Nob < HeaderSize {
		return nil, fmt.Errorf("%w: says %d bytes, the header is %d", ErrNob, m.Nob, HeaderSize)
	}
	m.SrcNID = NID(o.Uint64(buf[16:]))
	m.SrcStamp = o.Uint64(buf[24:])
	m.DstNID = NID(o.Uint64(buf[32:]))
	m.DstStamp = o.Uint64(buf[40:])
	return o, nil
}

func (m *Msg) body(buf []byte, o binary.ByteOrder) error {
	if m.SrcNID == AnyNID {
		return ErrSrcNID
	}
	least := minNob(m.Type)
	if least == 0 {
		return fmt.Errorf("%w: %#02x", ErrType, uint8(m.Type))
	}
	if m.Nob < least {
		return fmt.Errorf("%w: %d bytes, %v needs %d", ErrSize, m.Nob, m.Type, least)
	}
	b := buf[:m.Nob]
	switch m.Type {
	case MsgConnReq, MsgConnAck:
		m.Params = getParams(b[48:], o)
	case MsgImmediate:
		m.LNet.Decode(b[48:])
		m.Payload = b[ImmediateSize:]
	case MsgPutReq:
		m.LNet.Decode(b[48:])
		m.Cookie = binary.LittleEndian.Uint64(b[120:])
	case MsgPutNak, MsgPutDone, MsgGetDone:
		m.Cookie = binary.LittleEndian.Uint64(b[48:])
		m.Status = int32(o.Uint32(b[56:]))
	case MsgPutAck:
		m.SrcCookie = binary.LittleEndian.Uint64(b[48:])
		m.DstCookie = binary.LittleEndian.Uint64(b[56:])
		return m.desc(b, 64, o)
	case MsgGetReq:
		m.LNet.Decode(b[48:])
		m.Cookie = binary.LittleEndian.Uint64(b[120:])
		return m.desc(b, 128, o)
	}
	return nil
}

// desc decodes the RDMA descriptor at off.
func (m *Msg) desc(b []byte, off int, o binary.ByteOrder) error {
	m.RD.Key = o.Uint32(b[off:])
	n := o.Uint32(b[off+4:])
	if n < 1 || n > MaxFrags {
		return fmt.Errorf("%w: %d, 1 to %d are allowed", ErrFrags, n, MaxFrags)
	}
	p := b[off+8:]
	if len(p) < int(n)*FragSize {
		return fmt.Errorf("%w: %d fragments in %d bytes", ErrDesc, n, len(p))
	}
	// A loop for each byte order: through the interface a fragment costs twice as much.
	total := uint64(0)
	if m.BigEndian {
		for i := range m.frags[:n] {
			f := (*[FragSize]byte)(p[i*FragSize:])
			m.frags[i] = Frag{Nob: binary.BigEndian.Uint32(f[:]), Addr: binary.BigEndian.Uint64(f[4:])}
			total += uint64(m.frags[i].Nob)
		}
	} else {
		for i := range m.frags[:n] {
			f := (*[FragSize]byte)(p[i*FragSize:])
			m.frags[i] = Frag{Nob: binary.LittleEndian.Uint32(f[:]), Addr: binary.LittleEndian.Uint64(f[4:])}
			total += uint64(m.frags[i].Nob)
		}
	}
	if total > 1<<31-1 {
		return fmt.Errorf("%w: %d bytes in all", ErrDesc, total)
	}
	m.RD.Frags = m.frags[:n]
	return nil
}

func (m *Msg) order() binary.ByteOrder {
	if m.BigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// EncodeBody writes the body of m, from byte 48 on, and gives the size of the whole message. A Payload
// that lies in its place already is not copied.
func (m *Msg) EncodeBody(dst []byte) (int, error) {
	o := m.order()
	nob := int(minNob(m.Type))
	switch m.Type {
	case MsgImmediate:
		nob += len(m.Payload)
	case MsgPutAck, MsgGetReq:
		if n := len(m.RD.Frags); n < 1 || n > MaxFrags {
			return 0, fmt.Errorf("%w: %d", ErrFrags, n)
		}
		nob += len(m.RD.Frags) * FragSize
	}
	switch {
	case nob == 0:
		return 0, fmt.Errorf("%w: %#02x", ErrType, uint8(m.Type))
	case nob > len(dst) || nob > MsgSize:
		return 0, fmt.Errorf("%v of %d bytes does not fit %d", m.Type, nob, min(len(dst), MsgSize))
	}
	switch m.Type {
	case MsgConnReq, MsgConnAck:
		putParams(dst[48:], o, m.Params)
	case MsgImmediate:
		m.LNet.Encode(dst[48:])
		copy(dst[ImmediateSize:], m.Payload)
	case MsgPutReq:
		m.LNet.Encode(dst[48:])
		binary.LittleEndian.PutUint64(dst[120:], m.Cookie)
	case MsgPutNak, MsgPutDone, MsgGetDone:
		binary.LittleEndian.PutUint64(dst[48:], m.Cookie)
		o.PutUint32(dst[56:], uint32(m.Status))
	case MsgPutAck:
		binary.LittleEndian.PutUint64(dst[48:], m.SrcCookie)
		binary.LittleEndian.PutUint64(dst[56:], m.DstCookie)
		m.putDesc(dst[64:], o)
	case MsgGetReq:
		m.LNet.Encode(dst[48:])
		binary.LittleEndian.PutUint64(dst[120:], m.Cookie)
		m.putDesc(dst[128:], o)
	}
	return nob, nil
}

func (m *Msg) putDesc(b []byte, o binary.ByteOrder) {
	o.PutUint32(b, m.RD.Key)
	o.PutUint32(b[4:], uint32(len(m.RD.Frags)))
	b = b[8:]
	if m.BigEndian {
		for i, f := range m.RD.Frags {
			p := (*[FragSize]byte)(b[i*FragSize:])
			binary.BigEndian.PutUint32(p[:], f.Nob)
			binary.BigEndian.PutUint64(p[4:], f.Addr)
		}
		return
	}
	for i, f := range m.RD.Frags {
		p := (*[FragSize]byte)(b[i*FragSize:])
		binary.LittleEndian.PutUint32(p[:], f.Nob)
		binary.LittleEndian.PutUint64(p[4:], f.Addr)
	}
}

// Seal writes the header over dst[:h.Nob], whose body is there, and the checksum of kind ck. With
// CksumNone h.Cksum goes out as it is given.
func Seal(dst []byte, h *Header, bigEndian bool, ck CksumKind) {
	var o binary.ByteOrder = binary.LittleEndian
	if bigEndian {
		o = binary.BigEndian
	}
	o.PutUint32(dst, Magic)
	o.PutUint16(dst[4:], uint16(h.Version))
	dst[6], dst[7] = byte(h.Type), h.Credits
	o.PutUint32(dst[8:], h.Nob)
	o.PutUint64(dst[16:], uint64(h.SrcNID))
	o.PutUint64(dst[24:], h.SrcStamp)
	o.PutUint64(dst[32:], uint64(h.DstNID))
	o.PutUint64(dst[40:], h.DstStamp)
	sum := h.Cksum
	if ck == CksumSigned || ck == CksumUnsigned {
		sum = Cksum(dst[:h.Nob], ck == CksumSigned)
	}
	o.PutUint32(dst[cksumOffset:], sum)
}

// Encode writes the whole message and gives its size; m.Nob becomes that.
func (m *Msg) Encode(dst []byte, ck CksumKind) (int, error) {
	nob, err := m.EncodeBody(dst)
	if err != nil {
		return 0, err
	}
	m.Nob = uint32(nob)
	Seal(dst, &m.Header, m.BigEndian, ck)
	return nob, nil
}

func getParams(b []byte, o binary.ByteOrder) ConnParams {
	return ConnParams{o.Uint16(b), o.Uint16(b[2:]), o.Uint32(b[4:])}
}

func putParams(b []byte, o binary.ByteOrder, p ConnParams) {
	o.PutUint16(b, p.QueueDepth)
	o.PutUint16(b[2:], p.MaxFrags)
	o.PutUint32(b[4:], p.MaxMsgSize)
}

// Decode reads the LNet header at the start of b, which holds at least 72 bytes.
func (h *LNetHeader) Decode(b []byte) {
	le := binary.LittleEndian
	b = b[:LNetHeaderSize]
	*h = LNetHeader{
		DestNID: NID(le.Uint64(b)), SrcNID: NID(le.Uint64(b[8:])), DestPID: le.Uint32(b[16:]), SrcPID: le.Uint32(b[20:]),
		Type: LNetType(le.Uint32(b[24:])), PayloadLength: le.Uint32(b[28:]),
		Handle: Handle{le.Uint64(b[32:]), le.Uint64(b[40:])},
	}
	switch h.Type {
	case LNetPUT:
		h.MatchBits, h.HdrData, h.Portal, h.Offset = le.Uint64(b[48:]), le.Uint64(b[56:]), le.Uint32(b[64:]), le.Uint32(b[68:])
	case LNetGET:
		h.MatchBits, h.Portal, h.Offset, h.Length = le.Uint64(b[48:]), le.Uint32(b[56:]), le.Uint32(b[60:]), le.Uint32(b[64:])
	case LNetACK:
		h.MatchBits, h.Length = le.Uint64(b[48:]), le.Uint32(b[56:])
	}
}

// Encode writes the 72 bytes of the LNet header to the start of b.
func (h *LNetHeader) Encode(b []byte) {
	le := binary.LittleEndian
	b = b[:LNetHeaderSize]
	le.PutUint64(b, uint64(h.DestNID))
	le.PutUint64(b[8:], uint64(h.SrcNID))
	le.PutUint32(b[16:], h.DestPID)
	le.PutUint32(b[20:], h.SrcPID)
	le.PutUint32(b[24:], uint32(h.Type))
	le.PutUint32(b[28:], h.PayloadLength)
	le.PutUint64(b[32:], h.Handle.Iface)
	le.PutUint64(b[40:], h.Handle.Object)
	clear(b[48:])
	switch h.Type {
	case LNetPUT:
		le.PutUint64(b[48:], h.MatchBits)
		le.PutUint64(b[56:], h.HdrData)
		le.PutUint32(b[64:], h.Portal)
		le.PutUint32(b[68:], h.Offset)
	case LNetGET:
		le.PutUint64(b[48:], h.MatchBits)
		le.PutUint32(b[56:], h.Portal)
		le.PutUint32(b[60:], h.Offset)
		le.PutUint32(b[64:], h.Length)
	case LNetACK:
		le.PutUint64(b[48:], h.MatchBits)
		le.PutUint32(b[56:], h.Length)
	}
}

// String is one line for logs: type, both processes, and the fields that the type has.
func (h LNetHeader) String() string {
	s := fmt.Sprintf("%v %d-%v > %d-%v, payload %d, handle %#x/%#x",
		h.Type, h.SrcPID, h.SrcNID, h.DestPID, h.DestNID, h.PayloadLength, h.Handle.Iface, h.Handle.Object)
	switch h.Type {
	case LNetPUT:
		s += fmt.Sprintf(", match %#x, data %#x, portal %d, offset %d", h.MatchBits, h.HdrData, h.Portal, h.Offset)
	case LNetGET:
		s += fmt.Sprintf(", match %#x, portal %d, offset %d, length %d", h.MatchBits, h.Portal, h.Offset, h.Length)
	case LNetACK:
		s += fmt.Sprintf(", match %#x, length %d", h.MatchBits, h.Length)
	}
	return s
}

// ParseReject reads the private data of a reject, which may be cut or padded (spec o2iblnd 2.8).
func ParseReject(b []byte) (Reject, error) {
	var r Reject
	if len(b) < 7 {
		return r, fmt.Errorf("reject: %w: %d bytes, 7 are needed", ErrShort, len(b))
	}
	o, ok := order(b, Magic)
	r.Magic = Magic
	if !ok {
		r.Magic = LNetProtoMagic
		if o, ok = order(b, LNetProtoMagic); !ok {
			return r, fmt.Errorf("reject: %w: %#08x", ErrMagic, binary.LittleEndian.Uint32(b))
		}
	}
	r.BigEndian = o == binary.BigEndian
	r.Version = Version(o.Uint16(b[4:]))
	r.Why = RejectReason(b[6])
	if r.Version != Version1 && r.Version != Version2 {
		return r, fmt.Errorf("reject: %w: %#x", ErrVersion, uint16(r.Version))
	}
	if len(b) >= RejectSize && r.Version > Version1 {
		r.Full = true
		r.Incarnation = o.Uint64(b[8:])
		r.Params = getParams(b[16:], o)
	}
	return r, nil
}

// Encode writes the 24 bytes of a reject.
func (r *Reject) Encode(dst []byte) int {
	var o binary.ByteOrder = binary.LittleEndian
	if r.BigEndian {
		o = binary.BigEndian
	}
	dst = dst[:RejectSize]
	o.PutUint32(dst, r.Magic)
	o.PutUint16(dst[4:], uint16(r.Version))
	dst[6], dst[7] = byte(r.Why), 0
	o.PutUint64(dst[8:], r.Incarnation)
	putParams(dst[16:], o, r.Params)
	return RejectSize
}

// String gives the reason in words.
func (r RejectReason) String() string {
	switch r {
	case RejectConnRace:
		return "connection race"
	case RejectNoResources:
		return "no resources"
	case RejectFatal:
		return "fatal"
	case RejectUncompat:
		return "incompatible version"
	case RejectStale:
		return "stale connection"
	case RejectRDMAFrags:
		return "too many fragments"
	case RejectMsgQueueSize:
		return "queue depth too large"
	case RejectInvalidSrvID:
		return "invalid service id"
	case RejectEarly:
		return "not ready yet"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// String gives the type's name.
func (t LNetType) String() string {
	if t <= LNetHELLO {
		return [...]string{"ACK", "PUT", "GET", "REPLY", "HELLO"}[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}
