//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

const (
	// firstEntries is what a completion queue starts with at most; it grows with its queue pairs.
	firstEntries = 1 << 16
	// drainEvery bounds the notices that pile up in the channel of a queue whose owner never sleeps.
	drainEvery = 64
)

// cq implements verbs.CQ. Arm polls in the same crossing, and what it finds waits in ahead for the next Poll.
// While the queue is armed and no notice has come there is nothing to arm or to poll for.
type cq struct {
	dev     *device
	c       *C.struct_hca_cq
	waiter  *waiter
	fd      int
	fired   atomic.Bool // the waiter saw a notice
	armed   atomic.Bool // a completion will make a notice, or has
	quiet   atomic.Bool // the next Poll would find nothing; what came since will wake the waiter
	arms    int
	nfailed C.int
	ahead   []verbs.WC // polled by Arm and not taken yet, in buf
	buf     [32]verbs.WC
}

// CreateCQ implements verbs.Device. The waiter must be one of this provider.
func (d *device) CreateCQ(entries int, w verbs.Waiter) (verbs.CQ, error) {
	own, ok := w.(*waiter)
	if !ok {
		return nil, fmt.Errorf("completion queue on %s with a waiter of another provider: %w", d.info.Name, verbs.ErrState)
	}
	most := d.info.Caps.MaxCQE
	if entries < 1 || most > 0 && entries > most {
		return nil, fmt.Errorf("a completion queue of %d entries on %s: 1 to %d are possible: %w", entries, d.info.Name, most, verbs.ErrUnsupported)
	}
	c, err := C.hca_cq_open(d.verbs, C.int(min(entries, firstEntries)))
	if c == nil {
		errno := errnoOf(err)
		hint := ""
		if errno == unix.ENOMEM {
			hint = memlock(uint64(min(entries, firstEntries)) * 64)
		}
		return nil, failed(errno, hint, "ibv_create_cq of %d entries on %s", min(entries, firstEntries), d.info.Name)
	}
	q := &cq{dev: d, c: c, waiter: own, fd: int(C.hca_cq_fd(c))}
	if err := own.add(q.fd, q); err != nil {
		C.hca_cq_close(c)
		return nil, err
	}
	return q, nil
}

// Poll implements verbs.CQ: one crossing for all.
func (q *cq) Poll(wcs []verbs.WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	if len(q.ahead) > 0 {
		n := copy(wcs, q.ahead)
		q.ahead = q.ahead[n:]
		return n, nil
	}
	if q.quiet.Swap(false) {
		return 0, nil
	}
	q.dev.crossings.Add(1)
	n := int(C.hca_cq_poll(q.c, (*C.struct_hca_wc)(unsafe.Pointer(unsafe.SliceData(wcs))), C.int(len(wcs)), &q.nfailed))
	if n > 0 {
		q.armed.Store(false)
	}
	return max(n, 0), q.polled(wcs, n)
}

// polled looks at what a crossing found.
func (q *cq) polled(wcs []verbs.WC, n int) error {
	if n < 0 {
		return fmt.Errorf("ibv_poll_cq on %s failed: the completion queue is lost, close the connections on it", q.dev.info.Name)
	}
	if q.nfailed > 0 {
		q.failures(wcs[:n])
	}
	return nil
}

// failures tells queue pairs why they failed: the first completion with an error says it.
func (q *cq) failures(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		if wc.Status == verbs.WCSuccess {
			continue
		}
		p := q.dev.ctx.qp(wc.QPNum)
		switch {
		case p == nil:
		case wc.Status != verbs.WCFlushed:
			p.fail(fmt.Errorf("%v: %v", wc.Op, wc.Status))
		case !q.dev.iwarp():
			// Nothing but an error flushes what we did not flush. On iWARP the peer's orderly end does it too.
			p.fail(errors.New("the device flushed the queue pair: the peer sent what it may not, or does not answer"))
		}
	}
}

// Arm implements verbs.CQ. Notices that were given are taken first.
func (q *cq) Arm() error {
	fired := q.fired.Swap(false)
	if q.armed.Load() && !fired {
		q.quiet.Store(len(q.ahead) == 0)
		return nil
	}
	q.arms++
	drain := C.int(0)
	if fired || q.arms%drainEvery == 0 {
		drain = 1
	}
	if len(q.ahead) > 0 {
		return q.arm(drain, nil)
	}
	return q.arm(drain, q.buf[:])
}

// arm is one crossing, which polls into buf where there is room.
func (q *cq) arm(drain C.int, buf []verbs.WC) error {
	q.dev.crossings.Add(1)
	n := int(C.hca_cq_arm(q.c, drain, (*C.struct_hca_wc)(unsafe.Pointer(unsafe.SliceData(buf))), C.int(len(buf)), &q.nfailed))
	if n < 0 {
		return failed(unix.Errno(-n), "", "ibv_req_notify_cq on %s", q.dev.info.Name)
	}
	if buf == nil {
		return nil
	}
	q.ahead = buf[:n]
	q.armed.Store(n == 0)
	q.quiet.Store(n == 0)
	return q.polled(buf, n)
}

func (q *cq) Close() error {
	q.dev.jobs.Wait()
	q.waiter.remove(q.fd)
	if e := C.hca_cq_close(q.c); e != 0 {
		return failed(unix.Errno(e), "a queue pair may still use it", "ibv_destroy_cq on %s", q.dev.info.Name)
	}
	return nil
}
