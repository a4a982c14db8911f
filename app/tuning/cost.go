package tuning

import (
	"fmt"

	"o2ibd/engine/tunables"
)

// Facts are what the cost of a change depends on besides the values: what runs now.
type Facts struct {
	CPTs int // at least 1 counts
	NIs  []NIFacts
}

// NIFacts is one NI of ours.
type NIFacts struct {
	NID       string
	Net       string
	Interface string
	MaxQPWR   int // of its HCA, 0: not known
	Conns     int
	Depths    []int // queue depth in use with each connected peer
}

// Restart is an NI that a change takes down and up again.
type Restart struct {
	NI    string `json:"ni"`    // NID
	Conns int    `json:"conns"` // that are drained
	Peers int    `json:"peers"` // that connect anew
}

// Cost is what a change does to memory, work requests and peers in one net.
type Cost struct {
	Scope       string        `json:"scope"` // the net, or global where there is no NI
	Before      tunables.Cost `json:"before"`
	After       tunables.Cost `json:"after"`
	Negotiation Negotiation   `json:"negotiation"`
	Text        []string      `json:"text"` // the same in words
}

// Negotiation is what becomes of the queue depth with the peers that are connected.
type Negotiation struct {
	Peers int `json:"peers"`
	Lower int `json:"lower"` // they use more than we would take: refused once, they come back with less
	Keep  int `json:"keep"`  // their own is less than ours, before and after
	Maybe int `json:"maybe"` // they take all that we offer today, so perhaps more
}

// negotiate compares depths before and after with those in use.
func negotiate(before, after int, inUse []int) Negotiation {
	n := Negotiation{Peers: len(inUse)}
	for _, d := range inUse {
		switch {
		case d > after:
			n.Lower++
		case d < before || after == before:
			n.Keep++
		default:
			n.Maybe++
		}
	}
	return n
}

// weigh says what p costs, and which NIs it restarts.
func (p *plan) weigh(f Facts) {
	nis := f.NIs
	if len(nis) == 0 {
		nis = []NIFacts{{Net: tunables.GlobalScope}}
	}
	cpts := max(f.CPTs, 1)
	for _, ni := range nis {
		_, n0, _ := tunables.Derive(p.prev, ni.Net)
		_, n1, _ := tunables.Derive(p.next, ni.Net)
		onlyTimeout := n0
		onlyTimeout.Timeout = n1.Timeout
		if ni.NID != "" && n1 != n0 && n1 != onlyTimeout {
			p.result.Restarts = append(p.result.Restarts, Restart{NI: ni.NID, Conns: ni.Conns, Peers: len(ni.Depths)})
		}
		c := Cost{Scope: ni.Net, Before: tunables.CostOf(n0, cpts, ni.MaxQPWR), After: tunables.CostOf(n1, cpts, ni.MaxQPWR)}
		if c.Before == c.After {
			continue
		}
		c.Negotiation = negotiate(c.Before.QueueDepth, c.After.QueueDepth, ni.Depths)
		c.Text = c.words(n1.PeerCredits)
		p.result.Costs = append(p.result.Costs, c)
	}
}

// words says in sentences what changes; credits is what was asked for.
func (c *Cost) words(credits int) []string {
	text := []string{}
	say := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }
	b, a := &c.Before, &c.After
	if a.PeerBytes != b.PeerBytes {
		say("memory for each peer: %s, now %s", size(a.PeerBytes), size(b.PeerBytes))
	}
	if a.NIBytes != b.NIBytes {
		say("message buffers of the NI: %s, now %s", size(a.NIBytes), size(b.NIBytes))
	}
	if a.SendWRs != b.SendWRs {
		limit := ""
		if a.MaxQPWR > 0 {
			limit = fmt.Sprintf(" of the %d that the HCA takes", a.MaxQPWR)
		}
		say("work requests in a connection's send queue: %d%s, now %d", a.SendWRs, limit, b.SendWRs)
	}
	if a.QueueDepth < credits {
		say("the HCA cannot hold a queue depth of %d: connections are made with %d", credits, a.QueueDepth)
	}
	n := c.Negotiation
	if a.QueueDepth != b.QueueDepth {
		say("new connections offer and accept a queue depth of %d, now %d", a.QueueDepth, b.QueueDepth)
		if n.Lower > 0 {
			say("%d of %d connected peers use more today: they are refused once and come back with %d", n.Lower, n.Peers, a.QueueDepth)
		}
		if n.Keep > 0 {
			say("%d of %d connected peers keep their own, smaller depth", n.Keep, n.Peers)
		}
		if n.Maybe > 0 {
			say("%d of %d connected peers may use up to %d, if they allow as much", n.Maybe, n.Peers, a.QueueDepth)
		}
	}
	return text
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
