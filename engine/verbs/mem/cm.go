package mem

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// What InfiniBand's connection messages leave for private data (spec o2iblnd 1.1).
const (
	padRequest = 56
	padReply   = 196
	padReject  = 148
)

// Raw reject status as rdma_cm gives it.
const (
	statusNoListener = 8
	statusStale      = 10
	statusConsumer   = 28
)

// cm implements verbs.CM; fabric.mu guards it.
type cm struct {
	n      *node
	w      verbs.Waiter
	events queue[verbs.Event]
}

func (c *cm) NewID(user any) (verbs.ID, error) {
	c.n.f.mu.Lock()
	defer c.n.f.mu.Unlock()
	return c.newID(user), nil
}

func (c *cm) newID(user any) *id {
	f := c.n.f
	i := &id{c: c, n: c.n, user: user, at: len(f.ids)}
	f.ids = append(f.ids, i)
	return i
}

func (c *cm) Poll(evs []verbs.Event) (int, error) {
	c.n.f.mu.Lock()
	defer c.n.f.mu.Unlock()
	k := 0
	for k < len(evs) && c.events.n > 0 {
		ev := *c.events.first()
		c.events.pop()
		i := ev.ID.(*id)
		if l, ok := ev.Listener.(*id); ok && l.closed {
			i.close() // nobody is left to decide about it
		}
		if !i.closed {
			evs[k] = ev
			k++
		}
	}
	return k, nil
}

func (c *cm) Close() error { return nil }

// id implements verbs.ID; fabric.mu guards it. Its events on their way are a lane.
type id struct {
	moves
	c             *cm
	n             *node
	at            int // in fabric.ids
	user          any
	dev           *device
	local, remote netip.AddrPort
	owns          bool // local is reserved for it
	param         verbs.ConnParam
	qp            *qp
	other         *id  // the other end, once there is one
	passive       bool // a child
	decided       bool // which was accepted or refused
	asking        bool // Connect has no answer yet
	closed        bool
	held          bool
	coming        queue[verbs.Event]
}

// event sends one on its way.
func (i *id) event(ev verbs.Event) {
	if i.closed {
		return
	}
	ev.ID = i
	i.coming.push(ev)
	i.n.f.kick(i)
}

// answer is the event that Connect waits for.
func (i *id) answer(ev verbs.Event) {
	if i.asking {
		i.asking = false
		i.event(ev)
	}
}

// dark says that nothing comes from or goes to this end.
func (i *id) dark() bool { return i.dev.dark() }

// ready implements lane.
func (i *id) ready() bool { return i.coming.n > 0 && !i.held && !i.closed }

func (i *id) step() {
	ev := *i.coming.first()
	i.coming.pop()
	i.c.events.push(ev)
	i.c.w.Wake()
	i.n.f.trace("%v %v: %v", i.local, i.remote, ev.Type)
}

func (i *id) SetUser(user any) {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	i.user = user
}

func (i *id) User() any {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	return i.user
}

func (i *id) Device() verbs.Device {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if i.dev == nil {
		return nil
	}
	return i.dev
}

func (i *id) QP() verbs.QP {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if i.qp == nil || i.qp.closed {
		return nil
	}
	return i.qp
}

func (i *id) Local() netip.AddrPort {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	return i.local
}

func (i *id) Remote() netip.AddrPort {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	return i.remote
}

func (i *id) SetTOS(uint8) error { return nil }

func (i *id) Bind(local netip.AddrPort, reuse bool) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	return i.bind(local, reuse)
}

func (i *id) bind(local netip.AddrPort, reuse bool) error {
	f := i.n.f
	if i.owns {
		return fmt.Errorf("bind %v: the id is bound to %v: %w", local, i.local, verbs.ErrState)
	}
	var dev *device
	for _, d := range i.n.devices {
		if d.info.Addr == local.Addr() && !d.lost {
			dev = d
		}
	}
	if dev == nil {
		return fmt.Errorf("%v: %w", local.Addr(), verbs.ErrNoDevice)
	}
	if local.Port() == 0 {
		for f.bound[local] > 0 || local.Port() == 0 {
			f.nextPort = max(f.nextPort+1, firstPort)
			local = netip.AddrPortFrom(local.Addr(), f.nextPort)
		}
	} else if f.bound[local] > 0 && !reuse {
		return fmt.Errorf("bind %v: %w", local, unix.EADDRINUSE)
	}
	f.bound[local]++
	i.dev, i.local, i.owns = dev, local, true
	return nil
}

func (i *id) Listen(int) error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case i.dev == nil:
		return fmt.Errorf("listen before bind: %w", verbs.ErrState)
	case f.listeners[i.local] != nil:
		return fmt.Errorf("listen at %v: %w", i.local, unix.EADDRINUSE)
	}
	f.listeners[i.local] = i
	return nil
}

func (i *id) ResolveAddr(local, remote netip.AddrPort, reuse bool, _ time.Duration) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if local.Addr().IsValid() {
		if err := i.bind(local, reuse); err != nil {
			return err
		}
	}
	if i.dev == nil {
		return fmt.Errorf("resolve %v without a local address: %w", remote, verbs.ErrState)
	}
	i.remote = remote
	i.event(verbs.Event{Type: verbs.EventAddrResolved})
	return nil
}

