package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

type tunablesCmd struct {
	Show    tunablesShowCmd    `cmd:"" help:"Show values and where they come from."`
	Set     tunablesSetCmd     `cmd:"" help:"Change values, all or nothing."`
	History tunablesHistoryCmd `cmd:"" help:"Show who changed what, when and why."`
}

type tunablesShowCmd struct {
	format
	Scope string `help:"global, or a network such as o2ib1; without it all that are set anywhere."`
}

func (c *tunablesShowCmd) Run(e *env) error {
	path := "/api/v1/tunables"
	if c.Scope != "" {
		path += "?scope=" + url.QueryEscape(c.Scope)
	}
	var list tuning.Table
	if err := e.call("GET", path, nil, &list); err != nil {
		return err
	}
	return c.print(e, list, func() *table {
		t := &table{head: []string{"NAME", "VALUE", "IN USE", "DEFAULT", "SOURCE", "EFFECT", "ALLOWED"}}
		for _, r := range list.Tunables {
			t.add(tunables.Scoped{Scope: r.Scope, Name: r.Name}, scalar(r.Value), or(string(r.Effective)), or(string(r.Default)), r.Source, r.Effect, r.Range)
		}
		return t
	})
}

func scalar(s *tuning.Scalar) string {
	if s == nil {
		return "-"
	}
	return or(string(*s))
}

type tunablesSetCmd struct {
	format
	Settings []string `arg:"" name:"[net/]name=value" help:"What to set; NAME= takes a value away again."`
	Reason   string   `help:"Why, for the history."`
	DryRun   bool     `help:"Only say what would happen."`
}

func (c *tunablesSetCmd) Run(e *env) error {
	p := tuning.Patch{Reason: c.Reason, DryRun: c.DryRun}
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
	if err := e.call("PATCH", "/api/v1/tunables", p, &r); err != nil {
		return err
	}
	return c.print(e, r, func() *table {
		t := &table{head: []string{"NAME", "OLD", "NEW", "FROM WHEN ON"}}
		for _, ch := range append(r.Changed, r.Derived...) {
			t.add(tunables.Scoped{Scope: ch.Scope, Name: ch.Name}, scalar(ch.Old), scalar(ch.New), ch.Effect)
		}
		for _, n := range r.Notes {
			t.add("note: " + n.Text)
		}
		switch {
		case r.DryRun:
			t.add("nothing was changed: a dry run")
		case r.ChangeID == "":
			t.add("nothing was changed: all of it stands already")
		default:
			t.add("done, change " + r.ChangeID)
		}
		return t
	})
}

type tunablesHistoryCmd struct {
	format
	Name  string `help:"Only changes of this tunable."`
	Scope string `help:"Only changes in this scope."`
	Who   string `help:"Only changes by this account."`
	Limit int    `default:"100" help:"At most so many changes."`
}

func (c *tunablesHistoryCmd) Run(e *env) error {
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	for key, value := range map[string]string{"name": c.Name, "scope": c.Scope, "who": c.Who} {
		if value != "" {
			q.Set(key, value)
		}
	}
	var h tuning.History
	if err := e.call("GET", "/api/v1/tunables/history?"+q.Encode(), nil, &h); err != nil {
		return err
	}
	return c.print(e, h, func() *table {
		t := &table{head: []string{"AT", "WHO", "HOW", "NAME", "OLD", "NEW", "OUTCOME", "CHANGE", "REASON"}}
		for _, r := range h.Changes {
			outcome := string(r.Outcome)
			if r.Error != "" {
				outcome += ": " + r.Error
			}
			t.add(at(r.At), r.Who, r.How, tunables.Scoped{Scope: r.Scope, Name: r.Name}, scalar(r.Old), scalar(r.New), outcome, r.ChangeID, or(r.Reason))
		}
		return t
	})
}
