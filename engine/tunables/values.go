package tunables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// GlobalScope is the scope of values that count for every net.
const GlobalScope = "global"

// Scoped names one setting: a tunable in a scope.
type Scoped struct {
	Scope string // GlobalScope, or a net such as "o2ib1"
	Name  string
}

// String is "peer_credits" for a global setting and "o2ib1/peer_credits" for that of a net.
func (s Scoped) String() string {
	if s.Scope == GlobalScope || s.Scope == "" {
		return s.Name
	}
	return s.Scope + "/" + s.Name
}

// ParseScoped reads what String writes; "global/peer_credits" is understood too. It resolves aliases, and
// fails on an unknown name or scope with a *FieldError.
func ParseScoped(s string) (Scoped, error) {
	scope, name, found := strings.Cut(s, "/")
	if !found {
		scope, name = GlobalScope, s
	}
	key, ferr := resolve(Scoped{scope, name})
	if ferr != nil {
		return Scoped{}, ferr
	}
	return key, nil
}

// MarshalText lets Values be a JSON object.
func (s Scoped) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Scoped) UnmarshalText(b []byte) error {
	v, err := ParseScoped(string(b))
	if err == nil {
		*s = v
	}
	return err
}

// Values are the settings that somebody made; what is absent is not set. Values of an unknown tunable or
// scope have no effect; Validate reports them.
type Values map[Scoped]string

// Clone is a copy of v, never nil.
func (v Values) Clone() Values {
	c := make(Values, len(v))
	maps.Copy(c, v)
	return c
}

// Over is v laid over base: v's settings stand before base's.
func (v Values) Over(base Values) Values {
	c := base.Clone()
	maps.Copy(c, v)
	return c
}

// Sorted are the settings of v in the order of the table, global before nets.
func (v Values) Sorted() []Scoped {
	keys := slices.Collect(maps.Keys(v))
	slices.SortFunc(keys, Compare)
	return keys
}

// Compare orders settings: global first, then by net number, each in the order of the table.
func Compare(a, b Scoped) int {
	if a.Scope != b.Scope {
		return cmp.Or(cmp.Compare(netRank(a.Scope), netRank(b.Scope)), strings.Compare(a.Scope, b.Scope))
	}
	return cmp.Or(cmp.Compare(nameRank(a.Name), nameRank(b.Name)), strings.Compare(a.Name, b.Name))
}

// Nets are the nets that v has settings for, by number.
func (v Values) Nets() []string {
	var nets []string
	for _, k := range v.Sorted() {
		if k.Scope != GlobalScope && !slices.Contains(nets, k.Scope) {
			nets = append(nets, k.Scope)
		}
	}
	return nets
}

// Find is the value that counts for name in a net (or GlobalScope), and the scope where it was set; ok is false
// if nobody set it and the default counts.
func (v Values) Find(scope, name string) (value, from string, ok bool) {
	if value, ok = v[Scoped{scope, name}]; ok {
		return value, scope, true
	}
	if value, ok = v[Scoped{GlobalScope, name}]; ok {
		return value, GlobalScope, true
	}
	return "", "", false
}

// CanonicalScope reads a scope: "" and "global" are GlobalScope, "o2ib0" is "o2ib". Its error says what is allowed.
func CanonicalScope(s string) (string, error) {
	if s == "" || s == GlobalScope {
		return GlobalScope, nil
	}
	rest, ok := strings.CutPrefix(s, "o2ib")
	if !ok {
		return "", errScope(s)
	}
	if rest == "" {
		return s, nil
	}
	n, err := strconv.ParseUint(rest, 10, 16)
	if err != nil || rest[0] == '0' && rest != "0" {
		return "", errScope(s)
	}
	if n == 0 {
		return "o2ib", nil
	}
	return s, nil
}

func errScope(s string) error {
	return fmt.Errorf("unknown scope %s; allowed: %s, or a net: o2ib, o2ib1 … o2ib65535", quote(s), GlobalScope)
}

func netRank(scope string) int {
	if scope == GlobalScope {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimPrefix(scope, "o2ib"))
	if err != nil {
		return 0
	}
	return n
}

func nameRank(name string) int {
	if i, ok := byName[name]; ok {
		return i
	}
	return len(All)
}