func (i *id) ResolveRoute(time.Duration) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if !i.remote.IsValid() {
		return fmt.Errorf("resolve a route before the address: %w", verbs.ErrState)
	}
	i.event(verbs.Event{Type: verbs.EventRouteResolved})
	return nil
}

func (i *id) CreateQP(attr verbs.QPAttr) (verbs.QP, error) {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.dev == nil {
		return nil, fmt.Errorf("queue pair before the id has a device: %w", verbs.ErrState)
	}
	if err := i.dev.usable(CallCreateQP); err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	p, ok := attr.PD.(*pd)
	if !ok || p.d != i.dev {
		return nil, fmt.Errorf("queue pair: protection domain: %w", errNotOurs)
	}
	c, ok := attr.CQ.(*cq)
	if !ok || c.d != i.dev {
		return nil, fmt.Errorf("queue pair: completion queue: %w", errNotOurs)
	}
	f.qpNum++
	i.qp = newQP(i, p, c, attr)
	return i.qp, nil
}

// private is a copy of what goes with a connection message, as long as the receiver sees it.
func (f *Fabric) private(b []byte, pad int) []byte {
	if !f.opt.PadPrivate {
		pad = 0
	}
	out := make([]byte, max(len(b), pad))
	copy(out, b)
	return out
}

func (i *id) Connect(p verbs.ConnParam) error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.qp == nil || i.qp.state != qpIdle || !i.remote.IsValid() || i.other != nil || i.asking {
		return fmt.Errorf("connect is for an id that is resolved, has a new queue pair and was not connected: %w", verbs.ErrState)
	}
	i.param, i.asking = p, true
	l := f.listeners[i.remote]
	there := f.nodes[i.remote.Addr()]
	switch {
	case there == nil || i.dark() || f.device(i.remote.Addr()).dark():
		i.answer(verbs.Event{Type: verbs.EventUnreachable, Err: unix.EHOSTUNREACH})
		return nil
	case l == nil:
		i.answer(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectNoListener, Status: statusNoListener})
		return nil
	case f.stale > 0:
		f.stale--
		i.answer(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectStaleConn, Status: statusStale})
		return nil
	}
	child := l.c.newID(l.user)
	child.dev, child.local, child.remote, child.other, child.passive = l.dev, l.local, i.local, i, true
	i.other = child
	child.event(verbs.Event{Type: verbs.EventConnectRequest, Listener: l, Private: f.private(p.Private, padRequest), Param: mirrored(p)})
	return nil
}

// mirrored is what the other side is told of p: whose reads are answered and who reads change places.
func mirrored(p verbs.ConnParam) verbs.ConnParam {
	p.Private = nil
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	return p
}

func (i *id) Accept(p verbs.ConnParam) error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !i.passive || i.decided || i.qp == nil || i.qp.state != qpIdle {
		return fmt.Errorf("accept is for a request without an answer, and needs a new queue pair: %w", verbs.ErrState)
	}
	i.decided, i.param = true, p
	o := i.other
	switch {
	case i.dark() || o.dark():
		i.event(verbs.Event{Type: verbs.EventUnreachable, Err: errNoAnswer})
		return nil
	case o.closed || !o.asking || o.qp.state != qpIdle:
		i.event(verbs.Event{Type: verbs.EventConnectError, Err: unix.ECONNRESET})
		o.answer(verbs.Event{Type: verbs.EventConnectError, Err: unix.ECONNRESET})
		return nil
	}
	i.qp.peer, o.qp.peer = o.qp, i.qp
	i.qp.state, o.qp.state = qpReady, qpReady
	o.qp.told = true
	o.answer(verbs.Event{Type: verbs.EventEstablished, Private: f.private(p.Private, padReply), Param: mirrored(p)})
	if f.dropRTU > 0 {
		f.dropRTU--
		return nil
	}
	i.qp.told = true
	i.event(verbs.Event{Type: verbs.EventEstablished})
	return nil
}

func (i *id) Reject(private []byte) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if !i.passive || i.decided {
		return fmt.Errorf("reject without a request: %w", verbs.ErrState)
	}
	i.refuse(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectConsumer, Status: statusConsumer, Private: i.n.f.private(private, padReject)})
	return nil
}

func (i *id) refuse(ev verbs.Event) {
	i.decided = true
	if !i.dark() && !i.other.dark() {
		i.other.answer(ev)
	}
}

// Disconnect implements verbs.ID: what was posted goes first.
func (i *id) Disconnect() error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if i.qp == nil || i.qp.peer == nil {
		return fmt.Errorf("disconnect without a connection: %w", verbs.ErrState)
	}
	i.qp.disconnect()
	return nil
}

func (i *id) Close() error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	i.close()
	return nil
}

func (i *id) close() {
	f := i.n.f
	if i.closed {
		return
	}
	i.closed = true
	last := f.ids[len(f.ids)-1]
	f.ids[i.at], last.at = last, i.at
	f.ids[len(f.ids)-1] = nil
	f.ids = f.ids[:len(f.ids)-1]
	if f.listeners[i.local] == i {
		delete(f.listeners, i.local)
	}
	if i.owns {
		if f.bound[i.local]--; f.bound[i.local] == 0 {
			delete(f.bound, i.local)
		}
	}
	if i.qp != nil {
		i.qp.fail(verbs.WCFlushed, nil)
	}
	if i.passive && !i.decided {
		i.refuse(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectOther})
	}
}
