package app_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"o2ibd/app"
	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// The test binary is a demo node too: one without an engine, that is up at once.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "demo-node" {
		err := demo.Serve(context.Background(), os.Stdin, os.Stdout, func(ctx context.Context, _ demo.Spec) (func(context.Context) error, error) {
			return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
		})
		if err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// fakeEngine answers as the appliance sees an engine.
type fakeEngine struct {
	cfg app.EngineConfig

	mu      sync.Mutex
	started bool
	stopped bool
	tuned   tunables.Values
	fail    error // of Start and Retune
	asked   []string

	onRetune func() // called in the middle
	change   func(*engine.Snapshot)
}

// show changes what snapshots show from now on.
func (e *fakeEngine) show(f func(*engine.Snapshot)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change = f
}

func (e *fakeEngine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started = e.fail == nil
	return e.fail
}

func (e *fakeEngine) Stop(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	return nil
}

func (e *fakeEngine) Snapshot() *engine.Snapshot {
	s := &engine.Snapshot{TakenAt: time.Now().UnixMilli(), Nets: []engine.Net{{ID: "127.0.0.1@o2ib", NID: 0x000500007f000001, Net: "o2ib", Status: "up"}}}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.change != nil {
		e.change(s)
	}
	return s
}

func (e *fakeEngine) Ping(ctx context.Context, nid wire.NID, timeout time.Duration) (app.PingResult, error) {
	if nid == 0x000500007f000002 {
		return app.PingResult{NID: nid, Features: 6, RTT: timeout}, nil
	}
	return app.PingResult{}, fmt.Errorf("ping %v: no answer within %v", nid, timeout)
}

func (e *fakeEngine) Query(_ context.Context, ni, nid wire.NID) (time.Time, error) {
	e.asked = append(e.asked, fmt.Sprintf("query %v %v", ni, nid))
	return time.UnixMilli(1000), nil
}

func (e *fakeEngine) DelPeer(_ context.Context, ni, nid wire.NID) error {
	e.asked = append(e.asked, fmt.Sprintf("delete %v %v", ni, nid))
	if nid.IPv4().String() == "10.0.0.99" {
		return fmt.Errorf("no peer %v: %w", nid, o2iblnd.ErrNotFound)
	}
	return nil
}

func (e *fakeEngine) CloseConns(_ context.Context, ni, nid wire.NID) (int, error) {
	e.asked = append(e.asked, fmt.Sprintf("close %v %v", ni, nid))
	return 3, nil
}

func (e *fakeEngine) Recent(_ context.Context, ni, nid wire.NID) ([]engine.ConnMessages, error) {
	e.asked = append(e.asked, fmt.Sprintf("recent %v %v", ni, nid))
	return []engine.ConnMessages{{Conn: "7", Messages: []engine.Message{{Type: "NOOP"}}}}, nil
}

func (e *fakeEngine) Retune(_ context.Context, v tunables.Values) error {
	if e.onRetune != nil {
		e.onRetune()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail == nil {
		e.tuned = v
	}
	return e.fail
}

func (e *fakeEngine) DemoNode() (demo.Node, error) { return idleNode{}, nil }

type idleNode struct{}

func (idleNode) NID() wire.NID                             { return 1 }
func (idleNode) Ping(context.Context, wire.NID) error      { return nil }
func (idleNode) Put(context.Context, wire.NID, int) error  { return nil }
func (idleNode) Send(context.Context, wire.NID, int) error { return nil }
func (idleNode) Get(context.Context, wire.NID, int) error  { return nil }

// output is what serve prints.
type output struct {
	mu   sync.Mutex
	text string
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text += string(b)
	return len(b), nil
}

// line is the value of the line "key: value", "" where there is none.
func (o *output) line(key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for l := range strings.Lines(o.text) {
		if v, ok := strings.CutPrefix(l, key+": "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// running is an appliance in the middle of Run.
type running struct {
	*app.App
	out    *output
	engine *fakeEngine // the last that was made
	stop   func() error
}

// options are those of an appliance on a free port with a state folder of its own.
func options(t *testing.T) app.Options {
	return app.Options{StateDir: filepath.Join(t.TempDir(), "state"), Listen: "127.0.0.1:0", Version: "1.2.3", DemoArgs: []string{"demo-node"}}
}

// start opens and runs an appliance with a fake engine; it is stopped at the end of the test.
func start(t *testing.T, o app.Options, page http.Handler) *running {
	t.Helper()
	r := &running{out: &output{}}
	o.Out = r.out
	o.NewEngine = func(c app.EngineConfig) (app.Engine, error) {
		r.engine = &fakeEngine{cfg: c}
		return r.engine, nil
	}
	a, err := app.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r.App = a
	if page == nil {
		page = http.NotFoundHandler()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := a.Run(ctx, app.Handlers{Page: page, Socket: http.HandlerFunc(whoami)})
		done <- errors.Join(err, a.Close())
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	r.wait(t, "the appliance to be up", func() bool { return a.Ready() == nil && r.out.line("page") != "" })
	return r
}

// wait polls for what another goroutine brings about.
func (r *running) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick, _, cancel := r.Watch()
	defer cancel()
	news, forget := r.WatchEvents()
	defer forget()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick:
		case <-news:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func whoami(w http.ResponseWriter, r *http.Request) {
	a, ok := app.PeerActor(r.Context())
	fmt.Fprintf(w, "%v %s %s %s", ok, a.Role, a.How, a.From)
}
