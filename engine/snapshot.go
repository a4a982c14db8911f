package engine

import "o2ibd/engine/wire"

// Snapshot is the whole state of the engine at one moment: immutable, shared by all readers. Times are
// milliseconds since the epoch, nil where there is none; opaque 64-bit values are "0x…" strings.
type Snapshot struct {
	TakenAt    int64       `json:"taken_at"`
	Nets       []Net       `json:"nets"`
	Devices    []Device    `json:"devices"`
	Peers      []Peer      `json:"peers"`
	Conns      []Conn      `json:"conns"`
	Pools      []Pool      `json:"pools"`
	Schedulers []Scheduler `json:"schedulers"`
	Stats      Stats       `json:"stats"`
}

// Net is one NI of ours.
type Net struct {
	ID               string   `json:"id"` // the NID
	NID              wire.NID `json:"nid"`
	Net              string   `json:"net"`    // "o2ib1"
	Status           string   `json:"status"` // up, down
	Incarnation      string   `json:"incarnation"`
	Interface        string   `json:"interface"`
	Device           string   `json:"device"`
	Provider         string   `json:"provider"`
	Service          int      `json:"service"` // port
	PeerCredits      int      `json:"peer_credits"`
	PeerCreditsHiw   int      `json:"peercredits_hiw"`
	ConcurrentSends  int      `json:"concurrent_sends"`
	Credits          int      `json:"credits"`
	AvailableCredits int      `json:"available_credits"`
	MinCredits       int      `json:"min_credits"`
	MaxFrags         int      `json:"max_frags"`
	Peers            int      `json:"peers"`
	Conns            int      `json:"conns"`
	SendCount        uint64   `json:"send_count"`
	RecvCount        uint64   `json:"recv_count"`
	DropCount        uint64   `json:"drop_count"`
	ConnectsActive   uint64   `json:"connects_active"`
	ConnectsPassive  uint64   `json:"connects_passive"`
	Established      uint64   `json:"established"`
	ConnectsFailed   uint64   `json:"connects_failed"`
	RejectsSent      uint64   `json:"rejects_sent"`
	RejectsReceived  uint64   `json:"rejects_received"`
	Races            uint64   `json:"races"`
	Stale            uint64   `json:"stale"`
	Reconnects       uint64   `json:"reconnects"`
	CksumErrors      uint64   `json:"cksum_errors"`
	UnpackErrors     uint64   `json:"unpack_errors"`

	// By reason, those that occurred. EARLY is not in the sums above: it is about when, not what.
	RejectsSentBy     map[string]uint64 `json:"rejects_sent_by"`
	RejectsReceivedBy map[string]uint64 `json:"rejects_received_by"`
	UnpackErrorsBy    map[string]uint64 `json:"unpack_errors_by"`
}

// Device is an HCA and its port.
type Device struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Interface string `json:"interface"`
	Addr      string `json:"addr"`
	Provider  string `json:"provider"`
	LinkLayer string `json:"link_layer"`
	State     string `json:"state"` // active, down, unknown
	MTU       int    `json:"mtu"`
	Firmware  string `json:"firmware"`
	MaxQPWR   int    `json:"max_qp_wr"`
	MaxSGE    int    `json:"max_sge"`
}

// Peer is a remote NID as seen from one NI of ours: what LNet remembers of it, joined with the LND's
// peer while that has connections or attempts.
type Peer struct {
	ID               string   `json:"id"` // "NI>NID"
	NID              wire.NID `json:"nid"`
	NI               wire.NID `json:"ni"`
	Net              string   `json:"net"`
	State            string   `json:"state"` // connecting, connected, reconnecting, down
	Conns            int      `json:"conns"`
	Version          int      `json:"version"` // 0x11, 0x12, 0 = never talked
	Incarnation      string   `json:"incarnation"`
	QueueDepth       int      `json:"queue_depth"`
	MaxFrags         int      `json:"max_frags"`
	LastAliveAt      *int64   `json:"last_alive_at"`
	Reconnects       uint64   `json:"reconnects"`
	Races            int      `json:"races"`
	Error            string   `json:"error"` // "" or why it is down, in operators' words
	ErrorAt          *int64   `json:"error_at"`
	TxQueued         int      `json:"tx_queued"`
	AvailableCredits int      `json:"available_tx_credits"`
	MinCredits       int      `json:"min_tx_credits"`
	SendCount        uint64   `json:"send_count"`
	RecvCount        uint64   `json:"recv_count"`
	DropCount        uint64   `json:"drop_count"`
	SendBytes        uint64   `json:"send_bytes"`
	RecvBytes        uint64   `json:"recv_bytes"`
}

