package tunables_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"o2ibd/engine/tunables"
)

const global = tunables.GlobalScope

func set(pairs ...string) tunables.Values {
	v := tunables.Values{}
	for i := 0; i < len(pairs); i += 2 {
		key, err := tunables.ParseScoped(pairs[i])
		if err != nil {
			panic(err)
		}
		v[key] = pairs[i+1]
	}
	return v
}

func TestTableIsComplete(t *testing.T) {
	want := strings.Fields(`service cksum timeout nscheds ntx credits peer_credits peer_credits_hiw peer_buffer_credits
		peer_timeout ipif_name retry_count rnr_retry_count keepalive ib_mtu concurrent_sends map_on_demand fmr_pool_size
		fmr_flush_trigger fmr_cache dev_failover require_privileged_port use_privileged_port conns_per_peer wrq_sge
		use_fastreg_gaps tos cksum_char race_compare exposure`)
	var got []string
	seen := map[string]bool{}
	g, n, _ := tunables.Derive(nil, global)
	for _, tun := range tunables.All {
		got = append(got, tun.Name)
		for _, name := range append([]string{tun.Name}, tun.Aliases...) {
			if seen[name] {
				t.Errorf("%s names two tunables", name)
			}
			seen[name] = true
			if found, ok := tunables.Lookup(name); !ok || found.Name != tun.Name {
				t.Errorf("Lookup(%s) = %s, %v", name, found.Name, ok)
			}
		}
		if tun.Unit == "" || tun.Help == "" || tun.Effect == "" || tun.Group == "" || tun.Kind == "" {
			t.Errorf("%s lacks unit, help, effect, group or kind", tun.Name)
		}
		if !strings.HasSuffix(tun.Help, ".") {
			t.Errorf("%s: help is not a sentence", tun.Name)
		}
		if _, canon, _, err := tunables.Canonical(tunables.Scoped{Scope: global, Name: tun.Name}, tun.Default); err != nil || canon != tun.Default {
			t.Errorf("%s: default %q → %q, %v", tun.Name, tun.Default, canon, err)
		}
		eff, ok := tunables.Effective(g, n, tun.Name)
		if !ok {
			t.Errorf("%s has no effective value", tun.Name)
		}
		if tun.Derived == "" && eff != tun.Default {
			t.Errorf("%s: default %s has effect %s, but no derivation is documented", tun.Name, tun.Default, eff)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("tunables (-want +got):\n%s", d)
	}
}

// Every tunable, set to something that is not its default, must arrive in what Derive returns.
func TestEveryTunableReachesTheEngine(t *testing.T) {
	values := map[string]string{
		"peer_credits": "16", "peer_credits_hiw": "5", "credits": "300", "concurrent_sends": "9", "peer_buffer_credits": "7", "ntx": "1024",
		"timeout": "60", "keepalive": "0", "peer_timeout": "0", "retry_count": "7", "rnr_retry_count": "0", "conns_per_peer": "4",
		"tos": "0", "ib_mtu": "2048", "wrq_sge": "1", "nscheds": "3", "fmr_pool_size": "600", "fmr_flush_trigger": "100",
		"exposure": "device", "fmr_cache": "0", "use_fastreg_gaps": "1", "service": "9987", "ipif_name": "ib1:2", "use_privileged_port": "0",
		"require_privileged_port": "1", "dev_failover": "2", "cksum": "1", "cksum_char": "unsigned", "race_compare": "nidhash",
	}
	v := tunables.Values{}
	for name, val := range values {
		v[tunables.Scoped{Scope: global, Name: name}] = val
	}
	v[tunables.Scoped{Scope: global, Name: "peer_credits_hiw"}] = "9" // within its clamp for 16
	values["peer_credits_hiw"] = "9"
	if errs := tunables.Validate(v); len(errs) != 0 {
		t.Fatal(errs)
	}
	g, n, _ := tunables.Derive(v, "o2ib")
	for _, tun := range tunables.All {
		want, ok := values[tun.Name]
		if tun.Name == "map_on_demand" {
			want, ok = "1", true
		}
		if got, _ := tunables.Effective(g, n, tun.Name); got != want || !ok {
			t.Errorf("%s = %q, want %q", tun.Name, got, want)
		}
	}
	if g.Timeout != time.Minute || n.Timeout != time.Minute || !g.Cksum || !g.CksumUnsigned || !g.RaceByHash || g.Keepalive != 0 || n.PeerTimeout != 0 || n.FMRCache || n.TOS != 0 {
		t.Errorf("typed values: %+v %+v", g, n)
	}
}

func TestDefaults(t *testing.T) {
	g, n, notes := tunables.Derive(nil, "o2ib")
	wantG := tunables.Global{
		Service: 987, WRQSGE: 2, RetryCount: 5, RNRRetryCount: 6, UsePrivilegedPort: true, IPIFName: "ib0",
		Timeout: 50 * time.Second, Keepalive: 100 * time.Second,
	}
	wantN := tunables.NI{
		PeerCredits: 8, PeerCreditsHiw: 4, ConcurrentSends: 8, Credits: 256, NTX: 512, FMRPoolSize: 512, FMRFlushTrigger: 384,
		ConnsPerPeer: 1, TOS: -1, Exposure: "transfer", MapOnDemand: true, FMRCache: true, PeerTimeout: 180 * time.Second, Timeout: 50 * time.Second,
	}
	if d := cmp.Diff(wantG, g); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(wantN, n); d != "" {
		t.Error(d)
	}
	for _, note := range notes {
		if note.Kind != tunables.Derived {
			t.Errorf("a default should never be clamped: %+v", note)
		}
	}
	if c := tunables.CostOfConn(8, 256, false); c.RecvWRs != 18 || c.SendWRs != 2056 || c.CQEntries != 2074 || c.BufferBytes != 18*4096 {
		t.Errorf("cost of a default connection: %+v", c)
	}
}

func TestDeriveClamps(t *testing.T) {
	for _, tc := range []struct {
		name         string
		v            tunables.Values
		p, hiw, conc int
		note         string // a part of one note
	}{
		{"T12_64 peer_credits above a byte", set("peer_credits", "300", "credits", "1024"), 255, 127, 255, "peer_credits 300 → 255: "},
		{"T12_64 with the default credits", set("peer_credits", "300"), 255, 127, 255, "peer_credits 300 → 255: "},
		{"T12_65 peer_credits below 8", set("peer_credits", "4"), 8, 4, 8, "peer_credits 4 → 8: "},
		{"peer_credits zero is not unset", set("peer_credits", "32", "o2ib/peer_credits", "0"), 8, 4, 8, "peer_credits 0 → 8: "},
		{"peer_credits of a net", set("peer_credits", "32", "o2ib/peer_credits", "16"), 16, 8, 16, ""},
		{"another net's value", set("o2ib1/peer_credits", "16"), 8, 4, 8, ""},
		{"credits push peer_credits below 8", set("credits", "5"), 5, 2, 5, "peer_credits 8 → 5: not more than credits"},
		{"one credit", set("credits", "1"), 1, 0, 1, ""},
		{"credits of the net, not the global ones", set("credits", "4", "o2ib/credits", "64", "peer_credits", "32"), 32, 16, 32, ""},
		{"hiw too high", set("peer_credits", "32", "peer_credits_hiw", "200"), 32, 31, 32, "peer_credits_hiw 200 → 31: "},
		{"hiw too low", set("peer_credits", "32", "peer_credits_hiw", "3"), 32, 16, 32, "peer_credits_hiw 3 → 16: "},
		{"hiw within", set("peer_credits", "32", "peer_credits_hiw", "20"), 32, 20, 32, ""},
		{"hiw zero of the net is derived, not the global one", set("peer_credits", "32", "peer_credits_hiw", "20", "o2ib/peer_credits_hiw", "0"), 32, 16, 32, "peer_credits_hiw 0 → 16: "},
		{"concurrent_sends too high", set("concurrent_sends", "100"), 8, 4, 16, "concurrent_sends 100 → 16: "},
		{"concurrent_sends too low", set("concurrent_sends", "1"), 8, 4, 4, "concurrent_sends 1 → 4: "},
		{"concurrent_sends low", set("concurrent_sends", "6"), 8, 4, 6, "concurrent_sends 6 is less than peer_credits 8"},
		{"concurrent_sends high", set("concurrent_sends", "16"), 8, 4, 16, ""},
		{"map_on_demand does not double concurrent_sends", set("map_on_demand", "1"), 8, 4, 8, ""},
		{"map_on_demand off", set("map_on_demand", "0"), 8, 4, 8, "map_on_demand 0 → 1: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if errs := tunables.Validate(tc.v); len(errs) > 0 {
				t.Fatal(errs)
			}
			_, n, notes := tunables.Derive(tc.v, "o2ib")
			if n.PeerCredits != tc.p || n.PeerCreditsHiw != tc.hiw || n.ConcurrentSends != tc.conc || !n.MapOnDemand {
				t.Errorf("P %d hiw %d C %d, want %d %d %d", n.PeerCredits, n.PeerCreditsHiw, n.ConcurrentSends, tc.p, tc.hiw, tc.conc)
			}
			found := 0
			for _, note := range notes {
				if tc.note != "" && strings.HasPrefix(note.Text, tc.note) {
					found++
				}
				if tc.note == "" && note.Kind == tunables.Clamped && tc.name != "one credit" {
					t.Errorf("unexpected note %q", note.Text)
				}
			}
			if tc.note != "" && found != 1 {
				t.Errorf("no note %q in %v", tc.note, notes)
			}
		})
	}
}

