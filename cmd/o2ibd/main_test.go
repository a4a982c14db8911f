package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"o2ibd/app"
	"o2ibd/app/tuning"
	"o2ibd/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an appliance that knows its answers beforehand.
type fake struct {
	socket string

	mu       sync.Mutex
	requests []string // "METHOD /path?query body"
}

// appliance serves answers by "METHOD /path" on a unix socket. An answer is a value, sent as JSON, a
// []byte, sent as it is, an app.Problem, or a list of these, given one after the other.
func appliance(t *testing.T, answers map[string]any) *fake {
	t.Helper()
	dir, err := os.MkdirTemp("", "o2ibd") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fake{socket: filepath.Join(dir, "s")}
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
		key := r.Method + " " + r.URL.Path
		answer, ok := answers[key]
		if list, many := answer.([]any); many {
			answer = list[0]
			if len(list) > 1 {
				answers[key] = list[1:]
			}
		}
		switch a := answer.(type) {
		case app.Problem:
			w.WriteHeader(a.Status)
		case []byte:
			w.Write(a)
			return
		}
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		json.NewEncoder(w).Encode(answer)
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return f
}

// o2ibd runs the command line and gives its exit code and what it wrote.
func o2ibd(t *testing.T, in string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(in), &o, &e)
	if n := strings.Count(e.String(), "\n"); code != 0 && n != 1 {
		t.Errorf("%d lines of error: %q", n, e.String())
	}
	if code != 0 && !strings.HasPrefix(e.String(), "o2ibd: ") {
		t.Errorf("error is %q", e.String())
	}
	return code, o.String(), e.String()
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join("testdata", file), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestUsage(t *testing.T) {
	tests := []struct {
		args string
		code int
		want string
	}{
		{"--help", 0, "Usage: o2ibd <command>"},
		{"tunables set --help", 0, "--reason"},
		{"version", 0, "o2ibd"},
		{"version -o json", 0, `"providers"`},
		{"", 2, "expected one of"},
		{"frobnicate", 2, "unexpected argument frobnicate"},
		{"ping", 2, "see o2ibd ping --help"},
		{"ping 10.0.0.1@o2ib --count=0", 2, "must be more than 0"},
		{"ping 10.0.0.1@o2ib --timeout=soon", 2, "--timeout"},
		{"net show -o xml", 2, "--output"},
		{"serve --demo=0", 2, "from 1 to 16"},
		{"serve --demo=17", 2, "from 1 to 16"},
		{"serve --demo=many", 2, "from 1 to 16"},
		{"serve --config /nowhere/c.yaml", 2, "/nowhere/c.yaml"},
		{"serve --state /dev/null/x", 1, "state folder"},
		{"serve --demo --state /dev/null/x", 1, "state folder"},
		{"tunables set ntx", 2, `"ntx" is no setting`},
		{"tunables set =5", 2, `"=5" is no setting`},
		{"tunables set ntx=5 --confirm-within=5", 2, "--confirm-within"},
		{"tunables revert", 2, "<id>"},
		{"tunables export", 2, "--format"},
		{"tunables export --format json", 2, "modprobe"},
		{"user role otto king", 2, "must be one of"},
		{"user token otto --ttl=1ms", 2, "a second or more"},
		{"net show --socket=/nowhere/s", 1, "no appliance answers on /nowhere/s (no such file or directory); start it with o2ibd serve"},
		{"advise", 2, "unexpected argument advise"}, // not built yet, so not there
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			code, out, errs := o2ibd(t, "", strings.Fields(tt.args)...)
			if code != tt.code || !strings.Contains(out+errs, tt.want) {
				t.Errorf("exit code %d, %q; want %d, %q", code, out+errs, tt.code, tt.want)
			}
			if (code == 0) != (errs == "") {
				t.Errorf("exit code %d and error %q", code, errs)
			}
		})
	}
}

