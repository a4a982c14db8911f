package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"o2ibd/app"
)

// document is the part of an OpenAPI document that the tests hold against answers.
type document struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]any }
}

type operation struct {
	Parameters []struct{ Name, In string }
	Responses  map[string]struct {
		Content map[string]struct{ Schema any }
	}
	RequestBody struct {
		Content map[string]struct{ Schema any }
	}
}

func (s *site) document() document {
	var d document
	if err := json.Unmarshal([]byte(s.ask("GET", "/api/v1/openapi.json", nil, nil).body), &d); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// check says where v is not what schema describes; "" is nowhere.
func (d *document) check(schema, v any, at string) string {
	s, ok := schema.(map[string]any)
	if !ok {
		return fmt.Sprintf("%s: there is no schema", at)
	}
	if ref, ok := s["$ref"].(string); ok {
		return d.check(d.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")], v, at)
	}
	if list, ok := s["oneOf"].([]any); ok {
		why := ""
		for _, x := range list {
			if why = d.check(x, v, at); why == "" {
				return ""
			}
		}
		return why
	}
	types := []any{s["type"]}
	if list, ok := s["type"].([]any); ok {
		types = list
	}
	if s["type"] != nil && !slices.Contains(types, any(typeOf(v))) && !(typeOf(v) == "integer" && slices.Contains(types, any("number"))) {
		return fmt.Sprintf("%s is %s, described is %v", at, typeOf(v), types)
	}
	switch x := v.(type) {
	case []any:
		for i, e := range x {
			if why := d.check(s["items"], e, at+"["+strconv.Itoa(i)+"]"); why != "" {
				return why
			}
		}
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := x[name.(string)]; !ok {
				return fmt.Sprintf("%s lacks %v", at, name)
			}
		}
		for name, e := range x {
			sub, ok := props[name]
			if !ok {
				if sub = s["additionalProperties"]; sub == false {
					return fmt.Sprintf("%s has %s, which is not described", at, name)
				} else if sub == nil {
					continue
				}
			}
			if why := d.check(sub, e, at+"."+name); why != "" {
				return why
			}
		}
	}
	return ""
}

func typeOf(v any) string {
	switch x := v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if x == math.Trunc(x) {
			return "integer"
		}
	}
	return "number"
}

// TestOpenAPIHoldsEveryAPIRoute: each route is described, and nothing that is none.
func TestOpenAPIHoldsEveryAPIRoute(t *testing.T) {
	s := newSite(t)
	d := s.document()
	described := 0
	for key := range least {
		method, path, _ := strings.Cut(key, " ")
		if !strings.HasPrefix(path, "/api/") && path != "/metrics" && path != "/healthz" && path != "/readyz" {
			continue
		}
		op, ok := d.Paths[path][strings.ToLower(method)]
		if !ok {
			t.Errorf("%s is not in the OpenAPI document", key)
			continue
		}
		described++
		if want := strings.Count(path, "{"); want > len(op.Parameters) {
			t.Errorf("%s: %d parameters are described, its path has %d", key, len(op.Parameters), want)
		}
		if len(op.Responses) < 2 {
			t.Errorf("%s: answers %v", key, op.Responses)
		}
	}
	for path, ops := range d.Paths {
		described -= len(ops)
		if path == "" {
			t.Error("an empty path")
		}
	}
	if described != 0 {
		t.Errorf("%d more operations are described than there are routes", -described)
	}
}

