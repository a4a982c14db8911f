package o2iblnd

import (
	"errors"

	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// rx is a receive descriptor with its 4096-byte buffer. It is posted, early, being handled, or held by
// LNet; it belongs to its conn's scheduler.
type rx struct {
	conn *conn
	buf  []byte
	addr uint64
	key  uint32
	num  uint16
	nob  uint32 // bytes received
	held bool   // LNet owes a Receive
}

// rxComplete takes a receive's completion (spec o2iblnd 4.3).
func (s *scheduler) rxComplete(c *conn, r *rx, wc *verbs.WC) {
	if c.state > connEstablished {
		s.dropRx(c)
		return
	}
	if wc.Status != verbs.WCSuccess {
		switch {
		case c.state < connEstablished: // connd learns of it by the connection manager
		case wc.Status == verbs.WCFlushed:
			s.broken(c)
		default:
			s.close(c, because(eIO, "receiving failed: %v", wc.Status))
		}
		s.dropRx(c)
		return
	}
	r.nob = wc.ByteLen
	c.count.rxMsgs++
	if c.state < connEstablished {
		// Judged when we know the peer's incarnation (spec o2iblnd 2.14).
		c.early = append(c.early, r)
		return
	}
	s.received(c, r)
}

// received checks and handles a message on an established conn.
func (s *scheduler) received(c *conn, r *rx) {
	in := &s.in
	kind, err := in.Unpack(r.buf[:r.nob])
	if err != nil {
		c.recent.add(Head{At: s.nowMS, Nob: r.nob})
		if errors.Is(err, wire.ErrCksum) {
			c.ni.cksumErrors.Add(1)
			s.close(c, because(eIO, "message with a wrong checksum from %v: the two ends disagree on checksums (kernels of 2026 get them wrong for payload that travels apart from its header); set cksum=0 on both", c.peer.nid))
		} else {
			c.ni.unpackErrors.count(err)
			s.close(c, because(eIO, "malformed message of %d bytes: %v", r.nob, err))
		}
		s.dropRx(c)
		return
	}
	h := headOf(in)
	h.At, h.Credits, h.Nob = s.nowMS, in.Credits, in.Nob
	c.recent.add(h)
	if why := s.misdirected(c, in); why != nil {
		s.close(c, why)
		s.dropRx(c)
		return
	}
	if kind != wire.CksumNone {
		c.cksum = kind
	}
	c.peer.alive(s.now)
	s.handle(c, r)
}

// misdirected says why a message is not between this conn's two incarnations, or nil.
func (s *scheduler) misdirected(c *conn, in *wire.Msg) *reason {
	switch {
	case in.SrcNID != c.peer.nid:
		return because(eSTALE, "message says it comes from %v, the connection is with %v", in.SrcNID, c.peer.nid)
	case in.DstNID != c.ni.nid:
		return because(eSTALE, "message is for %v, we are %v", in.DstNID, c.ni.nid)
	case in.SrcStamp != c.incarnation:
		return because(eSTALE, "message is from another life of the peer (incarnation %#x, connected with %#x)", in.SrcStamp, c.incarnation)
	case in.DstStamp != c.ni.incarnation:
		return because(eSTALE, "message is for another life of ours (incarnation %#x, now %#x)", in.DstStamp, c.ni.incarnation)
	case in.Version != c.acct.Version:
		return because(ePROTO, "message of version %#x on a connection of version %#x", uint16(in.Version), uint16(c.acct.Version))
	}
	return nil
}

// handle acts on the message in s.in that lies in r.
func (s *scheduler) handle(c *conn, r *rx) {
	in := &s.in
	if in.Credits > 0 {
		if err := c.acct.TakeIn(in.Credits, in.Type == wire.MsgNoop); err != nil {
			s.close(c, because(ePROTO, "%v", err))
			s.dropRx(c)
			return
		}
		// The engine must not overwrite s.in: it only encodes.
		s.checkSends(c)
	}
	post := credits.NoCredit
	switch in.Type {
	case wire.MsgNoop:
		c.count.noopsReceived++
		post = c.acct.NoopPost(in.Credits)
	case wire.MsgImmediate, wire.MsgPutReq, wire.MsgGetReq:
		if !carries(in.Type, in.LNet.Type) {
			// What LNet hands us for the one must never be offered as the other.
			s.close(c, because(ePROTO, "%v that carries an LNet %v", in.Type, in.LNet.Type))
			break
		}
		c.count.rxBytes += uint64(len(in.Payload))
		r.held = true
		if err := s.lnd.upper.Parse(s, c.ni.nid, in.SrcNID, &in.LNet, r, in.Type != wire.MsgImmediate); err != nil {
			r.held = false
			s.postRx(c, r, credits.PeerCredit)
			s.close(c, because(ePROTO, "%v", err))
		}
		return // LNet gives the buffer back by Receive
	case wire.MsgPutNak:
		post = credits.RsrvdCredit
		s.completion(c, wire.MsgPutReq)
	case wire.MsgPutAck:
		post = credits.RsrvdCredit
		s.putAck(c)
	case wire.MsgPutDone:
		post = credits.PeerCredit
		s.completion(c, wire.MsgPutAck)
	case wire.MsgGetDone:
		post = credits.RsrvdCredit
		s.completion(c, wire.MsgGetReq)
	default:
		s.close(c, because(ePROTO, "%v on a connection that is established", in.Type))
	}
	s.postRx(c, r, post)
}

// carries says whether an LNet type may travel in a message type (spec lnet 2.4).
func carries(t wire.MsgType, l wire.LNetType) bool {
	switch t {
	case wire.MsgPutReq:
		return l == wire.LNetPUT || l == wire.LNetREPLY
	case wire.MsgGetReq:
		return l == wire.LNetGET
	}
	return true
}

// waitingTx finds the transmit of type typ that waits with this cookie on c, and only on c.
func (c *conn) waitingTx(cookie uint64, typ wire.MsgType) *tx {
	for t := c.activeTxs.head; t != nil; t = t.next {
		if t.cookie == cookie && t.waiting && t.typ == typ {
			return t
		}
	}
	return nil
}

// completion ends the transmit that waited for the PUT_NAK, PUT_DONE or GET_DONE in s.in.
func (s *scheduler) completion(c *conn, typ wire.MsgType) {
	in := &s.in
	t := c.waitingTx(in.Cookie, typ)
	if t == nil {
		s.close(c, because(ePROTO, "%v with cookie %#x, but no %v waits for it", in.Type, in.Cookie, typ))
		return
	}
	if t.status == 0 {
		switch {
		case in.Status < 0:
			t.status, t.health = Errno(in.Status), HealthRemoteError
		case typ == wire.MsgGetReq && int(in.Status) > t.sinkSize:
			t.status, t.health = ePROTO, HealthRemoteError
			s.close(c, because(ePROTO, "GET_DONE says %d bytes where %d were asked for", in.Status, t.sinkSize))
		case typ == wire.MsgGetReq:
			t.msg.RDMALen = int(in.Status)
			c.count.rxBytes += uint64(in.Status)
		case typ == wire.MsgPutAck:
			c.count.rxBytes += uint64(t.sinkSize)
		}
	}
	t.waiting = false
	s.revoke(c, t)
	if t.idle() {
		t.unlink()
		s.txDone(t)
	}
}

// revoke takes back what the peer was told to write to: it is done with it.
func (s *scheduler) revoke(c *conn, t *tx) {
	switch {
	case !t.exposed:
	case c.state != connEstablished:
		t.draining = !c.flushed
	case t.reg != nil && t.reg.bound:
		t.revoking = true
		c.toRevoke = append(c.toRevoke, t)
		s.touch(c)
	default:
		t.exposed = false
	}
}

// revoked takes the completion of an invalidation.
func (s *scheduler) revoked(t *tx, wc *verbs.WC) {
	c := t.conn
	t.revoking = false
	switch wc.Status {
	case verbs.WCSuccess:
		t.reg.bound, t.exposed = false, false
	case verbs.WCFlushed:
		s.broken(c)
		t.draining = !c.flushed
	default:
		t.draining = !c.flushed
		s.close(c, because(eIO, "a memory window could not be taken back: %v", wc.Status))
	}
	if t.idle() {
		t.unlink()
		s.txDone(t)
	}
	s.maybeDrained(c)
}

// putAck turns the PUT_REQ that waited for the PUT_ACK in s.in into the writes and the PUT_DONE.
func (s *scheduler) putAck(c *conn) {
	in := &s.in
	t := c.waitingTx(in.SrcCookie, wire.MsgPutReq)
	if t == nil {
		s.close(c, because(ePROTO, "PUT_ACK with cookie %#x, but no PUT_REQ waits for it", in.SrcCookie))
		return
	}
	t.unlink()
	t.waiting = false
	n := in.RD.Size() // the sink decides how much it takes
	status := Errno(0)
	if n > t.msg.Len {
		status = ePROTO
	} else {
		status = s.write(c, t, t.msg.Segs, n, &in.RD)
	}
	answer := int32(n)
	if status != 0 {
		answer = int32(status)
		t.status, t.health = status, HealthLocalError
	} else {
		c.count.txBytes += uint64(n)
	}
	t.typ = wire.MsgPutDone
	s.out.BigEndian, s.out.Cookie, s.out.Status = false, in.DstCookie, answer
	s.encode(t)
	s.queueTx(c, t)
	// postRx runs the engine.
}

// postRx gives a receive buffer back to the peer's use (spec o2iblnd 3.2). The credit counts from here:
// the post itself goes out before any message that announces it.
func (s *scheduler) postRx(c *conn, r *rx, mode credits.Post) {
	if c.state > connEstablished {
		s.dropRx(c)
		return
	}
	c.toRecv = append(c.toRecv, r.num)
	c.acct.Reposted(mode)
	s.touch(c)
	s.checkSends(c)
}

// dropRx takes a buffer out of use for good.
func (s *scheduler) dropRx(c *conn) {
	c.nrx--
	s.touch(c)
	s.maybeDrained(c)
}

// Payload implements Rx.
func (r *rx) Payload() []byte { return r.conn.sched.in.Payload }

// Receive implements Rx: called inside Parse, while the message is in the scheduler's s.in.
func (r *rx) Receive(_ Sender, m *Message) {
	r.conn.sched.receive(r, m)
}

// ReceiveLater implements Rx.
func (r *rx) ReceiveLater(m *Message) {
	r.conn.sched.submit(op{kind: opReceive, c: r.conn, rx: r, m: m})
}

func (s *scheduler) receiveLater(r *rx, m *Message) {
	if _, err := s.in.Unpack(r.buf[:r.nob]); err != nil {
		panic("o2iblnd: a message that was parsed before does not parse: " + err.Error())
	}
	s.receive(r, m)
}

// receive does what LNet decided about the message in s.in (spec o2iblnd 4.4). The buffer goes back last.
func (s *scheduler) receive(r *rx, m *Message) {
	if !r.held {
		panic("o2iblnd: message received twice")
	}
	r.held = false
	c, in := r.conn, &s.in
	post := credits.PeerCredit
	if m != nil {
		m.RDMALen = -1
	}
	switch {
	case in.Type == wire.MsgImmediate && m != nil:
		if int(in.LNet.PayloadLength) > len(in.Payload) {
			s.finalize(m, ePROTO, HealthRemoteError)
			break
		}
		scatter(m.Segs, in.Payload[:m.Len])
		s.finalize(m, 0, HealthOK)
	case in.Type == wire.MsgPutReq && (m == nil || m.Len == 0):
		s.answer(c, wire.MsgPutNak, in.Cookie, 0)
		if m != nil {
			s.finalize(m, 0, HealthOK)
		}
	case in.Type == wire.MsgPutReq:
		post = s.sink(c, m)
	case in.Type == wire.MsgGetReq && m == nil:
		s.answer(c, wire.MsgGetDone, in.Cookie, int32(eNODATA))
	case in.Type == wire.MsgGetReq:
		s.reply(c, m)
	}
	s.postRx(c, r, post)
}

// sink answers the PUT_REQ in s.in with where its data goes, and says how its buffer is reposted.
func (s *scheduler) sink(c *conn, m *Message) credits.Post {
	cookie := s.in.Cookie
	t, err := s.allocTx(c)
	if err != nil {
		s.finalize(m, eNOMEM, HealthLocalError) // the peer times out
		return credits.PeerCredit
	}
	t.sinkSize = m.Len
	if e := s.describe(c, t, m.Segs, m.Len, &s.out.RD); e != 0 {
		s.abandon(t, e)
		s.answer(c, wire.MsgPutNak, cookie, int32(e))
		s.finalize(m, e, HealthLocalError)
		return credits.PeerCredit
	}
	t.typ, t.msg, t.waiting = wire.MsgPutAck, m, true
	s.out.BigEndian, s.out.SrcCookie, s.out.DstCookie = false, cookie, t.cookie
	s.encode(t)
	s.queueTx(c, t)
	s.checkSends(c)
	return credits.NoCredit // the buffer is kept for the PUT_DONE
}

// reply writes m into the sink of the GET_REQ in s.in and says so.
func (s *scheduler) reply(c *conn, m *Message) {
	cookie := s.in.Cookie
	t, err := s.allocTx(c)
	if err != nil {
		s.finalize(m, eIO, HealthLocalError) // nothing to say it with: the peer times out
		return
	}
	status := s.write(c, t, m.Segs, m.Len, &s.in.RD)
	answer := int32(m.Len)
	if status != 0 {
		answer = int32(status)
	}
	t.typ = wire.MsgGetDone
	s.out.BigEndian, s.out.Cookie, s.out.Status = false, cookie, answer
	s.encode(t)
	if status == 0 && m.Len > 0 {
		t.msg = m
		c.count.txBytes += uint64(m.Len)
	}
	held := t.msg != nil
	s.queueTx(c, t)
	s.checkSends(c)
	if !held {
		if status != 0 {
			status = eIO
		}
		s.finalize(m, status, HealthOK)
	}
}

// answer queues a PUT_NAK or GET_DONE without data.
func (s *scheduler) answer(c *conn, typ wire.MsgType, cookie uint64, status int32) {
	t, err := s.allocTx(c)
	if err != nil {
		s.lnd.log.Warn("no transmit for an answer: the peer will time out", "type", typ.String(), "peer", c.peer.nid.String())
		return
	}
	t.typ = typ
	s.out.BigEndian, s.out.Cookie, s.out.Status = false, cookie, status
	s.encode(t)
	s.queueTx(c, t)
	s.checkSends(c)
}
