package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
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
		{Query{Sort: "nonsense"}, "", true}, {Query{Offset: 1}, "bc", false}, {Query{Limit: 2}, "ab", false}, {Query{Offset: 9}, "", false}, {Query{Offset: math.MaxInt}, "", false},
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

func (c *client) full(p Page) {
	c.order, c.rows = nil, make(map[string]map[string]any)
	for _, r := range p.Rows {
		c.order = append(c.order, r.Key)
		c.rows[r.Key] = maps.Clone(r.Fields)
	}
}

func (c *client) patch(p Patch) {
	for _, u := range p.Upsert {
		key := u["key"].(string)
		if c.rows[key] == nil {
			c.rows[key] = make(map[string]any)
			c.order = append(c.order, key)
		}
		for k, v := range u {
			if k != "key" {
				c.rows[key][k] = v
			}
		}
	}
	for _, key := range p.Remove {
		delete(c.rows, key)
		for i, k := range c.order {
			if k == key {
				c.order = append(c.order[:i:i], c.order[i+1:]...)
				break
			}
		}
	}
	if p.Order != nil {
		c.order = p.Order
	}
}

// TestPatchesGiveTheFullView: whatever happens to the rows, a viewer that applies patches has what a full
// view would show.
func TestPatchesGiveTheFullView(t *testing.T) {
	page := func(t *rapid.T) Page {
		keys := rapid.SliceOfNDistinct(rapid.IntRange(0, 8), 0, 8, rapid.ID[int]).Draw(t, "keys")
		p := Page{Total: len(keys)}
		for _, k := range keys {
			p.Rows = append(p.Rows, Row{Key: fmt.Sprint(k), Fields: map[string]any{
				"id": fmt.Sprint(k), "n": int64(rapid.IntRange(0, 2).Draw(t, "n")), "nil": rapid.SampledFrom([]any{nil, "x"}).Draw(t, "nil"),
			}})
		}
		return p
	}
	rapid.Check(t, func(t *rapid.T) {
		var c client
		shown := page(t)
		c.full(shown)
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			next := page(t)
			c.patch(Diff(shown, next))
			shown = next
			var want client
			want.full(next)
			if !reflect.DeepEqual(c.rows, want.rows) || fmt.Sprint(c.order) != fmt.Sprint(want.order) {
				t.Fatalf("the viewer has %v %v, the view is %v %v", c.order, c.rows, want.order, want.rows)
			}
		}
		same := Diff(shown, shown)
		if !same.empty(shown.Total) {
			t.Fatalf("a patch of nothing: %+v", same)
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

func BenchmarkSelect10000(b *testing.B) {
	s := &engine.Snapshot{}
	for i := range 10000 {
		s.Peers = append(s.Peers, engine.Peer{ID: fmt.Sprint(i), NID: wire.MakeNID(wire.NetO2IB, uint32(i)), State: "connected", TxQueued: i % 7})
	}
	for b.Loop() {
		if _, err := Select(s, Query{View: "peers", Filter: "tx_queued>3", Sort: "-tx_queued"}); err != nil {
			b.Fatal(err)
		}
	}
}
