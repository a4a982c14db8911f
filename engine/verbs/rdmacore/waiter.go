//go:build !nordma

package rdmacore

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter implements verbs.Waiter by epoll: completion channels, edge triggered because their notices are
// taken at the next Arm, and an eventfd. The epoll set is itself in the runtime's poller: a thread that slept
// in epoll_wait would keep its P, and what is runnable there, until the runtime takes it away.
type waiter struct {
	epoll, event int
	file         *os.File // the epoll set
	raw          syscall.RawConn
	look         func(fd uintptr) bool
	state        atomic.Int32
	evs          [16]unix.EpollEvent
	n            int

	mu  sync.Mutex
	cqs map[int32]*cq // by descriptor of their channels
}

// States of a waiter.
const (
	awake int32 = iota
	asleep
	woken
)

func newWaiter() (*waiter, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, failed(errnoOf(err), accessHint(errnoOf(err), "", ""), "epoll_create1")
	}
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, failed(errnoOf(err), accessHint(errnoOf(err), "", ""), "eventfd")
	}
	w := &waiter{epoll: ep, event: ev, cqs: make(map[int32]*cq)}
	w.look = func(uintptr) bool {
		n, err := unix.EpollWait(w.epoll, w.evs[:], 0)
		w.n = n
		return n > 0 || err != nil && err != unix.EINTR
	}
	if err = unix.SetNonblock(ep, true); err == nil {
		w.file = os.NewFile(uintptr(ep), "waiter")
		w.raw, err = w.file.SyscallConn()
	}
	if err != nil {
		w.Close()
		return nil, failed(errnoOf(err), "", "putting an epoll set into the poller")
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ev, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(ev)}); err != nil {
		w.Close()
		return nil, failed(errnoOf(err), "", "epoll_ctl of an eventfd")
	}
	return w, nil
}

func (w *waiter) add(fd int, q *cq) error {
	w.mu.Lock()
	w.cqs[int32(fd)] = q
	w.mu.Unlock()
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}); err != nil {
		return failed(errnoOf(err), "", "epoll_ctl of a completion channel")
	}
	return nil
}

func (w *waiter) remove(fd int) {
	// Only a descriptor that is not there can fail, and then there is nothing to remove.
	_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	w.mu.Lock()
	delete(w.cqs, int32(fd))
	w.mu.Unlock()
}

// Wait implements verbs.Waiter.
func (w *waiter) Wait(deadline time.Time) {
	if !w.state.CompareAndSwap(awake, asleep) {
		w.state.Store(awake)
		return
	}
	w.n = 0
	w.file.SetReadDeadline(deadline)
	// An error is the deadline's: then nothing is there.
	_ = w.raw.Read(w.look)
	w.state.Store(awake)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range max(w.n, 0) {
		if fd := w.evs[i].Fd; int(fd) == w.event {
			var b [8]byte
			unix.Read(w.event, b[:])
		} else if q := w.cqs[fd]; q != nil {
			q.fired.Store(true)
		}
	}
	for _, q := range w.cqs {
		q.quiet.Store(q.armed.Load() && !q.fired.Load())
	}
}

// Wake implements verbs.Waiter.
func (w *waiter) Wake() {
	if w.state.Swap(woken) == asleep {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(w.event, one[:])
	}
}

func (w *waiter) Close() error {
	if w.file != nil {
		w.file.Close() // and the epoll set with it
	} else {
		unix.Close(w.epoll)
	}
	unix.Close(w.event)
	return nil
}
