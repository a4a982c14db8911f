package o2iblnd

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"o2ibd/engine/o2iblnd/negotiate"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// local is what an NI accepts, for negotiate.
func (n *ni) local() *negotiate.Local {
	return &negotiate.Local{NID: n.nid, Incarnation: n.incarnation, QueueDepth: n.tun.Load().PeerCredits, MaxFrags: wire.MaxFrags}
}

// connectRequest answers a peer that wants to connect (spec o2iblnd 2.5).
func (d *connd) connectRequest(h *hcaDev, ev *verbs.Event) {
	id := ev.ID
	g := d.lnd.global.Load()
	var n *ni
	local, refusal := negotiate.Request(&d.in, ev.Private, int(id.Remote().Port()), g.RequirePrivilegedPort, func(nid wire.NID) *negotiate.Local {
		if n = d.lnd.ni(nid); n == nil || n.dev != h.dev {
			n = nil
			if _, coming := d.lnd.expected.Load(nid); coming {
				return &negotiate.Local{NID: nid, Early: true}
			}
			return nil
		}
		return n.local()
	})
	if refusal != nil {
		d.refuse(n, id, refusal)
		return
	}
	n.connectsPassive.Add(1)
	m := &d.in
	p := d.lnd.peers.find(n, m.SrcNID)
	view := negotiate.PeerView{}
	if p != nil {
		view = negotiate.PeerView{Known: true, Version: p.version, Incarnation: p.incarnation, Connecting: p.connecting > 0, Races: p.races}
	}
	switch negotiate.Decide(m, local, view, g.RaceByHash) {
	case negotiate.RefuseStale:
		for _, c := range p.conns {
			d.closeStale(c)
		}
		if p.linked {
			p.version, p.incarnation = m.Version, m.SrcStamp
		}
		d.refuse(n, id, &negotiate.Refusal{Reject: negotiate.RejectWith(m, local, wire.RejectStale),
			Text: fmt.Sprintf("%v was restarted (new incarnation %#x): its old connections are closed, it will connect again", m.SrcNID, m.SrcStamp)})
		return
	case negotiate.RefuseRace:
		p.races++
		n.races.Add(1)
		d.refuse(n, id, &negotiate.Refusal{Reject: negotiate.RejectWith(m, local, wire.RejectConnRace),
			Text: fmt.Sprintf("%v and we connected at once: our connection goes first", m.SrcNID)})
		return
	}
	if p == nil {
		p = d.newPeer(n, m.SrcNID)
		d.lnd.peers.add(p)
	}
	if p.version == 0 {
		p.version, p.incarnation = m.Version, m.SrcStamp
	}
	p.reconnecting = 0
	p.accepting++
	p.races = 0
	p.queueDepth, p.maxFrags = int(m.Params.QueueDepth), int(m.Params.MaxFrags)
	d.accept(p, id, m)
}

// accept builds the connection that m asks for and says so.
func (d *connd) accept(p *peer, id verbs.ID, m *wire.Msg) {
	d.hold(p)
	c, err := d.createConn(p, id, false, m.Version, int(m.Params.QueueDepth), int(m.Params.MaxFrags))
	if err != nil {
		d.refuse(p.ni, id, &negotiate.Refusal{Reject: negotiate.RejectWith(m, p.ni.local(), wire.RejectNoResources), Text: err.Error()})
		d.connectFailed(p, false, because(eNOMEM, "could not build the connection that %v asked for: %v", p.nid, err))
		d.letGo(p)
		return
	}
	if err := d.postRing(c); err != nil {
		d.connFailed(c, because(eNOMEM, "could not take the connection of %v: %v", p.nid, err))
		return
	}
	c.est = &establishment{version: m.Version, incarnation: m.SrcStamp, depth: int(c.offered.QueueDepth), maxFrags: int(c.offered.MaxFrags)}
	var priv [wire.ConnMsgSize]byte
	d.encodeConn(priv[:], wire.MsgConnAck, c, m.SrcStamp, c.offered)
	if err := id.Accept(d.connParam(priv[:])); err != nil {
		d.connFailed(c, because(eHOSTUNREACH, "could not accept the connection of %v: %v", p.nid, err))
	}
}

// refuse sends a reject and says why in the events.
func (d *connd) refuse(n *ni, id verbs.ID, r *negotiate.Refusal) {
	from := id.Remote()
	if n != nil {
		n.rejectsSent.count(r.Reject.Why)
	} else {
		d.lnd.refused.count(r.Reject.Why)
	}
	var b [wire.RejectSize]byte
	r.Reject.BigEndian = d.lnd.bigEndian
	r.Reject.Encode(b[:])
	if err := id.Reject(b[:]); err != nil && !errors.Is(err, verbs.ErrState) {
		d.lnd.log.Warn("a reject was not sent", "to", from.String(), "err", err)
	}
	id.Close()
	sev := slog.LevelWarn
	switch r.Reject.Why {
	case wire.RejectConnRace, wire.RejectStale, wire.RejectEarly:
		sev = slog.LevelInfo
	}
	e := Event{Kind: "reject_sent", Severity: sev, Text: fmt.Sprintf("refused a connection from %v (%v): %s", from, r.Reject.Why, r.Text), Data: reasonData(r.Reject.Why)}
	if n != nil { // the request was understood that far
		e.NI = n.nid
		e.Peer = d.in.SrcNID
		if d.in.Type == wire.MsgConnReq {
			paramsData(e.Data, "theirs", d.in.Version, d.in.Params)
		}
		paramsData(e.Data, "ours", r.Reject.Version, r.Reject.Params)
	}
	d.lnd.event(e)
}

