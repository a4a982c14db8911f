package tunables

import (
	"fmt"
	"strconv"
	"time"
)

// NoteKind sorts notes.
type NoteKind string

const (
	Derived  NoteKind = "derived"  // 0 or not set, so worked out from others
	Clamped  NoteKind = "clamped"  // set, but not used as it was set
	Adjusted NoteKind = "adjusted" // stored in another form than it was written
	Warning  NoteKind = "warning"  // used as it was set, at a price
)

// Note tells an operator what became of a value and why.
type Note struct {
	Scope string   `json:"scope"` // for which it was derived; the value may be the global one
	Name  string   `json:"name"`
	Kind  NoteKind `json:"kind"`
	Text  string   `json:"text"` // "peer_credits 300 → 255: …"
}

// Global is what counts for the whole engine.
type Global struct {
	Service               int  // TCP port
	NScheds               int  // threads a CPT, 0 = by CPUs
	DevFailover           int  // 0 off, 1 bonded interfaces, 2 always
	WRQSGE                int  // scatter entries of one RDMA write
	RetryCount            int  // 0 … 7
	RNRRetryCount         int  // 0 … 7, 7 = for ever
	IBMTU                 int  // bytes, 0 = as the path record says
	Cksum                 bool // put a checksum on what we send
	CksumUnsigned         bool // variant towards a peer whose own is not known yet
	RaceByHash            bool // compare NIDs by their fold instead of as numbers
	RequirePrivilegedPort bool
	UsePrivilegedPort     bool
	UseFastRegGaps        bool
	IPIFName              string        // interface of a net that names none
	Timeout               time.Duration // never 0
	Keepalive             time.Duration // 0 = off
}

// NI is what counts for one NI.
type NI struct {
	PeerCredits       int           // queue depth that we offer and accept
	PeerCreditsHiw    int           // high-water mark for that depth
	ConcurrentSends   int           // sends posted on one queue pair
	Credits           int           // of the NI
	PeerBufferCredits int           // 0 = LNet decides
	NTX               int           // transmit descriptors, before they are shared out over CPTs
	FMRPoolSize       int           // regions, before they are shared out over CPTs
	FMRFlushTrigger   int           // regions, before they are shared out over CPTs
	ConnsPerPeer      int           // 1 … 127
	TOS               int           // 0 … 255, -1 = leave it
	Exposure          string        // transfer, cached, device
	MapOnDemand       bool          // always true
	FMRCache          bool          // keep regions registered after a transfer
	PeerTimeout       time.Duration // 0 = off
	Timeout           time.Duration // the engine's, for those who only see the NI
}

// Derive is what the engine makes of v for one net (or for GlobalScope: a net without values of its own), and
// notes on every value that is not used as it was set, in the order of spec o2iblnd 9.3. v must have
// passed Validate; a value that would not counts as not set.
func Derive(v Values, net string) (Global, NI, []Note) {
	r := resolver{v, net}
	var notes []Note
	note := func(name string, kind NoteKind, format string, args ...any) {
		notes = append(notes, Note{net, name, kind, name + " " + fmt.Sprintf(format, args...)})
	}

	g := Global{
		Service:               r.int("service"),
		NScheds:               r.int("nscheds"),
		DevFailover:           r.int("dev_failover"),
		WRQSGE:                r.int("wrq_sge"),
		RetryCount:            r.int("retry_count"),
		RNRRetryCount:         r.int("rnr_retry_count"),
		IBMTU:                 r.int("ib_mtu"),
		Cksum:                 r.flag("cksum"),
		CksumUnsigned:         r.text("cksum_char") == "unsigned",
		RaceByHash:            r.text("race_compare") == "nidhash",
		RequirePrivilegedPort: r.flag("require_privileged_port"),
		UsePrivilegedPort:     r.flag("use_privileged_port"),
		UseFastRegGaps:        r.flag("use_fastreg_gaps"),
		IPIFName:              r.text("ipif_name"),
		Timeout:               r.seconds("timeout"),
		Keepalive:             r.seconds("keepalive"),
	}
	if g.Timeout == 0 {
		g.Timeout = LNetLNDTimeoutS * time.Second
		note("timeout", Derived, "0 → %d: LNet's own LND timeout", LNetLNDTimeoutS)
	}

	n := NI{
		Credits:           r.int("credits"),
		PeerBufferCredits: r.int("peer_buffer_credits"),
		NTX:               r.int("ntx"),
		FMRPoolSize:       r.int("fmr_pool_size"),
		FMRFlushTrigger:   r.int("fmr_flush_trigger"),
		FMRCache:          r.flag("fmr_cache"),
		TOS:               r.int("tos"),
		Exposure:          r.text("exposure"),
		MapOnDemand:       true,
		PeerTimeout:       r.seconds("peer_timeout"),
		Timeout:           g.Timeout,
	}

	asked := r.int("peer_credits")
	n.PeerCredits = min(max(asked, CreditsDefault), CreditsMax, n.Credits)
	switch {
	case n.PeerCredits == asked:
	case n.PeerCredits == n.Credits:
		note("peer_credits", Clamped, "%d → %d: not more than credits, what the NI may have under way to all peers", asked, n.PeerCredits)
	case asked > CreditsMax:
		note("peer_credits", Clamped, "%d → %d: a message has one byte for credits, so %d is the most", asked, n.PeerCredits, CreditsMax)
	default:
		note("peer_credits", Clamped, "%d → %d: %d is the least", asked, n.PeerCredits, CreditsDefault)
	}
	p := n.PeerCredits

	asked = r.int("peer_credits_hiw")
	n.PeerCreditsHiw = min(max(asked, p/2), p-1)
	switch {
	case asked == 0:
		note("peer_credits_hiw", Derived, "0 → %d: half of peer_credits %d", n.PeerCreditsHiw, p)
	case n.PeerCreditsHiw != asked:
		note("peer_credits_hiw", Clamped, "%d → %d: between half of peer_credits %d and one less than it", asked, n.PeerCreditsHiw, p)
	}

	if r.int("map_on_demand") == 0 {
		note("map_on_demand", Clamped, "0 → 1: memory is always registered on demand")
	}

	asked = r.int("concurrent_sends")
	n.ConcurrentSends = min(max(asked, p/2), 2*p)
	switch {
	case asked == 0:
		n.ConcurrentSends = p
		note("concurrent_sends", Derived, "0 → %d: as many as peer_credits", p)
	case n.ConcurrentSends != asked:
		note("concurrent_sends", Clamped, "%d → %d: between half and twice of peer_credits %d", asked, n.ConcurrentSends, p)
	}
	if n.ConcurrentSends < p {
		note("concurrent_sends", Warning, "%d is less than peer_credits %d: sending may be a little slower", n.ConcurrentSends, p)
	}

	n.ConnsPerPeer = r.int("conns_per_peer")
	if n.ConnsPerPeer == 0 {
		n.ConnsPerPeer = max(resolver{v, GlobalScope}.int("conns_per_peer"), 1)
		note("conns_per_peer", Derived, "0 → %d: the global value, at least 1", n.ConnsPerPeer)
	}
	if n.Exposure == "cached" && !n.FMRCache {
		n.Exposure = "transfer"
		note("exposure", Clamped, "cached → transfer: fmr_cache is 0, so nothing is kept")
	}
	if n.NTX < n.Credits {
		note("ntx", Warning, "%d is less than credits %d: the NI may run out of transmit descriptors until its pools have grown", n.NTX, n.Credits)
	}
	return g, n, notes
}

