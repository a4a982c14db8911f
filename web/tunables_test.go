package web

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"o2ibd/app"
	"o2ibd/engine/tunables"
)

var changeIDs = regexp.MustCompile(`/tunables/changes/([a-z0-9]+)`)

func (s *site) says(a answer, status int, want ...string) {
	s.t.Helper()
	if a.status != status {
		s.t.Errorf("%d, wanted %d: %.300s", a.status, status, a.body)
	}
	for _, w := range want {
		if !strings.Contains(a.body, w) {
			s.t.Errorf("the page lacks %q", w)
		}
	}
}

// TestTwoOperatorsAtOnce: the second is shown what was seen, what stands and what was typed; saving again
// keeps what the first changed.
func TestTwoOperatorsAtOnce(t *testing.T) {
	s := newSite(t)
	one, two := s.cookie(app.RoleOperator), s.cookie(app.RoleAdmin)
	seen := s.app.Tuning().Tag()
	a := s.form("/tunables", one, "scope", "global", "tag", seen, "keepalive", "60", "was.keepalive", "", "timeout", "70", "was.timeout", "", "reason", "slow links", "do", "save")
	if a.status != http.StatusSeeOther {
		t.Fatalf("the first: %d %s", a.status, a.body)
	}
	// The second had the form open before: keepalive is changed in it, timeout was not touched.
	a = s.form("/tunables", two, "scope", "global", "tag", seen, "keepalive", "90", "was.keepalive", "", "timeout", "", "was.timeout", "", "do", "save")
	s.says(a, http.StatusPreconditionFailed, "Somebody else changed", "You saw", "Stands now", "the-operator", "slow links", `name="keepalive" value="90"`, `name="timeout" value="70"`, `name="was.keepalive" value="60"`)
	a = s.form("/tunables", two, "scope", "global", "tag", s.app.Tuning().Tag(), "keepalive", "90", "was.keepalive", "60", "timeout", "70", "was.timeout", "70", "do", "save")
	if a.status != http.StatusSeeOther {
		t.Fatalf("the second, again: %d", a.status)
	}
	v := s.app.Tuning().Values()
	if v[tunables.Scoped{Scope: "global", Name: "keepalive"}] != "90" || v[tunables.Scoped{Scope: "global", Name: "timeout"}] != "70" {
		t.Errorf("in force: %v", v)
	}
}

// TestConfirmAndRevertForms: a change that must be confirmed stands on every page, is kept or undone by
// plain forms, and all of it can be found in the history.
func TestConfirmAndRevertForms(t *testing.T) {
	s := newSite(t)
	c, looker := s.cookie(app.RoleOperator), s.cookie(app.RoleViewer)
	save := func(name, old, value, within string) string {
		t.Helper()
		a := s.form("/tunables", c, "scope", "global", "tag", s.app.Tuning().Tag(), name, value, "was."+name, old, "reason", "try "+name, "confirm", within, "do", "save")
		if a.status != http.StatusSeeOther {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return changeIDs.FindStringSubmatch(s.ask("GET", "/tunables/history", c, nil).body)[1]
	}
	first := save("keepalive", "", "60", "300")
	s.says(s.ask("GET", "/", looker, nil), 200, first, "is taken back at")
	if strings.Contains(s.ask("GET", "/", looker, nil).body, "Keep it") {
		t.Error("a viewer is offered to confirm")
	}
	s.says(s.ask("GET", "/", c, nil), 200, "Keep it")
	s.says(s.form("/tunables", c, "scope", "global", "timeout", "60", "was.timeout", "", "do", "save"), http.StatusConflict, `value="60"`, "waits to be confirmed")
	if a := s.form("/tunables/changes/"+first+"/confirm", c); a.status != http.StatusSeeOther {
		t.Errorf("confirm: %d %s", a.status, a.body)
	}
	second := save("timeout", "", "70", "")
	s.says(s.ask("GET", "/tunables/changes/"+second, c, nil), 200, "try timeout", "Undo it", "Saving would do this")
	s.says(s.ask("GET", "/tunables/changes/"+second, looker, nil), 200, "try timeout")
	s.says(s.form("/tunables/changes/"+second+"/revert", c, "do", "preview", "reason", "worse"), 200, `value="worse"`, "not set")
	s.says(s.form("/tunables/changes/"+second+"/revert", c, "do", "save", "confirm", "soon"), 422, "number of seconds")
	if a := s.form("/tunables/changes/"+first+"/revert", c, "do", "save", "since", "yes", "reason", "all worse"); a.status != http.StatusSeeOther {
		t.Errorf("revert: %d %s", a.status, a.body)
	}
	if v := s.app.Tuning().Values(); len(v) != 0 {
		t.Errorf("after undoing all: %v", v)
	}
	s.says(s.ask("GET", "/tunables/history?text=all+worse", c, nil), 200, "undoes", "and all after it")
	if body := s.ask("GET", "/tunables/history?text=all+worse", c, nil).body; strings.Contains(body, "try timeout") {
		t.Error("the filter lets everything through")
	}
	s.says(s.ask("GET", "/tunables/history?after=2999-01-01", c, nil), 200, "No change matches")
	s.says(s.ask("GET", "/tunables/history?after=soon", c, nil), 422, "is a day")
	s.says(s.ask("GET", "/tunables/diff?from="+second, c, nil), 200, "keepalive", "timeout", "70")
	s.says(s.ask("GET", "/tunables/diff?from=yesterday", c, nil), 422, `value="yesterday"`, "no point in time")
	s.says(s.ask("GET", "/tunables/changes/none", c, nil), 404, "there is no change")
	s.says(s.form("/tunables/import", c, "text", "options ko2iblnd peer_credits=16\n", "do", "preview"), 200, "peer_credits", "options ko2iblnd peer_credits=16")
	s.says(s.form("/tunables/import", c, "text", "options ko2iblnd peer_credit=16\n", "do", "save"), 422, "did you mean peer_credits", "options ko2iblnd peer_credit=16")
	if a := s.form("/tunables/import", c, "text", "options ko2iblnd peer_credits=16\n", "do", "save"); a.status != http.StatusSeeOther {
		t.Errorf("import: %d %s", a.status, a.body)
	}
}
