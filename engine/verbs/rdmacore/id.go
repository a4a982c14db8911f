//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// Most private data that rdma_cm carries: 56 bytes of a request are ours on InfiniBand, and length is a byte.
const maxPrivate = 255

// id implements verbs.ID. The goroutine of its CM owns it; mu guards what workers and the event goroutine
// reach.
type id struct {
	cm     *cm
	c      *C.struct_rdma_cm_id
	handle uint64
	user   atomic.Pointer[any]
	closed atomic.Bool

	request, answered, listening, asked bool
	dev                                 *device
	remote                              netip.AddrPort // until rdma_cm knows it

	connected atomic.Bool    // there is, or will be, something to disconnect
	told      atomic.Bool    // EventDisconnected was sent
	freeing   sync.WaitGroup // what must end before the id can be destroyed
	calling   sync.Mutex     // held by a connect on a worker, and to free the queue pair

	mu        sync.Mutex
	q         *qp
	ending    bool // we disconnected
	confirmed bool // and the peer knows, or it did
	dying     bool // a worker destroys it
	destroyed bool
	begun     time.Time // of our end
	grace     *time.Timer
}

// idPointer turns a pointer of C's, which came as a number, back.
func idPointer(n C.uint64_t) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&n)) }

func (i *id) SetUser(u any) { i.user.Store(&u) }
func (i *id) User() any     { return *i.user.Load() }

// found takes in the device once the id is bound.
func (i *id) found() error {
	if i.c.verbs == nil {
		return verbs.ErrNoDevice
	}
	d, err := i.cm.prov.device(i.c, i.Local().Addr())
	if err != nil {
		return err
	}
	i.mu.Lock()
	i.dev = d
	i.mu.Unlock()
	return nil
}

// Device implements verbs.ID.
func (i *id) Device() verbs.Device {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dev == nil {
		return nil
	}
	return i.dev
}

// QP implements verbs.ID.
func (i *id) QP() verbs.QP {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.q == nil {
		return nil
	}
	return i.q
}

func (i *id) Local() netip.AddrPort {
	l, _ := i.names()
	return l
}

func (i *id) Remote() netip.AddrPort {
	if _, r := i.names(); r.IsValid() {
		return r
	}
	return i.remote
}

func (i *id) names() (local, remote netip.AddrPort) {
	var l, r C.struct_hca_addr
	C.hca_names(i.c, &l, &r)
	return fromC(&l), fromC(&r)
}

// noDevice says whether an errno of binding means that no device serves the address.
func noDevice(errno unix.Errno) error {
	if errno == unix.ENODEV || errno == unix.EADDRNOTAVAIL {
		return verbs.ErrNoDevice
	}
	return nil
}

// Bind implements verbs.ID.
func (i *id) Bind(local netip.AddrPort, reuse bool) error {
	at := toC(local)
	if e := unix.Errno(C.hca_bind(i.c, &at, flag(reuse))); e != 0 {
		err := failed(e, bindHint(e, local.Port()), "rdma_bind_addr to %v", local)
		err.also = noDevice(e)
		return err
	}
	if err := i.found(); err != nil && !(local.Addr().IsUnspecified() && errors.Is(err, verbs.ErrNoDevice)) {
		return fmt.Errorf("bind to %v: %w", local, err)
	}
	return nil
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Listen implements verbs.ID.
func (i *id) Listen(backlog int) error {
	if r, err := C.rdma_listen(i.c, C.int(backlog)); r != 0 {
		errno := errnoOf(err)
		return failed(errno, bindHint(errno, i.Local().Port()), "rdma_listen on %v", i.Local())
	}
	i.listening = true
	return nil
}

// ResolveAddr implements verbs.ID.
func (i *id) ResolveAddr(local, remote netip.AddrPort, reuse bool, timeout time.Duration) error {
	from, to := toC(local), toC(remote)
	i.remote = remote
	if e := unix.Errno(C.hca_resolve_addr(i.c, &from, &to, C.int(timeout.Milliseconds()), flag(reuse))); e != 0 {
		err := failed(e, bindHint(e, local.Port()), "rdma_resolve_addr from %v to %v", local, remote)
		err.also = noDevice(e)
		return err
	}
	return nil
}

// ResolveRoute implements verbs.ID.
func (i *id) ResolveRoute(timeout time.Duration) error {
	if r, err := C.rdma_resolve_route(i.c, C.int(timeout.Milliseconds())); r != 0 {
		return failed(errnoOf(err), "", "rdma_resolve_route to %v", i.Remote())
	}
	return nil
}

// SetTOS implements verbs.ID.
func (i *id) SetTOS(tos uint8) error {
	if e := C.hca_option(i.c, C.RDMA_OPTION_ID_TOS, C.uint8_t(tos)); e != 0 {
		return failed(unix.Errno(e), "", "rdma_set_option type of service %d", tos)
	}
	return nil
}

// param lays parameters out for C. Lengths over what the carrier takes are refused by rdma_cm itself.
func param(p *verbs.ConnParam) (C.struct_hca_param, error) {
	c := C.struct_hca_param{
		responder_resources: C.uint8_t(p.ResponderResources), initiator_depth: C.uint8_t(p.InitiatorDepth),
		retry_count: C.uint8_t(p.RetryCount), rnr_retry_count: C.uint8_t(p.RNRRetryCount),
	}
	if p.FlowControl {
		c.flow_control = 1
	}
	if n := len(p.Private); n > maxPrivate {
		return c, fmt.Errorf("%d bytes of private data: at most %d fit", n, maxPrivate)
	}
	return c, nil
}

// privateHint explains EINVAL, which rdma_cm gives for private data that does not fit.
func privateHint(errno unix.Errno, n int) string {
	if errno == unix.EINVAL && n > 0 {
		return fmt.Sprintf("%d bytes of private data may be more than the carrier takes, or the connection is not in a state for it", n)
	}
	return ""
}

// Connect implements verbs.ID.
func (i *id) Connect(p verbs.ConnParam) error {
	if i.QP() == nil || i.asked {
		return fmt.Errorf("connect without a queue pair, or again: %w", verbs.ErrState)
	}
	c, err := param(&p)
	if err != nil {
		return err
	}
	i.asked = true
	if !i.dev.iwarp() {
		return i.connect(&c, p.Private)
	}
	// On iWARP the call may wait for TCP's connection; how it ends is an event.
	private := append([]byte(nil), p.Private...)
	i.freeing.Add(1)
	i.cm.prov.running.Go(func() {
		defer i.freeing.Done()
		i.calling.Lock()
		defer i.calling.Unlock()
		if i.closed.Load() {
			return
		}
		if err := i.connect(&c, private); err != nil {
			i.cm.add(connectFailed(i, err))
		}
	})
	return nil
}

func (i *id) connect(c *C.struct_hca_param, private []byte) error {
	if e := unix.Errno(C.hca_connect(i.c, c, unsafe.Pointer(unsafe.SliceData(private)), C.int(len(private)))); e != 0 {
		return failed(e, privateHint(e, len(private)), "rdma_connect to %v", i.Remote())
	}
	return nil
}

// connectFailed is the event of a connect that TCP could not make.
func connectFailed(i *id, err error) verbs.Event {
	ev := verbs.Event{Type: verbs.EventConnectError, ID: i, Err: err}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		ev.Type, ev.Reject, ev.Status = verbs.EventRejected, verbs.RejectNoListener, int(unix.ECONNREFUSED)
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		ev.Type = verbs.EventUnreachable
	}
	return ev
}

