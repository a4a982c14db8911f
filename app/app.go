// Package app is the appliance: it owns the life of everything below it (configuration, store, engine,
// demo fabric, listeners) and offers what operators do with it to the page and the command line, who see
// nothing else of the house but package engine.
//
// An App is opened, runs once, and is closed. Its goroutines are the ticker (one snapshot a tick, shared by
// all readers), the event log (the only writer of events), the one that rolls back what nobody confirms, the
// sampler of metrics, the one that keeps the engine up, one a bundle in the making, and those of the demo and the HTTP servers; Run waits for all of them. What operators do
// goes through methods that take an Actor, check its role and leave an audit entry.
package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"o2ibd/app/config"
	"o2ibd/app/sample"
	"o2ibd/app/tuning"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Config is the configuration in force.
type Config = config.Config

// Options say how to open the appliance. Zero fields take the configuration's value or the default.
type Options struct {
	ConfigFile string
	StateDir   string
	Listen     string   // address of the page
	Socket     string   // path of the unix socket
	Demo       int      // further engine nodes, at most MaxDemo; 0: no demo
	DemoArgs   []string // make this binary run RunDemoNode
	Version    string
	Out        io.Writer // where the fixed lines "page: URL" and "sign-in: URL" go
	Log        *slog.Logger

	// NewEngine makes the engine; nil: the real one.
	NewEngine func(EngineConfig) (Engine, error)
}

// Handlers are what the App serves; the caller makes them, because the page imports app.
type Handlers struct {
	Page   http.Handler // on the listen address
	Socket http.Handler // on the unix socket: PeerActor says who asks
}

// App is the appliance. Its methods may be called by any goroutine from Open to Close.
type App struct {
	cfg        config.Config
	demo       int
	version    string
	hostname   string
	out        io.Writer
	log        *slog.Logger
	makeEngine func(EngineConfig) (Engine, error)
	provider   string // "" where no engine is wanted
	started    time.Time

	db        *store.Store
	tuning    *tuning.Service
	sampler   *sample.Sampler
	pinning   sync.Mutex // of changes to the list of pinned peers
	passwords *passwords
	signIns   *signInGuard
	events    *eventLog
	bundles   *bundleShop
	ticker    *ticker
	host      host
	fabric    *fabric // nil without a demo

	page, socket net.Listener
	url          string
	fingerprint  string          // of a self-made certificate
	serving      context.Context // of requests; ends when the servers are closed by force
	endServing   context.CancelFunc
	stopping     chan struct{}
	closeOnce    sync.Once
	closeErr     error
}

// Bounds of the stop.
const (
	drainRequests = 5 * time.Second
	drainDemo     = 8 * time.Second
)

// Open reads the configuration, opens state and store, and binds the listeners. It serves nothing yet.
// The error is one line that says what is wrong and what would be right; then nothing is left open.
func Open(ctx context.Context, o Options) (_ *App, err error) {
	a, err := prepare(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	if a.db, err = store.Open(ctx, a.cfg.State, store.Options{}); err != nil {
		return nil, err
	}
	a.events = newEventLog(a.db, a.log)
	if a.cfg.TLSSelfMade {
		if a.cfg.TLSCert, a.cfg.TLSKey, a.fingerprint, err = ownCertificate(a.cfg, a.hostname, time.Now()); err != nil {
			return nil, err
		}
		a.log.Info("the page has a self-made certificate: browsers will ask once; compare its fingerprint", "fingerprint", a.fingerprint)
	}
	if a.page, err = listenPage(a.cfg); err != nil {
		return nil, err
	}
	a.url = pageURL(a.cfg, a.page.Addr())
	if a.socket, err = listenSocket(a.cfg.Socket); err != nil {
		return nil, err
	}
	base := a.cfg.Tunables.Clone()
	if a.demo > 0 {
		service, err := a.planDemo(o.DemoArgs)
		if err != nil {
			return nil, err
		}
		maps.Copy(base, demoTunables(service))
	}
	a.tuning, err = tuning.New(ctx, tuning.Options{
		Store: a.db, Applier: tuning.ApplierFunc(a.retune), File: base, Now: time.Now, IDs: rand.Reader,
		Facts: a.facts, RolledBack: a.rolledBack,
	})
	if err != nil {
		return nil, err
	}
	if a.bundles, err = openBundles(ctx, a); err != nil {
		return nil, err
	}
	if err := a.openSampler(ctx); err != nil {
		return nil, err
	}
	a.ticker = newTicker(a.snapshot)
	a.tellStart()
	return a, nil
}

// prepare settles the configuration; it opens nothing.
func prepare(o Options) (*App, error) {
	cfg, err := config.Read(o.ConfigFile)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		to   *string
		flag string
	}{{&cfg.Listen, o.Listen}, {&cfg.State, o.StateDir}, {&cfg.Socket, o.Socket}} {
		if f.flag != "" {
			*f.to = f.flag
		}
	}
	if o.Demo < 0 || o.Demo > MaxDemo {
		return nil, fmt.Errorf("a demo of %d nodes: 1 to %d are possible", o.Demo, MaxDemo)
	}
	cfg.Fill(o.Demo > 0)
	a := &App{
		cfg: cfg, demo: o.Demo, version: o.Version, out: o.Out, log: o.Log, makeEngine: o.NewEngine, started: time.Now(),
		passwords: newPasswords(), signIns: newSignInGuard(), stopping: make(chan struct{}),
	}
	a.serving, a.endServing = context.WithCancel(context.Background())
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.out == nil {
		a.out = io.Discard
	}
	if a.hostname, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("read the host's name: %w", err)
	}
	if a.makeEngine == nil {
		a.makeEngine = newEngine
		if p := cfg.Provider; p != "" && providers[p] == nil {
			return nil, fmt.Errorf("provider %s is not built into this binary; built in: %v", p, Providers())
		}
	}
	switch {
	case a.demo > 0:
		a.provider = "iwarp"
	case len(cfg.NIs) > 0:
		a.provider = cfg.Provider
	}
	return a, nil
}

