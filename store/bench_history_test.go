package store_test

import (
	"crypto/rand"
	"testing"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

const manyChanges = 100_000

// bigHistory is a service whose store has 100,000 changes.
func bigHistory(b *testing.B) *tuning.Service {
	st, err := store.Open(b.Context(), b.TempDir(), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { st.Close() })
	if err := st.FillHistory(b.Context(), manyChanges, []string{"ntx", "credits", "timeout", "keepalive", "peer_timeout"}); err != nil {
		b.Fatal(err)
	}
	// One that stands alone, at the far end of a filter.
	one := "7"
	if err := st.Propose(b.Context(), store.HistoryRecord{ChangeID: "lone", At: 1e12, Who: "zoe", How: "page", Changes: []store.TunableChange{{Scope: "o2ib7", Name: "tos", New: &one}}}); err != nil {
		b.Fatal(err)
	}
	if _, err := st.Outcome(b.Context(), store.HistoryRecord{ChangeID: "lone", Kind: store.Applied, At: 1e12, Who: "zoe", How: "page"}); err != nil {
		b.Fatal(err)
	}
	s, err := tuning.New(b.Context(), tuning.Options{Store: st, Applier: nil, Now: time.Now, IDs: rand.Reader, File: tunables.Values{}})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// A page of history of 100,000 changes, newest and oldest, and by each filter; the goal is 50 ms for the page.
func BenchmarkHistoryPage(b *testing.B) {
	s := bigHistory(b)
	for _, bc := range []struct {
		name string
		f    tuning.HistoryFilter
	}{
		{"newest", tuning.HistoryFilter{}},
		{"oldest", tuning.HistoryFilter{BeforeSeq: 300}},
		{"name", tuning.HistoryFilter{Name: "timeout"}},
		{"rare-name", tuning.HistoryFilter{Name: "tos"}},
		{"rare-scope", tuning.HistoryFilter{Scope: "o2ib7"}},
		{"who", tuning.HistoryFilter{Who: "zoe"}},
		{"how-none", tuning.HistoryFilter{How: "revert"}},
		{"outcome", tuning.HistoryFilter{Outcome: store.Failed}},
		{"outcome-proposed", tuning.HistoryFilter{Outcome: store.Proposed}},
		{"outcome-none", tuning.HistoryFilter{Outcome: store.RolledBack}},
		{"text-none", tuning.HistoryFilter{Text: "nowhere"}},
		{"time", tuning.HistoryFilter{From: 1_000_000, To: 2_000_000}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.History(b.Context(), bc.f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("diff-of-a-past-time", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Diff(b.Context(), "before:c050000", "now"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			if v, err := s.Verify(b.Context()); err != nil || !v.Whole {
				b.Fatal(v, err)
			}
		}
	})
}
