//go:build browser

package browser

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// rowsShown counts the rows that the table really has.
const rowsShown = `document.querySelectorAll("table[data-virtual] tr[data-key]").length`

// TestLostServer: the page says that it is stale and since when, and is live again by itself.
func TestLostServer(t *testing.T) {
	a := serve(t)
	ctx := browser(t)
	run(t, ctx, "sign in", size(1280, 900, "light"), chromedp.Navigate(a.signIn), click(`form[action="/sign-in/link"] button`), visible(`input[name=again]`), chromedp.Navigate(a.page+"/peers"), visible(`.live[data-state=live]`), until(`document.querySelectorAll("tr[data-key]").length === 4`, 30*time.Second))
	a.stop()
	var said string
	run(t, ctx, "the server is lost", visible(`.live[data-state=lost]`), until(`document.documentElement.hasAttribute("data-stale")`, 10*time.Second),
		into(&said, chromedp.Text(chromedp.CSS(`#live`))))
	if !strings.Contains(said, "stale since") {
		t.Errorf("the page says %q", said)
	}
	shot(t, ctx, "lost-server", false)
	serveAt(t, a.listen, a.state, func() error { return nil })
	run(t, ctx, "it is back", until(`document.querySelector("#live").dataset.state === "live" && !document.documentElement.hasAttribute("data-stale")`, 40*time.Second))
}

// TestTenThousandPeers: the table holds the rows around what is seen, at the top, in the middle and at the
// end, live, filtered while it is typed, and is a page of rows without a script.
func TestTenThousandPeers(t *testing.T) {
	s := fabricOf(t, 10_000)
	ctx := browser(t)
	s.signIn(t, ctx, "/peers?sort=nid")
	var rows, total int64
	run(t, ctx, "the top", visible(`.live[data-state=live]`), until(`document.querySelector("tr[data-key] th").textContent.includes("10.0.0.2@")`, 5*time.Second),
		into(&rows, chromedp.Evaluate[int64](rowsShown)), into(&total, chromedp.Evaluate[int64](`Number(document.querySelector("#total").textContent)`)))
	if rows > 150 || total != 10_000 {
		t.Errorf("%d rows are in the page, of %d", rows, total)
	}
	shot(t, ctx, "10000-peers", false)
	for _, at := range []struct {
		where string
		share float64
		nid   string // of a row that is to be seen there: the peers are in order, from 10.0.0.2 on
	}{{"middle", 0.5, "10.0.19.1"}, {"end", 1, "10.0.39.17@"}, {"top", 0, "10.0.0.2@"}} {
		run(t, ctx, "scroll to the "+at.where, eval(fmt.Sprintf(`const b = document.querySelector(".virtual"); b.scrollTop = %g * (b.scrollHeight - b.clientHeight)`, at.share)),
			until(fmt.Sprintf(`(() => { const b = document.querySelector(".virtual").getBoundingClientRect();
				return [...document.querySelectorAll("tr[data-key]")].some(r => { const x = r.getBoundingClientRect(); return x.bottom > b.top && x.top < b.bottom && r.textContent.includes("%s"); }); })()`, at.nid), 10*time.Second),
			into(&rows, chromedp.Evaluate[int64](rowsShown)))
		if rows > 150 {
			t.Errorf("%s: %d rows are in the page", at.where, rows)
		}
		shot(t, ctx, "10000-peers-"+at.where, false)
	}
	// Scrolled through in steps, there are rows in view after each, and they still move.
	run(t, ctx, "scroll through", eval(`window.blank = 0; window.steps = 0; const b = document.querySelector(".virtual"); const go = () => {
			b.scrollTop += 2000; if (++window.steps < 100) setTimeout(() => { const at = b.getBoundingClientRect();
			if (![...document.querySelectorAll("tr[data-key]")].some(r => { const x = r.getBoundingClientRect(); return x.bottom > at.top && x.top < at.bottom; })) window.blank++; go(); }, 200) }; go()`),
		until(`window.steps >= 100`, 40*time.Second))
	var blank int64
	run(t, ctx, "rows after each step", into(&blank, chromedp.Evaluate[int64](`window.blank`)))
	if blank > 20 {
		t.Errorf("after %d of 100 steps nothing was to be seen 200 ms later", blank)
	}
	run(t, ctx, "filter while typing", keys(`#filter`, "state=down"), until(`document.querySelector("#total").textContent === "20" && location.search.includes("state%3Ddown")`, 10*time.Second))
	run(t, ctx, "a wrong filter", keys(`#filter`, " nonsense=1"), visible(`#filter-problem`))
	run(t, ctx, "keys", chromedp.Navigate(s.page+"/peers"), visible(`.live[data-state=live]`), eval(`document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "?", bubbles: true}))`), visible(`#keys`))
	shot(t, ctx, "keys", false)
	run(t, ctx, "without a script", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}), chromedp.Navigate(s.page+"/peers"), visible(`nav.pager a[rel=next]`), visible(`tr[data-key]`))
	shot(t, ctx, "10000-peers-without-script", false)
}

