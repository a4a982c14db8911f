package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

type tunablesDiffCmd struct {
	format
	From string `arg:"" optional:"" default:"defaults" help:"now, defaults, file, a change's ID (after it), before:ID, or a time such as '2006-01-02 15:04'."`
	To   string `arg:"" optional:"" default:"now" help:"The same."`
}

func (c *tunablesDiffCmd) Run(e *env) error {
	var d tuning.Diff
	if err := e.call("GET", "/api/v1/tunables/diff?"+url.Values{"from": {c.From}, "to": {c.To}}.Encode(), nil, &d); err != nil {
		return err
	}
	return c.print(e, d, func() *table {
		t := &table{head: []string{"NAME", "FROM", "TO", "IN USE FROM", "IN USE TO", "EFFECT"}}
		for _, r := range d.Rows {
			t.add(tunables.Scoped{Scope: r.Scope, Name: r.Name}, scalar(r.From), scalar(r.To), or(string(r.EffectiveFrom)), or(string(r.EffectiveTo)), r.Effect)
		}
		return t
	})
}

type tunablesVerifyCmd struct{ format }

func (c *tunablesVerifyCmd) Run(e *env) error {
	var v tuning.Verdict
	if err := e.call("GET", "/api/v1/tunables/verify", nil, &v); err != nil {
		return err
	}
	if !v.Whole && c.Output == "table" {
		return errors.New(v.Problem)
	}
	err := c.print(e, v, func() *table {
		t := &table{}
		t.add(fmt.Sprintf("the history is whole: %d records", v.Records))
		return t
	})
	if err == nil && !v.Whole {
		err = errors.New(v.Problem)
	}
	return err
}

type tunablesExportCmd struct {
	Format string `required:"" enum:"modprobe,lnetctl" help:"modprobe or lnetctl."`
}

func (c *tunablesExportCmd) Run(e *env) error {
	cl, err := e.dial()
	if err != nil {
		return err
	}
	b, err := cl.do("GET", "/api/v1/tunables/export?format="+c.Format, nil)
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = io.Copy(e.out, b)
	return err
}
