package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"o2ibd/app"
	"o2ibd/app/tuning"
	"o2ibd/engine"
	"o2ibd/web/live"
)

// frame is what every page shows around its content.
type frame struct {
	Title string
	Path  string
	Info  app.Info
	Who   app.Actor
	In    bool // signed in
	Said  string

	Pending *tuning.Pending     // a change that waits to be confirmed
	Running *app.TuningProgress // a change that is being made
}

func (s *server) frame(r *http.Request, title string) frame {
	who, in := actor(r)
	f := frame{Title: title, Path: r.URL.Path, Info: s.app.Info(), Who: who, In: in}
	if in {
		f.Pending, f.Running = s.app.Tuning().Pending(), s.app.TuningProgress()
	}
	q := r.URL.Query()
	if said := q.Get("said"); hmac.Equal([]byte(q.Get("seal")), []byte(s.seal(said))) {
		f.Said = said
	}
	return f
}

// seal goes with a sentence in an address, so that nobody's link puts words into our mouth.
func (s *server) seal(said string) string {
	h := hmac.New(sha256.New, s.sealKey)
	h.Write([]byte(said))
	return hex.EncodeToString(h.Sum(nil))
}

// may says whether the one who looks has a role.
func (f frame) may(role app.Role) bool { return f.In && f.Who.Role.Allows(role) }

// render sends a page whole. What answers a read is compressed; what answers a form may show a secret
// beside what was typed, and is not.
func (s *server) render(w http.ResponseWriter, r *http.Request, status int, c templ.Component) {
	var page bytes.Buffer
	if err := c.Render(r.Context(), &page); err != nil {
		s.log.Error("a page was not made", "path", r.URL.Path, "err", err)
		status = http.StatusInternalServerError
	}
	b := page.Bytes()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Encoding")
	if r.Method == http.MethodGet && takesGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		b = compress(b, gzip.BestSpeed)
	}
	w.WriteHeader(status)
	if _, err := w.Write(b); err != nil {
		s.log.Debug("a page was not sent whole", "path", r.URL.Path, "err", err)
	}
}

// back goes to a page and shows a sentence there.
func (s *server) back(w http.ResponseWriter, r *http.Request, path, said string) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	http.Redirect(w, r, path+sep+"said="+url.QueryEscape(said)+"&seal="+s.seal(said), http.StatusSeeOther)
	return nil
}

func (s *server) overviewPage(w http.ResponseWriter, r *http.Request) error {
	snap := s.app.Snapshot()
	frame := s.frames.Of(snap)
	o := overviewData{Snap: snap, Sum: live.Summarize(snap), Findings: s.app.Findings(), Range: rangeOf(r.FormValue("range")), Troubles: live.Troubles(snap)}
	shown := min(worstRows*2, len(o.Troubles))
	o.Troubles, o.More = o.Troubles[:shown], len(o.Troubles)-shown
	for _, t := range worstTables {
		p, err := frame.Select(live.Query{View: "peers", Filter: t.Filter, Sort: t.Sort, Limit: worstRows})
		if err != nil {
			return err
		}
		for _, row := range p.Rows {
			t.Rows = append(t.Rows, live.As[engine.Peer](row))
		}
		o.Worst = append(o.Worst, t)
	}
	var err error
	if o.Events, err = s.app.Events(r.Context(), app.EventFilter{Limit: 8}); err != nil {
		return err
	}
	h, err := s.app.Tuning().History(r.Context(), tuning.HistoryFilter{Limit: 6})
	if err != nil {
		return err
	}
	o.Changes = h.Changes[:min(6, len(h.Changes))]
	o.Charts = totalCharts()
	o.Lines = s.withHistory(r.Context(), o.Range, o.Charts, of("total", "", "peers_connected", "peers_not_connected", "conns", "tx_queued", "send_msgs", "recv_msgs", "send_bytes", "recv_bytes", "credit_stalls", "reconnects", "drops"))
	s.render(w, r, http.StatusOK, overview(s.frame(r, "Overview"), o))
	return nil
}

// defaultLimit is how many rows a page shows that was not asked for a number.
const defaultLimit = 100

// tablePage is a page with one live table.
type tablePage struct {
	View  string
	Query live.Query
	Total int
	Err   string
}

