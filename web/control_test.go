package web

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"o2ibd/app"
)

func TestPeerControl(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleOperator)
	peer := s.app.Snapshot().Peers[0]
	at := "/peers/" + url.PathEscape(peer.ID)
	if page := s.ask(http.MethodGet, at, c, nil); !strings.Contains(page.body, "Forget this peer") || !strings.Contains(page.body, "Close its connections") {
		t.Errorf("the peer's page offers neither: %s", page.body)
	}
	if page := s.ask(http.MethodGet, at, s.cookie(app.RoleViewer), nil); strings.Contains(page.body, "Forget this peer") {
		t.Error("a viewer is offered what is not his")
	}
	if a := s.form(at+"/close", c); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), at) {
		t.Errorf("close: %d to %s", a.status, a.header.Get("Location"))
	}
	if a := s.form(at+"/delete", c); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/peers") {
		t.Errorf("delete: %d to %s", a.status, a.header.Get("Location"))
	}
	if a := s.form("/peers/nobody/delete", c); a.status != http.StatusNotFound {
		t.Errorf("delete of nobody: %d", a.status)
	}
	for path, want := range map[string]int{"/api/v1/peers/query": http.StatusOK, "/api/v1/peers/delete": http.StatusNoContent, "/api/v1/conns/close": http.StatusOK} {
		if a := s.json(http.MethodPost, path, c, `{"nid":"`+peer.NID.String()+`"}`); a.status != want {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		if a := s.json(http.MethodPost, path, c, `{"nid":"<script>"}`); a.status != http.StatusUnprocessableEntity || strings.Contains(a.body, "<script>") {
			t.Errorf("%s with a bad NID: %d %s", path, a.status, a.body)
		}
	}
}
