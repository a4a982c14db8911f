// Package sample turns engine snapshots into metric history: what NIs, pools, schedulers and the whole node
// did in each second of the last hour, each ten seconds of the last day and each five minutes of the last
// 90 days, and the same from ten seconds on for at most 512 peers.
//
// A Sampler belongs to the goroutine that calls Add, once a second; everything else may be called by
// anybody. What was sampled since the last full five minutes is in memory, and in the store's tail as soon
// as Add returns, so the end of the process loses nothing but the second that runs. Then it is folded into
// chunks, a row a source and five minutes (four hours for the coarsest), and rows that are too old go. A
// source is one NI, pool, scheduler, peer or the total; a row holds all of its metrics, so that a peer costs
// one row and not ten.
//
// Where nothing was sampled there is a gap, never a zero.
package sample

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"o2ibd/engine"
	"o2ibd/store"
)

// Resolutions, in ms.
const (
	second     = 1000
	tenSeconds = 10 * second
	fiveMin    = 300 * second
)

// window is the stretch that is held in memory; a chunk of the finer resolutions is as long.
const window = fiveMin

// chunkSpan is the time that a chunk of a resolution covers.
var chunkSpan = map[int64]int64{second: window, tenSeconds: window, fiveMin: 48 * fiveMin}

// keepFor is how long samples of a resolution are kept.
var keepFor = map[int64]int64{second: 3600 * second, tenSeconds: 24 * 3600 * second, fiveMin: 90 * 24 * 3600 * second}

// Bounds of what is sampled.
const (
	MaxSeries = 500 // of NIs, pools, schedulers and totals
	MaxPeers  = 512
	MaxPinned = 64
	MaxBytes  = 512 << 20 // of all chunks; the oldest five-minute samples go first
)

// Store is what a Sampler needs of package store.
type Store interface {
	AddMetricTail(ctx context.Context, rows ...store.MetricTail) error
	MetricTail(ctx context.Context) ([]store.MetricTail, error)
	FoldMetrics(ctx context.Context, chunks []store.MetricChunk, tail []store.MetricTail, keep []store.MetricKeep, most int64) error
	MetricChunks(ctx context.Context, sources []string, res, from, to int64, each func(store.MetricChunk) error) error
	MetricSources(ctx context.Context) (names []string, bytes int64, err error)
}

// Sampler samples snapshots and answers for what was sampled.
type Sampler struct {
	store Store

	// Of Add's goroutine.
	last    map[string]counters // of each source, for rates
	lastAt  time.Time
	peersAt int64 // step of ten seconds in which peers were sampled last

	mu      sync.RWMutex
	start   int64              // of the window
	open    map[string][]block // by source: one block a metric, of the window
	known   map[string]bool    // sources that have ever been seen
	pinned  map[string]bool    // peer IDs
	tracked map[string]bool    // peer IDs
	dropped int                // series that are not sampled: more than MaxSeries
	newest  int64
}

// block is one metric in the window, a value each base step; NaN where there is none.
type block []float32

// counters are the values of a source as they stood at the last sample.
type counters struct {
	at     time.Time
	values []float64
}

// New continues what is stored. now is where the window begins; samples of an earlier one are folded.
func New(ctx context.Context, st Store, now time.Time) (*Sampler, error) {
	s := &Sampler{
		store: st, last: map[string]counters{}, open: map[string][]block{}, known: map[string]bool{},
		pinned: map[string]bool{}, tracked: map[string]bool{}, start: floor(now.UnixMilli(), window),
	}
	names, _, err := st.MetricSources(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		s.known[n] = true
	}
	tail, err := st.MetricTail(ctx)
	if err != nil {
		return nil, err
	}
	here := s.start
	for i, row := range tail {
		points, err := decodeTail(row.Data)
		if err != nil {
			continue // of a version that we do not know: these few samples are lost
		}
		if at := floor(row.At, window); at != s.start {
			if err := s.fold(ctx, tail[i:]...); err != nil {
				return nil, err
			}
			s.start = at
		}
		s.put(row.At, points)
	}
	if s.start != here {
		if err := s.fold(ctx); err != nil {
			return nil, err
		}
		s.start = here
	}
	return s, nil
}

// Bound says how much is kept at most, for the log.
func Bound() string {
	return fmt.Sprintf("at most %d MiB: %d series each second for an hour, these and %d peers each 10 s for a day and each 5 min for 90 days",
		MaxBytes>>20, MaxSeries, MaxPeers)
}

// point is what one source was at one moment, a value a metric, NaN where it is not known.
type point struct {
	source string
	values []float32
}

