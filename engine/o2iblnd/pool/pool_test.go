package pool_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"o2ibd/engine/o2iblnd/pool"
)

type node struct {
	pool.Node
	n    int
	gone bool
}

// maker counts what a set makes and destroys.
type maker struct {
	mu        sync.Mutex
	created   int
	destroyed int
	fail      error
	gate      chan struct{} // creation waits for it
}

func (m *maker) create(size int) ([]*node, error) {
	if m.gate != nil {
		<-m.gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.created++
	if m.fail != nil {
		return nil, m.fail
	}
	list := make([]*node, size)
	for i := range list {
		list[i] = &node{n: i}
	}
	return list, nil
}

func (m *maker) destroy(list []*node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.destroyed++
	for _, n := range list {
		n.gone = true
	}
}

var t0 = time.Unix(1000, 0)

func newSet(t testing.TB, size int) (*pool.Set[*node], *maker) {
	t.Helper()
	m := &maker{}
	s, err := pool.New("test", size, m.create, m.destroy, t0)
	if err != nil {
		t.Fatal(err)
	}
	return s, m
}

func take(t testing.TB, s *pool.Set[*node], now time.Time) *node {
	t.Helper()
	n, err := s.Alloc(now)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestT12_69GrowsAndShrinks(t *testing.T) {
	s, m := newSet(t, 256)
	var all []*node
	for range 257 {
		all = append(all, take(t, s, t0))
	}
	if st := s.Stats(); st.Pools != 2 || st.Size != 512 || st.Used != 257 || st.Grows != 1 || !st.Deadline.Equal(t0.Add(pool.Deadline)) {
		t.Fatalf("%+v", st)
	}
	extra := all[256]
	s.Free(t0.Add(299*time.Second), extra)
	if st := s.Stats(); st.Pools != 2 {
		t.Fatalf("an extra pool went before its deadline: %+v", st)
	}
	s.Free(t0.Add(300*time.Second), all[0])
	if st := s.Stats(); st.Pools != 1 || st.Shrinks != 1 || m.destroyed != 1 || !extra.gone {
		t.Fatalf("after the deadline and a free: %+v", st)
	}
	for _, n := range all[1:256] {
		s.Free(t0.Add(time.Hour), n)
	}
	if st := s.Stats(); st.Pools != 1 || st.Used != 0 {
		t.Fatalf("the first pool is permanent: %+v", st)
	}
	s.Close()
	if m.created != 2 || m.destroyed != 2 {
		t.Fatalf("%d made, %d destroyed", m.created, m.destroyed)
	}
	if _, err := s.Alloc(t0); !errors.Is(err, pool.ErrClosed) {
		t.Fatalf("a closed set gives %v", err)
	}
}

func TestT12_70FailedGrowth(t *testing.T) {
	s, m := newSet(t, 1)
	take(t, s, t0)
	m.fail = errors.New("no memory")
	if _, err := s.Alloc(t0); !errors.Is(err, m.fail) {
		t.Fatalf("%v", err)
	}
	if _, err := s.Alloc(t0.Add(999 * time.Millisecond)); !errors.Is(err, pool.ErrRetry) {
		t.Fatalf("%v", err)
	}
	if m.created != 2 {
		t.Fatalf("%d attempts", m.created)
	}
	if st := s.Stats(); st.GrowFailures != 1 || !st.NextRetry.Equal(t0.Add(pool.Retry)) {
		t.Fatalf("%+v", st)
	}
	m.fail = nil
	take(t, s, t0.Add(pool.Retry))
}

func TestLastInFirstOut(t *testing.T) {
	s, _ := newSet(t, 4)
	a, b := take(t, s, t0), take(t, s, t0)
	if a.n != 0 || b.n != 1 {
		t.Fatalf("first %d, then %d", a.n, b.n)
	}
	s.Free(t0, a)
	if c := take(t, s, t0); c != a {
		t.Fatal("the node that came back last is not the next")
	}
}

func TestFail(t *testing.T) {
	s, m := newSet(t, 2)
	a := take(t, s, t0)
	s.Fail()
	if st := s.Stats(); st.Pools != 0 || st.FailedPools != 1 || st.Used != 1 {
		t.Fatalf("%+v", st)
	}
	b := take(t, s, t0)
	if m.created != 2 || b.gone {
		t.Fatal("the next node is not of a new pool")
	}
	s.Free(t0, a)
	if st := s.Stats(); st.FailedPools != 0 || !a.gone || b.gone {
		t.Fatalf("the failed pool stays: %+v", st)
	}
}

// TestWaitsForGrowth: whoever runs short while another makes a pool waits for it, and one pool is made.
func TestWaitsForGrowth(t *testing.T) {
	s, m := newSet(t, 4)
	for range 4 {
		take(t, s, t0)
	}
	m.gate = make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := s.Alloc(t0); err != nil {
				t.Error(err)
			}
		})
	}
	m.gate <- struct{}{}
	wg.Wait()
	if m.created != 2 {
		t.Fatalf("%d pools were made", m.created)
	}
}

func TestConcurrent(t *testing.T) {
	s, _ := newSet(t, 16)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var mine []*node
			for i := range 2000 {
				n, err := s.Alloc(t0)
				if err != nil || n.gone {
					t.Error("a node that is gone", err)
					return
				}
				mine = append(mine, n)
				if i%3 == 0 {
					for _, n := range mine {
						s.Free(t0.Add(time.Duration(i)*time.Second), n)
					}
					mine = nil
				}
			}
			for _, n := range mine {
				s.Free(t0, n)
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.Used != 0 {
		t.Fatalf("%+v", st)
	}
}

func TestNoAllocations(t *testing.T) {
	s, _ := newSet(t, 16)
	if n := testing.AllocsPerRun(1000, func() {
		n, _ := s.Alloc(t0)
		s.Free(t0, n)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAllocFree(b *testing.B) {
	s, _ := newSet(b, 256)
	b.ReportAllocs()
	for b.Loop() {
		n, _ := s.Alloc(t0)
		s.Free(t0, n)
	}
}