// TestSlowViewer: over a line of 3 kB/s a page of moving rows is behind by moments, not by a queue.
func TestSlowViewer(t *testing.T) {
	s := fabricOf(t, 2000)
	ctx := browser(t)
	s.signIn(t, ctx, "/about")
	line := "http://" + narrow(t, strings.TrimPrefix(s.page, "http://"), 3000)
	run(t, ctx, "the page by the slow line", chromedp.Navigate(line+"/peers?sort=-send_count"), visible(`tr[data-key]`), until(`document.querySelector("#live").dataset.state === "live"`, 40*time.Second))
	// What is shown is held against what the appliance has, asked by the fast line, some seconds later.
	run(t, ctx, "it moves", eval(`window.first = document.querySelector("tr[data-key] [data-field=send_count]").textContent`),
		until(`document.querySelector("tr[data-key] [data-field=send_count]").textContent !== window.first`, 40*time.Second))
	tick, _, cancel := s.Watch()
	defer cancel()
	for range 30 { // while a queue would build up
		<-tick
	}
	before := s.Snapshot()
	var shown float64
	run(t, ctx, "what it shows", into(&shown, chromedp.Evaluate[float64](`Math.max(...[...document.querySelectorAll("tr[data-key] [data-field=send_count]")].map(e => Number(e.textContent.replace(/\D/g, ""))))`)))
	newest := uint64(0)
	for _, p := range before.Peers {
		newest = max(newest, p.SendCount)
	}
	if float64(newest)-shown > 2 { // each peer moves once in ten ticks, that is in 5 s
		t.Errorf("the page shows %v messages sent, the appliance has %d", shown, newest)
	}
	shot(t, ctx, "slow-viewer", false)
}

