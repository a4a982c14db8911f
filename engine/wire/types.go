// Package wire is the bytes of o2iblnd on the wire: NIDs, the LNet header, messages and rejects, both protocol
// versions and both byte orders. Decoding copies no payload and never panics; encoding writes into the
// caller's buffer; neither allocates, except for the error of a message that is refused. It has no state and
// imports nothing of ours. Spec o2iblnd section 1, spec lnet sections 1 and 2.
package wire

import "fmt"

// Magic opens every o2iblnd message and reject (spec o2iblnd 1.3).
const Magic uint32 = 0x0be91b91

// LNetProtoMagic is the placeholder magic of a unified protocol that no kernel speaks; a passive
// side refuses it in either byte order (spec o2iblnd 2.5, check 3).
const LNetProtoMagic uint32 = 0x45726963

// Version of the o2iblnd protocol.
type Version uint16

const (
	Version1 Version = 0x11 // in-band NOOPs, last credit kept for a NOOP (spec o2iblnd 1.9)
	Version2 Version = 0x12 // out-of-band NOOPs; what we open with
)

// Sizes, in bytes, and limits of the wire format (spec o2iblnd 1.3 to 1.5).
const (
	HeaderSize     = 48                          // common header of every message
	LNetHeaderSize = 72                          // LNet header inside IMMEDIATE, PUT_REQ, GET_REQ
	ConnMsgSize    = 56                          // CONNREQ and CONNACK
	ImmediateSize  = HeaderSize + LNetHeaderSize // IMMEDIATE without payload
	PutReqSize     = 128                         // PUT_REQ
	CompletionSize = 60                          // PUT_NAK, PUT_DONE, GET_DONE
	PutAckBase     = 72                          // PUT_ACK without fragments
	GetReqBase     = 136                         // GET_REQ without fragments
	FragSize       = 12                          // one fragment of a descriptor
	RejectSize     = 24                          // reject private data
	MsgSize        = 4096                        // largest message, and every receive buffer
	MaxImmediate   = MsgSize - ImmediateSize     // largest payload that travels inside a message
	MaxFragsOffer  = 256                         // fragments that we offer and put in a descriptor
	MaxFrags       = 257                         // fragments that we accept
	MaxPayload     = 1 << 20                     // LNET_MTU: largest payload of a PUT or REPLY
	LustrePID      = 12345                       // pid of every kernel node
)

// MsgType is the type byte of an o2iblnd message (spec o2iblnd 1.4).
type MsgType uint8

const (
	MsgConnReq   MsgType = 0xc0
	MsgConnAck   MsgType = 0xc1
	MsgNoop      MsgType = 0xd0
	MsgImmediate MsgType = 0xd1
	MsgPutReq    MsgType = 0xd2
	MsgPutNak    MsgType = 0xd3
	MsgPutAck    MsgType = 0xd4
	MsgPutDone   MsgType = 0xd5
	MsgGetReq    MsgType = 0xd6
	MsgGetDone   MsgType = 0xd7
)

// String gives the name that Lustre engineers know, such as GET_REQ.
func (t MsgType) String() string {
	switch t {
	case MsgConnReq:
		return "CONNREQ"
	case MsgConnAck:
		return "CONNACK"
	case MsgNoop:
		return "NOOP"
	case MsgImmediate:
		return "IMMEDIATE"
	case MsgPutReq:
		return "PUT_REQ"
	case MsgPutNak:
		return "PUT_NAK"
	case MsgPutAck:
		return "PUT_ACK"
	case MsgPutDone:
		return "PUT_DONE"
	case MsgGetReq:
		return "GET_REQ"
	case MsgGetDone:
		return "GET_DONE"
	}
	return fmt.Sprintf("type 0x%02x", uint8(t))
}

// Header is the common header in typed form. The magic is implied; the byte order is the sender's.
type Header struct {
	Version  Version
	Type     MsgType
	Credits  uint8  // send credits given back to the receiver of this message
	Nob      uint32 // bytes of the whole message, header included
	Cksum    uint32 // as on the wire, 0 = none
	SrcNID   NID
	SrcStamp uint64 // incarnation of the sender, microseconds since the epoch
	DstNID   NID
	DstStamp uint64 // what the sender believes the receiver's incarnation to be
}

// ConnParams are the negotiated limits in CONNREQ, CONNACK and rejects.
type ConnParams struct {
	QueueDepth uint16 // messages, that is credits in each direction
	MaxFrags   uint16 // RDMA write fragments in one transfer
	MaxMsgSize uint32 // bytes, 4096
}

