package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/goleak"

	"o2ibd/app"
	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"))
}

// fakeEngine has two peers, one connected, and counters that move with every snapshot.
type fakeEngine struct{ tick atomic.Int64 }

func (*fakeEngine) Start() error                                  { return nil }
func (*fakeEngine) Stop(context.Context) error                    { return nil }
func (*fakeEngine) Retune(context.Context, tunables.Values) error { return nil }
func (*fakeEngine) DemoNode() (demo.Node, error)                  { return nil, nil }
func (*fakeEngine) Query(context.Context, wire.NID, wire.NID) (time.Time, error) {
	return time.Time{}, nil
}
func (*fakeEngine) DelPeer(context.Context, wire.NID, wire.NID) error           { return nil }
func (*fakeEngine) CloseConns(context.Context, wire.NID, wire.NID) (int, error) { return 2, nil }

func (*fakeEngine) Recent(_ context.Context, _, nid wire.NID) ([]engine.ConnMessages, error) {
	if nid.String() != "10.0.0.2@o2ib" {
		return []engine.ConnMessages{}, nil
	}
	ended, portal, length, frags, bytes, failed := int64(5000), uint32(4), uint32(100_000), 1, 100_000, int32(-110)
	return []engine.ConnMessages{
		{Conn: "3", EndedAt: &ended, Error: "timed out: PUT_REQ was sent, the peer did not say where its data should go", Messages: []engine.Message{
			{At: 4000, Direction: "sent", Type: "PUT_REQ", Nob: 128, LNet: "PUT", Portal: &portal, MatchBits: "0x1f", Length: &length, Cookie: "0x77"},
		}},
		{Conn: "4", Messages: []engine.Message{
			{At: 6000, Direction: "received", Type: "PUT_ACK", Credits: 2, Nob: 84, Cookie: "0x77", DstCookie: "0x78", NFrags: &frags, Bytes: &bytes},
			{At: 6001, Direction: "sent", Type: "PUT_DONE", Nob: 76, Cookie: "0x78", Status: &failed, Failure: "connection timed out (ETIMEDOUT)"},
			{At: 6002, Direction: "sent", Type: "NOOP", Nob: 56},
		}},
	}, nil
}

func (*fakeEngine) Ping(_ context.Context, nid wire.NID, _ time.Duration) (app.PingResult, error) {
	if nid.String() != "10.0.0.2@o2ib" {
		return app.PingResult{}, fmt.Errorf("%w: ping %v", app.ErrUnreachable, nid)
	}
	return app.PingResult{NID: nid, From: nid, PID: 12345, Features: 6, FeatureNames: []string{"ni_status"}, NIDs: []app.PingNI{{NID: nid.String(), Status: "up"}}}, nil
}

func (e *fakeEngine) Snapshot() *engine.Snapshot {
	n := e.tick.Add(1)
	ni, _ := wire.ParseNID("10.0.0.1@o2ib")
	p, _ := wire.ParseNID("10.0.0.2@o2ib")
	q, _ := wire.ParseNID("10.0.0.3@o2ib")
	alive := time.Now().UnixMilli()
	return &engine.Snapshot{
		TakenAt: alive, Devices: []engine.Device{}, Schedulers: []engine.Scheduler{},
		Nets:  []engine.Net{{RejectsSentBy: map[string]uint64{}, RejectsReceivedBy: map[string]uint64{}, UnpackErrorsBy: map[string]uint64{}, ID: ni.String(), NID: ni, Net: "o2ib", Status: "up", PeerCredits: 8}},
		Peers: []engine.Peer{{ID: "a", NID: p, NI: ni, State: "connected", Conns: 1, SendCount: uint64(n), LastAliveAt: &alive}, {ID: "b", NID: q, NI: ni, State: "down", Error: `<script>alert(1)</script>`}},
		Conns: []engine.Conn{{ID: "1", Peer: "a", NID: p, State: "established", Credits: int(n % 8), QueueDepth: 8}},
		Pools: []engine.Pool{{ID: "tx", Kind: "tx", Size: 512, Used: int(n % 9)}},
	}
}

// site is a running appliance with a fake engine, and its page.
type site struct {
	t   *testing.T
	app *app.App
	srv *httptest.Server
}

