package o2iblnd

import (
	"sync/atomic"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// peer is a remote NID as seen from one NI. It exists while it has a connection or an attempt
// (spec o2iblnd 2.1) and belongs to connd, but for live and lastAlive.
type peer struct {
	nid wire.NID
	ni  *ni

	dead         bool
	linked       bool // in the table: new messages find it
	conns        []*conn
	all          int // conns not yet reaped, attempts and reconnect carriers
	txq          []*Message
	version      wire.Version // 0: never talked
	incarnation  uint64
	connecting   int
	accepting    int
	reconnecting int
	reconnected  int // consecutive new attempts
	races        int
	err          *reason
	queueDepth   int
	maxFrags     int
	attempts     []*attempt
	reconnects   uint64

	live      atomic.Pointer[[]*conn] // established conns, for senders
	next      atomic.Uint32           // round robin over live
	lastAlive atomic.Int64            // ms since the epoch
	txQueued  atomic.Int32
}

// attempt is an active connect that is under way.
type attempt struct {
	peer    *peer
	id      verbs.ID
	conn    *conn // once there is one
	started time.Time
	port    int // privileged source port that is tried, 0: any
	over    bool
}

// alive notes a sign of life; schedulers call it for every message.
func (p *peer) alive(now time.Time) { p.lastAlive.Store(now.UnixMilli()) }

func (p *peer) isConnecting() bool { return p.connecting > 0 || p.reconnecting > 0 || p.accepting > 0 }

func (p *peer) idle() bool { return !p.isConnecting() && len(p.conns) == 0 }

// setConns publishes the established conns to senders.
func (p *peer) setConns(conns []*conn) {
	p.conns = conns
	live := append([]*conn(nil), conns...)
	p.live.Store(&live)
}

// The peer table: buckets of copied-on-write slices, so that senders look up without a lock. connd writes.
const nbuckets = 1024

type peerTable [nbuckets]atomic.Pointer[[]*peer]

func bucketOf(ni *ni, nid wire.NID) int {
	h := (uint64(nid) ^ uint64(ni.nid)<<7) * 0x9e3779b97f4a7c15
	return int(h >> 54)
}

func (t *peerTable) find(ni *ni, nid wire.NID) *peer {
	if b := t[bucketOf(ni, nid)].Load(); b != nil {
		for _, p := range *b {
			if p.nid == nid && p.ni == ni {
				return p
			}
		}
	}
	return nil
}

func (t *peerTable) add(p *peer) {
	b := &t[bucketOf(p.ni, p.nid)]
	var old []*peer
	if l := b.Load(); l != nil {
		old = *l
	}
	all := append(append(make([]*peer, 0, len(old)+1), old...), p)
	b.Store(&all)
	p.linked = true
}

func (t *peerTable) remove(p *peer) {
	b := &t[bucketOf(p.ni, p.nid)]
	old := *b.Load()
	all := make([]*peer, 0, len(old))
	for _, q := range old {
		if q != p {
			all = append(all, q)
		}
	}
	b.Store(&all)
	p.linked = false
}

// each calls f for every linked peer, in the order of the table.
func (t *peerTable) each(f func(*peer)) {
	for i := range t {
		if b := t[i].Load(); b != nil {
			for _, p := range *b {
				f(p)
			}
		}
	}
}
