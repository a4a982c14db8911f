package tuning

import (
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Bounds of what the engine and the store may take, so that one change cannot hold up all others for ever.
const (
	applyTime = 2 * time.Minute // to drain NIs and bring them up again
	undoTime  = 30 * time.Second
)

const maxReason = 1000 // bytes

// Change makes a change, or in a dry run says what it would do. When it returns nil the change is in
// force and on disk. The error is a *InvalidError, a *ConflictError, a *PendingError, one of this package's,
// the engine's refusal or the store's failure; the old values are then in force.
func (s *Service) Change(ctx context.Context, r Request) (Result, error) {
	if len(r.Changes) == 0 {
		return Result{}, ErrNothing
	}
	if err := r.check(); err != nil {
		return Result{}, err
	}
	if err := s.enter(ctx); err != nil {
		return Result{}, err
	}
	defer s.leave()
	return s.change(ctx, r)
}

// check looks at what does not depend on the values.
func (r *Request) check() error {
	if r.Reason = strings.ToValidUTF8(strings.TrimSpace(r.Reason), "?"); len(r.Reason) > maxReason {
		return fmt.Errorf("the reason is %d bytes long; allowed: up to %d: %w", len(r.Reason), maxReason, ErrInvalid)
	}
	if w := r.ConfirmWithin; w != 0 && (w < MinConfirm || w > MaxConfirm) {
		return fmt.Errorf("a time of %v to confirm the change; allowed: %v to %v, or 0 for none: %w", w, MinConfirm, MaxConfirm, ErrInvalid)
	}
	return nil
}

// enter waits for the turn of the caller, leave passes it on.
func (s *Service) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another change to end: %w", ctx.Err())
	}
}

func (s *Service) leave() { <-s.turn }

// change is Change by who has the turn.
func (s *Service) change(ctx context.Context, r Request) (Result, error) {
	p, err := s.plan(ctx, r)
	if err != nil {
		return Result{}, err
	}
	if r.DryRun || len(p.items) == 0 {
		return p.result, nil
	}
	if w := s.Pending(); w != nil {
		return Result{}, &PendingError{*w}
	}
	if err := s.carryOut(ctx, r, p); err != nil {
		return Result{}, err
	}
	p.result.ChangeID, p.result.Tag, p.result.Pending = p.id, s.Tag(), s.Pending()
	return p.result, nil
}

// plan is a change that was found valid.
type plan struct {
	id         string
	prev, next tunables.Values // in force before and after
	items      []store.TunableChange
	result     Result
}

func (s *Service) plan(ctx context.Context, r Request) (*plan, error) {
	wanted, adjusted, err := canonical(r.Changes)
	if err != nil {
		return nil, err
	}
	s.mu.RLock()
	changed, tag := s.changed, s.tag()
	s.mu.RUnlock()
	if r.IfMatch != "" && r.IfMatch != "*" && r.IfMatch != tag {
		return nil, s.conflict(ctx, r.IfMatch, wanted)
	}

	p := &plan{prev: changed.Over(s.opts.File)}
	stored := changed.Clone()
	p.result = newResult(r.DryRun, tag)
	p.result.Reverts = r.reverts
	for _, c := range wanted {
		key := tunables.Scoped{Scope: c.Scope, Name: c.Name}
		old := lookup(changed, key)
		if old == nil && c.Value == nil || old != nil && c.Value != nil && *old == *c.Value {
			continue // stands already
		}
		if c.Value == nil {
			delete(stored, key)
		} else {
			stored[key] = string(*c.Value)
		}
		p.items = append(p.items, store.TunableChange{Scope: c.Scope, Name: c.Name, Old: (*string)(old), New: (*string)(c.Value)})
		p.result.add(&p.result.Changed, key, old, c.Value)
	}
	p.next = stored.Over(s.opts.File)
	if bad := tunables.Validate(p.next); len(bad) > 0 {
		return nil, &InvalidError{bad}
	}
	p.describe(append(adjusted, r.notes...), wanted)
	if len(p.items) > 0 && s.opts.Facts != nil {
		p.weigh(s.opts.Facts())
	}
	return p, nil
}