// Frag is one fragment of an RDMA descriptor: Nob bytes at the owner's address Addr.
type Frag struct {
	Nob  uint32
	Addr uint64
}

// Desc is an RDMA descriptor: one remote key that covers every fragment.
type Desc struct {
	Key   uint32
	Frags []Frag
}

// Size is the sum of the fragments, in bytes.
func (d *Desc) Size() int {
	n := 0
	for _, f := range d.Frags {
		n += int(f.Nob)
	}
	return n
}

// Msg is one o2iblnd message in typed form, decoded or to be encoded. Which body fields count depends
// on Type. A Msg is large and reused: it belongs to one goroutine, is never copied after Parse
// (RD.Frags points into it), and Payload points into the buffer that was parsed.
type Msg struct {
	Header
	BigEndian bool // byte order of the sender

	Params    ConnParams // CONNREQ, CONNACK
	LNet      LNetHeader // IMMEDIATE, PUT_REQ, GET_REQ
	Payload   []byte     // IMMEDIATE: what follows the LNet header, up to Nob
	Cookie    uint64     // PUT_REQ, GET_REQ, PUT_NAK, PUT_DONE, GET_DONE: opaque, always read and written little-endian
	SrcCookie uint64     // PUT_ACK: reflection of PUT_REQ's cookie; opaque like Cookie
	DstCookie uint64     // PUT_ACK: chosen by the sink; opaque like Cookie
	Status    int32      // PUT_NAK, PUT_DONE, GET_DONE: negative Linux errno, or bytes
	RD        Desc       // PUT_ACK, GET_REQ

	frags [MaxFrags]Frag
}

// RejectReason is why a connection request was refused (spec o2iblnd 1.5).
type RejectReason uint8

const (
	RejectConnRace     RejectReason = 1
	RejectNoResources  RejectReason = 2
	RejectFatal        RejectReason = 3
	RejectUncompat     RejectReason = 4 // never on the wire: made by the active side (spec o2iblnd 2.8)
	RejectStale        RejectReason = 5
	RejectRDMAFrags    RejectReason = 6
	RejectMsgQueueSize RejectReason = 7
	RejectInvalidSrvID RejectReason = 8 // never on the wire
	RejectEarly        RejectReason = 9
)

// Reject is the private data of a refused connection. Params and Incarnation are only there when
// Full (the sender speaks version 2 and sent all 24 bytes).
type Reject struct {
	Magic       uint32 // Magic, or LNetProtoMagic
	Version     Version
	Why         RejectReason
	Incarnation uint64 // the refuser's, 0 when it did not find the NI
	Params      ConnParams
	BigEndian   bool
	Full        bool
}

// LNetType is the type of an LNet message (spec lnet 2.1).
type LNetType uint32

const (
	LNetACK   LNetType = 0
	LNetPUT   LNetType = 1
	LNetGET   LNetType = 2
	LNetREPLY LNetType = 3
	LNetHELLO LNetType = 4 // byte-stream LNDs only, never valid here
)

// Handle names a memory descriptor of the node that made it; others only echo it.
type Handle struct {
	Iface  uint64 // interface cookie: the node's incarnation
	Object uint64 // object cookie: the MD
}

// NoHandle in a PUT means that no ACK is wanted.
var NoHandle = Handle{^uint64(0), ^uint64(0)}

// LNetHeader is the 72-byte LNet header, always little-endian on the wire (spec lnet 2.1).
type LNetHeader struct {
	DestNID, SrcNID NID
	DestPID, SrcPID uint32
	Type            LNetType
	PayloadLength   uint32 // bytes; 0 for ACK and GET
	Handle          Handle // PUT: ack handle; GET: return handle; ACK, REPLY: destination handle
	MatchBits       uint64 // PUT, GET, ACK
	HdrData         uint64 // PUT: opaque to LNet
	Portal          uint32 // PUT, GET
	Offset          uint32 // PUT: offset; GET: source offset
	Length          uint32 // GET: sink length; ACK: bytes accepted
}

// CksumKind says how a message's checksum stands: the two variants differ in whether a byte is added
// as a signed or an unsigned number (spec o2iblnd 1.7).
type CksumKind uint8

const (
	CksumNone     CksumKind = iota // the field is 0: not checked; or, when encoding: leave it 0
	CksumSigned                    // x86 kernels before 6.2
	CksumUnsigned                  // ARM, POWER, and every kernel from 6.2 on
	CksumBad                       // matches neither
)
