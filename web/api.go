package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"o2ibd/app"
	"o2ibd/app/tuning"
	"o2ibd/store"
	"o2ibd/web/live"
)

func (s *server) healthz(w http.ResponseWriter, _ *http.Request) error {
	_, err := fmt.Fprintln(w, "o2ibd alive")
	return err
}

func (s *server) readyz(w http.ResponseWriter, _ *http.Request) error {
	if err := s.app.Ready(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "not ready")
		return nil
	}
	_, err := fmt.Fprintln(w, "o2ibd ready")
	return err
}

func (s *server) apiSnapshot(w http.ResponseWriter, _ *http.Request) error {
	return s.json(w, http.StatusOK, s.app.Snapshot())
}

// query reads filter, sort, offset and limit of an address.
func query(r *http.Request, view string) (live.Query, error) {
	q := live.Query{View: view, Filter: r.FormValue("filter"), Sort: r.FormValue("sort")}
	for _, f := range []struct {
		name string
		to   *int
	}{{"offset", &q.Offset}, {"limit", &q.Limit}} {
		if v := r.FormValue(f.name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				return q, &live.Error{Text: f.name + " is a whole number"}
			}
			*f.to = n
		}
	}
	return q, nil
}

func (s *server) apiRows(view string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := query(r, view)
		if err != nil {
			return err
		}
		p, err := s.frames.Of(s.app.Snapshot()).Select(q)
		if err != nil {
			return err
		}
		return s.json(w, http.StatusOK, app.Rows[live.Row]{Total: p.Total, Rows: p.Rows})
	}
}

func (s *server) apiTunables(w http.ResponseWriter, r *http.Request) error {
	t, err := s.app.Tuning().Show(r.FormValue("scope"))
	if err != nil {
		return &statusError{http.StatusUnprocessableEntity, err.Error()}
	}
	w.Header().Set("ETag", `"`+t.Tag+`"`)
	return s.json(w, http.StatusOK, t)
}

func (s *server) apiPatchTunables(w http.ResponseWriter, r *http.Request) error {
	var p tuning.Patch
	if err := body(r, &p); err != nil {
		return err
	}
	who, _ := actor(r)
	req := p.Request()
	req.IfMatch = strings.Trim(strings.TrimPrefix(r.Header.Get("If-Match"), "W/"), `"`)
	res, err := s.app.ChangeTunables(r.Context(), who, req)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", `"`+res.Tag+`"`)
	return s.json(w, http.StatusOK, res)
}

func (s *server) apiHistory(w http.ResponseWriter, r *http.Request) error {
	f, err := historyFilter(r)
	if err != nil {
		return err
	}
	h, err := s.app.Tuning().History(r.Context(), f)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, h)
}

func historyFilter(r *http.Request) (tuning.HistoryFilter, error) {
	f := tuning.HistoryFilter{Name: r.FormValue("name"), Scope: r.FormValue("scope"), Who: r.FormValue("who"), ChangeID: r.FormValue("change"),
		How: r.FormValue("how"), Outcome: store.Kind(r.FormValue("outcome")), Text: r.FormValue("text")}
	var err error
	for _, bound := range []struct {
		name string
		to   *int64
	}{{"from", &f.From}, {"to", &f.To}} {
		at, err := number(r, bound.name, 0, 1<<62)
		if err != nil {
			return f, err
		}
		*bound.to = int64(at)
	}
	if f.Limit, err = number(r, "limit", 0, 1000); err != nil {
		return f, err
	}
	before, err := number(r, "before", 0, 1<<62)
	f.BeforeSeq = int64(before)
	return f, err
}

// number reads a whole number of an address; absent is 0.
func number(r *http.Request, name string, least, most int) (int, error) {
	v := r.FormValue(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, &statusError{http.StatusUnprocessableEntity, fmt.Sprintf("%s is a whole number from %d to %d", name, least, most)}
	}
	return n, nil
}

func (s *server) apiPing(w http.ResponseWriter, r *http.Request) error {
	var p app.PingRequest
	if err := body(r, &p); err != nil {
		return err
	}
	who, _ := actor(r)
	if p.TimeoutS < 0 || p.TimeoutS > 180 {
		return &statusError{http.StatusUnprocessableEntity, "timeout_s is a number of seconds from 0 to 180"}
	}
	res, err := s.app.Ping(r.Context(), who, p.NID, time.Duration(cmp.Or(p.TimeoutS, 5)*float64(time.Second)))
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, res)
}

func (s *server) apiBundles(w http.ResponseWriter, r *http.Request) error {
	list, err := s.app.Bundles(r.Context())
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, app.BundleList{Bundles: list})
}

func (s *server) apiCreateBundle(w http.ResponseWriter, r *http.Request) error {
	var p app.BundleRequest
	if r.ContentLength != 0 {
		if err := body(r, &p); err != nil {
			return err
		}
	}
	who, _ := actor(r)
	b, err := s.app.CreateBundle(r.Context(), who, p.Redact)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/api/v1/bundles/"+b.ID)
	return s.json(w, http.StatusAccepted, b)
}

