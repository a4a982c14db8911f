package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app"
	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

func get(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// overSocket is a client that talks to the unix socket whatever the URL.
func overSocket(t *testing.T, path string) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestLife(t *testing.T) {
	o := options(t)
	o.Demo = 2
	r := start(t, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, ok := app.PeerActor(r.Context())
		fmt.Fprintf(w, "page %v", ok)
	}))
	if body := get(t, http.DefaultClient, r.out.line("page")); body != "page false" {
		t.Errorf("the page says %q", body)
	}
	want := fmt.Sprintf("true admin socket uid %d", os.Getuid())
	if body := get(t, overSocket(t, r.Config().Socket), "http://o2ibd/"); body != want {
		t.Errorf("over the socket: %q, want %q", body, want)
	}
	for path, mode := range map[string]os.FileMode{r.Config().State: 0o750, r.Config().Socket: 0o660} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, mode %v, want %v", path, err, info.Mode().Perm(), mode)
		}
	}
	r.wait(t, "the engine's snapshot", func() bool { s := r.Snapshot(); return len(s.Nets) == 1 && s.Nets[0].ID == "127.0.0.1@o2ib" })
	v := r.engine.cfg.Tunables
	if v[tunables.Scoped{Scope: "global", Name: "use_privileged_port"}] != "0" || v[tunables.Scoped{Scope: "global", Name: "service"}] == "" {
		t.Errorf("the demo's engine got the tunables %v", v)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if !r.engine.stopped {
		t.Error("the engine was not stopped")
	}
	if _, err := os.Stat(r.Config().Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestDemoNodes(t *testing.T) {
	o := options(t)
	o.Demo = 2
	r := start(t, o, nil)
	all := func(state string) func() bool {
		return func() bool {
			for _, n := range r.Info().DemoNodes {
				if n.State != state || (n.PID > 0) != (state == app.DemoRunning) {
					return false
				}
			}
			return len(r.Info().DemoNodes) == 2
		}
	}
	r.wait(t, "all nodes to run", all(app.DemoRunning))
	nodes := r.Info().DemoNodes
	if nodes[0].NID.String() != "127.0.0.2@o2ib" || nodes[1].NID.String() != "127.0.0.3@o2ib" {
		t.Errorf("nodes are %v", nodes)
	}
	if err := syscall.Kill(nodes[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.DemoStop(t.Context(), operator, 2); err != nil {
		t.Fatal(err)
	}
	r.wait(t, "all nodes to be stopped", all(app.DemoStopped))
	if n := r.Info().DemoNodes; n[0].Error != "its process ended: signal: killed" || n[1].Error != "" {
		t.Errorf("nodes are stopped because of %q and %q", n[0].Error, n[1].Error)
	}
	finding := "Demo node 1 on 127.0.0.2 is stopped: its process ended: signal: killed."
	if f := r.Findings(); len(f) != 3 || f[0].Code != "demo" || f[1].Text != finding {
		t.Errorf("findings are %v", f)
	}
	if err := r.DemoStart(t.Context(), operator, 1); err != nil {
		t.Fatal(err)
	}
	if n := r.Info().DemoNodes[0]; n.State != app.DemoRunning || n.Error != "" {
		t.Errorf("started again: %+v", n)
	}
	if err := r.DemoStop(t.Context(), operator, 3); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("stop of a node that is not there: %v", err)
	}
	if err := r.DemoStop(t.Context(), viewer, 1); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("stop by a viewer: %v", err)
	}
	r.stop()
	for _, n := range nodes {
		if err := syscall.Kill(n.PID, 0); err == nil {
			t.Errorf("process %d of node %d outlives the appliance", n.PID, n.Index)
		}
	}
}

func TestSignInLinkAtStart(t *testing.T) {
	o := options(t)
	path := func(link string) string { _, p, _ := strings.Cut(link, "?token="); return p }

	r := start(t, o, nil)
	first := r.out.line("sign-in")
	if !strings.HasPrefix(first, r.out.line("page")+"/sign-in/link?token=") {
		t.Fatalf("first start prints the link %q", first)
	}
	r.stop()

	r = start(t, o, nil)
	again := r.out.line("sign-in")
	if again == "" || again == first {
		t.Fatalf("a start before anybody signed in prints the link %q, after %q", again, first)
	}
	if _, s, err := r.UseSignInLink(t.Context(), path(again), "127.0.0.1:1"); err != nil || s.Account != app.FirstAdmin || s.Role != app.RoleAdmin {
		t.Fatalf("use of the link: %+v, %v", s, err)
	}
	if _, _, err := r.UseSignInLink(t.Context(), path(again), "127.0.0.1:1"); !errors.Is(err, app.ErrCredentials) {
		t.Errorf("second use of the link: %v", err)
	}
	r.stop()

	r = start(t, o, nil)
	if link := r.out.line("sign-in"); link != "" {
		t.Errorf("after a sign-in the start prints the link %q", link)
	}
	r.stop()

	o.Demo = 1
	if r = start(t, o, nil); r.out.line("sign-in") == "" {
		t.Error("the demo prints no link")
	}
}

func TestTunablesOutliveARun(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	hiw := tunables.Scoped{Scope: "o2ib", Name: "peer_credits_hiw"}
	change := func(who app.Actor, value string) error {
		_, err := r.ChangeTunables(t.Context(), who, tuning.Request{
			Changes: []tuning.Change{{Scope: hiw.Scope, Name: hiw.Name, Value: tuning.NewScalar(value)}}, Who: "somebody else",
		})
		return err
	}
	if err := change(viewer, "5"); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("change by a viewer: %v", err)
	}
	if err := change(operator, "many"); err == nil {
		t.Error("a wrong value is taken")
	}
	if err := change(operator, "6"); err != nil {
		t.Fatal(err)
	}
	h, err := r.Tuning().History(t.Context(), tuning.HistoryFilter{})
	if err != nil || len(h.Changes) != 1 || h.Changes[0].Who != "otto" || h.Changes[0].How != app.HowPage || h.Changes[0].From != operator.From {
		t.Errorf("history is %+v, %v", h, err)
	}
	var outcomes []string
	entries, err := r.Audit(t.Context(), app.AuditFilter{Action: "tunables."})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		outcomes = append(outcomes, e.Actor.Name+" "+e.Target+" "+e.Outcome)
	}
	want := []string{"otto o2ib/peer_credits_hiw done", "otto o2ib/peer_credits_hiw refused", "vera o2ib/peer_credits_hiw refused"}
	if diff := cmp.Diff(want, outcomes); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	if got := r.engine.tuned[hiw]; got != "6" {
		t.Errorf("the engine was tuned to %q", got)
	}
	r.stop()
	if r = start(t, o, nil); r.engine.cfg.Tunables[hiw] != "6" {
		t.Errorf("the next run starts with %v", r.engine.cfg.Tunables)
	}
}

