package mem

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// What InfiniBand's connection messages leave for private data.
const (
	padRequest = 56
	padReply   = 196
	padReject  = 148
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
	i := &id{c: c, n: c.n, user: user}
	c.n.f.add(i)
	return i
}

func (c *cm) Poll(evs []verbs.Event) (int, error) {
	c.n.f.mu.Lock()
	defer c.n.f.mu.Unlock()
	k := 0
	for k < len(evs) && c.events.n > 0 {
		if ev := *c.events.first(); !ev.ID.(*id).closed {
			evs[k] = ev
			k++
		}
		c.events.pop()
	}
	return k, nil
}

func (c *cm) Close() error { return nil }

// id implements verbs.ID; fabric.mu guards it. Its events on their way are a lane.
type id struct {
	c             *cm
	n             *node
	user          any
	dev           *device
	local, remote netip.AddrPort
	owns          bool // local is reserved for it
	param         verbs.ConnParam
	qp            *qp
	other         *id // the other end, once there is one
	passive       bool
	decided       bool // a child that was accepted or refused
	ended         bool
	closed        bool
	held          bool
	coming        queue[verbs.Event]
}

func (i *id) SetUser(user any) {
	i.n.f.mu.Lock()
	i.user = user
	i.n.f.mu.Unlock()
}

func (i *id) User() any {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	return i.user
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

func (i *id) ready() bool { return i.coming.n > 0 && !i.held && !i.closed }

func (i *id) dead() bool { return i.closed }

func (i *id) step() string {
	ev := *i.coming.first()
	i.coming.pop()
	i.c.events.push(ev)
	i.c.w.Wake()
	if i.n.f.opt.Trace == nil {
		return ""
	}
	return fmt.Sprintf("%v at %v", ev.Type, i.local)
}

// take reserves a local address.
func (i *id) take(local netip.AddrPort, reuse bool) error {
	f := i.n.f
	for _, d := range i.n.devices {
		if d.info.Addr == local.Addr() {
			i.dev = d
		}
	}
	if i.dev == nil {
		return fmt.Errorf("%v: %w", local.Addr(), verbs.ErrNoDevice)
	}
	if local.Port() == 0 {
		for f.bound[local] || local.Port() == 0 {
			f.nextPort = max(f.nextPort+1, 32768)
			local = netip.AddrPortFrom(local.Addr(), f.nextPort)
		}
	} else if f.bound[local] && !reuse {
		return fmt.Errorf("bind %v: %w", local, unix.EADDRINUSE)
	}
	f.bound[local] = true
	i.local, i.owns = local, true
	return nil
}

func (i *id) Bind(local netip.AddrPort, reuse bool) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	return i.take(local, reuse)
}

func (i *id) Listen(int) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if i.dev == nil {
		return fmt.Errorf("listen before bind: %w", verbs.ErrState)
	}
	i.n.f.listeners[i.local] = i
	return nil
}

func (i *id) ResolveAddr(local, remote netip.AddrPort, reuse bool, _ time.Duration) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if local.Addr().IsValid() {
		if err := i.take(local, reuse); err != nil {
			return err
		}
	}
	if i.dev == nil {
		return fmt.Errorf("resolve without a local address: %w", verbs.ErrState)
	}
	i.remote = remote
	i.event(verbs.Event{Type: verbs.EventAddrResolved})
	return nil
}

func (i *id) ResolveRoute(time.Duration) error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	i.event(verbs.Event{Type: verbs.EventRouteResolved})
	return nil
}

func (i *id) SetTOS(uint8) error { return nil }

func (i *id) Device() verbs.Device {
	if i.dev == nil {
		return nil
	}
	return i.dev
}

func (i *id) CreateQP(attr verbs.QPAttr) (verbs.QP, error) {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := i.n.fails(CallCreateQP); err != nil {
		return nil, err
	}
	f.qpNum++
	i.qp = &qp{id: i, pd: attr.PD.(*pd), cq: attr.CQ.(*soft.CQ), attr: attr, num: f.qpNum}
	f.add(i.qp)
	return i.qp, nil
}