func newSite(t *testing.T) *site {
	t.Helper()
	cfg := filepath.Join(t.TempDir(), "o2ibd.yaml")
	if err := os.WriteFile(cfg, []byte("provider: iwarp\nnet:\n  - net type: o2ib\n    local NI(s):\n      - interfaces:\n          0: lo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := app.Open(t.Context(), app.Options{
		ConfigFile: cfg, StateDir: filepath.Join(t.TempDir(), "s"), Listen: "127.0.0.1:0", Version: "1.2.3", Out: io.Discard,
		NewEngine: func(app.EngineConfig) (app.Engine, error) { return new(fakeEngine), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	h := New(Options{App: a})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, h) }()
	s := &site{t: t, app: a, srv: httptest.NewServer(h.Page)}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		s.srv.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	boss := app.Actor{Name: "test", Role: app.RoleAdmin, How: app.HowSystem}
	for _, r := range app.Roles {
		if err := a.CreateAccount(t.Context(), boss, "the-"+string(r), "long enough", r); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(a.Snapshot().Peers) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the engine did not come up")
		}
		tick, _, cancel := a.Watch()
		<-tick
		cancel()
	}
	return s
}

// cookie signs in as a role.
func (s *site) cookie(role app.Role) *http.Cookie {
	s.t.Helper()
	token, _, err := s.app.NewSession(s.t.Context(), "the-"+string(role), "127.0.0.1")
	if err != nil {
		s.t.Fatal(err)
	}
	return &http.Cookie{Name: cookieName, Value: token}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (s *site) ask(method, path string, c *http.Cookie, body io.Reader, headers ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.srv.URL+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if c != nil {
		req.AddCookie(c)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

func (s *site) form(path string, c *http.Cookie, values ...string) answer {
	v := url.Values{}
	for i := 0; i < len(values); i += 2 {
		v.Set(values[i], values[i+1])
	}
	return s.ask(http.MethodPost, path, c, strings.NewReader(v.Encode()), "Content-Type", "application/x-www-form-urlencoded")
}

func (s *site) json(method, path string, c *http.Cookie, body string, headers ...string) answer {
	return s.ask(method, path, c, strings.NewReader(body), append([]string{"Content-Type", "application/json"}, headers...)...)
}

// least is who may do what, written down a second time: a route that is not here fails the test.
var least = map[string]app.Role{
	"GET /healthz": "", "GET /readyz": "", "GET /metrics": "", "GET /assets/{file}": "",
	"GET /sign-in": "", "POST /sign-in": "", "GET /sign-in/link": "", "POST /sign-in/link": "", "GET /api/v1/openapi.json": "",
	"POST /sign-out": "viewer", "GET /account": "viewer", "POST /account": "viewer", "GET /": "viewer", "GET /peers": "viewer", "GET /peers/{id}": "viewer",
	"GET /conns": "viewer", "GET /pools": "viewer", "GET /devices": "viewer", "GET /events": "viewer", "GET /tunables": "viewer", "GET /tunables/history": "viewer", "GET /about": "viewer",
	"GET /api/v1/snapshot": "viewer", "GET /api/v1/nets": "viewer", "GET /api/v1/devices": "viewer", "GET /api/v1/peers": "viewer", "GET /api/v1/peers/{id}/messages": "viewer", "GET /api/v1/conns": "viewer", "GET /api/v1/pools": "viewer",
	"GET /api/v1/tunables": "viewer", "GET /api/v1/tunables/history": "viewer", "GET /api/v1/events": "viewer", "GET /api/v1/history": "viewer", "GET /api/v1/history/series": "viewer", "GET /api/v1/live": "viewer",
	"GET /tunables/diff": "viewer", "GET /tunables/changes/{id}": "viewer", "GET /tunables/import": "operator", "POST /tunables/import": "operator", "POST /tunables/changes/{id}/confirm": "operator", "POST /tunables/changes/{id}/revert": "operator",
	"POST /peers/{id}/close": "operator", "POST /peers/{id}/delete": "operator",
	"POST /api/v1/peers/query": "operator", "POST /api/v1/peers/delete": "operator", "POST /api/v1/conns/close": "operator",
	"POST /tunables": "operator", "POST /peers/{id}/pin": "operator", "GET /ping": "operator", "POST /ping": "operator", "GET /bundles": "operator", "POST /bundles": "operator", "POST /bundles/{id}/delete": "operator", "POST /demo/{index}/{action}": "operator",
	"GET /api/v1/tunables/diff": "viewer", "GET /api/v1/tunables/export": "viewer", "GET /api/v1/tunables/verify": "viewer", "GET /api/v1/tunables/progress": "viewer",
	"POST /api/v1/tunables/import": "operator", "POST /api/v1/tunables/changes/{id}/confirm": "operator", "POST /api/v1/tunables/changes/{id}/revert": "operator",
	"PATCH /api/v1/tunables": "operator", "POST /api/v1/ping": "operator", "GET /api/v1/bundles": "operator", "POST /api/v1/bundles": "operator", "GET /api/v1/bundles/{id}": "operator", "GET /api/v1/bundles/{id}/download": "operator", "DELETE /api/v1/bundles/{id}": "operator",
	"GET /accounts": "admin", "POST /accounts": "admin", "GET /audit": "admin", "GET /api/v1/audit": "admin", "GET /api/v1/users": "admin", "POST /api/v1/users": "admin", "PATCH /api/v1/users/{name}": "admin", "DELETE /api/v1/users/{name}": "admin",
	"POST /api/v1/users/{name}/links": "admin", "POST /api/v1/users/{name}/tokens": "admin",
}

func TestEveryRouteWithEveryRole(t *testing.T) {
	s := newSite(t)
	known := 0
	router := New(Options{App: s.app}).Page.(chi.Router)
	err := chi.Walk(router, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		role, ok := least[method+" "+pattern]
		if !ok {
			t.Errorf("%s %s is not in this test's table: who may use it?", method, pattern)
			return nil
		}
		known++
		path := strings.NewReplacer("{id}", "a", "{name}", "nobody", "{index}", "1", "{action}", "stop", "{file}", "none.js").Replace(pattern)
		for _, who := range append([]app.Role{""}, app.Roles...) {
			var c *http.Cookie
			if who != "" {
				c = s.cookie(who)
			}
			a := s.ask(method, path, c, nil)
			refused := a.status == http.StatusForbidden || a.status == http.StatusUnauthorized || a.status == http.StatusSeeOther && strings.HasPrefix(a.header.Get("Location"), "/sign-in?next=")
			allowed := role == "" || who != "" && who.Allows(role)
			if pattern == "/metrics" && who == "" || pattern == "/sign-in" && method == "POST" || pattern == "/sign-in/link" && method == "POST" {
				allowed = false // open doors that want something in the hand
			}
			if refused == allowed {
				t.Errorf("%s %s as %q: %d %s", method, path, who, a.status, a.header.Get("Location"))
			}
			if a.status >= 500 && a.status != http.StatusServiceUnavailable {
				t.Errorf("%s %s as %q: %d %s", method, path, who, a.status, a.body)
			}
			if csp := a.header.Get("Content-Security-Policy"); csp != policyCSP || a.header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s %s: headers %v", method, path, a.header)
			}
		}
		return nil
	})
	if err != nil || known != len(least) {
		t.Errorf("%d of %d routes of the table exist: %v", known, len(least), err)
	}
}

func TestPagesWithoutScript(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleAdmin)
	for path, want := range map[string]string{
		"/": "Peers connected", "/peers": "10.0.0.2@o2ib", "/peers?filter=state%3Ddown": "10.0.0.3@o2ib", "/peers?offset=1&limit=7": `data-offset="1" data-limit="7"`, "/conns?sort=-credits": "established", "/pools": "512",
		"/peers/a": "Negotiated", "/peers/a?with=10.0.0.3%40o2ib&range=1h": "peer/b/credits", "/peers/a?with=nobody": "No peer nobody is known", "/?range=7d": "1 of 2 peers connected, 1 down", "/tunables/diff": "Nothing differs", "/tunables/import": "modprobe", "/devices": "10.0.0.1@o2ib", "/tunables": "peer_credits", "/tunables?scope=o2ib": "peer_credits", "/tunables/history": "never rewritten",
		"/events": "What happened", "/bundles": "no bundle yet", "/accounts": "the-viewer", "/audit": "account.create", "/about": "1.2.3", "/ping": "10.0.0.1@o2ib",
	} {
		a := s.ask("GET", path, c, nil)
		if a.status != http.StatusOK || !strings.Contains(a.body, want) {
			t.Errorf("GET %s: %d, without %q", path, a.status, want)
		}
		if strings.Contains(a.body, "<script>") || strings.Contains(a.body, "style=") || strings.Contains(a.body, "DEMO") {
			t.Errorf("GET %s has script or style in it, or a DEMO mark", path)
		}
	}
	for _, row := range []struct {
		path   string
		status int
		want   string
	}{
		{"/peers?filter=nonsense%3D1", 422, "unknown field"}, {"/conns?sort=nonsense", 422, "cannot sort"}, {"/peers?limit=99999", 422, "limit"}, {"/peers?offset=9223372036854775807", 200, "not so many rows"},
		{"/peers?limit=1&sort=nid", 200, `href="/peers?limit=1&amp;offset=1&amp;sort=nid"`}, {"/peers?limit=1&offset=1", 200, `href="/peers?limit=1"`},
		{"/peers/unknown", 404, "no peer"}, {"/tunables?scope=%27%3BDROP+TABLE", 422, "unknown scope"}, {"/nowhere", 404, "nothing at"}, {"/../../etc/passwd", 404, ""},
		{"/events?before=x", 422, "whole number"}, {"/assets/..%2f..%2fweb.go", 404, ""},
	} {
		if a := s.ask("GET", row.path, c, nil); a.status != row.status || !strings.Contains(a.body, row.want) {
			t.Errorf("GET %s: %d, wanted %d with %q", row.path, a.status, row.status, row.want)
		}
	}
}

