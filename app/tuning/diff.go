package tuning

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Names of points that are no times.
const (
	PointNow      = "now"
	PointDefaults = "defaults" // nothing is set anywhere
	PointFile     = "file"     // what the configuration file says alone
	beforePrefix  = "before:"  // and the id of a change
)

// Diff is what differs between two points.
type Diff struct {
	From Point     `json:"from"`
	To   Point     `json:"to"`
	Rows []DiffRow `json:"rows"`
}

// Point is one side of a diff.
type Point struct {
	Text     string `json:"text"`      // as it was asked for
	At       *int64 `json:"at"`        // null: no point in time
	ChangeID string `json:"change_id"` // the change that it is before or after
}

// DiffRow is a setting that differs, as set or as the engine uses it; null is not set.
type DiffRow struct {
	Scope         string          `json:"scope"`
	Name          string          `json:"name"`
	From          *Scalar         `json:"from"`
	To            *Scalar         `json:"to"`
	EffectiveFrom Scalar          `json:"effective_from"`
	EffectiveTo   Scalar          `json:"effective_to"`
	Unit          string          `json:"unit"`
	Effect        tunables.Effect `json:"effect"`
}

// Diff compares the values at two points: "now" (also ""), "defaults", "file", the id of a change (right
// after it), "before:ID", or a time: RFC 3339, "2006-01-02", "2006-01-02 15:04", "… 15:04:05" (local), or
// milliseconds since the epoch. History keeps what was changed here, so at every point of it the
// configuration file counts as it is today. A point that cannot be read is ErrInvalid or ErrNoChange.
func (s *Service) Diff(ctx context.Context, from, to string) (Diff, error) {
	d := Diff{Rows: []DiffRow{}}
	a, err := s.pointed(ctx, from, &d.From)
	if err != nil {
		return Diff{}, err
	}
	b, err := s.pointed(ctx, to, &d.To)
	if err != nil {
		return Diff{}, err
	}
	scopes := scopesOf(a, b)
	before, after := effective(a, scopes), effective(b, scopes)
	for _, scope := range scopes {
		for _, t := range tunables.All {
			key := tunables.Scoped{Scope: scope, Name: t.Name}
			row := DiffRow{
				Scope: scope, Name: t.Name, From: lookup(a, key), To: lookup(b, key),
				EffectiveFrom: Scalar(before[key]), EffectiveTo: Scalar(after[key]), Unit: t.Unit, Effect: t.Effect,
			}
			if !same(row.From, row.To) || row.EffectiveFrom != row.EffectiveTo {
				d.Rows = append(d.Rows, row)
			}
		}
	}
	return d, nil
}

// pointed reads a point and gives the values there.
func (s *Service) pointed(ctx context.Context, text string, p *Point) (tunables.Values, error) {
	text = strings.TrimSpace(text)
	p.Text = text
	switch text {
	case "", PointNow:
		now := s.opts.Now().UnixMilli()
		p.Text, p.At = PointNow, &now
		return s.Values(), nil
	case PointDefaults:
		return tunables.Values{}, nil
	case PointFile:
		return s.opts.File.Clone(), nil
	}
	if at, ok := readTime(text); ok {
		p.At = &at
		seq, err := s.opts.Store.SeqAt(ctx, at)
		if err != nil {
			return nil, err
		}
		return s.valuesAt(ctx, seq)
	}
	id, before := strings.CutPrefix(text, beforePrefix)
	kind := store.Applied
	if before {
		kind = store.Proposed
	}
	r, err := s.opts.Store.Record(ctx, id, kind)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%q is no point in time; allowed: now, defaults, file, the id of an applied change, before:ID, 2006-01-02 15:04, RFC 3339: %w", clip(text), ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	p.ChangeID, p.At = id, &r.At
	if before {
		r.Seq--
	}
	return s.valuesAt(ctx, r.Seq)
}

// readTime reads a time, in ms since the epoch. A day ends in 24:00: what was changed in it counts.
func readTime(text string) (ms int64, ok bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return n, true
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t.UnixMilli(), true
		}
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return t.AddDate(0, 0, 1).UnixMilli() - 1, true
	}
	return 0, false
}

// Verdict says whether the history is what was written.
type Verdict struct {
	Whole   bool   `json:"whole"`
	Records int64  `json:"records"` // that were looked at
	Seq     int64  `json:"seq"`     // the first record that is wrong, 0 if none is
	Problem string `json:"problem"`
}

// Verify checks the chain of the history. The error is one of reading; a broken chain is a Verdict.
func (s *Service) Verify(ctx context.Context) (Verdict, error) {
	n, err := s.opts.Store.VerifyHistory(ctx)
	var chain *store.ChainError
	if errors.As(err, &chain) {
		return Verdict{Records: n, Seq: chain.Seq, Problem: chain.Error()}, nil
	}
	return Verdict{Whole: err == nil, Records: n}, err
}
