package tuning_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Whatever fails, and whenever the caller goes away: nothing is half applied, and the next change works.
func TestFaults(t *testing.T) {
	boom := errors.New("boom")
	once := func(op string) func(string) error {
		done := false
		return func(o string) error {
			if o == op && !done {
				done = true
				return boom
			}
			return nil
		}
	}
	always := func(ops ...string) func(string) error {
		return func(o string) error {
			for _, op := range ops {
				if o == op {
					return boom
				}
			}
			return nil
		}
	}
	old, next := values("peer_credits", "16"), values("peer_credits", "32", "timeout", "0")
	for _, tc := range []struct {
		name    string
		break_  func(h *house, cancel context.CancelFunc)
		applied bool
		says    string
		outcome []store.Kind
	}{
		{"nothing", func(*house, context.CancelFunc) {}, true, "", []store.Kind{store.Applied, store.Applied}},
		{"proposal not stored", func(h *house, _ context.CancelFunc) { h.store.before = once("propose") }, false, "nothing was changed: boom", []store.Kind{store.Applied}},
		{"proposal stored, answer lost", func(h *house, _ context.CancelFunc) { h.store.after = once("propose") }, false, "nothing was changed: boom", []store.Kind{store.Failed, store.Applied}},
		{"engine refuses", func(h *house, _ context.CancelFunc) {
			h.engine.refuse = func(call int, _ tunables.Values) error { return map[int]error{2: boom}[call] }
		}, false, "the old values are in force: the engine refused it: boom", []store.Kind{store.Failed, store.Applied}},
		{"engine refuses, failure not stored", func(h *house, _ context.CancelFunc) {
			h.engine.refuse = func(call int, _ tunables.Values) error { return map[int]error{2: boom}[call] }
			h.store.before = always("failed")
		}, false, "the engine refused it", []store.Kind{store.Interrupted, store.Applied}},
		{"outcome not stored", func(h *house, _ context.CancelFunc) { h.store.before = once("applied") }, false, "the old values are in force: boom", []store.Kind{store.Failed, store.Applied}},
		{"outcome stored, answer lost", func(h *house, _ context.CancelFunc) { h.store.after = once("applied") }, true, "", []store.Kind{store.Applied, store.Applied}},
		{"nothing can be stored any more", func(h *house, _ context.CancelFunc) { h.store.before = always("applied", "failed", "last") }, false, "boom", []store.Kind{store.Interrupted, store.Applied}},
		{"gone before", func(_ *house, cancel context.CancelFunc) { cancel() }, false, "canceled", []store.Kind{store.Applied}},
		{"gone at the proposal", func(h *house, cancel context.CancelFunc) {
			h.store.before = func(op string) error {
				if op == "propose" {
					cancel()
				}
				return nil
			}
		}, false, "canceled", []store.Kind{store.Applied}},
		{"gone after the proposal", func(h *house, cancel context.CancelFunc) {
			h.store.after = func(op string) error {
				if op == "propose" {
					cancel()
				}
				return nil
			}
		}, false, "the engine refused it: context canceled", []store.Kind{store.Failed, store.Applied}},
		{"gone when the engine has it", func(h *house, cancel context.CancelFunc) {
			h.store.before = func(op string) error {
				if op == "applied" {
					cancel()
				}
				return nil
			}
		}, true, "", []store.Kind{store.Applied, store.Applied}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHouse(t, values("cksum", "1"))
			h.must(changes("peer_credits", "16"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tc.break_(h, cancel)
			_, err := h.Change(ctx, request(changes("peer_credits", "32", "timeout", "0")))
			if (err == nil) != tc.applied || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%v, want %q", err, tc.says)
			}
			want := old
			if tc.applied {
				want = next
			}
			h.inForce(want, tc.outcome...)
			h.must(changes("peer_credits", "64"))
		})
	}
}

// While an outcome is owed no change is made; once the store takes it, changes go on without a restart.
func TestOwedOutcome(t *testing.T) {
	h := newHouse(t, nil)
	full := true
	h.store.before = func(op string) error {
		if full && (op == "failed" || op == "applied") {
			return store.ErrDiskFull
		}
		return nil
	}
	for i := range 2 {
		if _, err := h.Change(t.Context(), request(changes("peer_credits", "16"))); !errors.Is(err, store.ErrDiskFull) {
			t.Errorf("change %d on a full disk: %v", i, err)
		}
	}
	full = false
	h.must(changes("peer_credits", "32"))
	h.inForce(values("peer_credits", "32"), store.Applied, store.Failed)
}

func TestEngineStuck(t *testing.T) {
	h := newHouse(t, nil)
	h.engine.refuse = func(int, tunables.Values) error { return errors.New("stuck") }
	_, err := h.Change(t.Context(), request(changes("peer_credits", "16")))
	if !errors.Is(err, tuning.ErrEngine) || !strings.Contains(err.Error(), "did not take the old values back either: stuck") || !strings.Contains(err.Error(), "restart the appliance") {
		t.Errorf("%v", err)
	}
	h.inForce(values(), store.Failed)
}

// The process ends between proposal and outcome.
func TestKilledInTheMiddle(t *testing.T) {
	h := newHouse(t, nil)
	h.must(changes("peer_credits", "16"))
	err := h.store.Store.Propose(t.Context(), store.HistoryRecord{
		ChangeID: "cut", At: time.Now().UnixMilli(), Who: "bob", How: "cli",
		Changes: []store.TunableChange{{Scope: global, Name: "timeout", New: new(string)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.restart()
	if cut := h.Interrupted(); len(cut) != 1 || cut[0].ChangeID != "cut" {
		t.Errorf("%+v", cut)
	}
	h.inForce(values("peer_credits", "16"), store.Interrupted, store.Applied)
	if len(h.Interrupted()) != 0 {
		t.Error("closed twice")
	}
}
