package o2iblnd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// createConn builds a connection on id and attaches it to its scheduler (spec o2iblnd 2.10); postRing comes
// next. On an error nothing of it is left and id is the caller's.
func (d *connd) createConn(p *peer, id verbs.ID, active bool, version wire.Version, depth, frags int) (*conn, error) {
	n := p.ni
	h := n.dev.hdev.Load()
	if h == nil {
		return nil, fmt.Errorf("the device at %v is failing over", n.dev.addr)
	}
	if now := id.Device(); now != h.hca {
		d.mayFail(n.dev)
		return nil, fmt.Errorf("the connection is not on %s, where %v is", h.info.Name, n.nid)
	}
	si := d.pickScheduler()
	s := d.lnd.scheds[si]
	slot, gen, err := d.slots[si].take()
	if err != nil {
		return nil, err
	}
	c := &conn{
		id: d.lnd.connIDs.Add(1), peer: p, ni: n, hdev: h, sched: s, schedIdx: si, slot: slot, gen: gen, active: active, cm: id,
		started: d.now, version: version, setup: connPassiveWait, maxFrags: frags,
	}
	if active {
		c.setup = connActiveConnect
	}
	c.recent.ring = make([]Head, keepHeads)
	c.state = c.setup
	if c.qp, depth, err = d.createQP(c, id, s, version, depth, frags); err == nil {
		err = d.fillRing(c, credits.RxMsgs(version, depth))
	}
	if err != nil {
		d.unbuild(c)
		return nil, err
	}
	c.offered = wire.ConnParams{QueueDepth: uint16(depth), MaxFrags: uint16(frags), MaxMsgSize: wire.MsgSize}
	c.publish()
	d.conns[c.id] = c
	h.conns++
	n.nconns.Add(1)
	id.SetUser(c)
	s.submit(op{kind: opAttach, c: c})
	return c, nil
}

// createQP makes the queue pair; where the device cannot hold so deep a queue, a shallower one.
func (d *connd) createQP(c *conn, id verbs.ID, s *scheduler, version wire.Version, depth, frags int) (verbs.QP, int, error) {
	perMsg := 1 + frags + 2
	if m := c.hdev.info.Caps.MaxQPWR; m > 0 && perMsg*depth > m {
		depth = max(1, m/perMsg)
	}
	for {
		qp, err := id.CreateQP(verbs.QPAttr{
			PD: c.hdev.pd, CQ: c.hdev.cqs[c.schedIdx],
			MaxSendWR: perMsg * depth, MaxRecvWR: credits.RxMsgs(version, depth) + 1, // one to drain it with
			MaxSendSGE: c.hdev.maxSGE, MaxRecvSGE: 1,
		})
		if err == nil || depth <= 2 {
			if err != nil {
				err = fmt.Errorf("queue pair of depth %d with %d fragments on %s: %w", depth, frags, c.hdev.info.Name, err)
			}
			return qp, depth, err
		}
		depth--
	}
}

// fillRing gives c its n receive buffers.
func (d *connd) fillRing(c *conn, n int) error {
	c.rxs = make([]rx, 0, n)
	for left := n; left > 0; {
		// Powers of two, so that nothing of a buffer is wasted.
		k := 1
		for k*2 <= left {
			k *= 2
		}
		b, err := d.lnd.slots.Alloc(k * wire.MsgSize)
		if err != nil {
			return err
		}
		c.rxMem = append(c.rxMem, b)
		mr, err := c.hdev.region(b.Slab())
		if err != nil {
			return err
		}
		for i := range k {
			m := b.Slice(i*wire.MsgSize, wire.MsgSize)
			c.rxs = append(c.rxs, rx{conn: c, buf: m.Bytes(), addr: m.Addr(), key: mr.LKey(), num: uint16(len(c.rxs))})
		}
		left -= k
	}
	c.nrx = n
	return nil
}

