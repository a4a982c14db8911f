//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// cm implements verbs.CM: an event channel, and the goroutine that takes its events.
type cm struct {
	prov   *provider
	waiter verbs.Waiter
	c      *C.struct_rdma_event_channel
	events *os.File // a duplicate of the channel's descriptor
	done   chan struct{}
	ids    sync.WaitGroup // that are not destroyed yet
	taking sync.Mutex     // held while librdmacm takes events
	raw    [32]C.struct_hca_event

	mu    sync.Mutex
	byID  map[uint64]*id
	queue []verbs.Event
	err   error // to be told by Poll
}

// OpenCM implements verbs.Provider.
func (p *provider) OpenCM(w verbs.Waiter) (verbs.CM, error) {
	ch, err := C.rdma_create_event_channel()
	if ch == nil {
		errno := errnoOf(err)
		return nil, failed(errno, accessHint(errno, "/dev/infiniband/rdma_cm", "rdma_ucm"), "rdma_create_event_channel")
	}
	f, err := pollable(int(ch.fd), "rdma_cm events")
	if err != nil {
		C.rdma_destroy_event_channel(ch)
		return nil, err
	}
	c := &cm{prov: p, waiter: w, c: ch, events: f, done: make(chan struct{}), byID: make(map[uint64]*id)}
	go func() {
		defer close(c.done)
		readable(f, c.take)
	}()
	return c, nil
}

// NewID implements verbs.CM.
func (c *cm) NewID(user any) (verbs.ID, error) {
	var handle C.uint64_t
	raw, err := C.hca_id_open(c.c, &handle)
	if raw == nil {
		errno := errnoOf(err)
		return nil, failed(errno, accessHint(errno, "/dev/infiniband/rdma_cm", "rdma_ucm"), "rdma_create_id")
	}
	i := c.newID(raw, uint64(handle), user)
	if t := c.prov.opt.ACKTimeout; t > 0 {
		if e := C.hca_option(raw, C.RDMA_OPTION_ID_ACK_TIMEOUT, C.uint8_t(t)); e != 0 {
			i.Close()
			return nil, failed(unix.Errno(e), "this kernel cannot set the ACK timeout: leave it out", "rdma_set_option ACK timeout %d", t)
		}
	}
	return i, nil
}

func (c *cm) newID(raw *C.struct_rdma_cm_id, handle uint64, user any) *id {
	i := &id{cm: c, c: raw, handle: handle}
	i.SetUser(user)
	c.ids.Add(1)
	c.mu.Lock()
	c.byID[handle] = i
	c.mu.Unlock()
	return i
}

func (c *cm) add(ev verbs.Event) {
	c.mu.Lock()
	c.queue = append(c.queue, ev)
	c.mu.Unlock()
	c.waiter.Wake()
}

// trouble is told to the owner by its next Poll.
func (c *cm) trouble(err error) {
	c.mu.Lock()
	c.err = errors.Join(c.err, err)
	c.mu.Unlock()
	c.waiter.Wake()
}