func TestShow(t *testing.T) {
	snapshot := engine.Snapshot{
		Nets: []engine.Net{{
			ID: "10.0.0.1@o2ib", NID: 0x000500000a000001, Net: "o2ib", Status: "up", Interface: "ib0", Provider: "iwarp",
			PeerCredits: 8, PeerCreditsHiw: 4, ConcurrentSends: 8, Credits: 256, AvailableCredits: 250, Peers: 1, Conns: 1, SendCount: 5, RecvCount: 4,
		}},
		Stats: engine.Stats{SendCount: 5, SendLength: 1 << 20},
	}
	peers := app.Rows[engine.Peer]{Total: 1, Rows: []engine.Peer{{
		ID: "10.0.0.1@o2ib>10.0.0.2@o2ib", NID: 0x000500000a000002, NI: 0x000500000a000001, State: "down", QueueDepth: 8,
		AvailableCredits: 8, MinCredits: 2, Error: "connection refused",
	}}}
	conns := app.Rows[engine.Conn]{Total: 1, Rows: []engine.Conn{{
		ID: "7", NID: 0x000500000a000002, State: "established", Direction: "active", Credits: 6, OutstandingCredits: 1, QueueDepth: 8,
	}}}
	global := tuning.Table{Tag: "1-ab", Tunables: []tuning.Row{
		{Name: "timeout", Scope: "global", Effective: "50", Default: "50", Source: "default", Effect: "at once", Range: "0 … 86400 s"},
		{Name: "ntx", Scope: "o2ib", Value: tuning.NewScalar("1024"), Effective: "1024", Default: "512", Source: "changed", Effect: "NI restart", Range: "1 … 65535 descriptors"},
	}}
	f := appliance(t, map[string]any{
		"GET /api/v1/snapshot": snapshot, "GET /api/v1/nets": app.Rows[engine.Net]{Total: 1, Rows: snapshot.Nets}, "GET /api/v1/peers": peers, "GET /api/v1/conns": conns, "GET /api/v1/tunables": global,
		"GET /api/v1/pools":   app.Rows[engine.Pool]{Total: 1, Rows: []engine.Pool{{Kind: "tx", Net: "o2ib", Size: 512, Used: 3, Pools: 1}}},
		"GET /api/v1/devices": app.Rows[engine.Device]{Total: 1, Rows: []engine.Device{{Name: "iwarp0", Interface: "lo", Addr: "127.0.0.1", Provider: "iwarp", LinkLayer: "iWARP", State: "active", MTU: 65536}}},
		"GET /api/v1/users":   app.UserList{Users: []app.Account{{Name: "admin", Role: app.RoleAdmin, CreatedAt: 0}}},
	})
	for _, tt := range []struct{ args, file string }{
		{"net show", "net.txt"},
		{"net show -v", "net-v.yaml"},
		{"net show -o json", "net.json"},
		{"peer show", "peer.txt"},
		{"peer show -v", "peer-v.yaml"},
		{"peer show -o yaml", "peer.yaml"},
		{"conn show", "conn.txt"},
		{"conn show -o yaml", "conn.yaml"},
		{"pool show", "pool.txt"},
		{"device show", "device.txt"},
		{"stats show", "stats.txt"},
		{"stats show -o yaml", "stats.yaml"},
		{"tunables show", "tunables.txt"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, out, errs := o2ibd(t, "", append(strings.Fields(tt.args), "--socket", f.socket)...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			golden(t, tt.file, out)
		})
	}
}

