package o2iblnd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/o2iblnd/negotiate"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// connectPeer starts one active attempt (spec o2iblnd 2.2). p.connecting counts it already.
func (d *connd) connectPeer(p *peer) {
	a := &attempt{peer: p, started: d.now}
	d.hold(p)
	p.attempts = append(p.attempts, a)
	p.ni.connectsActive.Add(1)
	if d.lnd.global.Load().UsePrivilegedPort {
		a.port = 1023
	}
	if why := d.resolve(a); why != nil {
		d.attemptFailed(a, why)
	}
}

// resolve makes a's id and sends it looking for the peer, from the privileged port a.port or a lower one
// that is free, or from any port when a.port is 0.
func (d *connd) resolve(a *attempt) *reason {
	p := a.peer
	g := d.lnd.global.Load()
	remote := netip.AddrPortFrom(p.nid.IPv4(), uint16(g.Service))
	local := p.ni.dev.addr
	if p.ni.dev.hdev.Load() == nil {
		return because(eNETDOWN, "the device at %v is gone for the moment", local)
	}
	for {
		id, err := d.cm.NewID(a)
		if err != nil {
			return because(eHOSTUNREACH, "could not make a connection id: %v", err)
		}
		err = id.ResolveAddr(netip.AddrPortFrom(local, uint16(a.port)), remote, a.port != 0, 5*time.Second)
		if err == nil {
			a.id = id
			return nil
		}
		id.Close()
		if !d.nextPort(a, err) {
			return because(eHOSTUNREACH, "could not start connecting to %v: %v", remote, err)
		}
	}
}

// nextPort says whether a may try once more after err, from another source port.
func (d *connd) nextPort(a *attempt, err error) bool {
	switch {
	case a.port == 0:
		return false
	case errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL):
		a.port--
		return a.port > 0
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		a.port = 0
		if !d.portRefused {
			d.portRefused = true
			d.lnd.event(Event{Kind: "privileged_port", Severity: slog.LevelWarn, NI: a.peer.ni.nid,
				Text: "no right to use a privileged source port (use_privileged_port=1): connecting from an ordinary one; peers with require_privileged_port=1 will refuse it. Grant CAP_NET_BIND_SERVICE, or set use_privileged_port=0"})
		}
		return true
	}
	return false
}

// event acts on one connection manager event (spec o2iblnd 2.3).
func (d *connd) event(ev *verbs.Event) {
	switch u := ev.ID.User().(type) {
	case *attempt:
		d.attemptEvent(u, ev)
	case *conn:
		d.connEvent(u, ev)
	case *hcaDev:
		switch ev.Type {
		case verbs.EventConnectRequest:
			d.connectRequest(u, ev)
		case verbs.EventDeviceRemoval:
			d.loseHCA(u, "it is being removed")
		case verbs.EventAddrChange:
			d.mayFail(u.dev)
		default:
			d.lnd.event(Event{Kind: "device", Severity: slog.LevelWarn, Text: fmt.Sprintf("%s: listener: %v", u.info.Name, ev.Type)})
		}
	default:
		d.lnd.log.Warn("event of an unknown connection", "event", ev.Type.String())
	}
}

func (d *connd) attemptEvent(a *attempt, ev *verbs.Event) {
	p := a.peer
	if a.over {
		return // it was polled before the id was closed
	}
	switch ev.Type {
	case verbs.EventAddrResolved:
		if tos := p.ni.tun.Load().TOS; tos >= 0 {
			if err := a.id.SetTOS(uint8(tos)); err != nil {
				d.lnd.log.Warn("type of service was not set", "tos", tos, "err", err)
			}
		}
		if err := a.id.ResolveRoute(5 * time.Second); err != nil {
			d.attemptFailed(a, because(eHOSTUNREACH, "no route to %v: %v", p.nid, err))
		}
	case verbs.EventRouteResolved:
		d.connReq(a)
	case verbs.EventAddrError:
		if ev.Err != nil && d.nextPort(a, ev.Err) {
			a.id.Close()
			if why := d.resolve(a); why != nil {
				d.attemptFailed(a, why)
			}
			return
		}
		d.attemptFailed(a, because(eHOSTUNREACH, "the address of %v was not found%s", p.nid, tail(ev.Err)))
	case verbs.EventRouteError:
		d.attemptFailed(a, because(eHOSTUNREACH, "no route to %v%s", p.nid, tail(ev.Err)))
	case verbs.EventDeviceRemoval:
		d.attemptFailed(a, because(eNETDOWN, "the device was removed"))
	case verbs.EventAddrChange:
		d.mayFail(p.ni.dev)
	default:
		d.lnd.log.Warn("unexpected event while resolving", "event", ev.Type.String(), "peer", p.nid.String())
	}
}