func TestDeriveOthers(t *testing.T) {
	g, _, notes := tunables.Derive(set("timeout", "0"), "o2ib")
	if g.Timeout != 49*time.Second || notes[0].Text != "timeout 0 → 49: LNet's own LND timeout" {
		t.Errorf("timeout 0: %v, %v", g.Timeout, notes)
	}
	for _, tc := range []struct {
		name string
		v    tunables.Values
		want int
	}{
		{"unset", nil, 1},
		{"zero", set("conns_per_peer", "0"), 1},
		{"net unset", set("conns_per_peer", "4"), 4},
		{"net zero", set("conns_per_peer", "4", "o2ib/conns_per_peer", "0"), 4},
		{"net", set("conns_per_peer", "4", "o2ib/conns_per_peer", "2"), 2},
	} {
		if _, n, _ := tunables.Derive(tc.v, "o2ib"); n.ConnsPerPeer != tc.want {
			t.Errorf("conns_per_peer %s: %d, want %d", tc.name, n.ConnsPerPeer, tc.want)
		}
	}
	// A net can take back what the global scope says, with values that some tools take for "not set".
	_, n, _ := tunables.Derive(set("tos", "106", "o2ib/tos", "-1", "fmr_cache", "1", "o2ib/fmr_cache", "0", "peer_timeout", "10", "o2ib/peer_timeout", "0"), "o2ib")
	if n.TOS != -1 || n.FMRCache || n.PeerTimeout != 0 {
		t.Errorf("net's own values do not stand: %+v", n)
	}
	// Values that Validate refuses count as not set.
	if g, n, _ := tunables.Derive(tunables.Values{{Scope: global, Name: "ib_mtu"}: "1000", {Scope: global, Name: "peer_credits"}: "x"}, "o2ib"); g.IBMTU != 0 || n.PeerCredits != 8 {
		t.Errorf("invalid values were used: %+v %+v", g, n)
	}
}

