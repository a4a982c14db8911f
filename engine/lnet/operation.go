package lnet

import (
	"fmt"

	"golang.org/x/sys/unix"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// Operation says where a Put or Get goes.
type Operation struct {
	Target    ProcessID
	Source    wire.NID // our NID to send from; 0: the first that reaches the target
	Portal    uint32
	MatchBits uint64
	Offset    uint32 // in the target's memory, where its MD lets the requester say
	HdrData   uint64 // PUT: for the target's user

	// Via is an Event's Via, inside its handler; nil elsewhere.
	Via o2iblnd.Sender
}

// Put sends the whole memory of an active MD. It costs one unit of the threshold and ends with a SEND
// event; with ack, another unit and, once the data is in place there, an ACK event. Without ack a SEND
// of status 0 says only that the memory may be used again.
func (n *Node) Put(h Handle, op Operation, ack bool) error {
	m, err := n.begin(h, kindPut, &op, ack)
	if err != nil {
		return fmt.Errorf("put to %v: %w", op.Target.NID, err)
	}
	n.submit(op.Via, m)
	return nil
}

// Get asks for data to fill the memory of an active MD. It costs two units of the threshold and ends
// with a SEND and a REPLY event, in either order; after a SEND that failed there may be no REPLY.
func (n *Node) Get(h Handle, op Operation) error {
	m, err := n.begin(h, kindGet, &op, true)
	if err != nil {
		return fmt.Errorf("get from %v: %w", op.Target.NID, err)
	}
	n.submit(op.Via, m)
	return nil
}

// begin makes the message of an operation and takes its part of the MD.
func (n *Node) begin(h Handle, k kind, op *Operation, answer bool) (*msg, error) {
	if n.closed.Load() {
		return nil, ErrClosed
	}
	i, p, err := n.route(op)
	if err != nil {
		return nil, err
	}
	d := n.handles.get(h)
	if d == nil {
		return nil, ErrStaleHandle
	}
	need := 1
	if answer {
		need = 2
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.handle != h || d.aborted:
		return nil, ErrStaleHandle
	case d.portal != nil:
		return nil, fmt.Errorf("the MD is attached to portal %d: only bound ones send", d.portal.index)
	case d.threshold >= 0 && d.threshold < need:
		return nil, fmt.Errorf("the MD is good for %d more events, the operation has %d", d.threshold, need)
	}
	d.consume()
	d.refs++
	m := n.newMsg(k)
	m.ni, m.peer, m.md = i, p, d
	m.Len = d.length
	m.Segs = append(m.Segs, d.segs...)
	m.Hdr = wire.LNetHeader{
		DestNID: op.Target.NID, SrcNID: i.nid, DestPID: op.Target.PID, SrcPID: n.cfg.PID,
		Handle: wire.NoHandle, MatchBits: op.MatchBits, Portal: op.Portal, Offset: op.Offset,
	}
	if p != nil {
		m.Peer = p.nid
	}
	if answer {
		m.Hdr.Handle = n.wireHandle(h)
		n.expect(d, p, n.cfg.Now().Add(n.cfg.TransactionTimeout))
	}
	if k == kindPut {
		m.Hdr.Type, m.Hdr.PayloadLength, m.Hdr.HdrData = wire.LNetPUT, uint32(d.length), op.HdrData
	} else {
		m.Hdr.Type, m.Hdr.Length = wire.LNetGET, uint32(d.length)
		m.optimised = p == nil || d.length > wire.MaxImmediate
	}
	self := ProcessID{i.nid, n.cfg.PID}
	m.ev = Event{
		Type: EventSend, MsgType: m.Hdr.Type, Target: op.Target, Initiator: self, Source: self, Sender: i.nid,
		Portal: op.Portal, MatchBits: op.MatchBits, RLength: d.length, MLength: d.length,
		Offset: int(op.Offset), HdrData: m.Hdr.HdrData,
	}
	return m, nil
}

// route finds the NI to send from and the peer to send to; no peer for a target of our own.
func (n *Node) route(op *Operation) (*ni, *peer, error) {
	target := op.Target.NID
	local := n.ni(target)
	var i *ni
	switch {
	case op.Source != 0:
		if i = n.ni(op.Source); i == nil {
			return nil, nil, fmt.Errorf("source %v is no NID of ours: %w", op.Source, unix.EADDRNOTAVAIL)
		}
	case local != nil:
		i = local
	default:
		if i = n.niTowards(target); i == nil || target == wire.AnyNID {
			return nil, nil, fmt.Errorf("no NI on its network: %w", unix.ENETUNREACH)
		}
	}
	if local != nil {
		return i, nil, nil
	}
	p, err := n.peerOf(i, target)
	return i, p, err
}
