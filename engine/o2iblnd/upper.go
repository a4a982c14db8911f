package o2iblnd

import (
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/wire"
)

// Upper is LNet as the LND sees it. Its methods are called on a scheduler or on connd and must not
// block; s sends without a detour while the call lasts, and must not be kept.
type Upper interface {
	// Parse takes every LNet header that arrives as IMMEDIATE (rdma false), PUT_REQ or GET_REQ (rdma
	// true). ni is the NID of the NI that received it, from the NID of the immediate sender. hdr and
	// rx.Payload are valid during the call only. On nil, rx.Receive (inside Parse) or rx.ReceiveLater
	// (any time) has to be called exactly once. An error is a protocol violation by the peer: rx is
	// given back and the connection closes with it (spec o2iblnd 4.3).
	Parse(s Sender, ni, from wire.NID, hdr *wire.LNetHeader, rx Rx, rdma bool) error
	// Finalize ends a message that was given to Send or to Receive, exactly once. m.Status, m.RDMALen
	// and m.Health are set. The message belongs to LNet again.
	Finalize(s Sender, m *Message)
	// NIStatus says that an NI can be used or cannot: its port, or its HCA, is there or not. An NI that was
	// added is up.
	NIStatus(ni wire.NID, up bool)
	// PeerDown says that the last connection or attempt to nid failed (spec o2iblnd 5.5).
	PeerDown(ni, nid wire.NID, err error, lastAlive time.Time)
}

// Sender takes messages to send. The LND itself is one, for any goroutine.
type Sender interface {
	// Send takes m over until Upper.Finalize. The NI is the one with m.Hdr.SrcNID. It never blocks.
	Send(m *Message)
}

// Rx is a received message on its way up that still holds its receive buffer.
type Rx interface {
	// Payload of an IMMEDIATE as it lies in the receive buffer, at most hdr.PayloadLength bytes; nil
	// for the RDMA forms.
	Payload() []byte
	// Receive ends the receive, inside Parse. With nil LNet wants nothing: an IMMEDIATE is dropped, a
	// PUT_REQ answered by PUT_NAK status 0, a GET_REQ by GET_DONE -ENODATA. For an IMMEDIATE or PUT_REQ
	// m.Segs and m.Len say where the payload goes (m.Len 0: a PUT_NAK status 0); for a GET_REQ m is the
	// REPLY whose m.Segs are written to the requester. Non-nil messages come back by Finalize.
	Receive(s Sender, m *Message)
	// ReceiveLater is Receive for a message that LNet had set aside, from any goroutine.
	ReceiveLater(m *Message)
}

// Message is an LNet message between LNet and the LND. It belongs to LNet, but to the LND from Send or
// Receive until Finalize. LNet reuses it; Segs keeps its capacity.
type Message struct {
	Hdr  wire.LNetHeader
	Peer wire.NID       // next hop, whose conn carries it
	Segs []arena.Buffer // PUT, REPLY: source. GET: sink. Received PUT, REPLY: sink. All of one slab
	Len  int            // bytes of Segs that count

	// Router says that Peer is a router: a GET then goes as IMMEDIATE whatever its size (spec o2iblnd 4.2).
	Router bool

	// Set before Finalize.
	Status  Errno  // 0, or a negative Linux errno
	RDMALen int    // GET that was answered by RDMA: bytes in Segs. -1: not answered by RDMA
	Health  Health // whose fault, when Status is not 0

	Owner any // LNet's

	deadline time.Time
}

// Errno is a negative Linux errno as messages and completions carry it, 0 for success.
type Errno int32

// Health says whose fault a failed send was (spec o2iblnd 4.10).
type Health uint8

const (
	HealthOK Health = iota
	HealthLocalDropped
	HealthLocalAborted
	HealthLocalError
	HealthLocalTimeout
	HealthRemoteDropped
	HealthRemoteError
	HealthRemoteTimeout
	HealthNetworkTimeout
)