// table reads the address's query and gives the rows that it selects.
func table[T any](s *server, r *http.Request, view string) (tablePage, []*T) {
	q, err := query(r, view)
	if err == nil {
		q.Limit = cmp.Or(q.Limit, defaultLimit)
		var page live.Page
		if page, err = s.frames.Of(s.app.Snapshot()).Select(q); err == nil {
			rows := make([]*T, len(page.Rows))
			for i, row := range page.Rows {
				rows[i] = live.As[T](row)
			}
			return tablePage{View: view, Query: q, Total: page.Total}, rows
		}
	}
	q.Offset, q.Limit = 0, defaultLimit
	return tablePage{View: view, Query: q, Err: err.Error()}, nil
}

func (s *server) peersPage(w http.ResponseWriter, r *http.Request) error {
	p, rows := table[engine.Peer](s, r, "peers")
	s.render(w, r, tableStatus(p), peersTable(s.frame(r, "Peers"), p, rows))
	return nil
}

func (s *server) connsPage(w http.ResponseWriter, r *http.Request) error {
	p, rows := table[engine.Conn](s, r, "conns")
	s.render(w, r, tableStatus(p), connsTable(s.frame(r, "Connections"), p, rows))
	return nil
}

func (s *server) poolsPage(w http.ResponseWriter, r *http.Request) error {
	p, rows := table[engine.Pool](s, r, "pools")
	charts, span := poolCharts(s.app.Snapshot().Pools), rangeOf(r.FormValue("range"))
	s.withHistory(r.Context(), span, charts, nil)
	s.render(w, r, tableStatus(p), poolsTable(s.frame(r, "Pools"), p, rows, charts, span))
	return nil
}

func tableStatus(p tablePage) int {
	if p.Err != "" {
		return http.StatusUnprocessableEntity
	}
	return http.StatusOK
}

func (s *server) devicesPage(w http.ResponseWriter, r *http.Request) error {
	snap := s.app.Snapshot()
	s.render(w, r, http.StatusOK, devicesList(s.frame(r, "Devices"), snap, s.app.Findings()))
	return nil
}

func (s *server) peerPage(w http.ResponseWriter, r *http.Request) error {
	snap := s.app.Snapshot()
	found, err := peerOf(r, snap)
	if err != nil {
		return err
	}
	p := *found
	var conns []engine.Conn
	for _, c := range snap.Conns {
		if c.Peer == p.ID {
			conns = append(conns, c)
		}
	}
	events, err := s.app.Events(r.Context(), app.EventFilter{Peer: p.NID.String(), Limit: 50})
	if err != nil {
		return err
	}
	var ours engine.Net
	for _, n := range snap.Nets {
		if n.NID == p.NI {
			ours = n
		}
	}
	d := peerData{Peer: p, Ours: ours, Conns: conns, Events: events, Range: rangeOf(r.FormValue("range")), Charts: peerCharts(p.ID)}
	if with := strings.TrimSpace(r.FormValue("with")); with != "" {
		d.With = with
		k := slices.IndexFunc(snap.Peers, func(x engine.Peer) bool { return x.ID == with || x.NID.String() == with })
		if k < 0 {
			d.WithError = "No peer " + clip(with) + " is known: give the NID of another peer of this node."
		} else {
			d.Charts = peerCharts(p.ID, snap.Peers[k].ID)
		}
	}
	s.withHistory(r.Context(), d.Range, d.Charts, nil)
	d.Messages, d.MessagesError = s.messagesOf(r.Context(), p.ID)
	d.Pinned = slices.Contains(s.app.PinnedPeers(), p.ID)
	s.render(w, r, http.StatusOK, peerDetail(s.frame(r, p.NID.String()), d))
	return nil
}

func (s *server) eventsPage(w http.ResponseWriter, r *http.Request) error {
	f, err := eventFilter(r)
	if err != nil {
		return err
	}
	if err := days(r, &f.From, &f.To); err != nil {
		return err
	}
	list, err := s.app.Events(r.Context(), f)
	if err != nil {
		return err
	}
	older := r.URL.Query()
	s.render(w, r, http.StatusOK, eventsList(s.frame(r, "Events"), f, older, list))
	return nil
}

func (s *server) auditPage(w http.ResponseWriter, r *http.Request) error {
	list, err := s.app.Audit(r.Context(), app.AuditFilter{Name: r.FormValue("name"), Action: r.FormValue("action"), Limit: 200})
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, auditList(s.frame(r, "Audit"), r.FormValue("name"), r.FormValue("action"), list))
	return nil
}

func (s *server) aboutPage(w http.ResponseWriter, r *http.Request) error {
	s.render(w, r, http.StatusOK, aboutText(s.frame(r, "About"), s.app.Snapshot()))
	return nil
}

