package verbs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/engine/verbs"
)

func TestChanWaiter(t *testing.T) {
	for _, row := range []struct {
		name     string
		before   int           // wakes before Wait
		after    time.Duration // one wake after that time; 0: none
		deadline time.Duration // 0: none
		want     []time.Duration
	}{
		{"woken before", 1, 0, time.Second, []time.Duration{0, time.Second}},
		{"woken twice before is one", 2, 0, time.Second, []time.Duration{0, time.Second}},
		{"woken in time", 0, 300 * time.Millisecond, time.Second, []time.Duration{300 * time.Millisecond, time.Second}},
		{"not woken", 0, 0, time.Second, []time.Duration{time.Second, 0}},
		{"woken late", 0, 2 * time.Second, time.Second, []time.Duration{time.Second, 0}},
		{"deadline is over", 0, 0, -time.Second, []time.Duration{0, 0}},
		{"no deadline", 0, time.Hour, 0, []time.Duration{time.Hour}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := verbs.NewChanWaiter()
				var deadline time.Time
				if row.deadline != 0 {
					deadline = time.Now().Add(row.deadline)
				}
				for range row.before {
					w.Wake()
				}
				if row.after > 0 {
					time.AfterFunc(row.after, w.Wake)
				}
				total := time.Duration(0)
				for i, want := range row.want {
					start := time.Now()
					w.Wait(deadline)
					took := time.Since(start)
					total += took
					if i > 0 && want > 0 {
						took = total // the deadline stands still
					}
					if took != want {
						t.Errorf("wait %d took %v, want %v", i+1, took, want)
					}
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestChanWaiterDoesNotAllocate(t *testing.T) {
	w := verbs.NewChanWaiter()
	past := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		w.Wake()
		w.Wait(past)
		w.Wait(past)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
