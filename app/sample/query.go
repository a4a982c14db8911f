package sample

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"o2ibd/store"
)

// Bounds of an answer.
const (
	maxSeriesAsked = 24
	maxPoints      = 2000 // of each series; a step that gives more is raised
	wantedPoints   = 300  // where no step is asked for
	defaultSpan    = 15 * 60 * second
	aheadOfNow     = 3600 * second // that is answered, with gaps; what is asked beyond is cut off
)

// Query asks for samples. Times are ms since the epoch.
type Query struct {
	Series []string
	From   int64 // 0: 15 minutes before To
	To     int64 // 0: now
	Step   int64 // ms; 0: as fine as a chart can show
}

// QueryError says what is wrong with a query, and what is allowed.
type QueryError struct{ Text string }

func (e *QueryError) Error() string { return e.Text }

// Answer has aligned points: At[i] is the beginning of the step that the i-th value of each series covers.
type Answer struct {
	From    int64    `json:"from"` // as used: aligned to the step
	To      int64    `json:"to"`
	Step    int64    `json:"step"` // as used: at least as long as what is kept of that time
	At      []int64  `json:"at"`
	Series  []Points `json:"series"`  // in the order in which they were asked for
	Markers []Marker `json:"markers"` // oldest first
}

// Points are the values of one series; null is a gap.
type Points struct {
	Series
	Avg []*float64 `json:"avg"`
	Min []*float64 `json:"min"`
	Max []*float64 `json:"max"`
}

// Kinds of markers.
const (
	MarkTunables = "tunables"
	MarkPeer     = "peer"
	MarkNI       = "ni"
)

// Marker is something that happened, for the time axis.
type Marker struct {
	At       int64  `json:"at"`
	Kind     string `json:"kind"` // tunables, peer, ni
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Peer     string `json:"peer,omitempty"`
	ChangeID string `json:"change_id,omitempty"`
}

// Query answers q, without markers. The error is a *QueryError or one of reading.
func (s *Sampler) Query(ctx context.Context, q Query, now time.Time) (Answer, error) {
	if len(q.Series) == 0 || len(q.Series) > maxSeriesAsked {
		return Answer{}, &QueryError{fmt.Sprintf("%d series; allowed: 1 to %d", len(q.Series), maxSeriesAsked)}
	}
	var wanted []wantedSeries
	finest := int64(second)
	for _, name := range q.Series {
		source, place, err := parseName(name)
		if err != nil {
			return Answer{}, err
		}
		finest = max(finest, baseOf(source))
		wanted = append(wanted, wantedSeries{source, place})
	}
	res, err := q.settle(finest, now.UnixMilli())
	if err != nil {
		return Answer{}, err
	}
	n := int((q.To - q.From) / q.Step)
	a := Answer{From: q.From, To: q.To, Step: q.Step, At: make([]int64, n), Markers: []Marker{}}
	for i := range a.At {
		a.At[i] = q.From + int64(i)*q.Step
	}
	read, err := s.read(ctx, wanted, res, q.From, q.To)
	if err != nil {
		return Answer{}, err
	}
	for _, w := range wanted {
		stats := coarser(read[w.source][w.place], int(q.Step/res))
		p := Points{Series: seriesOf(w.source)[w.place], Avg: pointers(stats[statAvg]), Min: pointers(stats[statMin]), Max: pointers(stats[statMax])}
		a.Series = append(a.Series, p)
	}
	return a, nil
}

type wantedSeries struct {
	source string
	place  int
}

// settle fills in and aligns q, and gives the resolution to read.
func (q *Query) settle(finest, now int64) (res int64, err error) {
	if q.To == 0 {
		q.To = now
	}
	if q.From == 0 {
		q.From = q.To - defaultSpan
	}
	if q.From < 0 || q.From >= q.To || q.To-q.From > 400*24*3600*second {
		return 0, &QueryError{"from has to be before to, and at most 400 days; both in ms since the epoch"}
	}
	if q.From >= now+aheadOfNow {
		return 0, &QueryError{"from lies in the future"}
	}
	q.To = min(q.To, now+aheadOfNow)
	if q.Step < 0 {
		return 0, &QueryError{"step is a number of ms; 0 for as fine as a chart can show"}
	}
	q.Step = min(q.Step, q.To-q.From) // which also bounds what the alignment below adds
	if q.Step == 0 {
		q.Step = (q.To - q.From) / wantedPoints
	}
	q.Step = max(q.Step, (q.To-q.From)/(maxPoints-2), finest)
	for _, res = range []int64{second, tenSeconds, fiveMin} {
		if res >= finest && q.From >= now-keepFor[res] && (res == fiveMin || q.Step < nextRes(res) || q.Step%nextRes(res) != 0) {
			break
		}
	}
	q.Step = (q.Step + res - 1) / res * res
	q.From = floor(q.From, q.Step)
	q.To = floor(q.To+q.Step-1, q.Step)
	return res, nil
}