func TestSetup2016(t *testing.T) {
	base := tunables.Params2016{Credits: 256, PeerCredits: 8, NTX: 512, FMRPoolSize: 512}
	for _, tc := range []struct {
		name              string
		change            func(*tunables.Params2016)
		p, hiw, conc, mod int
		fails             string
	}{
		{"defaults", func(*tunables.Params2016) {}, 8, 4, 8, 0, ""},
		{"T12_64", func(p *tunables.Params2016) { p.PeerCredits = 300 }, 255, 127, 255, 0, ""},
		{"T12_65", func(p *tunables.Params2016) { p.PeerCredits = 4 }, 8, 4, 8, 0, ""},
		{"T12_66 map_on_demand 1", func(p *tunables.Params2016) { p.MapOnDemand = 1 }, 8, 4, 16, 2, ""},
		{"T12_66 map_on_demand 300", func(p *tunables.Params2016) { p.MapOnDemand = 300 }, 8, 4, 8, 0, ""},
		{"T12_66 map_on_demand 32", func(p *tunables.Params2016) { p.MapOnDemand = 32 }, 8, 4, 16, 32, ""},
		{"map_on_demand 33", func(p *tunables.Params2016) { p.MapOnDemand = 33 }, 8, 4, 8, 33, ""},
		{"map_on_demand negative", func(p *tunables.Params2016) { p.MapOnDemand = -1 }, 8, 4, 8, 0, ""},
		{"concurrent_sends clamped", func(p *tunables.Params2016) { p.ConcurrentSends = 99 }, 8, 4, 16, 0, ""},
		{"T12_67 ib_mtu 1000", func(p *tunables.Params2016) { p.IBMTU = 1000 }, 0, 0, 0, 0, "ib_mtu 1000"},
		{"T12_68", func(p *tunables.Params2016) { p.NTX, p.MapOnDemand = 4096, 32 }, 0, 0, 0, 0, "at least 1024"},
		{"T12_68 without map_on_demand starts", func(p *tunables.Params2016) { p.NTX = 4096 }, 8, 4, 8, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := base
			tc.change(&p)
			got, err := tunables.Setup2016(p)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("error %v, want %q", err, tc.fails)
				}
				return
			}
			if err != nil || got.PeerCredits != tc.p || got.PeerCreditsHiw != tc.hiw || got.ConcurrentSends != tc.conc || got.MapOnDemand != tc.mod {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name        string
		scope, tun  string
		value       string
		canon, want string // canonical value, or parts of the error divided by |
	}{
		{"number", global, "peer_credits", "16", "16", ""},
		{"number with clutter", "", "peer_credits", " +016 ", "16", ""},
		{"alias", "o2ib0", "lnd_peercredits_hiw", "4", "4", ""},
		{"negative allowed", global, "tos", "-1", "-1", ""},
		{"old map_on_demand", global, "map_on_demand", "32", "", "map_on_demand: 32 is out of range|import|allowed: 0 (off) or 1 (on)"},
		{"map_on_demand off", global, "map_on_demand", "0", "1", ""},
		{"not a number", "o2ib1", "peer_credits", "many", "", `o2ib1/peer_credits: "many" is not a whole number; allowed: 0 … 65535 messages`},
		{"empty", global, "peer_credits", "", "", `"" is not a whole number`},
		{"fraction", global, "timeout", "1.5", "", "not a whole number"},
		{"too large", global, "retry_count", "8", "", "retry_count: 8 is out of range; allowed: 0 … 7 retries"},
		{"too large for a machine", global, "retry_count", "99999999999999999999999", "", "is out of range"},
		{"negative", global, "peer_credits", "-1", "", "-1 is out of range"},
		{"T12_67 ib_mtu", global, "ib_mtu", "1000", "", `"1000" is not one of the allowed values; allowed: 0, 256, 512, 1024, 2048, 4096 bytes`},
		{"enum", global, "cksum_char", "Signed", "", "allowed: signed, unsigned"},
		{"flag", global, "cksum", "2", "", "allowed: 0 (off) or 1 (on)"},
		{"tos", global, "tos", "256", "", "allowed: -1 … 255"},
		{"conns_per_peer", global, "conns_per_peer", "128", "", "allowed: 0 … 127"},
		{"interface", global, "ipif_name", "ib0/..", "", "not allowed; allowed: 1 … 15 printable"},
		{"interface too long", global, "ipif_name", "a-name-that-is-long", "", "too long"},
		{"interface empty", global, "ipif_name", " ", "", "is empty"},
		{"unknown name", global, "peer_credit", "8", "", "no such tunable, did you mean peer_credits?"},
		{"unknown name, nothing near", global, "zzz", "8", "", "zzz: no such tunable; allowed: "},
		{"unknown scope", "tcp1", "peer_credits", "8", "", `unknown scope "tcp1"; allowed: global, or a net`},
		{"scope out of range", "o2ib70000", "peer_credits", "8", "", "unknown scope"},
		{"scope with zero in front", "o2ib01", "peer_credits", "8", "", "unknown scope"},
		{"global only", "o2ib1", "service", "988", "", "o2ib1/service: cannot be set for a single net; allowed: scope global"},
		{"foreign text", global, "peer_credits", "1\n\x1b[31m" + strings.Repeat("x", 100), "", `"1??[31m`},
		{"foreign name", global, "a\nb", "1", "", "a?b: no such tunable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key := tunables.Scoped{Scope: tc.scope, Name: tc.tun}
			_, canon, note, err := tunables.Canonical(key, tc.value)
			if tc.want == "" {
				if err != nil || canon != tc.canon {
					t.Errorf("%q, %v, want %q", canon, err, tc.canon)
				}
				if (note != nil) != (tc.name == "map_on_demand off") {
					t.Errorf("note %v", note)
				}
				return
			}
			if err == nil {
				t.Fatal("was taken")
			}
			for _, part := range strings.Split(tc.want, "|") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 300 {
				t.Errorf("not fit for a line: %q", err)
			}
			errs := tunables.Validate(tunables.Values{key: tc.value})
			if len(errs) != 1 {
				t.Errorf("Validate: %v", errs)
			}
		})
	}
}

