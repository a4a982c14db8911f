package live

import (
	"math"
	"reflect"
	"strconv"
)

// MaxRows is the most that one query shows.
const MaxRows = 1000

const (
	defaultLimit = 100
	least        = -math.MaxFloat64
)

// Query is what a viewer wants to see.
type Query struct {
	View   string
	Filter string
	Sort   string
	Offset int
	Limit  int // 0: 100
}

// Row is one row of a view: a struct of the snapshot, which is never written to.
type Row struct {
	Key string
	v   reflect.Value
}

// As gives the struct behind a row, which must be of type T.
func As[T any](r Row) *T { return r.v.Addr().Interface().(*T) }

// MarshalJSON writes the fields.
func (r Row) MarshalJSON() ([]byte, error) { return r.appendJSON(nil), nil }

func (r Row) appendJSON(b []byte) []byte {
	cols := columnsOf(r.v.Type())
	for i, f := range cols.fields {
		b = append(b, "{,"[min(i, 1)])
		b = append(b, cols.quoted[i]...)
		b = appendValue(b, r.v.Field(f))
	}
	return append(b, '}')
}

// Page is what a query gives.
type Page struct {
	Total int
	Rows  []Row
}

// appendFull writes the frame that shows all of a page.
func appendFull(b []byte, id string, seq uint64, p Page) []byte {
	b = appendHead(b, "full", id, seq, p.Total)
	b = append(b, `,"rows":[`...)
	for i, r := range p.Rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.appendJSON(b)
	}
	return append(b, "]}"...)
}

func appendHead(b []byte, op, id string, seq uint64, total int) []byte {
	b = append(b, `{"op":"`...)
	b = append(b, op...)
	b = append(b, `","id":`...)
	b = appendString(b, id)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, `,"total":`...)
	return strconv.AppendInt(b, int64(total), 10)
}

// appendPatch writes the frame that turns old into next: rows that are new as a whole, of others their
// key and the fields that changed, the keys that went, and all keys where their order changed. changed is
// false where the two are the same.
func appendPatch(b []byte, id string, seq uint64, old, next Page) (frame []byte, changed bool) {
	b = appendHead(b, "patch", id, seq, next.Total)
	changed = old.Total != next.Total
	before := make(map[string]reflect.Value, len(old.Rows))
	for _, r := range old.Rows {
		before[r.Key] = r.v
	}
	start := len(b)
	b = append(b, `,"upsert":[`...)
	first := len(b)
	for _, r := range next.Rows {
		o, ok := before[r.Key]
		delete(before, r.Key)
		mark := len(b)
		if mark > first {
			b = append(b, ',')
		}
		b = append(b, `{"key":`...)
		b = appendString(b, r.Key)
		fields := len(b)
		cols := columnsOf(r.v.Type())
		for i, f := range cols.fields {
			v := r.v.Field(f)
			if ok && equal(o.Field(f), v) {
				continue
			}
			b = append(b, ',')
			b = append(b, cols.quoted[i]...)
			b = appendValue(b, v)
		}
		if ok && len(b) == fields {
			b = b[:mark] // as it was
			continue
		}
		b = append(b, '}')
	}
	b, changed = closeList(b, start, first, changed)
	start = len(b)
	b = append(b, `,"remove":[`...)
	first = len(b)
	for _, r := range old.Rows {
		if _, gone := before[r.Key]; gone {
			if len(b) > first {
				b = append(b, ',')
			}
			b = appendString(b, r.Key)
		}
	}
	b, changed = closeList(b, start, first, changed)
	same := len(old.Rows) == len(next.Rows)
	for i := 0; same && i < len(old.Rows); i++ {
		same = old.Rows[i].Key == next.Rows[i].Key
	}
	if !same {
		changed = true
		b = append(b, `,"order":[`...)
		for i, r := range next.Rows {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, r.Key)
		}
		b = append(b, ']')
	}
	return append(b, '}'), changed
}

// closeList ends a list that was opened at start, or takes it away where it is empty.
func closeList(b []byte, start, first int, changed bool) ([]byte, bool) {
	if len(b) == first {
		return b[:start], changed
	}
	return append(b, ']'), true
}
