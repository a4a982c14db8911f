package tuning_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

func TestChange(t *testing.T) {
	h := newHouse(t, nil)
	tag := h.Tag()
	r := h.must(changes("peer_credits", " 016 ", "o2ib1/lnd_tos", "106"))
	if r.ChangeID == "" || r.DryRun || r.Tag == tag || r.Tag != h.Tag() {
		t.Errorf("%+v", r)
	}
	type move struct{ Setting, Old, New string }
	moves := func(list []tuning.Changed) (m []move) {
		for _, c := range list {
			if c.Unit == "" || c.Effect == "" {
				t.Errorf("%+v lacks unit or effect", c)
			}
			text := func(s *tuning.Scalar) string {
				if s == nil {
					return "unset"
				}
				return string(*s)
			}
			m = append(m, move{tunables.Scoped{Scope: c.Scope, Name: c.Name}.String(), text(c.Old), text(c.New)})
		}
		return m
	}
	if d := cmp.Diff([]move{{"peer_credits", "unset", "16"}, {"o2ib1/tos", "unset", "106"}}, moves(r.Changed)); d != "" {
		t.Error(d)
	}
	want := []move{
		{"peer_credits", "8", "16"}, {"peer_credits_hiw", "4", "8"}, {"concurrent_sends", "8", "16"},
		{"o2ib1/peer_credits", "8", "16"}, {"o2ib1/peer_credits_hiw", "4", "8"}, {"o2ib1/concurrent_sends", "8", "16"}, {"o2ib1/tos", "-1", "106"},
	}
	if d := cmp.Diff(want, moves(r.Derived)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]tunables.Effect{tunables.NIRestart}, r.Effects); d != "" {
		t.Error(d)
	}
	if len(r.Findings) != 0 || len(r.Notes) != 2 {
		t.Errorf("notes %v, findings %v", r.Notes, r.Findings)
	}

	history, err := h.History(t.Context(), tuning.HistoryFilter{})
	if err != nil || len(history.Changes) != 2 {
		t.Fatal(history, err)
	}
	row := history.Changes[0]
	if row.ChangeID != r.ChangeID || row.Who != "ada" || row.How != "page" || row.From != "127.0.0.1" || row.Reason != "test" || row.At == 0 ||
		row.Scope != global || row.Name != "peer_credits" || row.Old != nil || *row.New != "16" || row.Outcome != store.Applied ||
		row.OutcomeAt == nil || len(row.Notes) != 2 {
		t.Errorf("%+v", row)
	}
	h.inForce(values("peer_credits", "16", "o2ib1/tos", "106"), store.Applied)

	clamped := h.must(changes("peer_credits", "300"))
	if len(clamped.Findings) != 1 || !strings.HasPrefix(clamped.Findings[0].Text, "peer_credits 300 → 255: ") {
		t.Errorf("findings %v", clamped.Findings)
	}
	if row := h.row("peer_credits"); *row.Value != "300" || row.Effective != "255" || len(row.Notes) != 1 {
		t.Errorf("%+v", row)
	}
	adjusted := h.must(changes("map_on_demand", "0"))
	if len(adjusted.Notes) != 1 || *adjusted.Changed[0].New != "1" || *h.row("map_on_demand").Value != "1" {
		t.Errorf("%+v", adjusted)
	}
}

