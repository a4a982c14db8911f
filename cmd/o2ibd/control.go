package main

import (
	"cmp"
	"fmt"
	"net/url"
	"time"

	"o2ibd/app"
	"o2ibd/engine"
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

type peerMessagesCmd struct {
	format
	target
}

func (c *peerMessagesCmd) Run(e *env) error {
	filter := fmt.Sprintf("nid=%q", c.NID)
	if c.NI != "" {
		filter += fmt.Sprintf(" ni=%q", c.NI)
	}
	peers, err := rows[engine.Peer](e, "peers", list{Filter: filter, Limit: 100})
	if err != nil {
		return err
	}
	if len(peers.Rows) == 0 {
		return fmt.Errorf("no peer %s is known: it may have been forgotten, or never have been in contact", c.NID)
	}
	all := make([]app.Messages, len(peers.Rows))
	for i, p := range peers.Rows {
		if err := e.call("GET", "/api/v1/peers/"+url.PathEscape(p.ID)+"/messages", nil, &all[i]); err != nil {
			return err
		}
	}
	return c.print(e, all, func() *table {
		t := &table{head: []string{"CONN", "WHEN", "WAY", "TYPE", "CREDITS", "BYTES", "SAYS"}}
		for _, p := range all {
			for _, conn := range p.Conns {
				for i := range conn.Messages {
					m := &conn.Messages[i]
					t.add(conn.Conn, time.UnixMilli(m.At).UTC().Format("2006-01-02 15:04:05.000"), m.Direction, m.Type, m.Credits, m.Nob, or(m.Says()))
				}
				if conn.EndedAt != nil {
					t.add(conn.Conn, time.UnixMilli(*conn.EndedAt).UTC().Format("2006-01-02 15:04:05.000"), "-", "-", "-", "-", "ended: "+cmp.Or(conn.Error, "nothing was wrong"))
				}
			}
		}
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