func nextRes(res int64) int64 {
	if res == second {
		return tenSeconds
	}
	return fiveMin
}

// read gives the samples of the sources at a resolution, of the metrics that are wanted.
func (s *Sampler) read(ctx context.Context, wanted []wantedSeries, res, from, to int64) (map[string]table, error) {
	tables := map[string]table{}
	var sources []string
	for _, w := range wanted {
		t := tables[w.source]
		if t == nil {
			t = make(table, len(metrics[kindOf(w.source)]))
			tables[w.source] = t
			sources = append(sources, w.source)
		}
		stats := 3
		if res == baseOf(w.source) {
			stats = 1
		}
		t[w.place] = newTable(1, stats, int((to-from)/res))[0]
	}
	// The window first: if it is folded meanwhile, its chunks have it too.
	s.mu.RLock()
	for _, src := range sources {
		if blocks := s.open[src]; blocks != nil {
			place(tables[src], openTable(blocks, baseOf(src), res), s.start, from, res)
		}
	}
	s.mu.RUnlock()
	err := s.store.MetricChunks(ctx, sources, res, floor(from, chunkSpan[res]), to, func(c store.MetricChunk) error {
		t, err := decodeChunk(c.Data)
		if err != nil {
			return fmt.Errorf("chunk of %s at %d: %w", c.Source, c.Start, err)
		}
		place(tables[c.Source], t, c.Start, from, res)
		return nil
	})
	return tables, err
}

// place writes the samples of a chunk that starts at start into a table that starts at from, where that has none.
func place(to, t table, start, from, res int64) {
	for i := range min(len(to), len(t)) {
		for j := range min(len(to[i]), len(t[i])) {
			by := int((start - from) / res)
			for k, v := range t[i][j] {
				if at := by + k; at >= 0 && at < len(to[i][j]) && v == v && to[i][j][at] != to[i][j][at] {
					to[i][j][at] = v
				}
			}
		}
	}
}

func pointers(b block) []*float64 {
	list := make([]*float64, len(b))
	for i, v := range b {
		if v == v {
			f := float64(v)
			list[i] = &f
		}
	}
	return list
}

// Export hands over all samples of a kind at a resolution, newest chunk first for each source, from a time
// on: the source, the moment, and for each metric average, least and most, NaN for a gap. Steps with
// nothing at all are left out.
func (s *Sampler) Export(ctx context.Context, kind string, res, from int64, each func(source string, at int64, values [][3]float64) error) error {
	s.mu.RLock()
	var names []string
	for n := range s.known {
		if kindOf(n) == kind {
			names = append(names, n)
		}
	}
	s.mu.RUnlock()
	slices.Sort(names)
	from = floor(from, res)
	for _, n := range names {
		if res < baseOf(n) {
			continue
		}
		s.mu.RLock()
		to := s.start + window
		s.mu.RUnlock()
		var wanted []wantedSeries
		for place := range metrics[kind] {
			wanted = append(wanted, wantedSeries{n, place})
		}
		tables, err := s.read(ctx, wanted, res, from, to)
		if err != nil {
			return err
		}
		t := tables[n]
		for k := len(t[0][0]) - 1; k >= 0; k-- {
			values, some := make([][3]float64, len(t)), false
			for i := range t {
				for j := range 3 {
					values[i][j] = float64(t[i][min(j, len(t[i])-1)][k])
				}
				some = some || !math.IsNaN(values[i][0])
			}
			if !some {
				continue
			}
			if err := each(n, from+int64(k)*res, values); err != nil {
				return err
			}
		}
	}
	return nil
}

// MetricNames are the names of the metrics of a kind, in the order of Export's values.
func MetricNames(kind string) []string {
	var names []string
	for _, m := range metrics[kind] {
		names = append(names, m.name)
	}
	return names
}