// Add samples a snapshot that was just taken, at most once a second; nil is a second without an engine. A
// single second that was skipped, by a ticker that drifts, has the samples of the one after it.
// The error is one of storing: the samples are in memory all the same, and what could not be folded is lost.
func (s *Sampler) Add(ctx context.Context, now time.Time, snap *engine.Snapshot) error {
	at := now.UnixMilli()
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed error
	if w := floor(at, window); w != s.start {
		if err := s.fold(ctx); err != nil {
			failed = fmt.Errorf("five minutes of metric history are lost: %w", err)
			clear(s.open)
		}
		s.start, s.newest = w, 0
	}
	if snap == nil {
		s.newest = max(s.newest, floor(at, second))
		clear(s.last)
		return failed
	}
	if floor(at, second) <= s.newest { // the clock was set back a little: these seconds have their samples
		return failed
	}
	skipped := s.newest != 0 && floor(at, second) == s.newest+2*second
	s.newest = floor(at, second)
	s.dropped = 0
	points := s.points(now, sources(snap))
	rows := []store.MetricTail{{At: at, Res: second, Data: encodeTail(points)}}
	s.put(at, points)
	if skipped {
		rows = append(rows, store.MetricTail{At: at - second, Res: second, Data: rows[0].Data})
		s.put(at-second, points)
	}
	if step := floor(at, tenSeconds); step != s.peersAt {
		s.peersAt = step
		s.choose(snap)
		peers := s.points(now, peerSources(snap, s.tracked))
		rows = append(rows, store.MetricTail{At: at, Res: tenSeconds, Data: encodeTail(peers)})
		s.put(at, peers)
	}
	s.forget(now)
	return errors.Join(failed, s.store.AddMetricTail(ctx, rows...))
}

// points makes rates of counters. The first sample of a source, and one whose counter started anew, has none.
func (s *Sampler) points(now time.Time, list []reading) []point {
	points := make([]point, 0, len(list))
	count := 0
	for _, r := range list {
		kind := kindOf(r.source)
		if kind != KindPeer {
			if count += len(r.values); count > MaxSeries {
				s.dropped += len(r.values)
				continue
			}
		}
		was, known := s.last[r.source]
		elapsed := now.Sub(was.at).Seconds()
		p := point{r.source, make([]float32, len(r.values))}
		for i, v := range r.values {
			switch {
			case !metrics[kind][i].counter:
				p.values[i] = float32(v)
			case !known || elapsed <= 0 || v < was.values[i]:
				p.values[i] = nan
			default:
				p.values[i] = float32((v - was.values[i]) / elapsed)
			}
		}
		s.last[r.source] = counters{now, r.values}
		points = append(points, p)
	}
	return points
}

// forget drops the counters of sources that have gone, so that memory stays bounded.
func (s *Sampler) forget(now time.Time) {
	for name, c := range s.last {
		if now.Sub(c.at) > time.Minute {
			delete(s.last, name)
		}
	}
}

// put writes points into the window.
func (s *Sampler) put(at int64, points []point) {
	for _, p := range points {
		base := baseOf(p.source)
		blocks := s.open[p.source]
		if blocks == nil {
			blocks = make([]block, len(metrics[kindOf(p.source)]))
			for i := range blocks {
				blocks[i] = gaps(int(window / base))
			}
			s.open[p.source] = blocks
			s.known[p.source] = true
		}
		slot := (at - s.start) / base
		for i, v := range p.values {
			if i < len(blocks) {
				blocks[i][slot] = v
			}
		}
	}
}

// choose settles which peers are sampled: those that are pinned, then failing, then with most messages
// queued, then those that are sampled already.
func (s *Sampler) choose(snap *engine.Snapshot) {
	chosen := make(map[string]bool, min(len(snap.Peers), MaxPeers))
	if len(snap.Peers) <= MaxPeers {
		for i := range snap.Peers {
			chosen[snap.Peers[i].ID] = true
		}
		s.tracked = chosen
		return
	}
	order := make([]int, len(snap.Peers))
	for i := range order {
		order[i] = i
	}
	const lately = 10 * 60 * second
	rank := func(p *engine.Peer) int {
		switch {
		case s.pinned[p.ID]:
			return 0
		case p.State != "connected", p.ErrorAt != nil && snap.TakenAt-*p.ErrorAt < lately:
			return 1
		case p.TxQueued > 0:
			return 2
		case s.tracked[p.ID]:
			return 3
		}
		return 4
	}
	ranks := make([]int, len(snap.Peers))
	for i := range ranks {
		ranks[i] = rank(&snap.Peers[i])
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if d := ranks[a] - ranks[b]; d != 0 {
			return d
		}
		return snap.Peers[b].TxQueued - snap.Peers[a].TxQueued
	})
	for _, i := range order[:MaxPeers] {
		chosen[snap.Peers[i].ID] = true
	}
	s.tracked = chosen
}

// Pin says which peers are sampled whatever they do.
func (s *Sampler) Pin(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.pinned)
	for _, id := range ids {
		s.pinned[id] = true
	}
}

// Dropped is how many series of NIs, pools and schedulers are not sampled because there are too many.
func (s *Sampler) Dropped() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.dropped
}

// Series lists what there is history of, sorted by name within a source.
func (s *Sampler) Series() []Series {
	s.mu.RLock()
	names := make([]string, 0, len(s.known))
	for n := range s.known {
		names = append(names, n)
	}
	s.mu.RUnlock()
	slices.Sort(names)
	list := []Series{}
	for _, n := range names {
		list = append(list, seriesOf(n)...)
	}
	return list
}

var nan = float32(math.NaN())

func gaps(n int) block {
	b := make(block, n)
	for i := range b {
		b[i] = nan
	}
	return b
}

func floor(at, step int64) int64 { return at - at%step }
