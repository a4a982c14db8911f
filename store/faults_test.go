package store_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// What a change meets when the database cannot be written: it is refused with the reason, the old values
// stand in the engine as in the store, and once the cause is mended changes go on without a restart.
func TestChangeOnSickDatabase(t *testing.T) {
	for _, tc := range []struct {
		name  string
		sick  func(t *testing.T, st *store.Store) (mend func())
		is    error
		wants []string
	}{
		{"disk full", func(t *testing.T, st *store.Store) func() {
			pages, err := st.Pages(t.Context())
			must(t, err)
			must(t, st.Pragma(t.Context(), fmt.Sprintf("max_page_count = %d", pages)))
			return func() { must(t, st.Pragma(t.Context(), "max_page_count = 1000000")) }
		}, store.ErrDiskFull, []string{"disk full", "cannot grow", "make room"}},
		{"read-only", func(t *testing.T, st *store.Store) func() {
			must(t, st.Pragma(t.Context(), "query_only = 1"))
			return func() { must(t, st.Pragma(t.Context(), "query_only = 0")) }
		}, store.ErrUnwritable, []string{"not writable", "change its owner or permissions"}},
		{"locked", func(t *testing.T, st *store.Store) func() {
			db, err := sql.Open("sqlite3", "file:"+st.Path()+"?_txlock=immediate")
			must(t, err)
			tx, err := db.Begin()
			must(t, err)
			return func() { must(t, errors.Join(tx.Rollback(), db.Close())) }
		}, store.ErrUnwritable, []string{"locked by another program", "end that program"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store.ShortenBusyTimeout(t)
			dir := t.TempDir()
			st, err := store.Open(t.Context(), dir, store.Options{})
			must(t, err)
			defer func() { st.Close() }()
			inEngine := tunables.Values{}
			applier := tuning.ApplierFunc(func(_ context.Context, _, next tunables.Values) error { inEngine = next.Clone(); return nil })
			s, err := tuning.New(t.Context(), tuning.Options{Store: st, Applier: applier, Now: time.Now, IDs: rand.Reader})
			must(t, err)
			timeout := tunables.Scoped{Scope: tunables.GlobalScope, Name: "timeout"}
			// A reason of this length fills a page with each change, so a database that cannot grow is soon full.
			change := func(value string) (tuning.Result, error) {
				return s.Change(t.Context(), tuning.Request{Changes: []tuning.Change{{Name: "timeout", Value: tuning.NewScalar(value)}}, Reason: strings.Repeat("x", 1000), Who: "ada", How: "page"})
			}
			_, err = change("1")
			must(t, err)
			mend := tc.sick(t, st)
			last := "1"
			for i := 2; err == nil; i++ {
				if i > 200 {
					t.Fatal("200 changes on a sick database")
				}
				if _, err = change(fmt.Sprint(i)); err == nil {
					last = fmt.Sprint(i)
				}
			}
			if !errors.Is(err, tc.is) {
				t.Errorf("%v", err)
			}
			for _, w := range tc.wants {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if got := s.Values()[timeout]; got != last || inEngine[timeout] != last {
				t.Errorf("in force: %s, in the engine %s, want %s", got, inEngine[timeout], last)
			}
			if _, err := s.Show(""); err != nil {
				t.Errorf("show: %v", err)
			}
			mend()
			_, err = change("5000")
			must(t, err)
			must(t, st.Close())
			st, err = store.Open(t.Context(), dir, store.Options{})
			must(t, err)
			s, err = tuning.New(t.Context(), tuning.Options{Store: st, Applier: applier, Now: time.Now, IDs: rand.Reader})
			must(t, err)
			if v, err := s.Verify(t.Context()); err != nil || !v.Whole || s.Values()[timeout] != "5000" {
				t.Errorf("after a restart: %+v, %v, %v", v, err, s.Values())
			}
		})
	}
}

// Metric samples that find no room do not spoil what a change relies on: the writer syncs again afterwards.
func TestTailLeavesTheWriterAsItWas(t *testing.T) {
	st, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	must(t, err)
	defer st.Close()
	must(t, st.AddMetricTail(t.Context(), store.MetricTail{At: 1, Res: 1000, Data: []byte{1}}))
	pages, err := st.Pages(t.Context())
	must(t, err)
	must(t, st.Pragma(t.Context(), fmt.Sprintf("max_page_count = %d", pages)))
	if err := st.AddMetricTail(t.Context(), store.MetricTail{At: 2, Res: 1000, Data: make([]byte, 1<<20)}); !errors.Is(err, store.ErrDiskFull) {
		t.Errorf("%v", err)
	}
	if n := st.Synchronous(t); n != 2 {
		t.Errorf("synchronous is %d, want 2, full", n)
	}
	tail, err := st.MetricTail(t.Context())
	if err != nil || len(tail) != 1 {
		t.Errorf("%v, %v", tail, err)
	}
}

// All chunks together stay within the bound: the oldest of the coarsest go first.
func TestMetricBound(t *testing.T) {
	st, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	must(t, err)
	defer st.Close()
	const most = 50_000
	for i := range 40 {
		var chunks []store.MetricChunk
		for _, res := range []int64{1000, 300_000} {
			for _, source := range []string{"a", "b"} {
				chunks = append(chunks, store.MetricChunk{Source: source, Res: res, Start: int64(i), Data: make([]byte, 936)})
			}
		}
		must(t, st.FoldMetrics(t.Context(), chunks, nil, []store.MetricKeep{{Res: 1000, Oldest: int64(i) - 9}}, most))
	}
	names, bytes, err := st.MetricSources(t.Context())
	if err != nil || bytes > most || bytes < most-2000 || len(names) != 2 {
		t.Errorf("%d bytes of %v, %v", bytes, names, err)
	}
	counted, oldest := int64(0), map[int64]int64{1000: 99, 300_000: 99}
	for res := range oldest {
		must(t, st.MetricChunks(t.Context(), nil, res, 0, 100, func(c store.MetricChunk) error {
			counted, oldest[res] = counted+int64(len(c.Data))+64, min(oldest[res], c.Start)
			return nil
		}))
	}
	if counted != bytes || oldest[1000] != 30 || oldest[300_000] != 25 {
		t.Errorf("%d bytes counted, %d kept account of, oldest %v", counted, bytes, oldest)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
