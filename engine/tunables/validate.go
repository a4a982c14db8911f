package tunables

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FieldError says what is wrong with one setting and what would be right.
type FieldError struct {
	Scope   string `json:"scope"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	Problem string `json:"problem"` // "1000 is not one of the allowed values"
	Allowed string `json:"allowed"` // "0, 256, 512, 1024, 2048, 4096 bytes"
}

// Error is one line: setting, problem, what is allowed.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s; allowed: %s", Scoped{e.Scope, e.Name}, e.Problem, e.Allowed)
}

// Range is what t takes, in words: "0 … 7 retries".
func (t Tunable) Range() string {
	switch {
	case t.Kind == Enum:
		s := strings.Join(t.Allowed, ", ")
		if t.Unit == "bytes" {
			s += " bytes"
		}
		return s
	case t.Kind == String:
		return fmt.Sprintf("%d … %d printable characters without space and /", t.Min, t.Max)
	case t.Flag():
		return "0 (off) or 1 (on)"
	default:
		return fmt.Sprintf("%d … %d %s", t.Min, t.Max, t.Unit)
	}
}

// Canonical checks one setting by itself and gives it in the form in which it is stored: aliases resolved,
// numbers without sign and zeros, map_on_demand 0 as 1 with a note that says so. The note is nil where the
// value means what was written. The error is a *FieldError.
func Canonical(key Scoped, value string) (Scoped, string, *Note, error) {
	key, ferr := resolve(key)
	if ferr != nil {
		ferr.Value = clip(value)
		return key, "", nil, ferr
	}
	t, _ := Lookup(key.Name)
	canon, problem := t.parse(value)
	if problem != "" {
		return key, "", nil, &FieldError{key.Scope, key.Name, clip(value), problem, t.Range()}
	}
	if key.Name == "map_on_demand" && canon == "0" {
		return key, "1", &Note{key.Scope, key.Name, Adjusted, "map_on_demand 0 → 1: memory is always registered on demand; stored as 1"}, nil
	}
	return key, canon, nil, nil
}

// Validate checks a whole set of values, each by itself and those that depend on one another, for every
// scope. It is empty if an engine can start with them.
func Validate(v Values) []FieldError {
	var errs []FieldError
	for _, key := range v.Sorted() {
		canon, ferr := resolve(key)
		if ferr == nil && canon != key {
			ferr = &FieldError{Scope: key.Scope, Name: key.Name, Problem: "not the name that this is stored by", Allowed: canon.String()}
		}
		if ferr != nil {
			ferr.Value = clip(v[key])
			errs = append(errs, *ferr)
			continue
		}
		t, _ := Lookup(key.Name)
		if _, problem := t.parse(v[key]); problem != "" {
			errs = append(errs, FieldError{key.Scope, key.Name, clip(v[key]), problem, t.Range()})
		}
	}
	if len(errs) > 0 {
		return errs // what depends on one another cannot be judged
	}
	for _, scope := range append([]string{GlobalScope}, v.Nets()...) {
		if e := checkRegions(v, scope); e != nil {
			errs = append(errs, *e)
		}
	}
	return errs
}

// checkRegions is the rule that an NI has at least a region for every fourth transmit descriptor.
func checkRegions(v Values, scope string) *FieldError {
	r := resolver{v, scope}
	ntx, size := r.int("ntx"), r.int("fmr_pool_size")
	if size >= ntx/4 {
		return nil
	}
	// Blame the value that was set nearest; a net without its own is wrong by the global ones.
	name := "fmr_pool_size"
	_, own := v[Scoped{scope, name}]
	_, ownNTX := v[Scoped{scope, "ntx"}]
	switch {
	case scope != GlobalScope && !own && !ownNTX:
		return nil
	case !own && ownNTX:
		name = "ntx"
	}
	value, _, _ := v.Find(scope, name)
	return &FieldError{
		Scope: scope, Name: name, Value: value,
		Problem: fmt.Sprintf("fmr_pool_size %d is less than a quarter of ntx %d, the NI could not start", size, ntx),
		Allowed: fmt.Sprintf("fmr_pool_size of at least %d with this ntx, or ntx of at most %d with this fmr_pool_size", ntx/4, min(4*size+3, 65535)),
	}
}

// resolve finds the canonical scope and name of a setting.
func resolve(key Scoped) (Scoped, *FieldError) {
	scope, err := CanonicalScope(key.Scope)
	if err != nil {
		problem, allowed, _ := strings.Cut(err.Error(), "; allowed: ")
		return key, &FieldError{Scope: clip(key.Scope), Name: clip(key.Name), Problem: problem, Allowed: allowed}
	}
	t, ok := Lookup(key.Name)
	if !ok {
		ferr := &FieldError{Scope: scope, Name: clip(key.Name), Problem: "no such tunable", Allowed: "the names that the tunables table lists"}
		if near := Nearest(key.Name); near != "" {
			ferr.Problem = "no such tunable, did you mean " + near + "?"
		}
		return key, ferr
	}
	if scope != GlobalScope && !t.PerNet {
		return key, &FieldError{Scope: scope, Name: t.Name, Problem: "cannot be set for a single net", Allowed: "scope " + GlobalScope}
	}
	return Scoped{scope, t.Name}, nil
}

// parse gives the canonical text of a value, or what is wrong with it.
func (t Tunable) parse(value string) (canon, problem string) {
	v := strings.TrimSpace(value)
	switch t.Kind {
	case Enum:
		if !slices.Contains(t.Allowed, v) {
			return "", quote(value) + " is not one of the allowed values"
		}
		return v, ""
	case String:
		if int64(len(v)) < t.Min {
			return "", "is empty"
		}
		if int64(len(v)) > t.Max {
			return "", quote(value) + " is too long"
		}
		for i := range len(v) {
			if v[i] <= ' ' || v[i] >= 0x7f || v[i] == '/' {
				return "", quote(value) + " has a character that is not allowed"
			}
		}
		return v, ""
	default:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return "", quote(value) + " is not a whole number"
		}
		if err != nil || n < t.Min || n > t.Max {
			problem = clip(v) + " is out of range"
			if t.Name == "map_on_demand" {
				problem += " (values of old modules are understood on import only)"
			}
			return "", problem
		}
		return strconv.FormatInt(n, 10), ""
	}
}

// quote shows foreign text in a message.
func quote(s string) string { return strconv.Quote(clip(s)) }

// clip makes foreign text fit for a line: printable, and not long.
func clip(s string) string {
	const most = 64
	tail := ""
	if len(s) > most {
		s, tail = s[:most], "…"
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s) + tail
}
