package sample

import (
	"fmt"

	"o2ibd/engine"
	"o2ibd/engine/wire"
)

// reading is what a source stands at, a value a metric, in the order of metrics.
type reading struct {
	source string
	values []float64
}

// sources reads everything but peers: the total first, then NIs, pools and schedulers.
func sources(s *engine.Snapshot) []reading {
	type sums struct {
		sent, received, queued uint64
		reconnects             uint64
	}
	of := make(map[wire.NID]*sums, len(s.Nets))
	for i := range s.Nets {
		of[s.Nets[i].NID] = &sums{}
	}
	connected, others, queued := 0, 0, 0
	for i := range s.Peers {
		p := &s.Peers[i]
		if p.State == "connected" {
			connected++
		} else {
			others++
		}
		queued += p.TxQueued
		if n := of[p.NI]; n != nil {
			n.sent, n.received, n.queued = n.sent+p.SendBytes, n.received+p.RecvBytes, n.queued+uint64(p.TxQueued)
		}
	}
	var stalls, reconnects uint64
	for i := range s.Conns {
		stalls += s.Conns[i].CreditStalls
	}
	for i := range s.Nets {
		reconnects += s.Nets[i].Reconnects
	}
	c := &s.Stats
	list := []reading{{KindTotal, floats(
		c.SendCount, c.RecvCount, c.SendLength, c.RecvLength, c.DropCount, reconnects, stalls,
		uint64(queued), uint64(len(s.Conns)), uint64(connected), uint64(others),
	)}}
	for i := range s.Nets {
		n := &s.Nets[i]
		o := of[n.NID]
		list = append(list, reading{KindNI + "/" + n.ID, append(floats(
			n.SendCount, n.RecvCount, o.sent, o.received, n.DropCount, n.Reconnects, n.ConnectsFailed, n.RejectsSent+n.RejectsReceived,
		), float64(n.AvailableCredits), float64(o.queued), float64(n.Conns), float64(n.Peers))})
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		list = append(list, reading{fmt.Sprintf("%s/%s/%s/%d", KindPool, p.Kind, p.Net, p.CPT), []float64{float64(p.Used), float64(p.Size), float64(p.GrowFailed)}})
	}
	for i := range s.Schedulers {
		x := &s.Schedulers[i]
		list = append(list, reading{fmt.Sprintf("%s/%d.%d", KindScheduler, x.CPT, x.ID&0xffff), floats(x.Completions, x.Wakeups, uint64(x.Conns))})
	}
	return list
}

// peerSources reads the peers that are wanted.
func peerSources(s *engine.Snapshot, wanted map[string]bool) []reading {
	type sums struct{ credits, owed, stalls int }
	of := make(map[string]*sums, len(wanted))
	for i := range s.Conns {
		c := &s.Conns[i]
		if !wanted[c.Peer] {
			continue
		}
		n := of[c.Peer]
		if n == nil {
			n = &sums{}
			of[c.Peer] = n
		}
		n.credits, n.owed, n.stalls = n.credits+c.Credits, n.owed+c.OutstandingCredits, n.stalls+int(c.CreditStalls)
	}
	var list []reading
	for i := range s.Peers {
		p := &s.Peers[i]
		if !wanted[p.ID] {
			continue
		}
		n := of[p.ID]
		if n == nil {
			n = &sums{}
		}
		list = append(list, reading{KindPeer + "/" + p.ID, append(floats(p.SendCount, p.RecvCount, p.SendBytes, p.RecvBytes, p.Reconnects),
			float64(n.stalls), float64(n.credits), float64(n.owed), float64(p.AvailableCredits), float64(p.TxQueued))})
	}
	return list
}

func floats(values ...uint64) []float64 {
	list := make([]float64, len(values), len(values)+6)
	for i, v := range values {
		list[i] = float64(v)
	}
	return list
}