// reasonData begins an event's numbers with the reason of a reject, 0 for one that is not the protocol's.
func reasonData(why wire.RejectReason) map[string]string {
	data := make(map[string]string)
	if why != 0 {
		data["reason"], data["reason_code"] = why.String(), strconv.Itoa(int(why))
	}
	return data
}

// paramsData adds what one side asks for or accepts.
func paramsData(data map[string]string, whose string, v wire.Version, p wire.ConnParams) {
	data[whose+"_version"] = fmt.Sprintf("%#x", uint16(v))
	data[whose+"_queue_depth"] = strconv.Itoa(int(p.QueueDepth))
	data[whose+"_max_frags"] = strconv.Itoa(int(p.MaxFrags))
	data[whose+"_max_msg_size"] = strconv.Itoa(int(p.MaxMsgSize))
}

// rejected adapts to a reject of our attempt, or gives up (spec o2iblnd 2.8).
func (d *connd) rejected(c *conn, ev *verbs.Event) {
	p := c.peer
	kind := negotiate.KindOther
	switch ev.Reject {
	case verbs.RejectConsumer:
		kind = negotiate.KindConsumer
	case verbs.RejectNoListener:
		kind = negotiate.KindNoListener
	case verbs.RejectStaleConn:
		kind = negotiate.KindStaleConn
	}
	r := negotiate.OnReject(kind, ev.Private, c.version, c.offered, negotiate.ActiveView{
		Waiting: len(p.txq) > 0, Version: p.version, Connecting: p.connecting, Accepting: p.accepting,
	})
	p.ni.rejectsReceived.count(r.Why)
	sev, what := slog.LevelWarn, "refused our connection"
	if r.Why == wire.RejectEarly {
		sev = slog.LevelInfo
	}
	if r.Reconnect {
		what += ", trying again"
		if r.Why == wire.RejectConnRace {
			sev = slog.LevelInfo
		}
		c.reconnect = true
		p.reconnecting++
		p.version = r.Version
		if r.Incarnation != 0 {
			p.incarnation = r.Incarnation
		}
		if r.QueueDepth > 0 {
			p.queueDepth, p.maxFrags = r.QueueDepth, r.MaxFrags
		}
	}
	data := reasonData(r.Why)
	paramsData(data, "ours", c.version, c.offered)
	if rej, err := wire.ParseReject(ev.Private); kind == negotiate.KindConsumer && err == nil && rej.Full {
		paramsData(data, "theirs", rej.Version, rej.Params)
	}
	d.lnd.event(Event{Kind: "reject_received", Severity: sev, NI: p.ni.nid, Peer: p.nid, Conn: c.id, Text: fmt.Sprintf("%v %s: %s", p.nid, what, r.Text), Data: data})
	errno := eCONNREFUSED
	if kind == negotiate.KindNoListener {
		errno = eHOSTUNREACH
	}
	why := because(errno, "refused: %s", r.Text)
	why.told = true
	d.connFailed(c, why)
}

// connAck takes the answer to our CONNREQ. The queue pair works already, so what is wrong with it
// establishes the connection and closes it at once (spec o2iblnd 2.9).
func (d *connd) connAck(c *conn, ev *verbs.Event) {
	m := &d.in
	err := negotiate.Ack(m, ev.Private, c.ni.local(), c.peer.nid, c.version, c.offered)
	c.est = &establishment{version: c.version, incarnation: m.SrcStamp, depth: int(m.Params.QueueDepth), maxFrags: int(m.Params.MaxFrags)}
	if err == nil {
		d.established(c, nil)
		return
	}
	errno := ePROTO
	if errors.Is(err, negotiate.ErrStale) {
		errno = eSTALE
	}
	// Nothing of a bad answer is believed.
	c.est.depth, c.est.maxFrags = int(c.offered.QueueDepth), int(c.offered.MaxFrags)
	c.est.incarnation = c.peer.incarnation
	d.established(c, because(errno, "%v", err))
}

// cksumKind is the checksum of what we send: none unless the tunable says so, else the variant that the
// peer was seen to use, else the configured one.
func cksumKind(g *tunables.Global, seen wire.CksumKind) wire.CksumKind {
	switch {
	case !g.Cksum:
		return wire.CksumNone
	case seen == wire.CksumSigned || seen == wire.CksumUnsigned:
		return seen
	case g.CksumUnsigned:
		return wire.CksumUnsigned
	}
	return wire.CksumSigned
}
