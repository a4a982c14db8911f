package main

import (
	"fmt"
	"time"

	"o2ibd/app"
)

// target names the peer of a control command.
type target struct {
	NID string `arg:"" help:"The peer, such as 10.0.0.2@o2ib."`
	NI  string `help:"Our NID towards it; without, the NI of its network, or all." placeholder:"NID"`
}

func (t target) request() app.PeerRequest { return app.PeerRequest{NID: t.NID, NI: t.NI} }

type peerQueryCmd struct {
	format
	target
}

func (c *peerQueryCmd) Run(e *env) error {
	var ans app.PeerAnswer
	if err := e.call("POST", "/api/v1/peers/query", c.request(), &ans); err != nil {
		return err
	}
	return c.print(e, ans, func() *table {
		t := &table{head: []string{"NID", "ALIVE", "CONNECTING"}}
		t.add(ans.NID, ago(ans.LastAliveAt, time.Now().UnixMilli()), ans.Connecting)
		return t
	})
}

type peerDelCmd struct{ target }

func (c *peerDelCmd) Help() string { return "NID may be '*' for all peers." }

func (c *peerDelCmd) Run(e *env) error {
	if err := e.call("POST", "/api/v1/peers/delete", c.request(), nil); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%s is forgotten\n", c.NID)
	return nil
}

type connCloseCmd struct{ target }

func (c *connCloseCmd) Help() string { return "NID may be '*' for the connections of all peers." }

func (c *connCloseCmd) Run(e *env) error {
	var ans app.PeerAnswer
	if err := e.call("POST", "/api/v1/conns/close", c.request(), &ans); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "connections closed: %d\n", ans.Closed)
	return nil
}