func TestWithoutNetwork(t *testing.T) {
	r := start(t, options(t), nil)
	if f := r.Findings(); len(f) != 1 || f[0].Code != "no-device" {
		t.Errorf("findings are %v", f)
	}
	if s := r.Snapshot(); s.Nets == nil || len(s.Nets) != 0 {
		t.Errorf("snapshot is %+v", s)
	}
	if _, err := r.Ping(t.Context(), operator, "10.0.0.2@o2ib", 0); !errors.Is(err, app.ErrNoEngine) {
		t.Errorf("ping: %v", err)
	}
	if err := r.DemoStart(t.Context(), operator, 1); !errors.Is(err, app.ErrConflict) {
		t.Errorf("start of a demo node: %v", err)
	}
}

func TestPing(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	tests := []struct {
		name    string
		who     app.Actor
		nid     string
		timeout time.Duration
		want    error
	}{
		{"answered", operator, "127.0.0.2@o2ib", 0, nil},
		{"not answered", operator, "127.0.0.9@o2ib", time.Second, app.ErrUnreachable},
		{"no NID", operator, "oss1", 0, app.ErrInvalid},
		{"negative timeout", operator, "127.0.0.2@o2ib", -1, app.ErrInvalid},
		{"endless timeout", operator, "127.0.0.2@o2ib", time.Hour, app.ErrInvalid},
		{"viewer", viewer, "127.0.0.2@o2ib", 0, app.ErrForbidden},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := r.Ping(t.Context(), tt.who, tt.nid, tt.timeout)
			if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || p.RTT != app.DefaultPing) {
				t.Errorf("got %+v, %v, want %v", p, err, tt.want)
			}
		})
	}
}

