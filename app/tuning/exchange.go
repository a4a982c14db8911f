package tuning

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"o2ibd/app/config"
	"o2ibd/engine/tunables"
)

// Formats of Export.
const (
	FormatModprobe = "modprobe" // options of the kernel module, for modprobe.d
	FormatLnetctl  = "lnetctl"  // YAML as lnetctl import reads it
)

// ImportRequest asks for the tunables of a file.
type ImportRequest struct {
	Text          string
	Reason        string
	Who           string
	How           string
	From          string
	IfMatch       string
	DryRun        bool
	ConfirmWithin time.Duration
	ClockIsRight  bool
}

// ImportBody is the body of POST /api/v1/tunables/import; a Result answers it.
type ImportBody struct {
	Text           string  `json:"text"`
	Reason         string  `json:"reason"`
	ConfirmWithinS float64 `json:"confirm_within_s"`
	DryRun         bool    `json:"dry_run"`
	ClockIsRight   bool    `json:"clock_is_right,omitempty"`
}

// Request is what b asks for; who and how are the caller's to fill in.
func (b ImportBody) Request() ImportRequest {
	return ImportRequest{Text: b.Text, Reason: b.Reason, DryRun: b.DryRun, ConfirmWithin: seconds(b.ConfirmWithinS), ClockIsRight: b.ClockIsRight}
}

// Import sets what a file sets, as one change, and leaves everything else as it is. It reads the options
// lines of a modprobe.d file, and an lnetctl export or a configuration of ours, and tells them apart by
// itself. All of it is taken or nothing; an error says the line.
func (s *Service) Import(ctx context.Context, r ImportRequest) (Result, error) {
	v, notes, err := readFile(r.Text)
	if err != nil {
		return Result{}, err
	}
	req := Request{
		Reason: r.Reason, Who: r.Who, How: r.How, From: r.From, IfMatch: r.IfMatch, DryRun: r.DryRun,
		ConfirmWithin: r.ConfirmWithin, ClockIsRight: r.ClockIsRight, imported: true, notes: notes,
	}
	for _, k := range v.Sorted() {
		req.Changes = append(req.Changes, Change{Scope: k.Scope, Name: k.Name, Value: NewScalar(v[k])})
	}
	if len(req.Changes) == 0 {
		return Result{}, fmt.Errorf("the file sets no tunable: options ko2iblnd NAME=VALUE, or an lnetctl export is wanted: %w", ErrInvalid)
	}
	return s.Change(ctx, req)
}

// readFile gives the values that a file sets, and what was translated or left out.
func readFile(text string) (tunables.Values, []tunables.Note, error) {
	if isModprobe(text) {
		return readModprobe(text)
	}
	c, err := config.Parse("line", []byte(text))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var notes []tunables.Note
	for _, n := range c.Notices {
		notes = append(notes, tunables.Note{Scope: tunables.GlobalScope, Kind: tunables.Adjusted, Text: n})
	}
	if c.Listen+c.State+c.Socket+c.Provider+c.TLSCert != "" || c.InsecureListen || c.MetricsPublic || len(c.AllowedHosts) > 0 {
		notes = append(notes, tunables.Note{Scope: tunables.GlobalScope, Kind: tunables.Adjusted, Text: "only the tunables of the file are taken, not its other sections"})
	}
	return c.Tunables, notes, nil
}

// modprobeWords begin the lines of a modprobe.d file.
var modprobeWords = []string{"options", "alias", "install", "remove", "blacklist", "softdep"}

func isModprobe(text string) bool {
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) > 0 && f[0][0] != '#' {
			return slices.Contains(modprobeWords, f[0]) && !strings.HasSuffix(f[0], ":")
		}
	}
	return false
}

