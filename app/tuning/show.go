package tuning

import (
	"context"
	"fmt"
	"slices"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Show gives the tunables of one scope; "" gives all global ones and, behind them, those of nets that are
// set for a net. The error is a scope that does not exist.
func (s *Service) Show(scope string) (Table, error) {
	s.mu.RLock()
	changed, file, tag := s.changed, s.opts.File, s.tag() // changed is replaced, never written to
	setBy := s.setBy
	s.mu.RUnlock()
	v := changed.Over(file)

	scopes := scopesOf(v)
	if scope != "" {
		canon, err := tunables.CanonicalScope(scope)
		if err != nil {
			return Table{}, err
		}
		scopes = []string{canon}
	}
	t := Table{Tag: tag, Pending: s.Pending(), Tunables: []Row{}}
	for _, sc := range scopes {
		g, n, ns := tunables.Derive(v, sc)
		for _, tun := range tunables.All {
			key := tunables.Scoped{Scope: sc, Name: tun.Name}
			_, set := v[key]
			if sc != tunables.GlobalScope && (!tun.PerNet || scope == "" && !set) {
				continue
			}
			eff, _ := tunables.Effective(g, n, tun.Name)
			row := Row{
				Name: tun.Name, Scope: sc, Value: lookup(v, key), Effective: Scalar(eff), Default: Scalar(tun.Default),
				FileValue: lookup(file, key), Kind: tun.Kind, Unit: tun.Unit, Allowed: orEmpty(tun.Allowed), Range: tun.Range(),
				Flag: tun.Flag(), PerNet: tun.PerNet, Group: tun.Group, Effect: tun.Effect, Derivation: tun.Derived, Help: tun.Help,
				Source: SourceDefault, FromScope: tunables.GlobalScope, Notes: []string{},
			}
			if tun.Kind == tunables.Int {
				row.Min, row.Max = &tun.Min, &tun.Max
			}
			if _, from, ok := v.Find(sc, tun.Name); ok {
				row.FromScope, row.Source = from, SourceFile
				at := tunables.Scoped{Scope: from, Name: tun.Name}
				if _, ok := changed[at]; ok {
					row.Source, row.ChangeID = SourceChanged, setBy[at]
				}
			}
			row.DiffersFromFile = row.FileValue != nil && *row.FileValue != *row.Value
			for _, note := range ns {
				if note.Name == tun.Name {
					row.Notes = append(row.Notes, note.Text)
				}
			}
			t.Tunables = append(t.Tunables, row)
		}
	}
	return t, nil
}

// History lists the settings of past changes.
func (s *Service) History(ctx context.Context, f HistoryFilter) (History, error) {
	if t, ok := tunables.Lookup(f.Name); ok {
		f.Name = t.Name
	}
	if f.Scope != "" {
		var err error
		if f.Scope, err = tunables.CanonicalScope(f.Scope); err != nil {
			return History{}, err
		}
	}
	switch f.Outcome {
	case "", store.Proposed, store.Applied, store.Failed, store.Interrupted, store.Confirmed, store.RolledBack:
	default:
		return History{}, fmt.Errorf("outcome %q; allowed: proposed, applied, failed, interrupted, confirmed, rolled_back: %w", clip(string(f.Outcome)), ErrInvalid)
	}
	entries, err := s.opts.Store.History(ctx, store.HistoryFilter(f))
	if err != nil {
		return History{}, err
	}
	h := History{Changes: []HistoryRow{}}
	for _, e := range entries {
		derived := []Moved{}
		for _, c := range e.Proposal.Derived {
			derived = append(derived, Moved{c.Scope, c.Name, (*Scalar)(c.Old), (*Scalar)(c.New)})
		}
		for _, c := range e.Proposal.Changes {
			if f.Name != "" && c.Name != f.Name || f.Scope != "" && c.Scope != f.Scope {
				continue
			}
			row := HistoryRow{
				Seq: e.Proposal.Seq, ChangeID: e.Proposal.ChangeID, At: e.Proposal.At, Who: e.Proposal.Who, How: e.Proposal.How,
				From: e.Proposal.From, Reason: e.Proposal.Reason, Scope: c.Scope, Name: c.Name, Old: (*Scalar)(c.Old), New: (*Scalar)(c.New),
				Notes: orEmpty(e.Proposal.Notes), Derived: derived, Reverts: e.Proposal.Reverts, Since: e.Proposal.Since,
				Outcome: e.Last.Kind, Error: e.Last.Error,
			}
			if e.Last.Kind != store.Proposed {
				row.OutcomeAt = &e.Last.At
			}
			switch e.Last.Kind {
			case store.Confirmed, store.RolledBack:
				row.OutcomeBy = e.Last.Who
			case store.Applied:
				if e.Last.ConfirmBy != 0 {
					row.ConfirmBy = &e.Last.ConfirmBy
				}
			}
			h.Changes = append(h.Changes, row)
		}
	}
	return h, nil
}

func lookup(v tunables.Values, key tunables.Scoped) *Scalar {
	if s, ok := v[key]; ok {
		return NewScalar(s)
	}
	return nil
}

// orEmpty is a list that is [] in JSON, not null.
func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return slices.Clone(s)
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
