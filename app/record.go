package app

import (
	"context"
	"errors"
	"io"

	"o2ibd/app/bundle"
	"o2ibd/app/tuning"
	"o2ibd/store"
)

// Tunables is tunables.json of a bundle.
type Tunables struct {
	tuning.Table
	Nets []tuning.Table `json:"nets"` // what counts in each network
}

func (a *App) writeTunables(_ context.Context, w io.Writer) error {
	global, err := a.tuning.Show("global")
	if err != nil {
		return err
	}
	t := Tunables{Table: global, Nets: []tuning.Table{}}
	seen := make(map[string]bool)
	for _, n := range a.Snapshot().Nets {
		if seen[n.Net] {
			continue
		}
		seen[n.Net] = true
		net, err := a.tuning.Show(n.Net)
		if err != nil {
			return err
		}
		t.Nets = append(t.Nets, net)
	}
	return bundle.JSON(w, t)
}

// History is tunables-history.json of a bundle: newest first, each record with the hash of the one before.
type History struct {
	Whole   bool                 `json:"whole"`   // every hash is right and no record is missing
	Problem string               `json:"problem"` // what is wrong with the chain
	Changes []store.HistoryEntry `json:"changes"`
}

func (a *App) writeHistory(ctx context.Context, w io.Writer) error {
	h := History{Whole: true, Changes: []store.HistoryEntry{}}
	var chain *store.ChainError
	switch _, err := a.db.VerifyHistory(ctx); {
	case errors.As(err, &chain):
		h.Whole, h.Problem = false, chain.Error()
	case err != nil:
		return err
	}
	f := store.HistoryFilter{Limit: pageSize}
	for {
		page, err := a.db.History(ctx, f)
		if err != nil {
			return err
		}
		h.Changes = append(h.Changes, page...)
		if len(page) < pageSize {
			return bundle.JSON(w, h)
		}
		f.BeforeSeq = page[len(page)-1].Proposal.Seq
	}
}
