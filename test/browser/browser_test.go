//go:build browser

// Package browser drives the page in Debian's Chromium against the real binary with its demo fabric.
package browser

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const root = "../.."

// appliance is the running binary.
type appliance struct {
	t       *testing.T
	cmd     *exec.Cmd
	listen  string
	state   string
	page    string
	signIn  string
	socket  string
	stopped chan struct{}
}

func serve(t *testing.T) *appliance {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return serveAt(t, l.Addr().String(), t.TempDir(), l.Close)
}

// serveAt starts the appliance on an address and a state folder, after before.
func serveAt(t *testing.T, listen, state string, before func() error) *appliance {
	t.Helper()
	socket := filepath.Join(state, "s.sock")
	if err := before(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, "bin", "o2ibd"), "serve", "--demo", "--state", state, "--listen", listen, "--socket", socket, "--log", "warn")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("start bin/o2ibd (make build makes it): %v", err)
	}
	a := &appliance{t: t, cmd: cmd, listen: listen, state: state, socket: socket, stopped: make(chan struct{})}
	t.Cleanup(a.stop)
	sc := bufio.NewScanner(out)
	for (a.page == "" || a.signIn == "") && sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "page: "); ok {
			a.page = v
		}
		if v, ok := strings.CutPrefix(sc.Text(), "sign-in: "); ok {
			a.signIn = v
		}
	}
	if a.page == "" || a.signIn == "" {
		t.Fatal("serve did not print its page and its sign-in link")
	}
	go func() {
		io.Copy(io.Discard, out)
		close(a.stopped)
	}()
	return a
}

func (a *appliance) stop() {
	if a.cmd.ProcessState != nil {
		return
	}
	a.cmd.Process.Signal(syscall.SIGTERM)
	<-a.stopped
	if err := a.cmd.Wait(); err != nil {
		a.t.Errorf("the appliance ended with %v", err)
	}
}

// browser starts Chromium. Missing, the test fails: CI has it.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, p := range []string{"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"} {
		if _, err := os.Stat(p); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Fatal("Chromium is not here: make deps-test installs it")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The browser lives as long as the context of the first action.
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// complaints gathers what the console and the security policy say.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) listen(ctx context.Context) error {
	return chromedp.Listen(ctx, func(ev any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			text := e.ExceptionDetails.Text
			if x := e.ExceptionDetails.Exception; x != nil {
				text += " " + x.Description
			}
			c.list = append(c.list, "exception: "+text)
		case *runtime.EventConsoleAPICalled:
			if e.Type == "error" {
				c.list = append(c.list, fmt.Sprintf("console: %v", e.Args))
			}
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				c.list = append(c.list, "log: "+e.Entry.Text+" "+e.Entry.URL)
			}
		}
	})
}

type step = chromedp.Action[chromedp.Void]

func visible(sel string) step { return chromedp.WaitVisible(chromedp.CSS(sel)) }
func click(sel string) step   { return chromedp.Click(chromedp.CSS(sel)) }
func keys(sel, v string) step { return chromedp.SendKeys(chromedp.CSS(sel), v) }
func set(sel, v string) step  { return chromedp.SetValue(chromedp.CSS(sel), v) }

// into keeps the value of an action.
func into[T any](to *T, a chromedp.Action[T]) step {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		var err error
		*to, err = a(ctx, t)
		return chromedp.Void{}, err
	}
}

// eval runs a script whose value does not matter.
func eval(script string) step {
	var ignored bool
	return into(&ignored, chromedp.Evaluate[bool]("(() => {"+script+"})(); true"))
}

// until waits until an expression is true, over whatever pages come meanwhile.
func until(expr string, within time.Duration) step {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		late := time.After(within)
		look := time.NewTicker(30 * time.Millisecond)
		defer look.Stop()
		for {
			yes, err := chromedp.Evaluate[bool]("!!("+expr+")")(ctx, t)
			if yes {
				return chromedp.Void{}, nil
			}
			select {
			case <-look.C:
				continue
			case <-late:
			case <-ctx.Done():
			}
			return chromedp.Void{}, fmt.Errorf("not within %v: %s (%w)", within, expr, errors.Join(err, ctx.Err()))
		}
	}
}

