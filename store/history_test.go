package store

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

func proposal(id string, changes ...TunableChange) HistoryRecord {
	return HistoryRecord{
		ChangeID: id, At: 1000, Who: "ada", How: "page", From: "127.0.0.1", Reason: "why: ünïcode",
		Changes: changes, Notes: []string{"peer_credits 300 → 255"},
	}
}

func setting(scope, name string, old, new *string) TunableChange {
	return TunableChange{Scope: scope, Name: name, Old: old, New: new}
}

func (s *Store) mustPropose(t *testing.T, r HistoryRecord) {
	t.Helper()
	if err := s.Propose(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func (s *Store) mustEnd(t *testing.T, id string, kind Kind) int64 {
	t.Helper()
	seq, err := s.Outcome(t.Context(), HistoryRecord{ChangeID: id, Kind: kind, At: 2000, Who: "ada", How: "page"})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func (s *Store) values(t *testing.T) (map[string]string, int64) {
	t.Helper()
	vs, rev, err := s.TunableValues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, v := range vs {
		m[v.Scope+"/"+v.Name] = v.Value + " by " + v.ChangeID
	}
	return m, rev
}

func TestHistory(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	check := func(rev int64, want map[string]string) {
		t.Helper()
		got, gotRev := s.values(t)
		if d := cmp.Diff(want, got); d != "" || gotRev != rev {
			t.Errorf("revision %d, want %d; values (-want +got):\n%s", gotRev, rev, d)
		}
		if _, err := s.VerifyHistory(ctx); err != nil {
			t.Error(err)
		}
	}
	check(0, map[string]string{})

	s.mustPropose(t, proposal("c1", setting("global", "timeout", nil, ptr("0")), setting("o2ib1", "tos", nil, ptr(""))))
	check(0, map[string]string{}) // proposed is not in force
	if err := s.Propose(ctx, proposal("c2")); !errors.Is(err, ErrStale) {
		t.Errorf("a second change at once: %v", err)
	}
	if seq := s.mustEnd(t, "c1", Applied); seq != 2 {
		t.Errorf("record number %d", seq)
	}
	check(2, map[string]string{"global/timeout": "0 by c1", "o2ib1/tos": " by c1"}) // zero and empty are not unset

	s.mustPropose(t, proposal("c2", setting("global", "timeout", ptr("0"), ptr("60"))))
	s.mustEnd(t, "c2", Failed)
	check(2, map[string]string{"global/timeout": "0 by c1", "o2ib1/tos": " by c1"})

	s.mustPropose(t, proposal("c3", setting("global", "timeout", ptr("0"), nil), setting("global", "cksum", nil, ptr("1"))))
	s.mustEnd(t, "c3", Applied)
	s.mustEnd(t, "c3", Confirmed)
	check(6, map[string]string{"global/cksum": "1 by c3", "o2ib1/tos": " by c1"})

	s.mustPropose(t, proposal("c4", setting("global", "cksum", ptr("1"), ptr("0")), setting("global", "ntx", nil, ptr("600"))))
	s.mustEnd(t, "c4", Applied)
	s.mustEnd(t, "c4", RolledBack)
	check(10, map[string]string{"global/cksum": "1 by c4", "o2ib1/tos": " by c1"})

	for name, r := range map[string]HistoryRecord{
		"stale value":         proposal("c5", setting("global", "cksum", ptr("0"), ptr("1"))),
		"stale unset":         proposal("c5", setting("global", "cksum", nil, ptr("1"))),
		"stale set":           proposal("c5", setting("global", "credits", ptr("1"), nil)),
		"one of several":      proposal("c5", setting("global", "credits", nil, ptr("9")), setting("global", "cksum", nil, nil)),
		"empty for not there": proposal("c5", setting("o2ib1", "tos", nil, ptr("1"))),
	} {
		if err := s.Propose(ctx, r); !errors.Is(err, ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, r := range map[string]HistoryRecord{
		"unknown change":          {ChangeID: "c9", Kind: Applied},
		"applied twice":           {ChangeID: "c1", Kind: Applied},
		"failed after applied":    {ChangeID: "c1", Kind: Failed},
		"confirmed after failed":  {ChangeID: "c2", Kind: Confirmed},
		"rolled back after that":  {ChangeID: "c3", Kind: RolledBack},
		"interrupted when closed": {ChangeID: "c4", Kind: Interrupted},
	} {
		if _, err := s.Outcome(ctx, r); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Outcome(ctx, HistoryRecord{ChangeID: "c1", Kind: Proposed}); err == nil {
		t.Error("a proposal is not an outcome")
	}

	s.Close()
	s = open(t, dir)
	check(10, map[string]string{"global/cksum": "1 by c4", "o2ib1/tos": " by c1"})
}

func TestHistoryListing(t *testing.T) {
	s := open(t, t.TempDir())
	p1 := proposal("c1", setting("global", "timeout", nil, ptr("60")), setting("o2ib1", "tos", nil, ptr("0")))
	s.mustPropose(t, p1)
	s.mustEnd(t, "c1", Applied)
	p2 := proposal("c2", setting("global", "timeout", ptr("60"), nil))
	p2.Who = "bob"
	s.mustPropose(t, p2)
	if _, err := s.Outcome(t.Context(), HistoryRecord{ChangeID: "c2", Kind: Failed, At: 3000, Error: "no"}); err != nil {
		t.Fatal(err)
	}
	s.mustPropose(t, proposal("c3", setting("global", "cksum", nil, ptr("1"))))

	for _, tc := range []struct {
		name string
		f    HistoryFilter
		want string
	}{
		{"all", HistoryFilter{}, "c3 proposed, c2 failed, c1 applied"},
		{"limit", HistoryFilter{Limit: 2}, "c3 proposed, c2 failed"},
		{"page back", HistoryFilter{BeforeSeq: 5}, "c2 failed, c1 applied"},
		{"name", HistoryFilter{Name: "timeout"}, "c2 failed, c1 applied"},
		{"scope", HistoryFilter{Scope: "o2ib1"}, "c1 applied"},
		{"who", HistoryFilter{Who: "bob"}, "c2 failed"},
		{"change", HistoryFilter{ChangeID: "c1"}, "c1 applied"},
		{"both", HistoryFilter{Name: "timeout", Who: "ada"}, "c1 applied"},
		{"none", HistoryFilter{Name: "' OR 1"}, ""},
	} {
		entries, err := s.History(t.Context(), tc.f)
		if err != nil {
			t.Fatal(tc.name, err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Proposal.ChangeID+" "+string(e.Last.Kind))
		}
		if strings.Join(got, ", ") != tc.want {
			t.Errorf("%s: %v, want %s", tc.name, got, tc.want)
		}
	}
	entries, err := s.History(t.Context(), HistoryFilter{ChangeID: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	got := entries[0].Proposal
	p1.Kind, p1.Seq, p1.Prev, p1.Hash = Proposed, 1, noHash, got.Hash
	if d := cmp.Diff(p1, got); d != "" {
		t.Errorf("what was proposed (-want +got):\n%s", d)
	}
	last, err := s.LastRecord(t.Context(), "c2")
	if err != nil || last.Kind != Failed || last.Error != "no" || len(last.Changes) != 1 {
		t.Errorf("%+v, %v", last, err)
	}
	if _, err := s.LastRecord(t.Context(), "c0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.mustPropose(t, proposal("c1", setting("global", "timeout", nil, ptr("60"))))
	s.Close()
	s = open(t, dir)
	closed, err := s.InterruptOpen(t.Context(), 2500)
	if err != nil || len(closed) != 1 || closed[0].ChangeID != "c1" || closed[0].Kind != Interrupted || closed[0].Error == "" {
		t.Errorf("%+v, %v", closed, err)
	}
	if again, err := s.InterruptOpen(t.Context(), 6000); err != nil || len(again) != 0 {
		t.Errorf("twice: %v, %v", again, err)
	}
	if v, _ := s.values(t); len(v) != 0 {
		t.Errorf("in force: %v", v)
	}
	if _, err := s.VerifyHistory(t.Context()); err != nil {
		t.Error(err)
	}
	s.mustPropose(t, proposal("c2", setting("global", "timeout", nil, ptr("60"))))
}

// A record whose hash was worked out by hand from the form that the documentation states.
func TestHashForm(t *testing.T) {
	r := HistoryRecord{Seq: 1, ChangeID: "c", Kind: Proposed, At: 7, Who: "ä", Prev: noHash}
	const want = "c63bc92d6a1307dd2f0ce44d515fc90d848cf32a27c50cf7c89f7c951a8102da"
	if got := hashRecord(&r, "{}"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAppendOnly(t *testing.T) {
	s := open(t, t.TempDir())
	s.mustPropose(t, proposal("c1", setting("global", "timeout", nil, ptr("60"))))
	if _, err := s.AddAudit(t.Context(), AuditEntry{Who: "ada"}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		`UPDATE tunable_history SET who = 'eve'`,
		`DELETE FROM tunable_history`,
		`INSERT OR REPLACE INTO tunable_history SELECT seq, change_id, kind, at, 'eve', how, from_addr, reason, body, prev_hash, hash FROM tunable_history`,
		`INSERT INTO tunable_history SELECT seq + 5, 'c2', kind, at, who, how, from_addr, reason, body, prev_hash, hash FROM tunable_history`,
		`UPDATE audit SET who = 'eve'`,
		`DELETE FROM audit`,
	} {
		if _, err := s.w.Exec(q); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", q, err)
		}
	}
}

func TestTampering(t *testing.T) {
	const off = `DROP TRIGGER tunable_history_no_update; DROP TRIGGER tunable_history_no_delete; DROP TRIGGER tunable_history_in_order;`
	for _, tc := range []struct {
		name, query string
		seq         int64
		problem     string
	}{
		{"who", `UPDATE tunable_history SET who = 'eve' WHERE seq = 2`, 2, "altered"},
		{"body", `UPDATE tunable_history SET body = replace(body, '60', '61') WHERE seq = 1`, 1, "altered"},
		{"white space in the body", `UPDATE tunable_history SET body = body || ' ' WHERE seq = 3`, 3, "altered"},
		{"moved between fields", `UPDATE tunable_history SET how = 'agep', who = 'adap' WHERE seq = 1`, 1, "altered"},
		{"time", `UPDATE tunable_history SET at = at + 1 WHERE seq = 4`, 4, "altered"},
		{"first record gone", `DELETE FROM tunable_history WHERE seq = 1`, 1, "missing"},
		{"one in the middle gone", `DELETE FROM tunable_history WHERE seq = 2`, 2, "missing"},
		{"last record gone", `DELETE FROM tunable_history WHERE seq = 4`, 4, "there should be 4"},
		{"all gone", `DELETE FROM tunable_history`, 1, "there should be 4"},
		{"renumbered", `DELETE FROM tunable_history WHERE seq = 1; UPDATE tunable_history SET seq = seq - 1`, 1, "does not follow"},
		{"value changed", `UPDATE tunable_values SET value = '99'`, 4, "not those"},
		{"value added", `INSERT INTO tunable_values VALUES ('global', 'cksum', '1', 'c1')`, 4, "not those"},
		{"value gone", `DELETE FROM tunable_values`, 4, "not those"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			s.mustPropose(t, proposal("c1", setting("global", "timeout", nil, ptr("60"))))
			s.mustEnd(t, "c1", Applied)
			s.mustPropose(t, proposal("c2", setting("global", "timeout", ptr("60"), ptr("70"))))
			s.mustEnd(t, "c2", Applied)
			if _, err := s.VerifyHistory(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.Close()
			raw(t, dir, off, tc.query)
			_, err := open(t, dir).VerifyHistory(t.Context())
			var chain *ChainError
			if !errors.As(err, &chain) || chain.Seq != tc.seq || !strings.Contains(chain.Problem, tc.problem) {
				t.Errorf("%v, want record %d %s", err, tc.seq, tc.problem)
			}
		})
	}
}

// Many at once: each change is whole, and none gets lost.
func TestConcurrentChanges(t *testing.T) {
	s := open(t, t.TempDir())
	const workers, each = 4, 10
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("w%d-%d", w, i)
				name := fmt.Sprintf("t%d", w)
				var old *string
				if i > 0 {
					old = ptr(fmt.Sprint(i - 1))
				}
				for {
					err := s.Propose(t.Context(), proposal(id, setting("global", name, old, ptr(fmt.Sprint(i)))))
					if err == nil {
						break
					}
					if !errors.Is(err, ErrStale) {
						t.Error(err)
						return
					}
				}
				if _, err := s.Outcome(t.Context(), HistoryRecord{ChangeID: id, Kind: Applied}); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.History(t.Context(), HistoryFilter{Limit: 5}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := s.VerifyHistory(t.Context()); err != nil {
		t.Error(err)
	}
	want := map[string]string{}
	for w := range workers {
		want[fmt.Sprintf("global/t%d", w)] = fmt.Sprintf("%d by w%d-%d", each-1, w, each-1)
	}
	got, rev := s.values(t)
	if d := cmp.Diff(want, got); d != "" || rev != 2*workers*each {
		t.Errorf("revision %d: %s", rev, d)
	}
}

// A history from before the table of its settings is in it after the migration.
func TestHistoryOfSchema1(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.mustPropose(t, proposal("c1", setting("global", "timeout", nil, ptr("60")), setting("o2ib1", "tos", nil, ptr("0"))))
	s.mustEnd(t, "c1", Applied)
	s.mustPropose(t, proposal("c2", setting("o2ib1", "tos", ptr("0"), nil)))
	s.mustEnd(t, "c2", Applied)
	s.Close()
	raw(t, dir, `DROP TRIGGER tunable_history_settings_follow`, `DROP VIEW tunable_history_settings_wanted`, `DROP TABLE tunable_history_settings`,
		`DROP INDEX tunable_history_kind`, `DROP INDEX tunable_history_at`, `DROP INDEX tunable_history_who`, `DROP INDEX events_at`,
		`DROP TABLE metric_chunks`, `DROP TABLE metric_sources`, `DROP TABLE metric_tail`, `DROP TABLE metric_size`,
		`UPDATE schema_migrations SET version = 1`, `PRAGMA user_version = 1`)
	s = open(t, dir)
	if n, err := s.VerifyHistory(t.Context()); err != nil || n != 4 {
		t.Errorf("%d records, %v", n, err)
	}
	values, err := s.ValuesAt(t.Context(), 2)
	if err != nil || len(values) != 2 {
		t.Errorf("after the first change: %v, %v", values, err)
	}
	if values, err = s.ValuesAt(t.Context(), 4); err != nil || len(values) != 1 || values[0].Name != "timeout" {
		t.Errorf("after the second: %v, %v", values, err)
	}
	found, err := s.History(t.Context(), HistoryFilter{Name: "tos", Scope: "o2ib1"})
	if err != nil || len(found) != 2 {
		t.Errorf("%v, %v", found, err)
	}
}
