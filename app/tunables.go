package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
	"o2ibd/store"
)

// Tuning shows tunables and their history. Change them by the methods below.
func (a *App) Tuning() *tuning.Service { return a.tuning }

// ChangeTunables makes a change for an operator, who is filled in, and records it in the audit log too.
// The errors are those of tuning.Service.Change, and ErrForbidden.
func (a *App) ChangeTunables(ctx context.Context, who Actor, r tuning.Request) (tuning.Result, error) {
	r.Who, r.How, r.From = who.Name, who.How, who.From
	var names []string
	for _, c := range r.Changes {
		names = append(names, tunables.Scoped{Scope: c.Scope, Name: c.Name}.String())
	}
	return a.change(ctx, who, "tunables.change", strings.Join(names, " "), r.DryRun, func() (tuning.Result, error) { return a.tuning.Change(ctx, r) })
}

// RevertChange undoes a change, or all since it. The errors are those of tuning.Service.Revert, an unknown
// change ErrNotFound too, and ErrForbidden.
func (a *App) RevertChange(ctx context.Context, who Actor, r tuning.RevertRequest) (tuning.Result, error) {
	r.Who, r.How, r.From = who.Name, who.How, who.From
	return a.change(ctx, who, "tunables.revert", r.ChangeID, r.DryRun, func() (tuning.Result, error) { return a.tuning.Revert(ctx, r) })
}

// ImportTunables takes the tunables of a file over. The errors are those of tuning.Service.Import, and
// ErrForbidden.
func (a *App) ImportTunables(ctx context.Context, who Actor, r tuning.ImportRequest) (tuning.Result, error) {
	r.Who, r.How, r.From = who.Name, who.How, who.From
	return a.change(ctx, who, "tunables.import", "", r.DryRun, func() (tuning.Result, error) { return a.tuning.Import(ctx, r) })
}

// change runs one of the ways to change tunables, tells the event log and the audit log.
func (a *App) change(ctx context.Context, who Actor, action, target string, dry bool, do func() (tuning.Result, error)) (tuning.Result, error) {
	var res tuning.Result
	err := allowed(who, RoleOperator)
	if err == nil {
		res, err = do()
	}
	if errors.Is(err, tuning.ErrNoChange) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if dry && err == nil {
		return res, nil
	}
	var names, before, after []string
	for _, c := range res.Changed {
		name := tunables.Scoped{Scope: c.Scope, Name: c.Name}.String()
		names, before, after = append(names, name), append(before, setting(name, c.Old)), append(after, setting(name, c.New))
	}
	if err == nil && res.ChangeID != "" {
		text := "%s changed %s"
		if res.Reverts != "" {
			text = "%s reverted change " + res.Reverts + ": %s"
		}
		a.events.say("tunables", SeverityInfo, text, who.Name, strings.Join(names, ", "))
	}
	return res, a.auditedAs(ctx, AuditEntry{Actor: who, Action: action, Target: target, Before: strings.Join(before, " "), After: strings.Join(after, " ")}, err)
}

func setting(name string, v *tuning.Scalar) string {
	if v == nil {
		return name + " not set"
	}
	return name + "=" + string(*v)
}

// ConfirmChange makes a change stay that would be rolled back otherwise. The errors are those of
// tuning.Service.Confirm, an unknown change ErrNotFound too, and ErrForbidden.
func (a *App) ConfirmChange(ctx context.Context, who Actor, id string) (tuning.Settled, error) {
	var done tuning.Settled
	err := allowed(who, RoleOperator)
	if err == nil {
		done, err = a.tuning.Confirm(ctx, id, who.Name, who.How, who.From)
	}
	if errors.Is(err, tuning.ErrNoChange) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err == nil {
		a.events.say("tunables", SeverityInfo, "%s confirmed change %s", who.Name, id)
	}
	return done, a.auditedAs(ctx, AuditEntry{Actor: who, Action: "tunables.confirm", Target: id, Before: "waits to be confirmed", After: "confirmed"}, err)
}

