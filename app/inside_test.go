package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/app/config"
	"o2ibd/app/demo"
	"o2ibd/app/sample"
	"o2ibd/app/tuning"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
	"o2ibd/store"
)

// What follows needs synctest's clock or a bound that no option sets, so it looks inside.

func TestTickerPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken atomic.Int64
		tk := newTicker(func() *engine.Snapshot { return &engine.Snapshot{TakenAt: taken.Add(1)} })
		ctx, stop := context.WithCancel(t.Context())
		go tk.run(ctx)
		since := func(d time.Duration) int64 {
			before := taken.Load()
			time.Sleep(d)
			synctest.Wait()
			return taken.Load() - before
		}
		since(0)
		if n := since(10 * time.Second); n != 10 {
			t.Errorf("%d ticks in 10 s without watchers, want 10", n)
		}
		tick, latest, cancel := tk.watch()
		since(0)
		if n := since(10 * time.Second); n != 20 {
			t.Errorf("%d ticks in 10 s with a watcher, want 20", n)
		}
		<-tick
		select {
		case <-tick:
			t.Error("ticks that nobody took are not merged")
		default:
		}
		if s := latest(); s.TakenAt != taken.Load() || s != latest() {
			t.Errorf("snapshot %d after %d were taken, or not shared", s.TakenAt, taken.Load())
		}
		cancel()
		since(time.Second)
		if n := since(10 * time.Second); n != 10 {
			t.Errorf("%d ticks in 10 s after the watcher left, want 10", n)
		}
		stop()
	})
}

