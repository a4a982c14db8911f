package live

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"o2ibd/engine"
)

// MaxRows is the most that one query shows.
const MaxRows = 1000

// Query is what a viewer wants to see.
type Query struct {
	View   string
	Filter string
	Sort   string
	Offset int
	Limit  int // 0: 100
}

// Row is one row: its key and its fields by JSON name.
type Row struct {
	Key    string
	Fields map[string]any
}

// MarshalJSON writes the fields.
func (r Row) MarshalJSON() ([]byte, error) { return json.Marshal(r.Fields) }

// Page is what a query gives.
type Page struct {
	Total int
	Rows  []Row
}

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
	return o
}

// Views are the names that Select knows.
var Views = []string{"peers", "conns", "pools", "nets", "devices", "schedulers", "overview"}

// Select gives the rows of s that q asks for. Its errors are *Error.
func Select(s *engine.Snapshot, q Query) (Page, error) {
	var list any
	switch q.View {
	case "peers":
		list = s.Peers
	case "conns":
		list = s.Conns
	case "pools":
		list = s.Pools
	case "nets":
		list = s.Nets
	case "devices":
		list = s.Devices
	case "schedulers":
		list = s.Schedulers
	case "overview":
		list = []Overview{Summarize(s)}
	default:
		return Page{}, wrong("unknown view %q; known: peers, conns, pools, nets, devices, schedulers, overview, events", q.View)
	}
	return SelectRows(list, q)
}

// SelectRows is Select over a slice of structs with JSON names, one of which is "id".
func SelectRows(list any, q Query) (Page, error) {
	v := reflect.ValueOf(list)
	cols := columnsOf(v.Type().Elem())
	f, err := parseFilter(q.Filter, cols)
	if err != nil {
		return Page{}, err
	}
	if q.Offset < 0 || q.Limit < 0 || q.Limit > MaxRows {
		return Page{}, wrong("offset %d, limit %d: offset is 0 or more, limit 0 to %d", q.Offset, q.Limit, MaxRows)
	}
	rows := make([]reflect.Value, 0, v.Len())
	for i := range v.Len() {
		if r := v.Index(i); f.match(r) {
			rows = append(rows, r)
		}
	}
	if q.Sort != "" {
		field, desc, err := parseSort(q.Sort, cols)
		if err != nil {
			return Page{}, err
		}
		order(rows, field, desc)
	}
	p := Page{Total: len(rows), Rows: []Row{}}
	limit := q.Limit
	if limit == 0 {
		limit = 100
	}
	rest := rows[min(q.Offset, len(rows)):] // before the limit: the sum of the two may overflow
	for _, r := range rest[:min(limit, len(rest))] {
		row := Row{Fields: make(map[string]any, len(cols.names))}
		for i, name := range cols.names {
			row.Fields[name] = value(r.Field(cols.fields[i]))
		}
		row.Key = keyOf(row.Fields["id"])
		p.Rows = append(p.Rows, row)
	}
	return p, nil
}

func keyOf(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// Patch is what turns one page into the next.
type Patch struct {
	Total  int              `json:"total"`
	Upsert []map[string]any `json:"upsert,omitempty"` // "key" and the fields that changed, or all of a new row
	Remove []string         `json:"remove,omitempty"`
	Order  []string         `json:"order,omitempty"` // all keys, only when the order of rows changed
}

// Empty says that there is nothing to tell.
func (p *Patch) empty(total int) bool {
	return p.Total == total && len(p.Upsert) == 0 && len(p.Remove) == 0 && len(p.Order) == 0
}

// Diff gives the patch from old to next.
func Diff(old, next Page) Patch {
	p := Patch{Total: next.Total}
	before := make(map[string]Row, len(old.Rows))
	for _, r := range old.Rows {
		before[r.Key] = r
	}
	for _, r := range next.Rows {
		o, ok := before[r.Key]
		if !ok {
			all := maps.Clone(r.Fields)
			all["key"] = r.Key
			p.Upsert = append(p.Upsert, all)
			continue
		}
		delete(before, r.Key)
		var changed map[string]any
		for name, v := range r.Fields {
			if !same(o.Fields[name], v) {
				if changed == nil {
					changed = map[string]any{"key": r.Key}
				}
				changed[name] = v
			}
		}
		if changed != nil {
			p.Upsert = append(p.Upsert, changed)
		}
	}
	for _, r := range old.Rows {
		if _, gone := before[r.Key]; gone {
			p.Remove = append(p.Remove, r.Key)
		}
	}
	if !slices.EqualFunc(old.Rows, next.Rows, func(a, b Row) bool { return a.Key == b.Key }) {
		p.Order = make([]string, 0, len(next.Rows))
		for _, r := range next.Rows {
			p.Order = append(p.Order, r.Key)
		}
	}
	return p
}

func same(a, b any) bool {
	ta, tb := reflect.TypeOf(a), reflect.TypeOf(b)
	if ta != tb {
		return false
	}
	if ta == nil || ta.Comparable() {
		return a == b
	}
	return reflect.DeepEqual(a, b)
}