func TestDoors(t *testing.T) {
	s := newSite(t)
	if a := s.ask("GET", "/healthz", nil, nil); a.status != 200 || len(strings.Fields(a.body)) != 2 {
		t.Errorf("healthz: %d %q", a.status, a.body)
	}
	if a := s.ask("GET", "/", nil, nil, "Host", "evil.example"); a.status != http.StatusMisdirectedRequest {
		t.Errorf("a foreign host: %d", a.status)
	}
	c := s.cookie(app.RoleAdmin)
	if a := s.ask("POST", "/sign-out", c, nil, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"); a.status != http.StatusForbidden {
		t.Errorf("a write from another site: %d", a.status)
	}
	if a := s.json("PATCH", "/api/v1/tunables", c, `{"changes":{"keepalive":"`+strings.Repeat("9", 2<<20)+`"}}`); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 2 MiB: %d", a.status)
	}
	if a := s.ask("GET", "/api/v1/peers", nil, nil, "Authorization", "Bearer nonsense"); a.status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", a.status)
	}
	boss := app.Actor{Name: "test", Role: app.RoleAdmin, How: app.HowSystem}
	key, _, err := s.app.NewToken(t.Context(), boss, "the-viewer", "test", 0)
	if err != nil {
		t.Fatal(err)
	}
	if a := s.ask("GET", "/metrics", nil, nil, "Authorization", "Bearer "+key); a.status != 200 || !strings.Contains(a.body, `o2ibd_ni_up{net="o2ib",ni="10.0.0.1@o2ib"} 1`) {
		t.Errorf("metrics: %d %s", a.status, a.body)
	}
}

