package main

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"o2ibd/app"
	"o2ibd/app/lnetctl"
	"o2ibd/app/tuning"
	"o2ibd/engine"
)

// list are the flags of the commands that show rows.
type list struct {
	Filter string `help:"Only rows that it lets through, such as \"state=connected tx_queued>0 10.0.\"."`
	Sort   string `help:"Field to sort by, with - before it from the largest." placeholder:"FIELD"`
	Limit  int    `help:"At most so many rows." default:"1000"`
}

// rows reads one kind of rows.
func rows[T any](e *env, kind string, l list) (app.Rows[T], error) {
	q := url.Values{}
	for key, value := range map[string]string{"filter": l.Filter, "sort": l.Sort, "limit": strconv.Itoa(l.Limit)} {
		if value != "" {
			q.Set(key, value)
		}
	}
	var r app.Rows[T]
	err := e.call("GET", "/api/v1/"+kind+"?"+q.Encode(), nil, &r)
	return r, err
}

func (e *env) snapshot() (*engine.Snapshot, error) {
	s := new(engine.Snapshot)
	return s, e.call("GET", "/api/v1/snapshot", nil, s)
}

// verbose is the flag of the commands that lnetctl has too. With it they print as lnetctl does.
type verbose struct {
	format
	Verbose bool `short:"v" help:"As lnetctl prints it, with statistics and tunables."`
}

// lnetctl says whether lnetctl's YAML is wanted.
func (v verbose) lnetctl() bool { return v.Output == "yaml" || v.Verbose && v.Output == "table" }

type netCmd struct {
	Show netShowCmd `cmd:"" help:"Show the NIs."`
}

type netShowCmd struct {
	verbose
	list
}

func (c *netShowCmd) Run(e *env) error {
	r, err := rows[engine.Net](e, "nets", c.list)
	if err != nil {
		return err
	}
	if c.lnetctl() {
		s, err := e.snapshot()
		if err != nil {
			return err
		}
		s.Nets = r.Rows
		effective := func(string, string) string { return "" }
		if c.Verbose {
			if effective, err = e.effective(s); err != nil {
				return err
			}
		}
		_, err = e.out.Write(lnetctl.Net(s, effective, c.Verbose))
		return err
	}
	return c.print(e, r, func() *table {
		t := &table{head: []string{"NID", "STATUS", "INTERFACE", "PROVIDER", "PEERS", "CONNS", "CREDITS", "SENT", "RECEIVED", "DROPPED"}}
		for _, n := range r.Rows {
			credits := fmt.Sprintf("%d/%d", n.AvailableCredits, n.Credits)
			t.add(n.NID, n.Status, or(n.Interface), n.Provider, n.Peers, n.Conns, credits, n.SendCount, n.RecvCount, n.DropCount)
		}
		return t
	})
}

// effective reads the tunables that count in each network of s.
func (e *env) effective(s *engine.Snapshot) (lnetctl.Effective, error) {
	values := make(map[string]string)
	for _, n := range s.Nets {
		var t tuning.Table
		if err := e.call("GET", "/api/v1/tunables?scope="+url.QueryEscape(n.Net), nil, &t); err != nil {
			return nil, err
		}
		for _, row := range t.Tunables {
			values[n.Net+"/"+row.Name] = string(row.Effective)
		}
	}
	var t tuning.Table
	if err := e.call("GET", "/api/v1/tunables?scope=global", nil, &t); err != nil {
		return nil, err
	}
	for _, row := range t.Tunables {
		values[row.Name] = string(row.Effective)
	}
	return func(net, name string) string {
		if v, ok := values[net+"/"+name]; ok {
			return v
		}
		return values[name]
	}, nil
}

type peerCmd struct {
	Show     peerShowCmd     `cmd:"" help:"Show the peers."`
	Messages peerMessagesCmd `cmd:"" help:"Show the last messages with a peer, on each connection."`
	Query    peerQueryCmd    `cmd:"" aliases:"add" help:"Say when a peer was last alive, and connect to it if it is not known."`
	Del      peerDelCmd      `cmd:"" help:"Forget a peer: what waits for it fails, its connections close, traffic connects again."`
}

type peerShowCmd struct {
	verbose
	list
}