// Accept implements verbs.ID.
func (i *id) Accept(p verbs.ConnParam) error {
	if !i.request || i.answered || i.QP() == nil {
		return fmt.Errorf("accept without a request and a queue pair, or again: %w", verbs.ErrState)
	}
	c, err := param(&p)
	if err != nil {
		return err
	}
	i.answered = true
	i.connected.Store(true)
	if e := unix.Errno(C.hca_accept(i.c, &c, unsafe.Pointer(unsafe.SliceData(p.Private)), C.int(len(p.Private)))); e != 0 {
		i.connected.Store(false)
		return failed(e, privateHint(e, len(p.Private)), "rdma_accept of %v", i.Remote())
	}
	if !i.dev.iwarp() {
		i.ready()
	}
	return nil
}

// ready lets sends be posted.
func (i *id) ready() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.connected.Store(true)
	if i.q != nil && !i.q.closed.Load() {
		C.hca_qp_ready(i.q.c)
	}
}

// Reject implements verbs.ID.
func (i *id) Reject(private []byte) error {
	if !i.request || i.answered {
		return fmt.Errorf("reject without a request, or after an answer: %w", verbs.ErrState)
	}
	if len(private) > maxPrivate {
		return fmt.Errorf("%d bytes of private data: at most %d fit", len(private), maxPrivate)
	}
	i.answered = true
	if r, err := C.rdma_reject(i.c, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private))); r != 0 {
		errno := errnoOf(err)
		return failed(errno, privateHint(errno, len(private)), "rdma_reject of %v", i.Remote())
	}
	return nil
}

// Disconnect implements verbs.ID.
func (i *id) Disconnect() error {
	if !i.connected.Load() {
		return fmt.Errorf("disconnect without a connection: %w", verbs.ErrState)
	}
	i.mu.Lock()
	q := i.q
	i.mu.Unlock()
	if q != nil {
		q.end()
	}
	i.cm.prov.later(i.end)
	return nil
}

// Close implements verbs.ID. A listener is gone when this returns; a connection's id goes when its peer has
// confirmed the end, or disconnectGrace later.
func (i *id) Close() error {
	if i.closed.Swap(true) {
		return nil
	}
	if i.listening {
		i.destroySoon()
		return nil
	}
	i.mu.Lock()
	lingers := i.connected.Load() && !i.confirmed && (i.begun.IsZero() || time.Since(i.begun) < disconnectGrace+lingerFor)
	i.mu.Unlock()
	if lingers {
		i.cm.prov.later(i.end)
	} else {
		i.destroySoon()
	}
	return nil
}

// destroySoon destroys the id on a worker, once.
func (i *id) destroySoon() {
	i.mu.Lock()
	first := !i.dying
	i.dying = true
	if i.grace != nil {
		i.grace.Stop()
	}
	i.mu.Unlock()
	if !first {
		return
	}
	destroy := func() {
		defer i.cm.ids.Done()
		i.mu.Lock()
		i.destroyed = true
		i.mu.Unlock()
		C.rdma_destroy_id(i.c)
		i.cm.mu.Lock()
		delete(i.cm.byID, i.handle)
		i.cm.mu.Unlock()
	}
	if i.listening {
		destroy()
		return
	}
	i.cm.prov.after(&i.freeing, destroy)
}