// Conn is one connection.
type Conn struct {
	ID                 string   `json:"id"`
	Peer               string   `json:"peer"` // a Peer's ID
	NID                wire.NID `json:"nid"`
	State              string   `json:"state"`     // init, active_connect, passive_wait, established, closing, disconnected
	Direction          string   `json:"direction"` // active, passive
	Version            int      `json:"version"`
	Credits            int      `json:"credits"`
	OutstandingCredits int      `json:"outstanding_credits"`
	ReservedCredits    int      `json:"reserved_credits"`
	QueueDepth         int      `json:"queue_depth"`
	HighWater          int      `json:"high_water"`
	MaxFrags           int      `json:"max_frags"`
	SendsPosted        int      `json:"sends_posted"`
	NoopsPosted        int      `json:"noops_posted"`
	TxQueue            int      `json:"tx_queue"`
	TxQueueNocred      int      `json:"tx_queue_nocred"`
	TxQueueRsrvd       int      `json:"tx_queue_rsrvd"`
	TxNoops            int      `json:"tx_noops"`
	ActiveTxs          int      `json:"active_txs"`
	RxPosted           int      `json:"rx_posted"`
	LastSendAt         *int64   `json:"last_send_at"`
	EstablishedAt      *int64   `json:"established_at"`
	Incarnation        string   `json:"incarnation"`
	Scheduler          int      `json:"scheduler"`
	Device             string   `json:"device"`
	QPNum              uint32   `json:"qp_num"`
	Exposure           string   `json:"exposure"` // transfer, cached, device: how long a remote key is valid
	Cksum              string   `json:"cksum"`    // none, signed, unsigned: what the peer's checksums are
	TxMsgs             uint64   `json:"tx_msgs"`
	RxMsgs             uint64   `json:"rx_msgs"`
	TxBytes            uint64   `json:"tx_bytes"` // payload: immediate and RDMA
	RxBytes            uint64   `json:"rx_bytes"`
	RDMAWrites         uint64   `json:"rdma_writes"`
	NoopsSent          uint64   `json:"noops_sent"`
	NoopsReceived      uint64   `json:"noops_received"`
	CreditStalls       uint64   `json:"credit_stalls"` // times that a message had to wait for a credit
}

// Pool is one pool set.
type Pool struct {
	ID          string `json:"id"`
	Kind        string `json:"kind"` // tx, fmr
	Net         string `json:"net"`
	CPT         int    `json:"cpt"`
	Size        int    `json:"size"` // descriptors in all pools
	Used        int    `json:"used"`
	Pools       int    `json:"pools"`
	FailedPools int    `json:"failed_pools"`
	Grows       uint64 `json:"grows"`
	Shrinks     uint64 `json:"shrinks"`
	GrowFailed  uint64 `json:"grow_failed"`
	Maps        uint64 `json:"maps"`         // fmr: registrations for a transfer
	CacheHits   uint64 `json:"cache_hits"`   // fmr: of them, found in the cache
	Flushes     uint64 `json:"flushes"`      // fmr: of the cache
	MapFailures uint64 `json:"map_failures"` // fmr
	NextRetryAt *int64 `json:"next_retry_at"`
	DeadlineAt  *int64 `json:"deadline_at"` // when the last extra pool may go
}

// Scheduler is one scheduler goroutine.
type Scheduler struct {
	ID          int    `json:"id"` // CPT << 16 | index
	CPT         int    `json:"cpt"`
	Conns       int    `json:"conns"`
	Completions uint64 `json:"completions"`
	Rearms      uint64 `json:"rearms"`
	Wakeups     uint64 `json:"wakeups"`
}

// Stats are LNet's counters, named as lnetctl does.
type Stats struct {
	MsgsAlloc            uint64 `json:"msgs_alloc"`
	MsgsMax              uint64 `json:"msgs_max"`
	Errors               uint64 `json:"errors"`
	SendCount            uint64 `json:"send_count"`
	RecvCount            uint64 `json:"recv_count"`
	RouteCount           uint64 `json:"route_count"`
	DropCount            uint64 `json:"drop_count"`
	SendLength           uint64 `json:"send_length"`
	RecvLength           uint64 `json:"recv_length"`
	RouteLength          uint64 `json:"route_length"`
	DropLength           uint64 `json:"drop_length"`
	ResponseTimeoutCount uint64 `json:"response_timeout_count"`
}

// Event is something that happened, in operators' words.
type Event struct {
	At       int64             `json:"at"`
	Kind     string            `json:"kind"`     // conn_established, conn_closed, reject_sent, reject_received, connect_failed, peer_down, device, protocol, pool, listener …
	Severity string            `json:"severity"` // info, warning, error
	NI       string            `json:"ni,omitempty"`
	Peer     string            `json:"peer,omitempty"` // NID
	Conn     string            `json:"conn,omitempty"`
	Text     string            `json:"text"`
	Data     map[string]string `json:"data,omitempty"` // the numbers that matter
}