func (a *App) planDemo(args []string) (service int, err error) {
	exe, err := ownBinary()
	if err != nil {
		return 0, fmt.Errorf("find this program's own file: %w", err)
	}
	if service, err = freeService(a.demo); err != nil {
		return 0, err
	}
	a.fabric = newFabric(a, a.demo, service, exe, args)
	return service, nil
}

// tellStart says what of the configuration is not used and what the last run left undone.
func (a *App) tellStart() {
	for _, n := range a.cfg.Notices {
		a.log.Warn(n)
	}
	for _, r := range a.tuning.Interrupted() {
		a.events.say("tunables", SeverityWarning, "change %s by %s was cut off by the end of the appliance; the values before it are in force", r.ChangeID, r.Who)
	}
	if r := a.tuning.Late(); r != nil {
		a.rolledBack(*r, nil)
	}
}

// Run starts the engine, serves until ctx ends or a listener fails, and stops everything within a bounded
// time. It is called once.
func (a *App) Run(ctx context.Context, h Handlers) error {
	var wg, log sync.WaitGroup
	logging, endLog := context.WithCancel(context.Background())
	log.Go(func() { a.events.run(logging) })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { a.ticker.run(ctx) })
	wg.Go(func() { a.tuning.Run(ctx) })
	wg.Go(func() { a.sampleMetrics(ctx) })

	failed := make(chan error, 2)
	pageServer, page := a.newServer("http", a.page, h.Page)
	socketServer, socket := a.newServer("socket", a.socket, h.Socket)
	serve := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve on %v: %w", l.Addr(), err)
		}
	}
	wg.Go(func() { serve(pageServer, page) })
	wg.Go(func() { serve(socketServer, socket) })

	err := a.greet(ctx)
	if err == nil {
		if a.provider != "" {
			wg.Go(func() { a.keepUp(ctx) })
		}
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	a.log.Info("stopping")
	close(a.stopping)
	a.drain(pageServer, socketServer)
	cancel()
	wg.Wait()
	a.bundles.close()
	if a.fabric != nil {
		stop, done := context.WithTimeout(context.Background(), drainDemo)
		a.fabric.stop(stop)
		done()
	}
	err = errors.Join(err, a.down())
	a.events.say("appliance", SeverityInfo, "o2ibd has stopped")
	endLog()
	log.Wait()
	return err
}

// greet prints the lines that people and scripts wait for.
func (a *App) greet(ctx context.Context) error {
	link, err := a.startLink(ctx)
	if err != nil {
		return err
	}
	text := "page: " + a.url + "\n"
	if link != "" {
		text += "sign-in: " + link + "\n"
	}
	if _, err := io.WriteString(a.out, text); err != nil {
		return fmt.Errorf("print the page's address: %w", err)
	}
	a.events.say("appliance", SeverityInfo, "o2ibd %s has started on %s, its page is %s", a.version, a.hostname, a.url)
	return nil
}

// drain lets requests end and then ends them.
func (a *App) drain(servers ...*http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), drainRequests)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() {
			if err := s.Shutdown(ctx); err != nil {
				a.endServing()
				s.Close()
			}
		})
	}
	wg.Wait()
	a.endServing()
}

// Close gives back what Open took. It may follow Run, and must where Run was not called.
func (a *App) Close() error {
	a.closeOnce.Do(func() {
		a.endServing()
		for _, l := range []net.Listener{a.page, a.socket} {
			if l != nil {
				l.Close() // Run has closed it: then this says so, and nobody needs it
			}
		}
		if a.fabric != nil {
			a.fabric.spawner.Close()
		}
		if a.db != nil {
			a.closeErr = a.db.Close()
		}
	})
	return a.closeErr
}

// Stopping is closed when the stop begins: live sockets end then.
func (a *App) Stopping() <-chan struct{} { return a.stopping }

// Config is the configuration in force; it does not change.
func (a *App) Config() Config { return a.cfg }

// Info is what changes rarely. It is cheap.
func (a *App) Info() Info {
	i := Info{
		Version: a.version, Hostname: a.hostname, Demo: a.demo > 0, DemoNodes: []DemoNode{}, StateDir: a.cfg.State,
		Listen: a.page.Addr().String(), URL: a.url, StartedAt: a.started.UnixMilli(), Provider: a.provider, Providers: Providers(), CertFingerprint: a.fingerprint,
	}
	if a.fabric != nil {
		i.DemoNodes = a.fabric.info()
	}
	return i
}

// Snapshot is the last tick's: immutable, shared by all.
func (a *App) Snapshot() *engine.Snapshot { return a.ticker.latest.Load() }

// Watch joins the ticker: after each tick (2 a second while somebody watches) a value is in the channel,
// and latest gives that tick's snapshot, shared by all. Ticks that nobody took are merged. cancel leaves.
func (a *App) Watch() (tick <-chan struct{}, latest func() *engine.Snapshot, cancel func()) {
	return a.ticker.watch()
}

// effective is the value of a tunable that counts in a net.
func (a *App) effective(net, name string) string {
	g, n, _ := tunables.Derive(a.tuning.Values(), net)
	v, _ := tunables.Effective(g, n, name)
	return v
}
