package o2iblnd

import (
	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// launch turns m into a transmit on c, or gives it back to connd when c is going away: m then waits for a
// new connection.
func (s *scheduler) launch(c *conn, m *Message) {
	if c.state > connEstablished {
		s.lnd.connd.submit(cop{kind: copSend, m: m})
		return
	}
	m.RDMALen = -1
	t, err := s.allocTx(c)
	if err != nil {
		s.finalize(m, eNOMEM, HealthLocalError)
		return
	}
	t.msg = m
	out := &s.out
	out.BigEndian, out.LNet = false, m.Hdr
	rdma := wire.ImmediateSize+m.Len > wire.MsgSize
	switch m.Hdr.Type {
	case wire.LNetACK:
		rdma = false
	case wire.LNetGET:
		// A router answers with an ordinary REPLY: it has nowhere to write to (spec o2iblnd 4.2).
		if m.Router {
			rdma = false
		}
	case wire.LNetPUT, wire.LNetREPLY:
	default:
		s.abandon(t, eIO)
		return
	}
	switch {
	case !rdma:
		t.typ = wire.MsgImmediate
		p := t.slot.Bytes()[wire.ImmediateSize:]
		n := 0
		if m.Hdr.Type != wire.LNetGET {
			n = gather(p, m.Segs, m.Len)
		}
		out.Payload = p[:n]
		c.count.txBytes += uint64(n)
	case m.Hdr.Type == wire.LNetGET:
		t.typ, t.waiting = wire.MsgGetReq, true
		t.sinkSize = m.Len
		if e := s.describe(c, t, m.Segs, m.Len, &out.RD); e != 0 {
			if e != eNETDOWN {
				e = eIO // spec o2iblnd 4.2
			}
			s.abandon(t, e)
			return
		}
	default:
		t.typ, t.waiting = wire.MsgPutReq, true
	}
	out.Cookie = t.cookie
	s.encode(t)
	s.queueTx(c, t)
	s.checkSends(c)
}

// abandon ends a transmit that never got onto a queue.
func (s *scheduler) abandon(t *tx, status Errno) {
	t.waiting, t.status, t.health = false, status, HealthLocalError
	s.txDone(t)
}

// encode writes the body of s.out into t's slot; the header follows when it is posted.
func (s *scheduler) encode(t *tx) {
	s.out.Type = t.typ
	nob, err := s.out.EncodeBody(t.slot.Bytes())
	if err != nil {
		// Every length was checked before: this is our own fault.
		panic("o2iblnd: encode " + t.typ.String() + ": " + err.Error())
	}
	t.nob, t.head = uint32(nob), headOf(&s.out)
}

// allocTx takes a transmit for c out of its pool set.
func (s *scheduler) allocTx(c *conn) (*tx, error) {
	t, err := c.ni.txs[s.cpt].Alloc(s.now)
	if err != nil {
		return nil, err
	}
	t.gen.Add(1)
	t.conn, t.done = c, false
	s.cookies++
	t.cookie = s.cookies
	return t, nil
}

// queueTx puts t on the queue of its type and starts its deadline (spec o2iblnd 4.7).
func (s *scheduler) queueTx(c *conn, t *tx) {
	t.queued = true
	t.deadline = s.now.Add(s.lnd.timeout())
	switch t.typ {
	case wire.MsgPutReq, wire.MsgGetReq:
		c.txRsrvd.push(t)
	case wire.MsgNoop:
		if c.acct.Version == wire.Version1 {
			c.txNoops.push(t)
		} else {
			c.txNocred.push(t)
		}
	case wire.MsgImmediate:
		c.txQueue.push(t)
	default:
		c.txNocred.push(t)
	}
}

func (c *conn) nonEmpty() credits.Queues {
	return credits.Queues{Nocred: c.txNocred.n > 0, Noops: c.txNoops.n > 0, Tx: c.txQueue.n > 0}
}

func (s *scheduler) keepaliveDue(c *conn) bool {
	k := s.lnd.global.Load().Keepalive
	return k > 0 && s.now.After(c.lastSend.Add(k))
}

// checkSends is the send engine (spec o2iblnd 3.5). It also runs on a dying conn, to fail what was
// queued late. Finishing a transmit may bring it here again: the outer run then goes round once more.
func (s *scheduler) checkSends(c *conn) {
	if c.state < connEstablished {
		return
	}
	if c.sending {
		c.again = true
		return
	}
	c.sending = true
	for again := true; again; again = c.again {
		c.again = false
		for c.txRsrvd.n > 0 && c.acct.Reserve() {
			t := c.txRsrvd.head
			t.unlink()
			c.txQueue.push(t)
		}
		if c.state == connEstablished && c.acct.NeedNoop(c.nonEmpty(), s.keepaliveDue(c)) {
			// Without a transmit the timeout scan tries again.
			if t, err := s.allocTx(c); err == nil {
				t.typ = wire.MsgNoop
				s.encode(t)
				s.queueTx(c, t)
			}
		}
		for s.postNext(c) {
		}
	}
	c.sending = false
	s.touch(c)
}

// postNext posts the transmit that is first in turn and says whether another may follow.
func (s *scheduler) postNext(c *conn) bool {
	var t *tx
	credited := true
	switch {
	case c.txNocred.n > 0:
		t, credited = c.txNocred.head, false
	case c.txNoops.n > 0:
		t = c.txNoops.head
	case c.txQueue.n > 0:
		t = c.txQueue.head
	default:
		c.stalled = false
		return false
	}
	noop := t.typ == wire.MsgNoop
	if v := c.acct.MaySend(credited, noop); v != credits.OK {
		if v != credits.Throttled && !c.stalled {
			c.stalled = true
			c.count.creditStalls++
		}
		return false
	}
	c.stalled = false
	t.unlink()
	t.queued = false
	if noop && c.acct.DropNoop(c.nonEmpty(), s.keepaliveDue(c)) {
		s.txDone(t)
		return true
	}
	if c.state != connEstablished {
		t.status, t.waiting = eCONNABORTED, false
		t.health = HealthLocalError
		if t.idle() {
			s.txDone(t)
		} else {
			c.activeTxs.push(t) // its flush completion finishes it
		}
		return true
	}
	if t.hdev != c.hdev {
		s.otherHCA(c)
		t.status, t.waiting, t.health = eNETDOWN, false, HealthLocalError
		if t.idle() {
			s.txDone(t)
		} else {
			c.activeTxs.push(t)
		}
		return true
	}
	h := wire.Header{
		Version: c.acct.Version, Type: t.typ, Credits: c.acct.Send(credited, noop), Nob: t.nob,
		SrcNID: c.ni.nid, SrcStamp: c.ni.incarnation, DstNID: c.peer.nid, DstStamp: c.incarnation,
	}
	t.head.At, t.head.Sent, t.head.Credits, t.head.Nob = s.nowMS, true, h.Credits, h.Nob
	c.recent.add(t.head)
	wire.Seal(t.slot.Bytes(), &h, s.lnd.bigEndian, s.cksumKind(c))
	t.sending++
	c.activeTxs.push(t)
	c.toPost = append(c.toPost, t)
	c.lastSend = s.now
	c.count.txMsgs++
	if t.sinkSize > 0 {
		t.exposed = true
		if t.reg != nil && t.reg.win != nil { // a region of the cache is others' as well
			t.reg.bound = true
		}
	} else {
		c.count.writes += uint64(len(t.wrs))
	}
	if noop {
		c.count.noopsSent++
	}
	s.touch(c)
	return true
}

// otherHCA closes a conn whose HCA is not its interface's any more (spec o2iblnd 7.4).
func (s *scheduler) otherHCA(c *conn) {
	s.close(c, because(eNETDOWN, "%v is on another HCA now, this connection was on %s", c.ni.nid, c.hdev.info.Name))
}

// cksumKind is the checksum for messages to c's peer: none unless the tunable says so, else the variant
// that the peer was seen to use, else the configured one.
func (s *scheduler) cksumKind(c *conn) wire.CksumKind {
	return cksumKind(s.lnd.global.Load(), c.cksum)
}

// txComplete takes in the completion of a message's SEND.
func (s *scheduler) txComplete(t *tx, wc *verbs.WC) {
	c := t.conn
	t.sending--
	c.acct.SendDone(t.typ == wire.MsgNoop)
	if wc.Status == verbs.WCSuccess {
		c.peer.alive(s.now)
	} else {
		t.waiting = false
		t.draining = t.exposed && !c.flushed // the peer may have it all the same
		if t.status == 0 {
			t.status, t.health = eIO, HealthRemoteDropped
		}
		if wc.Status == verbs.WCFlushed {
			s.broken(c)
		} else {
			s.close(c, because(eIO, "sending %v failed: %v", t.typ, wc.Status))
		}
	}
	if t.idle() {
		t.unlink()
		s.txDone(t)
	}
	s.checkSends(c)
	s.maybeDrained(c)
}

// txDone finishes t: memory back, descriptor back, then LNet is told, since it may send again at once.
func (s *scheduler) txDone(t *tx) {
	if t.done || !t.idle() || t.list != nil || t.exposed && !t.conn.flushed {
		panic("o2iblnd: transmit finished while in use")
	}
	c := t.conn
	if t.reg != nil {
		c.ni.regs[s.cpt].give(s.now, t.reg) // before what it covers is given back
	}
	m, status, health := t.msg, t.status, t.health
	if t.bounce.Slab() != nil {
		if t.copyOut && status == 0 && m != nil {
			n := m.Len
			if m.RDMALen >= 0 {
				n = min(n, m.RDMALen)
			}
			scatter(m.Segs, t.bounce.Bytes()[:n])
		}
		s.lnd.payload.Free(t.bounce)
	}
	t.done = true
	t.conn, t.msg, t.status, t.health = nil, nil, 0, HealthOK
	t.bounce, t.copyOut, t.sinkSize, t.exposed, t.reg, t.wrs = arena.Buffer{}, false, 0, false, nil, t.wrs[:0]
	c.ni.txs[s.cpt].Free(s.now, t)
	if m != nil {
		s.finalize(m, status, health)
	}
}

func (s *scheduler) finalize(m *Message, status Errno, health Health) {
	m.Status, m.Health = status, health
	s.lnd.upper.Finalize(s, m)
}

// gather copies the first n bytes of segs into dst and says how many it copied.
func gather(dst []byte, segs []arena.Buffer, n int) int {
	done := 0
	for _, b := range segs {
		if done == n {
			break
		}
		p := b.Bytes()
		done += copy(dst[done:n], p)
	}
	return done
}

// scatter copies src over segs.
func scatter(segs []arena.Buffer, src []byte) {
	for _, b := range segs {
		if len(src) == 0 {
			return
		}
		src = src[copy(b.Bytes(), src):]
	}
}