func tail(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// connReq builds the connection and sends the CONNREQ (spec o2iblnd 2.4).
func (d *connd) connReq(a *attempt) {
	p := a.peer
	version := p.version
	if version == 0 {
		version = wire.Version2
	}
	depth, frags := p.queueDepth, p.maxFrags
	offer := negotiate.Offer(version, depth, frags)
	depth, frags = int(offer.QueueDepth), int(offer.MaxFrags)
	c, err := d.createConn(p, a.id, true, version, depth, frags)
	if err != nil {
		d.attemptFailed(a, because(eNOMEM, "could not build a connection to %v: %v", p.nid, err))
		return
	}
	a.conn = c
	c.attempt = a
	if err := d.postRing(c); err != nil {
		d.connFailed(c, because(eNOMEM, "could not connect to %v: %v", p.nid, err))
		return
	}
	var priv [wire.ConnMsgSize]byte
	d.encodeConn(priv[:], wire.MsgConnReq, c, p.incarnation, c.offered)
	if err := a.id.Connect(d.connParam(priv[:])); err != nil {
		d.connFailed(c, because(eHOSTUNREACH, "could not connect to %v: %v", p.nid, err))
	}
}

// encodeConn writes a CONNREQ or CONNACK.
func (d *connd) encodeConn(b []byte, typ wire.MsgType, c *conn, dstStamp uint64, params wire.ConnParams) {
	m := &d.out
	m.Header = wire.Header{
		Version: c.version, Type: typ, SrcNID: c.ni.nid, SrcStamp: c.ni.incarnation,
		DstNID: c.peer.nid, DstStamp: dstStamp,
	}
	m.BigEndian, m.Params = d.lnd.bigEndian, params
	if _, err := m.Encode(b, cksumKind(d.lnd.global.Load(), wire.CksumNone)); err != nil {
		panic("o2iblnd: encode " + typ.String() + ": " + err.Error())
	}
}

// connParam is what goes with connect and accept (spec o2iblnd 2.7).
func (d *connd) connParam(private []byte) verbs.ConnParam {
	g := d.lnd.global.Load()
	return verbs.ConnParam{Private: private, FlowControl: true, RetryCount: uint8(g.RetryCount), RNRRetryCount: uint8(g.RNRRetryCount)}
}

func (d *connd) connEvent(c *conn, ev *verbs.Event) {
	p := c.peer
	switch ev.Type {
	case verbs.EventUnreachable:
		d.connFailed(c, because(eNETDOWN, "%v cannot be reached%s", p.nid, tail(ev.Err)))
	case verbs.EventConnectError:
		d.connFailed(c, because(eNOTCONN, "the connection to %v could not be made%s", p.nid, tail(ev.Err)))
	case verbs.EventRejected:
		switch c.setup {
		case connActiveConnect:
			d.rejected(c, ev)
		case connPassiveWait:
			d.connFailed(c, because(eCONNRESET, "%v gave up the connection that it had asked for", p.nid))
		}
	case verbs.EventEstablished, verbs.EventCommEst:
		// COMM_EST stands in for a lost ready-to-use (spec o2iblnd 2.3).
		switch {
		case c.setup == connPassiveWait:
			d.established(c, nil)
		case c.setup == connActiveConnect && ev.Type == verbs.EventEstablished:
			d.connAck(c, ev)
		}
	case verbs.EventDisconnected:
		c.disconnected = true
		if c.setup < connEstablished {
			d.connFailed(c, because(eCONNRESET, "%v closed the connection before it was ready%s", p.nid, tail(ev.Err)))
			return
		}
		why := orderly("the peer disconnected")
		if ev.Err != nil {
			why = because(eIO, "the connection broke: %v", ev.Err)
		}
		c.sched.submit(op{kind: opClose, c: c, why: why})
	case verbs.EventDeviceRemoval:
		d.loseHCA(c.hdev, "it is being removed")
	case verbs.EventAddrChange:
		d.mayFail(c.hdev.dev)
	case verbs.EventTimewaitExit, verbs.EventConnectResponse:
	default:
		d.lnd.log.Warn("unexpected event of a connection", "event", ev.Type.String(), "peer", p.nid.String())
	}
}

// dropAttempt takes a off its peer's list.
func (d *connd) dropAttempt(a *attempt) {
	for i, b := range a.peer.attempts {
		if a == b {
			a.peer.attempts = append(a.peer.attempts[:i], a.peer.attempts[i+1:]...)
			return
		}
	}
}

// attemptFailed ends an attempt that has no connection yet. Later calls do nothing.
func (d *connd) attemptFailed(a *attempt, why *reason) {
	if a.over {
		return
	}
	a.over = true
	d.dropAttempt(a)
	if a.id != nil {
		a.id.Close()
	}
	d.connectFailed(a.peer, true, why)
	d.letGo(a.peer)
}

// abortAttempt ends an attempt that takes too long.
func (d *connd) abortAttempt(a *attempt) {
	why := because(eNETDOWN, "no answer from %v within %v", a.peer.nid, connectTimeout(d.lnd.timeout()))
	if a.conn != nil {
		d.connFailed(a.conn, why)
	} else {
		d.attemptFailed(a, why)
	}
}

// connFailed ends the set-up of c (connreq-done with a status, spec o2iblnd 2.12). Later calls do nothing.
func (d *connd) connFailed(c *conn, why *reason) {
	if c.setup >= connEstablished {
		return
	}
	c.setup = connDisconnected
	if c.attempt != nil {
		d.dropAttempt(c.attempt)
	}
	c.sched.submit(op{kind: opFinalise, c: c, why: why})
	d.connectFailed(c.peer, c.active, why)
}

// connectFailed is what a failed attempt means for its peer (spec o2iblnd 2.2).
func (d *connd) connectFailed(p *peer, active bool, why *reason) {
	if active {
		p.connecting--
	} else {
		p.accepting--
	}
	if p.isConnecting() {
		return
	}
	p.reconnected = 0
	if len(p.conns) > 0 {
		return
	}
	waiting := p.txq
	p.setQueue(nil)
	d.unlink(p)
	p.err = why
	p.ni.failed.Add(1)
	if !why.told {
		d.lnd.event(Event{Kind: "connect_failed", Severity: slog.LevelWarn, NI: p.ni.nid, Peer: p.nid, Text: why.text})
	}
	d.notify(p)
	health := HealthLocalDropped
	switch why.errno {
	case eHOSTUNREACH, eTIMEDOUT, eNETDOWN:
		health = HealthNetworkTimeout
	case eCONNREFUSED:
		health = HealthRemoteDropped
	}
	for _, m := range waiting {
		d.finalize(m, why.errno, health)
	}
}

// established makes c one of its peer's connections (connreq-done without a status). why closes it at once.
func (d *connd) established(c *conn, why *reason) {
	p := c.peer
	c.setup = connEstablished
	if c.attempt != nil {
		d.dropAttempt(c.attempt)
	}
	if c.active {
		p.connecting--
	} else {
		p.accepting--
	}
	p.reconnected, p.races = 0, 0
	if p.version == 0 {
		p.version, p.incarnation = c.version, c.est.incarnation
	}
	if p.version != c.version || p.incarnation != c.est.incarnation {
		for _, o := range p.conns {
			if o.version != c.version || o.est.incarnation != c.est.incarnation {
				d.closeStale(o)
			}
		}
		p.version, p.incarnation = c.version, c.est.incarnation
	}
	p.ni.established.Add(1)
	if why == nil && !p.linked {
		why = because(eCONNABORTED, "the peer was deleted while the connection was made")
	}
	c.est.msgs = p.txq
	p.setQueue(nil)
	c.sched.submit(op{kind: opEstablish, c: c, est: c.est, why: why})
	p.setConns(append([]*conn{c}, p.conns...))
	d.lnd.event(Event{Kind: "conn_established", Severity: slog.LevelInfo, NI: p.ni.nid, Peer: p.nid, Conn: c.id,
		Text: fmt.Sprintf("connected with %v: queue depth %d, fragments %d, version %#x (%s)", p.nid, c.est.depth, c.est.maxFrags, uint16(c.version), c.direction())})
}

func (c *conn) direction() string {
	if c.active {
		return "active"
	}
	return "passive"
}

// closeStale closes a connection with an older life of the peer.
func (d *connd) closeStale(c *conn) {
	c.ni.stale.Add(1)
	c.sched.submit(op{kind: opClose, c: c, why: because(eSTALE, "the peer was restarted: it has a new incarnation")})
}

// connClosing takes a connection that its scheduler closed off its peer (spec o2iblnd 5.3).
func (d *connd) connClosing(c *conn, why *reason, backlog string) {
	p := c.peer
	c.setup = connClosing
	rest := make([]*conn, 0, len(p.conns))
	for _, o := range p.conns {
		if o != c {
			rest = append(rest, o)
		}
	}
	p.setConns(rest)
	if len(rest) == 0 {
		p.err = nil
		if why.errno != 0 {
			p.err = why
		}
		if !p.isConnecting() {
			d.unlink(p)
		}
	}
	sev, text := slog.LevelInfo, "connection closed: "+why.text
	if why.errno != 0 {
		sev = slog.LevelError
	}
	if backlog != "" {
		text += " (left on " + backlog + ")"
	}
	e := Event{Kind: "conn_closed", Severity: sev, NI: p.ni.nid, Peer: p.nid, Conn: c.id, Text: text}
	if why.errno != 0 {
		e.Data = c.failureData(why.errno)
	}
	d.lnd.event(e)
	if err := c.cm.Disconnect(); err != nil && !errors.Is(err, verbs.ErrState) {
		d.lnd.fault(c.hdev, "disconnect", err)
	}
	if why.errno != 0 {
		d.mayFail(c.hdev.dev)
	}
	c.sched.submit(op{kind: opFinalise, c: c, why: why})
	d.notify(p)
}

// reconnectPeer makes the attempt that a refused one called for (spec o2iblnd 2.11).
func (d *connd) reconnectPeer(p *peer) {
	switch {
	case p.reconnecting == 0: // somebody accepted, connected or closed meanwhile
	case !p.linked:
		p.reconnecting--
		waiting := p.txq
		p.setQueue(nil)
		for _, m := range waiting {
			d.finalize(m, eCONNABORTED, HealthLocalAborted)
		}
	default:
		p.reconnecting--
		p.connecting++
		p.reconnected++
		p.reconnects++
		p.ni.reconnects.Add(1)
		d.connectPeer(p)
	}
	d.letGo(p)
}