func TestSignIn(t *testing.T) {
	s := newSite(t)
	boss := app.Actor{Name: "test", Role: app.RoleAdmin, How: app.HowSystem}
	link, err := s.app.SignInLink(t.Context(), boss, "the-admin")
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(link)
	token := u.Query().Get("token")
	if a := s.ask("GET", u.RequestURI(), nil, nil); a.status != 200 || a.header.Get("Set-Cookie") != "" || !strings.Contains(a.body, "<button") {
		t.Fatalf("opening the link alone: %d %v", a.status, a.header)
	}
	a := s.form("/sign-in/link", nil, "token", token)
	if a.status != http.StatusSeeOther || !strings.Contains(a.header.Get("Set-Cookie"), "HttpOnly") || !strings.Contains(a.header.Get("Set-Cookie"), "SameSite=Lax") {
		t.Fatalf("using the link: %d %v", a.status, a.header)
	}
	if a := s.form("/sign-in/link", nil, "token", token); a.status != http.StatusUnauthorized {
		t.Errorf("using it twice: %d", a.status)
	}
	tries := 0
	for a.status != http.StatusTooManyRequests && tries < 50 {
		if a = s.form("/sign-in", nil, "name", "the-viewer", "password", "wrong"); a.status != http.StatusUnauthorized && a.status != http.StatusTooManyRequests {
			t.Fatalf("attempt %d: %d", tries, a.status)
		}
		tries++
	}
	if tries < 4 || tries == 50 || !strings.Contains(a.body, "Too many attempts") || !strings.Contains(a.body, `value="the-viewer"`) {
		t.Errorf("after %d attempts: %d %s", tries, a.status, a.body)
	}
	a = s.form("/sign-in", nil, "name", "the-operator", "password", "long enough", "next", "/peers")
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/peers" {
		t.Errorf("another account is held up: %d %v", a.status, a.header)
	}
	a = s.form("/sign-in", nil, "name", "the-operator", "password", "long enough", "next", "https://evil.example/")
	if a.header.Get("Location") != "/" {
		t.Errorf("sign-in leads to %q", a.header.Get("Location"))
	}
	c := s.cookie(app.RoleAdmin)
	if a := s.form("/account", c, "password", "short", "again", "short"); a.status != 422 {
		t.Errorf("a short password: %d", a.status)
	}
	if a := s.form("/account", c, "password", "new and long", "again", "other and long"); a.status != 422 {
		t.Errorf("two passwords that differ: %d", a.status)
	}
	if a := s.form("/account", c, "password", "new and long", "again", "new and long"); a.status != http.StatusSeeOther {
		t.Errorf("a new password: %d", a.status)
	}
	if a := s.ask("GET", "/", c, nil); a.status != http.StatusSeeOther {
		t.Errorf("the old session lives: %d", a.status)
	}
}

