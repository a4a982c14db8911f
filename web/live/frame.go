package live

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"

	"o2ibd/engine"
)

// Frame is a snapshot with what its viewers have in common. It may be used by any goroutine.
type Frame struct {
	snap  *engine.Snapshot
	mu    sync.Mutex
	views map[string]*view
}

// NewFrame is a frame of s, which must not change any more.
func NewFrame(s *engine.Snapshot) *Frame { return &Frame{snap: s, views: make(map[string]*view)} }

// Frames keeps the frame of the latest snapshot for all who ask.
type Frames struct {
	mu   sync.Mutex
	last *Frame
}

// Of gives the frame of s: the same one until another snapshot comes.
func (f *Frames) Of(s *engine.Snapshot) *Frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil || f.last.snap != s {
		f.last = NewFrame(s)
	}
	return f.last
}

// Select gives the rows that q asks for. Its errors are *Error.
func (f *Frame) Select(q Query) (Page, error) {
	v, err := f.view(q.View)
	if err != nil {
		return Page{}, err
	}
	return v.page(q)
}

func (f *Frame) view(name string) (*view, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.views[name]; v != nil {
		return v, nil
	}
	var list any
	switch name {
	case "peers":
		list = f.snap.Peers
	case "conns":
		list = f.snap.Conns
	case "pools":
		list = f.snap.Pools
	case "nets":
		list = f.snap.Nets
	case "devices":
		list = f.snap.Devices
	case "schedulers":
		list = f.snap.Schedulers
	case "overview":
		list = []Overview{Summarize(f.snap)}
	case "troubles":
		list = Troubles(f.snap)
	default:
		return nil, wrong("unknown view %q; known: peers, conns, pools, nets, devices, schedulers, overview, troubles, events", name)
	}
	v := newView(list)
	f.views[name] = v
	return v, nil
}

// Select gives the rows of s that q asks for. Its errors are *Error.
func Select(s *engine.Snapshot, q Query) (Page, error) { return NewFrame(s).Select(q) }

// SelectRows is Select over a slice of structs with JSON names, one of which is "id".
func SelectRows(list any, q Query) (Page, error) { return newView(list).page(q) }

// view is a list of rows, with columns and selections that were asked for before.
type view struct {
	rows reflect.Value // a slice of structs
	cols *columns

	mu       sync.Mutex
	nums     []*numbers
	strs     [][]string
	orders   map[string][]int32
	selected map[selection][]int32
}

type selection struct{ filter, sort string }

// numbers is a column for comparison.
type numbers struct {
	nums  []float64
	isNum []bool
}

func newView(list any) *view {
	rows := reflect.ValueOf(list)
	cols := columnsOf(rows.Type().Elem())
	return &view{
		rows: rows, cols: cols, nums: make([]*numbers, len(cols.names)), strs: make([][]string, len(cols.names)),
		orders: make(map[string][]int32), selected: make(map[selection][]int32),
	}
}

// page answers a query; what it selects is kept for the next who asks the same.
func (v *view) page(q Query) (Page, error) {
	if q.Offset < 0 || q.Limit < 0 || q.Limit > MaxRows {
		return Page{}, wrong("offset %d, limit %d: offset is 0 or more, limit 0 to %d", q.Offset, q.Limit, MaxRows)
	}
	v.mu.Lock()
	at, err := v.selects(q.Filter, q.Sort)
	v.mu.Unlock()
	if err != nil {
		return Page{}, err
	}
	rest := at[min(q.Offset, len(at)):] // before the limit: the sum of the two may overflow
	rest = rest[:min(cmp.Or(q.Limit, defaultLimit), len(rest))]
	p := Page{Total: len(at), Rows: make([]Row, len(rest))}
	for i, n := range rest {
		row := v.rows.Index(int(n))
		p.Rows[i] = Row{Key: text(row.Field(v.cols.fields[v.cols.id])), v: row}
	}
	return p, nil
}

// selects gives the indices of the rows that a filter lets through, in order.
func (v *view) selects(filter, sort string) ([]int32, error) {
	if at, ok := v.selected[selection{filter, sort}]; ok {
		return at, nil
	}
	f, err := parseFilter(filter, v.cols)
	if err != nil {
		return nil, err
	}
	at, err := v.order(sort)
	if err != nil {
		return nil, err
	}
	if len(f.terms) > 0 {
		var some []int32
		for _, i := range at {
			if f.match(v, int(i)) {
				some = append(some, i)
			}
		}
		at = some
	}
	v.selected[selection{filter, sort}] = at
	return at, nil
}

// order gives the indices of all rows, sorted; equal ones keep their order. Nothing comes first, then
// numbers, then text.
func (v *view) order(sort string) ([]int32, error) {
	if at, ok := v.orders[sort]; ok {
		return at, nil
	}
	at := make([]int32, v.rows.Len())
	for i := range at {
		at[i] = int32(i)
	}
	if sort != "" {
		field, desc, err := parseSort(sort, v.cols)
		if err != nil {
			return nil, err
		}
		c, sign := v.column(field), 1
		if desc {
			sign = -1
		}
		var strs []string
		if slices.Contains(c.isNum, false) && !v.isNID(field) {
			strs = v.texts(field)
		}
		slices.SortFunc(at, func(a, b int32) int {
			n := cmp.Compare(c.nums[a], c.nums[b])
			if strs != nil {
				n = cmp.Or(n, strings.Compare(strs[a], strs[b]))
			}
			return cmp.Or(sign*n, int(a-b))
		})
	}
	v.orders[sort] = at
	return at, nil
}

func (v *view) isNID(field int) bool {
	return v.rows.Type().Elem().Field(v.cols.fields[field]).Type == nidType
}

// column is a field of all rows as numbers; what is none is below all of them.
func (v *view) column(field int) *numbers {
	if v.nums[field] == nil {
		c := &numbers{nums: make([]float64, v.rows.Len()), isNum: make([]bool, v.rows.Len())}
		for i := range c.nums {
			c.nums[i], c.isNum[i] = number(v.rows.Index(i).Field(v.cols.fields[field]))
			if !c.isNum[i] && !v.isNID(field) {
				c.nums[i] = least
			}
		}
		v.nums[field] = c
	}
	return v.nums[field]
}

// texts is a field of all rows as lower-case text.
func (v *view) texts(field int) []string {
	if v.strs[field] == nil {
		s := make([]string, v.rows.Len())
		for i := range s {
			s[i] = strings.ToLower(text(v.rows.Index(i).Field(v.cols.fields[field])))
		}
		v.strs[field] = s
	}
	return v.strs[field]
}