func run(t *testing.T, ctx context.Context, what string, steps ...step) {
	t.Helper()
	limited, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	if err := chromedp.Do(limited, steps...); err != nil {
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? location.href + "\n" + document.body.innerText.slice(0, 1500) : ""`))
		t.Fatalf("%s: %v\n%s", what, err, text)
	}
}

func shot(t *testing.T, ctx context.Context, name string, full bool) {
	t.Helper()
	dir := filepath.Join(root, "build", "screenshots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var png []byte
	act := chromedp.CaptureScreenshot()
	if full {
		act = chromedp.FullScreenshot(100)
	}
	run(t, ctx, "screenshot "+name, into(&png, act))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// size sets the window and the colour scheme that the page is told.
func size(width, height int64, scheme string) step {
	return chromedp.Steps(chromedp.EmulateViewport(width, height), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

var pages = []string{"/tunables/diff?from=defaults", "/tunables/import", "/", "/peers", "/peers?limit=1&offset=1", "/conns", "/pools", "/devices", "/tunables", "/tunables/history", "/events", "/ping", "/bundles", "/accounts", "/audit", "/about", "/account"}

func TestThePage(t *testing.T) {
	a := serve(t)
	ctx := browser(t)
	var bad complaints
	if err := bad.listen(ctx); err != nil {
		t.Fatal(err)
	}

	run(t, ctx, "the first-start link", size(1280, 900, "light"), chromedp.Navigate(a.signIn), visible(`form[action="/sign-in/link"] button`))
	shot(t, ctx, "sign-in-link", false)
	run(t, ctx, "sign in by the link", click(`form[action="/sign-in/link"] button`), visible(`input[name=again]`),
		keys(`input[name=password]`, "correct horse"), keys(`input[name=again]`, "correct horse"),
		click(`main button.primary`), visible(`dl.figures`))
	run(t, ctx, "DEMO mark and live state", visible(`.demo`), visible(`.live[data-state=live]`))
	run(t, ctx, "four peers connect", until(`document.querySelector('[data-live=overview] [data-field=peers_connected]').textContent.trim() === "4"`, 30*time.Second))

	t.Run("credits move", func(t *testing.T) { creditsMove(t, ctx, a) })
	// The README's picture.
	run(t, ctx, "overview", chromedp.Navigate(a.page+"/"), visible(`.live[data-state=live]`))
	shot(t, ctx, "overview", true)
	t.Run("change a tunable", func(t *testing.T) { changeTunable(t, ctx, a) })
	t.Run("bundle", func(t *testing.T) { downloadBundle(t, ctx, a) })
	t.Run("ping", func(t *testing.T) {
		run(t, ctx, "ping", chromedp.Navigate(a.page+"/ping"), keys(`#nid`, "127.0.0.3@o2ib"), click(`main button.primary`), visible(`.said strong`))
		run(t, ctx, "ping of nonsense", chromedp.Navigate(a.page+"/ping"), keys(`#nid`, "nonsense"), click(`main button.primary`), visible(`.problem`))
	})
	t.Run("a demo node stops", func(t *testing.T) {
		run(t, ctx, "stop node 1", chromedp.Navigate(a.page+"/"), click(`form[action="/demo/1/stop"] button`), visible(`form[action="/demo/1/start"]`))
		run(t, ctx, "its peer is down", chromedp.Navigate(a.page+"/peers?filter=127.0.0.2"),
			until(`/down|connecting/.test(document.querySelector('tr[data-key] [data-field=state]').textContent)`, 40*time.Second))
		shot(t, ctx, "peer-down", false)
		run(t, ctx, "start node 1", chromedp.Navigate(a.page+"/"), click(`form[action="/demo/1/start"] button`), visible(`form[action="/demo/1/stop"]`))
	})
	t.Run("looks", func(t *testing.T) { looks(t, ctx, a) })
	t.Run("session ends", func(t *testing.T) {
		run(t, ctx, "sign out", chromedp.Navigate(a.page+"/"), click(`form[action="/sign-out"] button`), visible(`form[action="/sign-in"]`))
		run(t, ctx, "wrong password", keys(`input[name=name]`, "admin"), keys(`input[name=password]`, "wrong"), click(`main button.primary`), visible(`.problem`))
		run(t, ctx, "right password", keys(`input[name=password]`, "correct horse"), click(`main button.primary`), visible(`dl.figures`))
	})
	bad.mu.Lock()
	defer bad.mu.Unlock()
	for _, c := range bad.list {
		// A refused ping, an old form and a wrong password are answered with their status, which the console logs.
		if !strings.Contains(c, "/ping") && !strings.Contains(c, "/sign-in") && !strings.Contains(c, "412") && !strings.Contains(c, "422") && !strings.Contains(c, "401") {
			t.Error(c)
		}
	}
}

