package verbs

import "time"

// chanWaiter is a Waiter on a channel: for providers whose completions come from goroutines.
type chanWaiter struct {
	wake  chan struct{}
	timer *time.Timer
}

// NewChanWaiter makes a Waiter that works on a channel and a timer alone.
func NewChanWaiter() Waiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &chanWaiter{wake: make(chan struct{}, 1), timer: t}
}

func (w *chanWaiter) Wait(deadline time.Time) {
	select {
	case <-w.wake:
		return
	default:
	}
	if deadline.IsZero() {
		<-w.wake
		return
	}
	w.timer.Reset(time.Until(deadline))
	select {
	case <-w.wake:
		w.timer.Stop()
	case <-w.timer.C:
	}
}

func (w *chanWaiter) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *chanWaiter) Close() error {
	w.timer.Stop()
	return nil
}
