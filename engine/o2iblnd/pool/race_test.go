package pool_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/engine/o2iblnd/pool"
)

// held is a set of one node, which is in use, whose next pool is being made until the gate opens.
func held(t *testing.T) (s *pool.Set[*node], m *maker, only *node, grown chan error) {
	t.Helper()
	s, m = newSet(t, 1)
	only = take(t, s, t0)
	m.gate = make(chan struct{})
	grown = make(chan error, 1)
	go func() {
		n, err := s.Alloc(t0)
		if err == nil && n.gone {
			err = errors.New("the node is of a pool that was destroyed")
		}
		grown <- err
	}()
	synctest.Wait()
	return s, m, only, grown
}

// TestFreedNodeEndsTheWait: whoever waits for a pool to be made takes a node that comes back meanwhile.
func TestFreedNodeEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m, only, grown := held(t)
		got := make(chan *node, 1)
		go func() {
			n, err := s.Alloc(t0)
			if err != nil {
				t.Error(err)
			}
			got <- n
		}()
		synctest.Wait()
		s.Free(t0, only)
		synctest.Wait()
		select {
		case n := <-got:
			if n != only {
				t.Error("a node of a pool that is not made yet")
			}
		default:
			t.Error("a free node, and somebody waits")
		}
		m.gate <- struct{}{}
		if err := <-grown; err != nil {
			t.Error(err)
		}
	})
}

// TestFailedGrowthEndsTheWait: nobody waits for a pool that could not be made, or tries again at once.
func TestFailedGrowthEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m, _, grown := held(t)
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := s.Alloc(t0)
				errs <- err
			}()
		}
		synctest.Wait()
		m.fail = errors.New("no memory")
		m.gate <- struct{}{}
		if err := <-grown; !errors.Is(err, m.fail) {
			t.Errorf("who made it got %v", err)
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, pool.ErrRetry) {
				t.Errorf("who waited got %v", err)
			}
		}
		if m.created != 2 {
			t.Errorf("%d attempts", m.created)
		}
	})
}

// TestFailWhileGrowing: a pool that was under way when the device was lost is not used.
func TestFailWhileGrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m, only, grown := held(t)
		s.Fail()
		m.gate <- struct{}{} // the pool of the lost device
		m.gate <- struct{}{} // the next, of the new one
		if err := <-grown; err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); m.created != 3 || m.destroyed != 1 || st.Pools != 1 || st.FailedPools != 1 || st.Used != 2 || st.Grows != 1 {
			t.Errorf("%d made, %d destroyed, %+v", m.created, m.destroyed, st)
		}
		s.Free(t0, only)
		if !only.gone || m.destroyed != 2 {
			t.Errorf("the lost device's pool stays, %d destroyed", m.destroyed)
		}
	})
}

// TestCloseWhileGrowing: nothing is left behind.
func TestCloseWhileGrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m, only, grown := held(t)
		waits := make(chan error, 1)
		go func() {
			_, err := s.Alloc(t0)
			waits <- err
		}()
		synctest.Wait()
		s.Free(t0.Add(-1), only)
		if err := <-waits; err != nil { // it took that node
			t.Fatal(err)
		}
		s.Close()
		m.gate <- struct{}{}
		if err := <-grown; !errors.Is(err, pool.ErrClosed) {
			t.Errorf("%v", err)
		}
		if m.created != 2 || m.destroyed != 2 {
			t.Errorf("%d made, %d destroyed", m.created, m.destroyed)
		}
	})
}