// TestPeerCommands: what is asked of the appliance for a peer, and what is told of the answer.
func TestPeerCommands(t *testing.T) {
	at, ended, portal, length, status := int64(1000), int64(1_700_000_000_000), uint32(4), uint32(10), int32(-110)
	f := appliance(t, map[string]any{
		"GET /api/v1/peers": app.Rows[engine.Peer]{Total: 1, Rows: []engine.Peer{{ID: "10.0.0.1@o2ib>10.0.0.2@o2ib"}}},
		"GET /api/v1/peers/10.0.0.1@o2ib>10.0.0.2@o2ib/messages": app.Messages{Conns: []engine.ConnMessages{
			{Conn: "3", EndedAt: &ended, Error: "timed out", Messages: []engine.Message{{At: ended - 5, Direction: "sent", Type: "IMMEDIATE", Nob: 138, LNet: "PUT", Portal: &portal, MatchBits: "0x1f", Length: &length}}},
			{Conn: "4", Messages: []engine.Message{{At: ended + 5, Direction: "received", Type: "GET_DONE", Credits: 2, Nob: 76, Cookie: "0x7", Status: &status, Failure: "connection timed out (ETIMEDOUT)"}}},
		}},
		"POST /api/v1/peers/query":  app.PeerAnswer{NID: "10.0.0.2@o2ib", LastAliveAt: &at},
		"POST /api/v1/peers/delete": app.PeerAnswer{},
		"POST /api/v1/conns/close":  app.PeerAnswer{Closed: 3},
	})
	for _, tt := range []struct{ args, asked, want string }{
		{"peer messages 10.0.0.2@o2ib", `GET /api/v1/peers?filter=nid%3D%2210.0.0.2%40o2ib%22&limit=100`, `CONN  WHEN                     WAY       TYPE       CREDITS  BYTES  SAYS
3     2023-11-14 22:13:19.995  sent      IMMEDIATE  0        138    LNet PUT, 10 bytes of data, portal 4, match 0x1f
3     2023-11-14 22:13:20.000  -         -          -        -      ended: timed out
4     2023-11-14 22:13:20.005  received  GET_DONE   2        76     failed: connection timed out (ETIMEDOUT), cookie 0x7
`},
		{"peer query 10.0.0.2@o2ib --ni 10.0.0.1@o2ib", `POST /api/v1/peers/query {"nid":"10.0.0.2@o2ib","ni":"10.0.0.1@o2ib"}`, "10.0.0.2@o2ib"},
		{"peer del *", `POST /api/v1/peers/delete {"nid":"*","ni":""}`, "* is forgotten\n"},
		{"conn close 10.0.0.2@o2ib", `POST /api/v1/conns/close {"nid":"10.0.0.2@o2ib","ni":""}`, "connections closed: 3\n"},
	} {
		f.requests = nil
		code, out, errs := o2ibd(t, "", append(strings.Fields(tt.args), "--socket", f.socket)...)
		if code != 0 || !strings.Contains(out, tt.want) {
			t.Errorf("%s: exit code %d: %s\n%s", tt.args, code, out, errs)
		}
		if len(f.requests) == 0 || f.requests[0] != tt.asked {
			t.Errorf("%s: requests are %q", tt.args, f.requests)
		}
	}
}

