package config

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// exportSections stand beside net in an lnetctl export.
var exportSections = []string{"ip2nets", "route", "peer", "routing", "buffers", "global", "udsp", "statistics"}

// unusedNI are the keys of an NI in an export that only report (spec lnet 5.5).
var unusedNI = []string{
	"nid", "status", "statistics", "sent_stats", "received_stats", "dropped_stats", "health stats",
	"dev cpt", "CPT", "udsp info",
}

// The tunables of an export's blocks (spec lnet 5.5).
var (
	netTunables = []string{"peer_timeout", "peer_credits", "peer_buffer_credits", "credits"}
	lndTunables = []string{
		"peercredits_hiw", "map_on_demand", "concurrent_sends", "fmr_pool_size", "fmr_flush_trigger",
		"fmr_cache", "ntx", "conns_per_peer", "timeout", "tos",
	}
)

func (r *reader) top(root ast.Node) error {
	c := &r.cfg
	known := keys{
		"listen":          r.setText(&c.Listen, "listen"),
		"state":           r.setText(&c.State, "state"),
		"socket":          r.setText(&c.Socket, "socket"),
		"provider":        r.provider,
		"cpts":            r.cpts,
		"allowed_hosts":   r.allowedHosts,
		"metrics_public":  r.setBool(&c.MetricsPublic, "metrics_public"),
		"tls":             r.tls,
		"insecure_listen": r.setBool(&c.InsecureListen, "insecure_listen"),
		"tunables":        r.tunables,
		"net":             r.nets,
	}
	for _, k := range exportSections {
		known[k] = r.ignore(k)
	}
	if err := r.mapping(root, "the configuration", known); err != nil {
		return err
	}
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return fmt.Errorf("%s: listen %q: an address and a port are wanted, such as %s", r.file, c.Listen, DefaultListen)
		}
	}
	return r.consistent()
}

func (r *reader) provider(n ast.Node) error {
	p, err := r.text(n, "provider")
	if err != nil {
		return err
	}
	if p != "iwarp" && p != "rdmacore" {
		return r.errorf(line(n), "provider %q: iwarp and rdmacore are possible", p)
	}
	r.cfg.Provider = p
	return nil
}

func (r *reader) allowedHosts(n ast.Node) error {
	return r.sequence(n, "allowed_hosts", func(v ast.Node) error {
		h, err := r.text(v, "an allowed host")
		if err != nil {
			return err
		}
		if h == "" || strings.ContainsAny(h, "/ ") {
			return r.errorf(line(v), "allowed host %q: a host name as browsers send it is wanted, such as lustre-mon.example.com", h)
		}
		r.cfg.AllowedHosts = append(r.cfg.AllowedHosts, h)
		return nil
	})
}

func (r *reader) cpts(n ast.Node) error {
	err := r.sequence(n, "cpts", func(v ast.Node) error {
		text, err := r.text(v, "the CPUs of a CPT")
		if err != nil {
			return err
		}
		cpus, err := engine.ParseCPUs(text)
		if err != nil {
			return r.errorf(line(v), "%v", err)
		}
		r.cfg.CPTs = append(r.cfg.CPTs, cpus)
		return nil
	})
	if err != nil {
		return err
	}
	if err := engine.CheckCPTs(r.cfg.CPTs); err != nil {
		return r.errorf(line(n), "cpts: %v", err)
	}
	return nil
}

func (r *reader) tls(n ast.Node) error {
	c := &r.cfg
	err := r.mapping(n, "tls", keys{
		"cert":      r.setText(&c.TLSCert, "the certificate"),
		"key":       r.setText(&c.TLSKey, "the key"),
		"self_made": r.setBool(&c.TLSSelfMade, "self_made"),
	})
	switch given := c.TLSCert != "" && c.TLSKey != ""; {
	case err != nil:
	case c.TLSSelfMade && c.TLSCert+c.TLSKey != "":
		return r.errorf(line(n), "tls has a certificate of yours and self_made: one of them is possible")
	case !c.TLSSelfMade && !given:
		return r.errorf(line(n), "tls needs both cert and key, each a PEM file, or self_made: true")
	}
	return err
}

// tunables reads NAME: VALUE for every network, and NET/NAME: VALUE for one.
func (r *reader) tunables(n ast.Node) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		return r.errorf(line(n), "tunables is %s: names and values are wanted", kind(n))
	}
	for it := m.MapRange(); it.Next(); {
		name, at := it.Key().GetToken().Value, line(it.Key())
		key, err := tunables.ParseScoped(name)
		if err != nil {
			return r.errorf(at, "%v", err)
		}
		value, err := r.text(it.Value(), "tunable "+name)
		if err != nil {
			return err
		}
		if err := r.set(key, value, at); err != nil {
			return err
		}
	}
	return nil
}

// set takes one setting, and refuses a second and different one.
func (r *reader) set(key tunables.Scoped, value string, at int) error {
	key, value, note, err := tunables.Canonical(key, value)
	if err != nil {
		return r.errorf(at, "%v", err)
	}
	if old, ok := r.cfg.Tunables[key]; ok && old != value {
		return r.errorf(at, "%s is %s here and %s in line %d: one value is possible", key, value, old, r.lines[key])
	}
	if note != nil {
		r.notice("%s:%d: %s", r.file, at, note.Text)
	}
	r.cfg.Tunables[key], r.lines[key] = value, at
	return nil
}

// consistent checks the settings as a whole.
func (r *reader) consistent() error {
	for _, e := range tunables.Validate(r.cfg.Tunables) {
		return r.errorf(r.lines[tunables.Scoped{Scope: e.Scope, Name: e.Name}], "%v", &e)
	}
	return nil
}

