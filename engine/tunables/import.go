package tunables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Option is one setting as a module's options or an lnetctl file write it.
type Option struct{ Name, Value string }

// Imported is what Import made of a block of options.
type Imported struct {
	Values Values
	Notes  []Note       // what was translated, and into what
	Errors []FieldError // what was not understood; then nothing of the block must be used
}

var (
	// lnetctl writes these with -1, and all other numbers of its lnd block with 0, where nothing was set.
	lnetctlCommon = []string{"peer_timeout", "peer_credits", "peer_buffer_credits", "credits", "tos"}
	zeroIsUnset   = []string{"peer_credits_hiw", "concurrent_sends", "fmr_pool_size", "fmr_flush_trigger", "conns_per_peer", "ntx"}

	// These are in the module's structure without a parameter behind them, and nothing ever read them.
	deadNames = []string{"min_reconnect_interval", "max_reconnect_interval", "kib_min_reconnect_interval", "kib_max_reconnect_interval"}
)

// Import translates a block of options for one scope: module options with scope GlobalScope, or the "tunables"
// and "lnd tunables" of a net in an lnetctl file (spec lnet 5.8). It knows the spellings of both eras,
// what they mean by -1 and 0, and values that only an old module takes; each translation leaves a note.
// The lnd timeout of a net is read-only there and left out.
func Import(scope string, options []Option) Imported {
	in := Imported{Values: Values{}}
	oldMap := 0
	for _, o := range options {
		if slices.Contains(deadNames, o.Name) {
			in.note(scope, o.Name, Warning, "%s is ignored: no module ever read it", o.Name)
			continue
		}
		key, value := Scoped{scope, o.Name}, strings.TrimSpace(o.Value)
		t, known := Lookup(o.Name)
		if known && scope != GlobalScope {
			if t.Name == "timeout" {
				in.note(scope, t.Name, Adjusted, "timeout %s of a net is left out: it only reports the global one", clip(value))
				continue
			}
			if value == "-1" && slices.Contains(lnetctlCommon, t.Name) || value == "0" && slices.Contains(zeroIsUnset, t.Name) {
				continue
			}
		}
		if known {
			var was int
			value, was = in.translate(scope, t, value)
			oldMap = max(oldMap, was)
		}
		canon, v, note, err := Canonical(key, value)
		if err != nil {
			in.Errors = append(in.Errors, *err.(*FieldError))
			continue
		}
		if note != nil {
			in.Notes = append(in.Notes, *note)
		}
		in.Values[canon] = v
	}
	in.noteOldSends(scope, oldMap)
	return in
}

// translate turns what only modules write into what the table takes; was is an old map_on_demand.
func (in *Imported) translate(scope string, t Tunable, value string) (canon string, was int) {
	if t.Flag() {
		switch strings.ToLower(value) {
		case "y", "true", "yes":
			value = "1"
		case "n", "false", "no":
			value = "0"
		}
	}
	n, err := strconv.Atoi(value)
	if err != nil || t.Kind != Int {
		return value, 0
	}
	switch {
	case t.Name == "map_on_demand":
		if n != 0 && n != 1 {
			in.note(scope, t.Name, Adjusted, "map_on_demand %d → 1: it is a flag today, and does not change the fragments that we offer (%d)", n, MaxRDMAFrags)
			return "1", n
		}
	case t.Flag() && n != 0 && n != 1:
		in.note(scope, t.Name, Adjusted, "%s %d → 1: it is on or off", t.Name, n)
		return "1", 0
	case n < 0 && (t.Name == "keepalive" || t.Name == "peer_timeout"):
		in.note(scope, t.Name, Adjusted, "%s %d → 0: off", t.Name, n)
		return "0", 0
	case t.Name == "dev_failover" && n > 2:
		in.note(scope, t.Name, Adjusted, "dev_failover %d → 2: always", n)
		return "2", 0
	}
	return value, 0
}

// noteOldSends says what an old map_on_demand did besides: it doubled concurrent_sends that were not set.
func (in *Imported) noteOldSends(scope string, oldMap int) {
	r := resolver{in.Values, scope}
	if oldMap == 0 || r.int("concurrent_sends") != 0 {
		return
	}
	old, err := Setup2016(Params2016{
		Credits: r.int("credits"), PeerCredits: r.int("peer_credits"), MapOnDemand: oldMap, FMRPoolSize: r.int("fmr_pool_size"), NTX: r.int("ntx"),
	})
	_, now, _ := Derive(in.Values, scope)
	if err == nil && old.ConcurrentSends != now.ConcurrentSends {
		in.note(scope, "concurrent_sends", Warning, "concurrent_sends is %d here: a module of 2016 with map_on_demand %d used %d; set it if that is wanted", now.ConcurrentSends, oldMap, old.ConcurrentSends)
	}
}

func (in *Imported) note(scope, name string, kind NoteKind, format string, args ...any) {
	in.Notes = append(in.Notes, Note{scope, name, kind, fmt.Sprintf(format, args...)})
}
