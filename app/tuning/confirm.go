package tuning

import (
	"context"
	"errors"
	"fmt"
	"time"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Bounds of the time to confirm a change.
const (
	MinConfirm = time.Second
	MaxConfirm = 24 * time.Hour
)

// retryRollBack is the time between two attempts to roll a change back that do not succeed.
const retryRollBack = 5 * time.Second

// Pending is a change that is rolled back unless somebody confirms it. Times are ms since the epoch.
type Pending struct {
	ChangeID  string `json:"change_id"`
	Who       string `json:"who"`
	At        int64  `json:"at"`
	ConfirmBy int64  `json:"confirm_by"`
}

// PendingError says that another change waits to be confirmed; nothing was done.
type PendingError struct{ Pending }

// Error is one line.
func (e *PendingError) Error() string {
	return fmt.Sprintf("nothing was changed: change %s by %s waits to be confirmed until %s; confirm or revert it first",
		e.ChangeID, e.Who, time.UnixMilli(e.ConfirmBy).UTC().Format(time.RFC3339))
}

// Settled is the answer of a confirmation.
type Settled struct {
	ChangeID string     `json:"change_id"`
	Outcome  store.Kind `json:"outcome"`
	At       int64      `json:"at"`
	Tag      string     `json:"tag"`
}

// waiting is the change that has yet to be confirmed. The deadline has the monotonic clock, so that a
// clock that is set does not move it.
type waiting struct {
	record   store.HistoryRecord // applied
	deadline time.Time
	undone   bool // the engine has the old values already, the store has not; of who holds turn
}

// Pending is the change that waits to be confirmed, nil if none does.
func (s *Service) Pending() *Pending {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.waiting == nil {
		return nil
	}
	r := &s.waiting.record
	return &Pending{ChangeID: r.ChangeID, Who: r.Who, At: r.At, ConfirmBy: r.ConfirmBy}
}

// wait sets what waits, nil for nothing any more.
func (s *Service) wait(w *waiting) {
	s.mu.Lock()
	s.waiting = w
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Service) awaited() *waiting {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.waiting
}

// resume finds the change that waited when the process ended: it is rolled back if its time is over, and
// keeps its clock otherwise. The engine is not up yet.
func (s *Service) resume(ctx context.Context) error {
	r, ok, err := s.opts.Store.Waiting(ctx)
	if err != nil || !ok {
		return err
	}
	now := s.opts.Now()
	// Where the clock was set back meanwhile, the change does not get more than its whole time.
	left := min(r.ConfirmBy-now.UnixMilli(), r.ConfirmWithin)
	if left > 0 {
		s.wait(&waiting{record: r, deadline: now.Add(time.Duration(left) * time.Millisecond)})
		return nil
	}
	end := rolledBack(r, now, "o2ibd", "system", "", "not confirmed in time; its time was over before o2ibd started")
	if _, err := s.record(ctx, end); err != nil {
		return fmt.Errorf("roll change %s back: %w", r.ChangeID, err)
	}
	s.late = &end
	return nil
}

// Late is the change that New rolled back because its time was over, nil if there was none.
func (s *Service) Late() *store.HistoryRecord { return s.late }

func rolledBack(r store.HistoryRecord, now time.Time, who, how, from, why string) store.HistoryRecord {
	return store.HistoryRecord{ChangeID: r.ChangeID, Kind: store.RolledBack, At: now.UnixMilli(), Who: who, How: how, From: from, Reason: why}
}

// Run rolls back what nobody confirms, until ctx ends. It is called once.
func (s *Service) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
		w := s.awaited()
		if w == nil {
			continue
		}
		if left := w.deadline.Sub(s.opts.Now()); left > 0 {
			timer.Reset(left)
			continue
		}
		if !s.expire(ctx) {
			timer.Reset(retryRollBack)
		}
	}
}

// expire rolls back what waits, if its time is still over when our turn comes.
func (s *Service) expire(ctx context.Context) (done bool) {
	if s.enter(ctx) != nil {
		return false
	}
	defer s.leave()
	w := s.awaited()
	if w == nil || w.deadline.After(s.opts.Now()) {
		return true
	}
	end := rolledBack(w.record, s.opts.Now(), "o2ibd", "system", "", "not confirmed in time")
	_, err := s.rollBack(ctx, w, end)
	if s.opts.RolledBack != nil {
		s.opts.RolledBack(end, err)
	}
	return err == nil
}

