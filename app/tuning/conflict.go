package tuning

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// ConflictError says that somebody else changed tunables since the caller looked; nothing was done. It has
// the three sides of each setting that the caller wanted to change, and what else has changed.
type ConflictError struct {
	Tag       string     `json:"tag"`        // the one that stands now
	BaseKnown bool       `json:"base_known"` // false where the tag that came is none of ours, or the file is another one
	Clashes   []Conflict `json:"clashes"`    // the settings that the caller wanted to change
	Others    []Moved    `json:"others"`     // what has changed besides, from the caller's view to now
}

// Conflict is a setting that the caller wanted to change; null is not set.
type Conflict struct {
	Scope    string  `json:"scope"`
	Name     string  `json:"name"`
	Base     *Scalar `json:"base"`      // what the caller saw
	Now      *Scalar `json:"now"`       // what stands now
	Yours    *Scalar `json:"yours"`     // what the caller asked for
	Touched  bool    `json:"touched"`   // now differs from base: somebody else changed this very setting
	ChangeID string  `json:"change_id"` // that made it what it is now
	Who      string  `json:"who"`       // "" if nobody changed it here
	Reason   string  `json:"reason"`
	At       *int64  `json:"at"`
}

// Error is one line.
func (e *ConflictError) Error() string {
	var b strings.Builder
	b.WriteString("somebody changed tunables meanwhile, nothing was done; now ")
	for i, c := range e.Clashes {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s is %s", tunables.Scoped{Scope: c.Scope, Name: c.Name}, c.Now.words())
		if c.Who != "" {
			fmt.Fprintf(&b, " (set by %s)", c.Who)
		}
	}
	fmt.Fprintf(&b, "; look again and send the tag %q", e.Tag)
	return b.String()
}

var _, _ error = (*InvalidError)(nil), (*ConflictError)(nil)

// conflict compares what the caller saw, what stands, and what the caller wants.
func (s *Service) conflict(ctx context.Context, seen string, wanted []Change) error {
	s.mu.RLock()
	now, tag, revision := s.changed.Over(s.opts.File), s.tag(), s.revision
	s.mu.RUnlock()
	e := &ConflictError{Tag: tag, Clashes: []Conflict{}, Others: []Moved{}}
	base, known, err := s.seenAt(ctx, seen, revision)
	if err != nil {
		return err
	}
	e.BaseKnown = known
	named := map[tunables.Scoped]bool{}
	for _, w := range wanted {
		key := tunables.Scoped{Scope: w.Scope, Name: w.Name}
		named[key] = true
		c := Conflict{Scope: w.Scope, Name: w.Name, Now: lookup(now, key), Yours: w.Value}
		if known {
			c.Base = lookup(base, key)
			c.Touched = !same(c.Base, c.Now)
		}
		last, err := s.opts.Store.History(ctx, store.HistoryFilter{Name: w.Name, Scope: w.Scope, Limit: historyOfOne})
		if err != nil {
			return err
		}
		for _, h := range last {
			if k := h.Last.Kind; k == store.Applied || k == store.Confirmed || k == store.RolledBack {
				c.ChangeID, c.Who, c.Reason, c.At = h.Last.ChangeID, h.Last.Who, h.Proposal.Reason, &h.Last.At
				break
			}
		}
		e.Clashes = append(e.Clashes, c)
	}
	if known {
		for _, m := range moves(base, now) {
			if !named[tunables.Scoped{Scope: m.Scope, Name: m.Name}] {
				e.Others = append(e.Others, m)
			}
		}
	}
	return e
}

// historyOfOne is how many changes of one setting are looked at for the last that took effect.
const historyOfOne = 20

// seenAt are the values that stood at a tag; known is false if it is none of ours.
func (s *Service) seenAt(ctx context.Context, tag string, newest int64) (v tunables.Values, known bool, err error) {
	number, file, _ := strings.Cut(tag, "-")
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil || seq < 0 || seq > newest || file != s.fileSum() {
		return nil, false, nil
	}
	v, err = s.valuesAt(ctx, seq)
	return v, err == nil, err
}

// valuesAt are the values in force right after a record, with the file as it is today.
func (s *Service) valuesAt(ctx context.Context, seq int64) (tunables.Values, error) {
	v, err := s.changedAt(ctx, seq)
	return v.Over(s.opts.File), err
}

// changedAt are the values that were changed here, right after a record.
func (s *Service) changedAt(ctx context.Context, seq int64) (tunables.Values, error) {
	stored, err := s.opts.Store.ValuesAt(ctx, seq)
	v := tunables.Values{}
	for _, t := range stored {
		v[tunables.Scoped{Scope: t.Scope, Name: t.Name}] = t.Value
	}
	return v, err
}

// moves are the settings that differ.
func moves(from, to tunables.Values) []Moved {
	list := []Moved{}
	for _, k := range to.Over(from).Sorted() {
		if a, b := lookup(from, k), lookup(to, k); !same(a, b) {
			list = append(list, Moved{k.Scope, k.Name, a, b})
		}
	}
	return list
}

func same(a, b *Scalar) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
