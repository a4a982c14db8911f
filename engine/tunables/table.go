package tunables

import (
	"math"
	"strings"
)

// Kind is how a value is written.
type Kind string

const (
	Int    Kind = "int"
	Enum   Kind = "enum"
	String Kind = "string"
)

// Effect says from when on a changed value counts.
type Effect string

const (
	AtOnce        Effect = "at once"
	NewConns      Effect = "new connections"
	NIRestart     Effect = "NI restart"
	EngineRestart Effect = "engine restart"
)

// Group gathers tunables that belong together in a form.
type Group string

const (
	GroupCredits  Group = "Credits and queues"
	GroupTimeouts Group = "Timeouts and liveness"
	GroupConns    Group = "Connections"
	GroupMemory   Group = "Memory and registration"
	GroupPorts    Group = "Ports and interfaces"
	GroupChecks   Group = "Checksums and compatibility"
)

// Tunable describes one tunable.
type Tunable struct {
	Name    string // as the kernel module calls it
	Aliases []string
	Kind    Kind
	Unit    string   // what one unit is: "s", "messages", …
	Min     int64    // Int: smallest value that is taken
	Max     int64    // Int: largest; String: longest, in bytes
	Allowed []string // Enum: the only values that are taken
	Default string
	Group   Group
	PerNet  bool // may be set for a single net as well as globally
	Effect  Effect
	Derived string // how the engine comes from the value to what it uses; "" where it uses the value
	Help    string
}

// Flag says whether t is an int that only switches something off (0) or on (1).
func (t Tunable) Flag() bool { return t.Kind == Int && t.Min == 0 && t.Max == 1 }

// Limits of the engine, named as the kernel's header does where it has a name (spec o2iblnd 9.3, 6).
const (
	CreditsDefault  = 8    // least peer_credits
	CreditsMax      = 255  // most that the 8-bit credit field of a message can carry
	MaxRDMAFrags    = 256  // fragments that we offer
	MsgSize         = 4096 // bytes of a message buffer
	RegionBytes     = 1 << 20
	TxPoolMin       = 256
	FMRPoolMin      = 256
	FMRFlushMin     = 192
	LNetLNDTimeoutS = 49 // what timeout 0 stands for: (transaction timeout 150 s - 1) / (2 retries + 1)
)

const maxInt = math.MaxInt32

