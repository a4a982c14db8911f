package tuning_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// within makes a change that must be confirmed.
func (h *house) within(d time.Duration, list tuning.Changes) string {
	h.t.Helper()
	r := request(list)
	r.ConfirmWithin = d
	res, err := h.Change(h.t.Context(), r)
	if err != nil || res.Pending == nil || res.Pending.ChangeID != res.ChangeID {
		h.t.Fatalf("%+v, %v", res, err)
	}
	return res.ChangeID
}

// inBubble runs f with a service whose Run runs, in a bubble with a clock of its own.
func inBubble(t *testing.T, f func(t *testing.T, h *house)) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, values("cksum", "1"))
		f(t, h)
		h.stop()
	})
}

func TestConfirm(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		h.must(changes("peer_credits", "16"))
		h.run()
		tag := h.Tag()
		id := h.within(time.Minute, changes("peer_credits", "32", "timeout", "0"))
		if p := h.Pending(); p == nil || p.Who != "ada" || p.ConfirmBy-p.At != 60_000 {
			t.Errorf("%+v", p)
		}
		time.Sleep(59 * time.Second)
		var pending *tuning.PendingError
		if _, err := h.Change(t.Context(), request(changes("timeout", "70"))); !errors.As(err, &pending) || !strings.Contains(err.Error(), "change "+id+" by ada waits to be confirmed until ") {
			t.Errorf("another change meanwhile: %v", err)
		}
		dry := request(changes("timeout", "70"))
		if dry.DryRun = true; true {
			if _, err := h.Change(t.Context(), dry); err != nil {
				t.Errorf("a dry run meanwhile: %v", err)
			}
		}
		done, err := h.Confirm(t.Context(), id, "bob", "page", "10.0.0.9")
		if err != nil || done.Outcome != store.Confirmed || done.Tag == tag {
			t.Errorf("%+v, %v", done, err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if h.Pending() != nil {
			t.Error("it waits still")
		}
		if _, err := h.Confirm(t.Context(), id, "bob", "page", ""); !errors.Is(err, tuning.ErrInvalid) || !strings.Contains(err.Error(), "it stays") {
			t.Errorf("twice: %v", err)
		}
		if _, err := h.Confirm(t.Context(), "none", "bob", "page", ""); !errors.Is(err, tuning.ErrNoChange) {
			t.Errorf("an unknown one: %v", err)
		}
		h.must(changes("cksum", "0"))
		h.stop()
		h.inForce(values("peer_credits", "32", "timeout", "0", "cksum", "0"), store.Applied, store.Confirmed, store.Applied)
		rows, err := h.History(t.Context(), tuning.HistoryFilter{ChangeID: id})
		if err != nil || rows.Changes[0].OutcomeBy != "bob" || rows.Changes[0].ConfirmBy != nil {
			t.Errorf("%+v, %v", rows, err)
		}
	})
}

func TestNotConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		h.must(changes("peer_credits", "16"))
		h.run()
		id := h.within(time.Minute, changes("peer_credits", "-", "timeout", "0", "o2ib1/tos", "5"))
		before := h.Tag()
		time.Sleep(time.Minute + time.Millisecond)
		synctest.Wait()
		if h.Pending() != nil || h.Tag() == before {
			t.Error("it waits still, or has the tag of before")
		}
		if n := len(h.rolledBack); n != 1 || h.rolledBack[0].ChangeID != id {
			t.Errorf("told %+v", h.rolledBack)
		}
		if _, err := h.Confirm(t.Context(), id, "bob", "page", ""); !errors.Is(err, tuning.ErrNotApplied) || !strings.Contains(err.Error(), "it is rolled back") {
			t.Errorf("%v", err)
		}
		h.must(changes("timeout", "70"))
		h.stop()
		h.inForce(values("peer_credits", "16", "timeout", "70"), store.Applied, store.RolledBack, store.Applied)
	})
}

