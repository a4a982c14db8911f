package negotiate

import (
	"errors"
	"fmt"

	"o2ibd/engine/wire"
)

// ErrStale says that an answer belongs to another life of one of the two sides; every other error of Ack
// is a violation of the protocol.
var ErrStale = errors.New("the connection belongs to another life of a node")

// Offer is what a CONNREQ offers: queue depth and fragments for this version.
func Offer(v wire.Version, depth, frags int) wire.ConnParams {
	if v == wire.Version1 {
		depth, frags = QueueDepthV1, wire.MaxFragsOffer
	}
	return wire.ConnParams{QueueDepth: uint16(depth), MaxFrags: uint16(frags), MaxMsgSize: wire.MsgSize}
}

// Ack judges the private data of an accepted connection (spec o2iblnd 2.9) and fills m. v and offered are
// what we asked with.
func Ack(m *wire.Msg, private []byte, l *Local, peer wire.NID, v wire.Version, offered wire.ConnParams) error {
	if _, err := m.Unpack(private); err != nil {
		return fmt.Errorf("its CONNACK is malformed: %w", err)
	}
	p := m.Params
	switch {
	case m.Type != wire.MsgConnAck:
		return fmt.Errorf("it sent %v where a CONNACK belongs", m.Type)
	case m.Version != v:
		return fmt.Errorf("it answered with version %#x, asked was %#x", uint16(m.Version), uint16(v))
	case p.QueueDepth > offered.QueueDepth || p.QueueDepth < leastDepth(v):
		return fmt.Errorf("it answered with queue depth %d, offered was %d", p.QueueDepth, offered.QueueDepth)
	case p.MaxFrags > offered.MaxFrags || p.MaxFrags == 0:
		return fmt.Errorf("it answered with %d fragments, offered were %d", p.MaxFrags, offered.MaxFrags)
	case p.MaxMsgSize > wire.MsgSize:
		return fmt.Errorf("it answered with messages of %d bytes, ours have %d", p.MaxMsgSize, wire.MsgSize)
	case m.DstNID != l.NID || m.DstStamp != l.Incarnation:
		return fmt.Errorf("%w: its CONNACK is for %v in life %#x, we are %v in %#x", ErrStale, m.DstNID, m.DstStamp, l.NID, l.Incarnation)
	case m.SrcNID != peer:
		return fmt.Errorf("%w: its CONNACK says it is %v, asked was %v", ErrStale, m.SrcNID, peer)
	}
	return nil
}

// RejectKind is who refused.
type RejectKind uint8

const (
	KindOther      RejectKind = iota
	KindConsumer              // the peer's o2iblnd, with its private data
	KindNoListener            // nobody listens on the service port
	KindStaleConn             // its connection manager
)

// ActiveView is the state of the peer whose connection was refused.
type ActiveView struct {
	Waiting    bool // messages wait for a connection
	Version    wire.Version
	Connecting int // active attempts
	Accepting  int // passive attempts
}

// Retry is what a refused active side does.
type Retry struct {
	Reconnect   bool
	Why         wire.RejectReason // 0: not a reject of the protocol
	Version     wire.Version      // with Reconnect
	Incarnation uint64            // to adopt; 0: as it was
	QueueDepth  int               // to offer; 0: as it was
	MaxFrags    int               // to offer; 0: as it was
	Text        string            // in operators' words
}

// OnReject settles a refusal (spec o2iblnd 2.8). Only we adapt, and downward only.
func OnReject(kind RejectKind, private []byte, v wire.Version, offered wire.ConnParams, view ActiveView) Retry {
	switch kind {
	case KindStaleConn:
		return retry(Retry{Why: wire.RejectStale, Version: wire.Version2, Text: "its connection manager still knows an older connection"}, view)
	case KindNoListener:
		return Retry{Text: "nobody listens there for o2ib connections: is LNet up on it, and the service port the same?"}
	case KindOther:
		return Retry{Text: "refused without a reason"}
	}
	rej, err := wire.ParseReject(private)
	if err != nil {
		return Retry{Text: fmt.Sprintf("refused, and the reason is unreadable: %v", err)}
	}
	r := Retry{Why: rej.Why, Version: rej.Version, Incarnation: ^uint64(0)}
	if rej.Full {
		r.Incarnation = rej.Incarnation
	}
	if rej.Why == wire.RejectFatal && rej.Version == wire.Version1 && v != wire.Version1 {
		r.Why = wire.RejectUncompat
	}
	lower := rej.Full && (rej.Params.QueueDepth < offered.QueueDepth && r.Why == wire.RejectMsgQueueSize ||
		rej.Params.MaxFrags < offered.MaxFrags && r.Why == wire.RejectRDMAFrags) && rej.Params.QueueDepth > 0 && rej.Params.MaxFrags > 0
	switch r.Why {
	case wire.RejectConnRace:
		r.Text = "both sides connected at once, its connection goes first"
	case wire.RejectStale:
		r.Text = "it was restarted, or it knew an older life of ours"
	case wire.RejectUncompat:
		r.Text = "it speaks protocol version 1 only"
	case wire.RejectMsgQueueSize, wire.RejectRDMAFrags:
		r.Text = fmt.Sprintf("we asked for queue depth (peer_credits) %d and %d fragments, it accepts %d and %d", offered.QueueDepth, offered.MaxFrags, rej.Params.QueueDepth, rej.Params.MaxFrags)
		if !lower {
			r.Text = fmt.Sprintf("incompatible: refused for %v, without an offer that is lower than ours (queue depth %d, fragments %d)", r.Why, offered.QueueDepth, offered.MaxFrags)
			if rej.Full {
				r.Text += fmt.Sprintf(": it says %d and %d", rej.Params.QueueDepth, rej.Params.MaxFrags)
			}
			return Retry{Why: r.Why, Text: r.Text}
		}
		// It names one at a time but sends both: lower both at once.
		r.QueueDepth = int(min(rej.Params.QueueDepth, offered.QueueDepth))
		r.MaxFrags = int(min(rej.Params.MaxFrags, offered.MaxFrags))
	case wire.RejectNoResources:
		return Retry{Why: r.Why, Text: "it has no resources for a connection"}
	case wire.RejectFatal:
		return Retry{Why: r.Why, Text: "refused for good: our NID, its NID, a message size or a privileged port is not what it accepts"}
	case wire.RejectEarly:
		return Retry{Why: r.Why, Text: "it is still starting"}
	default:
		return Retry{Why: r.Why, Text: fmt.Sprintf("refused with the unknown reason %d", uint8(r.Why))}
	}
	return retry(r, view)
}

// retry says whether a new attempt has a point: something waits or there is a version to learn, this is
// our only interest in the peer, and it is not connecting to us already.
func retry(r Retry, view ActiveView) Retry {
	r.Reconnect = (view.Waiting || view.Version != r.Version) && view.Connecting >= 1 && view.Accepting == 0
	return r
}
