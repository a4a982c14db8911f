// Package web is the appliance's face: pages rendered on the server with templ, the JSON API, the live
// socket and sign-in, on one chi router. It never reaches past app and engine.
//
// Every route stands in one table (routes.go) with the least role that may use it; what is not there does
// not exist. A request is admitted by a session cookie (browsers), a bearer token (programs), or by the
// unix socket, whose file permissions have let it in. Pages work without script; the script (assets/) only
// keeps them live.
package web

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"o2ibd/app"
	"o2ibd/app/sample"
	"o2ibd/app/tuning"
	"o2ibd/engine"
	"o2ibd/web/live"
)

// Appliance is what the page needs of *app.App.
type Appliance interface {
	Info() app.Info
	Ready() error
	Findings() []app.Finding
	Snapshot() *engine.Snapshot
	Watch() (tick <-chan struct{}, latest func() *engine.Snapshot, cancel func())
	WatchEvents() (news <-chan struct{}, cancel func())
	Stopping() <-chan struct{}

	Tuning() *tuning.Service
	ChangeTunables(ctx context.Context, who app.Actor, r tuning.Request) (tuning.Result, error)
	ConfirmChange(ctx context.Context, who app.Actor, id string) (tuning.Settled, error)
	RevertChange(ctx context.Context, who app.Actor, r tuning.RevertRequest) (tuning.Result, error)
	ImportTunables(ctx context.Context, who app.Actor, r tuning.ImportRequest) (tuning.Result, error)
	TuningProgress() *app.TuningProgress
	VerifyTunables(ctx context.Context) (tuning.Verdict, error)
	Ping(ctx context.Context, who app.Actor, nid string, timeout time.Duration) (app.PingResult, error)
	QueryPeer(ctx context.Context, who app.Actor, q app.PeerRequest) (app.PeerAnswer, error)
	DeletePeer(ctx context.Context, who app.Actor, q app.PeerRequest) error
	CloseConns(ctx context.Context, who app.Actor, q app.PeerRequest) (app.PeerAnswer, error)
	Recent(ctx context.Context, peer string) (app.Messages, error)
	DemoStop(ctx context.Context, who app.Actor, i int) error
	DemoStart(ctx context.Context, who app.Actor, i int) error
	Events(ctx context.Context, f app.EventFilter) ([]app.Event, error)
	Audit(ctx context.Context, f app.AuditFilter) ([]app.AuditEntry, error)
	MetricSeries() []sample.Series
	Metrics(ctx context.Context, q sample.Query) (sample.Answer, error)
	PinPeer(ctx context.Context, who app.Actor, peerID string, pinned bool) error
	PinnedPeers() []string
	Protest(kind, from, text string)

	CreateBundle(ctx context.Context, who app.Actor, redact bool) (app.Bundle, error)
	Bundles(ctx context.Context) ([]app.Bundle, error)
	Bundle(ctx context.Context, id string) (app.Bundle, error)
	OpenBundle(ctx context.Context, id string) (io.ReadSeekCloser, error)
	DeleteBundle(ctx context.Context, who app.Actor, id string) error

	Accounts(ctx context.Context) ([]app.Account, error)
	CheckPassword(ctx context.Context, name, password, from string) (app.Account, error)
	CreateAccount(ctx context.Context, who app.Actor, name, password string, role app.Role) error
	SetPassword(ctx context.Context, who app.Actor, name, password string) error
	SetRole(ctx context.Context, who app.Actor, name string, role app.Role) error
	RemoveAccount(ctx context.Context, who app.Actor, name string) error
	NewSession(ctx context.Context, name, from string) (string, app.Session, error)
	Session(ctx context.Context, token string) (app.Session, error)
	PeekSession(ctx context.Context, token string) (app.Session, error)
	EndSession(ctx context.Context, token string) error
	NewRoleToken(ctx context.Context, who app.Actor, name, label string, role app.Role, ttl time.Duration) (string, app.Token, error)
	Tokens(ctx context.Context) ([]app.Token, error)
	CheckToken(ctx context.Context, key string) (app.Token, error)
	RemoveToken(ctx context.Context, who app.Actor, id string) error
	SignInLink(ctx context.Context, who app.Actor, name string) (string, error)
	UseSignInLink(ctx context.Context, key, from string) (string, app.Session, error)
}

var _ Appliance = (*app.App)(nil)

