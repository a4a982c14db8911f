package web

import (
	"fmt"
	"slices"
	"strings"

	"o2ibd/app"
	"o2ibd/engine"
)

// negotiatedRow is one parameter that two nodes agree about, or do not.
type negotiatedRow struct{ name, ours, theirs, inUse, note string }

// negotiated sets what we would use beside what the peer showed of itself and what its connections use.
// A peer never says what it is set to: a passive connection has what it asked for, an active one what it
// made of our offer, and an offer lower than our setting is what it told us with a reject.
func negotiated(p engine.Peer, ours engine.Net, conns []engine.Conn) []negotiatedRow {
	depth := negotiatedRow{name: "Queue depth (peer_credits), messages", ours: str(ours.PeerCredits)}
	depth.theirs, depth.note = theirs(p.QueueDepth, ours.PeerCredits, conns, func(c *engine.Conn) int { return c.QueueDepth })
	depth.inUse = inUse(conns, func(c *engine.Conn) string { return str(c.QueueDepth) })
	frags := negotiatedRow{name: "Fragments a transfer", ours: str(ours.MaxFrags)}
	frags.theirs, frags.note = theirs(p.MaxFrags, ours.MaxFrags, conns, func(c *engine.Conn) int { return c.MaxFrags })
	frags.inUse = inUse(conns, func(c *engine.Conn) string { return str(c.MaxFrags) })
	return []negotiatedRow{
		depth, frags,
		{"High-water mark, messages", str(ours.PeerCreditsHiw), "not told", inUse(conns, func(c *engine.Conn) string { return str(c.HighWater) }), "Credits owed before a NOOP returns them; scaled with the queue depth."},
		{"Protocol version", "0x12", hexVersion(p.Version), inUse(conns, func(c *engine.Conn) string { return hexVersion(c.Version) }), ""},
		{"Checksums", "–", inUse(conns, func(c *engine.Conn) string { return c.Cksum }), inUse(conns, func(c *engine.Conn) string { return c.Cksum }), "What the peer's messages carry."},
		{"Incarnation", orDash(ours.Incarnation), orDash(p.Incarnation), inUse(conns, func(c *engine.Conn) string { return c.Incarnation }), "Start stamp of the peer: another one means that it was restarted."},
	}
}

// theirs says what is known of the peer's own value.
func theirs(offer, ours int, conns []engine.Conn, get func(*engine.Conn) int) (value, note string) {
	for i := range conns {
		if c := &conns[i]; c.Direction == "passive" {
			if n := get(c); n != ours {
				return str(n), fmt.Sprintf("The peer asked for %d, we allow %d: the lower one counts.", n, ours)
			}
			return str(get(c)), "The peer asked for what we use too."
		}
	}
	switch {
	case offer == 0:
		return "not known", ""
	case offer < ours:
		return str(offer), fmt.Sprintf("We would use %d, the peer allows %d: we keep to that.", ours, offer)
	case len(conns) == 0:
		return "not known", "It will be offered ours."
	}
	return str(offer) + " or more", "The peer took our offer."
}

// inUse tells a value of the connections, each once.
func inUse(conns []engine.Conn, get func(*engine.Conn) string) string {
	var seen []string
	for i := range conns {
		if v := get(&conns[i]); v != "" && !slices.Contains(seen, v) {
			seen = append(seen, v)
		}
	}
	return orDash(strings.Join(seen, ", "))
}

// lastRefusal is the newest event that says why the two did not agree, unless they did since.
func lastRefusal(events []app.Event) *app.Event {
	for i := range events {
		switch events[i].Kind {
		case "reject_sent", "reject_received":
			return &events[i]
		case "conn_established":
			return nil
		}
	}
	return nil
}
