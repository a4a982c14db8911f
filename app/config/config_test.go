package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/config"
	"o2ibd/engine/tunables"
)

func scoped(scope, name string) tunables.Scoped { return tunables.Scoped{Scope: scope, Name: name} }

func TestExports(t *testing.T) {
	tests := []struct {
		file     string
		nis      []config.NI
		tunables tunables.Values
		notices  []string
	}{
		{
			file: "export-full.yaml",
			nis:  []config.NI{{"o2ib", "ib0"}},
			tunables: tunables.Values{
				scoped("o2ib", "peer_timeout"): "180", scoped("o2ib", "peer_credits"): "32",
				scoped("o2ib", "peer_buffer_credits"): "0", scoped("o2ib", "credits"): "256",
				scoped("o2ib", "peer_credits_hiw"): "16", scoped("o2ib", "map_on_demand"): "1",
				scoped("o2ib", "concurrent_sends"): "32", scoped("o2ib", "fmr_pool_size"): "512",
				scoped("o2ib", "fmr_flush_trigger"): "384", scoped("o2ib", "fmr_cache"): "1",
				scoped("o2ib", "ntx"): "512", scoped("o2ib", "conns_per_peer"): "1",
			},
			notices: []string{
				"testdata/export-full.yaml:82: o2ib: timeout 50 of a net is left out: it only reports the global one",
				"testdata/export-full.yaml: not used here and ignored: nid, status, statistics, sent_stats, received_stats, dropped_stats, health stats, dev cpt, CPT, peer, global",
			},
		},
		{
			file: "import.yaml",
			nis:  []config.NI{{"o2ib1", "ib0"}},
			tunables: tunables.Values{
				scoped("o2ib1", "peer_timeout"): "180", scoped("o2ib1", "peer_credits"): "128",
				scoped("o2ib1", "peer_buffer_credits"): "0", scoped("o2ib1", "credits"): "1024",
				scoped("o2ib1", "peer_credits_hiw"): "64", scoped("o2ib1", "map_on_demand"): "1",
				scoped("o2ib1", "concurrent_sends"): "256", scoped("o2ib1", "fmr_pool_size"): "2048",
				scoped("o2ib1", "fmr_flush_trigger"): "512", scoped("o2ib1", "fmr_cache"): "1",
				scoped("o2ib1", "ntx"): "512", scoped("o2ib1", "conns_per_peer"): "4",
			},
			notices: []string{"testdata/import.yaml: not used here and ignored: CPT, peer, global"},
		},
		{
			file: "export-2016.yaml",
			nis:  []config.NI{{"o2ib7", "ib1"}},
			tunables: tunables.Values{
				scoped("o2ib7", "peer_timeout"): "180", scoped("o2ib7", "peer_credits"): "16",
				scoped("o2ib7", "peer_buffer_credits"): "0", scoped("o2ib7", "credits"): "512",
				scoped("o2ib7", "peer_credits_hiw"): "8", scoped("o2ib7", "map_on_demand"): "1",
				scoped("o2ib7", "fmr_pool_size"): "512", scoped("o2ib7", "fmr_flush_trigger"): "384",
				scoped("o2ib7", "fmr_cache"): "1",
			},
			notices: []string{
				"testdata/export-2016.yaml:24: o2ib7: map_on_demand 32 → 1: it is a flag today, and does not change the fragments that we offer (256)",
				"testdata/export-2016.yaml:25: o2ib7: concurrent_sends is 16 here: a module of 2016 with map_on_demand 32 used 32; set it if that is wanted",
				"testdata/export-2016.yaml: not used here and ignored: nid, status, CPT",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			c, err := config.Read(filepath.Join("testdata", tt.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.nis, c.NIs); diff != "" {
				t.Errorf("NIs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.tunables, c.Tunables); diff != "" {
				t.Errorf("tunables (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.notices, c.Notices); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFile(t *testing.T) {
	c, err := config.Parse("o2ibd.yaml", []byte(`
listen: 0.0.0.0:443
state: /srv/o2ibd
socket: /run/o2ibd.sock
provider: iwarp
allowed_hosts: [mon.example.com, "10.0.0.9"]
metrics_public: true
tls: {cert: /etc/o2ibd/tls.crt, key: /etc/o2ibd/tls.key}
insecure_listen: false
tunables:
  peer_credits: 16        # for every network
  o2ib1/peertxcredits: 32 # for one, by the module's name
net:
  - net type: tcp
    local NI(s):
      - interfaces: {0: eth0}
  - net type: o2ib0
    tunables: {credits: 128}
    local NI(s):
      - interfaces: {0: "ib0[0,1]"}
      - interfaces: {0: ib1}
        lnd tunables: {ntx: 1024}
      - status: down
cpts: ["0-1", "2,3"]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Config{
		File: "o2ibd.yaml", Listen: "0.0.0.0:443", State: "/srv/o2ibd", Socket: "/run/o2ibd.sock", Provider: "iwarp", CPTs: [][]int{{0, 1}, {2, 3}},
		AllowedHosts: []string{"mon.example.com", "10.0.0.9"}, MetricsPublic: true,
		TLSCert: "/etc/o2ibd/tls.crt", TLSKey: "/etc/o2ibd/tls.key",
		Tunables: tunables.Values{
			scoped("global", "peer_credits"): "16", scoped("o2ib1", "peer_credits"): "32",
			scoped("o2ib", "credits"): "128", scoped("o2ib", "ntx"): "1024",
		},
		NIs: []config.NI{{"o2ib", "ib0"}, {"o2ib", "ib1"}, {"o2ib", ""}},
		Notices: []string{
			"o2ibd.yaml:14: network tcp is skipped: this appliance speaks o2ib",
			"o2ibd.yaml:23: an NI of o2ib names no interface: the tunable ipif_name says on which it is",
			"o2ibd.yaml: not used here and ignored: status",
		},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEmptyFiles(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "a comment": "# later\n", "a document": "---\n"} {
		c, err := config.Parse("f", []byte(text))
		if diff := cmp.Diff(config.Config{File: "f", Tunables: tunables.Values{}}, c); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestBadInput(t *testing.T) {
	ni := "net:\n - net type: o2ib\n   local NI(s):\n    - interfaces: {0: ib0}\n      "
	tests := []struct{ name, text, want string }{
		{"unknown key", "lisen: 1.2.3.4:5", `f:1: unknown key "lisen" in the configuration; the nearest known key is "listen"`},
		{"far from every key", "zzzzzz: 1", `f:1: unknown key "zzzzzz" in the configuration; known are allowed_hosts, `},
		{"key twice", "listen: :1\nlisten: :2", `f:2: `},
		{"no mapping", "- a", `f:1: the configuration is a list: keys and values are wanted`},
		{"a word", "hello", `f:1: the configuration is "hello": keys and values are wanted`},
		{"not YAML", "a: [1", `f:1: not valid YAML: `},
		{"tab", "tls:\n\tcert: x", `not valid YAML: `},
		{"two documents", "listen: :1\n---\nlisten: :2", `f:3: a second document: a configuration is one`},
		{"anchor", "listen: &a :1", `f:1: listen is an anchor, alias or tag: a single value is wanted`},
		{"list for a value", "state: [a]", `f:1: state is a list: a single value is wanted`},
		{"empty value", "state:", `f:1: state is empty: a single value is wanted`},
		{"listen without port", "listen: localhost", `listen "localhost": an address and a port are wanted, such as 127.0.0.1:8470`},
		{"CPUs", "cpts: [0-1, x]", `f:1: CPUs "x": a list such as 0-3,8 with numbers below 1024`},
		{"CPU in two", "cpts:\n  - 0-1\n  - 1", `f:2: cpts: CPU 1 is in the CPTs 0 and 1: it can be in one only`},
		{"provider", "provider: tcp", `f:1: provider "tcp": iwarp and rdmacore are possible`},
		{"flag", "metrics_public: maybe", `f:1: metrics_public is "maybe": true or false is wanted`},
		{"half of tls", "tls: {cert: a.pem}", `f:1: tls needs both cert and key, each a PEM file, or self_made: true`},
		{"two certificates", "tls: {cert: a.pem, key: b.pem, self_made: true}", `f:1: tls has a certificate of yours and self_made`},
		{"key of tls", "tls: {cret: a.pem}", `f:1: unknown key "cret" in tls; the nearest known key is "cert"`},
		{"host", "allowed_hosts: [\"http://x\"]", `f:1: allowed host "http://x": a host name as browsers send it is wanted`},
		{"two without interface", "net:\n - net type: o2ib\n   local NI(s):\n    - {}\n    - {}", `f:5: a second NI of o2ib without an interface: name it`},
		{"tunable name", "tunables:\n  peer_credit: 8", `f:2: peer_credit: no such tunable, did you mean peer_credits?`},
		{"tunable value", "tunables:\n  retry_count: 9", `f:2: retry_count: 9 is out of range; allowed: 0 … 7 retries`},
		{"tunable scope", "tunables:\n  tcp1/ntx: 9", `f:2: `},
		{"tunable list", "tunables:\n  ntx: [1]", `f:2: tunable ntx is a list: a single value is wanted`},
		{"tunables together", "tunables:\n  fmr_pool_size: 1000\n  ntx: 9000", `f:2: fmr_pool_size: `},
		{"net not a list", "net: {a: 1}", `f:1: net is a mapping: a list is wanted`},
		{"net without type", "net:\n - local NI(s): []", `f:2: a network without "net type": a name is wanted, such as o2ib1`},
		{"net of no known type", "net:\n - net type: o2bi1\n   local NI(s): []", `f:2: network "o2bi1" is not known: o2ib with a number up to 65535 is wanted, such as o2ib1`},
		{"net number", "net:\n - net type: o2ib65536\n   local NI(s): []", `f:2: network "o2ib65536" is not known`},
		{"net without NIs", "net:\n - net type: o2ib", `f:2: network o2ib has no "local NI(s)": a list is wanted`},
		{"NIs not a list", "net:\n - net type: o2ib\n   local NI(s): ib0", `f:3: local NI(s) is "ib0": a list is wanted`},
		{"unknown key of a net", "net:\n - net type: o2ib\n   local NIs: []", `f:3: unknown key "local NIs" in a network; the nearest known key is "local NI(s)"`},
		{"unknown key of an NI", ni + "lnd tunable: {}", `f:5: unknown key "lnd tunable" in an NI of o2ib; the nearest known key is "lnd tunables"`},
		{"unknown lnd tunable", ni + "lnd tunables: {ntxs: 5}", `f:5: unknown key "ntxs" in lnd tunables of o2ib; the nearest known key is "ntx"`},
		{"value of an NI", ni + "tunables: {peer_credits: many}", `f:5: o2ib/peer_credits: "many" is not a whole number; allowed: 0 … 65535 messages`},
		{"far out of range", ni + "lnd tunables: {conns_per_peer: 1000000000000000000000000}", `f:5: o2ib/conns_per_peer: `},
		{"two interfaces", "net:\n - net type: o2ib\n   local NI(s):\n    - interfaces: {0: ib0, 1: ib1}", `f:4: a second interface ib1 in one NI`},
		{"interface twice", ni + "\n    - interfaces: {0: ib0}", `ib0 is on o2ib already`},
		{"interfaces a list", "net:\n - net type: o2ib\n   local NI(s):\n    - interfaces: [ib0]", `f:4: interfaces is a list: a number and a name are wanted, such as 0: ib0`},
		{"two NIs that differ", ni + "lnd tunables: {ntx: 512}\n    - interfaces: {0: ib1}\n      lnd tunables: {ntx: 1024}", `f:7: o2ib/ntx is 1024 here and 512 in line 5: one value is possible`},
		{"deep flow", "net: " + strings.Repeat("[", 100_000), `f:1: nested deeper than 32 levels`},
		{"deep block", strings.Repeat("- ", 100_000) + "a", `f:1: nested deeper than 32 levels`},
		{"deep tags", "a: " + strings.Repeat("!a ", 100_000), `f:1: nested deeper than 32 levels`},
		{"deep mappings", deepMappings(), `: nested deeper than 32 levels`},
		{"too large", strings.Repeat("#", 1<<20+1), `f: 1048577 bytes: a configuration has at most 1048576`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := config.Parse("f", []byte(tt.text))
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func deepMappings() string {
	var b strings.Builder
	for i := range 500 {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// The file that we ship is right, and so is each line that it proposes.
func TestShippedFile(t *testing.T) {
	text, err := os.ReadFile("../../deploy/o2ibd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var proposed strings.Builder
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, "#"); ok && !strings.HasPrefix(rest, " ") || strings.HasPrefix(l, "#  ") {
			l = rest
		}
		proposed.WriteString(l)
	}
	if c, err := config.Parse("as shipped", text); err != nil || c.Listen != "" {
		t.Errorf("as shipped: %v", err)
	}
	c, err := config.Parse("proposed", []byte(proposed.String()))
	if err != nil {
		t.Fatal(err)
	}
	if c.Provider != "rdmacore" || len(c.CPTs) != 2 || len(c.NIs) != 1 || len(c.Tunables) != 2 || !c.TLS() {
		t.Errorf("what it proposes is read as %+v", c)
	}
}

func TestFileNotThere(t *testing.T) {
	_, err := config.Read(filepath.Join(t.TempDir(), "none.yaml"))
	if err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("error is %v", err)
	}
}

func TestFill(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/home/u/state")
	base := "/home/u/state/o2ibd"
	if os.Geteuid() == 0 {
		base = "/var/lib/o2ibd"
	}
	tests := []struct {
		name string
		in   config.Config
		demo bool
		want config.Config
	}{
		{"nothing set", config.Config{}, false, config.Config{Listen: "127.0.0.1:8470", State: base, Socket: base + "/o2ibd.sock"}},
		{"demo", config.Config{}, true, config.Config{Listen: "127.0.0.1:8470", State: base + "/demo", Socket: base + "/demo/o2ibd.sock"}},
		{"demo in a named folder", config.Config{State: "/s"}, true, config.Config{Listen: "127.0.0.1:8470", State: "/s", Socket: "/s/o2ibd.sock"}},
		{"all set", config.Config{Listen: ":1", State: "/s", Socket: "/k"}, false, config.Config{Listen: ":1", State: "/s", Socket: "/k"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.in
			got.Fill(tt.demo)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
