// Package app is the appliance: it owns the life of everything below it (store, engine, demo fabric,
// listeners) and offers what operators do with it to the page and the command line.
package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"o2ibd/engine"
)

// Options say how to open the appliance. Zero fields take the configuration's value or the default.
type Options struct {
	ConfigFile string
	StateDir   string
	Listen     string // address of the page
	Socket     string // path of the unix socket
	Demo       int    // further engine nodes, 0: no demo
	Version    string
	Out        io.Writer // where the fixed lines "page: URL" and "sign-in: URL" go
	Log        *slog.Logger
}

// Handlers are what the App serves; the caller makes them, because the page imports app.
type Handlers struct {
	Page   http.Handler // on the listen address
	Socket http.Handler // on the unix socket: PeerActor says who asks
}

// App is the appliance. Its methods may be called by any goroutine from Open to Close.
type App struct{}

var errUnbuilt = errors.New("in the making")

// Open reads the configuration, opens state and store, and binds the listeners. It serves nothing yet.
func Open(ctx context.Context, o Options) (*App, error) { return nil, errUnbuilt }

// Run starts the engine, serves until ctx ends, and stops everything within a bounded time.
func (a *App) Run(ctx context.Context, h Handlers) error { return errUnbuilt }

// Close gives back what Open took. It may follow Run.
func (a *App) Close() error { return errUnbuilt }

// PeerActor is who asks over the unix socket: uid and name of the process at the other end.
func PeerActor(ctx context.Context) (Actor, bool) { return Actor{}, false }

// Info, Config, Snapshot, Findings are cheap and for any goroutine.
func (a *App) Info() Info                 { return Info{} }
func (a *App) Config() Config             { return Config{} }
func (a *App) Snapshot() *engine.Snapshot { return nil }
func (a *App) Findings() []Finding        { return nil }

// Ready says whether everything that was configured is up; the error is one line.
func (a *App) Ready() error { return errUnbuilt }

// Watch joins the ticker: after each tick (2 a second while somebody watches) a value is in the channel,
// and latest gives that tick's snapshot, shared by all. Ticks that nobody took are merged. cancel leaves.
func (a *App) Watch() (tick <-chan struct{}, latest func() *engine.Snapshot, cancel func()) {
	return nil, nil, nil
}

// WatchEvents puts a value into the channel after new events are stored; read them with
// Events(ctx, EventFilter{SinceID: last}).
func (a *App) WatchEvents() (news <-chan struct{}, cancel func()) { return nil, nil }

// Ping asks nid, such as 10.0.0.2@o2ib, once.
func (a *App) Ping(ctx context.Context, who Actor, nid string, timeout time.Duration) (PingResult, error) {
	return PingResult{}, errUnbuilt
}

// Events, Audit read what happened and who did what.
func (a *App) Events(ctx context.Context, f EventFilter) ([]Event, error)     { return nil, errUnbuilt }
func (a *App) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) { return nil, errUnbuilt }

// Record adds an audit entry; ID and At are filled in. It must be called for writes that do not go
// through a method of App.
func (a *App) Record(ctx context.Context, e AuditEntry) error { return errUnbuilt }

// Protest records garbage from outside as an event. kind is "http" or "socket", from the address, text
// what was wrong and what was done. It never blocks.
func (a *App) Protest(kind, from, text string) {}

// DemoStop and DemoStart end and start demo node i (from 1).
func (a *App) DemoStop(ctx context.Context, who Actor, i int) error  { return errUnbuilt }
func (a *App) DemoStart(ctx context.Context, who Actor, i int) error { return errUnbuilt }

// CreateBundle starts a bundle and returns at once; follow it with Bundle.
func (a *App) CreateBundle(ctx context.Context, who Actor, redact bool) (Bundle, error) {
	return Bundle{}, errUnbuilt
}
func (a *App) Bundles(ctx context.Context) ([]Bundle, error)         { return nil, errUnbuilt }
func (a *App) Bundle(ctx context.Context, id string) (Bundle, error) { return Bundle{}, errUnbuilt }
func (a *App) OpenBundle(ctx context.Context, id string) (io.ReadSeekCloser, error) {
	return nil, errUnbuilt
}
func (a *App) DeleteBundle(ctx context.Context, who Actor, id string) error { return errUnbuilt }

// Accounts.
func (a *App) Accounts(ctx context.Context) ([]Account, error) { return nil, errUnbuilt }
func (a *App) CheckPassword(ctx context.Context, name, password, from string) (Account, error) {
	return Account{}, errUnbuilt
}
func (a *App) CreateAccount(ctx context.Context, who Actor, name, password string, role Role) error {
	return errUnbuilt
}
func (a *App) SetPassword(ctx context.Context, who Actor, name, password string) error {
	return errUnbuilt
}
func (a *App) SetRole(ctx context.Context, who Actor, name string, role Role) error {
	return errUnbuilt
}
func (a *App) RemoveAccount(ctx context.Context, who Actor, name string) error { return errUnbuilt }

// Sessions. The token goes into the cookie; only its hash is stored.
func (a *App) NewSession(ctx context.Context, account, from string) (token string, s Session, err error) {
	return "", Session{}, errUnbuilt
}

// Session looks a cookie's token up; ErrCredentials when it is unknown, ended or expired. It is cheap
// enough for every request.
func (a *App) Session(ctx context.Context, token string) (Session, error) {
	return Session{}, errUnbuilt
}
func (a *App) EndSession(ctx context.Context, token string) error                 { return errUnbuilt }
func (a *App) EndSessionsOf(ctx context.Context, who Actor, account string) error { return errUnbuilt }

// Bearer tokens.
func (a *App) NewToken(ctx context.Context, who Actor, account, label string, ttl time.Duration) (secret string, t Token, err error) {
	return "", Token{}, errUnbuilt
}
func (a *App) Tokens(ctx context.Context) ([]Token, error) { return nil, errUnbuilt }
func (a *App) CheckToken(ctx context.Context, secret string) (Token, error) {
	return Token{}, errUnbuilt
}
func (a *App) RemoveToken(ctx context.Context, who Actor, id string) error { return errUnbuilt }

// SignInLink makes a one-time link that signs in as account ("" is the first administrator, "admin").
// The URL's path is /sign-in/link and its fragment-free query is token=….
func (a *App) SignInLink(ctx context.Context, who Actor, account string) (url string, err error) {
	return "", errUnbuilt
}

// UseSignInLink spends the token of a link and opens a session for its account.
func (a *App) UseSignInLink(ctx context.Context, token, from string) (session string, s Session, err error) {
	return "", Session{}, errUnbuilt
}