// rollBack puts the values from before a change that waits in force again and records that.
func (s *Service) rollBack(ctx context.Context, w *waiting, end store.HistoryRecord) (Result, error) {
	s.mu.RLock()
	changed := s.changed
	s.mu.RUnlock()
	back := changed.Clone()
	p := &plan{id: w.record.ChangeID, prev: changed.Over(s.opts.File)}
	p.result = newResult(false, s.Tag())
	for _, c := range w.record.Changes {
		key := tunables.Scoped{Scope: c.Scope, Name: c.Name}
		if c.Old == nil {
			delete(back, key)
		} else {
			back[key] = *c.Old
		}
		p.items = append(p.items, store.TunableChange{Scope: c.Scope, Name: c.Name, Old: c.New, New: c.Old})
		p.result.add(&p.result.Changed, key, (*Scalar)(c.New), (*Scalar)(c.Old))
	}
	p.next = back.Over(s.opts.File)
	p.describe(nil, nil)
	if s.opts.Facts != nil {
		p.weigh(s.opts.Facts())
	}
	defer s.tell(nil)
	s.tell(&Running{ChangeID: p.id, Who: end.Who, StartedAt: end.At, Phase: PhaseApplying, Restarts: p.result.Restarts})
	if !w.undone {
		if err := s.apply(ctx, p); err != nil {
			undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			if undo := s.opts.Applier.Apply(undoing, p.next, p.prev); undo != nil {
				err = fmt.Errorf("%w; it did not take the present values again either: %w; restart the appliance", err, undo)
			}
			return Result{}, fmt.Errorf("change %s is still in force: %w", p.id, err)
		}
		w.undone = true
	}
	s.phase(PhaseRecording)
	seq, err := s.record(context.WithoutCancel(ctx), end)
	if err != nil {
		return Result{}, fmt.Errorf("change %s is no longer in force, which could not be recorded and is tried again: %w", p.id, err)
	}
	s.adoptBack(p.items, back, seq)
	s.wait(nil)
	p.result.ChangeID, p.result.Tag, p.result.Reverts = p.id, s.Tag(), p.id
	return p.result, nil
}

// adoptBack takes over the values that a change is rolled back to; the store says who set them.
func (s *Service) adoptBack(items []store.TunableChange, back tunables.Values, seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	setBy := map[tunables.Scoped]string{}
	for k := range back {
		setBy[k] = s.setBy[k]
	}
	s.changed, s.setBy, s.revision = back, setBy, seq
}

// Confirm makes a change that waits stay. ErrNoChange and ErrNotApplied say that there is no such one.
func (s *Service) Confirm(ctx context.Context, id, who, how, from string) (Settled, error) {
	if err := s.enter(ctx); err != nil {
		return Settled{}, err
	}
	defer s.leave()
	w := s.awaited()
	if w == nil || w.record.ChangeID != id {
		last, err := s.lastOf(ctx, id)
		if err != nil {
			return Settled{}, err
		}
		if last.Kind == store.Applied || last.Kind == store.Confirmed {
			return Settled{}, fmt.Errorf("change %s does not wait to be confirmed, it stays: %w", id, ErrInvalid)
		}
		return Settled{}, fmt.Errorf("change %s cannot be confirmed, it is %s: %w", id, words(last.Kind), ErrNotApplied)
	}
	if w.undone {
		return Settled{}, fmt.Errorf("change %s cannot be confirmed, it is being rolled back: %w", id, ErrNotApplied)
	}
	r := store.HistoryRecord{ChangeID: id, Kind: store.Confirmed, At: s.opts.Now().UnixMilli(), Who: who, How: how, From: from}
	if _, err := s.record(ctx, r); err != nil {
		return Settled{}, fmt.Errorf("change %s still waits to be confirmed: %w", id, err)
	}
	s.wait(nil)
	return Settled{ChangeID: id, Outcome: store.Confirmed, At: r.At, Tag: s.Tag()}, nil
}

// lastOf is the newest record of a change, or ErrNoChange.
func (s *Service) lastOf(ctx context.Context, id string) (store.HistoryRecord, error) {
	r, err := s.opts.Store.LastRecord(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return r, fmt.Errorf("%w: %s", ErrNoChange, clip(id))
	}
	return r, err
}

// words is a kind as people say it.
func words(k store.Kind) string {
	switch k {
	case store.RolledBack:
		return "rolled back"
	case store.Proposed:
		return "being made"
	}
	return string(k)
}
