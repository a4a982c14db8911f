//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// Results of hca_post that are no errno.
const (
	resultFull  = int(C.HCA_FULL)
	resultState = int(C.HCA_STATE)
)

// qp implements verbs.QP.
type qp struct {
	id     *id
	cq     *cq
	c      *C.struct_hca_qp
	num    uint32
	closed atomic.Bool

	mu    sync.Mutex
	ended bool  // the connection was ended on purpose, by us or the peer: flushes are no failure
	cause error // why it failed
	over  bool  // it failed or was moved to error
}

// CreateQP implements verbs.ID.
func (i *id) CreateQP(attr verbs.QPAttr) (verbs.QP, error) {
	p, ok := attr.PD.(*pd)
	cq, ok2 := attr.CQ.(*cq)
	if !ok || !ok2 || i.dev == nil || p.dev.verbs != i.dev.verbs || cq.dev.verbs != i.dev.verbs {
		return nil, fmt.Errorf("queue pair on another device's protection domain or completion queue: %w", verbs.ErrState)
	}
	if i.QP() != nil {
		return nil, fmt.Errorf("the id has a queue pair: %w", verbs.ErrState)
	}
	caps := &i.dev.info.Caps
	if m := caps.MaxQPWR; m > 0 && max(attr.MaxSendWR, attr.MaxRecvWR) > m || attr.MaxSendWR < 1 || attr.MaxRecvWR < 1 ||
		max(attr.MaxSendSGE, attr.MaxRecvSGE) > verbs.MaxSGE {
		return nil, fmt.Errorf("queue pair for %d sends of %d pieces and %d receives of %d: %s takes 1 to %d of up to %d pieces: %w",
			attr.MaxSendWR, attr.MaxSendSGE, attr.MaxRecvWR, attr.MaxRecvSGE, i.dev.info.Name, m, caps.MaxSGE, verbs.ErrUnsupported)
	}
	more := C.uint32_t(attr.MaxSendWR + attr.MaxRecvWR)
	C.hca_cq_grow(cq.c, more, C.uint32_t(caps.MaxCQE))
	c, err := C.hca_qp_open(i.c, p.c, cq.c, C.uint32_t(attr.MaxSendWR), C.uint32_t(attr.MaxRecvWR), C.uint32_t(attr.MaxSendSGE), C.uint32_t(attr.MaxRecvSGE))
	if c == nil {
		C.hca_cq_grow(cq.c, -more, C.uint32_t(caps.MaxCQE))
		errno := errnoOf(err)
		hint := ""
		switch errno {
		case unix.ENOMEM:
			hint = "the queue pair is too large for the device, or " + memlock(uint64(attr.MaxSendWR)*256)
		case unix.EINVAL:
			hint = fmt.Sprintf("the device says %d requests and %d pieces are possible, but not always together: lower peer_credits", caps.MaxQPWR, caps.MaxSGE)
		}
		e := failed(errno, hint, "rdma_create_qp for %d sends and %d receives on %s", attr.MaxSendWR, attr.MaxRecvWR, i.dev.info.Name)
		if errno == unix.ENOTCONN {
			e.also, e.hint = verbs.ErrState, "the peer has given the connection up, or the address is gone"
		}
		return nil, e
	}
	q := &qp{id: i, cq: cq, c: c, num: uint32(C.hca_qp_num(c))}
	i.mu.Lock()
	i.q = q
	i.mu.Unlock()
	x := i.dev.ctx
	x.mu.Lock()
	x.qps[q.num] = q
	x.mu.Unlock()
	return q, nil
}

func (q *qp) Num() uint32 { return q.num }

// fail notes why the queue pair failed, and ends the connection; later reasons, and those after an end on
// purpose, are consequences.
func (q *qp) fail(why error) {
	q.mu.Lock()
	first := !q.ended && !q.over
	if first {
		q.cause, q.over = why, true
	}
	q.mu.Unlock()
	if first {
		q.id.cm.prov.later(q.id.end)
	}
}

// end notes that the connection ends on purpose, and gives the reason where it failed before.
func (q *qp) end() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	return q.cause
}

// ToError implements verbs.QP. A connection is ended, so that the peer learns of it.
func (q *qp) ToError() error {
	if q.closed.Load() {
		return nil
	}
	q.end()
	var wake C.int
	e := C.hca_qp_error(q.c, &wake)
	if wake != 0 {
		q.cq.waiter.Wake()
	}
	if e != 0 {
		return failed(unix.Errno(e), "", "ibv_modify_qp to error on %s", q.id.dev.info.Name)
	}
	if q.id.connected.Load() {
		q.id.cm.prov.later(q.id.end)
	}
	return nil
}

// Close implements verbs.QP. Completions of it that nobody took are dropped; the device frees it later.
func (q *qp) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	q.end()
	i := q.id
	x := i.dev.ctx
	x.mu.Lock()
	delete(x.qps, q.num)
	x.mu.Unlock()
	C.hca_qp_detach(q.c)
	i.mu.Lock()
	i.q = nil
	i.mu.Unlock()
	i.freeing.Add(1)
	i.dev.jobs.Add(1)
	i.cm.prov.later(func() {
		defer i.dev.jobs.Done()
		defer i.freeing.Done()
		i.calling.Lock()
		defer i.calling.Unlock()
		// librdmacm changes the queue pair's state while it takes an event.
		i.cm.taking.Lock()
		defer i.cm.taking.Unlock()
		i.mu.Lock()
		defer i.mu.Unlock()
		if e := C.hca_qp_free(i.c, q.c); e != 0 {
			i.cm.trouble(failed(unix.Errno(e), "", "ibv_destroy_qp on %s", i.dev.info.Name))
		}
	})
	return nil
}