// TestGrowsWhileTheDeviceComesAndGoes: with pools failing at any moment every node is either of a pool that
// stands or keeps its own alive, and nothing leaks.
func TestGrowsWhileTheDeviceComesAndGoes(t *testing.T) {
	s, m := newSet(t, 4)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			var mine []*node
			for i := range 1000 {
				n, err := s.Alloc(t0)
				if err != nil {
					t.Error(err)
					return
				}
				m.mu.Lock()
				gone := n.gone
				m.mu.Unlock()
				if gone {
					t.Error("a node of a pool that was destroyed")
					return
				}
				mine = append(mine, n)
				if len(mine) == 5+worker {
					for _, n := range mine {
						s.Free(t0.Add(time.Duration(i)*time.Second), n)
					}
					mine = mine[:0]
				}
				if worker == 0 && i%50 == 0 {
					s.Fail()
				}
			}
			for _, n := range mine {
				s.Free(t0, n)
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.Used != 0 || st.FailedPools != 0 {
		t.Errorf("%+v", st)
	}
	s.Close()
	if m.created != m.destroyed {
		t.Errorf("%d made, %d destroyed", m.created, m.destroyed)
	}
}

// TestEveryPoolButTheFirstGoes: several extra pools go together, those in use or used lately stay.
func TestEveryPoolButTheFirstGoes(t *testing.T) {
	s, _ := newSet(t, 2)
	var all []*node
	for i := range 8 {
		all = append(all, take(t, s, t0.Add(time.Duration(i/2)*time.Second)))
	}
	late := t0.Add(3*time.Second + pool.Deadline)
	for _, i := range []int{2, 3, 6, 7} { // the second and the fourth pool are unused
		s.Free(t0.Add(4*time.Second), all[i])
	}
	if st := s.Stats(); st.Pools != 4 || st.Used != 4 || st.Size != 8 {
		t.Fatalf("before any deadline: %+v", st)
	}
	s.Free(late.Add(-1), all[0])
	if st := s.Stats(); st.Pools != 3 || st.Shrinks != 1 || !st.Deadline.Equal(late) {
		t.Fatalf("only the second has passed its deadline: %+v", st)
	}
	s.Free(late, all[1])
	if st := s.Stats(); st.Pools != 2 || st.Used != 2 {
		t.Fatalf("the third is in use: %+v", st)
	}
	s.Free(late, all[4])
	s.Free(late, all[5])
	if st := s.Stats(); st.Pools != 1 || st.Used != 0 || st.Shrinks != 3 || !st.Deadline.IsZero() {
		t.Fatalf("%+v", st)
	}
}

// TestFirstPoolComesFirst: nodes come from the first pool that has one, so that the extra ones fall idle.
func TestFirstPoolComesFirst(t *testing.T) {
	s, m := newSet(t, 2)
	a, b, c := take(t, s, t0), take(t, s, t0), take(t, s, t0)
	s.Free(t0, a)
	s.Free(t0, c)
	if n := take(t, s, t0); n != a {
		t.Error("the extra pool was used before the first")
	}
	s.Free(t0.Add(pool.Deadline), b)
	if st := s.Stats(); st.Pools != 1 || !c.gone || m.destroyed != 1 {
		t.Errorf("the extra pool stays: %+v", st)
	}
}

// TestUseMovesTheDeadline: an extra pool's time starts again with each node that is taken from it.
func TestUseMovesTheDeadline(t *testing.T) {
	s, _ := newSet(t, 1)
	only, extra := take(t, s, t0), take(t, s, t0)
	s.Free(t0, extra)
	later := t0.Add(200 * time.Second)
	s.Free(later, take(t, s, later))
	if st := s.Stats(); !st.Deadline.Equal(t0.Add(500 * time.Second)) {
		t.Errorf("%+v", st)
	}
	s.Free(t0.Add(499*time.Second), only)
	if st := s.Stats(); st.Pools != 2 {
		t.Errorf("used 299 s ago, and gone: %+v", st)
	}
	if pool.Deadline != 300*time.Second || pool.Retry != time.Second {
		t.Error("not the figures of spec o2iblnd 6")
	}
}

func TestFailDestroysUnusedPools(t *testing.T) {
	s, m := newSet(t, 2)
	a := take(t, s, t0)
	take(t, s, t0)
	c := take(t, s, t0)
	s.Free(t0, c)
	s.Fail()
	if st := s.Stats(); !c.gone || a.gone || m.destroyed != 1 || st.Pools != 0 || st.FailedPools != 1 {
		t.Errorf("%+v", st)
	}
}

// TestFailEndsTheBackoff: a new device may be asked at once.
func TestFailEndsTheBackoff(t *testing.T) {
	s, m := newSet(t, 1)
	take(t, s, t0)
	m.fail = errors.New("the device is gone")
	if _, err := s.Alloc(t0); !errors.Is(err, m.fail) {
		t.Fatal(err)
	}
	m.fail = nil
	s.Fail()
	take(t, s, t0)
	if st := s.Stats(); !st.NextRetry.IsZero() || st.GrowFailures != 1 {
		t.Errorf("%+v", st)
	}
}

func TestNewCannot(t *testing.T) {
	cause := errors.New("no memory")
	m := &maker{fail: cause}
	name := strings.Repeat("n", 40)
	_, err := pool.New(name, 8, m.create, m.destroy, t0)
	if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), name[:31]+": make a pool of 8") {
		t.Errorf("%v", err)
	}
	if _, err := pool.New("empty", 0, m.create, m.destroy, t0); err == nil || m.created != 1 {
		t.Errorf("a set of empty pools: %v", err)
	}
}
