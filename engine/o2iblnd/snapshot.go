package o2iblnd

import (
	"strconv"
	"sync/atomic"
	"time"

	"o2ibd/engine/o2iblnd/pool"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// State is the LND's part of a snapshot: values only, the reader's to keep.
type State struct {
	NIs        []NIState
	Devices    []DeviceState
	Peers      []PeerState
	Conns      []ConnState
	Pools      []PoolState
	Schedulers []SchedulerState
	Refused    map[string]uint64 // requests for no NI of ours, by the reason given
}

// NIState of one NI.
type NIState struct {
	NID                                                    wire.NID
	Incarnation                                            uint64
	Device                                                 string
	Interface                                              string
	Service                                                int
	Up                                                     bool
	Tunables                                               tunables.NI
	Peers, Conns                                           int
	ConnectsActive, ConnectsPassive, Established, Failed   uint64
	RejectsSent, RejectsReceived, Races, Stale, Reconnects uint64
	CksumErrors, UnpackErrors                              uint64
	RejectsSentBy, RejectsReceivedBy, UnpackErrorsBy       map[string]uint64
}

// DeviceState of one device.
type DeviceState struct {
	verbs.DeviceInfo
}

// PeerState of one peer that has connections or attempts.
type PeerState struct {
	NI, NID              wire.NID
	Version              wire.Version
	Incarnation          uint64
	Conns                int
	Connecting           bool
	Reconnecting         bool
	QueueDepth, MaxFrags int
	LastAlive            time.Time
	Reconnects           uint64
	Races                int
	TxQueued             int
}

// ConnState of one connection.
type ConnState struct {
	ID                                                                               uint64
	NI, NID                                                                          wire.NID
	State                                                                            string
	Direction                                                                        string
	Device, Exposure                                                                 string
	Scheduler                                                                        int
	QPNum                                                                            uint32
	Version                                                                          wire.Version
	Incarnation                                                                      uint64
	Credits, Outstanding, Reserved, Depth, HighWater, MaxFrags                       int
	SendsPosted, NoopsPosted                                                         int
	TxQueue, TxQueueNocred, TxQueueRsrvd, TxNoops, ActiveTxs, RxPosted               int
	LastSend, Since                                                                  int64 // ms since the epoch, 0: never
	Cksum                                                                            wire.CksumKind
	TxMsgs, RxMsgs, TxBytes, RxBytes, Writes, NoopsSent, NoopsReceived, CreditStalls uint64
}

// PoolState of one pool set.
type PoolState struct {
	NI   wire.NID
	CPT  int
	Kind string // tx, fmr
	pool.Stats
	RegCounts // of an fmr pool
}

// SchedulerState of one scheduler.
type SchedulerState struct {
	ID, CPT, Conns               int
	Completions, Rearms, Wakeups uint64
}

// Snapshot reads the state. Any goroutine may call it; schedulers do not notice.
func (l *LND) Snapshot() State {
	d := l.connd
	d.mu.Lock()
	defer d.mu.Unlock()
	var st State
	for _, n := range *l.nis.Load() {
		info := n.dev.info()
		st.NIs = append(st.NIs, NIState{
			NID: n.nid, Incarnation: n.incarnation, Device: info.Name, Interface: info.Interface,
			Service: n.dev.service, Up: n.dev.up(), Tunables: *n.tun.Load(), Peers: int(n.npeers.Load()), Conns: int(n.nconns.Load()),
			ConnectsActive: n.connectsActive.Load(), ConnectsPassive: n.connectsPassive.Load(), Established: n.established.Load(), Failed: n.failed.Load(),
			Races: n.races.Load(), Stale: n.stale.Load(), Reconnects: n.reconnects.Load(),
			CksumErrors: n.cksumErrors.Load(),
		})
		ns := &st.NIs[len(st.NIs)-1]
		ns.RejectsSentBy, ns.RejectsSent = n.rejectsSent.read()
		ns.RejectsReceivedBy, ns.RejectsReceived = n.rejectsReceived.read()
		ns.UnpackErrorsBy, ns.UnpackErrors = n.unpackErrors.read()
		for cpt, t := range n.txs {
			st.Pools = append(st.Pools, PoolState{NI: n.nid, CPT: cpt, Kind: "tx", Stats: t.Stats()})
		}
		for cpt, r := range n.regs {
			st.Pools = append(st.Pools, PoolState{NI: n.nid, CPT: cpt, Kind: "fmr", Stats: r.set.Stats(), RegCounts: r.counts()})
		}
	}
	st.Refused, _ = l.refused.read()
	for _, v := range d.devices {
		st.Devices = append(st.Devices, DeviceState{v.info()})
	}
	l.peers.each(func(p *peer) {
		ps := PeerState{
			NI: p.ni.nid, NID: p.nid, Version: p.version, Incarnation: p.incarnation, Conns: len(p.conns),
			Connecting: p.connecting > 0 || p.accepting > 0, Reconnecting: p.reconnecting > 0 || p.reconnected > 0,
			QueueDepth: p.queueDepth, MaxFrags: p.maxFrags, Reconnects: p.reconnects, Races: p.races, TxQueued: len(p.txq),
		}
		if ms := p.lastAlive.Load(); ms > 0 {
			ps.LastAlive = time.UnixMilli(ms)
		}
		st.Peers = append(st.Peers, ps)
	})
	for _, c := range d.conns {
		st.Conns = append(st.Conns, c.read())
	}
	for _, s := range l.scheds {
		st.Schedulers = append(st.Schedulers, SchedulerState{ID: s.id, CPT: s.cpt, Conns: int(s.npub.Load()),
			Completions: s.completions.Load(), Rearms: s.rearms.Load(), Wakeups: s.wakeups.Load()})
	}
	return st
}

// failureData are the numbers of a conn that fails, as they were when it did.
func (c *conn) failureData(errno Errno) map[string]string {
	p := &c.pub
	data := map[string]string{"errno": errno.Error()}
	for name, n := range map[string]*atomic.Int32{
		"credits": &p.credits, "outstanding_credits": &p.outstanding, "reserved_credits": &p.reserved, "queue_depth": &p.depth,
		"tx_queue": &p.txQueue, "tx_queue_nocred": &p.txNocred, "tx_queue_rsrvd": &p.txRsrvd, "tx_noops": &p.txNoops, "active_txs": &p.activeTxs,
	} {
		data[name] = strconv.Itoa(int(n.Load()))
	}
	return data
}

// read gives a conn's published counters.
func (c *conn) read() ConnState {
	p := &c.pub
	return ConnState{
		ID: c.id, NI: c.ni.nid, NID: c.peer.nid, State: connState(p.state.Load()).String(), Direction: c.direction(),
		Device: c.hdev.info.Name, Exposure: string(c.ni.regs[0].expose), Scheduler: c.sched.id, QPNum: c.qp.Num(), Version: c.version, Incarnation: p.incarnation.Load(),
		Credits: int(p.credits.Load()), Outstanding: int(p.outstanding.Load()), Reserved: int(p.reserved.Load()),
		Depth: int(p.depth.Load()), HighWater: int(p.highWater.Load()), MaxFrags: int(p.maxFrags.Load()),
		SendsPosted: int(p.sendsPosted.Load()), NoopsPosted: int(p.noopsPosted.Load()),
		TxQueue: int(p.txQueue.Load()), TxQueueNocred: int(p.txNocred.Load()), TxQueueRsrvd: int(p.txRsrvd.Load()),
		TxNoops: int(p.txNoops.Load()), ActiveTxs: int(p.activeTxs.Load()), RxPosted: int(p.nrx.Load()),
		LastSend: p.lastSend.Load(), Since: p.ready.Load(), Cksum: wire.CksumKind(p.cksum.Load()),
		TxMsgs: p.txMsgs.Load(), RxMsgs: p.rxMsgs.Load(), TxBytes: p.txBytes.Load(), RxBytes: p.rxBytes.Load(),
		Writes: p.writes.Load(), NoopsSent: p.noopsSent.Load(), NoopsReceived: p.noopsReceived.Load(), CreditStalls: p.creditStall.Load(),
	}
}
