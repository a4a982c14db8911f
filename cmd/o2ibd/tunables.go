package main

import (
	"net/url"
	"strconv"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

type tunablesCmd struct {
	Show    tunablesShowCmd    `cmd:"" help:"Show values and where they come from."`
	Set     tunablesSetCmd     `cmd:"" help:"Change values, all or nothing."`
	Confirm tunablesConfirmCmd `cmd:"" help:"Keep a change that would be rolled back."`
	Revert  tunablesRevertCmd  `cmd:"" help:"Undo a change, or all since it."`
	History tunablesHistoryCmd `cmd:"" help:"Show who changed what, when and why."`
	Diff    tunablesDiffCmd    `cmd:"" help:"Compare the values of two points in time."`
	Verify  tunablesVerifyCmd  `cmd:"" help:"Check that nobody altered the history."`
	Export  tunablesExportCmd  `cmd:"" help:"Print the values that are set, for a kernel node."`
	Import  tunablesImportCmd  `cmd:"" help:"Take over the tunables of a file."`
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
		if p := list.Pending; p != nil {
			t.add("change " + p.ChangeID + " by " + p.Who + " is rolled back unless it is confirmed until " + at(p.ConfirmBy))
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

type tunablesHistoryCmd struct {
	format
	Name    string `help:"Only changes of this tunable."`
	Scope   string `help:"Only changes in this scope."`
	Who     string `help:"Only changes by this account."`
	How     string `help:"Only changes that came so: page, token, socket, import, revert."`
	Outcome string `help:"Only changes of this outcome: applied, confirmed, rolled_back, failed, interrupted."`
	Text    string `help:"Only changes with this in their reason."`
	Limit   int    `default:"100" help:"At most so many changes."`
}

func (c *tunablesHistoryCmd) Run(e *env) error {
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	for key, value := range map[string]string{"name": c.Name, "scope": c.Scope, "who": c.Who, "how": c.How, "outcome": c.Outcome, "text": c.Text} {
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
			if r.ConfirmBy != nil {
				outcome += ", to confirm until " + at(*r.ConfirmBy)
			}
			if r.Error != "" {
				outcome += ": " + r.Error
			}
			t.add(at(r.At), r.Who, r.How, tunables.Scoped{Scope: r.Scope, Name: r.Name}, scalar(r.Old), scalar(r.New), outcome, r.ChangeID, or(r.Reason))
		}
		return t
	})
}
