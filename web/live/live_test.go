package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"o2ibd/engine"
	"o2ibd/engine/wire"
)

func nid(t testing.TB, s string) wire.NID {
	t.Helper()
	n, err := wire.ParseNID(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func snapshot(t testing.TB) *engine.Snapshot {
	alive := int64(5000)
	return &engine.Snapshot{Peers: []engine.Peer{
		{ID: "a", NID: nid(t, "10.0.0.1@o2ib"), State: "connected", TxQueued: 3, LastAliveAt: &alive, Error: ""},
		{ID: "b", NID: nid(t, "10.0.0.2@o2ib"), State: "down", TxQueued: 30, Error: "timed out: no answer"},
		{ID: "c", NID: nid(t, "10.0.1.1@o2ib1"), State: "connected", TxQueued: 0},
	}}
}

func TestFilter(t *testing.T) {
	for _, row := range []struct {
		filter string
		want   string // ids
		err    bool
	}{
		{"", "abc", false},
		{"state=down", "b", false},
		{"state!=down", "ac", false},
		{"tx_queued>2", "ab", false},
		{"tx_queued<30 tx_queued>0", "a", false},
		{"10.0.0.", "ab", false},
		{"@o2ib1", "c", false},
		{"10.0.0. state=connected", "a", false},
		{`error~"timed out"`, "b", false},
		{"STATE=DOWN", "", false}, // no field: a bare word
		{"last_alive_at>4000", "a", false},
		{"nonsense=1", "", true},
		{"tx_queued>many", "", true},
		{`error~"open`, "", true},
		{"state=DOWN", "b", false},
	} {
		p, err := Select(snapshot(t), Query{View: "peers", Filter: row.filter})
		got := ""
		for _, r := range p.Rows {
			got += r.Key
		}
		if (err != nil) != row.err || got != row.want {
			t.Errorf("%q: %q, %v", row.filter, got, err)
		}
	}
}

func TestSortAndRange(t *testing.T) {
	for _, row := range []struct {
		q    Query
		want string
		err  bool
	}{
		{Query{Sort: "tx_queued"}, "cab", false}, {Query{Sort: "-tx_queued"}, "bac", false}, {Query{Sort: "-last_alive_at"}, "abc", false},
		{Query{Sort: "-nid"}, "cba", false}, {Query{Sort: "-state"}, "bac", false}, {Query{Sort: "nonsense"}, "", true}, {Query{Offset: 1}, "bc", false}, {Query{Limit: 2}, "ab", false}, {Query{Offset: 9}, "", false}, {Query{Offset: math.MaxInt}, "", false},
		{Query{Offset: -1}, "", true}, {Query{Limit: MaxRows + 1}, "", true},
	} {
		row.q.View = "peers"
		p, err := Select(snapshot(t), row.q)
		got := ""
		for _, r := range p.Rows {
			got += r.Key
		}
		if (err != nil) != row.err || got != row.want || err == nil && p.Total != 3 {
			t.Errorf("%+v: %q of %d, %v", row.q, got, p.Total, err)
		}
	}
	if _, err := Select(snapshot(t), Query{View: "nonsense"}); err == nil {
		t.Error("an unknown view has rows")
	}
}

// client is what a viewer has, brought up to date by frames alone.
type client struct {
	order []string
	rows  map[string]map[string]any
}

func (c *client) full(t *rapid.T, b []byte) {
	var f struct{ Rows []map[string]any }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	c.order, c.rows = nil, make(map[string]map[string]any)
	for _, r := range f.Rows {
		key := r["id"].(string)
		c.order = append(c.order, key)
		c.rows[key] = r
	}
}

func (c *client) patch(t *rapid.T, b []byte) {
	var p struct {
		Upsert        []map[string]any
		Remove, Order []string
	}
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	for _, u := range p.Upsert {
		key := u["key"].(string)
		if c.rows[key] == nil {
			c.rows[key] = make(map[string]any)
		}
		delete(u, "key")
		maps.Copy(c.rows[key], u)
	}
	for _, key := range p.Remove {
		delete(c.rows, key)
	}
	if p.Order != nil {
		c.order = p.Order
	}
}

// TestPatchesGiveTheFullView: whatever happens to the rows, a viewer that applies patches has what a full
// view would show.
func TestPatchesGiveTheFullView(t *testing.T) {
	type row struct {
		ID   string            `json:"id"`
		N    int               `json:"n"`
		F    float64           `json:"f"`
		At   *int64            `json:"at"`
		NID  wire.NID          `json:"nid"`
		Text string            `json:"text"`
		Data map[string]string `json:"data"`
	}
	page := func(t *rapid.T) Page {
		keys := rapid.SliceOfNDistinct(rapid.IntRange(0, 8), 0, 8, rapid.ID[int]).Draw(t, "keys")
		list := []row{}
		for _, k := range keys {
			r := row{ID: fmt.Sprint(k, `"<`), N: rapid.IntRange(0, 2).Draw(t, "n"), F: rapid.Float64Range(0, 1).Draw(t, "f"), NID: wire.NID(5<<48 + k), Text: rapid.String().Draw(t, "text")}
			if rapid.Bool().Draw(t, "set") {
				r.At = new(int64)
				r.Data = map[string]string{"ours": "8"}
			}
			list = append(list, r)
		}
		p, err := SelectRows(list, Query{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	rapid.Check(t, func(t *rapid.T) {
		var c client
		shown := page(t)
		c.full(t, appendFull(nil, "x", 1, shown))
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			next := page(t)
			frame, _ := appendPatch(nil, "x", 2, shown, next)
			c.patch(t, frame)
			shown = next
			var want client
			want.full(t, appendFull(nil, "x", 1, next))
			if !reflect.DeepEqual(c.rows, want.rows) || fmt.Sprint(c.order) != fmt.Sprint(want.order) {
				t.Fatalf("the viewer has %v %v, the view is %v %v", c.order, c.rows, want.order, want.rows)
			}
		}
		if frame, changed := appendPatch(nil, "x", 2, shown, shown); changed {
			t.Fatalf("a patch of nothing: %s", frame)
		}
	})
}

func TestRowsAreJSON(t *testing.T) {
	p, err := Select(snapshot(t), Query{View: "overview"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p.Rows)
	if err != nil {
		t.Fatal(err)
	}
	var rows []Overview
	if err := json.Unmarshal(b, &rows); err != nil || rows[0].Peers != 3 || rows[0].PeersUp != 2 || rows[0].PeersDown != 1 || rows[0].TxQueued != 33 {
		t.Fatalf("%s: %v", b, err)
	}
}

func FuzzFilter(f *testing.F) {
	for _, s := range []string{"", "state=down", `error~"a b" x`, "a!=b", "<", "!!", "tx_queued>1e309", "nid~10.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Select(snapshot(t), Query{View: "peers", Filter: s})
		if err == nil && p.Total > 3 {
			t.Fatalf("%q selects %d of 3", s, p.Total)
		}
	})
}

func TestTroublesSayWhatWhoAndWhy(t *testing.T) {
	at := int64(1000)
	s := &engine.Snapshot{
		Nets:    []engine.Net{{ID: "10.0.0.1@o2ib", Status: "up"}, {ID: "10.1.0.1@o2ib1", Status: "down"}},
		Devices: []engine.Device{{ID: "mlx5_0", Name: "mlx5_0", State: "down", Interface: "ib0"}},
		Peers: []engine.Peer{
			{ID: "a", NID: nid(t, "10.0.0.2@o2ib"), State: "connected", AvailableCredits: -3, MinCredits: -9},
			{ID: "b", NID: nid(t, "10.0.0.3@o2ib"), State: "down", Error: "timed out", ErrorAt: &at},
			{ID: "c", NID: nid(t, "10.0.0.4@o2ib"), State: "reconnecting", TxQueued: 7},
			{ID: "d", NID: nid(t, "10.0.0.5@o2ib"), State: "connected"},
		},
		Conns: []engine.Conn{{ID: "1", Peer: "a", State: "established", QueueDepth: 8, TxQueue: 5}, {ID: "2", Peer: "d", State: "established", Credits: 8, QueueDepth: 8}},
		Pools: []engine.Pool{{ID: "tx", NextRetryAt: &at, GrowFailed: 2, Used: 5, Size: 5}},
	}
	want := []struct{ severity, id, text string }{
		{"error", "NI 10.1.0.1@o2ib1", "is down"}, {"error", "device mlx5_0", "port down on ib0"}, {"error", "peer b", "timed out"},
		{"warning", "peer a", "3 messages wait for an LNet credit (at worst 9)"}, {"warning", "peer c", "is reconnecting, 7 messages wait"},
		{"warning", "connection 1", "no credits (0 of 8)"}, {"warning", "pool tx", "could not grow (2 times); 5 of 5"},
	}
	got := Troubles(s)
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, w := range want {
		if g := got[i]; g.Severity != w.severity || g.ID != w.id || !strings.Contains(g.Text, w.text) {
			t.Errorf("%d: %+v, wanted %+v", i, g, w)
		}
	}
	if got[2].SinceAt != &at {
		t.Error("since when the peer is down is not told")
	}
	if o := Summarize(s); o.Verdict != "error" || o.Summary != "Not all is well: 1 of 2 NIs up, 2 of 4 peers connected, 1 down, 12 messages wait." {
		t.Errorf("%s: %s", o.Verdict, o.Summary)
	}
	s.Nets, s.Devices, s.Conns, s.Pools, s.Peers = s.Nets[:1], nil, s.Conns[1:], nil, s.Peers[3:]
	if o := Summarize(s); o.Verdict != "well" {
		t.Errorf("%s: %s", o.Verdict, o.Summary)
	}
}

func peers(n, tick int) *engine.Snapshot {
	s := &engine.Snapshot{}
	for i := range n {
		p := engine.Peer{ID: fmt.Sprint(i), NID: wire.MakeNID(wire.NetO2IB, uint32(i)), State: "connected", TxQueued: i % 7}
		if i%10 == 0 {
			p.SendCount = uint64(tick)
		}
		s.Peers = append(s.Peers, p)
	}
	return s
}

func BenchmarkSelect10000(b *testing.B) {
	s := peers(10000, 0)
	for b.Loop() {
		if _, err := Select(s, Query{View: "peers", Filter: "tx_queued>3", Sort: "-tx_queued"}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPatch is what one viewer of 100 rows costs at each tick, where others look at the same.
func BenchmarkPatch(b *testing.B) {
	q := Query{View: "peers", Filter: "tx_queued<5", Sort: "-tx_queued", Limit: 100}
	old, next := NewFrame(peers(10000, 0)), NewFrame(peers(10000, 1))
	shown, err := old.Select(q)
	if err != nil {
		b.Fatal(err)
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		page, err := next.Select(q)
		if err != nil {
			b.Fatal(err)
		}
		buf, _ = appendPatch(buf[:0], "p", 2, shown, page)
	}
	b.ReportMetric(float64(len(buf)), "B/frame")
}
