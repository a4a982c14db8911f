// Package negotiate is the rules by which a connection comes about, as pure functions: what a passive
// side answers to a CONNREQ, what an active side makes of a CONNACK or a reject, who wins when both
// connect at once (spec o2iblnd 2.4 to 2.9). Times, queues and the connection manager are the caller's.
package negotiate

import (
	"fmt"
	"math/bits"

	"o2ibd/engine/wire"
)

const (
	// QueueDepthV1 is the only queue depth of version 1.
	QueueDepthV1 = 8
	// MaxRaces is how often a requester is refused for a race before it is let in.
	MaxRaces = 20

	firstPort = 1024 // below it a source port needs a privilege
)

// Local is what an NI of ours accepts.
type Local struct {
	NID         wire.NID
	Incarnation uint64
	QueueDepth  int  // peer_credits
	MaxFrags    int  // 257
	Early       bool // the NI is still coming up: whoever asks is told to try later
}

// depth is the deepest queue for a protocol version.
func (l *Local) depth(v wire.Version) uint16 {
	if v == wire.Version1 {
		return QueueDepthV1
	}
	return uint16(l.QueueDepth)
}

// leastDepth is the queue depth with which a connection can work: version 1 keeps one credit for NOOPs and
// owes every NOOP (see credits.HighWater).
func leastDepth(v wire.Version) uint16 {
	if v == wire.Version1 {
		return 3
	}
	return 1
}

// Refusal is a request that is turned down: what goes to the requester, and why, in operators' words.
type Refusal struct {
	Reject wire.Reject
	Text   string
}

func (r *Refusal) Error() string { return r.Text }

// Request judges the private data of a connection request (spec o2iblnd 2.5, checks 1 to 14). find gives
// the NI with exactly this NID on the device that was asked. Private data may be padded. m is filled.
func Request(m *wire.Msg, private []byte, sourcePort int, privilegedOnly bool, find func(wire.NID) *Local) (*Local, *Refusal) {
	rej := wire.Reject{Magic: wire.Magic, Version: wire.Version2, Why: wire.RejectFatal, Params: wire.ConnParams{MaxMsgSize: wire.MsgSize}}
	refuse := func(why wire.RejectReason, format string, args ...any) (*Local, *Refusal) {
		rej.Why = why
		return nil, &Refusal{rej, fmt.Sprintf(format, args...)}
	}
	if privilegedOnly && sourcePort >= firstPort {
		return refuse(wire.RejectFatal, "source port %d is not privileged (require_privileged_port=1 here): set use_privileged_port=1 there", sourcePort)
	}
	if _, err := m.Unpack(private); err != nil {
		return refuse(wire.RejectFatal, "its request is malformed: %v", err)
	}
	l := find(m.DstNID)
	switch {
	case l == nil:
		return refuse(wire.RejectFatal, "it asked for %v, which is no NI of ours on this device", m.DstNID)
	case l.Early:
		return refuse(wire.RejectEarly, "it asked for %v, which is still starting: it may try again", m.DstNID)
	}
	rej.Incarnation = l.Incarnation
	rej.Params.QueueDepth, rej.Params.MaxFrags = l.depth(wire.Version2), uint16(l.MaxFrags)
	if m.DstStamp != 0 && m.DstStamp != l.Incarnation {
		return refuse(wire.RejectStale, "it knows an older life of ours (incarnation %#x, now %#x) and will try again", m.DstStamp, l.Incarnation)
	}
	v, p := m.Version, m.Params
	rej.Version, rej.Params.QueueDepth = v, l.depth(v)
	tooMany := wire.RejectRDMAFrags
	if v == wire.Version1 {
		tooMany = wire.RejectFatal // it has neither this reason nor the one for the depth
	}
	switch {
	case m.Type != wire.MsgConnReq:
		return refuse(wire.RejectFatal, "it sent %v where a CONNREQ belongs", m.Type)
	case p.QueueDepth < leastDepth(v) || p.MaxFrags == 0 || p.MaxMsgSize == 0:
		return refuse(wire.RejectFatal, "it asked for queue depth %d, %d fragments and messages of %d bytes: at least %d, 1 and 1 are needed", p.QueueDepth, p.MaxFrags, p.MaxMsgSize, leastDepth(v))
	case p.QueueDepth > l.depth(v) && v == wire.Version1:
		return refuse(wire.RejectFatal, "it asked for queue depth (peer_credits) %d, with protocol version 1 at most %d are accepted", p.QueueDepth, l.depth(v))
	case p.QueueDepth > l.depth(v):
		return refuse(wire.RejectMsgQueueSize, "it asked for queue depth (peer_credits) %d, at most %d are accepted here: it tries again with %d, at the cost of one round for each new connection", p.QueueDepth, l.depth(v), l.depth(v))
	case int(p.MaxFrags) > l.MaxFrags:
		return refuse(tooMany, "it asked for %d fragments, at most %d are accepted here", p.MaxFrags, l.MaxFrags)
	case p.MaxMsgSize > wire.MsgSize:
		return refuse(wire.RejectFatal, "it wants messages of %d bytes, ours have %d", p.MaxMsgSize, wire.MsgSize)
	}
	return l, nil
}

// PeerView is what we know of a requester.
type PeerView struct {
	Known       bool // a peer is in the table
	Version     wire.Version
	Incarnation uint64
	Connecting  bool // we are connecting to it ourselves
	Races       int  // requests of its that we refused for a race
}

// Decision about a sound request.
type Decision uint8

const (
	Accept      Decision = iota
	RefuseStale          // close its connections, adopt version and incarnation, refuse with CONN_STALE
	RefuseRace           // refuse with CONN_RACE: our own attempt goes on
)

// Decide settles a sound request against what we know of the requester (spec o2iblnd 2.5, checks 16 to
// 18, and 2.6). hashed selects the comparison of peers from 2.15.64 on.
func Decide(m *wire.Msg, l *Local, p PeerView, hashed bool) Decision {
	switch {
	case !p.Known:
		return Accept
	case p.Version != 0 && (p.Incarnation != m.SrcStamp || p.Version != m.Version):
		return RefuseStale
	case p.Connecting && Lower(m.SrcNID, l.NID, hashed) && p.Races < MaxRaces:
		return RefuseRace
	}
	return Accept
}

// RejectWith is the reject that goes to the sender of m for a reason that lies on our side.
func RejectWith(m *wire.Msg, l *Local, why wire.RejectReason) wire.Reject {
	return wire.Reject{
		Magic: wire.Magic, Version: m.Version, Why: why, Incarnation: l.Incarnation,
		Params: wire.ConnParams{QueueDepth: l.depth(m.Version), MaxFrags: uint16(l.MaxFrags), MaxMsgSize: wire.MsgSize},
	}
}

// Lower says whether a loses a connection race against b: by the NIDs as numbers, or folded to 32 bits
// with the address as a little-endian machine loads it.
func Lower(a, b wire.NID, hashed bool) bool {
	if hashed {
		return fold(a) < fold(b)
	}
	return a < b
}

func fold(n wire.NID) uint32 { return uint32(n.Net()) ^ bits.ReverseBytes32(n.Addr()) }