// TestExpiredSession: the page says that the session has ended, and signing in leads back to it.
func TestExpiredSession(t *testing.T) {
	s := fabricOf(t, 20)
	ctx := browser(t)
	s.signIn(t, ctx, "/peers?filter=state%3Dconnected")
	run(t, ctx, "live", visible(`.live[data-state=live]`))
	cookies, err := chromedp.Call(ctx, network.GetCookies, network.GetCookiesParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cookies.Cookies {
		if err := s.EndSession(t.Context(), c.Value); err != nil {
			t.Fatal(err)
		}
	}
	run(t, ctx, "told", visible(`#live a`), until(`document.querySelector("#live").textContent.includes("session has ended")`, 10*time.Second))
	shot(t, ctx, "expired-session", false)
	run(t, ctx, "back after signing in", click(`#live a`), visible(`form[action="/sign-in"]`), keys(`input[name=name]`, "root"), keys(`input[name=password]`, "correct horse"), click(`main button.primary`),
		visible(`tr[data-key]`), until(`location.search.includes("state%3Dconnected")`, 5*time.Second))
}

// TestEveryForm fills in the forms that the other tests do not.
func TestEveryForm(t *testing.T) {
	s := fabricOf(t, 20)
	ctx := browser(t)
	s.signIn(t, ctx, "/tunables")
	run(t, ctx, "preview", set(`#f-peer_credits`, "16"), keys(`#reason`, "more credits"), click(`button[value=preview]`), visible(`#preview`))
	shot(t, ctx, "tunable-preview", false)
	run(t, ctx, "save, to be confirmed", set(`#confirm`, "300"), click(`button[value=save]`), visible(`.pending`))
	shot(t, ctx, "tunable-to-confirm", false)
	run(t, ctx, "keep it", click(`.pending form button`), until(`!document.querySelector(".pending") && document.querySelector("#history").textContent.includes("confirmed")`, 10*time.Second))
	run(t, ctx, "the change", click(`#history th a`), visible(`button[value=save]`))
	shot(t, ctx, "change", false)
	run(t, ctx, "revert it", keys(`#reason`, "no gain"), click(`button[value=save]`), visible(`#history`), until(`document.querySelector("#history").textContent.includes("no gain")`, 10*time.Second))
	shot(t, ctx, "history", false)
	run(t, ctx, "filter the history", keys(`#text`, "no gain"), click(`.filter button`), until(`location.search.includes("no+gain") && document.querySelectorAll("#history tbody tr").length === 1`, 10*time.Second))
	run(t, ctx, "compare", click(`#history td.do a`), visible(`#diff`))
	shot(t, ctx, "compare", false)
	run(t, ctx, "import", chromedp.Navigate(s.page+"/tunables/import"), keys(`textarea`, "options ko2iblnd timeout=60"), click(`button[value=save]`), visible(`#history`))
	run(t, ctx, "a peer whose history is kept", chromedp.Navigate(s.page+"/peers"), click(`tr[data-key] th a`), visible(`button[value=pin]`), click(`button[value=pin]`), visible(`button[value=unpin]`), click(`button[value=unpin]`), visible(`button[value=pin]`))
	run(t, ctx, "two peers compared", keys(`#with`, "10.0.0.3@o2ib"), click(`main form.filter button`), until(`location.search.includes("with=")`, 5*time.Second), visible(`figure .u-wrap`))
	shot(t, ctx, "peers-compared", true)
	run(t, ctx, "the table behind a chart", eval(`const d = document.querySelector("figure details"); d.open = true; d.scrollIntoView()`), until(`document.querySelector("figure details table thead").textContent.includes("10.0.0.3@o2ib")`, 10*time.Second))
	run(t, ctx, "filter events", chromedp.Navigate(s.page+"/events"), keys(`#filter`, "engine"), click(`main form button`), until(`location.search.includes("text=engine")`, 5*time.Second), visible(`tbody tr`))
	run(t, ctx, "a new account", chromedp.Navigate(s.page+"/accounts"), keys(`form.card input[name=name]`, "new"), keys(`form.card input[name=password]`, "long enough"), click(`form.card button[value=add]`), visible(`#role-new`))
	run(t, ctx, "its role", set(`#role-new`, "operator"), eval(`document.querySelector("#role-new").form.querySelector("button").click()`), visible(`.said`))
	run(t, ctx, "its token", set(`#new-token select[name=name]`, "new"), keys(`#new-token input[name=label]`, "collector"), keys(`#new-token input[name=days]`, "30"), click(`#new-token button`), visible(`code.secret`))
	shot(t, ctx, "token", false)
	run(t, ctx, "remove the token", click(`button[value=remove-token]`), until(`!document.querySelector("button[value=remove-token]")`, 5*time.Second))
	run(t, ctx, "remove it", eval(`[...document.querySelectorAll("tr")].find(r => r.querySelector("#role-new")).querySelector("button[value=remove]").click()`), until(`!document.querySelector("#role-new")`, 5*time.Second))
	run(t, ctx, "audit by action", chromedp.Navigate(s.page+"/audit"), keys(`#action`, "account."), click(`main form button`), until(`location.search.includes("action=account.") && document.querySelector("main table").textContent.includes("account.create")`, 5*time.Second))
	run(t, ctx, "two passwords that differ", chromedp.Navigate(s.page+"/account"), keys(`input[name=password]`, "one and long"), keys(`input[name=again]`, "two and long"), click(`main button.primary`), visible(`.problem`))
	run(t, ctx, "a new password", keys(`input[name=password]`, "new and long"), keys(`input[name=again]`, "new and long"), click(`main button.primary`), until(`!location.pathname.includes("account") || !!document.querySelector(".said")`, 5*time.Second))
}