func (r *reader) nets(n ast.Node) error {
	return r.sequence(n, "net", r.netElement)
}

// blocks are the tunables of a network or of one of its NIs; a nil one is absent.
type blocks struct{ tunables, lnd ast.Node }

// netElement reads one network. Exports of 2016 have one element an NI, with "net" in it; later ones
// have "net type" and a list of NIs (spec lnet 5.5).
func (r *reader) netElement(n ast.Node) error {
	var name string
	var nis, flat ast.Node
	var own blocks
	keep := func(to *ast.Node) func(ast.Node) error {
		return func(v ast.Node) error { *to = v; return nil }
	}
	known := keys{
		"net type":     r.setText(&name, "net type"),
		"net":          r.setText(&name, "net"),
		"local NI(s)":  keep(&nis),
		"interfaces":   keep(&flat),
		"tunables":     keep(&own.tunables),
		"lnd tunables": keep(&own.lnd),
	}
	for _, k := range unusedNI {
		known[k] = r.ignore(k)
	}
	before := slices.Clone(r.ignored)
	if err := r.mapping(n, "a network", known); err != nil {
		return err
	}
	if name == "" {
		return r.errorf(line(n), "a network without \"net type\": a name is wanted, such as o2ib1")
	}
	net, err := wire.ParseNet(name)
	if err != nil {
		return r.errorf(line(n), "network %q is not known: o2ib with a number up to 65535 is wanted, such as o2ib1", name)
	}
	if net.Type() != wire.NetO2IB.Type() {
		r.ignored = before
		if name != "lo" {
			r.notice("%s:%d: network %s is skipped: this appliance speaks o2ib", r.file, line(n), name)
		}
		return nil
	}
	name = net.String()
	if flat != nil {
		return r.ni(name, n, own)
	}
	if nis == nil {
		return r.errorf(line(n), "network %s has no \"local NI(s)\": a list is wanted", name)
	}
	return r.sequence(nis, "local NI(s)", func(v ast.Node) error { return r.ni(name, v, own) })
}

// ni reads one NI. Its own blocks count before the network's, each as a whole (spec lnet 5.8).
func (r *reader) ni(netName string, n ast.Node, inherited blocks) error {
	ni := NI{Net: netName}
	block := inherited
	known := keys{
		"interfaces":   func(v ast.Node) error { return r.interfaces(&ni, v) },
		"tunables":     func(v ast.Node) error { block.tunables = v; return nil },
		"lnd tunables": func(v ast.Node) error { block.lnd = v; return nil },
		"net":          func(ast.Node) error { return nil },
		"net type":     func(ast.Node) error { return nil },
	}
	for _, k := range unusedNI {
		known[k] = r.ignore(k)
	}
	if err := r.mapping(n, "an NI of "+netName, known); err != nil {
		return err
	}
	if ni.Interface == "" {
		r.notice("%s:%d: an NI of %s names no interface: the tunable ipif_name says on which it is", r.file, line(n), netName)
	}
	for _, old := range r.cfg.NIs {
		switch {
		case old != ni:
		case ni.Interface == "":
			return r.errorf(line(n), "a second NI of %s without an interface: name it", ni.Net)
		default:
			return r.errorf(line(n), "%s is on %s already", ni.Interface, ni.Net)
		}
	}
	if err := r.importBlocks(netName, block); err != nil {
		return err
	}
	r.cfg.NIs = append(r.cfg.NIs, ni)
	return nil
}

// interfaces reads {0: ib0} or {0: "ib0[0,1]"}.
func (r *reader) interfaces(ni *NI, n ast.Node) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		return r.errorf(line(n), "interfaces is %s: a number and a name are wanted, such as 0: ib0", kind(n))
	}
	for it := m.MapRange(); it.Next(); {
		name, err := r.text(it.Value(), "an interface")
		if err != nil {
			return err
		}
		if ni.Interface != "" {
			return r.errorf(line(it.Value()), "a second interface %s in one NI: an NI has one, so give %s an NI of its own", name, name)
		}
		if i := strings.IndexByte(name, '['); i > 0 { // the CPT expression
			name = name[:i]
		}
		if name == "" {
			return r.errorf(line(it.Value()), "an interface without a name")
		}
		ni.Interface = name
	}
	return nil
}

// importBlocks reads the tunables of one NI in the spellings of every era.
func (r *reader) importBlocks(netName string, b blocks) error {
	var options []tunables.Option
	lines := make(map[string]int)
	read := func(n ast.Node, what string, names []string) error {
		if n == nil {
			return nil
		}
		known := keys{"CPT": r.ignore("CPT")}
		for _, name := range names {
			known[name] = func(v ast.Node) error {
				value, err := r.text(v, name)
				options = append(options, tunables.Option{Name: name, Value: value})
				lines[name] = line(v)
				if t, ok := tunables.Lookup(name); ok {
					lines[t.Name] = line(v)
				}
				return err
			}
		}
		return r.mapping(n, what+" of "+netName, known)
	}
	if err := read(b.tunables, "tunables", netTunables); err != nil {
		return err
	}
	if err := read(b.lnd, "lnd tunables", lndTunables); err != nil {
		return err
	}
	imported := tunables.Import(netName, options)
	for _, e := range imported.Errors {
		return r.errorf(lines[e.Name], "%v", &e)
	}
	for _, note := range imported.Notes {
		r.notice("%s:%d: %s: %s", r.file, lines[note.Name], netName, note.Text)
	}
	for _, key := range imported.Values.Sorted() {
		if err := r.set(key, imported.Values[key], lines[key.Name]); err != nil {
			return err
		}
	}
	return nil
}
