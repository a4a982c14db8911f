package o2iblnd

import (
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// oneWay is what is on its way from one end of a connection to the other.
type oneWay struct {
	a, b      *conn
	messages  int // that cost a credit, and what b still has of them: owed, held, or until the PUT_DONE
	announced int // credits that b will have
}

// add counts a message that b has not taken in.
func (o *oneWay) add(m []byte) {
	typ, credits := wire.MsgType(m[6]), m[7]
	o.announced += int(credits)
	switch {
	case typ == wire.MsgImmediate, typ == wire.MsgPutReq, typ == wire.MsgGetReq, typ == wire.MsgNoop && o.a.version == wire.Version1:
		o.messages++
	}
}

// balance holds every connection to decision 18, wherever its messages are at this moment: credits in hand,
// on their way back or owed, and messages on their way, in the other node's hands or waiting for a PUT_DONE,
// are its depth.
func (s *sim) balance() {
	ends := make(map[uint32]*conn)
	arrived := make(map[*conn][]uint64)
	for _, n := range s.nodes {
		for _, sc := range n.lnd.scheds {
			for _, c := range sc.conns {
				if c != nil && c.state <= connEstablished {
					ends[c.qp.Num()] = c
				}
			}
			for _, q := range sc.cqs {
				q.cq.(interface{ Each(func(*verbs.WC)) }).Each(func(wc *verbs.WC) {
					if kind, idx, gen := splitWRID(wc.ID); kind == wrRx && wc.Status == verbs.WCSuccess {
						if c := sc.conn(idx>>rxNumBits, gen); c != nil {
							arrived[c] = append(arrived[c], wc.ID)
						}
					}
				})
			}
		}
	}
	ways := make(map[uint32]oneWay)
	s.f.Links(func(l *mem.Link) {
		o := oneWay{a: ends[l.From], b: ends[l.To]}
		if o.a == nil || o.b == nil || s.liars[l.From] || s.liars[l.To] {
			return
		}
		for _, m := range l.Sends {
			o.add(m)
		}
		for _, id := range append(arrived[o.b], l.Arrived...) {
			_, idx, _ := splitWRID(id)
			o.add(o.b.rxs[idx&(1<<rxNumBits-1)].buf)
		}
		for _, r := range o.b.early {
			o.add(r.buf)
		}
		for i := range o.b.rxs {
			if o.b.rxs[i].held {
				o.messages++
			}
		}
		for _, q := range o.b.queues() {
			for t := q.list.head; t != nil; t = t.next {
				if t.typ == wire.MsgPutAck && t.waiting {
					o.messages++
				}
			}
		}
		o.messages += o.b.acct.Outstanding
		ways[l.From] = o
	})
	for from, there := range ways {
		back, ok := ways[there.b.qp.Num()]
		if !ok || there.a.state != connEstablished {
			continue
		}
		s.balanced++
		if acct := &there.a.acct; acct.Credits+back.announced+there.messages != acct.Depth {
			s.t.Fatalf("%v to %v, queue pair %d: %d credits, %d on their way, %d messages out or owed are not the depth of %d",
				there.a.ni.nid, there.a.peer.nid, from, acct.Credits, back.announced, there.messages, acct.Depth)
		}
	}
}