func TestFiltersAreTheAppliances(t *testing.T) {
	f := appliance(t, map[string]any{"GET /api/v1/conns": app.Problem{Status: 400, Title: "bad filter", Detail: `unknown field "creditz"; known are credits, state`}})
	code, _, errs := o2ibd(t, "", "conn", "show", "--filter", "creditz>0 10.0.", "--sort", "-credits", "--limit", "5", "--socket", f.socket)
	if code != 1 || errs != "o2ibd: unknown field \"creditz\"; known are credits, state\n" {
		t.Errorf("exit code %d: %q", code, errs)
	}
	if want := []string{"GET /api/v1/conns?filter=creditz%3E0+10.0.&limit=5&sort=-credits"}; !cmp.Equal(f.requests, want) {
		t.Errorf("requests are %q", f.requests)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for name, answer := range map[string]any{"no JSON": []byte("<html>"), "no problem": app.Problem{Status: 500}} {
		f := appliance(t, map[string]any{"GET /api/v1/snapshot": answer})
		if code, _, errs := o2ibd(t, "", "net", "show", "--socket", f.socket); code != 1 || !strings.Contains(errs, "the appliance") {
			t.Errorf("%s: exit code %d: %q", name, code, errs)
		}
	}
}

func TestPing(t *testing.T) {
	answer := app.PingResult{
		NID: 0x000500000a000002, From: 0x000500000a000001, PID: 12345, Features: 6, FeatureNames: []string{"ni-status"},
		NIDs: []app.PingNI{{NID: "0@lo", Status: "up"}, {NID: "10.0.0.2@o2ib", Status: "up"}}, RTT: 1_500_000,
	}
	lost := app.Problem{Status: 504, Detail: "no answer: ping 10.0.0.2@o2ib"}
	tests := []struct {
		name  string
		args  string
		serve any
		code  int
		want  []string
	}{
		{"one", "", answer, 0, []string{"from      10.0.0.1@o2ib\n", "features  0x6 ni-status\n", "nid       10.0.0.2@o2ib  up\n", "rtt       1.500 ms\n"}},
		{"two", "--count=2", answer, 0, []string{"min/avg/max  1.500/1.500/1.500 ms\n"}},
		{"json", "-o json", answer, 0, []string{`"nid": "10.0.0.2@o2ib"`, `"rtts_ms": [`, `"lost": 0`}},
		{"lost", "", lost, 1, []string{"o2ibd: no answer: ping 10.0.0.2@o2ib\n"}},
		{"one of two lost", "-c 2", []any{lost, answer}, 1, []string{"rtt       1.500 ms\n", "o2ibd: 1 of 2 pings were lost: no answer"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := appliance(t, map[string]any{"POST /api/v1/ping": tt.serve})
			code, out, errs := o2ibd(t, "", append(strings.Fields("ping 10.0.0.2@o2ib --timeout=2s "+tt.args), "--socket", f.socket)...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, w := range tt.want {
				if !strings.Contains(out+errs, w) {
					t.Errorf("%q is not in:\n%s", w, out+errs)
				}
			}
			if f.requests[0] != `POST /api/v1/ping {"nid":"10.0.0.2@o2ib","timeout_s":2}` {
				t.Errorf("request is %q", f.requests[0])
			}
		})
	}
}

func TestTunablesHistoryCommands(t *testing.T) {
	eight, sixteen := tuning.NewScalar("8"), tuning.NewScalar("16")
	moved := tuning.Result{
		ChangeID: "c7", Changed: []tuning.Changed{{Scope: "global", Name: "peer_credits", Old: sixteen, New: eight, Effect: "NI restart"}},
		Costs: []tuning.Cost{{Scope: "o2ib", Text: []string{"memory for each peer: 72 KiB, now 136 KiB"}}}, Restarts: []tuning.Restart{{NI: "10.0.0.1@o2ib", Conns: 3, Peers: 2}},
	}
	waits := moved
	waits.Pending = &tuning.Pending{ChangeID: "c7", ConfirmBy: 1}
	f := appliance(t, map[string]any{
		"PATCH /api/v1/tunables":                    waits,
		"GET /api/v1/tunables":                      []any{tuning.Table{Pending: waits.Pending}, tuning.Table{}},
		"POST /api/v1/tunables/changes/c7/confirm":  tuning.Settled{ChangeID: "c7"},
		"POST /api/v1/tunables/changes/c6/revert":   moved,
		"POST /api/v1/tunables/import":              moved,
		"GET /api/v1/tunables/export":               []byte("options ko2iblnd ntx=5\n"),
		"GET /api/v1/tunables/verify":               []any{tuning.Verdict{Whole: true, Records: 8}, tuning.Verdict{Seq: 3, Problem: "record 3: it was altered"}},
		"GET /api/v1/tunables/diff":                 tuning.Diff{Rows: []tuning.DiffRow{{Scope: "o2ib1", Name: "ntx", To: sixteen, EffectiveFrom: "512", EffectiveTo: "16", Effect: "NI restart"}}},
		"POST /api/v1/tunables/changes/none/revert": app.Problem{Status: 404, Detail: "no such change: none"},
	})
	file := filepath.Join(t.TempDir(), "ko2iblnd.conf")
	if err := os.WriteFile(file, []byte("options ko2iblnd ntx=5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args    []string
		code    int
		want    []string
		request string // the last one
	}{
		{[]string{"set", "peer_credits=8", "--confirm-within", "5m", "--reason", "r", "--if-match", "3-abc"}, 0,
			[]string{"unless you confirm it until", "o2ibd tunables confirm c7", "o2ib: memory for each peer", "NI 10.0.0.1@o2ib restarts: 3 connections to 2 peers"},
			`PATCH /api/v1/tunables {"changes":[{"scope":"global","name":"peer_credits","value":8}],"reason":"r","confirm_within_s":300,"dry_run":false}`},
		{[]string{"confirm"}, 0, []string{"change c7 is confirmed and stays"}, `POST /api/v1/tunables/changes/c7/confirm`},
		{[]string{"confirm"}, 1, []string{"no change waits to be confirmed"}, `GET /api/v1/tunables`},
		{[]string{"revert", "c6", "--since", "--reason", "worse"}, 0, []string{"peer_credits", "done, change c7"},
			`POST /api/v1/tunables/changes/c6/revert {"since":true,"reason":"worse","confirm_within_s":0,"dry_run":false}`},
		{[]string{"revert", "none"}, 1, []string{"no such change: none"}, `POST /api/v1/tunables/changes/none/revert {"since":false,"reason":"","confirm_within_s":0,"dry_run":false}`},
		{[]string{"import", file, "--dry-run"}, 0, []string{"peer_credits"}, `POST /api/v1/tunables/import {"text":"options ko2iblnd ntx=5\n","reason":"","confirm_within_s":0,"dry_run":true}`},
		{[]string{"import", file + ".no"}, 1, []string{"no such file"}, ""},
		{[]string{"export", "--format", "modprobe"}, 0, []string{"options ko2iblnd ntx=5\n"}, `GET /api/v1/tunables/export?format=modprobe`},
		{[]string{"verify"}, 0, []string{"the history is whole: 8 records"}, `GET /api/v1/tunables/verify`},
		{[]string{"verify"}, 1, []string{"record 3: it was altered"}, `GET /api/v1/tunables/verify`},
		{[]string{"diff"}, 0, []string{"o2ib1/ntx", "512"}, `GET /api/v1/tunables/diff?from=defaults&to=now`},
		{[]string{"diff", "before:c6", "2026-01-02 15:04"}, 0, []string{"IN USE TO"}, `GET /api/v1/tunables/diff?from=before%3Ac6&to=2026-01-02+15%3A04`},
	} {
		code, out, errs := o2ibd(t, "", append([]string{"tunables", "--socket", f.socket}, tc.args...)...)
		if code != tc.code {
			t.Errorf("%v: exit code %d, %s", tc.args, code, errs)
		}
		for _, w := range tc.want {
			if !strings.Contains(out+errs, w) {
				t.Errorf("%v: %q lacks %q", tc.args, out+errs, w)
			}
		}
		if last := f.requests[len(f.requests)-1]; tc.request != "" && last != tc.request {
			t.Errorf("%v: asked %s, want %s", tc.args, last, tc.request)
		}
	}
}

func TestTunables(t *testing.T) {
	f := appliance(t, map[string]any{
		"PATCH /api/v1/tunables": tuning.Result{
			ChangeID: "abc", Changed: []tuning.Changed{{Scope: "o2ib1", Name: "ntx", New: tuning.NewScalar("1024"), Effect: "NI restart"}},
		},
		"GET /api/v1/tunables/history": tuning.History{Changes: []tuning.HistoryRow{{
			ChangeID: "abc", Who: "otto", How: "page", Scope: "global", Name: "timeout", New: tuning.NewScalar("60"), Outcome: "failed", Error: "port in use", Reason: "slow disks",
		}}},
	})
	code, out, errs := o2ibd(t, "", "tunables", "set", "o2ib1/ntx=1024", "timeout=", "--reason", "more clients", "--socket", f.socket)
	if code != 0 || !strings.Contains(out, "o2ib1/ntx") || !strings.Contains(out, "done, change abc") {
		t.Errorf("exit code %d:\n%s%s", code, out, errs)
	}
	code, out, errs = o2ibd(t, "", "tunables", "history", "--name", "timeout", "--socket", f.socket)
	if code != 0 || !strings.Contains(out, "failed: port in use") || !strings.Contains(out, "slow disks") {
		t.Errorf("exit code %d:\n%s%s", code, out, errs)
	}
	want := []string{
		`PATCH /api/v1/tunables {"changes":[{"scope":"o2ib1","name":"ntx","value":1024},{"scope":"global","name":"timeout","value":null}],"reason":"more clients","confirm_within_s":0,"dry_run":false}`,
		"GET /api/v1/tunables/history?limit=100&name=timeout",
	}
	if diff := cmp.Diff(want, f.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestHealthz(t *testing.T) {
	f := appliance(t, map[string]any{"GET /healthz": []byte("ok")})
	if code, out, errs := o2ibd(t, "", "healthz", "--socket", f.socket); code != 0 || out != "alive\n" {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if code, _, errs := o2ibd(t, "", "healthz", "--socket", "/nowhere/s"); code != 1 || !strings.Contains(errs, "no appliance answers") {
		t.Errorf("without appliance: exit code %d: %s", code, errs)
	}
}

func TestBundleCreate(t *testing.T) {
	zip := []byte("PK\x03\x04")
	running := app.Bundle{ID: "b1", State: app.BundleRunning, Name: "o2ibd-b1.zip"}
	done := app.Bundle{ID: "b1", State: app.BundleDone, Name: "o2ibd-b1.zip", Size: 4, SHA256: "ab", Redacted: true}
	failed := app.Bundle{ID: "b1", State: app.BundleFailed, Error: "disk full"}
	short := done
	short.Size = 5
	tests := []struct {
		name  string
		after []any
		code  int
		want  string
	}{
		{"done", []any{running, done}, 0, "sha256    ab"},
		{"failed", []any{failed}, 1, "bundle b1 failed: disk full"},
		{"cut off", []any{short}, 1, "has 5 bytes, 4 came"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := appliance(t, map[string]any{
				"POST /api/v1/bundles": running, "GET /api/v1/bundles/b1": tt.after, "GET /api/v1/bundles/b1/download": zip,
			})
			file := filepath.Join(t.TempDir(), "b.zip")
			code, out, errs := o2ibd(t, "", "bundle", "create", "--redact", "--out", file, "--socket", f.socket)
			if code != tt.code || !strings.Contains(out+errs, tt.want) {
				t.Errorf("exit code %d:\n%s%s", code, out, errs)
			}
			got, err := os.ReadFile(file)
			if tt.code == 0 && !bytes.Equal(got, zip) || tt.code != 0 && !os.IsNotExist(err) {
				t.Errorf("file is %q, %v", got, err)
			}
			if f.requests[0] != `POST /api/v1/bundles {"redact":true}` {
				t.Errorf("request is %q", f.requests[0])
			}
		})
	}
}

func TestBundleWithoutAppliance(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.zip")
	code, out, errs := o2ibd(t, "", "bundle", "create", "--out", file, "--socket", "/nowhere/s")
	if code != 0 || !strings.Contains(errs, "no appliance answers") || !strings.Contains(out, file) {
		t.Errorf("exit code %d:\n%s%s", code, out, errs)
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(b, []byte("PK")) {
		t.Errorf("file starts with %.4q, %v", b, err)
	}
	if code, _, errs := o2ibd(t, "", "bundle", "create", "--out", file, "--socket", "/nowhere/s"); code != 1 || !strings.Contains(errs, "is there already") {
		t.Errorf("over a file: exit code %d: %s", code, errs)
	}
}

func TestUser(t *testing.T) {
	f := appliance(t, map[string]any{
		"POST /api/v1/users": nil, "PATCH /api/v1/users/otto": nil, "DELETE /api/v1/users/otto": nil,
		"POST /api/v1/users/admin/links": app.Link{URL: "http://127.0.0.1:8470/x"},
		"POST /api/v1/users/otto/tokens": app.TokenSecret{Secret: "o2ibd_s"},
		"DELETE /api/v1/users/vera":      app.Problem{Status: 409, Detail: "not possible now: it is the last admin"},
	})
	for _, tt := range []struct{ args, in, request, out string }{
		{"user add otto", "", `POST /api/v1/users {"name":"otto","password":"","role":"viewer"}`, "otto is added as viewer\n"},
		{"user add otto --role=admin --password", "correct horse\n", `POST /api/v1/users {"name":"otto","password":"correct horse","role":"admin"}`, "otto is added as admin\n"},
		{"user passwd otto", "correct horse", `PATCH /api/v1/users/otto {"password":"correct horse"}`, "otto has a new password and is signed out everywhere\n"},
		{"user passwd otto", "", "", "o2ibd: no password came; nothing was changed\n"},
		{"user role otto admin", "", `PATCH /api/v1/users/otto {"role":"admin"}`, "otto is admin now\n"},
		{"user remove otto", "", "DELETE /api/v1/users/otto", "otto is removed\n"},
		{"user remove vera", "", "DELETE /api/v1/users/vera", "o2ibd: not possible now: it is the last admin\n"},
		{"user link", "", "POST /api/v1/users/admin/links", "http://127.0.0.1:8470/x\n"},
		{"user token otto --label=grafana --ttl=24h", "", `POST /api/v1/users/otto/tokens {"label":"grafana","ttl_s":86400}`, "o2ibd_s\n"},
	} {
		t.Run(fmt.Sprintf("%s %q", tt.args, tt.in), func(t *testing.T) {
			f.requests = nil
			_, out, errs := o2ibd(t, tt.in, append(strings.Fields(tt.args), "--socket", f.socket)...)
			if out+errs != tt.out {
				t.Errorf("it says %q, want %q", out+errs, tt.out)
			}
			if got := strings.Join(f.requests, "\n"); got != tt.request {
				t.Errorf("request is %q, want %q", got, tt.request)
			}
		})
	}
}