func TestStaleSocket(t *testing.T) {
	o := options(t)
	if err := os.MkdirAll(o.StateDir, 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(o.StateDir, "o2ibd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	r := start(t, o, nil)
	if body := get(t, overSocket(t, r.Config().Socket), "http://o2ibd/"); !strings.HasPrefix(body, "true") {
		t.Errorf("over the socket: %q", body)
	}
}

func TestOpenRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	used := filepath.Join(dir, "used.sock")
	ul, err := net.Listen("unix", used)
	if err != nil {
		t.Fatal(err)
	}
	defer ul.Close()
	corrupt := filepath.Join(dir, "corrupt")
	if err := os.Mkdir(corrupt, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(corrupt, "o2ibd.db"), []byte(strings.Repeat("garbage ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		set  func(o *app.Options)
		want []string // parts of the one line
	}{
		{"port in use", func(o *app.Options) { o.Listen = taken.Addr().String() }, []string{taken.Addr().String(), "another program has this port", "--listen"}},
		{"address of no interface", func(o *app.Options) { o.Listen = "192.0.2.1:8470"; o.ConfigFile = file("c1", "insecure_listen: true") }, []string{"192.0.2.1:8470", "no interface"}},
		{"no port", func(o *app.Options) { o.Listen = "localhost" }, []string{`"localhost"`, "an address and a port are wanted"}},
		{"beyond loopback", func(o *app.Options) { o.Listen = "0.0.0.0:0" }, []string{"0.0.0.0:0", "tls", "insecure_listen: true"}},
		{"no certificate", func(o *app.Options) { o.ConfigFile = file("c2", "tls: {cert: /nowhere/c, key: /nowhere/k}") }, []string{"/nowhere/c", "no such file"}},
		{"state below a file", func(o *app.Options) { o.StateDir = filepath.Join(file("f", ""), "state") }, []string{"state folder", "cannot be made", "--state"}},
		{"corrupt database", func(o *app.Options) { o.StateDir = corrupt }, []string{"o2ibd.db", "cannot be used", "nothing was changed"}},
		{"socket path too long", func(o *app.Options) { o.Socket = "/tmp/" + strings.Repeat("x", 103) }, []string{"108 bytes", "at most 107", "--socket"}},
		{"socket is a file", func(o *app.Options) { o.Socket = file("s", "") }, []string{"a file that is no socket", "--socket"}},
		{"socket in use", func(o *app.Options) { o.Socket = used }, []string{"another program answers", "--socket"}},
		{"socket without folder", func(o *app.Options) { o.Socket = filepath.Join(dir, "none", "s") }, []string{"none/s", "no such file"}},
		{"config not there", func(o *app.Options) { o.ConfigFile = "/nowhere/o2ibd.yaml" }, []string{"/nowhere/o2ibd.yaml"}},
		{"config wrong", func(o *app.Options) { o.ConfigFile = file("c3", "lisen: x") }, []string{`c3:1: unknown key "lisen"`}},
		{"tunables of the file", func(o *app.Options) { o.ConfigFile = file("c4", "tunables: {retry_count: 8}") }, []string{"c4:1:", "0 … 7 retries"}},
		{"demo too large", func(o *app.Options) { o.Demo = 17 }, []string{"17 nodes", "1 to 16"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t)
			o.NewEngine = func(app.EngineConfig) (app.Engine, error) { return nil, errors.New("not wanted") }
			tt.set(&o)
			a, err := app.Open(t.Context(), o)
			if err == nil {
				a.Close()
				t.Fatal("it opens")
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestStateFolderOfAnother(t *testing.T) {
	r := start(t, options(t), nil)
	o := options(t)
	o.StateDir, o.Socket = r.Config().State, filepath.Join(t.TempDir(), "s")
	if a, err := app.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "another o2ibd uses it") {
		t.Errorf("second appliance: %v, %v", a, err)
	}
}
