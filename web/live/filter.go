package live

import (
	"fmt"
	"strconv"
	"strings"
)

// maxFilter bounds a filter's text, in bytes.
const maxFilter = 500

// Filter selects rows: terms of the form `field op value` with = != < > ~ (contains), joined by spaces,
// all of which must hold. A bare word is a part of the NID. Values with spaces stand in double quotes.
type Filter struct {
	terms []term
}

type term struct {
	field int // of columns
	op    string
	text  string
	num   float64
	isNum bool
}

// Error of a filter or a sort, in words for the one who typed it.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

func wrong(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// bare is the field that a bare word looks at: the first of these that a view has.
var bareFields = []string{"nid", "text", "id"}

// parseFilter reads a filter for the rows of one view.
func parseFilter(text string, cols *columns) (*Filter, error) {
	if len(text) > maxFilter {
		return nil, wrong("the filter is longer than %d bytes", maxFilter)
	}
	words, err := split(text)
	if err != nil {
		return nil, err
	}
	f := &Filter{}
	for _, w := range words {
		name, op, val, ok := cut(w)
		t := term{op: op, text: strings.ToLower(val)}
		if !ok {
			t.op, t.text = "~", strings.ToLower(w)
			for _, b := range bareFields {
				if i, ok := cols.index[b]; ok {
					t.field = i
					break
				}
			}
			f.terms = append(f.terms, t)
			continue
		}
		i, known := cols.index[name]
		if !known {
			return nil, wrong("unknown field %q in the filter; known: %s", name, strings.Join(cols.names, ", "))
		}
		t.field = i
		t.num, err = strconv.ParseFloat(val, 64)
		t.isNum = err == nil
		if (op == "<" || op == ">") && !t.isNum {
			return nil, wrong("filter %q: %s compares numbers, and %q is none", w, op, val)
		}
		f.terms = append(f.terms, t)
	}
	return f, nil
}

// split cuts at spaces outside of double quotes.
func split(s string) ([]string, error) {
	var words []string
	var b strings.Builder
	quoted, started := false, false
	for _, r := range s {
		switch {
		case r == '"':
			quoted = !quoted
			started = true
		case r == ' ' && !quoted:
			if started {
				words = append(words, b.String())
				b.Reset()
				started = false
			}
		default:
			b.WriteRune(r)
			started = true
		}
	}
	if quoted {
		return nil, wrong("the filter has a quote that is not closed")
	}
	if started {
		words = append(words, b.String())
	}
	return words, nil
}

// cut finds the operator of a term.
func cut(w string) (name, op, val string, ok bool) {
	i := strings.IndexAny(w, "=!<>~")
	if i <= 0 {
		return "", "", "", false
	}
	name, op, val = w[:i], w[i:i+1], w[i+1:]
	if op == "!" {
		if !strings.HasPrefix(val, "=") {
			return "", "", "", false
		}
		op, val = "!=", val[1:]
	}
	for _, r := range name {
		if r != '_' && (r < 'a' || r > 'z') {
			return "", "", "", false
		}
	}
	return name, op, val, true
}

// match looks at row i.
func (f *Filter) match(v *view, i int) bool {
	for t := range f.terms {
		if !f.terms[t].match(v, i) {
			return false
		}
	}
	return true
}

func (t *term) match(v *view, i int) bool {
	c := v.column(t.field)
	if t.isNum && c.isNum[i] {
		switch n := c.nums[i]; t.op {
		case "=":
			return n == t.num
		case "!=":
			return n != t.num
		case "<":
			return n < t.num
		case ">":
			return n > t.num
		}
	}
	switch s := v.texts(t.field)[i]; t.op {
	case "=":
		return s == t.text
	case "!=":
		return s != t.text
	case "~":
		return strings.Contains(s, t.text)
	}
	return false // < and > of what is no number
}

// parseSort reads "field" or "-field" (descending).
func parseSort(text string, cols *columns) (field int, desc bool, err error) {
	name, desc := strings.CutPrefix(text, "-")
	i, ok := cols.index[name]
	if !ok {
		return 0, false, wrong("cannot sort by %q; known fields: %s", name, strings.Join(cols.names, ", "))
	}
	return i, desc, nil
}