// readModprobe reads "options ko2iblnd NAME=VALUE …" lines; later ones count before earlier ones, as they
// do for the kernel. Lines about other modules are left alone.
func readModprobe(text string) (tunables.Values, []tunables.Note, error) {
	var options []tunables.Option
	lines := map[string]int{}
	number, start, joined := 0, 0, ""
	for l := range strings.Lines(text) {
		number++
		if joined == "" {
			start = number
		}
		l = strings.TrimRight(l, "\r\n")
		if rest, more := strings.CutSuffix(l, `\`); more {
			joined += rest + " "
			continue
		}
		f := strings.Fields(joined + l)
		joined = ""
		if len(f) < 2 || f[0] != "options" || f[1] != "ko2iblnd" {
			continue
		}
		for _, o := range f[2:] {
			if o[0] == '#' {
				break
			}
			name, value, ok := strings.Cut(o, "=")
			if !ok {
				return nil, nil, fmt.Errorf("line %d: %q is no option: NAME=VALUE is wanted: %w", start, clip(o), ErrInvalid)
			}
			options = append(options, tunables.Option{Name: name, Value: strings.Trim(value, `"'`)})
			lines[name] = start
			if t, known := tunables.Lookup(name); known {
				lines[t.Name] = start
			}
		}
	}
	in := tunables.Import(tunables.GlobalScope, options)
	if len(in.Errors) > 0 {
		for i := range in.Errors {
			in.Errors[i].Problem += fmt.Sprintf(" (line %d)", lines[in.Errors[i].Name])
		}
		return nil, nil, &InvalidError{in.Errors}
	}
	return in.Values, in.Notes, nil
}

// notOfTheModule are tunables that no kernel module has.
var notOfTheModule = []string{"cksum_char", "race_compare"}

// The tunables of a net that lnetctl's two blocks hold, by the names that they have there.
var (
	lnetctlNet = []string{"peer_timeout", "peer_credits", "peer_buffer_credits", "credits"}
	lnetctlLND = []string{
		"peercredits_hiw", "map_on_demand", "concurrent_sends", "fmr_pool_size", "fmr_flush_trigger",
		"fmr_cache", "ntx", "conns_per_peer", "tos",
	}
)

// Export writes the values that are set, here or in the file, for a kernel node. What is not set is not
// written, and what the format cannot say stands in a comment. The error is an unknown format, ErrInvalid.
func (s *Service) Export(format string) (string, error) {
	v := s.Values()
	switch format {
	case FormatModprobe:
		return exportModprobe(v), nil
	case FormatLnetctl:
		var nis []NIFacts
		if s.opts.Facts != nil {
			nis = s.opts.Facts().NIs
		}
		return exportLnetctl(v, nis), nil
	}
	return "", fmt.Errorf("format %q; allowed: %s, %s: %w", clip(format), FormatModprobe, FormatLnetctl, ErrInvalid)
}

func exportModprobe(v tunables.Values) string {
	var b strings.Builder
	b.WriteString("# Tunables that are set in o2ibd.\n")
	options := ""
	for _, k := range v.Sorted() {
		if k.Scope != tunables.GlobalScope || slices.Contains(notOfTheModule, k.Name) {
			fmt.Fprintf(&b, "# not a module option: %s=%s\n", k, v[k])
			continue
		}
		options += " " + k.Name + "=" + v[k]
	}
	if options != "" {
		b.WriteString("options ko2iblnd" + options + "\n")
	}
	return b.String()
}

func exportLnetctl(v tunables.Values, nis []NIFacts) string {
	var b strings.Builder
	b.WriteString("# Tunables that are set in o2ibd, for each net of this node.\n")
	for _, k := range v.Sorted() {
		if t, _ := tunables.Lookup(k.Name); !t.PerNet {
			fmt.Fprintf(&b, "# not in this format: %s=%s\n", k, v[k])
		}
	}
	block := func(head, net string, names []string) {
		for _, name := range names {
			t, _ := tunables.Lookup(name)
			if value, _, ok := v.Find(net, t.Name); ok {
				b.WriteString(head)
				head = ""
				fmt.Fprintf(&b, "              %s: %s\n", name, value)
			}
		}
	}
	for i, ni := range nis {
		if i == 0 {
			b.WriteString("net:\n")
		}
		name := ni.Interface
		if name == "" {
			g, _, _ := tunables.Derive(v, ni.Net)
			name = g.IPIFName
		}
		fmt.Fprintf(&b, "    - net type: %s\n      local NI(s):\n        - interfaces:\n              0: %s\n", ni.Net, name)
		block("          tunables:\n", ni.Net, lnetctlNet)
		block("          lnd tunables:\n", ni.Net, lnetctlLND)
	}
	return b.String()
}
