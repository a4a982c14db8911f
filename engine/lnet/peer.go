package lnet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

var errTooManyPeers = errors.New("too many peers")

// peer is what the node knows of a remote NID as seen from one NI, from first contact until deleted or
// forgotten.
type peer struct {
	ni  *ni
	nid wire.NID

	mu       sync.Mutex
	gone     bool // no longer in the table: look again
	credits  creditCount
	waiting  msgQueue // for a peer credit
	ready    msgQueue // hold a peer credit; the first sendable ones also one of the NI
	sendable int
	pumping  bool
	bytes    int // tx_q_num_of_buf: in spite of its name bytes

	firstSeen time.Time
	lastError string
	errorAt   time.Time
	pinged    *PingInfo // last known info, by ping or push
	asking    bool      // a ping that a push caused is under way

	lastAlive atomic.Int64 // nanoseconds since the epoch of the last message from it, 0 = never
	lastUsed  atomic.Int64 // the same, of the last message in either direction
	down      atomic.Bool
	counts    traffic
	health    health
	remote    remoteFailures
}

// PeerInfo is a copy of what is known of a peer.
type PeerInfo struct {
	NI, NID   wire.NID
	FirstSeen time.Time
	LastAlive time.Time // zero: never heard
	Down      bool      // the last connection or attempt failed and nothing came since
	Error     string    // last error, "" = none
	ErrorAt   time.Time

	Credits    int // peer_credits
	Available  int // negative: that many messages wait
	MinCredits int
	Queued     int // messages that wait for a credit
	QueueBytes int // tx_q_num_of_buf

	Health   int // 0 to 1000
	Failures RemoteFailures
	Traffic  Traffic
	Ping     *PingInfo // what it last told of itself, nil = nothing; do not change it
}

// Peers lists the peers of all NIs by NI and NID.
func (n *Node) Peers() []PeerInfo {
	var all []PeerInfo
	for _, i := range n.nis {
		for _, p := range i.allPeers() {
			all = append(all, p.info())
		}
	}
	slices.SortFunc(all, func(a, b PeerInfo) int {
		return cmp.Or(cmp.Compare(a.NI, b.NI), cmp.Compare(a.NID, b.NID))
	})
	return all
}

func (p *peer) info() PeerInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PeerInfo{
		NI: p.ni.nid, NID: p.nid,
		FirstSeen: p.firstSeen, LastAlive: timeOf(p.lastAlive.Load()), Down: p.down.Load(),
		Error: p.lastError, ErrorAt: p.errorAt,
		Credits: p.credits.max, Available: p.credits.available(p.waiting.n), MinCredits: p.credits.least,
		Queued: p.waiting.n + p.ready.n - p.sendable, QueueBytes: p.bytes,
		Health: p.health.value(), Failures: p.remote.read(), Traffic: p.counts.read(), Ping: p.pinged,
	}
}

// DelPeer forgets a peer, or all with wire.AnyNID, of an NI, or of all with 0, and says how many. What waits
// for their credits fails; what is on its way ends as it would.
func (n *Node) DelPeer(nid, peerNID wire.NID) (deleted int) {
	for _, i := range n.nis {
		if nid != 0 && i.nid != nid {
			continue
		}
		for _, p := range i.allPeers() {
			if peerNID != wire.AnyNID && p.nid != peerNID {
				continue
			}
			i.peersMu.Lock()
			known := i.peers[p.nid] == p
			if known {
				i.unlist(p)
			}
			i.peersMu.Unlock()
			if known {
				n.failQueued(p, eConnAborted)
				deleted++
			}
		}
	}
	return deleted
}

// PeerDown implements o2iblnd.Upper.
func (n *Node) PeerDown(nid, peerNID wire.NID, err error, lastAlive time.Time) {
	i := n.ni(nid)
	if i == nil {
		return
	}
	p, perr := n.peerOf(i, peerNID)
	if perr != nil {
		return
	}
	why := "connection lost"
	if err != nil {
		why = err.Error()
	}
	was := p.down.Swap(true)
	p.mu.Lock()
	if !was || p.lastError != why { // else it is so since the first time
		p.lastError, p.errorAt = why, n.cfg.Now()
	}
	p.mu.Unlock()
	if at := lastAlive.UnixNano(); !lastAlive.IsZero() && at > p.lastAlive.Load() {
		p.lastAlive.Store(at)
	}
}

// peerOf finds or makes the record of a NID on an NI.
func (n *Node) peerOf(i *ni, nid wire.NID) (*peer, error) {
	i.peersMu.RLock()
	p := i.peers[nid]
	i.peersMu.RUnlock()
	if p != nil {
		return p, nil
	}
	now := n.cfg.Now()
	i.peersMu.Lock()
	defer i.peersMu.Unlock()
	if p := i.peers[nid]; p != nil {
		return p, nil
	}
	switch {
	case i.peersClosed:
		return nil, ErrClosed
	case len(i.peers) >= n.cfg.MaxPeers:
		return nil, fmt.Errorf("peer %v of %v: %w: %d", nid, i.nid, errTooManyPeers, len(i.peers))
	}
	p = &peer{ni: i, nid: nid, firstSeen: now, credits: newCreditCount(int(i.peerCredits.Load()))}
	p.health.reset()
	p.lastUsed.Store(now.UnixNano())
	i.peers[nid] = p
	return p, nil
}

// heard notes a message from p.
func (p *peer) heard(now time.Time) {
	at := now.UnixNano()
	p.lastAlive.Store(at)
	p.lastUsed.Store(at)
	p.health.up()
	if p.down.Load() {
		p.down.Store(false)
	}
}

// failed notes a send that did not succeed. Of a peer that is down the driver has said why, in better words.
func (p *peer) failed(e o2iblnd.Errno, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down.Load() && p.lastError != "" {
		return
	}
	p.lastError, p.errorAt = "send failed: "+unixErrno(e).Error(), now
}

// forgetIdle drops the record of p when nothing was heard of it for too long.
func (n *Node) forgetIdle(p *peer, now time.Time) {
	if now.Sub(time.Unix(0, p.lastUsed.Load())) <= n.cfg.ForgetAfter {
		return
	}
	p.ni.peersMu.Lock()
	defer p.ni.peersMu.Unlock()
	p.mu.Lock()
	idle := p.credits.used == 0 && p.waiting.n == 0
	p.mu.Unlock()
	if idle && p.ni.peers[p.nid] == p {
		p.ni.unlist(p)
	}
}

// allPeers is a copy of the table, unordered.
func (i *ni) allPeers() []*peer {
	i.peersMu.RLock()
	defer i.peersMu.RUnlock()
	all := make([]*peer, 0, len(i.peers))
	for _, p := range i.peers {
		all = append(all, p)
	}
	return all
}

// closePeers empties the table for good.
func (i *ni) closePeers() []*peer {
	i.peersMu.Lock()
	defer i.peersMu.Unlock()
	i.peersClosed = true
	all := make([]*peer, 0, len(i.peers))
	for _, p := range i.peers {
		i.unlist(p)
		all = append(all, p)
	}
	return all
}

// unlist takes p out of the table, with peersMu held.
func (i *ni) unlist(p *peer) {
	delete(i.peers, p.nid)
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
}

func timeOf(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
