package live

import (
	"cmp"
	"fmt"
	"slices"

	"o2ibd/engine"
)

// Trouble is something that is not well now: the rows of the view troubles, the worst first.
type Trouble struct {
	ID       string `json:"id"`
	Severity string `json:"severity"` // error, warning
	What     string `json:"what"`     // NI, device, peer, connection, pool
	Name     string `json:"name"`     // which one
	Peer     string `json:"peer"`     // a Peer's ID, where it is about one
	Text     string `json:"text"`     // what is wrong with it, with the numbers that matter
	SinceAt  *int64 `json:"since_at"` // of a peer: its last sign of life, since each new attempt has an error of its own
}

// Troubles lists what is not well in a snapshot.
func Troubles(s *engine.Snapshot) []Trouble {
	list := []Trouble{}
	add := func(severity, what, name, peer, id string, since *int64, format string, args ...any) {
		list = append(list, Trouble{ID: what + " " + id, Severity: severity, What: what, Name: name, Peer: peer, SinceAt: since, Text: fmt.Sprintf(format, args...)})
	}
	for i := range s.Nets {
		if n := &s.Nets[i]; n.Status != "up" {
			add("error", "NI", n.ID, "", n.ID, nil, "is %s: nobody is reached over it", n.Status)
		}
	}
	for i := range s.Devices {
		if d := &s.Devices[i]; d.State == "down" {
			add("error", "device", d.Name, "", d.ID, nil, "port down on %s", d.Interface)
		}
	}
	for i := range s.Peers {
		switch p := &s.Peers[i]; {
		case p.State == "down":
			add("error", "peer", p.NID.String(), p.ID, p.ID, cmp.Or(p.LastAliveAt, p.ErrorAt), "is down: %s", cmp.Or(p.Error, "no connection, and nobody asked for one"))
		case p.State != "connected":
			add("warning", "peer", p.NID.String(), p.ID, p.ID, cmp.Or(p.LastAliveAt, p.ErrorAt), "is %s, %d messages wait%s", p.State, p.TxQueued, because(p.Error))
		case p.AvailableCredits < 0:
			add("warning", "peer", p.NID.String(), p.ID, p.ID, nil, "is slower than its load: %d messages wait for an LNet credit (at worst %d)", -p.AvailableCredits, -p.MinCredits)
		}
	}
	for i := range s.Conns {
		if c := &s.Conns[i]; c.State == "established" && c.Credits == 0 && c.TxQueue+c.TxQueueRsrvd > 0 {
			add("warning", "connection", c.NID.String(), c.Peer, c.ID, nil,
				"no credits (0 of %d): the peer does not drain; %d messages wait, %d are not finished", c.QueueDepth, c.TxQueue+c.TxQueueRsrvd, c.ActiveTxs)
		}
	}
	for i := range s.Pools {
		switch p := &s.Pools[i]; {
		case p.NextRetryAt != nil:
			add("warning", "pool", p.ID, "", p.ID, nil, "could not grow (%d times); %d of %d in use", p.GrowFailed, p.Used, p.Size)
		case p.FailedPools > 0:
			add("warning", "pool", p.ID, "", p.ID, nil, "%d of its pools belong to a device that is gone", p.FailedPools)
		}
	}
	slices.SortStableFunc(list, func(a, b Trouble) int { return cmp.Compare(a.Severity, b.Severity) })
	return list
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return "; before: " + why
}