// TestAnswersAreAsDescribed asks every API route, well and badly, and holds the answers against the
// document.
func TestAnswersAreAsDescribed(t *testing.T) {
	s := newSite(t)
	d := s.document()
	c := s.cookie(app.RoleAdmin)
	asked := map[string]bool{}
	ask := func(method, pattern, path, body string) answer {
		t.Helper()
		a := s.json(method, path, c, body)
		op := d.Paths[pattern][strings.ToLower(method)]
		asked[method+" "+pattern] = true
		status := strconv.Itoa(a.status)
		if a.status >= 400 {
			status = "default"
		}
		r, ok := op.Responses[status]
		if !ok {
			t.Errorf("%s %s answers %d, which is not described: %s", method, path, a.status, a.body)
			return a
		}
		media, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
		content, ok := r.Content[media]
		switch {
		case len(r.Content) == 0 && a.body == "":
		case !ok:
			t.Errorf("%s %s answers %d with %s, which is not described", method, path, a.status, media)
		case strings.HasSuffix(media, "json"):
			var v any
			if err := json.Unmarshal([]byte(a.body), &v); err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			} else if why := d.check(content.Schema, v, method+" "+path); why != "" {
				t.Error(why)
			}
		}
		if body != "" && a.status < 400 {
			var v any
			if err := json.Unmarshal([]byte(body), &v); err == nil {
				if why := d.check(op.RequestBody.Content["application/json"].Schema, v, "body of "+method+" "+path); why != "" {
					t.Error(why)
				}
			}
		}
		return a
	}
	for _, view := range []string{"nets", "devices", "peers", "conns", "pools"} {
		ask("GET", "/api/v1/"+view, "/api/v1/"+view+"?limit=3", "")
		ask("GET", "/api/v1/"+view, "/api/v1/"+view+"?sort=nonsense", "")
	}
	ask("GET", "/api/v1/openapi.json", "/api/v1/openapi.json", "")
	ask("GET", "/api/v1/snapshot", "/api/v1/snapshot", "")
	ask("GET", "/healthz", "/healthz", "")
	ask("GET", "/readyz", "/readyz", "")
	ask("GET", "/metrics", "/metrics", "")
	ask("GET", "/api/v1/tunables", "/api/v1/tunables?scope=o2ib", "")
	ask("PATCH", "/api/v1/tunables", "/api/v1/tunables", `{"changes":{"keepalive":60,"o2ib/peer_credits":16},"reason":"test"}`)
	ask("PATCH", "/api/v1/tunables", "/api/v1/tunables", `{"changes":[{"scope":"global","name":"keepalive","value":null}],"dry_run":true}`)
	ask("PATCH", "/api/v1/tunables", "/api/v1/tunables", `{"changes":{"keepalive":"x"}}`)
	if a := s.json("PATCH", "/api/v1/tunables", c, `{"changes":{"keepalive":70}}`, "If-Match", `"old"`); a.status != 412 {
		t.Errorf("an old tag: %d", a.status)
	} else {
		var v any
		if err := json.Unmarshal([]byte(a.body), &v); err != nil {
			t.Error(err)
		} else if why := d.check(d.Paths["/api/v1/tunables"]["patch"].Responses["default"].Content["application/problem+json"].Schema, v, "conflict"); why != "" {
			t.Error(why)
		}
	}
	ask("GET", "/api/v1/tunables/history", "/api/v1/tunables/history?limit=10", "")
	var res struct {
		ID string `json:"change_id"`
	}
	if err := json.Unmarshal([]byte(ask("PATCH", "/api/v1/tunables", "/api/v1/tunables", `{"changes":{"timeout":60},"confirm_within_s":60}`).body), &res); err != nil {
		t.Fatal(err)
	}
	change := "/api/v1/tunables/changes/"
	ask("GET", "/api/v1/tunables", "/api/v1/tunables", "")
	ask("GET", "/api/v1/tunables/history", "/api/v1/tunables/history?who=the-admin", "")
	ask("PATCH", "/api/v1/tunables", "/api/v1/tunables", `{"changes":{"keepalive":70}}`)
	ask("POST", change+"{id}/confirm", change+res.ID+"/confirm", "")
	ask("POST", change+"{id}/revert", change+res.ID+"/revert", `{"since":false,"reason":"test"}`)
	ask("POST", change+"{id}/revert", change+"none/revert", "")
	ask("POST", "/api/v1/tunables/import", "/api/v1/tunables/import", `{"text":"options ko2iblnd peer_credits=32","dry_run":true}`)
	ask("GET", "/api/v1/tunables/export", "/api/v1/tunables/export?format=modprobe", "")
	ask("GET", "/api/v1/tunables/diff", "/api/v1/tunables/diff?from=defaults", "")
	ask("GET", "/api/v1/tunables/verify", "/api/v1/tunables/verify", "")
	ask("GET", "/api/v1/tunables/progress", "/api/v1/tunables/progress", "")
	ask("POST", "/api/v1/ping", "/api/v1/ping", `{"nid":"10.0.0.2@o2ib","timeout_s":1}`)
	ask("POST", "/api/v1/ping", "/api/v1/ping", `{"nid":"10.0.0.9@o2ib"}`)
	ask("GET", "/api/v1/peers/{id}/messages", "/api/v1/peers/a/messages", "")
	ask("GET", "/api/v1/peers/{id}/messages", "/api/v1/peers/nobody/messages", "")
	ask("POST", "/api/v1/peers/query", "/api/v1/peers/query", `{"nid":"10.0.0.2@o2ib"}`)
	ask("POST", "/api/v1/conns/close", "/api/v1/conns/close", `{"nid":"*"}`)
	ask("POST", "/api/v1/peers/delete", "/api/v1/peers/delete", `{"nid":"10.0.0.2@o2ib","ni":"10.0.0.1@o2ib"}`)
	ask("POST", "/api/v1/peers/delete", "/api/v1/peers/delete", `{"nid":"nobody"}`)
	var b app.Bundle
	if err := json.Unmarshal([]byte(ask("POST", "/api/v1/bundles", "/api/v1/bundles", `{"redact":true}`).body), &b); err != nil {
		t.Fatal(err)
	}
	for b.State == app.BundleRunning {
		if err := json.Unmarshal([]byte(ask("GET", "/api/v1/bundles/{id}", "/api/v1/bundles/"+b.ID, "").body), &b); err != nil {
			t.Fatal(err)
		}
	}
	ask("GET", "/api/v1/bundles", "/api/v1/bundles", "")
	ask("GET", "/api/v1/bundles/{id}/download", "/api/v1/bundles/"+b.ID+"/download", "")
	ask("DELETE", "/api/v1/bundles/{id}", "/api/v1/bundles/"+b.ID, "")
	ask("GET", "/api/v1/bundles/{id}", "/api/v1/bundles/"+b.ID, "")
	ask("GET", "/api/v1/events", "/api/v1/events?limit=5", "")
	ask("GET", "/api/v1/history", "/api/v1/history?series=total/send_msgs&series=peer/a/credits", "")
	ask("GET", "/api/v1/history", "/api/v1/history?series=nonsense", "")
	ask("GET", "/api/v1/history/series", "/api/v1/history/series", "")
	ask("GET", "/api/v1/audit", "/api/v1/audit?limit=5", "")
	ask("POST", "/api/v1/users", "/api/v1/users", `{"name":"new","password":"long enough","role":"viewer"}`)
	ask("GET", "/api/v1/users", "/api/v1/users", "")
	ask("PATCH", "/api/v1/users/{name}", "/api/v1/users/new", `{"role":"operator"}`)
	ask("POST", "/api/v1/users/{name}/links", "/api/v1/users/new/links", "")
	ask("POST", "/api/v1/users/{name}/tokens", "/api/v1/users/new/tokens", `{"label":"test","ttl_s":60}`)
	ask("DELETE", "/api/v1/users/{name}", "/api/v1/users/new", "")
	for path, ops := range d.Paths {
		for method := range ops {
			key := strings.ToUpper(method) + " " + path
			if !asked[key] && key != http.MethodGet+" /api/v1/live" {
				t.Errorf("%s was not asked: hold it against the document here", key)
			}
		}
	}
}
