package web

import (
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"o2ibd/app"
	"o2ibd/app/tuning"
	"o2ibd/engine/wire"
)

// doc is what an API route takes and answers: values whose types are described.
type doc struct {
	query  []string // parameters of the address
	body   any
	status int // 0: 200
	answer any
	media  string // of an answer that is not JSON
}

var rowsQuery = []string{"filter", "sort", "offset", "limit"}

// queryHelp says what parameters mean, and which are whole numbers.
var queryHelp = map[string]struct {
	help  string
	whole bool
}{
	"filter": {"terms `field op value` with = != < > ~, all of which must hold; a bare word is a part of the NID", false},
	"sort":   {"a field, or -field for the other way round", false},
	"offset": {"rows to leave out", true}, "limit": {"rows at most", true}, "before": {"only what is older than this number", true}, "since": {"only what is newer than this id", true},
	"scope": {"global, or a net such as o2ib1", false}, "from": {"milliseconds since the epoch", true}, "to": {"milliseconds since the epoch", true}, "step": {"milliseconds", true},
	"series": {"name of a series; may be given up to 24 times", false},
}

// EventList is the answer of GET /api/v1/events.
type EventList struct {
	Events []app.Event `json:"events"`
}

// AuditList is the answer of GET /api/v1/audit.
type AuditList struct {
	Audit []app.AuditEntry `json:"audit"`
}

// UserName is the answer of POST /api/v1/users.
type UserName struct {
	Name string `json:"name"`
}

// schemas are the JSON schemas of Go types, by name.
type schemas map[string]any

type object = map[string]any

// of gives the schema of a type, or a reference to it.
func (s schemas) of(t reflect.Type) any {
	switch t {
	case reflect.TypeFor[wire.NID]():
		return object{"type": "string", "description": "a NID such as 10.0.0.1@o2ib"}
	case reflect.TypeFor[tuning.Scalar]():
		return object{"type": []string{"string", "number", "boolean"}}
	case reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case reflect.TypeFor[tuning.Changes]():
		return object{"oneOf": []any{
			object{"type": "array", "items": s.of(reflect.TypeFor[tuning.Change]())},
			object{"type": "object", "additionalProperties": s.orNull(reflect.TypeFor[tuning.Scalar]())},
		}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.orNull(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object{"type": "object"}
		}
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		name := schemaName(t)
		if _, ok := s[name]; !ok {
			s[name] = nil // a type that holds itself ends here
			s[name] = s.fields(t)
		}
		return object{"$ref": "#/components/schemas/" + name}
	}
	return object{}
}

func (s schemas) orNull(t reflect.Type) any {
	inner := s.of(t)
	if o, ok := inner.(object); ok {
		switch typ := o["type"].(type) {
		case string:
			o["type"] = []string{typ, "null"}
			return o
		case []string:
			o["type"] = append(typ, "null")
			return o
		}
	}
	return object{"oneOf": []any{inner, object{"type": "null"}}}
}

// fields describes a struct as encoding/json writes it.
func (s schemas) fields(t reflect.Type) object {
	props, required := object{}, []string{}
	var add func(reflect.Type)
	add = func(t reflect.Type) {
		for f := range t.Fields() {
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous && name == "":
				add(f.Type)
			case name == "" || name == "-" || !f.IsExported():
			default:
				props[name] = s.of(f.Type)
				if !strings.Contains(opts, "omitempty") {
					required = append(required, name)
				}
			}
		}
	}
	add(t)
	return object{"type": "object", "properties": props, "required": required, "additionalProperties": false}
}

var notName = regexp.MustCompile(`[^A-Za-z0-9]+`)

// schemaName names a type: tuning.Result is TuningResult, app.Rows[engine.Peer] is AppRowsPeer.
func schemaName(t reflect.Type) string {
	name := regexp.MustCompile(`\[.*\.`).ReplaceAllString(t.Name(), "[")
	pkg := t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:]
	return strings.ToUpper(pkg[:1]) + pkg[1:] + strings.ReplaceAll(notName.ReplaceAllString(name, " "), " ", "")
}

// openapi describes the API from the table of routes and the types that they take and answer.
func (s *server) openapi(w http.ResponseWriter, _ *http.Request) error {
	return s.json(w, http.StatusOK, describe(s.routes(), s.app.Info().Version))
}

func describe(routes []route, version string) object {
	types, paths := schemas{}, map[string]object{}
	wrong := object{"description": "what went wrong", "content": object{"application/problem+json": object{"schema": types.of(reflect.TypeFor[problem]())}}}
	for _, e := range routes {
		if e.summary == "" {
			continue
		}
		if paths[e.pattern] == nil {
			paths[e.pattern] = object{}
		}
		status, done := "200", object{"description": "done"}
		if e.doc.status != 0 {
			status = strconv.Itoa(e.doc.status)
		}
		switch {
		case e.doc.media != "":
			done["content"] = object{e.doc.media: object{"schema": object{"type": "string"}}}
		case e.doc.answer != nil:
			done["content"] = object{"application/json": object{"schema": types.of(reflect.TypeOf(e.doc.answer))}}
		}
		op := object{"summary": e.summary, "responses": object{status: done, "default": wrong}}
		if params := parameters(e); params != nil {
			op["parameters"] = params
		}
		if e.doc.body != nil {
			op["requestBody"] = object{"content": object{"application/json": object{"schema": types.body(reflect.TypeOf(e.doc.body))}}}
		}
		if e.role != anyone {
			op["description"] = "Needs the role " + string(e.role) + "."
			op["security"] = []any{object{"token": []string{}}, object{"session": []string{}}}
		}
		paths[e.pattern][strings.ToLower(e.method)] = op
	}
	return object{
		"openapi": "3.1.0",
		"info":    object{"title": "o2ibd", "version": version},
		"paths":   paths,
		"components": object{"schemas": types, "securitySchemes": object{
			"token":   object{"type": "http", "scheme": "bearer"},
			"session": object{"type": "apiKey", "in": "cookie", "name": cookieName},
		}},
	}
}

// body is a struct of which everything may be left out.
func (s schemas) body(t reflect.Type) any {
	name := schemaName(t)
	o := s.fields(t)
	delete(o, "required")
	s[name] = o
	return object{"$ref": "#/components/schemas/" + name}
}

func parameters(e route) []any {
	var list []any
	for part := range strings.SplitSeq(e.pattern, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			list = append(list, object{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	for _, name := range e.doc.query {
		q, typ := queryHelp[name], "string"
		if q.whole {
			typ = "integer"
		}
		list = append(list, object{"name": name, "in": "query", "required": false, "description": q.help, "schema": object{"type": typ}})
	}
	return list
}
