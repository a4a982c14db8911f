package decode

import (
	"strconv"

	"o2ibd/engine/wire"
)

// opaque is a number that is compared and never counted with; JSON has it as a "0x…" string (decision 26).
type opaque uint64

func (o opaque) String() string { return "0x" + strconv.FormatUint(uint64(o), 16) }

// MarshalText writes what String does.
func (o opaque) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// message is a message as it is printed. The order of the fields is the order of the keys; pointers are there
// for the types that have the field.
type message struct {
	Type     string   `json:"type"`
	Version  uint16   `json:"version"`
	Credits  uint8    `json:"credits"`
	Nob      uint32   `json:"nob"`
	Cksum    opaque   `json:"cksum"`
	CksumOK  string   `json:"cksum_ok"`
	SrcNID   wire.NID `json:"srcnid"`
	SrcStamp opaque   `json:"srcstamp"`
	DstNID   wire.NID `json:"dstnid"`
	DstStamp opaque   `json:"dststamp"`

	*params
	LNet         *lnetHeader `json:"lnet,omitempty"`
	PayloadBytes *int        `json:"payload_bytes,omitempty"`
	Cookie       *opaque     `json:"cookie,omitempty"`
	SrcCookie    *opaque     `json:"src_cookie,omitempty"`
	DstCookie    *opaque     `json:"dst_cookie,omitempty"`
	Status       *int32      `json:"status,omitempty"`
	*descriptor
}

// reject is a refused connection's private data. Incarnation and params are only there when they were sent.
type reject struct {
	Type        string  `json:"type"`
	Version     uint16  `json:"version"`
	Why         uint8   `json:"why"`
	WhyName     string  `json:"why_name"`
	Incarnation *opaque `json:"incarnation,omitempty"`
	*params
}

type params struct {
	QueueDepth uint16 `json:"queue_depth"`
	MaxFrags   uint16 `json:"max_frags"`
	MaxMsgSize uint32 `json:"max_msg_size"`
}

type lnetHeader struct {
	Type          string   `json:"type"`
	DestNID       wire.NID `json:"dest_nid"`
	SrcNID        wire.NID `json:"src_nid"`
	DestPID       uint32   `json:"dest_pid"`
	SrcPID        uint32   `json:"src_pid"`
	PayloadLength uint32   `json:"payload_length"`
	Handle        string   `json:"handle"` // interface cookie / object cookie
	MatchBits     *opaque  `json:"match_bits,omitempty"`
	HdrData       *opaque  `json:"hdr_data,omitempty"`
	Portal        *uint32  `json:"portal,omitempty"`
	Offset        *uint32  `json:"offset,omitempty"`
	Length        *uint32  `json:"length,omitempty"`
}

type descriptor struct {
	RKey   opaque `json:"rkey"`
	NFrags int    `json:"nfrags"`
	Frags  []frag `json:"frags"`
}

type frag struct {
	Nob  uint32 `json:"nob"`
	Addr opaque `json:"addr"`
}

func newMessage(m *wire.Msg, ck wire.CksumKind) *message {
	r := &message{
		Type: m.Type.String(), Version: uint16(m.Version), Credits: m.Credits, Nob: m.Nob, Cksum: opaque(m.Cksum), CksumOK: ck.String(),
		SrcNID: m.SrcNID, SrcStamp: opaque(m.SrcStamp), DstNID: m.DstNID, DstStamp: opaque(m.DstStamp),
	}
	switch m.Type {
	case wire.MsgConnReq, wire.MsgConnAck:
		r.params = newParams(m.Params)
	case wire.MsgImmediate:
		r.LNet = newLNetHeader(&m.LNet)
		r.PayloadBytes = new(len(m.Payload))
	case wire.MsgPutReq:
		r.LNet = newLNetHeader(&m.LNet)
		r.Cookie = new(opaque(m.Cookie))
	case wire.MsgPutNak, wire.MsgPutDone, wire.MsgGetDone:
		r.Cookie, r.Status = new(opaque(m.Cookie)), new(m.Status)
	case wire.MsgPutAck:
		r.SrcCookie, r.DstCookie = new(opaque(m.SrcCookie)), new(opaque(m.DstCookie))
		r.descriptor = newDescriptor(&m.RD)
	case wire.MsgGetReq:
		r.LNet = newLNetHeader(&m.LNet)
		r.Cookie = new(opaque(m.Cookie))
		r.descriptor = newDescriptor(&m.RD)
	}
	return r
}

func newReject(j *wire.Reject) *reject {
	r := &reject{Type: "REJ", Version: uint16(j.Version), Why: uint8(j.Why), WhyName: j.Why.String()}
	if j.Full {
		r.Incarnation, r.params = new(opaque(j.Incarnation)), newParams(j.Params)
	}
	return r
}

func newParams(p wire.ConnParams) *params { return &params{p.QueueDepth, p.MaxFrags, p.MaxMsgSize} }

func newLNetHeader(h *wire.LNetHeader) *lnetHeader {
	r := &lnetHeader{
		Type: h.Type.String(), DestNID: h.DestNID, SrcNID: h.SrcNID, DestPID: h.DestPID, SrcPID: h.SrcPID,
		PayloadLength: h.PayloadLength, Handle: opaque(h.Handle.Iface).String() + "/" + opaque(h.Handle.Object).String(),
	}
	switch h.Type {
	case wire.LNetPUT:
		r.MatchBits, r.HdrData = new(opaque(h.MatchBits)), new(opaque(h.HdrData))
		r.Portal, r.Offset = new(h.Portal), new(h.Offset)
	case wire.LNetGET:
		r.MatchBits = new(opaque(h.MatchBits))
		r.Portal, r.Offset, r.Length = new(h.Portal), new(h.Offset), new(h.Length)
	case wire.LNetACK:
		r.MatchBits, r.Length = new(opaque(h.MatchBits)), new(h.Length)
	}
	return r
}

func newDescriptor(d *wire.Desc) *descriptor {
	r := &descriptor{RKey: opaque(d.Key), NFrags: len(d.Frags), Frags: make([]frag, len(d.Frags))}
	for i, f := range d.Frags {
		r.Frags[i] = frag{f.Nob, opaque(f.Addr)}
	}
	return r
}