func (c *peerShowCmd) Run(e *env) error {
	r, err := rows[engine.Peer](e, "peers", c.list)
	if err != nil {
		return err
	}
	if c.lnetctl() {
		s, err := e.snapshot()
		if err != nil {
			return err
		}
		s.Peers = r.Rows
		_, err = e.out.Write(lnetctl.Peer(s, c.Verbose))
		return err
	}
	return c.print(e, r, func() *table {
		now := time.Now().UnixMilli()
		t := &table{head: []string{"NID", "STATE", "CONNS", "DEPTH", "QUEUED", "CREDITS", "ALIVE", "RECONNECTS", "ERROR"}}
		for _, p := range r.Rows {
			t.add(p.NID, p.State, p.Conns, p.QueueDepth, p.TxQueued, p.AvailableCredits, ago(p.LastAliveAt, now), p.Reconnects, or(p.Error))
		}
		return t
	})
}

type connCmd struct {
	Show  connShowCmd  `cmd:"" help:"Show the connections."`
	Close connCloseCmd `cmd:"" help:"Close the connections of a peer; traffic makes new ones."`
}

type connShowCmd struct {
	format
	list
}

func (c *connShowCmd) Run(e *env) error {
	r, err := rows[engine.Conn](e, "conns", c.list)
	if err != nil {
		return err
	}
	return c.print(e, r, func() *table {
		now := time.Now().UnixMilli()
		t := &table{head: []string{"ID", "NID", "STATE", "DIRECTION", "CREDITS", "OUTSTANDING", "RESERVED", "DEPTH", "POSTED", "QUEUED", "NOCRED", "LAST SEND"}}
		for _, n := range r.Rows {
			t.add(n.ID, n.NID, n.State, n.Direction, n.Credits, n.OutstandingCredits, n.ReservedCredits, n.QueueDepth, n.SendsPosted, n.TxQueue, n.TxQueueNocred, ago(n.LastSendAt, now))
		}
		return t
	})
}

type poolCmd struct {
	Show poolShowCmd `cmd:"" help:"Show the pools."`
}

type poolShowCmd struct {
	format
	list
}

func (c *poolShowCmd) Run(e *env) error {
	r, err := rows[engine.Pool](e, "pools", c.list)
	if err != nil {
		return err
	}
	return c.print(e, r, func() *table {
		t := &table{head: []string{"KIND", "NET", "CPT", "USED", "SIZE", "POOLS", "FAILED", "GROWS", "SHRINKS"}}
		for _, p := range r.Rows {
			t.add(p.Kind, p.Net, p.CPT, p.Used, p.Size, p.Pools, p.FailedPools, p.Grows, p.Shrinks)
		}
		return t
	})
}

type deviceCmd struct {
	Show deviceShowCmd `cmd:"" help:"Show the HCAs."`
}

type deviceShowCmd struct {
	format
	list
}

func (c *deviceShowCmd) Run(e *env) error {
	r, err := rows[engine.Device](e, "devices", c.list)
	if err != nil {
		return err
	}
	return c.print(e, r, func() *table {
		t := &table{head: []string{"NAME", "INTERFACE", "ADDRESS", "PROVIDER", "LINK", "STATE", "MTU", "FIRMWARE"}}
		for _, d := range r.Rows {
			t.add(d.Name, d.Interface, d.Addr, d.Provider, d.LinkLayer, d.State, d.MTU, or(d.Firmware))
		}
		return t
	})
}

type statsCmd struct {
	Show statsShowCmd `cmd:"" help:"Show the counters."`
}

type statsShowCmd struct{ format }

func (c *statsShowCmd) Run(e *env) error {
	s, err := e.snapshot()
	if err != nil {
		return err
	}
	if c.Output == "yaml" {
		_, err = e.out.Write(lnetctl.Stats(s))
		return err
	}
	return c.print(e, s.Stats, func() *table {
		t := &table{}
		for _, row := range []struct {
			name  string
			value uint64
		}{
			{"messages alive", s.Stats.MsgsAlloc}, {"messages alive at most", s.Stats.MsgsMax}, {"errors", s.Stats.Errors},
			{"sent", s.Stats.SendCount}, {"received", s.Stats.RecvCount}, {"dropped", s.Stats.DropCount},
			{"bytes sent", s.Stats.SendLength}, {"bytes received", s.Stats.RecvLength}, {"bytes dropped", s.Stats.DropLength},
			{"answers that never came", s.Stats.ResponseTimeoutCount},
		} {
			t.add(row.name, row.value)
		}
		return t
	})
}