func TestTunablesForm(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleOperator)
	tag := s.app.Tuning().Tag()
	a := s.form("/tunables", c, "scope", "global", "tag", tag, "reason", `"><script>`, "keepalive", "abc", "was.keepalive", "", "timeout", "60", "was.timeout", "", "do", "save")
	if a.status != 422 || !strings.Contains(a.body, `value="abc"`) || !strings.Contains(a.body, `value="60"`) || !strings.Contains(a.body, "Allowed:") || strings.Contains(a.body, `"><script>`) {
		t.Fatalf("a wrong value: %d", a.status)
	}
	if s.app.Tuning().Tag() != tag {
		t.Fatal("half of a form was saved")
	}
	a = s.form("/tunables", c, "scope", "global", "tag", tag, "keepalive", "60", "was.keepalive", "", "do", "preview")
	if a.status != 200 || !strings.Contains(a.body, "Nothing is saved yet") || s.app.Tuning().Tag() != tag {
		t.Fatalf("preview: %d", a.status)
	}
	a = s.form("/tunables", c, "scope", "global", "tag", tag, "keepalive", "60", "was.keepalive", "", "reason", "test", "do", "save")
	if a.status != http.StatusSeeOther {
		t.Fatalf("save: %d", a.status)
	}
	said := a.header.Get("Location")
	if a := s.ask("GET", said, c, nil); !strings.Contains(a.body, "Saved as change") {
		t.Errorf("%s does not say that it was saved", said)
	}
	if a := s.ask("GET", strings.Replace(said, "Saved", "Send+us+your+password", 1), c, nil); a.status != 200 || strings.Contains(a.body, "Send us") {
		t.Errorf("a link put words on the page: %d", a.status)
	}
	a = s.ask("GET", "/tunables/history", c, nil)
	for _, want := range []string{"keepalive", "60", "the-operator", "applied", "test"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the history lacks %q", want)
		}
	}
	a = s.form("/tunables", c, "scope", "global", "tag", tag, "keepalive", "70", "was.keepalive", "", "do", "save")
	if a.status != http.StatusPreconditionFailed || !strings.Contains(a.body, "Somebody else") || !strings.Contains(a.body, `value="70"`) {
		t.Errorf("an old form: %d", a.status)
	}
	// An empty field unsets.
	a = s.form("/tunables", c, "scope", "global", "tag", s.app.Tuning().Tag(), "keepalive", "", "was.keepalive", "60", "do", "save")
	if a.status != http.StatusSeeOther {
		t.Errorf("unset: %d", a.status)
	}
	if v := s.app.Tuning().Values(); len(v) != 0 {
		t.Errorf("values after unset: %v", v)
	}
}

