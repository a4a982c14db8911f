package o2iblnd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"o2ibd/engine/wire"
)

const (
	keepHeads = 16 // messages of a conn that are remembered
	keepEnded = 64 // conns that are remembered with them after their end
)

// Head is what is remembered of a message: who waits for what at the moment when a connection fails. What
// counts of it depends on Type; 0 is a message that was not understood.
type Head struct {
	At      int64 // ms since the epoch
	Sent    bool
	Type    wire.MsgType
	Credits uint8
	Nob     uint32 // bytes of the message itself

	LNet      wire.LNetType // IMMEDIATE, PUT_REQ, GET_REQ
	Portal    uint32
	MatchBits uint64
	Length    uint32 // bytes that LNet moves, or says that it took

	Cookie    uint64 // of PUT_ACK the one that it answers
	DstCookie uint64 // PUT_ACK
	Status    int32
	Frags     int // PUT_ACK, GET_REQ: fragments that may be written to
	Bytes     int // and their bytes
}

// headOf reads m, whose fields that its type has not may be anything.
func headOf(m *wire.Msg) Head {
	h := Head{Type: m.Type}
	switch m.Type {
	case wire.MsgImmediate, wire.MsgPutReq, wire.MsgGetReq:
		h.LNet, h.Length = m.LNet.Type, m.LNet.PayloadLength
		switch m.LNet.Type {
		case wire.LNetPUT:
			h.Portal, h.MatchBits = m.LNet.Portal, m.LNet.MatchBits
		case wire.LNetGET:
			h.Portal, h.MatchBits, h.Length = m.LNet.Portal, m.LNet.MatchBits, m.LNet.Length
		case wire.LNetACK:
			h.MatchBits, h.Length = m.LNet.MatchBits, m.LNet.Length
		}
	}
	switch m.Type {
	case wire.MsgPutReq, wire.MsgPutNak, wire.MsgPutDone, wire.MsgGetReq, wire.MsgGetDone:
		h.Cookie = m.Cookie
	case wire.MsgPutAck:
		h.Cookie, h.DstCookie = m.SrcCookie, m.DstCookie
	}
	switch m.Type {
	case wire.MsgPutNak, wire.MsgPutDone, wire.MsgGetDone:
		h.Status = m.Status
	case wire.MsgPutAck, wire.MsgGetReq:
		h.Frags, h.Bytes = len(m.RD.Frags), m.RD.Size()
	}
	return h
}

// heads is the ring of a conn's last messages; its scheduler's, and connd's once the conn is drained.
type heads struct {
	ring []Head
	n    int // that ever were
}

func (h *heads) add(e Head) {
	h.ring[h.n%len(h.ring)] = e
	h.n++
}

// list copies them, the oldest first.
func (h *heads) list() []Head {
	k := min(h.n, len(h.ring))
	out := make([]Head, 0, k)
	for i := h.n - k; i < h.n; i++ {
		out = append(out, h.ring[i%len(h.ring)])
	}
	return out
}

// ConnHeads are the last messages of one connection, the oldest first.
type ConnHeads struct {
	Conn     uint64
	NI, NID  wire.NID
	Ended    time.Time // zero: it has not
	Why      string    // it ended; empty when nothing was wrong
	Messages []Head
}

// remember keeps the last messages of a conn that is drained, if there were any.
func (d *connd) remember(c *conn) {
	if c.recent.n == 0 {
		return
	}
	e := ConnHeads{Conn: c.id, NI: c.ni.nid, NID: c.peer.nid, Ended: d.lnd.now(), Messages: c.recent.list()}
	if c.closeWhy != nil {
		e.Why = c.closeWhy.text
	}
	if len(d.ended) == keepEnded {
		d.ended = d.ended[:copy(d.ended, d.ended[1:])]
	}
	d.ended = append(d.ended, e)
}

// Recent gives the last messages on each connection with a peer: those that are up, and of those that ended
// the ones that are remembered, the oldest connection first. Any goroutine may call it; it waits for connd and
// the connections' schedulers, or until ctx ends.
func (l *LND) Recent(ctx context.Context, ni, nid wire.NID) ([]ConnHeads, error) {
	if _, err := l.ownNI(ni); err != nil {
		return nil, err
	}
	var all []ConnHeads
	var live chan ConnHeads
	asked := 0
	err := l.connd.call(ctx, func(done func(error)) {
		for _, e := range l.connd.ended {
			if e.NI == ni && e.NID == nid {
				all = append(all, e)
			}
		}
		live = make(chan ConnHeads, len(l.connd.conns)) // a scheduler waits for nobody
		for _, c := range l.connd.conns {
			if c.ni.nid != ni || c.peer.nid != nid || c.drained {
				continue
			}
			asked++
			c.sched.submit(op{kind: opCall, fn: func() {
				live <- ConnHeads{Conn: c.id, NI: ni, NID: nid, Messages: c.recent.list()}
			}})
		}
		done(nil)
	})
	if err != nil {
		return nil, err
	}
	for range asked {
		select {
		case e := <-live:
			all = append(all, e)
		case <-ctx.Done():
			return nil, fmt.Errorf("gave up waiting for the schedulers: %w", ctx.Err())
		}
	}
	slices.SortFunc(all, func(a, b ConnHeads) int { return cmp.Compare(a.Conn, b.Conn) })
	return all, nil
}
