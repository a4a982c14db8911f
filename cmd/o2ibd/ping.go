package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"o2ibd/app"
)

type pingCmd struct {
	format
	NID     string        `arg:"" name:"nid" help:"Whom to ping, such as 10.0.0.2@o2ib."`
	Count   int           `short:"c" default:"1" help:"Pings, one a second."`
	Timeout time.Duration `default:"5s" help:"How long to wait for each answer."`
}

// pings is what came of all pings.
type pings struct {
	app.PingResult
	RTTs []float64 `json:"rtts_ms"`
	Lost int       `json:"lost"`
}

// AfterApply checks what kong cannot.
func (c *pingCmd) AfterApply() error {
	if c.Count < 1 || c.Timeout <= 0 {
		return errors.New("--count and --timeout must be more than 0")
	}
	return nil
}

func (c *pingCmd) Run(e *env) error {
	cl, err := e.dial()
	if err != nil {
		return err
	}
	all := pings{RTTs: []float64{}}
	var last error
	for i := range c.Count {
		if i > 0 {
			select {
			case <-time.After(time.Second):
			case <-e.ctx.Done():
				return e.ctx.Err()
			}
		}
		var r app.PingResult
		if err := cl.call("POST", "/api/v1/ping", app.PingRequest{NID: c.NID, TimeoutS: c.Timeout.Seconds()}, &r); err != nil {
			all.Lost++
			last = err
			continue
		}
		all.PingResult = r
		all.RTTs = append(all.RTTs, float64(r.RTT)/float64(time.Millisecond))
	}
	if len(all.RTTs) == 0 {
		return last
	}
	if err := c.print(e, all, func() *table { return pingTable(all) }); err != nil {
		return err
	}
	if all.Lost > 0 {
		return fmt.Errorf("%d of %d pings were lost: %w", all.Lost, c.Count, last)
	}
	return nil
}

func pingTable(p pings) *table {
	t := &table{}
	features := fmt.Sprintf("0x%x", p.Features)
	if len(p.FeatureNames) > 0 {
		features += " " + strings.Join(p.FeatureNames, ", ")
	}
	t.add("from", p.From)
	t.add("pid", p.PID)
	t.add("features", features)
	for _, ni := range p.NIDs {
		t.add("nid", ni.NID+"  "+ni.Status)
	}
	lo, hi, sum := p.RTTs[0], p.RTTs[0], 0.0
	for _, v := range p.RTTs {
		lo, hi, sum = min(lo, v), max(hi, v), sum+v
		t.add("rtt", fmt.Sprintf("%.3f ms", v))
	}
	if len(p.RTTs) > 1 {
		t.add("min/avg/max", fmt.Sprintf("%.3f/%.3f/%.3f ms", lo, sum/float64(len(p.RTTs)), hi))
	}
	return t
}