func TestValidateTogether(t *testing.T) {
	for _, tc := range []struct {
		name string
		v    tunables.Values
		want []string
	}{
		{"T12_68 too few regions", set("ntx", "4096"), []string{"ntx: fmr_pool_size 512 is less than a quarter of ntx 4096"}},
		{"enough", set("ntx", "4096", "fmr_pool_size", "1024"), nil},
		{"just enough", set("ntx", "2051"), nil},
		{"a net's ntx", set("o2ib1/ntx", "4096", "o2ib2/peer_credits", "16"), []string{"o2ib1/ntx: fmr_pool_size 512"}},
		{"a net's pool", set("ntx", "2048", "o2ib1/fmr_pool_size", "100"), []string{"o2ib1/fmr_pool_size: fmr_pool_size 100"}},
		{"said once, not for every net", set("ntx", "4096", "o2ib1/peer_credits", "16"), []string{"ntx: "}},
		{"global and net", set("ntx", "4096", "o2ib1/ntx", "8192"), []string{"ntx: ", "o2ib1/ntx: "}},
		{"all that is wrong", tunables.Values{{Scope: global, Name: "ib_mtu"}: "1", {Scope: global, Name: "x"}: "1", {Scope: "o2ib1", Name: "cksum"}: "1"}, []string{"ib_mtu", "x", "o2ib1/cksum"}},
		{"an alias is not a key", tunables.Values{{Scope: global, Name: "lnd_ntx"}: "512"}, []string{"lnd_ntx: not the name"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := tunables.Validate(tc.v)
			if len(errs) != len(tc.want) {
				t.Fatalf("%v, want %v", errs, tc.want)
			}
			for i, e := range errs {
				if !strings.HasPrefix(e.Error(), tc.want[i]) {
					t.Errorf("%q, want %q", e.Error(), tc.want[i])
				}
			}
		})
	}
}