func (s *server) apiBundle(w http.ResponseWriter, r *http.Request) error {
	b, err := s.app.Bundle(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, b)
}

func (s *server) apiDeleteBundle(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	if err := s.app.DeleteBundle(r.Context(), who, chi.URLParam(r, "id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) downloadBundle(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "id")
	b, err := s.app.Bundle(r.Context(), id)
	if err != nil {
		return err
	}
	f, err := s.app.OpenBundle(r.Context(), id)
	if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Disposition", `attachment; filename="`+b.Name+`"`)
	http.ServeContent(w, r, b.Name, time.UnixMilli(b.CreatedAt), f)
	return nil
}

func eventFilter(r *http.Request) (app.EventFilter, error) {
	f := app.EventFilter{Kind: r.FormValue("kind"), Severity: r.FormValue("severity"), Peer: r.FormValue("peer"), Text: r.FormValue("text")}
	var err error
	if f.Limit, err = number(r, "limit", 0, 1000); err != nil {
		return f, err
	}
	since, err := number(r, "since", 0, 1<<62)
	if err != nil {
		return f, err
	}
	before, err := number(r, "before", 0, 1<<62)
	f.SinceID, f.BeforeID = int64(since), int64(before)
	return f, err
}

func (s *server) apiEvents(w http.ResponseWriter, r *http.Request) error {
	f, err := eventFilter(r)
	if err != nil {
		return err
	}
	list, err := s.app.Events(r.Context(), f)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, EventList{Events: list})
}

func (s *server) apiAudit(w http.ResponseWriter, r *http.Request) error {
	limit, err := number(r, "limit", 0, 1000)
	if err != nil {
		return err
	}
	list, err := s.app.Audit(r.Context(), app.AuditFilter{Name: r.FormValue("name"), Action: r.FormValue("action"), Limit: limit})
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, AuditList{Audit: list})
}

func (s *server) apiUsers(w http.ResponseWriter, r *http.Request) error {
	list, err := s.app.Accounts(r.Context())
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, app.UserList{Users: list})
}

func (s *server) apiAddUser(w http.ResponseWriter, r *http.Request) error {
	var p app.NewUser
	if err := body(r, &p); err != nil {
		return err
	}
	who, _ := actor(r)
	if err := s.app.CreateAccount(r.Context(), who, p.Name, p.Password, p.Role); err != nil {
		return err
	}
	return s.json(w, http.StatusCreated, UserName{Name: p.Name})
}

func (s *server) apiChangeUser(w http.ResponseWriter, r *http.Request) error {
	var p app.UserChange
	if err := body(r, &p); err != nil {
		return err
	}
	who, _ := actor(r)
	name := chi.URLParam(r, "name")
	if p.Role != nil {
		if err := s.app.SetRole(r.Context(), who, name, *p.Role); err != nil {
			return err
		}
	}
	if p.Password != nil {
		if err := s.app.SetPassword(r.Context(), who, name, *p.Password); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) apiRemoveUser(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	if err := s.app.RemoveAccount(r.Context(), who, chi.URLParam(r, "name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) apiLink(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	u, err := s.app.SignInLink(r.Context(), who, chi.URLParam(r, "name"))
	if err != nil {
		return err
	}
	return s.json(w, http.StatusCreated, app.Link{URL: u})
}

func (s *server) apiToken(w http.ResponseWriter, r *http.Request) error {
	var p app.TokenRequest
	if err := body(r, &p); err != nil {
		return err
	}
	who, _ := actor(r)
	secret, t, err := s.app.NewRoleToken(r.Context(), who, chi.URLParam(r, "name"), p.Label, p.Role, time.Duration(p.TTLS)*time.Second)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusCreated, app.TokenSecret{Secret: secret, Token: t})
}

// live opens the live socket.
func (s *server) live(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	live.Serve(w, r, live.Source{
		Watch: s.app.Watch, WatchEvents: s.app.WatchEvents, Stop: s.app.Stopping(), Frames: &s.frames,
		Events:  s.eventRows,
		Protest: func(text string) { s.app.Protest("socket", from(r), text) },
		Alive: func(ctx context.Context) bool {
			switch who.How {
			case app.HowToken:
				t, err := s.app.CheckToken(ctx, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
				return err == nil && t.Role.Allows(viewer)
			case app.HowPage:
				cookie, err := r.Cookie(cookieName)
				if err != nil {
					return false
				}
				sess, err := s.app.PeekSession(ctx, cookie.Value)
				return err == nil && sess.Role.Allows(viewer)
			}
			return true // the unix socket
		},
	})
	return nil
}

// safeNext is where to go after sign-in: a path of ours, nothing else.
func safeNext(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.Contains(next, `\`) {
		return "/"
	}
	return next
}
