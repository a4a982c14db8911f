package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"o2ibd/app"
)

// hostile are values that somebody might put anywhere.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' OR 1=1; DROP TABLE accounts; --`, `../../../../etc/passwd`, `..%2f..%2fetc%2fpasswd`,
	"\x00\x01\x7f", "\xff\xfe not UTF-8", `{{.}} ${7*7} {% raw %}`, "line\r\nSet-Cookie: a=b", strings.Repeat("A", 9000), `9223372036854775808`, `-1`, `1e309`, `NaN`, `null`, `[]`, `{"a":{"b":[]}}`, "٣", "\u202eevil",
}

// TestHostileInput puts hostile values into every parameter, form field and API body that there is: the
// answer is never a fault of ours, never has the value as markup, and programs get a problem document.
func TestHostileInput(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleAdmin)
	tag := s.app.Tuning().Tag()
	look := func(what string, a answer, api bool) {
		t.Helper()
		if a.status >= 500 && a.status != http.StatusServiceUnavailable && a.status != http.StatusGatewayTimeout {
			t.Errorf("%s: %d %.200s", what, a.status, a.body)
		}
		if strings.Contains(a.body, "<script>alert") || strings.Contains(a.body, "<img src=x") || a.header.Get("Set-Cookie") != "" && strings.Contains(a.header.Get("Set-Cookie"), "a=b") {
			t.Errorf("%s: markup or a header came through", what)
		}
		if api && a.status >= 400 {
			var p app.Problem
			if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != a.status || p.Detail == "" || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: %d is no problem document: %.200s", what, a.status, a.body)
			}
		}
	}
	fields := []string{"name", "password", "role", "do", "label", "token", "reason", "scope", "tag", "keepalive", "was.keepalive", "nid", "redact", "next", "again", "confirm", "change", "since"}
	params := []string{"filter", "sort", "offset", "limit", "before", "since", "scope", "name", "who", "text", "severity", "peer", "kind", "series", "from", "to", "step", "range", "with", "said", "seal", "next"}
	router := New(Options{App: s.app}).Page.(chi.Router)
	err := chi.Walk(router, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		api := strings.HasPrefix(pattern, "/api/")
		if pattern == "/sign-out" || pattern == "/api/v1/live" || pattern == "/api/v1/users/{name}" && method == http.MethodDelete {
			return nil
		}
		for i, v := range hostile {
			esc := url.PathEscape(v)
			path := strings.NewReplacer("{id}", esc, "{name}", esc, "{index}", esc, "{action}", esc, "{file}", esc).Replace(pattern)
			what := fmt.Sprintf("%s %s with %.40q", method, pattern, v)
			switch {
			case method == http.MethodGet:
				q := url.Values{}
				q.Set(params[i%len(params)], v)
				for _, p := range params {
					q.Set(p, v)
					look(what+" as "+p, s.ask(method, pattern2(pattern)+"?"+url.Values{p: {v}}.Encode(), c, nil), api)
					if i > 2 { // each value in each parameter for three, in all at once for the others
						break
					}
				}
				look(what+" in all", s.ask(method, path+"?"+q.Encode(), c, nil), api)
			case api:
				j, _ := json.Marshal(v)
				for _, body := range []string{v, string(j), `{"changes":{` + string(j) + `:` + string(j) + `},"reason":` + string(j) + `}`, `{"nid":` + string(j) + `,"timeout_s":1}`, `{"name":` + string(j) + `,"password":` + string(j) + `,"role":` + string(j) + `}`, `{"label":` + string(j) + `,"ttl_s":` + string(j) + `}`, `{"surprise":1}`} {
					if strings.HasSuffix(pattern, "/bundles") {
						body = v
					}
					look(what, s.json(method, path, c, body), true)
				}
			default:
				values := []string{}
				for _, f := range fields {
					values = append(values, f, v)
				}
				look(what, s.form(path, c, values...), false)
			}
		}
		big := strings.Repeat("x", 2<<20)
		switch {
		case method == http.MethodGet || method == http.MethodDelete:
		case api:
			look(method+" "+pattern+" with 2 MiB", s.json(method, pattern2(pattern), c, `{"reason":"`+big+`"}`), true)
		default:
			look(method+" "+pattern+" with 2 MiB", s.form(pattern2(pattern), c, "name", big), false)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if s.app.Tuning().Tag() != tag {
		t.Errorf("hostile input changed tunables: %v", s.app.Tuning().Values())
	}
	list, err := s.app.Accounts(t.Context())
	if err != nil || len(list) != 3+1 && len(list) != 3 {
		t.Errorf("accounts afterwards: %+v %v", list, err)
	}
}

// pattern2 is a route's pattern with ids that there are none of.
func pattern2(pattern string) string {
	return strings.NewReplacer("{id}", "none", "{name}", "none", "{index}", "9", "{action}", "stop", "{file}", "none").Replace(pattern)
}