// canonical checks each change by itself, and that none is named twice.
func canonical(changes []Change) (wanted []Change, adjusted []tunables.Note, err error) {
	var bad []tunables.FieldError
	seen := map[tunables.Scoped]bool{}
	for _, c := range changes {
		value := Scalar("")
		if c.Value != nil {
			value = *c.Value
		} else if t, ok := tunables.Lookup(c.Name); ok {
			value = Scalar(t.Default) // unsetting has no value that could be wrong
		}
		key, canon, note, err := tunables.Canonical(tunables.Scoped{Scope: c.Scope, Name: c.Name}, string(value))
		var ferr *tunables.FieldError
		switch {
		case errors.As(err, &ferr):
			bad = append(bad, *ferr)
			continue
		case seen[key]:
			bad = append(bad, tunables.FieldError{Scope: key.Scope, Name: key.Name, Value: canon, Problem: "is named twice", Allowed: "one value for each setting"})
			continue
		}
		seen[key] = true
		w := Change{Scope: key.Scope, Name: key.Name}
		if c.Value != nil {
			w.Value = NewScalar(canon)
		}
		if note != nil {
			adjusted = append(adjusted, *note)
		}
		wanted = append(wanted, w)
	}
	if len(bad) > 0 {
		return nil, nil, &InvalidError{bad}
	}
	slices.SortFunc(wanted, func(a, b Change) int {
		return tunables.Compare(tunables.Scoped{Scope: a.Scope, Name: a.Name}, tunables.Scoped{Scope: b.Scope, Name: b.Name})
	})
	return wanted, adjusted, nil
}

// describe says what the engine makes of the change: values that come out differently, and notes that are
// new or about what was named.
func (p *plan) describe(adjusted []tunables.Note, wanted []Change) {
	scopes := scopesOf(p.prev, p.next)
	before, after := effective(p.prev, scopes), effective(p.next, scopes)
	for _, scope := range scopes {
		for _, t := range tunables.All {
			key := tunables.Scoped{Scope: scope, Name: t.Name}
			if was, is := before[key], after[key]; was != is {
				p.result.add(&p.result.Derived, key, NewScalar(was), NewScalar(is))
			}
		}
	}
	p.result.Notes = append([]tunables.Note{}, adjusted...)
	known := notes(p.prev, scopes)
	for _, n := range notes(p.next, scopes) {
		named := slices.ContainsFunc(wanted, func(c Change) bool { return c.Scope == n.Scope && c.Name == n.Name })
		if named || !slices.Contains(known, n) {
			p.result.Notes = append(p.result.Notes, n)
		}
	}
	for _, n := range p.result.Notes {
		if n.Kind == tunables.Warning || n.Kind == tunables.Clamped {
			p.result.Findings = append(p.result.Findings, n)
		}
	}
}

func newResult(dry bool, tag string) Result {
	return Result{
		DryRun: dry, Tag: tag, Changed: []Changed{}, Derived: []Changed{}, Effects: []tunables.Effect{}, Findings: []tunables.Note{},
		Restarts: []Restart{}, Costs: []Cost{},
	}
}

func (r *Result) add(to *[]Changed, key tunables.Scoped, old, new *Scalar) {
	t, _ := tunables.Lookup(key.Name)
	*to = append(*to, Changed{Scope: key.Scope, Name: key.Name, Old: old, New: new, Unit: t.Unit, Effect: t.Effect})
	if !slices.Contains(r.Effects, t.Effect) {
		r.Effects = append(r.Effects, t.Effect)
	}
}

