package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

// tunablesForm is the form as it is shown: what stands, and what was typed where that was not saved.
type tunablesForm struct {
	Scope  string
	Nets   []string
	Tag    string
	Groups []tunableGroup
	Status int
	saving
}

type tunableGroup struct {
	Name string
	Rows []tunableField
}

type tunableField struct {
	tuning.Row
	Typed string
	Error string
	Clash *tuning.Conflict // somebody else changed what was typed here
}

// saving is the part that every form has which changes tunables: what was asked for and what came of it.
type saving struct {
	Reason  string
	Within  string   // seconds to confirm in, "" none
	Errors  []string // that belong to no field
	Wrong   []string // fields that have an error
	Backset bool     // the clock stands before the last change: it has to be said that it is right
	Clash   *tuning.ConflictError
	Done    *tuning.Result
}

// withins are the times that a form offers to confirm a change in, in seconds.
var withins = []struct{ value, text string }{{"", "it stays at once"}, {"60", "1 minute"}, {"120", "2 minutes"}, {"300", "5 minutes"}, {"600", "10 minutes"}, {"1800", "30 minutes"}}

// read takes the common fields of a posted form.
func (f *saving) read(r *http.Request) (within time.Duration, clockIsRight bool) {
	f.Reason, f.Within = r.PostForm.Get("reason"), r.PostForm.Get("confirm")
	n, err := strconv.ParseFloat(f.Within, 64)
	if f.Within != "" && (err != nil || !(n > 0 && n <= 1e6)) {
		f.Errors = append(f.Errors, "The time to confirm in is a number of seconds.")
	}
	return time.Duration(n * float64(time.Second)), r.PostForm.Get("clock") != ""
}

// outcome sorts an error of a change into the form, and gives the status to answer with.
func (f *saving) outcome(err error) int {
	var invalid *tuning.InvalidError
	switch {
	case errors.As(err, &invalid):
		for _, e := range invalid.Fields {
			f.Errors = append(f.Errors, e.Error())
		}
	case errors.As(err, &f.Clash):
	case errors.Is(err, tuning.ErrNothing):
		f.Errors = append(f.Errors, "Nothing was changed in the form.")
	default:
		f.Backset = errors.Is(err, tuning.ErrClock)
		f.Errors = append(f.Errors, err.Error())
	}
	return statusOf(err)
}

func (s *server) tunablesForm(scope string) (*tunablesForm, error) {
	if scope == "" {
		scope = tunables.GlobalScope
	}
	t, err := s.app.Tuning().Show(scope)
	if err != nil {
		return nil, &statusError{http.StatusUnprocessableEntity, err.Error()}
	}
	f := &tunablesForm{Scope: scope, Tag: t.Tag, Status: http.StatusOK}
	for _, n := range s.app.Snapshot().Nets {
		if !slices.Contains(f.Nets, n.Net) {
			f.Nets = append(f.Nets, n.Net)
		}
	}
	for _, row := range t.Tunables {
		if row.Scope != scope {
			continue
		}
		name := string(row.Group)
		if len(f.Groups) == 0 || f.Groups[len(f.Groups)-1].Name != name {
			f.Groups = append(f.Groups, tunableGroup{Name: name})
		}
		g := &f.Groups[len(f.Groups)-1]
		g.Rows = append(g.Rows, tunableField{Row: row, Typed: wasText(row)})
	}
	return f, nil
}

// wasText is what a field shows of the value that is set; "" is not set.
func wasText(r tuning.Row) string {
	if r.Value == nil {
		return ""
	}
	return string(*r.Value)
}

func (f *tunablesForm) fields(do func(*tunableField)) {
	for g := range f.Groups {
		for i := range f.Groups[g].Rows {
			do(&f.Groups[g].Rows[i])
		}
	}
}

func (s *server) tunablesPage(w http.ResponseWriter, r *http.Request) error {
	f, err := s.tunablesForm(r.FormValue("scope"))
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, tunablesEdit(s.frame(r, "Tunables"), f))
	return nil
}

