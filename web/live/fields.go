// Package live turns snapshots into what a viewer sees: views with filter, sort and range, and, over the
// live socket, patches of what changed. The filter grammar is the same in API, socket, command line and
// addresses.
//
// One snapshot serves all viewers: a Frame holds it with what they have in common, the columns that are
// filtered and sorted by and the selections that several of them look at, so that a viewer costs its own
// rows and no more.
package live

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"o2ibd/engine/wire"
)

// columns are the fields of a row type under their JSON names, in the order of the struct.
type columns struct {
	names  []string
	fields []int // where names[i] lies in the struct
	index  map[string]int
	quoted []string // `"name":`
	id     int      // the column of the key
}

var columnCache sync.Map // reflect.Type to *columns

func columnsOf(t reflect.Type) *columns {
	if c, ok := columnCache.Load(t); ok {
		return c.(*columns)
	}
	c := &columns{index: make(map[string]int)}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		c.index[name] = len(c.names)
		if name == "id" {
			c.id = len(c.names)
		}
		c.names = append(c.names, name)
		c.fields = append(c.fields, i)
		c.quoted = append(c.quoted, strconv.Quote(name)+":")
	}
	columnCache.Store(t, c)
	return c
}

var nidType = reflect.TypeFor[wire.NID]()

// text is a field as people type it into a filter; nothing is "".
func text(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
		return text(v.Elem())
	case reflect.String:
		return v.String()
	}
	return strings.Trim(string(appendValue(nil, v)), `"`)
}

// number is a field for comparisons; ok is false for what is none. A NID is none to a filter, and orders
// by network and address.
func number(v reflect.Value) (n float64, ok bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return 0, false
		}
		return number(v.Elem())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return float64(v.Int()), true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return float64(v.Uint()), v.Type() != nidType
	case reflect.Float32, reflect.Float64:
		return v.Float(), true
	}
	return 0, false
}

// equal compares a field of two rows.
func equal(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return equal(a.Elem(), b.Elem())
	case reflect.String:
		return a.String() == b.String()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return a.Uint() == b.Uint()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Float32, reflect.Float64:
		return a.Float() == b.Float()
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// appendValue writes a field as JSON.
func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, "null"...)
		}
		return appendValue(b, v.Elem())
	case reflect.String:
		return appendString(b, v.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if v.Type() == nidType {
			return appendString(b, wire.NID(v.Uint()).String())
		}
		return strconv.AppendUint(b, v.Uint(), 10)
	case reflect.Bool:
		return strconv.AppendBool(b, v.Bool())
	}
	j, err := json.Marshal(v.Interface())
	if err != nil {
		return append(b, "null"...) // a float that JSON has no form for
	}
	return append(b, j...)
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			j, _ := json.Marshal(s) // a string has always a form
			return append(b, j...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
