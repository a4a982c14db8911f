package app

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine"
)

// The ticker's periods.
const (
	watchedPeriod   = 500 * time.Millisecond
	unwatchedPeriod = time.Second
)

// ticker takes one snapshot a tick, which all readers share. Its goroutine is run's.
type ticker struct {
	take   func() *engine.Snapshot
	latest atomic.Pointer[engine.Snapshot]
	wake   chan struct{}         // somebody has come: the period is shorter from now on
	each   chan *engine.Snapshot // every tick's, for the sampler; who is late gets the newest

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

func newTicker(take func() *engine.Snapshot) *ticker {
	t := &ticker{take: take, wake: make(chan struct{}, 1), each: make(chan *engine.Snapshot, 1), watchers: make(map[chan struct{}]struct{})}
	t.latest.Store(take())
	return t
}

func (t *ticker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
		t.tick()
		timer.Reset(t.period())
	}
}

func (t *ticker) tick() {
	s := t.take()
	t.latest.Store(s)
	select {
	case <-t.each: // nobody took the last one
	default:
	}
	t.each <- s
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watchers {
		select {
		case w <- struct{}{}:
		default: // the last tick still waits there: merged
		}
	}
}

func (t *ticker) period() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.watchers) > 0 {
		return watchedPeriod
	}
	return unwatchedPeriod
}

// watch is App.Watch.
func (t *ticker) watch() (<-chan struct{}, func() *engine.Snapshot, func()) {
	w := make(chan struct{}, 1)
	t.mu.Lock()
	first := len(t.watchers) == 0
	t.watchers[w] = struct{}{}
	t.mu.Unlock()
	if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	cancel := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, w)
	}
	return w, t.latest.Load, cancel
}
