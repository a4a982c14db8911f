package live

import (
	"fmt"

	"o2ibd/engine"
)

// Overview is the only row of the view overview.
type Overview struct {
	ID            string `json:"id"`
	TakenAt       int64  `json:"taken_at"`
	NetsUp        int    `json:"nets_up"`
	Nets          int    `json:"nets"`
	Peers         int    `json:"peers"`
	PeersUp       int    `json:"peers_connected"`
	PeersDown     int    `json:"peers_down"`
	Conns         int    `json:"conns"`
	TxQueued      int    `json:"tx_queued"`
	CreditStalls  uint64 `json:"credit_stalls"`
	SendCount     uint64 `json:"send_count"`
	RecvCount     uint64 `json:"recv_count"`
	DropCount     uint64 `json:"drop_count"`
	SendLength    uint64 `json:"send_length"`
	RecvLength    uint64 `json:"recv_length"`
	Reconnects    uint64 `json:"reconnects"`
	PoolSize      int    `json:"pool_size"`
	PoolUsed      int    `json:"pool_used"`
	RejectsSent   uint64 `json:"rejects_sent"`
	RejectsRecvd  uint64 `json:"rejects_received"`
	StaleConns    uint64 `json:"stale"`
	CksumErrors   uint64 `json:"cksum_errors"`
	UnpackErrors  uint64 `json:"unpack_errors"`
	ResponseLate  uint64 `json:"response_timeout_count"`
	MsgsAlloc     uint64 `json:"msgs_alloc"`
	Establishings int    `json:"conns_in_set_up"`
	Verdict       string `json:"verdict"` // well, warning, error
	Summary       string `json:"summary"` // the verdict in words
}

// Summarize makes the overview of a snapshot.
func Summarize(s *engine.Snapshot) Overview {
	o := Overview{
		ID: "overview", TakenAt: s.TakenAt, Nets: len(s.Nets), Peers: len(s.Peers), Conns: len(s.Conns),
		SendCount: s.Stats.SendCount, RecvCount: s.Stats.RecvCount, DropCount: s.Stats.DropCount,
		SendLength: s.Stats.SendLength, RecvLength: s.Stats.RecvLength, ResponseLate: s.Stats.ResponseTimeoutCount, MsgsAlloc: s.Stats.MsgsAlloc,
	}
	for i := range s.Nets {
		n := &s.Nets[i]
		if n.Status == "up" {
			o.NetsUp++
		}
		o.Reconnects += n.Reconnects
		o.RejectsSent += n.RejectsSent
		o.RejectsRecvd += n.RejectsReceived
		o.StaleConns += n.Stale
		o.CksumErrors += n.CksumErrors
		o.UnpackErrors += n.UnpackErrors
	}
	for i := range s.Peers {
		switch s.Peers[i].State {
		case "connected":
			o.PeersUp++
		case "down":
			o.PeersDown++
		}
		o.TxQueued += s.Peers[i].TxQueued
	}
	for i := range s.Conns {
		c := &s.Conns[i]
		o.CreditStalls += c.CreditStalls
		o.TxQueued += c.TxQueue + c.TxQueueRsrvd + c.TxQueueNocred + c.TxNoops
		if c.State == "active_connect" || c.State == "passive_wait" {
			o.Establishings++
		}
	}
	for i := range s.Pools {
		o.PoolSize += s.Pools[i].Size
		o.PoolUsed += s.Pools[i].Used
	}
	o.Verdict, o.Summary = verdict(&o, s)
	return o
}

// verdict answers the first question: is the fabric well?
func verdict(o *Overview, s *engine.Snapshot) (verdict, summary string) {
	worst := "well"
	for _, t := range Troubles(s) {
		if worst = t.Severity; worst == "error" {
			break // errors come first
		}
	}
	switch {
	case o.Nets == 0:
		return "warning", "No NI: this node is on no o2ib network."
	case worst == "well":
		return worst, fmt.Sprintf("The fabric is well: %d of %d NIs up, %d of %d peers connected.", o.NetsUp, o.Nets, o.PeersUp, o.Peers)
	}
	text := fmt.Sprintf("%d of %d NIs up, %d of %d peers connected", o.NetsUp, o.Nets, o.PeersUp, o.Peers)
	if o.PeersDown > 0 {
		text += fmt.Sprintf(", %d down", o.PeersDown)
	}
	if o.TxQueued > 0 {
		text += fmt.Sprintf(", %d messages wait", o.TxQueued)
	}
	return worst, "Not all is well: " + text + "."
}