// carryOut records, applies and records again.
func (s *Service) carryOut(ctx context.Context, r Request, p *plan) error {
	if err := s.settle(ctx); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	var err error
	if p.id, err = s.newID(); err != nil {
		return err
	}
	record := store.HistoryRecord{
		ChangeID: p.id, At: s.opts.Now().UnixMilli(), Who: r.Who, How: r.how(), From: r.From, Reason: r.Reason, Changes: p.items,
		Derived: p.derived(), Reverts: r.reverts, Since: r.since, ConfirmWithin: r.ConfirmWithin.Milliseconds(), ClockIsRight: r.ClockIsRight,
	}
	for _, n := range p.result.Notes {
		record.Notes = append(record.Notes, n.Text)
	}
	defer s.tell(nil)
	s.tell(&Running{ChangeID: p.id, Who: r.Who, StartedAt: record.At, Phase: PhaseRecording, Restarts: p.result.Restarts})
	if err := s.opts.Store.Propose(ctx, record); err != nil {
		s.fail(ctx, record, err) // the commit may have reached the disk all the same
		var clock *store.ClockError
		if errors.As(err, &clock) {
			return fmt.Errorf("nothing was changed: %w: %w", ErrClock, err)
		}
		return fmt.Errorf("nothing was changed: %w", err)
	}
	s.phase(PhaseApplying)
	if err := s.apply(ctx, p); err != nil {
		return s.putBack(ctx, record, p, err)
	}
	// From here the engine has the values: whether the caller still waits must not decide what is stored.
	ctx = context.WithoutCancel(ctx)
	s.phase(PhaseRecording)
	now := s.opts.Now()
	record.Kind, record.At, record.Derived = store.Applied, now.UnixMilli(), nil
	if r.ConfirmWithin > 0 {
		record.ConfirmBy = now.Add(r.ConfirmWithin).UnixMilli()
	}
	seq, err := s.record(ctx, record)
	if err != nil {
		return s.putBack(ctx, record, p, err)
	}
	s.adopt(p, seq)
	if r.ConfirmWithin > 0 {
		s.wait(&waiting{record: record, deadline: now.Add(r.ConfirmWithin)})
	}
	return nil
}

// apply makes the engine use the new values, within applyTime.
func (s *Service) apply(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeoutCause(ctx, applyTime, fmt.Errorf("it was not done within %v", applyTime))
	defer cancel()
	err := s.opts.Applier.Apply(ctx, p.prev, p.next)
	if errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEngine, err)
	}
	return nil
}

// record stores an outcome. Where the store says no, the commit may have reached the disk all the same.
func (s *Service) record(ctx context.Context, r store.HistoryRecord) (seq int64, err error) {
	seq, err = s.opts.Store.Outcome(ctx, r)
	if err != nil {
		last, lastErr := s.opts.Store.LastRecord(ctx, r.ChangeID)
		if lastErr != nil || last.Kind != r.Kind {
			return 0, err
		}
		seq = last.Seq
	}
	return seq, nil
}

// derived are the values that come out differently, for the history.
func (p *plan) derived() []store.TunableChange {
	var list []store.TunableChange
	for _, d := range p.result.Derived {
		list = append(list, store.TunableChange{Scope: d.Scope, Name: d.Name, Old: (*string)(d.Old), New: (*string)(d.New)})
	}
	return list
}

// putBack makes the engine use the old values, records that the change failed, and says so.
func (s *Service) putBack(ctx context.Context, r store.HistoryRecord, p *plan, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if undo := s.opts.Applier.Apply(ctx, p.next, p.prev); undo != nil {
		why = fmt.Errorf("change %s was not made: %w; the engine did not take the old values back either: %w; they are stored, restart the appliance", p.id, why, undo)
	} else {
		why = fmt.Errorf("change %s was not made, the old values are in force: %w", p.id, why)
	}
	s.fail(ctx, r, why)
	return why
}

// fail records that a change failed. What the store does not take is owed, and paid by settle.
func (s *Service) fail(ctx context.Context, r store.HistoryRecord, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	r.Kind, r.At, r.Error, r.ConfirmBy = store.Failed, s.opts.Now().UnixMilli(), why.Error(), 0
	s.owed = &r
	_ = s.settle(ctx) // the next change tries again, and so does the next start
}

// settle records the outcome that is owed, if any: while a change is open the store takes no other.
func (s *Service) settle(ctx context.Context) error {
	if s.owed == nil {
		return nil
	}
	if _, err := s.opts.Store.Outcome(ctx, *s.owed); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	s.owed = nil // stored, or there is no such open change
	return nil
}

// adopt takes the new values over; the store has them.
func (s *Service) adopt(p *plan, seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, setBy := s.changed.Clone(), maps.Clone(s.setBy)
	for _, c := range p.items {
		k := tunables.Scoped{Scope: c.Scope, Name: c.Name}
		if c.New == nil {
			delete(changed, k)
			delete(setBy, k)
		} else {
			changed[k], setBy[k] = *c.New, p.id
		}
	}
	s.changed, s.setBy, s.revision = changed, setBy, seq
}

// newID names a change: short enough to read out, random so that no two histories share one.
func (s *Service) newID() (string, error) {
	b := make([]byte, 10)
	if _, err := io.ReadFull(s.opts.IDs, b); err != nil {
		return "", fmt.Errorf("make a change id: %w", err)
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(b)), nil
}