// creditsMove watches a connection without reloading the page.
func creditsMove(t *testing.T, ctx context.Context, a *appliance) {
	run(t, ctx, "connections", chromedp.Navigate(a.page+"/conns"), visible(`.live[data-state=live]`), visible(`tr[data-key] [data-field=credits]`))
	run(t, ctx, "counters and credits of a connection move", eval(`window.seen = {}; window.moved = {};
		window.watch = setInterval(() => { for (const tr of document.querySelectorAll('tr[data-key]')) for (const f of ["credits", "tx_msgs", "outstanding_credits"]) {
			const k = tr.dataset.key + f, v = tr.querySelector('[data-field=' + f + ']').textContent;
			if (k in window.seen && window.seen[k] !== v) window.moved[f] = true; window.seen[k] = v; } }, 50)`),
		until(`window.moved.credits && window.moved.tx_msgs && window.moved.outstanding_credits`, 35*time.Second),
		eval(`clearInterval(window.watch)`))
	run(t, ctx, "a filter in the address", chromedp.Navigate(a.page+"/conns?filter=nid~127.0.0.3&sort=-tx_msgs"), visible(`tr[data-key]`),
		until(`[...document.querySelectorAll('tr[data-key] th')].every(x => x.textContent.includes("127.0.0.3"))`, 20*time.Second))
	run(t, ctx, "a filter that is wrong", chromedp.Navigate(a.page+"/conns?filter=nonsense%3D1"), visible(`.problem`))
}

// changeTunable changes one through the form, finds it in the history, and is told what is wrong with
// another.
func changeTunable(t *testing.T, ctx context.Context, a *appliance) {
	run(t, ctx, "a value out of range", chromedp.Navigate(a.page+"/tunables"), set(`#f-peer_timeout`, "99999999"), keys(`#reason`, "try a wrong one"),
		click(`button[value=save]`), visible(`#t-peer_timeout .error`))
	var kept, reason string
	run(t, ctx, "what was typed is kept", into(&kept, chromedp.Value(chromedp.CSS(`#f-peer_timeout`))), into(&reason, chromedp.Value(chromedp.CSS(`#reason`))))
	if kept != "99999999" || reason != "try a wrong one" {
		t.Fatalf("the form kept %q and %q", kept, reason)
	}
	shot(t, ctx, "tunable-wrong", false)
	var row string
	run(t, ctx, "a good value", chromedp.Navigate(a.page+"/tunables"), set(`#f-keepalive`, "42"), keys(`#reason`, "browser test"),
		click(`button[value=save]`), visible(`#history tbody tr`), into(&row, chromedp.Text(chromedp.CSS(`#history tbody tr`))))
	for _, want := range []string{"keepalive", "42", "browser test", "admin", "applied"} {
		if !strings.Contains(row, want) {
			t.Errorf("the history row does not say %q: %s", want, row)
		}
	}
	var source string
	run(t, ctx, "it is in force", chromedp.Navigate(a.page+"/tunables"), into(&source, chromedp.Text(chromedp.CSS(`#t-keepalive .inuse`))))
	if !strings.Contains(source, "42") || !strings.Contains(source, "changed here") {
		t.Errorf("keepalive in use: %s", source)
	}
	// Somebody else changes it while the form is open.
	var answer string
	run(t, ctx, "another operator", into(&answer, chromedp.Evaluate[string](`fetch("/api/v1/tunables", {method: "PATCH", headers: {"Content-Type": "application/json"}, body: JSON.stringify({changes: {keepalive: 77}, reason: "meanwhile"})}).then(r => r.text())`, chromedp.EvalAwaitPromise)),
		set(`#f-keepalive`, "55"), click(`button[value=save]`), visible(`#clash`))
	shot(t, ctx, "two-operators", false)
	var clash string
	run(t, ctx, "the conflict is shown", into(&clash, chromedp.Text(chromedp.CSS(`#clash`))), into(&kept, chromedp.Value(chromedp.CSS(`#f-keepalive`))))
	if !strings.Contains(clash, "77") || kept != "55" {
		t.Errorf("conflict %q, field %q; the other change answered %s", clash, kept, answer)
	}
}