func TestChangeNothing(t *testing.T) {
	h := newHouse(t, values("timeout", "60"))
	h.must(changes("peer_credits", "16"))
	calls, tag := h.engine.calls, h.Tag()
	for name, list := range map[string]tuning.Changes{
		"same value": changes("peer_credits", "16"), "same value, otherwise written": changes("peertxcredits", "016"),
		"unset what is not set": changes("cksum", "-"), "unset what only the file sets": changes("timeout", "-"),
	} {
		if r := h.must(list); r.ChangeID != "" || len(r.Changed) != 0 || h.Tag() != tag {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if h.engine.calls != calls {
		t.Error("the engine was tuned for nothing")
	}
	h.inForce(values("peer_credits", "16"), store.Applied)
}

func TestDryRun(t *testing.T) {
	h := newHouse(t, nil)
	req := request(changes("peer_credits", "32", "retry_count", "7"))
	req.DryRun = true
	dry, err := h.Change(t.Context(), req)
	if err != nil || dry.ChangeID != "" || !dry.DryRun || dry.Tag != h.Tag() || h.engine.calls != 0 {
		t.Fatalf("%+v, %v", dry, err)
	}
	h.inForce(values())
	done := h.must(req.Changes)
	done.ChangeID, done.DryRun, done.Tag = dry.ChangeID, true, dry.Tag
	if d := cmp.Diff(dry, done); d != "" {
		t.Errorf("a dry run says something else than the change (-dry +done):\n%s", d)
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change tuning.Changes
		want   []string
	}{
		{"one bad value spoils all", changes("peer_credits", "16", "ib_mtu", "1000"), []string{`ib_mtu: "1000" is not one of the allowed values; allowed: 0, 256`}},
		{"all that is wrong", changes("peer_credit", "16", "ib_mtu", "1000"), []string{"did you mean peer_credits", "ib_mtu"}},
		{"more than a line can bear", changes("a", "1", "b", "2", "c", "3", "d", "4", "e", "5"), []string{"a: ", "b: ", "c: ", "d: ", "e: "}},
		{"together", changes("ntx", "4096"), []string{"fmr_pool_size 512 is less than a quarter of ntx 4096"}},
		{"together with the file", changes("o2ib2/ntx", "65535"), []string{"o2ib2/ntx: "}},
		{"twice", changes("peer_credits", "16", "lnd_peercredits_hiw", "5", "peercredits_hiw", "5"), []string{"peer_credits_hiw: is named twice"}},
		{"scope", changes("tcp/peer_credits", "16"), []string{"unknown scope"}},
		{"unset what does not exist", changes("cats", "-"), []string{"no such tunable"}},
		{"unset in a net what is global", changes("o2ib/service", "-"), []string{"cannot be set for a single net"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHouse(t, values("timeout", "60"))
			_, err := h.Change(t.Context(), request(tc.change))
			var invalid *tuning.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Fields) != len(tc.want) {
				t.Fatalf("%v", err)
			}
			for i, w := range tc.want {
				if !strings.Contains(invalid.Fields[i].Error(), w) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
					t.Errorf("%q, want %q", err, w)
				}
			}
			h.inForce(values())
		})
	}
	h := newHouse(t, nil)
	confirm := request(changes("peer_credits", "16"))
	confirm.ConfirmWithin = 25 * time.Hour
	long := request(changes("peer_credits", "16"))
	long.Reason = strings.Repeat("x", 1001)
	for name, tc := range map[string]struct {
		r    tuning.Request
		want string
	}{
		"nothing": {request(nil), "no changes"}, "confirm": {confirm, "allowed: 1s to 24h0m0s"}, "reason": {long, "1001 bytes long; allowed: up to 1000"},
	} {
		if _, err := h.Change(t.Context(), tc.r); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.inForce(values())
}

func TestUnsetZeroDefault(t *testing.T) {
	h := newHouse(t, values("peer_timeout", "90"))
	for _, step := range []struct {
		set                   string
		value                 any // what JSON shows
		effective, source, id string
	}{
		{"", 90.0, "90", tuning.SourceFile, ""},
		{"0", 0.0, "0", tuning.SourceChanged, "id"},       // zero: off
		{"180", 180.0, "180", tuning.SourceChanged, "id"}, // set to the default
		{"-", 90.0, "90", tuning.SourceFile, ""},          // not set here: the file counts again
	} {
		if step.set != "" {
			h.must(changes("peer_timeout", step.set))
			h.restart()
		}
		row := h.row("peer_timeout")
		b, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if m["value"] != step.value || string(row.Effective) != step.effective || row.Source != step.source || (row.ChangeID != "") != (step.id != "") ||
			m["file_value"] != 90.0 || row.DiffersFromFile != (step.id != "") || m["default"] != 180.0 {
			t.Errorf("after %q: %s", step.set, b)
		}
	}
	row := h.row("keepalive")
	if b, _ := json.Marshal(row); !bytes.Contains(b, []byte(`"value":null`)) || !bytes.Contains(b, []byte(`"effective":100`)) || row.Source != tuning.SourceDefault {
		t.Errorf("%s", b)
	}
	// A net inherits, takes back and inherits again.
	h.must(changes("tos", "106"))
	if r := h.row("o2ib1/tos"); r.Value != nil || r.Effective != "106" || r.FromScope != global || r.Source != tuning.SourceChanged {
		t.Errorf("inherits: %+v", r)
	}
	h.must(changes("o2ib1/tos", "-1"))
	if r := h.row("o2ib1/tos"); *r.Value != "-1" || r.Effective != "-1" || r.FromScope != "o2ib1" {
		t.Errorf("takes back: %+v", r)
	}
	h.must(changes("o2ib1/tos", "-"))
	if r := h.row("o2ib1/tos"); r.Value != nil || r.Effective != "106" {
		t.Errorf("inherits again: %+v", r)
	}
}

func TestShow(t *testing.T) {
	h := newHouse(t, values("o2ib1/peer_credits", "32", "cksum", "1"))
	h.must(changes("o2ib2/ntx", "600"))
	all, err := h.Show("")
	if err != nil {
		t.Fatal(err)
	}
	var nets []string
	for i, r := range all.Tunables {
		if i < len(tunables.All) {
			if r.Scope != global || r.Name != tunables.All[i].Name || r.Help == "" || r.Range == "" || r.Unit == "" || r.Group == "" || r.Effect == "" {
				t.Errorf("row %d: %+v", i, r)
			}
			continue
		}
		nets = append(nets, r.Scope+"/"+r.Name+"="+string(r.Effective)+" "+r.Source)
	}
	if d := cmp.Diff([]string{"o2ib1/peer_credits=32 file", "o2ib2/ntx=600 changed"}, nets); d != "" {
		t.Error(d)
	}
	one, err := h.Show("o2ib1")
	if err != nil || one.Tag != h.Tag() {
		t.Fatal(one.Tag, err)
	}
	for _, r := range one.Tunables {
		if tun, _ := tunables.Lookup(r.Name); !tun.PerNet || r.Scope != "o2ib1" {
			t.Errorf("%+v", r)
		}
	}
	if _, err := h.Show("tcp"); err == nil || !strings.Contains(err.Error(), "allowed: global, or a net") {
		t.Errorf("%v", err)
	}
	if r := h.row("cksum"); !r.Flag || r.DiffersFromFile || r.Source != tuning.SourceFile {
		t.Errorf("%+v", r)
	}
}

func TestTwoOperators(t *testing.T) {
	h := newHouse(t, values("timeout", "60"))
	tag := h.Tag()
	a, b := request(changes("peer_credits", "16")), request(changes("peer_credits", "32", "timeout", "70"))
	a.IfMatch, b.IfMatch, b.Who = tag, tag, "bob"
	first, err := h.Change(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Change(t.Context(), b)
	var conflict *tuning.ConflictError
	if !errors.As(err, &conflict) || conflict.Tag != first.Tag || len(conflict.Clashes) != 2 {
		t.Fatalf("%v", err)
	}
	c := conflict.Clashes[0]
	if c.Name != "peer_credits" || *c.Now != "16" || *c.Yours != "32" || c.Who != "ada" || c.ChangeID != first.ChangeID || c.At == nil {
		t.Errorf("%+v", c)
	}
	if c := conflict.Clashes[1]; *c.Now != "60" || *c.Yours != "70" || c.Who != "" || c.At != nil {
		t.Errorf("value of the file: %+v", c)
	}
	if s := err.Error(); !strings.Contains(s, `peer_credits is "16" (set by ada), timeout is "60"`) || !strings.Contains(s, "nothing was done") {
		t.Error(s)
	}
	b.IfMatch = conflict.Tag
	if _, err := h.Change(t.Context(), b); err != nil {
		t.Errorf("after looking again: %v", err)
	}
	b.IfMatch, b.Changes = "*", changes("peer_credits", "33")
	if _, err := h.Change(t.Context(), b); err != nil {
		t.Errorf("whatever stands: %v", err)
	}
	before := h.Tag()
	h.restart()
	if h.Tag() != before {
		t.Errorf("the tag changed by a restart: %s, %s", before, h.Tag())
	}
	h.file = values("timeout", "61")
	h.restart()
	if h.Tag() == before {
		t.Error("the tag is the same with another file")
	}
}

func TestNewRefusesWhatDoesNotGoTogether(t *testing.T) {
	h := newHouse(t, nil)
	h.must(changes("fmr_pool_size", "600"))
	for want, file := range map[string]tunables.Values{
		"configuration file: ib_mtu: ": values("ib_mtu", "1000"),
		"do not go together: ":         values("ntx", "4000", "fmr_pool_size", "1000"),
	} {
		o := h.options()
		o.File = file
		if _, err := tuning.New(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestHistoryFilters(t *testing.T) {
	h := newHouse(t, nil)
	h.must(changes("peer_credits", "16", "o2ib1/tos", "1"))
	h.must(changes("timeout", "60"))
	for _, tc := range []struct {
		f    tuning.HistoryFilter
		want string
	}{
		{tuning.HistoryFilter{}, "timeout peer_credits tos"},
		{tuning.HistoryFilter{Name: "peertxcredits"}, "peer_credits"},
		{tuning.HistoryFilter{Scope: "o2ib1"}, "tos"},
		{tuning.HistoryFilter{Who: "nobody"}, ""},
		{tuning.HistoryFilter{Limit: 1}, "timeout"},
		{tuning.HistoryFilter{BeforeSeq: 3}, "peer_credits tos"},
	} {
		got, err := h.History(t.Context(), tc.f)
		var names []string
		for _, r := range got.Changes {
			names = append(names, r.Name)
		}
		if err != nil || strings.Join(names, " ") != tc.want || got.Changes == nil {
			t.Errorf("%+v: %v, %v", tc.f, names, err)
		}
	}
	if _, err := h.History(t.Context(), tuning.HistoryFilter{Scope: "tcp"}); err == nil {
		t.Error("unknown scope")
	}
}

// Many operators and readers at once: every change is whole, none is lost, and conflicts are told.
func TestConcurrent(t *testing.T) {
	h := newHouse(t, nil)
	const workers, each = 4, 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	want, conflicts := tunables.Values{}, 0
	for w := range workers {
		net := fmt.Sprintf("o2ib%d", w+1)
		wg.Go(func() {
			for i := range each {
				tos, ntx := fmt.Sprint(i), fmt.Sprint(512+i)
				req := request(changes(net+"/tos", tos, net+"/ntx", ntx))
				for req.IfMatch = h.Tag(); ; {
					_, err := h.Change(t.Context(), req)
					var conflict *tuning.ConflictError
					if errors.As(err, &conflict) {
						mu.Lock()
						conflicts++
						mu.Unlock()
						req.IfMatch = conflict.Tag
						continue
					}
					if err != nil {
						t.Error(err)
					}
					break
				}
				v := h.Values()
				if v[scoped(net+"/tos")] != tos || v[scoped(net+"/ntx")] != ntx {
					t.Errorf("half a change: %v", v)
				}
				if _, err := h.Show(""); err != nil {
					t.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(want, values(net+"/tos", fmt.Sprint(each-1), net+"/ntx", fmt.Sprint(512+each-1)))
		})
	}
	wg.Wait()
	outcomes := make([]store.Kind, workers*each)
	for i := range outcomes {
		outcomes[i] = store.Applied
	}
	t.Logf("%d conflicts", conflicts)
	h.inForce(want, outcomes...)
}
