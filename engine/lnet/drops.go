package lnet

import (
	"fmt"
	"sync/atomic"
	"time"

	"o2ibd/engine/wire"
)

// dropNoticeEvery keeps peers that go on sending what we do not serve, as Lustre clients do, from
// filling the list of events (spec lnet 7.3).
const dropNoticeEvery = 10 * time.Second

// dropLog limits the notices about dropped messages. ACKs and REPLYs are not mentioned: that they come
// too late is normal.
type dropLog struct {
	last    atomic.Int64 // nanoseconds since the epoch
	skipped atomic.Uint64
}

func (l *dropLog) note(n *Node, i *ni, h *wire.LNetHeader, from wire.NID) {
	if h.Type != wire.LNetPUT && h.Type != wire.LNetGET {
		return
	}
	now, last := n.cfg.Now().UnixNano(), l.last.Load()
	if last != 0 && now-last < int64(dropNoticeEvery) || !l.last.CompareAndSwap(last, now) {
		l.skipped.Add(1)
		return
	}
	text := fmt.Sprintf("%v to portal %d with match bits %#x dropped: nothing here wants it", h.Type, h.Portal, h.MatchBits)
	if k := l.skipped.Swap(0); k > 0 {
		text += fmt.Sprintf(" (and %d more since the last notice)", k)
	}
	n.cfg.Log(Notice{Kind: "drop", Severity: Info, NI: i.nid, Peer: from, Text: text})
}
