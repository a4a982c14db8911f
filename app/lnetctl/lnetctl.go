// Package lnetctl writes the engine's state in the shape that lnetctl prints, keys in its order, so that
// operators and their scripts read ours as they read a kernel node's (spec lnet 5.5 to 5.7). It is pure.
//
// What a kernel prints and we do not know is left out; counters of mechanisms that we do not have, such as
// health resends, are 0.
package lnetctl

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"o2ibd/engine"
	"o2ibd/engine/wire"
)

// Effective gives the value of a tunable that counts in a net, such as ntx in o2ib1; "" where it is not
// known, and the line is left out.
type Effective func(net, name string) string

// Net is `net show`, or `net show -v` when verbose. The loopback comes first, as always.
func Net(s *engine.Snapshot, effective Effective, verbose bool) []byte {
	var w writer
	w.line(0, "net:")
	w.line(4, "- net type: lo")
	w.line(6, "local NI(s):")
	w.line(8, "- nid: 0@lo")
	w.line(10, "status: up")
	if verbose {
		w.statistics(10, 0, 0, 0)
		w.line(10, "tunables:")
		for _, name := range []string{"peer_timeout", "peer_credits", "peer_buffer_credits", "credits"} {
			w.line(14, name+": 0")
		}
		w.line(10, "dev cpt: 0")
		w.line(10, `CPT: "[0]"`)
	}
	var nets []string
	for _, n := range s.Nets {
		if !slices.Contains(nets, n.Net) {
			nets = append(nets, n.Net)
		}
	}
	cpts := cptList(s)
	for _, net := range nets {
		w.line(4, "- net type: "+net)
		w.line(6, "local NI(s):")
		for _, n := range s.Nets {
			if n.Net == net {
				w.ni(n, effective, cpts, verbose)
			}
		}
	}
	return w.Bytes()
}

func (w *writer) ni(n engine.Net, effective Effective, cpts string, verbose bool) {
	w.line(8, "- nid: "+n.ID)
	w.line(10, "status: "+n.Status)
	if n.Interface != "" {
		w.line(10, "interfaces:")
		w.line(14, "0: "+n.Interface)
	}
	if !verbose {
		return
	}
	w.statistics(10, n.SendCount, n.RecvCount, n.DropCount)
	w.line(10, "tunables:")
	w.known(14, "peer_timeout", effective(n.Net, "peer_timeout"))
	w.number(14, "peer_credits", n.PeerCredits)
	w.known(14, "peer_buffer_credits", effective(n.Net, "peer_buffer_credits"))
	w.number(14, "credits", n.Credits)
	w.line(10, "lnd tunables:")
	w.number(14, "peercredits_hiw", n.PeerCreditsHiw)
	w.known(14, "map_on_demand", effective(n.Net, "map_on_demand"))
	w.number(14, "concurrent_sends", n.ConcurrentSends)
	for _, name := range []string{"fmr_pool_size", "fmr_flush_trigger", "fmr_cache", "ntx", "conns_per_peer", "timeout", "tos"} {
		w.known(14, name, effective(n.Net, name))
	}
	w.line(10, "dev cpt: 0")
	w.line(10, "CPT: "+cpts)
}

// Peer is `peer show`, or `peer show -v` when verbose. A peer that several NIs of ours talk to stands
// once, as the first of them sees it.
func Peer(s *engine.Snapshot, verbose bool) []byte {
	credits := make(map[wire.NID]int)
	for _, n := range s.Nets {
		credits[n.NID] = n.PeerCredits
	}
	var w writer
	w.line(0, "peer:")
	seen := make(map[wire.NID]bool)
	for _, p := range s.Peers {
		if seen[p.NID] {
			continue
		}
		seen[p.NID] = true
		nid := p.NID.String()
		w.line(4, "- primary nid: "+nid)
		w.line(6, "Multi-Rail: False")
		w.line(6, "peer ni:")
		w.line(8, "- nid: "+nid)
		w.line(10, "state: NA")
		if !verbose {
			continue
		}
		w.number(10, "max_ni_tx_credits", credits[p.NI])
		w.number(10, "available_tx_credits", p.AvailableCredits)
		w.number(10, "min_tx_credits", p.MinCredits)
		w.number(10, "available_rtr_credits", credits[p.NI])
		w.number(10, "min_rtr_credits", credits[p.NI])
		w.statistics(10, p.SendCount, p.RecvCount, p.DropCount)
	}
	return w.Bytes()
}

// Stats is `stats show`.
func Stats(s *engine.Snapshot) []byte {
	var w writer
	w.line(0, "statistics:")
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"msgs_alloc", s.Stats.MsgsAlloc}, {"msgs_max", s.Stats.MsgsMax}, {"rst_alloc", 0}, {"errors", s.Stats.Errors},
		{"send_count", s.Stats.SendCount}, {"resend_count", 0}, {"response_timeout_count", s.Stats.ResponseTimeoutCount},
		{"local_interrupt_count", 0}, {"local_dropped_count", 0}, {"local_aborted_count", 0},
		{"local_no_route_count", 0}, {"local_timeout_count", 0}, {"local_error_count", 0},
		{"remote_dropped_count", 0}, {"remote_error_count", 0}, {"remote_timeout_count", 0},
		{"network_timeout_count", 0}, {"failed_resends", 0}, {"successful_resends", 0},
		{"recv_count", s.Stats.RecvCount}, {"route_count", s.Stats.RouteCount}, {"drop_count", s.Stats.DropCount},
		{"send_length", s.Stats.SendLength}, {"recv_length", s.Stats.RecvLength},
		{"route_length", s.Stats.RouteLength}, {"drop_length", s.Stats.DropLength},
	} {
		w.line(4, c.name+": "+strconv.FormatUint(c.value, 10))
	}
	return w.Bytes()
}

// cptList is the CPTs that schedulers run on, as lnetctl quotes them.
func cptList(s *engine.Snapshot) string {
	var cpts []int
	for _, sched := range s.Schedulers {
		if !slices.Contains(cpts, sched.CPT) {
			cpts = append(cpts, sched.CPT)
		}
	}
	slices.Sort(cpts)
	if len(cpts) == 0 {
		cpts = []int{0}
	}
	return strconv.Quote(strings.ReplaceAll(fmt.Sprint(cpts), " ", ","))
}

// writer writes lines with the indentation that lnetctl uses, which no YAML library gives.
type writer struct{ bytes.Buffer }

func (w *writer) line(indent int, text string) {
	w.WriteString(strings.Repeat(" ", indent))
	w.WriteString(text)
	w.WriteByte('\n')
}

func (w *writer) number(indent int, name string, value int) {
	w.line(indent, name+": "+strconv.Itoa(value))
}

func (w *writer) known(indent int, name, value string) {
	if value != "" {
		w.line(indent, name+": "+value)
	}
}

func (w *writer) statistics(indent int, send, recv, drop uint64) {
	w.line(indent, "statistics:")
	w.line(indent+4, "send_count: "+strconv.FormatUint(send, 10))
	w.line(indent+4, "recv_count: "+strconv.FormatUint(recv, 10))
	w.line(indent+4, "drop_count: "+strconv.FormatUint(drop, 10))
}