func TestImport(t *testing.T) {
	opts := func(pairs ...string) []tunables.Option {
		var o []tunables.Option
		for i := 0; i < len(pairs); i += 2 {
			o = append(o, tunables.Option{Name: pairs[i], Value: pairs[i+1]})
		}
		return o
	}
	for _, tc := range []struct {
		name  string
		scope string
		in    []tunables.Option
		want  tunables.Values
		notes []string
		errs  []string
	}{
		{"module options of 2016", global, opts("peer_credits", "128", "credits", "1024", "map_on_demand", "32", "kib_min_reconnect_interval", "1"),
			set("peer_credits", "128", "credits", "1024", "map_on_demand", "1"),
			[]string{"map_on_demand 32 → 1", "kib_min_reconnect_interval is ignored", "concurrent_sends is 128 here: a module of 2016 with map_on_demand 32 used 256"}, nil},
		{"map_on_demand with concurrent_sends set", global, opts("map_on_demand", "256", "concurrent_sends", "16"), set("map_on_demand", "1", "concurrent_sends", "16"), []string{"map_on_demand 256 → 1"}, nil},
		{"zero of a module option is a value", global, opts("concurrent_sends", "0"), set("concurrent_sends", "0"), nil, nil},
		{"lnetctl example", "o2ib1", opts("peer_timeout", "180", "peer_credits", "128", "peer_buffer_credits", "0", "credits", "1024",
			"peercredits_hiw", "64", "map_on_demand", "1", "concurrent_sends", "256", "fmr_pool_size", "2048", "fmr_flush_trigger", "512",
			"fmr_cache", "1", "ntx", "512", "conns_per_peer", "4", "tos", "-1"),
			set("o2ib1/peer_timeout", "180", "o2ib1/peer_credits", "128", "o2ib1/peer_buffer_credits", "0", "o2ib1/credits", "1024",
				"o2ib1/peer_credits_hiw", "64", "o2ib1/map_on_demand", "1", "o2ib1/concurrent_sends", "256", "o2ib1/fmr_pool_size", "2048",
				"o2ib1/fmr_flush_trigger", "512", "o2ib1/fmr_cache", "1", "o2ib1/ntx", "512", "o2ib1/conns_per_peer", "4"), nil, nil},
		{"lnetctl's not set", "o2ib1", opts("peer_timeout", "-1", "peercredits_hiw", "0", "ntx", "0", "timeout", "50", "fmr_cache", "0", "map_on_demand", "true"),
			set("o2ib1/fmr_cache", "0", "o2ib1/map_on_demand", "1"), []string{"timeout 50 of a net is left out"}, nil},
		{"spellings", global, opts("use_fastreg_gaps", "Y", "cksum", "3", "keepalive", "-5", "dev_failover", "9"),
			set("use_fastreg_gaps", "1", "cksum", "1", "keepalive", "0", "dev_failover", "2"), []string{"cksum 3 → 1", "keepalive -5 → 0", "dev_failover 9 → 2"}, nil},
		{"wrong", global, opts("peer_credit", "8", "ib_mtu", "1000", "credits", "64"), set("credits", "64"), nil, []string{"peer_credit: no such tunable", "ib_mtu: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tunables.Import(tc.scope, tc.in)
			if d := cmp.Diff(tc.want, got.Values); d != "" {
				t.Error(d)
			}
			var notes, errs []string
			for _, n := range got.Notes {
				notes = append(notes, n.Text)
			}
			for _, e := range got.Errors {
				errs = append(errs, e.Error())
			}
			for what, pair := range map[string][2][]string{"notes": {tc.notes, notes}, "errors": {tc.errs, errs}} {
				ok := len(pair[0]) == len(pair[1])
				for i := 0; ok && i < len(pair[0]); i++ {
					ok = strings.HasPrefix(pair[1][i], pair[0][i])
				}
				if !ok {
					t.Errorf("%s: %q, want %q", what, pair[1], pair[0])
				}
			}
		})
	}
}