// changeTunables takes the form: what differs from what the form showed is the change; an empty field
// unsets. A field that was not touched follows what stands now, whoever changed it.
func (s *server) changeTunables(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	f, err := s.tunablesForm(r.PostForm.Get("scope"))
	if err != nil {
		return err
	}
	req := tuning.Request{IfMatch: r.PostForm.Get("tag"), DryRun: r.PostForm.Get("do") == "preview"}
	req.ConfirmWithin, req.ClockIsRight = f.read(r)
	req.Reason = f.Reason
	f.fields(func(row *tunableField) {
		typed := strings.TrimSpace(r.PostForm.Get(row.Name))
		if !r.PostForm.Has(row.Name) || typed == r.PostForm.Get("was."+row.Name) {
			return
		}
		row.Typed = typed
		c := tuning.Change{Scope: f.Scope, Name: row.Name}
		if typed != "" {
			c.Value = tuning.NewScalar(typed)
		}
		req.Changes = append(req.Changes, c)
	})
	who, _ := actor(r)
	var res tuning.Result
	switch {
	case len(f.Errors) > 0:
		f.Status = http.StatusUnprocessableEntity
		s.render(w, r, f.Status, tunablesEdit(s.frame(r, "Tunables"), f))
		return nil
	case len(req.Changes) == 0:
		err = tuning.ErrNothing
	default:
		res, err = s.app.ChangeTunables(r.Context(), who, req)
	}
	var invalid *tuning.InvalidError
	switch {
	case err == nil && !req.DryRun:
		return s.back(w, r, "/tunables/history", saved(res))
	case err == nil:
		f.Done = &res
	case errors.As(err, &invalid):
		f.Status = http.StatusUnprocessableEntity
		f.place(invalid.Fields)
	default:
		f.Status = f.outcome(err)
		f.placeClash()
	}
	s.render(w, r, f.Status, tunablesEdit(s.frame(r, "Tunables"), f))
	return nil
}

func formError(err error) error {
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		return err
	}
	return &statusError{http.StatusBadRequest, "the form is malformed"}
}

// saved says what a change did.
func saved(res tuning.Result) string {
	if res.ChangeID == "" {
		return "Saved. Nothing had to change."
	}
	said := fmt.Sprintf("Saved as change %s: %s.", res.ChangeID, changedNames(res.Changed))
	if res.Pending != nil {
		said += fmt.Sprintf(" It is taken back at %s unless it is confirmed.", time.UnixMilli(res.Pending.ConfirmBy).Format(time.TimeOnly))
	}
	return said
}

// place puts errors beside their fields.
func (f *tunablesForm) place(errs []tunables.FieldError) {
	for _, e := range errs {
		placed := false
		f.fields(func(row *tunableField) {
			if row.Name == e.Name && row.Scope == e.Scope {
				row.Error = e.Problem + ". Allowed: " + e.Allowed + "."
				placed = true
				f.Wrong = append(f.Wrong, e.Name)
			}
		})
		if !placed {
			f.Errors = append(f.Errors, e.Error())
		}
	}
	f.Errors = append(f.Errors, "Nothing was changed: the old values stand.")
}

// placeClash puts what somebody else changed beside the fields.
func (f *tunablesForm) placeClash() {
	if f.Clash == nil {
		return
	}
	for i := range f.Clash.Clashes {
		c := &f.Clash.Clashes[i]
		f.fields(func(row *tunableField) {
			if row.Name == c.Name && row.Scope == c.Scope && c.Touched {
				row.Clash = c
			}
		})
	}
}

func changedNames(list []tuning.Changed) string {
	var names []string
	for _, c := range list {
		names = append(names, tunables.Scoped{Scope: c.Scope, Name: c.Name}.String())
	}
	return strings.Join(names, ", ")
}

// historyChange is one change with its settings.
type historyChange struct {
	tuning.HistoryRow
	Settings []tuning.HistoryRow
}

// grouped puts the settings of a change together.
func grouped(rows []tuning.HistoryRow) []historyChange {
	var list []historyChange
	for _, h := range rows {
		if n := len(list); n == 0 || list[n-1].ChangeID != h.ChangeID {
			list = append(list, historyChange{HistoryRow: h})
		}
		last := &list[len(list)-1]
		last.Settings = append(last.Settings, h)
	}
	return list
}

// historyQuery is the filter of the history page, as typed.
type historyQuery struct {
	tuning.HistoryFilter
	After, Until string // days
	Older        url.Values
}

// days reads the days of a form, the last of which is meant as a whole.
func days(r *http.Request, from, to *int64) error {
	for _, bound := range []struct {
		name string
		to   *int64
		more int
	}{{"after", from, 0}, {"until", to, 1}} {
		typed := r.FormValue(bound.name)
		if typed == "" {
			continue
		}
		at, err := time.ParseInLocation(time.DateOnly, typed, time.Local)
		if err != nil {
			return &statusError{http.StatusUnprocessableEntity, bound.name + " is a day such as 2026-12-31"}
		}
		*bound.to = at.AddDate(0, 0, bound.more).UnixMilli()
	}
	return nil
}