// downloadBundle makes a bundle on the page, downloads it, and checks its manifest.
func downloadBundle(t *testing.T, ctx context.Context, a *appliance) {
	var attr chromedp.AttributeResult
	run(t, ctx, "make a bundle", chromedp.Navigate(a.page+"/bundles"), click(`main .card button.primary`), visible(`a.download`),
		into(&attr, chromedp.AttributeValue(chromedp.CSS(`a.download`), "href")))
	shot(t, ctx, "bundles", false)
	cookies, err := chromedp.Call(ctx, network.GetCookies, network.GetCookiesParams{})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, a.page+attr.Value, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cookies.Cookies {
		req.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("download: %s, %v", res.Status, err)
	}
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name], err = io.ReadAll(r)
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	var manifest struct {
		Demo  bool `json:"demo"`
		Files []struct {
			Name   string `json:"name"`
			Size   int    `json:"size"`
			SHA256 string `json:"sha256"`
		} `json:"files"`
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatalf("manifest: %v", err)
	}
	if !manifest.Demo || len(manifest.Files) != len(files)-1 {
		t.Errorf("the manifest lists %d files of %d, demo %v", len(manifest.Files), len(files)-1, manifest.Demo)
	}
	for _, f := range manifest.Files {
		sum := sha256.Sum256(files[f.Name])
		if hex.EncodeToString(sum[:]) != f.SHA256 || len(files[f.Name]) != f.Size {
			t.Errorf("%s does not match the manifest", f.Name)
		}
	}
	for _, want := range []string{"snapshot.json", "tunables.json", "tunables-history.json", "events.jsonl", "versions.json"} {
		if len(files[want]) == 0 {
			t.Errorf("the bundle has no %s", want)
		}
	}
	if !bytes.Contains(files["tunables-history.json"], []byte("browser test")) {
		t.Error("the history in the bundle lacks the change")
	}
}

// looks opens every page at both sizes in both schemes: nothing overflows, axe-core finds nothing serious.
func looks(t *testing.T, ctx context.Context, a *appliance) {
	axe, err := os.ReadFile(filepath.Join(root, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatalf("axe-core comes with npm: %v", err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, w := range []int64{1280, 390} {
			for _, p := range pages {
				name := fmt.Sprintf("%s-%s-%d", strings.Trim(strings.NewReplacer("/", "-", "?", "-", "&", "-").Replace("page"+p), "-"), scheme, w)
				run(t, ctx, name, size(w, 850, scheme), chromedp.Navigate(a.page+p), visible(`h1`))
				if p == "/" || p == "/conns" || p == "/peers" {
					run(t, ctx, name+" is live", visible(`.live[data-state=live]`))
				}
				var over int64
				run(t, ctx, name, into(&over, chromedp.Evaluate[int64](`document.documentElement.scrollWidth - document.documentElement.clientWidth`)))
				if over > 0 {
					t.Errorf("%s is %d px too wide", name, over)
				}
				shot(t, ctx, name, p != "/tunables")
				var found string
				run(t, ctx, "axe-core on "+name,
					eval(string(axe)+";0"),
					into(&found, chromedp.Evaluate[string](`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.filter(v => ["serious", "critical"].includes(v.impact)).map(v => v.id + ": " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120)).join(" | ")).join("\n"))`, chromedp.EvalAwaitPromise)))
				if found != "" {
					t.Errorf("axe-core on %s:\n%s", name, found)
				}
			}
		}
	}
}