func TestValues(t *testing.T) {
	file := set("peer_credits", "16", "o2ib1/peer_credits", "32", "timeout", "60")
	changed := set("peer_credits", "24", "o2ib10/tos", "0", "o2ib2/tos", "1")
	v := changed.Over(file)
	if got, from, ok := v.Find("o2ib1", "peer_credits"); got != "32" || from != "o2ib1" || !ok {
		t.Errorf("net's own value: %q from %q", got, from)
	}
	if got, from, _ := v.Find("o2ib2", "peer_credits"); got != "24" || from != global {
		t.Errorf("global value: %q from %q", got, from)
	}
	if _, _, ok := v.Find("o2ib2", "keepalive"); ok {
		t.Error("keepalive was never set")
	}
	if d := cmp.Diff([]string{"o2ib1", "o2ib2", "o2ib10"}, v.Nets()); d != "" {
		t.Error(d)
	}
	if len(file) != 3 {
		t.Error("Over changed its base")
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var back tunables.Values
	if err := json.Unmarshal(b, &back); err != nil || cmp.Diff(v, back) != "" {
		t.Errorf("JSON: %s, %v, %v", b, back, err)
	}
	if err := json.Unmarshal([]byte(`{"o2ib1/no":"1"}`), &back); err == nil {
		t.Error("unknown name was read")
	}
}

func TestCosts(t *testing.T) {
	if got := tunables.DepthThatFits(128, 257, true, 16384); got != 63 {
		t.Errorf("depth for 16384 work requests: %d, want 63", got)
	}
	if got := tunables.DepthThatFits(8, 257, true, 16384); got != 8 {
		t.Errorf("depth that fits: %d", got)
	}
	if got := tunables.CostOfConn(128, 257, true).SendWRs; got != 128*260 {
		t.Errorf("send work requests: %d", got)
	}
	_, n, _ := tunables.Derive(nil, "o2ib")
	want := tunables.NICost{TxDescs: 1024, TxBytes: 1024 * 4096, Regions: 1024, RegionBytes: 1 << 30}
	if d := cmp.Diff(want, tunables.CostOfNI(n, 4)); d != "" {
		t.Error(d)
	}
	if tunables.TxPoolSize(4096, 2) != 2048 || tunables.FMRPoolSize(512, 1) != 512 || tunables.FMRFlushTrigger(384, 4) != 192 || tunables.FMRFlushTrigger(384, 1) != 384 {
		t.Error("pool shares")
	}
}

// Whatever is valid gives an NI that keeps the invariants that the engine relies on.
func TestDeriveInvariants(t *testing.T) {
	names := []string{"peer_credits", "peer_credits_hiw", "credits", "concurrent_sends", "conns_per_peer", "timeout", "ntx", "fmr_pool_size"}
	rapid.Check(t, func(t *rapid.T) {
		v := tunables.Values{}
		for _, scope := range []string{global, "o2ib1"} {
			for _, name := range names {
				tun, _ := tunables.Lookup(name)
				if rapid.Bool().Draw(t, "set") && (scope == global || tun.PerNet) {
					n := rapid.Int64Range(tun.Min, min(tun.Max, 1200)).Draw(t, name)
					v[tunables.Scoped{Scope: scope, Name: name}] = strconv.FormatInt(n, 10)
				}
			}
		}
		if len(tunables.Validate(v)) > 0 {
			return
		}
		g, n, _ := tunables.Derive(v, "o2ib1")
		p := n.PeerCredits
		if p < 1 || p > 255 || p > n.Credits || p < 8 && p != n.Credits {
			t.Fatalf("peer_credits %d, credits %d", p, n.Credits)
		}
		if n.PeerCreditsHiw < p/2 || n.PeerCreditsHiw > p-1 {
			t.Fatalf("hiw %d of %d", n.PeerCreditsHiw, p)
		}
		if n.ConcurrentSends < p/2 || n.ConcurrentSends > 2*p || n.ConcurrentSends < 1 && p > 1 {
			t.Fatalf("concurrent_sends %d of %d", n.ConcurrentSends, p)
		}
		if n.ConnsPerPeer < 1 || n.ConnsPerPeer > 127 || g.Timeout <= 0 || n.FMRPoolSize < n.NTX/4 {
			t.Fatalf("%+v %+v", g, n)
		}
	})
}

func FuzzValidate(f *testing.F) {
	f.Add("global", "peer_credits", "16")
	f.Add("o2ib1", "lnd_tos", "-1")
	f.Add("o2ib65536", "ib_mtu", "1000")
	f.Add("", "ipif_name", "\xff\x00")
	f.Fuzz(func(t *testing.T, scope, name, value string) {
		key, canon, _, err := tunables.Canonical(tunables.Scoped{Scope: scope, Name: name}, value)
		errs := tunables.Validate(tunables.Values{{Scope: scope, Name: name}: value})
		if err != nil {
			if len(errs) == 0 {
				t.Fatalf("Canonical refuses %q %q %q, Validate does not", scope, name, value)
			}
			for _, s := range []string{err.Error(), errs[0].Error()} {
				if strings.ContainsAny(s, "\n\r\x00") || len(s) > 1000 {
					t.Fatalf("not fit for a line: %q", s)
				}
			}
			return
		}
		// What is canonical stays as it is.
		if k2, c2, _, err := tunables.Canonical(key, canon); err != nil || k2 != key || c2 != canon {
			t.Fatalf("%v %q → %v %q, %v", key, canon, k2, c2, err)
		}
		tunables.Derive(tunables.Values{key: canon}, key.Scope)
		tunables.Import(scope, []tunables.Option{{Name: name, Value: value}})
	})
}
