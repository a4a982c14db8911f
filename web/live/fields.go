// Package live turns snapshots into what a viewer sees: views with filter, sort and range, and, over the
// live socket, patches of what changed. The filter grammar is the same in API, socket, command line and
// addresses.
package live

import (
	"reflect"
	"strings"
	"sync"

	"o2ibd/engine/wire"
)

// columns are the fields of a row type under their JSON names.
type columns struct {
	names  []string
	index  map[string]int // to the struct's field
	fields []int          // where names[i] lies in the struct
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
		c.names = append(c.names, name)
		c.index[name] = i
		c.fields = append(c.fields, i)
	}
	columnCache.Store(t, c)
	return c
}

// value is a field for comparison and JSON: a string, float64, int64, uint64, bool, or nil.
func value(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return value(v.Elem())
	case reflect.String:
		return v.String()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int()
	case reflect.Uint64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		if n, ok := v.Interface().(wire.NID); ok {
			return n.String()
		}
		return v.Uint()
	case reflect.Bool:
		return v.Bool()
	case reflect.Float64, reflect.Float32:
		return v.Float()
	}
	return v.Interface()
}

// number is a value for < and >; ok is false for what is none.
func number(v any) (n float64, ok bool) {
	switch x := v.(type) {
	case int64:
		return float64(x), true
	case uint64:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}
