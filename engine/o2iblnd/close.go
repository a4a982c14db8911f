package o2iblnd

import (
	"strings"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// establish makes c usable: connd has it connected (spec o2iblnd 2.12). With why it is closed at once.
func (s *scheduler) establish(c *conn, e *establishment, why *reason) {
	if c.state >= connEstablished {
		panic("o2iblnd: conn established twice")
	}
	g := s.lnd.global.Load()
	n := c.ni.tun.Load()
	c.state = connEstablished
	c.incarnation = e.incarnation
	c.maxFrags = e.maxFrags
	c.acct = newAccount(g, n, e)
	c.lastSend, c.ready = s.now, s.now
	c.peer.alive(s.now)
	c.publish() // before a message arrives: who got one finds the conn established
	s.touch(c)
	if why != nil {
		s.close(c, why)
		for _, m := range e.msgs {
			m.RDMALen = -1
			s.finalize(m, eCONNABORTED, HealthLocalError)
		}
	} else {
		for _, m := range e.msgs {
			s.launch(c, m)
		}
		s.checkSends(c)
	}
	s.replayEarly(c)
}

func (s *scheduler) replayEarly(c *conn) {
	early := c.early
	c.early = nil
	for _, r := range early {
		if c.state > connEstablished {
			s.dropRx(c)
		} else {
			s.received(c, r)
		}
	}
}

// close begins the end of an established conn; later reasons and other states change nothing but what
// is remembered (spec o2iblnd 5.3).
func (s *scheduler) close(c *conn, why *reason) {
	if c.closeWhy == nil || (c.closeWhy.errno == 0 && why.errno != 0 && c.state < connDisconnected) {
		c.closeWhy = why
	}
	if c.state != connEstablished {
		return
	}
	c.state = connClosing
	c.publish()
	s.touch(c)
	s.lnd.connd.submit(cop{kind: copClosing, c: c, why: why, text: c.backlog()})
}

// backlog names the queues that a closing conn leaves non-empty, for operators.
func (c *conn) backlog() string {
	var left []string
	for _, q := range c.queues() {
		if q.list.n > 0 {
			left = append(left, q.name)
		}
	}
	return strings.Join(left, ", ")
}

// finalise flushes c: connd has taken it off the peer and disconnected it.
func (s *scheduler) finalise(c *conn, why *reason) {
	if c.closeWhy == nil {
		c.closeWhy = why
	}
	c.state = connDisconnected
	c.finalised = true
	c.publish()
	s.touch(c)
	s.flush() // what was posted in this turn must be on the QP before it is flushed
	if err := c.qp.ToError(); err != nil {
		s.lnd.fault(c.hdev, "move a queue pair to error", err)
	}
	s.postDrain(c)
	timedOut := c.closeWhy.errno == eTIMEDOUT
	var left []*tx
	for _, q := range c.queues() {
		for t := q.list.head; t != nil; t = t.next {
			left = append(left, t)
		}
	}
	for _, t := range left {
		if t.revoking || t.draining {
			continue // it is over for the peer, and waits only for its window
		}
		t.status, t.health = eCONNABORTED, HealthLocalError
		switch {
		case timedOut && t.sending > 0:
			t.health = HealthNetworkTimeout
		case timedOut && t.waiting:
			t.health = HealthRemoteTimeout
		case timedOut:
			t.health = HealthLocalTimeout
		}
		t.waiting, t.queued = false, false
		// A sink that the peer was told of is its until the queue pair is drained (spec o2iblnd 4.12).
		t.draining = t.exposed && !c.flushed
		t.unlink()
		if t.idle() {
			s.txDone(t)
		} else {
			c.activeTxs.push(t) // its flush completion finishes it
		}
	}
	s.replayEarly(c)
	s.maybeDrained(c)
}

// postDrain posts the receive behind all others of a queue pair in error: when it comes back, everything has,
// and nothing is placed any more.
func (s *scheduler) postDrain(c *conn) {
	batch := []verbs.Posting{{QP: c.qp, Recvs: []verbs.RecvWR{{ID: drainWRID(c)}}}}
	c.hdev.hca.Post(batch)
	if err := batch[0].Err; err != nil {
		s.lnd.fault(c.hdev, "drain a queue pair", err)
		s.drained(c)
	}
}

// drained takes in that the peer can write nothing any more over c.
func (s *scheduler) drained(c *conn) {
	c.flushed = true
	for t := c.activeTxs.head; t != nil; {
		next := t.next
		t.draining = false
		if t.idle() {
			t.unlink()
			s.txDone(t)
		}
		t = next
	}
	s.maybeDrained(c)
}

// maybeDrained tells connd when nothing of c is left with the device or with LNet.
func (s *scheduler) maybeDrained(c *conn) {
	if !c.finalised || !c.flushed || c.drainSent || c.nrx > 0 || c.acct.SendsPosted > 0 || c.activeTxs.n > 0 ||
		c.txQueue.n > 0 || c.txNocred.n > 0 || c.txRsrvd.n > 0 || c.txNoops.n > 0 || len(c.toRecv) > 0 || len(c.toPost) > 0 || len(c.toRevoke) > 0 {
		return
	}
	c.drainSent = true
	s.conns[c.slot] = nil
	s.nconns--
	s.npub.Store(int32(s.nconns))
	c.publish()
	s.lnd.connd.submit(cop{kind: copDrained, c: c})
}

// broken notes that the QP of an established conn flushes. Usually the connection manager says why in a
// moment; if it stays silent the timeout scan closes the conn.
func (s *scheduler) broken(c *conn) {
	if c.state == connEstablished && c.brokenAt.IsZero() {
		c.brokenAt = s.now
	}
}

// scan looks at a share of the conns for passed deadlines and due keepalives: every conn is seen four
// times in a timeout, or once a second (spec o2iblnd 5.2).
func (s *scheduler) scan() {
	n := len(s.conns)
	if n == 0 {
		return
	}
	share := n
	if t := int(s.lnd.timeout() / time.Second); t > 4 {
		share = max(1, (n*4+t-1)/t)
	}
	for range share {
		if s.scanAt >= n {
			s.scanAt = 0
		}
		if c := s.conns[s.scanAt]; c != nil && c.state == connEstablished {
			s.check(c)
		}
		s.scanAt++
	}
}

func (s *scheduler) check(c *conn) {
	if !c.brokenAt.IsZero() && s.now.Sub(c.brokenAt) >= scanEvery {
		s.close(c, because(eIO, "the queue pair failed and the connection manager said nothing"))
		return
	}
	for _, q := range c.queues() {
		for t := q.list.head; t != nil; t = t.next {
			if !t.deadline.After(s.now) {
				s.close(c, because(eTIMEDOUT, "%s", timeoutText(c, t, q.name)))
				return
			}
		}
	}
	if c.acct.NeedNoop(c.nonEmpty(), s.keepaliveDue(c)) {
		s.checkSends(c)
	}
}

// timeoutText says in operators' words what a timed-out transmit was waiting for.
func timeoutText(c *conn, t *tx, queue string) string {
	var b strings.Builder
	b.WriteString("timed out: ")
	b.WriteString(t.typ.String())
	switch {
	case t.waiting && t.typ == wire.MsgPutReq && queue == "active_txs":
		b.WriteString(" was sent, the peer did not say where its data should go")
	case t.waiting && t.typ == wire.MsgPutAck && queue == "active_txs":
		b.WriteString(" was sent, the peer did not write the data that it had announced")
	case t.waiting && queue == "active_txs":
		b.WriteString(" was sent, the peer did not answer it")
	case queue == "active_txs":
		b.WriteString(" was posted, the network did not confirm it")
	case queue == "tx_queue" && c.acct.Credits == 0:
		b.WriteString(" waited for a credit: the peer takes no messages off its queue")
	case queue == "tx_queue_rsrvd":
		b.WriteString(" waited for a reserved credit: as many requests as allowed are unanswered")
	default:
		b.WriteString(" waited on " + queue)
	}
	return b.String()
}