// Options of the page.
type Options struct {
	App           Appliance
	AllowedHosts  []string // besides loopback names and the address of the request itself when it is an IP
	TLS           bool     // cookies are Secure
	MetricsPublic bool
	Log           *slog.Logger
}

// server holds what handlers share.
type server struct {
	app     Appliance
	opt     Options
	log     *slog.Logger
	hosts   map[string]bool
	cross   *http.CrossOriginProtection
	metrics *meter
	frames  live.Frames
	recent  recentEvents
	sealKey []byte // of seal
}

// New makes the handlers of the listen address and of the unix socket.
func New(opt Options) app.Handlers {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{app: opt.App, opt: opt, log: opt.Log, hosts: map[string]bool{"localhost": true}, cross: http.NewCrossOriginProtection(), metrics: newMeter(opt.App), sealKey: make([]byte, 32)}
	rand.Read(s.sealKey)
	for _, h := range opt.AllowedHosts {
		s.hosts[strings.ToLower(h)] = true
	}
	return app.Handlers{Page: s.router(s.admitPage), Socket: s.router(s.admitSocket)}
}

const (
	maxBody    = 1 << 20
	policyCSP  = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	cookieName = "o2ibd_session"
)

// router builds the routes behind one way of admitting people.
func (s *server) router(admit func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(s.recover, s.secure, admit)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &statusError{http.StatusNotFound, "there is nothing at " + r.URL.Path})
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &statusError{http.StatusMethodNotAllowed, r.Method + " is not possible at " + r.URL.Path})
	})
	for _, e := range s.routes() {
		r.Method(e.method, e.pattern, s.need(e))
	}
	return r
}

// recover keeps a fault of ours from ending the process: it is logged, and the asker told.
func (s *server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				s.log.Error("a request failed inside", "path", r.URL.Path, "fault", v)
				s.fail(w, r, &statusError{http.StatusInternalServerError, "the appliance has a fault; it is in its log"})
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// secure sets the headers of every answer, bounds bodies, and refuses strange hosts and cross-origin
// writes.
func (s *server) secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policyCSP)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if _, onSocket := app.PeerActor(r.Context()); !onSocket && !s.hostAllowed(r.Host) {
			s.app.Protest("http", r.RemoteAddr, "a request for the host "+clip(r.Host)+", which is not this appliance")
			s.fail(w, r, &statusError{http.StatusMisdirectedRequest, "this appliance does not answer for the host " + clip(r.Host) + "; name it under allowed_hosts"})
			return
		}
		if err := s.cross.Check(r); err != nil {
			s.app.Protest("http", r.RemoteAddr, "a write from another site was refused")
			s.fail(w, r, &statusError{http.StatusForbidden, "writes from other sites are refused"})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// hostAllowed takes IP addresses, loopback names, and what the configuration lists.
func (s *server) hostAllowed(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true // an address cannot be rebound to another name
	}
	return s.hosts[host]
}

func clip(s string) string {
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return s
}

type actorKey struct{}

// actor is who asks; ok is false for somebody who is not signed in.
func actor(r *http.Request) (app.Actor, bool) {
	a, ok := r.Context().Value(actorKey{}).(app.Actor)
	return a, ok
}

func withActor(r *http.Request, a app.Actor) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), actorKey{}, a))
}

func from(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// admitPage finds out who asks on the listen address: by token, or by session.
func (s *server) admitPage(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			t, err := s.app.CheckToken(r.Context(), key)
			if err != nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				s.fail(w, r, &statusError{http.StatusUnauthorized, "the token is not valid"})
				return
			}
			r = withActor(r, app.Actor{Name: t.Account, Role: t.Role, How: app.HowToken, From: from(r)})
		} else if c, err := r.Cookie(cookieName); err == nil {
			sess, err := s.app.Session(r.Context(), c.Value)
			switch {
			case err == nil:
				r = withActor(r, app.Actor{Name: sess.Account, Role: sess.Role, How: app.HowPage, From: from(r)})
			case !errors.Is(err, app.ErrCredentials) && !errors.Is(err, app.ErrNotFound):
				s.fail(w, r, err)
				return
			default:
				http.SetCookie(w, s.cookie("", -1))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// admitSocket takes the unix socket's word for who asks.
func (s *server) admitSocket(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, ok := app.PeerActor(r.Context()); ok {
			r = withActor(r, a)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *server) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: s.opt.TLS, SameSite: http.SameSiteLaxMode}
}
