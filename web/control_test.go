package web

import (
	"encoding/json"
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

// TestLastMessages: the API and the page tell what was said last on each connection.
func TestLastMessages(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleViewer)
	peers := s.app.Snapshot().Peers
	at := "/peers/" + url.PathEscape(peers[0].ID)
	a := s.ask(http.MethodGet, "/api/v1"+at+"/messages", c, nil)
	var m app.Messages
	if err := json.Unmarshal([]byte(a.body), &m); err != nil || a.status != http.StatusOK || m.Peer != peers[0].ID || len(m.Conns) != 2 || m.Conns[0].Messages[0].MatchBits != "0x1f" {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if strings.Contains(a.body, `"status":null`) {
		t.Errorf("a type has what it has not: %s", a.body)
	}
	page := s.ask(http.MethodGet, at, c, nil).body
	_, page, _ = strings.Cut(page, `id="messages"`)
	last := -1
	for _, want := range []string{
		"Connection 4,", ">NOOP<", "nothing but credits", ">PUT_DONE<", "failed: connection timed out (ETIMEDOUT), cookie 0x78", "100000 bytes go here, fragments: 1",
		"Connection 3,", "did not say where its data should go", "LNet PUT, 100000 bytes of data, portal 4, match 0x1f, cookie 0x77",
	} {
		i := strings.Index(page, want)
		if i <= last {
			t.Errorf("%q is not in its place on the page", want)
		}
		last = i
	}
	if page := s.ask(http.MethodGet, "/peers/"+url.PathEscape(peers[1].ID), c, nil); !strings.Contains(page.body, "Nothing was said yet") {
		t.Error("a peer without messages is not told from one with")
	}
	if a := s.ask(http.MethodGet, "/api/v1/peers/nobody/messages", c, nil); a.status != http.StatusNotFound {
		t.Errorf("messages with nobody: %d", a.status)
	}
}