func (i *id) QP() verbs.QP {
	if i.qp == nil || i.qp.closed {
		return nil
	}
	return i.qp
}

func (i *id) Local() netip.AddrPort  { return i.local }
func (i *id) Remote() netip.AddrPort { return i.remote }

func (f *Fabric) private(b []byte, pad int) []byte {
	out := append([]byte(nil), b...)
	if f.opt.PadPrivate && len(out) < pad {
		out = append(out, make([]byte, pad-len(out))...)
	}
	return out
}

func (i *id) Connect(p verbs.ConnParam) error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.qp == nil || !i.remote.IsValid() {
		return fmt.Errorf("connect before resolve and queue pair: %w", verbs.ErrState)
	}
	i.param = p
	l := f.listeners[i.remote]
	there := f.nodes[i.remote.Addr()]
	switch {
	case there == nil || there.vanished || i.n.vanished:
		i.event(verbs.Event{Type: verbs.EventUnreachable, Err: unix.EHOSTUNREACH})
		return nil
	case l == nil:
		i.event(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectNoListener, Status: 8})
		return nil
	}
	child := l.c.newID(l.user)
	child.dev, child.local, child.remote, child.other, child.passive = l.dev, l.local, i.local, i, true
	i.other = child
	child.event(verbs.Event{Type: verbs.EventConnectRequest, Listener: l, Private: f.private(p.Private, padRequest),
		Param: verbs.ConnParam{ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources, RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount}})
	return nil
}

func (i *id) Accept(p verbs.ConnParam) error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !i.passive || i.decided || i.qp == nil {
		return fmt.Errorf("accept without a request and a queue pair: %w", verbs.ErrState)
	}
	i.decided, i.param = true, p
	o := i.other
	if o.closed || o.qp == nil || o.qp.state != qpIdle {
		i.event(verbs.Event{Type: verbs.EventConnectError, Err: unix.ECONNRESET})
		return nil
	}
	i.qp.peer, o.qp.peer = o.qp, i.qp
	i.qp.state, o.qp.state = qpReady, qpReady
	o.qp.rtu = true
	o.event(verbs.Event{Type: verbs.EventEstablished, Private: f.private(p.Private, padReply)})
	if f.dropRTU > 0 {
		f.dropRTU--
		return nil
	}
	i.qp.rtu = true
	i.event(verbs.Event{Type: verbs.EventEstablished})
	return nil
}

func (i *id) Reject(private []byte) error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !i.passive || i.decided {
		return fmt.Errorf("reject without a request: %w", verbs.ErrState)
	}
	i.decided = true
	i.other.event(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectConsumer, Status: 28, Private: f.private(private, padReject)})
	return nil
}

// Disconnect goes behind what was posted.
func (i *id) Disconnect() error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	if i.qp == nil || i.qp.state == qpIdle {
		return fmt.Errorf("disconnect without a connection: %w", verbs.ErrState)
	}
	if i.qp.state == qpReady {
		i.qp.sends.push(verbs.SendWR{Op: opDisconnect})
		i.n.f.kick(i.qp)
	}
	return nil
}

func (i *id) disconnected(why error) {
	if !i.ended {
		i.ended = true
		i.event(verbs.Event{Type: verbs.EventDisconnected, Err: why})
	}
}

func (i *id) Close() error {
	f := i.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	if f.listeners[i.local] == i {
		delete(f.listeners, i.local)
	}
	if i.owns {
		delete(f.bound, i.local)
	}
	if i.qp != nil && i.qp.state != qpError {
		i.qp.fail(verbs.WCFlushed, nil)
	}
	if i.passive && !i.decided {
		i.decided = true
		i.other.event(verbs.Event{Type: verbs.EventRejected, Reject: verbs.RejectOther})
	}
	return nil
}
