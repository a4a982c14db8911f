package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

// changeFlags are those of every command that changes tunables.
type changeFlags struct {
	format
	Reason        string        `help:"Why, for the history."`
	DryRun        bool          `help:"Only say what would happen."`
	ConfirmWithin time.Duration `placeholder:"5m" help:"Roll it back unless it is confirmed within this time."`
	ClockIsRight  bool          `help:"Go on although the history has a later time: the clock was wrong then."`
}

// report prints what a change did, or would do.
func (c *changeFlags) report(e *env, r tuning.Result) error {
	return c.print(e, r, func() *table {
		t := &table{head: []string{"NAME", "OLD", "NEW", "FROM WHEN ON"}}
		for _, ch := range append(r.Changed, r.Derived...) {
			t.add(tunables.Scoped{Scope: ch.Scope, Name: ch.Name}, scalar(ch.Old), scalar(ch.New), ch.Effect)
		}
		for _, n := range r.Notes {
			t.add("note: " + n.Text)
		}
		for _, c := range r.Costs {
			for _, text := range c.Text {
				t.add(c.Scope + ": " + text)
			}
		}
		for _, x := range r.Restarts {
			t.add(fmt.Sprintf("NI %s restarts: %d connections to %d peers are drained and made anew", x.NI, x.Conns, x.Peers))
		}
		switch {
		case r.DryRun:
			t.add("nothing was changed: a dry run")
		case r.ChangeID == "":
			t.add("nothing was changed: all of it stands already")
		case r.Pending != nil:
			t.add(fmt.Sprintf("done, change %s; it is rolled back unless you confirm it until %s: o2ibd tunables confirm %s", r.ChangeID, at(r.Pending.ConfirmBy), r.ChangeID))
		default:
			t.add("done, change " + r.ChangeID)
		}
		return t
	})
}

type tunablesSetCmd struct {
	changeFlags
	Settings []string `arg:"" name:"[net/]name=value" help:"What to set; NAME= takes a value away again."`
	IfMatch  string   `placeholder:"TAG" help:"Only if nothing was changed since a look that had this tag."`
}

func (c *tunablesSetCmd) Run(e *env) error {
	p := tuning.Patch{Reason: c.Reason, DryRun: c.DryRun, ConfirmWithinS: c.ConfirmWithin.Seconds(), ClockIsRight: c.ClockIsRight}
	for _, s := range c.Settings {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return usageError{fmt.Errorf("%q is no setting: NAME=VALUE or NET/NAME=VALUE is wanted", s)}
		}
		ch := tuning.Change{Scope: tunables.GlobalScope, Name: name}
		if net, rest, ok := strings.Cut(name, "/"); ok {
			ch.Scope, ch.Name = net, rest
		}
		if value != "" {
			ch.Value = tuning.NewScalar(value)
		}
		p.Changes = append(p.Changes, ch)
	}
	var r tuning.Result
	if err := e.callIf(c.IfMatch, "PATCH", "/api/v1/tunables", p, &r); err != nil {
		return err
	}
	return c.report(e, r)
}

type tunablesConfirmCmd struct {
	format
	ID string `arg:"" optional:"" help:"The change; without it the one that waits."`
}

func (c *tunablesConfirmCmd) Run(e *env) error {
	if c.ID == "" {
		var list tuning.Table
		if err := e.call("GET", "/api/v1/tunables", nil, &list); err != nil {
			return err
		}
		if list.Pending == nil {
			return errors.New("no change waits to be confirmed")
		}
		c.ID = list.Pending.ChangeID
	}
	var s tuning.Settled
	if err := e.call("POST", changePath(c.ID)+"/confirm", nil, &s); err != nil {
		return err
	}
	return c.print(e, s, func() *table {
		t := &table{}
		t.add("change " + s.ChangeID + " is confirmed and stays")
		return t
	})
}

type tunablesRevertCmd struct {
	changeFlags
	ID    string `arg:"" help:"The change, as the history names it."`
	Since bool   `help:"Undo all changes after it, too."`
}

func (c *tunablesRevertCmd) Run(e *env) error {
	b := tuning.RevertBody{Since: c.Since, Reason: c.Reason, DryRun: c.DryRun, ConfirmWithinS: c.ConfirmWithin.Seconds(), ClockIsRight: c.ClockIsRight}
	var r tuning.Result
	if err := e.call("POST", changePath(c.ID)+"/revert", b, &r); err != nil {
		return err
	}
	return c.report(e, r)
}

func changePath(id string) string { return "/api/v1/tunables/changes/" + url.PathEscape(id) }

type tunablesImportCmd struct {
	changeFlags
	File string `arg:"" help:"modprobe.d options, an lnetctl export, or a configuration of o2ibd; - reads stdin."`
}

// maxImport is what the appliance takes, with room for its JSON form.
const maxImport = 512 << 10

func (c *tunablesImportCmd) Run(e *env) error {
	in := e.in
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxImport+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", c.File, err)
	}
	if len(text) > maxImport {
		return fmt.Errorf("%s is larger than %d bytes", c.File, maxImport)
	}
	b := tuning.ImportBody{Text: string(text), Reason: c.Reason, DryRun: c.DryRun, ConfirmWithinS: c.ConfirmWithin.Seconds(), ClockIsRight: c.ClockIsRight}
	var r tuning.Result
	if err := e.call("POST", "/api/v1/tunables/import", b, &r); err != nil {
		return err
	}
	return c.report(e, r)
}