// Poll implements verbs.CM.
func (c *cm) Poll(evs []verbs.Event) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, k := 0, 0
	for ; k < len(c.queue) && n < len(evs); k++ {
		if ev := &c.queue[k]; !ev.ID.(*id).closed.Load() {
			evs[n] = *ev
			n++
		}
	}
	rest := copy(c.queue, c.queue[k:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	err := c.err
	c.err = nil
	return n, err
}

// Close implements verbs.CM. Requests that nobody took are refused.
func (c *cm) Close() error {
	c.mu.Lock()
	left := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, ev := range left {
		if ev.Type == verbs.EventConnectRequest {
			ev.ID.Close()
		}
	}
	c.mu.Lock()
	ids := slices.Collect(maps.Values(c.byID))
	c.mu.Unlock()
	for _, i := range ids {
		if i.closed.Load() {
			i.destroySoon() // it waits no longer for its peer's last word
		}
	}
	c.ids.Wait()
	c.events.Close()
	<-c.done
	C.rdma_destroy_event_channel(c.c)
	return nil
}

// take takes the events that are there.
func (c *cm) take() {
	for {
		var e C.int
		c.taking.Lock()
		n := int(C.hca_events(c.c, &c.raw[0], C.int(len(c.raw)), &e))
		c.taking.Unlock()
		for k := range n {
			c.event(&c.raw[k])
		}
		// An error is of one event only, and the reader goes on behind it; a channel that is broken has none.
		if n == 0 && (e == 0 || unix.Errno(e) == unix.EBADF || unix.Errno(e) == unix.EIO) {
			return
		}
	}
}

// eventTypes translates rdma_cm's.
var eventTypes = map[C.int32_t]verbs.EventType{
	C.RDMA_CM_EVENT_ADDR_RESOLVED: verbs.EventAddrResolved, C.RDMA_CM_EVENT_ADDR_ERROR: verbs.EventAddrError,
	C.RDMA_CM_EVENT_ROUTE_RESOLVED: verbs.EventRouteResolved, C.RDMA_CM_EVENT_ROUTE_ERROR: verbs.EventRouteError,
	C.RDMA_CM_EVENT_CONNECT_REQUEST: verbs.EventConnectRequest, C.RDMA_CM_EVENT_CONNECT_RESPONSE: verbs.EventConnectResponse,
	C.RDMA_CM_EVENT_CONNECT_ERROR: verbs.EventConnectError, C.RDMA_CM_EVENT_UNREACHABLE: verbs.EventUnreachable,
	C.RDMA_CM_EVENT_REJECTED: verbs.EventRejected, C.RDMA_CM_EVENT_ESTABLISHED: verbs.EventEstablished,
	C.RDMA_CM_EVENT_DISCONNECTED: verbs.EventDisconnected, C.RDMA_CM_EVENT_DEVICE_REMOVAL: verbs.EventDeviceRemoval,
	C.RDMA_CM_EVENT_ADDR_CHANGE: verbs.EventAddrChange, C.RDMA_CM_EVENT_TIMEWAIT_EXIT: verbs.EventTimewaitExit,
}

// event does what an event asks for, and passes it on.
func (c *cm) event(raw *C.struct_hca_event) {
	typ, ok := eventTypes[raw._type]
	if !ok {
		return
	}
	ev := verbs.Event{Type: typ, Status: int(raw.status), Param: verbs.ConnParam{
		ResponderResources: uint8(raw.responder_resources), InitiatorDepth: uint8(raw.initiator_depth), FlowControl: raw.flow_control != 0,
		RetryCount: uint8(raw.retry_count), RNRRetryCount: uint8(raw.rnr_retry_count),
	}}
	for _, b := range raw.private_data[:raw.private_len] {
		ev.Private = append(ev.Private, byte(b))
	}
	if typ == verbs.EventConnectRequest {
		c.request(raw, ev)
		return
	}
	c.mu.Lock()
	i := c.byID[uint64(raw.id)]
	c.mu.Unlock()
	if i == nil {
		return
	}
	ev.ID = i
	switch typ {
	case verbs.EventAddrResolved:
		if err := i.found(); err != nil {
			ev.Type, ev.Err = verbs.EventAddrError, err
		}
	case verbs.EventAddrError, verbs.EventRouteError, verbs.EventConnectError, verbs.EventUnreachable:
		if ev.Status != 0 {
			ev.Err = unix.Errno(max(ev.Status, -ev.Status))
		}
	case verbs.EventRejected:
		ev.Reject = i.rejectKind(ev.Status, len(ev.Private))
	case verbs.EventEstablished:
		i.ready()
	case verbs.EventDisconnected:
		i.peerEnded()
		return
	}
	c.add(ev)
}

// request makes the child of a connection request.
func (c *cm) request(raw *C.struct_hca_event, ev verbs.Event) {
	child := c.newID((*C.struct_rdma_cm_id)(idPointer(raw.child)), uint64(raw.id), nil)
	child.request = true
	c.mu.Lock()
	l := c.byID[uint64(raw.listener)]
	c.mu.Unlock()
	if l == nil || l.closed.Load() {
		child.Close()
		return
	}
	if err := child.found(); err != nil {
		c.trouble(fmt.Errorf("a connection request was dropped: %w", err))
		child.Close()
		return
	}
	child.SetUser(l.User())
	ev.ID, ev.Listener = child, l
	c.add(ev)
}

// Reasons of an InfiniBand connection manager's REJ.
const (
	rejStale     = 10
	rejNoService = 8
	rejConsumer  = 28
)

// consumerRejectMin is the least private data of a consumer's reject over iWARP, which has no reasons.
const consumerRejectMin = 7

func (i *id) rejectKind(status, private int) verbs.RejectKind {
	if i.dev != nil && i.dev.iwarp() {
		switch {
		case private >= consumerRejectMin:
			return verbs.RejectConsumer
		case -status == int(unix.ECONNREFUSED), -status == int(unix.ECONNRESET):
			return verbs.RejectNoListener
		}
		return verbs.RejectOther
	}
	switch status {
	case rejConsumer:
		return verbs.RejectConsumer
	case rejNoService:
		return verbs.RejectNoListener
	case rejStale:
		return verbs.RejectStaleConn
	}
	return verbs.RejectOther
}

// toC and fromC translate addresses; a zone is an interface's name or index.
func toC(a netip.AddrPort) C.struct_hca_addr {
	var c C.struct_hca_addr
	c.port = C.uint16_t(a.Port())
	switch addr := a.Addr().Unmap(); {
	case addr.Is4():
		c.family = 4
		for k, b := range addr.As4() {
			c.ip[k] = C.uint8_t(b)
		}
	case addr.Is6():
		c.family = 6
		for k, b := range addr.As16() {
			c.ip[k] = C.uint8_t(b)
		}
		if n, err := net.InterfaceByName(addr.Zone()); err == nil {
			c.scope = C.uint32_t(n.Index)
		}
	}
	return c
}

func fromC(c *C.struct_hca_addr) netip.AddrPort {
	var b [16]byte
	for k := range b {
		b[k] = byte(c.ip[k])
	}
	switch c.family {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(c.port))
	case 6:
		return netip.AddrPortFrom(netip.AddrFrom16(b), uint16(c.port))
	}
	return netip.AddrPort{}
}

