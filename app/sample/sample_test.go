package sample_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/sample"
	"o2ibd/engine"
	"o2ibd/engine/wire"
	"o2ibd/store"
)

const (
	ourNID   = wire.NID(0x000500007f000001)
	ourText  = "127.0.0.1@o2ib"
	sendMsgs = "ni/" + ourText + "/send_msgs"
)

// start is the beginning of a window of five minutes, and of a chunk of four hours.
var start = time.UnixMilli(1_800_000_000_000 - 1_800_000_000_000%14_400_000)

func openStore(t testing.TB, dir string) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func newSampler(t testing.TB, st *store.Store, now time.Time) *sample.Sampler {
	t.Helper()
	s, err := sample.New(t.Context(), st, now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// snapshot is an engine after sent messages, with so many queued.
func snapshot(sent uint64, queued int) *engine.Snapshot {
	peer := wire.NID(0x000500007f000002)
	return &engine.Snapshot{
		Nets:       []engine.Net{{ID: ourText, NID: ourNID, Net: "o2ib", Status: "up", SendCount: sent, AvailableCredits: 250}},
		Peers:      []engine.Peer{{ID: ourText + ">" + peer.String(), NID: peer, NI: ourNID, State: "connected", SendCount: sent, TxQueued: queued}},
		Conns:      []engine.Conn{{Peer: ourText + ">" + peer.String(), Credits: 7, OutstandingCredits: 1}},
		Pools:      []engine.Pool{{Kind: "tx", Net: "o2ib", Size: 256, Used: queued}},
		Schedulers: []engine.Scheduler{{ID: 1<<16 | 2, CPT: 1, Completions: sent}},
		Stats:      engine.Stats{SendCount: sent},
	}
}

func query(t testing.TB, s *sample.Sampler, now time.Time, from, to time.Time, step time.Duration, names ...string) sample.Answer {
	t.Helper()
	a, err := s.Query(t.Context(), sample.Query{Series: names, From: from.UnixMilli(), To: to.UnixMilli(), Step: step.Milliseconds()}, now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// text writes points as "1 2 - 4".
func text(points []*float64) string {
	var parts []string
	for _, p := range points {
		if p == nil {
			parts = append(parts, "-")
		} else {
			parts = append(parts, fmt.Sprintf("%.4g", *p))
		}
	}
	return strings.Join(parts, " ")
}

// Seven minutes of 100 messages/s, with five seconds without an engine, across the end of a window and a
// process that is killed in the middle of one.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	st := openStore(t, dir)
	s := newSampler(t, st, start)
	sent := uint64(0)
	for i := range 430 {
		at := start.Add(time.Duration(i) * time.Second)
		if i == 410 { // killed: only what is stored stays
			st.Close()
			st = openStore(t, dir)
			s = newSampler(t, st, at)
		}
		var snap *engine.Snapshot
		if i < 100 || i >= 105 {
			snap = snapshot(sent, i%10)
		}
		sent += 100
		if err := s.Add(t.Context(), at, snap); err != nil {
			t.Fatal(err)
		}
	}
	now := start.Add(430 * time.Second)
	at := func(sec int) time.Time { return start.Add(time.Duration(sec) * time.Second) }
	for _, tc := range []struct {
		name           string
		from, to, step int
		series         string
		avg, min, max  string
	}{
		{"the first second has no rate", 0, 3, 1, sendMsgs, "- 100 100", "- 100 100", "- 100 100"},
		{"a gap, and no rate after it", 98, 108, 1, sendMsgs, "100 100 - - - - - - 100 100", "", ""},
		{"a gauge has its value after the gap", 98, 108, 1, "total/tx_queued", "8 9 - - - - - 5 6 7", "", ""},
		{"across the end of a window", 297, 303, 1, "total/tx_queued", "7 8 9 0 1 2", "", ""},
		{"across the kill", 407, 413, 1, sendMsgs, "100 100 100 - 100 100", "", ""},
		{"ten seconds", 0, 30, 10, "pool/tx/o2ib/0/used", "4.5 4.5 4.5", "0 0 0", "9 9 9"},
		{"twenty seconds with a gap", 100, 120, 20, "total/tx_queued", "5.75", "0", "9"},
		{"five minutes", 0, 600, 300, "scheduler/1.2/completions", "100 100", "100 100", "100 100"},
		{"in the future", 430, 440, 10, "total/conns", "-", "-", "-"},
		{"a peer, each ten seconds", 280, 320, 10, "peer/" + ourText + ">127.0.0.2@o2ib/credits", "7 7 7 7", "", ""},
		{"a finer step than there is", 280, 320, 1, "peer/" + ourText + ">127.0.0.2@o2ib/send_msgs", "100 100 100 100", "", ""},
	} {
		a := query(t, s, now, at(tc.from), at(tc.to), time.Duration(tc.step)*time.Second, tc.series)
		p := a.Series[0]
		if got := text(p.Avg); got != tc.avg || tc.min != "" && (text(p.Min) != tc.min || text(p.Max) != tc.max) {
			t.Errorf("%s: avg %s, min %s, max %s; want %s, %s, %s", tc.name, got, text(p.Min), text(p.Max), tc.avg, tc.min, tc.max)
		}
		if len(a.At) != len(p.Avg) || a.At[0] != a.From || a.From%a.Step != 0 || p.Unit == "" || p.Label == "" || p.Name != tc.series {
			t.Errorf("%s: %d moments from %d, step %d: %+v", tc.name, len(a.At), a.From, a.Step, p.Series)
		}
	}
	both := query(t, s, now, at(0), at(20), time.Second, "total/conns", "peer/"+ourText+">127.0.0.2@o2ib/tx_queued")
	if both.Step != 10_000 || text(both.Series[0].Avg) != "1 1" || text(both.Series[1].Avg) != "0 0" {
		t.Errorf("two together: step %d, %s, %s", both.Step, text(both.Series[0].Avg), text(both.Series[1].Avg))
	}
	var names []string
	for _, x := range s.Series() {
		names = append(names, x.Name)
	}
	if len(names) != 11+12+3+3+10 || names[0] != sendMsgs {
		t.Errorf("%d series: %v", len(names), names)
	}
	rows := 0
	err := s.Export(t.Context(), sample.KindTotal, 1000, start.UnixMilli(), func(source string, at int64, values [][3]float64) error {
		rows++
		return nil
	})
	if err != nil || rows != 425 {
		t.Errorf("export gave %d rows of 425: %v", rows, err)
	}
}

// Samples of an hour ago are there each 10 s only, of yesterday each 5 min, of 90 days ago not at all.
func TestRings(t *testing.T) {
	st := openStore(t, t.TempDir())
	s := newSampler(t, st, start)
	add := func(at time.Time) {
		t.Helper()
		for i := range 3 {
			if err := s.Add(t.Context(), at.Add(time.Duration(i)*time.Second), snapshot(uint64(i), 5)); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func(res int64) (n int) {
		err := st.MetricChunks(t.Context(), []string{"total"}, res, 0, 1<<62, func(store.MetricChunk) error { n++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	day := 24 * time.Hour
	for _, step := range []struct {
		after  time.Duration
		chunks [3]int // at 1 s, 10 s and 5 min, once the window before is folded
	}{
		{0, [3]int{0, 0, 0}}, {10 * time.Minute, [3]int{1, 1, 1}}, {2 * time.Hour, [3]int{2, 2, 1}}, {4 * time.Hour, [3]int{1, 3, 1}},
		{30 * time.Hour, [3]int{1, 4, 2}}, {60 * time.Hour, [3]int{1, 1, 3}}, {95 * day, [3]int{1, 1, 4}}, {96 * day, [3]int{1, 1, 1}},
	} {
		add(start.Add(step.after))
		if got := [3]int{count(1000), count(10_000), count(300_000)}; got != step.chunks {
			t.Errorf("after %v: chunks %v, want %v", step.after, got, step.chunks)
		}
	}
	now := start.Add(96 * day)
	a := query(t, s, now, start.Add(95*day), start.Add(95*day+time.Minute), time.Second, "total/tx_queued")
	if a.Step != 10_000 {
		t.Errorf("a day ago is asked with a step of %d", a.Step)
	}
	a = query(t, s, now, start.Add(90*day), now.Add(time.Minute), 0, "total/tx_queued")
	if a.Step%300_000 != 0 || !strings.Contains(text(a.Series[0].Avg), "5") {
		t.Errorf("days ago: step %d, %s", a.Step, text(a.Series[0].Avg))
	}
}

// A clock that is set back loses nothing that was sampled, and samples go on at once.
func TestClockSetBack(t *testing.T) {
	s := newSampler(t, openStore(t, t.TempDir()), start.Add(10*time.Minute))
	sent := uint64(0)
	add := func(at time.Duration) {
		t.Helper()
		sent += 10
		if err := s.Add(t.Context(), start.Add(at), snapshot(sent, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		add(10*time.Minute + time.Duration(i)*time.Second)
	}
	for i := range 5 { // a little: these seconds have their samples
		add(10*time.Minute + time.Duration(15+i)*time.Second)
	}
	for i := range 20 { // and by minutes, into a window that has nothing yet
		add(time.Minute + time.Duration(i)*time.Second)
	}
	for i := range 20 { // and on into one that is folded
		add(10*time.Minute + time.Duration(30+i)*time.Second)
	}
	now := start.Add(11 * time.Minute)
	a := query(t, s, now, start.Add(10*time.Minute), start.Add(10*time.Minute+50*time.Second), 10*time.Second, "total/tx_queued")
	if got := text(a.Series[0].Avg); got != "1 1 - 1 1" {
		t.Errorf("%s", got)
	}
	a = query(t, s, now, start.Add(time.Minute), start.Add(time.Minute+20*time.Second), 10*time.Second, "total/tx_queued", sendMsgs)
	if got := text(a.Series[0].Avg); got != "1 1" {
		t.Errorf("%s", got)
	}
	for _, v := range a.Series[1].Min {
		if v != nil && *v < 0 {
			t.Errorf("a rate of %v", *v)
		}
	}
}

// A ticker that drifts leaves a second out now and then: it is no gap. Two are.
func TestSkippedSecond(t *testing.T) {
	s := newSampler(t, openStore(t, t.TempDir()), start)
	for _, sec := range []int{0, 1, 2, 4, 5, 5, 8} {
		if err := s.Add(t.Context(), start.Add(time.Duration(sec)*time.Second+time.Duration(sec)*time.Millisecond), snapshot(uint64(100*sec), 0)); err != nil {
			t.Fatal(err)
		}
	}
	a := query(t, s, start.Add(9*time.Second), start, start.Add(9*time.Second), time.Second, sendMsgs)
	if got := text(a.Series[0].Avg); got != "- 99.9 99.9 99.9 99.9 99.9 - - 99.9" {
		t.Errorf("%s", got)
	}
}

// A counter that starts anew has no rate at that moment, and never a negative one.
func TestCounterReset(t *testing.T) {
	s := newSampler(t, openStore(t, t.TempDir()), start)
	for i, sent := range []uint64{100, 200, 5, 15} {
		if err := s.Add(t.Context(), start.Add(time.Duration(i)*time.Second), snapshot(sent, 0)); err != nil {
			t.Fatal(err)
		}
	}
	a := query(t, s, start.Add(4*time.Second), start, start.Add(4*time.Second), time.Second, sendMsgs)
	if got := text(a.Series[0].Avg); got != "- 100 - 10" {
		t.Errorf("%s", got)
	}
}

// Of 3,000 peers 512 are sampled: those that are pinned, that fail, and that queue most.
func TestChosenPeers(t *testing.T) {
	s := newSampler(t, openStore(t, t.TempDir()), start)
	snap := &engine.Snapshot{TakenAt: start.UnixMilli()}
	id := func(i int) string { return fmt.Sprintf("%s>10.0.%d.%d@o2ib", ourText, i/250, i%250) }
	for i := range 3000 {
		p := engine.Peer{ID: id(i), NI: ourNID, State: "connected"}
		switch {
		case i >= 2900: // the worst
			p.TxQueued = i
		case i >= 2800:
			p.State = "down"
		case i >= 2700: // not as bad
			p.TxQueued = 1
		}
		snap.Peers = append(snap.Peers, p)
	}
	s.Pin([]string{id(1234)})
	if err := s.Add(t.Context(), start, snap); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, x := range s.Series() {
		if x.Kind == sample.KindPeer {
			have[x.Of] = true
		}
	}
	if len(have) != sample.MaxPeers {
		t.Errorf("%d peers are sampled", len(have))
	}
	for i := 2700; i < 3000; i++ {
		if !have[id(i)] {
			t.Fatalf("peer %d is not sampled", i)
		}
	}
	if !have[id(1234)] || have[id(1233)] {
		t.Errorf("pinned: %v, its neighbour: %v", have[id(1234)], have[id(1233)])
	}
}

func TestTooManySeries(t *testing.T) {
	s := newSampler(t, openStore(t, t.TempDir()), start)
	snap := snapshot(1, 1)
	snap.Peers = nil
	for i := range 300 {
		snap.Pools = append(snap.Pools, engine.Pool{Kind: "fmr", Net: "o2ib", CPT: i})
	}
	if err := s.Add(t.Context(), start, snap); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Series()); n > sample.MaxSeries || n < sample.MaxSeries-3 || s.Dropped() == 0 {
		t.Errorf("%d series are sampled, %d are not", n, s.Dropped())
	}
}

func TestBadQueries(t *testing.T) {
	s := newSampler(t, openStore(t, t.TempDir()), start)
	many := make([]string, 25)
	for _, tc := range []struct {
		q    sample.Query
		want string
	}{
		{sample.Query{}, "0 series; allowed: 1 to 24"},
		{sample.Query{Series: many}, "25 series"},
		{sample.Query{Series: []string{"total/nonsense"}}, `series "total/nonsense" is not known`},
		{sample.Query{Series: []string{"total/x/send_msgs"}}, "is not known"},
		{sample.Query{Series: []string{strings.Repeat("x", 1000)}}, "…"},
		{sample.Query{Series: []string{"total/conns"}, From: 2000, To: 1000}, "from has to be before to"},
		{sample.Query{Series: []string{"total/conns"}, From: -1, To: 1000}, "from has to be"},
		{sample.Query{Series: []string{"total/conns"}, From: 1, To: 1 << 60}, "at most 400 days"},
		{sample.Query{Series: []string{"total/conns"}, Step: -1}, "step is"},
		{sample.Query{Series: []string{"total/conns"}, From: start.Add(2 * time.Hour).UnixMilli(), To: start.Add(3 * time.Hour).UnixMilli()}, "in the future"},
	} {
		_, err := s.Query(t.Context(), tc.q, start)
		var bad *sample.QueryError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 400 {
			t.Errorf("%+v: %v, want %q", tc.q, err, tc.want)
		}
	}
	a, err := s.Query(t.Context(), sample.Query{Series: []string{"peer/x>y/credits"}}, start)
	if err != nil || len(a.At) < 80 || a.Step != 10_000 {
		t.Errorf("a peer that never was: %d points, step %d, %v", len(a.At), a.Step, err)
	}
	// A year ahead with a step of a second costs no more than what there may be.
	a, err = s.Query(t.Context(), sample.Query{Series: []string{"total/conns"}, From: start.Add(-time.Minute).UnixMilli(), To: start.Add(9000 * time.Hour).UnixMilli(), Step: 1000}, start)
	if err != nil || len(a.At) > 2000 || a.To > start.Add(2*time.Hour).UnixMilli() {
		t.Errorf("%d points to %d, %v", len(a.At), a.To, err)
	}
	a, err = s.Query(t.Context(), sample.Query{Series: []string{"total/conns"}, Step: 1 << 60}, start)
	if err != nil || len(a.At) > 2 || a.To-a.From > 3600_000 {
		t.Errorf("a very long step: %d points, %d to %d, %v", len(a.At), a.From, a.To, err)
	}
	if d := cmp.Diff([]sample.Marker{}, a.Markers); d != "" {
		t.Error(d)
	}
}

// A full disk loses samples, says so, and sampling goes on when there is room again.
func TestStoreFails(t *testing.T) {
	st := openStore(t, t.TempDir())
	f := &failing{Store: st}
	s, err := sample.New(t.Context(), f, start)
	if err != nil {
		t.Fatal(err)
	}
	add := func(sec int) error {
		return s.Add(t.Context(), start.Add(time.Duration(sec)*time.Second), snapshot(uint64(sec), 3))
	}
	f.full = true
	for _, sec := range []int{0, 1, 301} {
		if err := add(sec); !errors.Is(err, store.ErrDiskFull) {
			t.Errorf("second %d: %v", sec, err)
		}
	}
	f.full = false
	if err := add(302); err != nil {
		t.Error(err)
	}
	a := query(t, s, start.Add(303*time.Second), start.Add(299*time.Second), start.Add(303*time.Second), time.Second, "total/tx_queued")
	if got := text(a.Series[0].Avg); got != "- - 3 3" {
		t.Errorf("%s", got)
	}
}