// postRing posts every receive of c, once c is attached: an HCA that is lost at this moment gives them back
// at once, and the scheduler must know whose they are. On an error c is the caller's to fail.
func (d *connd) postRing(c *conn) error {
	wrs := make([]verbs.RecvWR, len(c.rxs))
	for i := range wrs {
		wrs[i] = recvWR(c, uint16(i))
	}
	batch := []verbs.Posting{{QP: c.qp, Recvs: wrs}}
	c.hdev.hca.Post(batch)
	if err := batch[0].Err; err != nil {
		c.sched.submit(op{kind: opUnposted, c: c, n: len(wrs) - batch[0].NRecvs})
		return fmt.Errorf("post receives on %s: %w", c.hdev.info.Name, err)
	}
	return nil
}

func recvWR(c *conn, num uint16) verbs.RecvWR {
	r := &c.rxs[num]
	wr := verbs.RecvWR{ID: rxWRID(c, num), NSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: r.addr, Length: wire.MsgSize, LKey: r.key}
	return wr
}

// unbuild frees what createConn made of a connection, or what is left of one that is drained.
func (d *connd) unbuild(c *conn) {
	if c.qp != nil {
		if err := c.qp.ToError(); err != nil {
			d.lnd.fault(c.hdev, "move a queue pair to error", err)
		}
		if err := c.qp.Close(); err != nil {
			d.lnd.fault(c.hdev, "close a queue pair", err)
		}
	}
	for _, b := range c.rxMem {
		d.lnd.slots.Free(b)
	}
	c.rxMem, c.rxs = nil, nil
	d.slots[c.schedIdx].give(c.slot)
}

// reapConns destroys the connections that are drained and of which the connection manager has spoken its
// last word (spec o2iblnd 5.6).
func (d *connd) reapConns() {
	kept := d.reap[:0]
	for _, c := range d.reap {
		if c.est != nil && c.setup == connClosing && !c.disconnected && d.now.Before(c.reapBy) {
			kept = append(kept, c)
			continue
		}
		d.unbuild(c)
		if err := c.cm.Close(); err != nil {
			d.lnd.fault(c.hdev, "close a connection", err)
		}
		delete(d.conns, c.id)
		c.ni.nconns.Add(-1)
		c.hdev.conns--
		d.dropHCA(c.hdev)
		p := c.peer
		if !c.reconnect {
			d.letGo(p)
			continue
		}
		// The shell carries the peer to its next attempt (spec o2iblnd 2.11).
		if p.reconnected < reconnHighRace {
			d.reconn = append(d.reconn, p)
		} else {
			at := d.now.Truncate(time.Second).Add(time.Second + time.Duration(d.rng.Int64N(int64(250*time.Millisecond))))
			d.reconnWait = append(d.reconnWait, delayed{p, at})
		}
	}
	d.reap = kept
}

// stuckPassive lists the connections whose active side never came back.
func (d *connd) stuckPassive() []*conn {
	var stuck []*conn
	for _, c := range d.byAge() {
		if c.setup == connPassiveWait && d.now.Sub(c.started) >= 2*connectTimeout(d.lnd.timeout()) {
			stuck = append(stuck, c)
		}
	}
	return stuck
}

// byAge lists the connections, the oldest first.
func (d *connd) byAge() []*conn {
	return slices.SortedFunc(maps.Values(d.conns), func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
}

// pickScheduler spreads connections evenly.
func (d *connd) pickScheduler() int {
	best := 0
	for i := range d.slots {
		if d.slots[i].used < d.slots[best].used {
			best = i
		}
	}
	return best
}

func (s *slots) take() (slot, gen uint32, err error) {
	if s.used >= maxSlots {
		return 0, 0, fmt.Errorf("%d connections on one scheduler are the limit", maxSlots)
	}
	s.used++
	s.gen++
	if n := len(s.free); n > 0 {
		slot = s.free[n-1]
		s.free = s.free[:n-1]
		return slot, s.gen, nil
	}
	s.next++
	return s.next - 1, s.gen, nil
}

func (s *slots) give(slot uint32) {
	s.used--
	s.free = append(s.free, slot)
}