func TestTunablesAPI(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleOperator)
	a := s.ask("GET", "/api/v1/tunables", c, nil)
	etag := a.header.Get("ETag")
	for _, row := range []struct {
		name, body string
		status     int
		want       string
		headers    []string
	}{
		{"unknown name", `{"changes":{"nonsense":1}}`, 422, "nonsense", nil},
		{"out of range", `{"changes":{"keepalive":60,"ib_mtu":1000}}`, 422, "256", nil},
		{"not JSON", `{"changes`, 400, "", nil},
		{"unknown key", `{"changes":{"keepalive":60},"surprise":1}`, 400, "surprise", nil},
		{"nothing", `{"changes":{}}`, 422, "", nil},
		{"confirm", `{"changes":{"keepalive":60},"confirm_within_s":0.1}`, 422, "time of 100ms to confirm the change; allowed: 1s to 24h", nil},
		{"hostile", `{"changes":{"keepalive":"1; DROP TABLE x"}}`, 422, "", nil},
		{"dry run", `{"changes":{"peer_credits":300},"dry_run":true}`, 200, "255", nil},
		{"old tag", `{"changes":{"keepalive":60}}`, 412, "", []string{"If-Match", `"old"`}},
		{"short form", `{"changes":{"keepalive":60},"reason":"a"}`, 200, `"new":60`, []string{"If-Match", etag}},
		{"list", `{"changes":[{"scope":"o2ib","name":"peer_credits","value":16},{"scope":"global","name":"keepalive","value":null}]}`, 200, "o2ib", nil},
	} {
		a := s.json("PATCH", "/api/v1/tunables", c, row.body, row.headers...)
		if a.status != row.status || !strings.Contains(a.body, row.want) {
			t.Errorf("%s: %d %s", row.name, a.status, a.body)
		}
		if row.status >= 400 {
			var p app.Problem
			if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != row.status || p.Detail == "" || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: problem %s", row.name, a.body)
			}
		}
	}
	var h struct{ Changes []struct{ Name string } }
	if err := json.Unmarshal([]byte(s.ask("GET", "/api/v1/tunables/history", c, nil).body), &h); err != nil || len(h.Changes) != 3 {
		t.Errorf("history %+v: %v", h, err)
	}
}