func (s *server) pingPage(w http.ResponseWriter, r *http.Request) error {
	s.render(w, r, http.StatusOK, pingTool(s.frame(r, "Ping"), r.FormValue("nid"), nil, ""))
	return nil
}

func (s *server) pingForm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	nid := strings.TrimSpace(r.PostFormValue("nid"))
	res, err := s.app.Ping(r.Context(), who, nid, 5*time.Second)
	if err != nil {
		s.render(w, r, statusOf(err), pingTool(s.frame(r, "Ping"), nid, nil, err.Error()))
		return nil
	}
	s.render(w, r, http.StatusOK, pingTool(s.frame(r, "Ping"), nid, &res, ""))
	return nil
}

func (s *server) bundlesPage(w http.ResponseWriter, r *http.Request) error {
	list, err := s.app.Bundles(r.Context())
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, bundlesList(s.frame(r, "Bundles"), list))
	return nil
}

func (s *server) createBundleForm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	if _, err := s.app.CreateBundle(r.Context(), who, r.PostFormValue("redact") != ""); err != nil {
		return err
	}
	return s.back(w, r, "/bundles", "The bundle is being made.")
}

func (s *server) deleteBundleForm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	if err := s.app.DeleteBundle(r.Context(), who, chi.URLParam(r, "id")); err != nil {
		return err
	}
	return s.back(w, r, "/bundles", "The bundle was deleted.")
}

func (s *server) demoForm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	i, err := strconv.Atoi(chi.URLParam(r, "index"))
	if err != nil {
		return &statusError{http.StatusNotFound, "demo nodes have numbers"}
	}
	switch chi.URLParam(r, "action") {
	case "stop":
		err = s.app.DemoStop(r.Context(), who, i)
	case "start":
		err = s.app.DemoStart(r.Context(), who, i)
	default:
		err = &statusError{http.StatusNotFound, "a demo node can be stopped and started"}
	}
	if err != nil {
		return err
	}
	return s.back(w, r, "/", fmt.Sprintf("Demo node %d: %s.", i, chi.URLParam(r, "action")))
}

func (s *server) accountsPage(w http.ResponseWriter, r *http.Request) error {
	return s.showAccounts(w, r, http.StatusOK, "", "")
}

func (s *server) showAccounts(w http.ResponseWriter, r *http.Request, status int, problem, secret string) error {
	list, err := s.app.Accounts(r.Context())
	if err != nil {
		return err
	}
	tokens, err := s.app.Tokens(r.Context())
	if err != nil {
		return err
	}
	s.render(w, r, status, accountsList(s.frame(r, "Accounts"), list, tokens, problem, secret))
	return nil
}

// accountsForm carries out one of the small forms of the accounts page.
func (s *server) accountsForm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	ctx, name := r.Context(), r.PostFormValue("name")
	var err error
	said, secret := "", ""
	switch r.PostFormValue("do") {
	case "add":
		err = s.app.CreateAccount(ctx, who, name, r.PostFormValue("password"), app.Role(r.PostFormValue("role")))
		said = "Account " + name + " was added."
	case "role":
		err = s.app.SetRole(ctx, who, name, app.Role(r.PostFormValue("role")))
		said = "Account " + name + " has a new role."
	case "remove":
		err = s.app.RemoveAccount(ctx, who, name)
		said = "Account " + name + " was removed."
	case "link":
		secret, err = s.app.SignInLink(ctx, who, name)
	case "token":
		var days float64
		if v := r.PostFormValue("days"); v != "" {
			if days, err = strconv.ParseFloat(v, 64); err != nil || !(days > 0 && days <= 3660) {
				err = fmt.Errorf("%w: a token is good for a number of days up to 3660, or without an end", app.ErrInvalid)
				break
			}
		}
		secret, _, err = s.app.NewRoleToken(ctx, who, name, r.PostFormValue("label"), app.Role(r.PostFormValue("role")), time.Duration(days*24*float64(time.Hour)))
	case "remove-token":
		err = s.app.RemoveToken(ctx, who, r.PostFormValue("token"))
		said = "The token was removed."
	default:
		err = &statusError{http.StatusBadRequest, "the form does not say what to do"}
	}
	switch {
	case errors.Is(err, app.ErrInvalid), errors.Is(err, app.ErrExists), errors.Is(err, app.ErrConflict), errors.Is(err, app.ErrNotFound):
		return s.showAccounts(w, r, statusOf(err), err.Error(), "")
	case err != nil:
		return err
	case secret != "":
		return s.showAccounts(w, r, http.StatusOK, "", secret)
	}
	return s.back(w, r, "/accounts", said)
}