// VerifyTunables checks the chain of the tunables' history. A broken one is a Verdict, not an error.
func (a *App) VerifyTunables(ctx context.Context) (tuning.Verdict, error) {
	return a.tuning.Verify(ctx)
}

// rolledBack is told of changes that nobody confirmed.
func (a *App) rolledBack(r store.HistoryRecord, failed error) {
	if failed != nil {
		a.events.say("tunables", SeverityError, "change %s was not confirmed in time, but could not be rolled back: %v; it is tried again", r.ChangeID, failed)
		return
	}
	a.events.say("tunables", SeverityWarning, "change %s was rolled back: %s", r.ChangeID, r.Reason)
}

// TuningProgress is the change that is being made, and how far the NIs are that it restarts.
type TuningProgress struct {
	ChangeID  string       `json:"change_id"`
	Who       string       `json:"who"`
	StartedAt int64        `json:"started_at"`
	Phase     string       `json:"phase"` // recording, applying
	NIs       []NIProgress `json:"nis"`
}

// States of an NI while a change restarts it.
const (
	NIDraining   = "draining"   // connections are left
	NIRestarting = "restarting" // none is left, and it is not up yet
	NIUp         = "up"         // with its old connections gone, if the change has got to it
)

// NIProgress is one NI that a change restarts.
type NIProgress struct {
	NI          string `json:"ni"`
	State       string `json:"state"`
	ConnsBefore int    `json:"conns_before"`
	ConnsLeft   int    `json:"conns_left"`
}

// TuningProgress says what the change that is being made is at, nil if none is.
func (a *App) TuningProgress() *TuningProgress {
	r := a.tuning.Running()
	if r == nil {
		return nil
	}
	p := &TuningProgress{ChangeID: r.ChangeID, Who: r.Who, StartedAt: r.StartedAt, Phase: r.Phase, NIs: []NIProgress{}}
	s := a.snapshot() // a tick may be too old for a restart that takes a moment
	for _, x := range r.Restarts {
		n := NIProgress{NI: x.NI, State: NIUp, ConnsBefore: x.Conns}
		for i := range s.Conns {
			if strings.HasPrefix(s.Conns[i].Peer, x.NI+">") {
				n.ConnsLeft++
			}
		}
		for i := range s.Nets {
			switch up := s.Nets[i].Status == "up"; {
			case s.Nets[i].ID != x.NI || up:
			case n.ConnsLeft > 0:
				n.State = NIDraining
			default:
				n.State = NIRestarting
			}
		}
		p.NIs = append(p.NIs, n)
	}
	return p
}

// facts are what the cost of a change depends on: the NIs that run, or else those that are configured.
func (a *App) facts() tuning.Facts {
	s := a.Snapshot()
	var f tuning.Facts
	at := make(map[wire.NID]int, len(s.Nets))
	for _, n := range s.Nets {
		ni := tuning.NIFacts{NID: n.ID, Net: n.Net, Interface: n.Interface, Conns: n.Conns}
		for _, d := range s.Devices {
			if d.Name == n.Device {
				ni.MaxQPWR = d.MaxQPWR
			}
		}
		at[n.NID] = len(f.NIs)
		f.NIs = append(f.NIs, ni)
	}
	for _, p := range s.Peers {
		if p.Conns == 0 {
			continue
		}
		if i, ok := at[p.NI]; ok {
			f.NIs[i].Depths = append(f.NIs[i].Depths, p.QueueDepth)
		}
	}
	var cpts []int
	for _, p := range s.Pools {
		if !slices.Contains(cpts, p.CPT) {
			cpts = append(cpts, p.CPT)
		}
	}
	f.CPTs = len(cpts)
	if len(f.NIs) == 0 {
		for _, ni := range a.cfg.NIs {
			f.NIs = append(f.NIs, tuning.NIFacts{Net: ni.Net, Interface: ni.Interface})
		}
	}
	return f
}
