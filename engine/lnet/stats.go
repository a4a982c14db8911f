package lnet

import (
	"sync/atomic"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// Stats are the node's counters, named as "lnetctl stats show" names them (spec lnet 5.4, 5.7).
type Stats struct {
	MsgsAlloc, MsgsMax                    uint64
	RstAlloc                              uint64 // MDs that wait for an ACK or REPLY
	SendCount, RecvCount, DropCount       uint64
	SendLength, RecvLength, DropLength    uint64
	ResponseTimeoutCount                  uint64
	LocalDropped, LocalAborted            uint64
	LocalTimeout, LocalError              uint64
	RemoteDropped, RemoteError            uint64
	RemoteTimeout, NetworkTimeout         uint64
	PushesReceived, PingsAnswered, Parked uint64 // Parked: PUTs that wait on lazy portals now
}

// TypeCounts counts messages by LNet type.
type TypeCounts struct{ Put, Get, Reply, Ack uint64 }

// Sum is over all types.
func (c TypeCounts) Sum() uint64 { return c.Put + c.Get + c.Reply + c.Ack }

// Traffic of an NI or a peer. ACKs that we send count as PUTs and REPLYs as GETs, as real nodes count.
type Traffic struct {
	Sent, Received, Dropped TypeCounts
	SendBytes, RecvBytes    uint64 // payload
}

// LocalFailures counts failed sends that were our side's fault.
type LocalFailures struct{ Dropped, Aborted, Timeout, Error uint64 }

// RemoteFailures counts failed sends that were the peer's or the network's fault, and missing answers.
type RemoteFailures struct{ Dropped, Timeout, Error, NetworkTimeout uint64 }

// NIInfo is a copy of an NI's state.
type NIInfo struct {
	NID         wire.NID
	Up          bool
	Credits     int
	Available   int // negative: that many messages wait
	MinCredits  int
	PeerCredits int
	Peers       int
	Health      int // 0 to 1000
	Failures    LocalFailures
	Traffic     Traffic
}

// NIs lists the NIs, the primary first.
func (n *Node) NIs() []NIInfo {
	all := make([]NIInfo, 0, len(n.nis))
	for _, i := range n.nis {
		i.peersMu.RLock()
		peers := len(i.peers)
		i.peersMu.RUnlock()
		i.mu.Lock()
		credits, waiting := i.credits, i.waiting.n
		i.mu.Unlock()
		all = append(all, NIInfo{
			NID: i.nid, Up: i.up.Load(),
			Credits: credits.max, Available: credits.available(waiting), MinCredits: credits.least,
			PeerCredits: int(i.peerCredits.Load()), Peers: peers,
			Health: i.health.value(), Failures: i.local.read(), Traffic: i.counts.read(),
		})
	}
	return all
}

// Stats reads the node's counters.
func (n *Node) Stats() Stats {
	c := &n.stats
	s := Stats{
		MsgsAlloc: uint64(c.msgsAlloc.Load()), MsgsMax: uint64(c.msgsMax.Load()), RstAlloc: n.tracker.count(),
		SendCount: c.sendCount.Load(), RecvCount: c.recvCount.Load(), DropCount: c.dropCount.Load(),
		SendLength: c.sendLength.Load(), RecvLength: c.recvLength.Load(), DropLength: c.dropLength.Load(),
		ResponseTimeoutCount: c.responseTimeouts.Load(),
		PushesReceived:       c.pushes.Load(), PingsAnswered: c.pings.Load(),
	}
	for _, i := range n.nis {
		l := i.local.read()
		s.LocalDropped += l.Dropped
		s.LocalAborted += l.Aborted
		s.LocalTimeout += l.Timeout
		s.LocalError += l.Error
	}
	r := n.stats.remote.read()
	s.RemoteDropped, s.RemoteError = r.Dropped, r.Error
	s.RemoteTimeout, s.NetworkTimeout = r.Timeout, r.NetworkTimeout
	for k := range n.portals {
		pt := &n.portals[k]
		pt.mu.Lock()
		s.Parked += uint64(pt.parked.n)
		pt.mu.Unlock()
	}
	return s
}

// counters of the whole node. They stay when peers go.
type counters struct {
	msgsAlloc, msgsMax                 atomic.Int64
	sendCount, recvCount, dropCount    atomic.Uint64
	sendLength, recvLength, dropLength atomic.Uint64
	responseTimeouts, pushes, pings    atomic.Uint64
	remote                             remoteFailures
}

// typeCounts is indexed by LNet type: ACK, PUT, GET, REPLY.
type typeCounts [4]atomic.Uint64

func (c *typeCounts) read() TypeCounts {
	return TypeCounts{
		Put: c[wire.LNetPUT].Load(), Get: c[wire.LNetGET].Load(),
		Reply: c[wire.LNetREPLY].Load(), Ack: c[wire.LNetACK].Load(),
	}
}

type traffic struct {
	sent, received, dropped typeCounts
	sendBytes, recvBytes    atomic.Uint64
}

func (t *traffic) read() Traffic {
	return Traffic{
		Sent: t.sent.read(), Received: t.received.read(), Dropped: t.dropped.read(),
		SendBytes: t.sendBytes.Load(), RecvBytes: t.recvBytes.Load(),
	}
}

// countSent counts a message that went out, as type as.
func (n *Node) countSent(m *msg, as wire.LNetType) {
	n.stats.sendCount.Add(1)
	m.ni.counts.sent[as].Add(1)
	if m.peer != nil {
		m.peer.counts.sent[as].Add(1)
	}
}

func (n *Node) countSentBytes(m *msg, length int) {
	n.stats.sendLength.Add(uint64(length))
	m.ni.counts.sendBytes.Add(uint64(length))
	if m.peer != nil {
		m.peer.counts.sendBytes.Add(uint64(length))
	}
}

// countReceived counts a message that was taken in, as type as.
func (n *Node) countReceived(m *msg, as wire.LNetType, length int) {
	n.stats.recvCount.Add(1)
	n.stats.recvLength.Add(uint64(length))
	m.ni.counts.received[as].Add(1)
	m.ni.counts.recvBytes.Add(uint64(length))
	if m.peer != nil {
		m.peer.counts.received[as].Add(1)
		m.peer.counts.recvBytes.Add(uint64(length))
	}
}

// countDrop counts a received message that nothing wanted; its peer is not charged (spec lnet 3.7).
func (n *Node) countDrop(i *ni, h *wire.LNetHeader, from wire.NID) {
	n.stats.dropCount.Add(1)
	n.stats.dropLength.Add(uint64(h.PayloadLength))
	i.counts.dropped[h.Type].Add(1)
	n.drops.note(n, i, h, from)
}

// countSendDrop counts a message that waited for credits until its time was up.
func (n *Node) countSendDrop(m *msg) {
	n.stats.dropCount.Add(1)
	n.stats.dropLength.Add(uint64(m.Hdr.PayloadLength))
	m.ni.counts.dropped[m.Hdr.Type].Add(1)
	m.peer.counts.dropped[m.Hdr.Type].Add(1)
}

// countOutcome keeps health and failure counters after a message came back from the LND (spec lnet 5.2).
func (n *Node) countOutcome(m *msg) {
	if m.Status == 0 {
		m.ni.health.up()
		return
	}
	switch m.Health {
	case o2iblnd.HealthOK:
	case o2iblnd.HealthLocalDropped, o2iblnd.HealthLocalAborted, o2iblnd.HealthLocalError, o2iblnd.HealthLocalTimeout:
		m.ni.local.note(m.Health)
		m.ni.health.lower()
	default:
		n.stats.remote.note(m.Health)
		m.peer.remote.note(m.Health)
		m.peer.health.lower()
	}
	if m.credited {
		m.peer.failed(m.Status, n.cfg.Now())
	}
}

type localFailures struct{ dropped, aborted, timeout, other atomic.Uint64 }

func (f *localFailures) note(h o2iblnd.Health) {
	switch h {
	case o2iblnd.HealthLocalDropped:
		f.dropped.Add(1)
	case o2iblnd.HealthLocalAborted:
		f.aborted.Add(1)
	case o2iblnd.HealthLocalTimeout:
		f.timeout.Add(1)
	default:
		f.other.Add(1)
	}
}

func (f *localFailures) read() LocalFailures {
	return LocalFailures{Dropped: f.dropped.Load(), Aborted: f.aborted.Load(), Timeout: f.timeout.Load(), Error: f.other.Load()}
}

type remoteFailures struct{ dropped, timeout, other, network atomic.Uint64 }

func (f *remoteFailures) note(h o2iblnd.Health) {
	switch h {
	case o2iblnd.HealthRemoteDropped:
		f.dropped.Add(1)
	case o2iblnd.HealthRemoteTimeout:
		f.timeout.Add(1)
	case o2iblnd.HealthNetworkTimeout:
		f.network.Add(1)
	default:
		f.other.Add(1)
	}
}

func (f *remoteFailures) read() RemoteFailures {
	return RemoteFailures{Dropped: f.dropped.Load(), Timeout: f.timeout.Load(), Error: f.other.Load(), NetworkTimeout: f.network.Load()}
}

const (
	maxHealth         = 1000
	healthSensitivity = 100
)

// health is a value from 0 to maxHealth.
type health struct{ v atomic.Int32 }

func (h *health) reset()     { h.v.Store(maxHealth) }
func (h *health) value() int { return int(h.v.Load()) }

func (h *health) up() {
	for {
		v := h.v.Load()
		if v == maxHealth || h.v.CompareAndSwap(v, min(maxHealth, v+healthSensitivity)) {
			return
		}
	}
}

func (h *health) lower() {
	for {
		v := h.v.Load()
		if h.v.CompareAndSwap(v, max(0, v-healthSensitivity)) {
			return
		}
	}
}
