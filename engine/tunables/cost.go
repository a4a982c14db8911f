package tunables

// ConnCost is what one connection takes from the host and the HCA.
type ConnCost struct {
	RecvWRs     int   // receives posted, two of them for NOOPs
	SendWRs     int   // work requests that the send queue must hold
	CQEntries   int   // completions that may be outstanding at once
	BufferBytes int64 // receive buffers
}

// CostOfConn is the cost of a version 2 connection of a queue depth and fragments per message; fastReg
// adds the two work requests that register and invalidate (spec o2iblnd 2.10).
func CostOfConn(depth, frags int, fastReg bool) ConnCost {
	recv := 2*depth + 2
	send := wrsPerSend(frags, fastReg) * depth
	return ConnCost{RecvWRs: recv, SendWRs: send, CQEntries: recv + send, BufferBytes: int64(recv) * MsgSize}
}

// DepthThatFits is the depth that an HCA with room for maxQPWR work requests in a queue pair can hold, at
// most the depth asked for. Below 2 there can be no connection.
func DepthThatFits(depth, frags int, fastReg bool, maxQPWR int) int {
	return min(depth, maxQPWR/wrsPerSend(frags, fastReg))
}

// NICost is what an NI takes before it has a connection.
type NICost struct {
	TxDescs     int   // transmit descriptors in the first pool of every CPT
	TxBytes     int64 // their message buffers
	Regions     int   // memory regions in the first pool of every CPT
	RegionBytes int64 // memory that they can map at once
}

// CostOfNI is the cost of an NI over a number of CPTs (spec o2iblnd 6.2, 6.4).
func CostOfNI(n NI, cpts int) NICost {
	tx, regions := cpts*TxPoolSize(n.NTX, cpts), cpts*FMRPoolSize(n.FMRPoolSize, cpts)
	return NICost{TxDescs: tx, TxBytes: int64(tx) * MsgSize, Regions: regions, RegionBytes: int64(regions) * RegionBytes}
}

// TxPoolSize is the size of the transmit pool of one CPT. cpts is at least 1, here and below.
func TxPoolSize(ntx, cpts int) int { return max(TxPoolMin, ntx/cpts) }

// FMRPoolSize is the size of the registration pool of one CPT.
func FMRPoolSize(size, cpts int) int { return max(FMRPoolMin, size/cpts) }

// FMRFlushTrigger is how many dirty regions of one CPT make it flush.
func FMRFlushTrigger(trigger, cpts int) int { return max(FMRFlushMin, trigger/cpts) }

func wrsPerSend(frags int, fastReg bool) int {
	if fastReg {
		return 1 + frags + 2
	}
	return 1 + frags
}

// Cost is what an NI and each of its peers take, as forms show it before a change. Bytes are of host
// memory; work requests are those of one connection's queue pair.
type Cost struct {
	QueueDepth int   `json:"queue_depth"` // that we offer: peer_credits, or less where the HCA cannot hold that
	ConnBytes  int64 `json:"conn_bytes"`
	PeerBytes  int64 `json:"peer_bytes"` // conns_per_peer connections
	NIBytes    int64 `json:"ni_bytes"`   // message buffers of the first pool of every CPT
	SendWRs    int   `json:"send_wrs"`
	RecvWRs    int   `json:"recv_wrs"`
	CQEntries  int   `json:"cq_entries"`
	MaxQPWR    int   `json:"max_qp_wr"` // that the HCA takes in one queue; 0: not known
}

// CostOf is the cost of n over a number of CPTs, on an HCA that takes maxQPWR work requests in a queue.
func CostOf(n NI, cpts, maxQPWR int) Cost {
	depth := n.PeerCredits
	if maxQPWR > 0 {
		depth = max(1, DepthThatFits(depth, MaxRDMAFrags, true, maxQPWR))
	}
	conn := CostOfConn(depth, MaxRDMAFrags, true)
	return Cost{
		QueueDepth: depth, ConnBytes: conn.BufferBytes, PeerBytes: int64(n.ConnsPerPeer) * conn.BufferBytes, NIBytes: CostOfNI(n, cpts).TxBytes,
		SendWRs: conn.SendWRs, RecvWRs: conn.RecvWRs, CQEntries: conn.CQEntries, MaxQPWR: maxQPWR,
	}
}
