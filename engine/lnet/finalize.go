package lnet

import (
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// Finalize implements o2iblnd.Upper: credits go back first, then counters, then the event, then the ACK
// that a PUT asked for.
func (n *Node) Finalize(s o2iblnd.Sender, om *o2iblnd.Message) {
	m := om.Owner.(*msg)
	n.countOutcome(m)
	if m.credited {
		n.giveBack(s, m)
	}
	ok := m.Status == 0
	m.ev.Status = m.Status
	switch m.kind {
	case kindPut:
		if ok {
			n.countSent(m, wire.LNetPUT)
			n.countSentBytes(m, m.Len)
		}
		n.sent(s, m)
	case kindGet:
		n.finalizeGet(s, m)
	case kindAck:
		if ok {
			n.countSent(m, wire.LNetPUT)
		}
		n.freeMsg(m)
	case kindReply:
		if ok {
			n.countSent(m, wire.LNetGET)
			n.countSentBytes(m, m.Len)
			n.countReceived(m, wire.LNetGET, 0)
		}
		n.complete(s, m)
	case kindServe:
		if ok {
			n.countSentBytes(m, m.Len)
			n.countReceived(m, wire.LNetREPLY, 0)
		}
		n.complete(s, m)
	case kindRecvPut:
		n.finalizePut(s, m)
	case kindRecvReply:
		if ok {
			n.countReceived(m, wire.LNetREPLY, m.Len)
		} else {
			m.ev.MLength = 0
		}
		n.complete(s, m)
	case kindEvent:
		panic("lnet: a message came back twice")
	}
}

// sent ends our PUT, or our GET whose answer is a message of its own. Where it failed no answer is
// awaited any more.
func (n *Node) sent(s o2iblnd.Sender, m *msg) {
	if d := m.md; m.Status != 0 && m.Hdr.Handle != wire.NoHandle {
		d.mu.Lock()
		if d.expected > 0 {
			n.answered(d)
		}
		d.mu.Unlock()
	}
	n.complete(s, m)
}

// finalizeGet ends our GET. One that travelled as GET_REQ ends with its REPLY event too, good or bad.
func (n *Node) finalizeGet(s o2iblnd.Sender, m *msg) {
	ok := m.Status == 0
	if ok && m.RDMALen > m.Len {
		ok, m.Status, m.ev.Status = false, eProto, eProto
	}
	if ok {
		n.countSent(m, wire.LNetGET)
	}
	if ok && m.RDMALen < 0 || !ok && !m.optimised {
		n.sent(s, m)
		return
	}
	r := n.newCarrier()
	r.ni, r.peer, r.md = m.ni, m.peer, m.md
	r.ev = m.ev
	r.ev.Type, r.ev.MsgType = EventReply, wire.LNetREPLY
	r.ev.Source, r.ev.Initiator, r.ev.Target = m.ev.Target, m.ev.Target, m.ev.Source
	r.ev.Sender = m.Peer
	r.ev.RLength, r.ev.MLength = 0, 0
	if ok {
		r.ev.RLength, r.ev.MLength = m.RDMALen, m.RDMALen
		n.countReceived(m, wire.LNetGET, m.RDMALen)
	}
	d := m.md
	d.mu.Lock()
	d.refs++
	d.consume()
	if d.expected > 0 {
		n.answered(d)
	}
	d.mu.Unlock()
	n.complete(s, m)
	n.complete(s, r)
}

// finalizePut ends a PUT that came in, and acknowledges it (spec lnet 3.5).
func (n *Node) finalizePut(s o2iblnd.Sender, m *msg) {
	if m.Status != 0 {
		m.ev.MLength = 0
		n.complete(s, m)
		return
	}
	n.countReceived(m, wire.LNetPUT, m.Len)
	var ack *msg
	if m.Hdr.Handle != wire.NoHandle && m.md.options&OptAckDisable == 0 {
		ack = n.newMsg(kindAck)
		ack.ni, ack.peer = m.ni, m.peer
		ack.Hdr = wire.LNetHeader{
			DestNID: m.Hdr.SrcNID, SrcNID: m.ni.nid, DestPID: m.Hdr.SrcPID, SrcPID: n.cfg.PID,
			Type: wire.LNetACK, Handle: m.Hdr.Handle, MatchBits: m.Hdr.MatchBits, Length: uint32(m.Len),
		}
	}
	i, from, to, ask := m.ni, m.peer, ProcessID{m.Hdr.SrcNID, m.Hdr.SrcPID}, false
	if m.md.push {
		ask = n.takePush(m)
	}
	n.complete(s, m)
	if ack != nil {
		n.answer(s, ack)
	}
	if ask {
		n.askPusher(i, from, to)
	}
}