func (s *server) historyPage(w http.ResponseWriter, r *http.Request) error {
	f, err := historyFilter(r)
	if err != nil {
		return err
	}
	q := historyQuery{HistoryFilter: f, After: r.FormValue("after"), Until: r.FormValue("until"), Older: r.URL.Query()}
	if err := days(r, &q.From, &q.To); err != nil {
		return err
	}
	h, err := s.app.Tuning().History(r.Context(), q.HistoryFilter)
	if err != nil {
		return err
	}
	for _, name := range []string{"said", "seal"} {
		q.Older.Del(name)
	}
	s.render(w, r, http.StatusOK, historyList(s.frame(r, "History of tunables"), q, grouped(h.Changes)))
	return nil
}

func (s *server) diffPage(w http.ResponseWriter, r *http.Request) error {
	from, to := r.FormValue("from"), r.FormValue("to")
	d, err := s.app.Tuning().Diff(r.Context(), from, to)
	status, text := http.StatusOK, ""
	if err != nil {
		if status = statusOf(err); status >= 500 {
			return err
		}
		text = err.Error()
	}
	s.render(w, r, status, diffList(s.frame(r, "Compare tunables"), from, to, d, text))
	return nil
}

// changePage shows one change and, to those who may, what undoing it would do.
func (s *server) changePage(w http.ResponseWriter, r *http.Request) error {
	return s.showChange(w, r, http.StatusOK, &saving{}, r.FormValue("since") != "")
}

func (s *server) showChange(w http.ResponseWriter, r *http.Request, status int, f *saving, since bool) error {
	id := chi.URLParam(r, "id")
	h, err := s.app.Tuning().History(r.Context(), tuning.HistoryFilter{ChangeID: id})
	if err != nil {
		return err
	}
	list := grouped(h.Changes)
	if len(list) == 0 {
		return &statusError{http.StatusNotFound, "there is no change " + clip(id)}
	}
	who, _ := actor(r)
	if f.Done == nil && len(f.Errors) == 0 && who.Role.Allows(operator) {
		// A dry run says what undoing it would do, or why it cannot be undone.
		res, err := s.app.RevertChange(r.Context(), who, tuning.RevertRequest{ChangeID: id, Since: since, DryRun: true})
		if err == nil {
			f.Done = &res
		} else {
			f.Errors = append(f.Errors, err.Error())
		}
	}
	s.render(w, r, status, changeDetail(s.frame(r, "Change "+id), list[0], f, since, s.app.Tuning().Tag()))
	return nil
}

func (s *server) revertForm(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	var f saving
	req := tuning.RevertRequest{ChangeID: chi.URLParam(r, "id"), Since: r.PostForm.Get("since") != "", IfMatch: r.PostForm.Get("tag"), DryRun: r.PostForm.Get("do") == "preview"}
	req.ConfirmWithin, req.ClockIsRight = f.read(r)
	req.Reason = f.Reason
	if len(f.Errors) > 0 {
		return s.showChange(w, r, http.StatusUnprocessableEntity, &f, req.Since)
	}
	who, _ := actor(r)
	res, err := s.app.RevertChange(r.Context(), who, req)
	switch {
	case err != nil:
		status := f.outcome(err)
		if f.Clash != nil {
			f.Errors = append(f.Errors, err.Error())
		}
		return s.showChange(w, r, status, &f, req.Since)
	case req.DryRun:
		f.Done = &res
		return s.showChange(w, r, http.StatusOK, &f, req.Since)
	}
	return s.back(w, r, "/tunables/history", saved(res))
}

func (s *server) confirmForm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	id := chi.URLParam(r, "id")
	if _, err := s.app.ConfirmChange(r.Context(), who, id); err != nil {
		return err
	}
	return s.back(w, r, "/tunables/history", "Change "+id+" stays.")
}

func (s *server) importPage(w http.ResponseWriter, r *http.Request) error {
	s.render(w, r, http.StatusOK, importText(s.frame(r, "Import and export tunables"), "", s.app.Tuning().Tag(), &saving{}))
	return nil
}

func (s *server) importForm(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return formError(err)
	}
	var f saving
	req := tuning.ImportRequest{Text: r.PostForm.Get("text"), IfMatch: r.PostForm.Get("tag"), DryRun: r.PostForm.Get("do") == "preview"}
	req.ConfirmWithin, req.ClockIsRight = f.read(r)
	req.Reason = f.Reason
	status := http.StatusUnprocessableEntity
	if len(f.Errors) == 0 {
		who, _ := actor(r)
		res, err := s.app.ImportTunables(r.Context(), who, req)
		switch {
		case err != nil:
			status = f.outcome(err)
			if f.Clash != nil {
				f.Errors = append(f.Errors, err.Error())
			}
		case req.DryRun:
			status, f.Done = http.StatusOK, &res
		default:
			return s.back(w, r, "/tunables/history", saved(res))
		}
	}
	s.render(w, r, status, importText(s.frame(r, "Import and export tunables"), req.Text, s.app.Tuning().Tag(), &f))
	return nil
}