func TestLimiter(t *testing.T) {
	var l limiter
	now := time.Unix(1_700_000_000, 0)
	passed := 0
	for range 70 {
		if ok, held := l.pass(now); ok {
			passed++
		} else if held != 0 {
			t.Errorf("held %d said in the same window", held)
		}
	}
	if passed != protestsWindow {
		t.Errorf("%d of 70 passed, want %d", passed, protestsWindow)
	}
	if ok, held := l.pass(now.Add(protestWindow)); !ok || held != 20 {
		t.Errorf("in the next window: %v, %d held before, want true and 20", ok, held)
	}
	if ok, held := l.pass(now.Add(2 * protestWindow)); !ok || held != 0 {
		t.Errorf("in the window after: %v, %d held before, want true and 0", ok, held)
	}
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	db, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestLostEventsAreCounted(t *testing.T) {
	l := newEventLog(openStore(t), slog.New(slog.DiscardHandler))
	for range eventQueue + 7 {
		l.say("x", SeverityInfo, "one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.run(ctx) // stores what is queued and ends
	lost, err := l.db.Events(t.Context(), store.EventFilter{Kind: "events_dropped"})
	if err != nil || len(lost) != 1 || lost[0].Text != "7 events were lost: more happened at once than can be stored" {
		t.Errorf("events are %v, %v", lost, err)
	}
	if l.total.Load() != 7 {
		t.Errorf("%d counted, want 7", l.total.Load())
	}
}

// flaky comes up at the third attempt.
type flaky struct {
	attempts int
	tuned    tunables.Values
	onStart  func()
}

func (f *flaky) Start() error {
	if f.attempts++; f.attempts < 3 {
		return errors.New("port 987 is in use")
	}
	if f.onStart != nil {
		f.onStart()
	}
	return nil
}
func (f *flaky) Stop(context.Context) error { return nil }
func (f *flaky) Snapshot() *engine.Snapshot { return &engine.Snapshot{} }
func (f *flaky) Ping(context.Context, wire.NID, time.Duration) (PingResult, error) {
	return PingResult{}, nil
}
func (f *flaky) Retune(_ context.Context, v tunables.Values) error { f.tuned = v; return nil }
func (f *flaky) Query(context.Context, wire.NID, wire.NID) (time.Time, error) {
	return time.Time{}, nil
}
func (f *flaky) DelPeer(context.Context, wire.NID, wire.NID) error           { return nil }
func (f *flaky) CloseConns(context.Context, wire.NID, wire.NID) (int, error) { return 0, nil }
func (f *flaky) Recent(context.Context, wire.NID, wire.NID) ([]engine.ConnMessages, error) {
	return nil, nil
}
func (f *flaky) DemoNode() (demo.Node, error) { return nil, nil }

func TestEngineIsTriedAgain(t *testing.T) {
	db := openStore(t)
	a := &App{provider: "iwarp", log: slog.New(slog.DiscardHandler), sampler: &sample.Sampler{}, cfg: config.Config{NIs: []config.NI{{Net: "o2ib", Interface: "lo"}}}}
	a.events = newEventLog(db, a.log)
	var err error
	a.tuning, err = tuning.New(t.Context(), tuning.Options{Store: db, Applier: tuning.ApplierFunc(a.retune), Now: time.Now, IDs: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{}
	// A change that comes in while the engine starts with the values from before it.
	ntx := tunables.Scoped{Scope: tunables.GlobalScope, Name: "ntx"}
	f.onStart = func() {
		if err := a.retune(t.Context(), nil, tunables.Values{ntx: "1024"}); err != nil {
			t.Error(err)
		}
	}
	a.makeEngine = func(c EngineConfig) (Engine, error) {
		if len(c.NIs) != 1 || c.NIs[0].Addr.String() != "127.0.0.1" {
			t.Errorf("NIs are %v", c.NIs)
		}
		return f, nil
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		go a.keepUp(t.Context())
		synctest.Wait()
		if err := a.Ready(); err == nil || err.Error() != "port 987 is in use" {
			t.Errorf("ready: %v", err)
		}
		if l := a.Findings(); len(l) != 1 || l[0].Code != "engine-down" || l[0].Text != "The o2ib engine is not up: port 987 is in use." {
			t.Errorf("findings are %v", l)
		}
		time.Sleep(2 * retryEngine)
		synctest.Wait()
		if err := a.Ready(); err != nil || f.attempts != 3 || time.Since(start) != 2*retryEngine {
			t.Errorf("after two pauses: %v, %d attempts", err, f.attempts)
		}
	})
	if f.tuned[ntx] != "1024" {
		t.Errorf("the change that came in between is lost: %v", f.tuned)
	}
	if n := len(a.events.queue); n != 2 {
		t.Errorf("%d events, want 2: down once, up once", n)
	}
}

func TestInterfaceAddr(t *testing.T) {
	if _, err := interfaceAddr("ib99"); err == nil || err.Error() != "interface ib99 is not there" {
		t.Errorf("no such interface: %v", err)
	}
}

// TestUnnamedInterface: an NI without an interface is on the one that ipif_name says.
func TestUnnamedInterface(t *testing.T) {
	ipif := func(name string) tunables.Values {
		return tunables.Values{{Scope: tunables.GlobalScope, Name: "ipif_name"}: name}
	}
	unnamed, named := config.NI{Net: "o2ib"}, config.NI{Net: "o2ib", Interface: "lo"}
	for _, row := range []struct {
		name   string
		nis    []config.NI
		values tunables.Values
		want   string
	}{
		{"in force", []config.NI{unnamed}, ipif("lo"), "lo"},
		{"named wins", []config.NI{named}, ipif("ib99"), "lo"},
		{"not there", []config.NI{unnamed}, ipif("ib99"), "network o2ib names no interface, so the tunable ipif_name counts: interface ib99 is not there"},
		{"default", []config.NI{unnamed}, nil, "network o2ib names no interface, so the tunable ipif_name counts: interface ib0 is not there"},
		{"twice", []config.NI{named, unnamed}, ipif("lo"), "network o2ib is on interface lo twice: one of its NIs names no interface, and the tunable ipif_name says lo"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := &App{cfg: config.Config{NIs: row.nis}}
			list, err := a.addresses(row.values)
			switch {
			case err != nil:
				if err.Error() != row.want {
					t.Fatalf("error %q, wanted %q", err, row.want)
				}
			case len(list) != 1 || list[0].Interface != row.want || list[0].Addr.String() != "127.0.0.1":
				t.Fatalf("NIs %v, wanted %s", list, row.want)
			}
		})
	}
}

// A client that never ends its request gets no answer from net/http, only a closed connection.
func TestGuardSeesSlowRequests(t *testing.T) {
	got := make(chan string, 1)
	g := &guard{kind: "http", protest: func(_, _, text string) { got <- text }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: g.handler(http.NotFoundHandler()), ConnContext: g.context, ConnState: g.state, ReadHeaderTimeout: 10 * time.Millisecond}
	go s.Serve(g.listen(l))
	defer s.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if text := <-got; text != "connection closed in the middle of a request" {
		t.Errorf("protest is %q", text)
	}
}

func TestGarbageAtATLSPort(t *testing.T) {
	cert, key := certificate(t)
	l, err := listenPage(config.Config{Listen: "127.0.0.1:0", TLSCert: cert, TLSKey: key})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	g := &guard{kind: "http", protest: func(_, _, text string) { got <- text }}
	s := &http.Server{Handler: g.handler(http.NotFoundHandler()), ConnContext: g.context, ConnState: g.state}
	go s.Serve(g.listen(l))
	defer s.Close()

	good := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := good.Get("https://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()

	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text := <-got; !strings.HasPrefix(text, "connection closed: no TLS handshake: ") {
		t.Errorf("protest is %q", text)
	}
}

func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, priv.Public(), priv)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("c.pem", "CERTIFICATE", der), write("k.pem", "PRIVATE KEY", pkcs)
}