// Effective is the derived value of a tunable as text, as forms and the API show it beside the value that
// was set; false if there is no such tunable.
func Effective(g Global, n NI, name string) (string, bool) {
	seconds := func(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
	flag := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	choose := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	switch name {
	case "peer_credits":
		return strconv.Itoa(n.PeerCredits), true
	case "peer_credits_hiw":
		return strconv.Itoa(n.PeerCreditsHiw), true
	case "credits":
		return strconv.Itoa(n.Credits), true
	case "concurrent_sends":
		return strconv.Itoa(n.ConcurrentSends), true
	case "peer_buffer_credits":
		return strconv.Itoa(n.PeerBufferCredits), true
	case "ntx":
		return strconv.Itoa(n.NTX), true
	case "timeout":
		return seconds(g.Timeout), true
	case "keepalive":
		return seconds(g.Keepalive), true
	case "peer_timeout":
		return seconds(n.PeerTimeout), true
	case "retry_count":
		return strconv.Itoa(g.RetryCount), true
	case "rnr_retry_count":
		return strconv.Itoa(g.RNRRetryCount), true
	case "conns_per_peer":
		return strconv.Itoa(n.ConnsPerPeer), true
	case "tos":
		return strconv.Itoa(n.TOS), true
	case "ib_mtu":
		return strconv.Itoa(g.IBMTU), true
	case "wrq_sge":
		return strconv.Itoa(g.WRQSGE), true
	case "nscheds":
		return strconv.Itoa(g.NScheds), true
	case "map_on_demand":
		return flag(n.MapOnDemand), true
	case "exposure":
		return n.Exposure, true
	case "fmr_pool_size":
		return strconv.Itoa(n.FMRPoolSize), true
	case "fmr_flush_trigger":
		return strconv.Itoa(n.FMRFlushTrigger), true
	case "fmr_cache":
		return flag(n.FMRCache), true
	case "use_fastreg_gaps":
		return flag(g.UseFastRegGaps), true
	case "service":
		return strconv.Itoa(g.Service), true
	case "ipif_name":
		return g.IPIFName, true
	case "use_privileged_port":
		return flag(g.UsePrivilegedPort), true
	case "require_privileged_port":
		return flag(g.RequirePrivilegedPort), true
	case "dev_failover":
		return strconv.Itoa(g.DevFailover), true
	case "cksum":
		return flag(g.Cksum), true
	case "cksum_char":
		return choose(g.CksumUnsigned, "unsigned", "signed"), true
	case "race_compare":
		return choose(g.RaceByHash, "nidhash", "nid64"), true
	}
	return "", false
}

// resolver reads the values that count in one scope; what is not set or does not parse is the default.
type resolver struct {
	v     Values
	scope string
}

func (r resolver) text(name string) string {
	t := All[byName[name]]
	if s, _, ok := r.v.Find(r.scope, name); ok {
		if canon, problem := t.parse(s); problem == "" {
			return canon
		}
	}
	return t.Default
}

func (r resolver) int(name string) int {
	n, _ := strconv.Atoi(r.text(name)) // parse and the table's own test vouch for the text
	return n
}

func (r resolver) flag(name string) bool { return r.int(name) != 0 }

func (r resolver) seconds(name string) time.Duration {
	return time.Duration(r.int(name)) * time.Second
}
