//go:build browser

package browser

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"o2ibd/app"
	"o2ibd/test/fabric"
	"o2ibd/web"
)

var boss = app.Actor{Name: "test", Role: app.RoleAdmin, How: app.HowSystem}

// inside is an appliance of this process over a made-up fabric.
type inside struct {
	*app.App
	page string
}

// fabricOf serves a page with n peers.
func fabricOf(t *testing.T, n int) *inside {
	t.Helper()
	cfg := filepath.Join(t.TempDir(), "o2ibd.yaml")
	if err := os.WriteFile(cfg, []byte(fabric.Config), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := app.Open(t.Context(), app.Options{
		ConfigFile: cfg, StateDir: filepath.Join(t.TempDir(), "s"), Listen: "127.0.0.1:0", Out: io.Discard, Version: "test",
		NewEngine: func(app.EngineConfig) (app.Engine, error) { return fabric.New(n), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, web.New(web.Options{App: a})) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	tick, _, cancel := a.Watch()
	defer cancel()
	for deadline := time.After(20 * time.Second); len(a.Snapshot().Peers) < n; {
		select {
		case <-tick:
		case <-deadline:
			t.Fatal("the engine did not come up")
		}
	}
	if err := a.CreateAccount(t.Context(), boss, "root", "correct horse", app.RoleAdmin); err != nil {
		t.Fatal(err)
	}
	return &inside{a, strings.TrimSuffix(a.Info().URL, "/")}
}

// signIn fills the form in, at an address that leads to path.
func (s *inside) signIn(t *testing.T, ctx context.Context, path string) {
	t.Helper()
	run(t, ctx, "sign in", size(1280, 900, "light"), chromedp.Navigate(s.page+path), visible(`form[action="/sign-in"]`),
		keys(`input[name=name]`, "root"), keys(`input[name=password]`, "correct horse"), click(`main button.primary`), visible(`nav.main`))
}

// narrow is a way to addr that lets through so many bytes a second from there, and holds back little.
func narrow(t *testing.T, addr string, rate int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				io.Copy(far, c)
				far.Close()
			}()
			go func() {
				defer c.Close()
				const slice = 20
				pace := time.NewTicker(time.Second / slice)
				defer pace.Stop()
				for b := make([]byte, max(1, rate/slice)); ; <-pace.C {
					n, err := far.Read(b)
					if n > 0 {
						if _, err := c.Write(b[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}
