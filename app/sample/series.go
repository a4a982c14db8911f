package sample

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds of sources.
const (
	KindTotal     = "total"
	KindNI        = "ni"
	KindPool      = "pool"
	KindScheduler = "scheduler"
	KindPeer      = "peer"
)

// Series is one line that can be drawn. Its name is KIND/OF/METRIC, of totals total/METRIC.
type Series struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // total, ni, pool, scheduler, peer
	Of      string `json:"of"`   // NID, "tx/o2ib/0", "0.1", a peer's ID; "" of totals
	Metric  string `json:"metric"`
	Label   string `json:"label"`
	Unit    string `json:"unit"`
	FinestS int    `json:"finest_s"` // seconds between samples at best
}

// metric is one of the values that a source has. A counter is sampled as its increase per second.
type metric struct {
	name, label, unit string
	counter           bool
}

// metrics are those of each kind, in the order in which chunks hold them: new ones go to the end, and none
// is ever taken out.
var metrics = map[string][]metric{
	KindTotal: {
		{"send_msgs", "messages sent", "messages/s", true},
		{"recv_msgs", "messages received", "messages/s", true},
		{"send_bytes", "bytes sent", "bytes/s", true},
		{"recv_bytes", "bytes received", "bytes/s", true},
		{"drops", "messages dropped", "messages/s", true},
		{"reconnects", "reconnects", "1/s", true},
		{"credit_stalls", "messages that waited for a credit", "messages/s", true},
		{"tx_queued", "messages queued", "messages", false},
		{"conns", "connections", "connections", false},
		{"peers_connected", "peers connected", "peers", false},
		{"peers_not_connected", "peers not connected", "peers", false},
	},
	KindNI: {
		{"send_msgs", "messages sent", "messages/s", true},
		{"recv_msgs", "messages received", "messages/s", true},
		{"send_bytes", "bytes sent", "bytes/s", true},
		{"recv_bytes", "bytes received", "bytes/s", true},
		{"drops", "messages dropped", "messages/s", true},
		{"reconnects", "reconnects", "1/s", true},
		{"connects_failed", "connection attempts that failed", "1/s", true},
		{"rejects", "rejects sent and received", "1/s", true},
		{"available_credits", "credits of the NI that are free", "credits", false},
		{"tx_queued", "messages queued", "messages", false},
		{"conns", "connections", "connections", false},
		{"peers", "peers", "peers", false},
	},
	KindPool: {
		{"used", "descriptors in use", "descriptors", false},
		{"size", "descriptors", "descriptors", false},
		{"grow_failed", "growths that failed", "1/s", true},
	},
	KindScheduler: {
		{"completions", "completions", "1/s", true},
		{"wakeups", "wake-ups", "1/s", true},
		{"conns", "connections", "connections", false},
	},
	KindPeer: {
		{"send_msgs", "messages sent", "messages/s", true},
		{"recv_msgs", "messages received", "messages/s", true},
		{"send_bytes", "bytes sent", "bytes/s", true},
		{"recv_bytes", "bytes received", "bytes/s", true},
		{"reconnects", "reconnects", "1/s", true},
		{"credit_stalls", "messages that waited for a credit", "messages/s", true},
		{"credits", "credits of all connections", "credits", false},
		{"outstanding_credits", "credits that we owe", "credits", false},
		{"available_tx_credits", "LNet's credits that are free", "credits", false},
		{"tx_queued", "messages queued", "messages", false},
	},
}

// kindOf is the kind of a source: what stands before the first slash of its name.
func kindOf(source string) string {
	kind, _, _ := strings.Cut(source, "/")
	return kind
}

// baseOf is the time between two samples of a source, in ms.
func baseOf(source string) int64 {
	if kindOf(source) == KindPeer {
		return tenSeconds
	}
	return second
}

// seriesOf lists the series of a source.
func seriesOf(source string) []Series {
	kind, of, _ := strings.Cut(source, "/")
	var list []Series
	for _, m := range metrics[kind] {
		list = append(list, Series{Name: source + "/" + m.name, Kind: kind, Of: of, Metric: m.name, Label: m.label, Unit: m.unit, FinestS: int(baseOf(source) / second)})
	}
	return list
}

// parseName finds the source and the place of the metric that a series' name means.
func parseName(name string) (source string, place int, err error) {
	if i := strings.LastIndexByte(name, '/'); i > 0 {
		source = name[:i]
		kind := kindOf(source)
		place = slices.IndexFunc(metrics[kind], func(m metric) bool { return m.name == name[i+1:] })
		if place >= 0 && (kind == KindTotal) == (source == KindTotal) {
			return source, place, nil
		}
	}
	if len(name) > 80 {
		name = name[:80] + "…"
	}
	return "", 0, &QueryError{fmt.Sprintf("series %q is not known; allowed: total/METRIC, ni/NID/METRIC, pool/KIND/NET/CPT/METRIC, scheduler/CPT.INDEX/METRIC, peer/ID/METRIC", name)}
}
