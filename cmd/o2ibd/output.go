package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
)

// format is the flag of every command that prints data.
type format struct {
	Output string `short:"o" enum:"table,json,yaml" default:"table" help:"table, json or yaml."`
}

// table is rows of cells under their heads.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

// print writes data in the form that was asked for; t makes the table.
func (f format) print(e *env, data any, t func() *table) error {
	switch f.Output {
	case "json":
		enc := json.NewEncoder(e.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(data)
	case "yaml":
		var b bytes.Buffer
		if err := json.NewEncoder(&b).Encode(data); err != nil {
			return err
		}
		y, err := yaml.JSONToYAML(b.Bytes())
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = e.out.Write(y)
		return err
	}
	return t().print(e)
}

func (t *table) print(e *env) error {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	if t.head != nil {
		fmt.Fprintln(w, strings.Join(t.head, "\t"))
	}
	for _, r := range t.rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(r, "\t"), "\t"))
	}
	return w.Flush()
}

// at is a time in milliseconds since the epoch, as people read it.
func at(ms int64) string { return time.UnixMilli(ms).Format(time.DateTime) }

// ago is the age of a time at now, both in milliseconds since the epoch; "-" where there is none.
func ago(ms *int64, now int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(max(now-*ms, 0)) * time.Millisecond).Truncate(100 * time.Millisecond).String()
}

// or is s, or "-" for nothing.
func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