// The store or the engine says no when the time is over: it is tried again, and no other change comes between.
func TestRollBackFails(t *testing.T) {
	boom := errors.New("boom")
	for name, spoil := range map[string]func(h *house, broken *atomic.Bool){
		"store": func(h *house, broken *atomic.Bool) {
			h.store.before = func(op string) error {
				if broken.Load() && op == string(store.RolledBack) {
					return boom
				}
				return nil
			}
		},
		"engine": func(h *house, broken *atomic.Bool) {
			h.engine.refuse = func(_ int, next tunables.Values) error {
				if broken.Load() && next[scoped("timeout")] == "" {
					return boom
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *house) {
				var broken atomic.Bool
				broken.Store(true)
				spoil(h, &broken)
				h.run()
				h.within(time.Minute, changes("timeout", "0"))
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				var pending *tuning.PendingError
				if _, err := h.Change(t.Context(), request(changes("peer_credits", "16"))); !errors.As(err, &pending) {
					t.Errorf("a change while it is being rolled back: %v", err)
				}
				broken.Store(false)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				h.must(changes("peer_credits", "16"))
				h.stop()
				h.inForce(values("peer_credits", "16"), store.Applied, store.RolledBack)
			})
		})
	}
}

// The process ends while a change waits: within its time it keeps its clock, and after it is rolled back
// before the engine starts.
func TestRestartWhileWaiting(t *testing.T) {
	for name, tc := range map[string]struct {
		down time.Duration // between the end and the next start
		back time.Duration // that the clock is set back meanwhile
		left time.Duration // that the change has then; 0: rolled back
	}{
		"soon":                  {20 * time.Second, 0, 30 * time.Second},
		"late":                  {2 * time.Minute, 0, 0},
		"with the clock behind": {0, time.Hour, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *house) {
				h.must(changes("timeout", "80"))
				h.run()
				id := h.within(time.Minute, changes("timeout", "0"))
				time.Sleep(10 * time.Second)
				h.stop()
				h.store.Close()
				time.Sleep(tc.down)
				h.now = func() time.Time { return time.Now().Add(-tc.back) }
				h.start()
				if tc.left == 0 {
					if late := h.Late(); late == nil || late.ChangeID != id || h.Values()[scoped("timeout")] != "80" {
						t.Errorf("late %+v, in force %v", late, h.Values())
					}
					h.now = nil
					h.inForce(values("timeout", "80"), store.RolledBack, store.Applied)
					return
				}
				if h.Values()[scoped("timeout")] != "0" || h.Pending() == nil {
					t.Fatalf("in force %v, waits %v", h.Values(), h.Pending())
				}
				h.run()
				time.Sleep(tc.left - time.Millisecond)
				synctest.Wait()
				if h.Pending() == nil {
					t.Error("its time was cut short")
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if h.Pending() != nil {
					t.Error("its time was stretched")
				}
				h.stop()
				h.now = nil
				h.inForce(values("timeout", "80"), store.RolledBack, store.Applied)
			})
		})
	}
}

// An engine that never comes back is waited for so long and no longer; then the next change has its turn.
func TestEngineHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		h.engine.hang = true
		_, err := h.Change(t.Context(), request(changes("timeout", "0")))
		if !errors.Is(err, tuning.ErrEngine) || !strings.Contains(err.Error(), "it was not done within 2m0s") {
			t.Errorf("%v", err)
		}
		h.engine.hang = false
		h.must(changes("timeout", "70"))
		h.inForce(values("timeout", "70"), store.Applied, store.Failed)
	})
}

// A clock behind the last record: the change is refused and says so, unless somebody says that the clock is right.
func TestClockBehind(t *testing.T) {
	h := newHouse(t, nil)
	h.must(changes("timeout", "80"))
	h.store.Close()
	h.now = func() time.Time { return time.Now().Add(-time.Hour) }
	h.start()
	_, err := h.Change(t.Context(), request(changes("timeout", "90")))
	var clock *store.ClockError
	if !errors.Is(err, tuning.ErrClock) || !errors.As(err, &clock) || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("%v", err)
	}
	if h.engine.calls != 0 || h.Values()[scoped("timeout")] != "80" {
		t.Errorf("%d calls, %v", h.engine.calls, h.Values())
	}
	r := request(changes("timeout", "90"))
	r.ClockIsRight = true
	if _, err := h.Change(t.Context(), r); err != nil {
		t.Errorf("%v", err)
	}
	h.must(changes("timeout", "95"))
	h.inForce(values("timeout", "95"), store.Applied, store.Applied, store.Applied)
}

