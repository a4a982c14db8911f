package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"o2ibd/engine/lnet"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// peerID is the ID of a peer's row.
func peerID(ni, nid wire.NID) string { return ni.String() + ">" + nid.String() }

// ms is a time for JSON: milliseconds since the epoch, nil for never.
func ms(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	return msOf(t.UnixMilli())
}

func msOf(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

// Snapshot assembles the whole state. It slows no scheduler, but is not free: share it between readers.
func (e *Engine) Snapshot() *Snapshot {
	st := e.lnd.Snapshot()
	s := &Snapshot{TakenAt: time.Now().UnixMilli(), Nets: []Net{}, Devices: []Device{}, Peers: []Peer{}, Conns: []Conn{}, Pools: []Pool{}, Schedulers: []Scheduler{}}
	lnis := e.node.NIs()
	for _, spec := range e.cfg.NIs {
		nid := spec.NID()
		n := Net{ID: nid.String(), NID: nid, Net: nid.Net().String(), Status: "down", Provider: e.cfg.Provider.Name(), MaxFrags: wire.MaxFragsOffer,
			RejectsSentBy: map[string]uint64{}, RejectsReceivedBy: map[string]uint64{}, UnpackErrorsBy: map[string]uint64{}}
		if i := slices.IndexFunc(st.NIs, func(x o2iblnd.NIState) bool { return x.NID == nid }); i >= 0 {
			fillNet(&n, &st.NIs[i])
		}
		if i := slices.IndexFunc(lnis, func(x lnet.NIInfo) bool { return x.NID == nid }); i >= 0 {
			l := &lnis[i]
			n.AvailableCredits, n.MinCredits = l.Available, l.MinCredits
			n.SendCount, n.RecvCount, n.DropCount = l.Traffic.Sent.Sum(), l.Traffic.Received.Sum(), l.Traffic.Dropped.Sum()
		}
		s.Nets = append(s.Nets, n)
	}
	for _, d := range st.Devices {
		s.Devices = append(s.Devices, device(d.DeviceInfo, e.cfg.Provider.Name()))
	}
	s.Peers = e.peers(st.Peers)
	for i := range st.Conns {
		s.Conns = append(s.Conns, conn(&st.Conns[i]))
	}
	slices.SortFunc(s.Conns, func(a, b Conn) int {
		return strings.Compare(a.Peer+fmt.Sprintf("%12s", a.ID), b.Peer+fmt.Sprintf("%12s", b.ID))
	})
	for _, p := range st.Pools {
		s.Pools = append(s.Pools, Pool{
			ID: fmt.Sprintf("%s %v cpt %d", p.Kind, p.NI, p.CPT), Kind: p.Kind, Net: p.NI.Net().String(), CPT: p.CPT,
			Size: p.Size, Used: p.Used, Pools: p.Pools, FailedPools: p.FailedPools, Grows: uint64(p.Grows), Shrinks: uint64(p.Shrinks),
			GrowFailed: uint64(p.GrowFailures), Maps: p.Maps, CacheHits: p.Hits, Flushes: p.Flushes, MapFailures: p.Failures, NextRetryAt: ms(p.NextRetry), DeadlineAt: ms(p.Deadline),
		})
	}
	for _, x := range st.Schedulers {
		s.Schedulers = append(s.Schedulers, Scheduler{ID: x.ID, CPT: x.CPT, Conns: x.Conns, Completions: x.Completions, Rearms: x.Rearms, Wakeups: x.Wakeups})
	}
	c := e.node.Stats()
	s.Stats = Stats{
		MsgsAlloc: c.MsgsAlloc, MsgsMax: c.MsgsMax, SendCount: c.SendCount, RecvCount: c.RecvCount, DropCount: c.DropCount,
		SendLength: c.SendLength, RecvLength: c.RecvLength, DropLength: c.DropLength, ResponseTimeoutCount: c.ResponseTimeoutCount,
	}
	return s
}

func fillNet(n *Net, x *o2iblnd.NIState) {
	if x.Up {
		n.Status = "up"
	}
	n.Incarnation = fmt.Sprintf("%#x", x.Incarnation)
	n.Interface, n.Device, n.Service = x.Interface, x.Device, x.Service
	n.PeerCredits, n.PeerCreditsHiw = x.Tunables.PeerCredits, x.Tunables.PeerCreditsHiw
	n.ConcurrentSends, n.Credits = x.Tunables.ConcurrentSends, x.Tunables.Credits
	n.Peers, n.Conns = x.Peers, x.Conns
	n.ConnectsActive, n.ConnectsPassive, n.Established, n.ConnectsFailed = x.ConnectsActive, x.ConnectsPassive, x.Established, x.Failed
	n.RejectsSent, n.RejectsReceived, n.Races, n.Stale, n.Reconnects = x.RejectsSent, x.RejectsReceived, x.Races, x.Stale, x.Reconnects
	n.CksumErrors, n.UnpackErrors = x.CksumErrors, x.UnpackErrors
	n.RejectsSentBy, n.RejectsReceivedBy, n.UnpackErrorsBy = x.RejectsSentBy, x.RejectsReceivedBy, x.UnpackErrorsBy
}

func device(d verbs.DeviceInfo, provider string) Device {
	state := "unknown"
	switch d.State {
	case verbs.PortActive:
		state = "active"
	case verbs.PortDown:
		state = "down"
	}
	return Device{
		ID: d.Name + " " + d.Addr.String(), Name: d.Name, Interface: d.Interface, Addr: d.Addr.String(), Provider: provider,
		LinkLayer: d.LinkLayer, State: state, MTU: d.MTU, Firmware: d.Firmware, MaxQPWR: d.Caps.MaxQPWR, MaxSGE: d.Caps.MaxSGE,
	}
}

// peers joins what LNet remembers with what the LND has: a peer that only LNet knows is down.
func (e *Engine) peers(have []o2iblnd.PeerState) []Peer {
	rows := []Peer{}
	at := make(map[string]int)
	for _, l := range e.node.Peers() {
		p := Peer{
			ID: peerID(l.NI, l.NID), NID: l.NID, NI: l.NI, Net: l.NID.Net().String(), State: "down",
			Error: l.Error, ErrorAt: ms(l.ErrorAt), LastAliveAt: ms(l.LastAlive), TxQueued: l.Queued,
			AvailableCredits: l.Available, MinCredits: l.MinCredits,
			SendCount: l.Traffic.Sent.Sum(), RecvCount: l.Traffic.Received.Sum(), DropCount: l.Traffic.Dropped.Sum(),
			SendBytes: l.Traffic.SendBytes, RecvBytes: l.Traffic.RecvBytes,
		}
		at[p.ID] = len(rows)
		rows = append(rows, p)
	}
	for i := range have {
		x := &have[i]
		id := peerID(x.NI, x.NID)
		k, ok := at[id]
		if !ok {
			k = len(rows)
			rows = append(rows, Peer{ID: id, NID: x.NID, NI: x.NI, Net: x.NID.Net().String()})
		}
		p := &rows[k]
		switch {
		case x.Conns > 0:
			p.State = "connected"
		case x.Reconnecting:
			p.State = "reconnecting"
		case x.Connecting:
			p.State = "connecting"
		}
		p.Conns, p.Version, p.Incarnation = x.Conns, int(x.Version), fmt.Sprintf("%#x", x.Incarnation)
		p.QueueDepth, p.MaxFrags, p.Reconnects, p.Races = x.QueueDepth, x.MaxFrags, x.Reconnects, x.Races
		p.TxQueued += x.TxQueued
		if !x.LastAlive.IsZero() {
			p.LastAliveAt = ms(x.LastAlive)
		}
	}
	slices.SortFunc(rows, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	return rows
}

func conn(c *o2iblnd.ConnState) Conn {
	return Conn{
		ID: fmt.Sprint(c.ID), Peer: peerID(c.NI, c.NID), NID: c.NID, State: c.State, Direction: c.Direction, Version: int(c.Version),
		Credits: c.Credits, OutstandingCredits: c.Outstanding, ReservedCredits: c.Reserved, QueueDepth: c.Depth, HighWater: c.HighWater,
		MaxFrags: c.MaxFrags, SendsPosted: c.SendsPosted, NoopsPosted: c.NoopsPosted, TxQueue: c.TxQueue, TxQueueNocred: c.TxQueueNocred,
		TxQueueRsrvd: c.TxQueueRsrvd, TxNoops: c.TxNoops, ActiveTxs: c.ActiveTxs, RxPosted: c.RxPosted,
		LastSendAt: msOf(c.LastSend), EstablishedAt: msOf(c.Since), Incarnation: fmt.Sprintf("%#x", c.Incarnation),
		Scheduler: c.Scheduler, Device: c.Device, QPNum: c.QPNum, Exposure: c.Exposure, Cksum: c.Cksum.String(),
		TxMsgs: c.TxMsgs, RxMsgs: c.RxMsgs, TxBytes: c.TxBytes, RxBytes: c.RxBytes, RDMAWrites: c.Writes,
		NoopsSent: c.NoopsSent, NoopsReceived: c.NoopsReceived, CreditStalls: c.CreditStalls,
	}
}