func TestConfirmAndRevertAPI(t *testing.T) {
	s := newSite(t)
	c, viewer := s.cookie(app.RoleOperator), s.cookie(app.RoleViewer)
	change := func(body string) string {
		t.Helper()
		var r struct {
			ID string `json:"change_id"`
		}
		if a := s.json("PATCH", "/api/v1/tunables", c, body); a.status != 200 || json.Unmarshal([]byte(a.body), &r) != nil {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return "/api/v1/tunables/changes/" + r.ID
	}
	expect := func(a answer, status int, want string) {
		t.Helper()
		if a.status != status || !strings.Contains(a.body, want) {
			t.Errorf("%d %s, want %d and %s", a.status, a.body, status, want)
		}
	}
	first := change(`{"changes":{"keepalive":60},"confirm_within_s":60}`)
	expect(s.json("PATCH", "/api/v1/tunables", c, `{"changes":{"timeout":60}}`), 409, "waits to be confirmed")
	expect(s.json("POST", first+"/confirm", viewer, ``), 403, "operator")
	expect(s.json("POST", first+"/confirm", c, ``), 200, `"outcome":"confirmed"`)
	expect(s.json("POST", first+"/confirm", c, ``), 422, "it stays")
	second := change(`{"changes":{"timeout":60},"confirm_within_s":60}`)
	expect(s.json("POST", second+"/revert", c, ``), 200, `"name":"timeout","old":60,"new":null`)
	expect(s.json("POST", second+"/revert", c, ``), 409, "rolled back")
	expect(s.json("POST", second+"/confirm", c, ``), 409, "rolled back")
	expect(s.json("POST", first+"/revert", c, `{"dry_run":true}`), 200, `"dry_run":true`)
	expect(s.json("POST", first+"/revert", c, `{"reason":"worse"}`), 200, `"reverts":"`)
	expect(s.json("POST", first+"/revert", c, `{"nonsense":1}`), 400, "nonsense")
	expect(s.json("POST", "/api/v1/tunables/changes/none/revert", c, `{}`), 404, "no such change")
	expect(s.json("POST", "/api/v1/tunables/import", c, `{"text":"options ko2iblnd peer_credits=16\n"}`), 200, `"new":16`)
	expect(s.json("POST", "/api/v1/tunables/import", c, `{"text":"options ko2iblnd peer_credit=16\n"}`), 422, "did you mean peer_credits? (line 1)")
	expect(s.ask("GET", "/api/v1/tunables/export?format=modprobe", viewer, nil), 200, "options ko2iblnd peer_credits=16")
	expect(s.ask("GET", "/api/v1/tunables/export?format=x", viewer, nil), 422, "allowed: modprobe, lnetctl")
	expect(s.ask("GET", "/api/v1/tunables/diff?from=defaults&to=now", viewer, nil), 200, `"effective_from":8,"effective_to":16`)
	expect(s.ask("GET", "/api/v1/tunables/diff?from=yesterday", viewer, nil), 422, "no point in time")
	expect(s.ask("GET", "/api/v1/tunables/verify", viewer, nil), 200, `"whole":true`)
	expect(s.ask("GET", "/api/v1/tunables/progress", viewer, nil), 200, "null")
	expect(s.ask("GET", "/api/v1/tunables/history?outcome=rolled_back", viewer, nil), 200, `"outcome_by":"the-operator"`)
	expect(s.ask("GET", "/api/v1/tunables/history?outcome=strange", viewer, nil), 422, "allowed: proposed")
	expect(s.ask("GET", "/api/v1/tunables/history?how=revert", viewer, nil), 200, `"reason":"worse"`)
}

func TestPingAndBundles(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleOperator)
	for _, row := range []struct {
		body   string
		status int
	}{{`{"nid":"10.0.0.2@o2ib"}`, 200}, {`{"nid":"10.0.0.9@o2ib"}`, 504}, {`{"nid":"nonsense"}`, 422}, {`{"nid":"10.0.0.2@o2ib","timeout_s":-1}`, 422}} {
		if a := s.json("POST", "/api/v1/ping", c, row.body); a.status != row.status {
			t.Errorf("ping %s: %d %s", row.body, a.status, a.body)
		}
	}
	a := s.json("POST", "/api/v1/bundles", c, `{"redact":true}`)
	var b app.Bundle
	if err := json.Unmarshal([]byte(a.body), &b); err != nil || a.status != http.StatusAccepted {
		t.Fatalf("%d %s", a.status, a.body)
	}
	deadline := time.Now().Add(20 * time.Second)
	for b.State == app.BundleRunning && time.Now().Before(deadline) {
		if err := json.Unmarshal([]byte(s.ask("GET", "/api/v1/bundles/"+b.ID, c, nil).body), &b); err != nil {
			t.Fatal(err)
		}
	}
	if b.State != app.BundleDone {
		t.Fatalf("bundle %+v", b)
	}
	if a := s.ask("GET", "/api/v1/bundles/"+b.ID+"/download", c, nil); a.status != 200 || !strings.HasPrefix(a.body, "PK") || len(a.body) != int(b.Size) {
		t.Errorf("download: %d, %d bytes", a.status, len(a.body))
	}
	if a := s.ask("DELETE", "/api/v1/bundles/"+b.ID, c, nil); a.status != http.StatusNoContent {
		t.Errorf("delete: %d", a.status)
	}
	if a := s.ask("GET", "/api/v1/bundles/"+b.ID+"/download", c, nil); a.status != http.StatusNotFound {
		t.Errorf("download of a deleted bundle: %d", a.status)
	}
}

// TestPageWeight: a page with its script, style and icon is at most 200 KB on the wire, and takes nothing
// from elsewhere.
func TestPageWeight(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleAdmin)
	assets := 0
	for name := range built {
		a := s.ask("GET", built[name], nil, nil, "Accept-Encoding", "gzip")
		if a.status != 200 || a.header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %d %v", name, a.status, a.header)
		}
		assets += len(a.body)
	}
	for _, path := range []string{"/", "/peers", "/conns", "/peers/a", "/tunables", "/tunables/history", "/events"} {
		a := s.ask("GET", path, c, nil, "Accept-Encoding", "gzip")
		if a.header.Get("Content-Encoding") != "gzip" || len(a.body)+assets > 200_000 {
			t.Errorf("%s: %d B with %d B of script and style, %v", path, len(a.body), assets, a.header)
		}
		plain := s.ask("GET", path, c, nil, "Accept-Encoding", "identity")
		for _, attr := range []string{`src="http`, `href="http`, `src="//`, `href="//`, "@import"} {
			if strings.Contains(plain.body, attr) {
				t.Errorf("%s loads something from elsewhere: %s", path, attr)
			}
		}
	}
}
