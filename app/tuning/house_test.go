package tuning_test

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

const global = tunables.GlobalScope

func scoped(s string) tunables.Scoped {
	key, err := tunables.ParseScoped(s)
	if err != nil {
		panic(err)
	}
	return key
}

func values(pairs ...string) tunables.Values {
	v := tunables.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v[scoped(pairs[i])] = pairs[i+1]
	}
	return v
}

// changes makes a list of "NAME", "VALUE" pairs; value "-" unsets.
func changes(pairs ...string) tuning.Changes {
	var list tuning.Changes
	for i := 0; i < len(pairs); i += 2 {
		c := tuning.Change{Scope: global, Name: pairs[i]}
		if scope, name, ok := strings.Cut(pairs[i], "/"); ok {
			c.Scope, c.Name = scope, name
		}
		if pairs[i+1] != "-" {
			c.Value = tuning.NewScalar(pairs[i+1])
		}
		list = append(list, c)
	}
	return list
}

// engine is what an Applier tunes.
type engine struct {
	mu     sync.Mutex
	now    tunables.Values
	calls  int
	refuse func(call int, next tunables.Values) error
	hang   bool // until the caller gives up, but for what puts the old values back
}

func (e *engine) Apply(ctx context.Context, prev, next tunables.Values) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	if e.hang && len(next) > len(prev) {
		<-ctx.Done()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.refuse != nil {
		if err := e.refuse(e.calls, next); err != nil {
			return err
		}
	}
	e.now = next.Clone()
	return nil
}

func (e *engine) values() tunables.Values {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now.Clone()
}

// faulty is a store that fails where a test says.
type faulty struct {
	*store.Store
	before func(op string) error // instead of the operation
	after  func(op string) error // after it, as a commit whose answer got lost
}

func (f *faulty) around(op string, do func() error) error {
	if f.before != nil {
		if err := f.before(op); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if f.after != nil {
		return f.after(op)
	}
	return nil
}

func (f *faulty) Propose(ctx context.Context, r store.HistoryRecord) error {
	return f.around("propose", func() error { return f.Store.Propose(ctx, r) })
}

func (f *faulty) Outcome(ctx context.Context, r store.HistoryRecord) (seq int64, err error) {
	err = f.around(string(r.Kind), func() error { seq, err = f.Store.Outcome(ctx, r); return err })
	return seq, err
}

func (f *faulty) LastRecord(ctx context.Context, id string) (r store.HistoryRecord, err error) {
	err = f.around("last", func() error { r, err = f.Store.LastRecord(ctx, id); return err })
	return r, err
}

// house is a service with all that is below it.
type house struct {
	*tuning.Service
	t      *testing.T
	dir    string
	store  *faulty
	engine *engine
	file   tunables.Values
	now    func() time.Time // nil: time.Now
	facts  func() tuning.Facts
	ends   func() // of run

	rolledBack []store.HistoryRecord // that Run told of
}

func newHouse(t *testing.T, file tunables.Values) *house {
	h := &house{t: t, dir: t.TempDir(), file: file}
	h.start()
	t.Cleanup(func() { h.store.Close() })
	return h
}

func (h *house) start() {
	h.t.Helper()
	st, err := store.Open(context.Background(), h.dir, store.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.store, h.engine = &faulty{Store: st}, &engine{}
	h.Service, err = tuning.New(h.t.Context(), h.options())
	if err != nil {
		st.Close()
		h.t.Fatal(err)
	}
	h.engine.now = h.Values()
}

func (h *house) options() tuning.Options {
	o := tuning.Options{Store: h.store, Applier: h.engine, File: h.file, Now: time.Now, IDs: rand.Reader, Facts: h.facts}
	if h.now != nil {
		o.Now = h.now
	}
	o.RolledBack = func(r store.HistoryRecord, failed error) {
		if failed == nil {
			h.rolledBack = append(h.rolledBack, r)
		}
	}
	return o
}

// restart ends the process, in effect, and starts it again.
func (h *house) restart() {
	h.t.Helper()
	h.store.Close()
	h.start()
}

func (h *house) must(list tuning.Changes) tuning.Result {
	h.t.Helper()
	r, err := h.Change(h.t.Context(), request(list))
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func request(list tuning.Changes) tuning.Request {
	return tuning.Request{Changes: list, Reason: "test", Who: "ada", How: "page", From: "127.0.0.1"}
}

func (h *house) row(name string) tuning.Row {
	h.t.Helper()
	key := scoped(name)
	table, err := h.Show(key.Scope)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range table.Tunables {
		if r.Name == key.Name {
			return r
		}
	}
	h.t.Fatalf("no row %s", name)
	return tuning.Row{}
}

// inForce checks that service, engine and, after a restart, the store agree on what is in force, and that
// the history is sound and has these outcomes, newest first.
func (h *house) inForce(want tunables.Values, outcomes ...store.Kind) {
	h.t.Helper()
	want = want.Over(h.file)
	if d := cmp.Diff(want, h.Values()); d != "" {
		h.t.Errorf("service (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want, h.engine.values()); d != "" {
		h.t.Errorf("engine (-want +got):\n%s", d)
	}
	h.restart()
	if d := cmp.Diff(want, h.Values()); d != "" {
		h.t.Errorf("after a restart (-want +got):\n%s", d)
	}
	if _, err := h.store.VerifyHistory(h.t.Context()); err != nil {
		h.t.Error(err)
	}
	history, err := h.History(h.t.Context(), tuning.HistoryFilter{})
	if err != nil {
		h.t.Fatal(err)
	}
	var got []store.Kind
	last := ""
	for _, r := range history.Changes {
		if r.ChangeID != last {
			got, last = append(got, r.Outcome), r.ChangeID
		}
	}
	if d := cmp.Diff(outcomes, got); d != "" {
		h.t.Errorf("outcomes (-want +got):\n%s", d)
	}
}