// All is the table of every tunable, in the order in which forms show them.
var All = []Tunable{
	{
		Name: "peer_credits", Aliases: []string{"peertxcredits", "peer_tx_credits"},
		Kind: Int, Unit: "messages", Min: 0, Max: 65535, Default: "8",
		Group: GroupCredits, PerNet: true, Effect: NIRestart,
		Derived: "raised to 8, lowered to 255, then lowered to credits",
		Help:    "Messages that may be under way to one peer at once; also the queue depth that we offer and accept. If two hosts differ, the one that asks for more is refused once and comes back with less.",
	},
	{
		Name: "peer_credits_hiw", Aliases: []string{"peercredits_hiw", "lnd_peercredits_hiw"},
		Kind: Int, Unit: "messages", Min: 0, Max: 65535, Default: "0",
		Group: GroupCredits, PerNet: true, Effect: NIRestart,
		Derived: "0: half of peer_credits; else kept between half of peer_credits and peer_credits - 1",
		Help:    "High-water mark: when we owe a peer this many credits and have no message to carry them, they go back in a NOOP. A conn whose depth was negotiated down uses it in proportion.",
	},
	{
		Name: "credits", Aliases: []string{"maxtxcredits", "max_tx_credits"},
		Kind: Int, Unit: "messages", Min: 1, Max: 65535, Default: "256",
		Group: GroupCredits, PerNet: true, Effect: NIRestart,
		Help: "Messages that an NI may have under way to all its peers together. Fewer than peer_credits times the active peers makes peers wait for one another.",
	},
	{
		Name: "concurrent_sends", Aliases: []string{"lnd_concurrent_sends"},
		Kind: Int, Unit: "messages", Min: 0, Max: 65535, Default: "0",
		Group: GroupCredits, PerNet: true, Effect: NIRestart,
		Derived: "0: peer_credits; else kept between half and twice of peer_credits",
		Help:    "Sends that one connection keeps posted on its queue pair. It sizes the local queue only; what the peer takes is peer_credits. Below peer_credits it costs a little speed.",
	},
	{
		Name: "peer_buffer_credits", Aliases: []string{"peerrtrcredits", "peer_router_credits"},
		Kind: Int, Unit: "buffers", Min: 0, Max: 65535, Default: "0",
		Group: GroupCredits, PerNet: true, Effect: NIRestart,
		Derived: "0: left to LNet",
		Help:    "Router buffers that one peer may hold. Matters on routers only; 0 leaves it to LNet.",
	},
	{
		Name: "ntx", Aliases: []string{"kib_ntx", "lnd_ntx"},
		Kind: Int, Unit: "descriptors", Min: 1, Max: 65535, Default: "512",
		Group: GroupCredits, PerNet: true, Effect: NIRestart,
		Derived: "shared out over the CPTs of the NI, at least 256 each; pools grow by as much when they are empty",
		Help:    "Transmit descriptors of an NI, each with a message buffer of 4 KiB. Should be at least credits. fmr_pool_size must be at least a quarter of it.",
	},
	{
		Name: "timeout", Aliases: []string{"kib_timeout", "lnd_timeout"},
		Kind: Int, Unit: "s", Min: 0, Max: 86400, Default: "50",
		Group: GroupTimeouts, Effect: AtOnce,
		Derived: "0: LNet's own LND timeout, 49 s",
		Help:    "Time that a message may take on a connection before the connection is closed. 0 does not mean never: it means LNet's own value. Keep it above what the HCA needs for its retries and below LNet's transaction timeout.",
	},
	{
		Name: "keepalive", Aliases: []string{"kib_keepalive"},
		Kind: Int, Unit: "s", Min: 0, Max: 86400, Default: "100",
		Group: GroupTimeouts, Effect: AtOnce,
		Derived: "0: off",
		Help:    "A connection that sent nothing for so long sends an empty message, so that a dead peer is found. 0 switches it off.",
	},
	{
		Name: "peer_timeout", Kind: Int, Unit: "s", Min: 0, Max: 86400, Default: "180",
		Group: GroupTimeouts, PerNet: true, Effect: NIRestart,
		Derived: "0: off",
		Help:    "Time without a sign of life after which an LNet router takes a peer for dead. As on every end node it decides nothing here: it is kept, shown and exported. 0: off.",
	},
	{
		Name: "retry_count", Aliases: []string{"kib_retry_count"},
		Kind: Int, Unit: "retries", Min: 0, Max: 7, Default: "5",
		Group: GroupTimeouts, Effect: NewConns,
		Help: "Times that the transport repeats a packet that was not acknowledged before the connection breaks.",
	},
	{
		Name: "rnr_retry_count", Aliases: []string{"kib_rnr_retry_count"},
		Kind: Int, Unit: "retries", Min: 0, Max: 7, Default: "6",
		Group: GroupTimeouts, Effect: NewConns,
		Derived: "7: for ever",
		Help:    "Times that the transport repeats a message for which the peer had no receive posted. 7 means for ever.",
	},
	{
		Name: "conns_per_peer", Aliases: []string{"lnd_conns_per_peer"},
		Kind: Int, Unit: "connections", Min: 0, Max: 127, Default: "1",
		Group: GroupConns, PerNet: true, Effect: NIRestart,
		Derived: "0: the global value, or 1",
		Help:    "Connections that we open to each peer when we are the side that connects. More pays on some fabrics and costs memory on both sides.",
	},
	{
		Name: "tos", Aliases: []string{"lnd_tos"},
		Kind: Int, Unit: "type of service", Min: -1, Max: 255, Default: "-1",
		Group: GroupConns, PerNet: true, Effect: NIRestart,
		Derived: "-1: not set on the connection",
		Help:    "Type of service of our connections, for QoS on RoCE. 0 is a value like any other; -1 leaves it to the system.",
	},
	{
		Name: "ib_mtu", Aliases: []string{"kib_ib_mtu"},
		Kind: Enum, Unit: "bytes", Allowed: []string{"0", "256", "512", "1024", "2048", "4096"}, Default: "0",
		Group: GroupConns, Effect: NewConns,
		Derived: "0: as the path record says",
		Help:    "Path MTU that a kernel node forces on its connections. Here the connection manager chooses it, from the fabric: the value is kept, checked and exported, and changes nothing.",
	},
	{
		Name: "wrq_sge", Kind: Int, Unit: "entries", Min: 1, Max: 32, Default: "2",
		Group: GroupConns, Effect: AtOnce,
		Derived: "not more than the HCA takes",
		Help:    "Scatter entries of one RDMA write. With 1, data that is cut at different places on the two sides needs a write per piece and may exceed the fragments that were negotiated.",
	},
	{
		Name: "nscheds", Aliases: []string{"kib_nscheds"},
		Kind: Int, Unit: "threads", Min: 0, Max: 1024, Default: "0",
		Group: GroupConns, Effect: EngineRestart,
		Derived: "0: by the CPUs of the CPT, 1 to 4 at first; never more than its CPUs",
		Help:    "Scheduler threads for each CPT. 0 chooses by the number of CPUs.",
	},
	{
		Name: "map_on_demand", Aliases: []string{"lnd_map_on_demand"},
		Kind: Int, Unit: "flag", Min: 0, Max: 1, Default: "1",
		Group: GroupMemory, PerNet: true, Effect: NIRestart,
		Derived: "always 1",
		Help:    "Memory is always registered on demand. The tunable is kept so that old configurations are understood; 0 is stored as 1, and it never changes the fragments that we offer.",
	},
	{
		Name: "exposure", Kind: Enum, Unit: "level", Allowed: []string{"transfer", "cached", "device"}, Default: "transfer",
		Group: GroupMemory, PerNet: true, Effect: NIRestart,
		Derived: "cached without fmr_cache: transfer",
		Help:    "How long a peer can reach memory that it was told to write to. transfer: for that transfer alone. cached: as long as the buffer is in use, which saves work on HCAs without memory windows. device: always, and all of our buffers; fastest.",
	},
	{
		Name: "fmr_pool_size", Aliases: []string{"lnd_fmr_pool_size"},
		Kind: Int, Unit: "regions", Min: 1, Max: maxInt, Default: "512",
		Group: GroupMemory, PerNet: true, Effect: NIRestart,
		Derived: "shared out over the CPTs of the NI, at least 256 each",
		Help:    "Registrations that a pool holds: memory windows or regions, one for each transfer under way, each up to 1 MiB. Must be at least a quarter of ntx, or the NI cannot start.",
	},
	{
		Name: "fmr_flush_trigger", Aliases: []string{"lnd_fmr_flush_trigger"},
		Kind: Int, Unit: "regions", Min: 1, Max: maxInt, Default: "384",
		Group: GroupMemory, PerNet: true, Effect: NIRestart,
		Derived: "shared out over the CPTs of the NI, at least 192 each",
		Help:    "With exposure=cached, unused regions that may stay registered before all of them are flushed. Should be less than fmr_pool_size.",
	},
	{
		Name: "fmr_cache", Aliases: []string{"lnd_fmr_cache"},
		Kind: Int, Unit: "flag", Min: 0, Max: 1, Default: "1",
		Group: GroupMemory, PerNet: true, Effect: NIRestart,
		Help: "With exposure=cached, keep a region registered after its transfer, for the next one to the same buffer. 1 is faster, 0 revokes a peer's access at once.",
	},
	{
		Name: "use_fastreg_gaps", Kind: Int, Unit: "flag", Min: 0, Max: 1, Default: "0",
		Group: GroupMemory, Effect: AtOnce,
		Help: "Let a peer reach a buffer of several pieces together with what lies between them, instead of copying it through one piece. Saves a copy, exposes more.",
	},
	{
		Name: "service", Aliases: []string{"kib_service"},
		Kind: Int, Unit: "port", Min: 1, Max: 65535, Default: "987",
		Group: GroupPorts, Effect: EngineRestart,
		Help: "Port on which we listen and to which we connect. All nodes of a fabric must use the same.",
	},
	{
		Name: "ipif_name", Aliases: []string{"kib_default_ipif"},
		Kind: String, Unit: "interface", Min: 1, Max: 15, Default: "ib0",
		Group: GroupPorts, Effect: EngineRestart,
		Help: "Interface of a net that names none.",
	},
	{
		Name: "use_privileged_port", Aliases: []string{"kib_use_priv_port"},
		Kind: Int, Unit: "flag", Min: 0, Max: 1, Default: "1",
		Group: GroupPorts, Effect: NewConns,
		Help: "Connect from a source port below 1024. Peers with require_privileged_port ask for it; without the right to do so, a higher port is used and an event says so.",
	},
	{
		Name: "require_privileged_port", Aliases: []string{"kib_require_priv_port"},
		Kind: Int, Unit: "flag", Min: 0, Max: 1, Default: "0",
		Group: GroupPorts, Effect: NewConns,
		Help: "Refuse peers that connect from a source port of 1024 or above.",
	},
	{
		Name: "dev_failover", Aliases: []string{"kib_dev_failover"},
		Kind: Int, Unit: "mode", Min: 0, Max: 2, Default: "0",
		Group: GroupPorts, Effect: EngineRestart,
		Derived: "0: off; 1: for bonded interfaces; 2: always, for testing",
		Help:    "Follow a bonded interface to another HCA when its active port changes. Does not work with alias interfaces.",
	},
	{
		Name: "cksum", Aliases: []string{"kib_cksum"},
		Kind: Int, Unit: "flag", Min: 0, Max: 1, Default: "0",
		Group: GroupChecks, Effect: AtOnce,
		Help: "Put a checksum on the messages that we send. It never covers bulk data, and what peers send is verified whatever this says.",
	},
	{
		Name: "cksum_char", Kind: Enum, Unit: "variant", Allowed: []string{"signed", "unsigned"}, Default: "signed",
		Group: GroupChecks, Effect: NewConns,
		Derived: "used until the peer's own variant is known",
		Help:    "How bytes of 128 and above count in a checksum. Kernels before 6.2 on x86 use signed, newer kernels and other processors unsigned. Both are understood on receive.",
	},
	{
		Name: "race_compare", Kind: Enum, Unit: "rule", Allowed: []string{"nid64", "nidhash"}, Default: "nid64",
		Group: GroupChecks, Effect: NewConns,
		Help: "Which of two nodes gives way when both connect at once: nid64 compares NIDs as numbers, nidhash compares a fold of them, as Lustre does from 2.15.64 on. A mixed fabric costs up to 20 refusals for a pair.",
	},
}

var byName = index()

func index() map[string]int {
	m := make(map[string]int, 3*len(All))
	for i, t := range All {
		m[t.Name] = i
		for _, a := range t.Aliases {
			m[a] = i
		}
	}
	return m
}

// Lookup finds a tunable by its name or one of its aliases.
func Lookup(name string) (Tunable, bool) {
	i, ok := byName[name]
	if !ok {
		return Tunable{}, false
	}
	return All[i], true
}

// Nearest is the name or alias that is most like name, for "did you mean"; "" if none is near.
func Nearest(name string) string {
	name = strings.ToLower(name)
	if len(name) > 64 {
		return ""
	}
	best, bestDist := "", 1+len(name)/3
	for _, t := range All {
		for _, known := range append([]string{t.Name}, t.Aliases...) {
			if d := distance(name, known); d < bestDist || d == bestDist && known < best {
				best, bestDist = known, d
			}
		}
	}
	return best
}

// distance is how many bytes have to be inserted, removed or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, diag+1, row[j]+1)
		}
	}
	return row[len(b)]
}