func TestRevert(t *testing.T) {
	h := newHouse(t, values("cksum", "1"))
	first := h.must(changes("peer_credits", "16", "timeout", "0"))
	second := h.must(changes("peer_credits", "32"))
	third := h.must(changes("keepalive", "0", "o2ib1/tos", "0"))
	revert := func(id string, since bool) (tuning.Result, error) {
		return h.Revert(t.Context(), tuning.RevertRequest{ChangeID: id, Since: since, Reason: "worse", Who: "bob", How: "page"})
	}
	// peer_credits was changed again since: told with three sides, and nothing done, also not the rest.
	_, err := revert(first.ChangeID, false)
	var conflict *tuning.ConflictError
	if !errors.As(err, &conflict) || len(conflict.Clashes) != 1 {
		t.Fatalf("%v", err)
	}
	c := conflict.Clashes[0]
	if c.Name != "peer_credits" || *c.Base != "16" || *c.Now != "32" || c.Yours != nil || c.ChangeID != second.ChangeID || c.Who != "ada" {
		t.Errorf("%+v", c)
	}
	back, err := revert(third.ChangeID, false)
	if err != nil || back.Reverts != third.ChangeID || len(back.Changed) != 2 {
		t.Errorf("%+v, %v", back, err)
	}
	if again, err := revert(third.ChangeID, false); err != nil || again.ChangeID != "" {
		t.Errorf("reverting what stands already: %+v, %v", again, err)
	}
	dry, err := h.Revert(t.Context(), tuning.RevertRequest{ChangeID: first.ChangeID, Since: true, DryRun: true, Who: "bob", How: "page"})
	if err != nil || len(dry.Changed) != 2 || !dry.DryRun {
		t.Errorf("%+v, %v", dry, err)
	}
	all, err := revert(first.ChangeID, true)
	if err != nil || len(all.Changed) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := revert("none", true); !errors.Is(err, tuning.ErrNoChange) {
		t.Errorf("%v", err)
	}
	rows, err := h.History(t.Context(), tuning.HistoryFilter{How: "revert", Limit: 10})
	if err != nil || len(rows.Changes) != 4 {
		t.Fatalf("%+v, %v", rows, err)
	}
	if r := rows.Changes[0]; r.How != "page, revert of all since "+first.ChangeID || r.Reverts != first.ChangeID || !r.Since || r.Who != "bob" || r.Reason != "worse" {
		t.Errorf("%+v", r)
	}
	if r := rows.Changes[3]; r.How != "page, revert of "+third.ChangeID {
		t.Errorf("%+v", r)
	}
	h.inForce(values(), store.Applied, store.Applied, store.Applied, store.Applied, store.Applied)
}

// To revert a change that waits is to roll it back at once; with a failed one there is nothing to do.
func TestRevertWhatWaits(t *testing.T) {
	h := newHouse(t, nil)
	h.must(changes("timeout", "80"))
	id := h.within(time.Hour, changes("timeout", "0"))
	if _, err := h.Revert(t.Context(), tuning.RevertRequest{ChangeID: id, Who: "bob", How: "page"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Revert(t.Context(), tuning.RevertRequest{ChangeID: id, Who: "bob", How: "page"}); !errors.Is(err, tuning.ErrNotApplied) || !strings.Contains(err.Error(), "it is rolled back") {
		t.Errorf("%v", err)
	}
	rows, err := h.History(t.Context(), tuning.HistoryFilter{Outcome: store.RolledBack})
	if err != nil || len(rows.Changes) != 1 || rows.Changes[0].OutcomeBy != "bob" {
		t.Errorf("%+v, %v", rows, err)
	}
	h.inForce(values("timeout", "80"), store.RolledBack, store.Applied)
}

// run starts the goroutine that rolls back, stop ends it and waits for it.
func (h *house) run() {
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx)
	}()
	h.ends = func() { cancel(); <-done }
}

func (h *house) stop() {
	if h.ends != nil {
		h.ends()
		h.ends = nil
	}
}