// disconnected is the event that ends a connection, once.
func (i *id) disconnected(why error) {
	if !i.told.Swap(true) {
		i.cm.add(verbs.Event{Type: verbs.EventDisconnected, ID: i, Err: why})
	}
}

// peerEnded answers a peer's end of the connection, or takes in its answer to ours.
func (i *id) peerEnded() {
	i.mu.Lock()
	i.confirmed = true
	if i.grace != nil {
		i.grace.Stop()
	}
	var why error
	if q := i.q; q != nil {
		// Where we did not end it and the device has, something went wrong that nobody has told us yet.
		q.mu.Lock()
		if !q.ended && q.cause == nil && !i.dev.iwarp() && C.hca_qp_in_error(q.c) != 0 {
			q.cause = errors.New("the queue pair failed before the peer disconnected")
		}
		q.ended = true
		why = q.cause
		q.mu.Unlock()
	}
	if !i.destroyed {
		C.rdma_disconnect(i.c) // fails where there is nothing left to answer
	}
	lingers := i.closed.Load()
	i.mu.Unlock()
	i.disconnected(why)
	if lingers {
		i.destroySoon()
	}
}

// end ends a connection from our side, once. The peer's confirmation is an event, or never comes.
func (i *id) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed || i.ending || i.confirmed || !i.connected.Load() {
		return
	}
	i.ending, i.begun = true, time.Now()
	C.rdma_disconnect(i.c) // fails where the peer was faster
	i.grace = time.AfterFunc(disconnectGrace, func() {
		var why error
		i.mu.Lock()
		if i.q != nil {
			i.q.mu.Lock()
			why = i.q.cause
			i.q.mu.Unlock()
		}
		i.mu.Unlock()
		i.disconnected(why)
		// The message may have been lost: rdma_cm sends it again while the id is there.
		i.mu.Lock()
		if !i.confirmed && !i.dying {
			i.grace = time.AfterFunc(lingerFor, func() {
				if i.closed.Load() {
					i.destroySoon()
				}
			})
		}
		i.mu.Unlock()
	})
}

// established is told by the device when data comes before the peer's last word of the set-up, which may be
// lost: the connection manager takes it for that word.
func (i *id) established() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.destroyed {
		C.rdma_notify(i.c, C.IBV_EVENT_COMM_EST) // fails where it is established
	}
}
