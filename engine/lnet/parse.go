package lnet

import (
	"errors"
	"fmt"
	"time"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// ErrProtocol says that a peer broke the rules of LNet. Its connection has to go.
var ErrProtocol = errors.New("LNet protocol error")

// Parse implements o2iblnd.Upper: it checks a header in the order of spec lnet 2.5 and acts on it.
func (n *Node) Parse(s o2iblnd.Sender, nid, from wire.NID, hdr *wire.LNetHeader, rx o2iblnd.Rx, rdma bool) error {
	i := n.ni(nid)
	if i == nil {
		return fmt.Errorf("message from %v for %v: no such NI", from, nid)
	}
	if err := n.check(i, from, hdr, rdma); err != nil {
		return err
	}
	if n.closed.Load() {
		return ErrClosed
	}
	if hdr.DestNID != i.nid { // on another network: we do not route
		n.drop(s, i, from, hdr, rx)
		return nil
	}
	p, err := n.peerOf(i, from)
	if errors.Is(err, ErrClosed) {
		return err
	}
	if err != nil {
		n.drop(s, i, from, hdr, rx)
		return nil
	}
	p.heard(n.cfg.Now())
	i.health.up()
	n.receive(s, i, p, hdr, rx, rdma)
	return nil
}

// check finds what is wrong with a header, whoever it is for.
func (n *Node) check(i *ni, from wire.NID, h *wire.LNetHeader, rdma bool) error {
	switch h.Type {
	case wire.LNetACK, wire.LNetGET:
		if h.PayloadLength != 0 {
			return fmt.Errorf("%w: %v from %v with a payload of %d bytes: it carries none", ErrProtocol, h.Type, from, h.PayloadLength)
		}
	case wire.LNetPUT, wire.LNetREPLY:
		if h.PayloadLength > wire.MaxPayload {
			return fmt.Errorf("%w: payload of %d bytes from %v: at most %d are allowed", ErrProtocol, h.PayloadLength, from, wire.MaxPayload)
		}
	default:
		return fmt.Errorf("%w: message of %v from %v: ACK, PUT, GET and REPLY exist", ErrProtocol, h.Type, from)
	}
	if h.SrcNID == wire.AnyNID || n.ni(h.SrcNID) != nil {
		return fmt.Errorf("%w: message from %v with the source %v", ErrProtocol, from, h.SrcNID)
	}
	if rdma && h.Type == wire.LNetACK {
		return fmt.Errorf("%w: ACK from %v as an RDMA request", ErrProtocol, from)
	}
	if h.DestNID == i.nid {
		return nil
	}
	switch {
	case h.DestNID.Net() == i.nid.Net():
		return fmt.Errorf("%w: message from %v for %v came to %v: its own network reaches it", ErrProtocol, from, h.DestNID, i.nid)
	case n.ni(h.DestNID) != nil:
		return fmt.Errorf("%w: message from %v for %v came to our other NI %v", ErrProtocol, from, h.DestNID, i.nid)
	case rdma && h.Type == wire.LNetGET:
		return fmt.Errorf("%w: GET from %v for %v by RDMA: nobody routes that", ErrProtocol, from, h.DestNID)
	}
	return nil
}

// receive acts on a good header for us. p is the immediate sender, nil for a message of our own.
func (n *Node) receive(s o2iblnd.Sender, i *ni, p *peer, h *wire.LNetHeader, rx o2iblnd.Rx, rdma bool) {
	switch h.Type {
	case wire.LNetPUT:
		n.receivePut(s, i, p, h, rx, rdma)
	case wire.LNetGET:
		n.receiveGet(s, i, p, h, rx, rdma)
	case wire.LNetREPLY:
		n.receiveReply(s, i, p, h, rx)
	case wire.LNetACK:
		n.receiveAck(s, i, p, h, rx)
	}
}

func (n *Node) receivePut(s o2iblnd.Sender, i *ni, p *peer, h *wire.LNetHeader, rx o2iblnd.Rx, rdma bool) {
	if h.Portal >= numPortals {
		n.drop(s, i, senderNID(i, p), h, rx)
		return
	}
	pt, r := &n.portals[h.Portal], putRequest(h)
	at, v := pt.match(&r, nil)
	if v == canPark {
		at, v = n.park(s, pt, &r, i, p, h, rx, rdma)
	}
	switch v {
	case parked:
	case matched:
		m := n.newMsg(kindRecvPut)
		m.Hdr, m.ni, m.peer = *h, i, p
		m.accept(at)
		rx.Receive(s, &m.Message)
	default:
		n.drop(s, i, senderNID(i, p), h, rx)
	}
}

// park sets a PUT aside that matches nothing yet. The data of an IMMEDIATE is copied, so that the peer
// gets its credit back; of the RDMA forms only the request waits (spec lnet 3.3).
func (n *Node) park(s o2iblnd.Sender, pt *portal, r *request, i *ni, p *peer, h *wire.LNetHeader, rx o2iblnd.Rx, rdma bool) (place, verdict) {
	m := n.newMsg(kindRecvPut)
	m.Hdr, m.ni, m.peer = *h, i, p
	if rdma {
		m.rx = rx
	} else {
		data := rx.Payload()
		if len(data) < r.length {
			n.freeMsg(m)
			return place{}, noMatch
		}
		if r.length > 0 {
			b, err := n.aside.get(r.length)
			if err != nil {
				n.freeMsg(m)
				return place{}, noMatch
			}
			copy(b.Bytes(), data[:r.length])
			m.aside = b
		}
	}
	at, v := pt.match(r, m)
	switch {
	case v != parked:
		n.aside.put(m.aside)
		n.freeMsg(m)
	case !rdma:
		rx.Receive(s, nil)
	}
	return at, v
}

func (n *Node) receiveGet(s o2iblnd.Sender, i *ni, p *peer, h *wire.LNetHeader, rx o2iblnd.Rx, rdma bool) {
	var at place
	v := noMatch
	if h.Portal < numPortals {
		r := getRequest(h)
		at, v = n.portals[h.Portal].match(&r, nil)
	}
	if v != matched {
		n.drop(s, i, senderNID(i, p), h, rx)
		return
	}
	if h.Portal == reservedPortal {
		n.stats.pings.Add(1)
	}
	m := n.newMsg(kindServe)
	m.Hdr, m.ni, m.peer = *h, i, p
	m.accept(at)
	m.Hdr = wire.LNetHeader{
		DestNID: h.SrcNID, SrcNID: i.nid, DestPID: h.SrcPID, SrcPID: n.cfg.PID,
		Type: wire.LNetREPLY, PayloadLength: uint32(at.length), Handle: h.Handle,
	}
	if rdma {
		m.Peer = senderNID(i, p)
		rx.Receive(s, &m.Message)
		return
	}
	m.kind = kindReply
	rx.Receive(s, nil)
	n.answer(s, m)
}

// answer sends an ACK or REPLY to the node whose message m.peer brought. A node on our own network is
// reached directly, one behind a router by the router that its message came from.
func (n *Node) answer(s o2iblnd.Sender, m *msg) {
	if p := m.peer; p != nil {
		if m.Hdr.DestNID != p.nid && m.Hdr.DestNID.Net() == m.ni.nid.Net() {
			direct, err := n.peerOf(m.ni, m.Hdr.DestNID)
			if err != nil {
				n.fail(s, m, errnoOf(err))
				return
			}
			m.peer = direct
		}
		m.Peer = m.peer.nid
		m.Router = m.Peer != m.Hdr.DestNID
	}
	n.submit(s, m)
}

func (n *Node) receiveReply(s o2iblnd.Sender, i *ni, p *peer, h *wire.LNetHeader, rx o2iblnd.Rx) {
	d := n.asked(h)
	if d == nil {
		n.drop(s, i, senderNID(i, p), h, rx)
		return
	}
	length := int(h.PayloadLength)
	if length > d.length && d.options&OptTruncate == 0 {
		d.mu.Unlock()
		n.drop(s, i, senderNID(i, p), h, rx)
		return
	}
	d.consume()
	d.refs++
	n.answered(d)
	m := n.newMsg(kindRecvReply)
	m.Hdr, m.ni, m.peer, m.md = *h, i, p, d
	m.Len = min(length, d.length)
	m.Segs = appendSegs(m.Segs, d.segs, 0, m.Len)
	d.mu.Unlock()
	m.ev = received(EventReply, m, length, m.Len)
	rx.Receive(s, &m.Message)
}

func (n *Node) receiveAck(s o2iblnd.Sender, i *ni, p *peer, h *wire.LNetHeader, rx o2iblnd.Rx) {
	d := n.asked(h)
	if d == nil {
		n.drop(s, i, senderNID(i, p), h, rx)
		return
	}
	d.consume()
	d.refs++
	n.answered(d)
	m := n.newMsg(kindEvent)
	m.Hdr, m.ni, m.peer, m.md = *h, i, p, d
	m.ev = received(EventAck, m, d.length, int(h.Length))
	m.ev.MatchBits = h.MatchBits
	d.mu.Unlock()
	rx.Receive(s, nil)
	n.countReceived(m, wire.LNetACK, 0)
	n.complete(s, m)
}

// asked finds the active MD that waits for an ACK or REPLY, and locks it. nil: there is none any more,
// which is normal for late answers.
func (n *Node) asked(h *wire.LNetHeader) *md {
	if h.Handle.Iface != n.cookie {
		return nil
	}
	handle := Handle(h.Handle.Object)
	d := n.handles.get(handle)
	if d == nil {
		return nil
	}
	d.mu.Lock()
	if d.handle != handle || d.portal != nil || d.threshold == 0 || d.aborted || d.expected == 0 {
		d.mu.Unlock()
		return nil
	}
	return d
}

// drop takes a message that nothing wants.
func (n *Node) drop(s o2iblnd.Sender, i *ni, from wire.NID, h *wire.LNetHeader, rx o2iblnd.Rx) {
	n.countDrop(i, h, from)
	rx.Receive(s, nil)
}

// accept ties a received PUT or GET to its place in an MD.
func (m *msg) accept(at place) {
	m.md = at.md
	m.Len = at.length
	m.Segs = appendSegs(m.Segs, at.md.segs, at.offset, at.length)
	t, length := EventPut, int(m.Hdr.PayloadLength)
	if m.Hdr.Type == wire.LNetGET {
		t, length = EventGet, int(m.Hdr.Length)
	}
	m.ev = received(t, m, length, at.length)
	m.ev.Portal, m.ev.MatchBits, m.ev.HdrData = m.Hdr.Portal, m.Hdr.MatchBits, m.Hdr.HdrData
	m.ev.Offset = at.offset
}

// received is the event of a message that came in.
func received(t EventType, m *msg, announced, moved int) Event {
	h := &m.Hdr
	src := ProcessID{h.SrcNID, h.SrcPID}
	return Event{
		Type: t, MsgType: h.Type,
		Target: ProcessID{h.DestNID, h.DestPID}, Initiator: src, Source: src,
		Sender: m.peerNID(), RLength: announced, MLength: moved,
	}
}

func (m *msg) peerNID() wire.NID { return senderNID(m.ni, m.peer) }

// senderNID is the immediate sender p; a message without one is from ourselves.
func senderNID(i *ni, p *peer) wire.NID {
	if p == nil {
		return i.nid
	}
	return p.nid
}

// Tick gives the node the time, about once a second: what waited too long for credits or for an answer
// ends, and old records of peers go.
func (n *Node) Tick(now time.Time) {
	for _, i := range n.nis {
		for _, p := range i.allPeers() {
			n.expireQueued(p, now)
			n.forgetIdle(p, now)
		}
	}
	for {
		h, p := n.tracker.expired(now)
		if h == 0 {
			return
		}
		n.responseTimedOut(h, p)
	}
}
