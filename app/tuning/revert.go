package tuning

import (
	"context"
	"errors"
	"fmt"
	"time"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// RevertRequest asks for a change to be undone.
type RevertRequest struct {
	ChangeID      string
	Since         bool // that change and all after it
	Reason        string
	Who           string
	How           string
	From          string
	IfMatch       string
	DryRun        bool
	ConfirmWithin time.Duration
	ClockIsRight  bool
}

// RevertBody is the body of POST /api/v1/tunables/changes/{id}/revert; it may be absent. A Result answers it.
type RevertBody struct {
	Since          bool    `json:"since"` // that change and all after it
	Reason         string  `json:"reason"`
	ConfirmWithinS float64 `json:"confirm_within_s"`
	DryRun         bool    `json:"dry_run"`
	ClockIsRight   bool    `json:"clock_is_right,omitempty"`
}

// Request is what b asks for; who and how are the caller's to fill in.
func (b RevertBody) Request(id string) RevertRequest {
	return RevertRequest{ChangeID: id, Since: b.Since, Reason: b.Reason, DryRun: b.DryRun, ConfirmWithin: seconds(b.ConfirmWithinS), ClockIsRight: b.ClockIsRight}
}

// Revert undoes a change, by another one that says so. Of a single change each setting gets the value from
// before it; where one was changed again since, nothing is done and a *ConflictError says which. With Since,
// everything is as it was before the change. A change that waits to be confirmed is rolled back.
func (s *Service) Revert(ctx context.Context, r RevertRequest) (Result, error) {
	req := Request{
		Reason: r.Reason, Who: r.Who, How: r.How, From: r.From, IfMatch: r.IfMatch, DryRun: r.DryRun,
		ConfirmWithin: r.ConfirmWithin, ClockIsRight: r.ClockIsRight, reverts: r.ChangeID, since: r.Since,
	}
	if err := req.check(); err != nil {
		return Result{}, err
	}
	if err := s.enter(ctx); err != nil {
		return Result{}, err
	}
	defer s.leave()
	if w := s.awaited(); w != nil && w.record.ChangeID == r.ChangeID && !r.DryRun {
		return s.rollBack(ctx, w, rolledBack(w.record, s.opts.Now(), r.Who, r.How, r.From, req.Reason))
	}
	last, err := s.lastOf(ctx, r.ChangeID)
	if err != nil {
		return Result{}, err
	}
	if !r.Since && last.Kind != store.Applied && last.Kind != store.Confirmed {
		return Result{}, fmt.Errorf("change %s cannot be reverted, it is %s: %w", r.ChangeID, words(last.Kind), ErrNotApplied)
	}
	if r.Since {
		req.Changes, err = s.changesSince(ctx, r.ChangeID)
	} else {
		req.Changes, err = s.inverse(ctx, last)
	}
	if err != nil {
		return Result{}, err
	}
	return s.change(ctx, req)
}

// inverse are the changes that undo r, if nothing of it was changed again.
func (s *Service) inverse(ctx context.Context, r store.HistoryRecord) ([]Change, error) {
	s.mu.RLock()
	now := s.changed
	s.mu.RUnlock()
	var list, again []Change
	for _, c := range r.Changes {
		key := tunables.Scoped{Scope: c.Scope, Name: c.Name}
		back := Change{Scope: c.Scope, Name: c.Name, Value: (*Scalar)(c.Old)}
		stands := lookup(now, key)
		if !same(stands, (*Scalar)(c.New)) && !same(stands, (*Scalar)(c.Old)) {
			again = append(again, back)
		}
		list = append(list, back)
	}
	if len(again) == 0 {
		return list, nil
	}
	applied, err := s.opts.Store.Record(ctx, r.ChangeID, store.Applied)
	if err != nil {
		return nil, err
	}
	return nil, s.conflict(ctx, fmt.Sprintf("%d-%s", applied.Seq, s.fileSum()), again)
}

// changesSince are the changes that lead back to the moment before a change.
func (s *Service) changesSince(ctx context.Context, id string) ([]Change, error) {
	proposal, err := s.opts.Store.Record(ctx, id, store.Proposed)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: %s", ErrNoChange, clip(id))
	}
	if err != nil {
		return nil, err
	}
	then, err := s.changedAt(ctx, proposal.Seq-1)
	if err != nil {
		return nil, err
	}
	s.mu.RLock()
	now := s.changed
	s.mu.RUnlock()
	var list []Change
	for _, m := range moves(now, then) {
		list = append(list, Change{Scope: m.Scope, Name: m.Name, Value: m.New})
	}
	return list, nil
}
