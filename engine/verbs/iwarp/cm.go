package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// cm implements verbs.CM: a queue of events that the connections' goroutines fill.
type cm struct {
	prov   *provider
	waiter verbs.Waiter

	mu     sync.Mutex
	events []verbs.Event
	head   int
}

func (p *provider) OpenCM(w verbs.Waiter) (verbs.CM, error) { return &cm{prov: p, waiter: w}, nil }

func (c *cm) NewID(user any) (verbs.ID, error) {
	i := &id{cm: c, prov: c.prov}
	i.SetUser(user)
	return i, nil
}

func (c *cm) add(ev verbs.Event) {
	c.mu.Lock()
	c.events = append(c.events, ev)
	c.mu.Unlock()
	c.waiter.Wake()
}

func (c *cm) Poll(evs []verbs.Event) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(evs) && c.head < len(c.events) {
		ev := c.events[c.head]
		c.events[c.head] = verbs.Event{}
		c.head++
		if i := ev.ID.(*id); !i.closed.Load() {
			evs[n] = ev
			n++
		}
	}
	if c.head == len(c.events) {
		c.events, c.head = c.events[:0], 0
	}
	return n, nil
}

// Close hangs up on peers whose requests nobody took.
func (c *cm) Close() error {
	c.mu.Lock()
	left := c.events[c.head:]
	c.events, c.head = nil, 0
	c.mu.Unlock()
	for _, ev := range left {
		if ev.Type == verbs.EventConnectRequest {
			ev.ID.Close()
		}
	}
	return nil
}

// id implements verbs.ID. The goroutine of its CM owns it; its own goroutines reach what mu guards, and
// send events.
type id struct {
	cm     *cm
	prov   *provider
	user   atomic.Value // userBox
	closed atomic.Bool
	done   sync.WaitGroup // goroutines of this id

	dev           *device
	local, remote netip.AddrPort
	reuse         bool
	tos           uint8
	dialer        Dialer
	listener      Listener
	cancel        context.CancelFunc
	request       *mpaFrame // of the peer, on a child
	param         verbs.ConnParam

	mu     sync.Mutex
	stream Stream
	half   map[Stream]struct{} // a listener's streams that have not asked yet
	q      *qp
	rest   []byte       // read behind the peer's start-up frame
	up     bool         // there is or was a connection
	ended  bool         // its end was told
	tellUp *verbs.Event // held back until the peer's first frame
}

type userBox struct{ v any }

// spawn runs f as one of the id's goroutines, which Provider.Close waits for.
func (i *id) spawn(f func()) {
	i.done.Add(1)
	i.prov.running.Add(1)
	go func() {
		defer i.prov.running.Done()
		defer i.done.Done()
		f()
	}()
}

func (i *id) SetUser(v any) { i.user.Store(userBox{v}) }

func (i *id) User() any { return i.user.Load().(userBox).v }

func (i *id) Device() verbs.Device {
	if i.dev == nil {
		return nil
	}
	return i.dev
}

func (i *id) Local() netip.AddrPort  { return i.local }
func (i *id) Remote() netip.AddrPort { return i.remote }

func (i *id) QP() verbs.QP {
	if i.q == nil {
		return nil
	}
	return i.q
}

func (i *id) SetTOS(tos uint8) error {
	i.tos = tos
	return nil
}

func (i *id) event(t verbs.EventType, err error) {
	i.cm.add(verbs.Event{Type: t, ID: i, Err: err})
}

// Bind implements verbs.ID. The port of an id that connects is taken by ResolveAddr, that of a listener
// by Listen.
func (i *id) Bind(local netip.AddrPort, reuse bool) error {
	d, err := i.prov.device(local.Addr())
	if err != nil {
		return err
	}
	i.dev, i.local, i.reuse = d, local, reuse
	return nil
}

func (i *id) ResolveAddr(local, remote netip.AddrPort, reuse bool, _ time.Duration) error {
	if i.dialer != nil || i.listener != nil {
		return fmt.Errorf("resolve an id that is resolved or listens: %w", verbs.ErrState)
	}
	if local.IsValid() {
		if err := i.Bind(local, reuse); err != nil {
			return err
		}
	}
	if i.dev == nil {
		return fmt.Errorf("resolve without a local address: %w", verbs.ErrState)
	}
	d, err := i.prov.opt.Transport.Bind(i.local, i.reuse)
	if err != nil {
		return err
	}
	i.dialer, i.local, i.remote = d, d.Local(), remote
	i.event(verbs.EventAddrResolved, nil)
	return nil
}

func (i *id) ResolveRoute(time.Duration) error {
	if i.dialer == nil {
		return fmt.Errorf("resolve a route before the address: %w", verbs.ErrState)
	}
	i.event(verbs.EventRouteResolved, nil)
	return nil
}

func (i *id) CreateQP(attr verbs.QPAttr) (verbs.QP, error) {
	p, ok := attr.PD.(*pd)
	if !ok || p.dev != i.dev {
		return nil, fmt.Errorf("queue pair on another device's protection domain: %w", verbs.ErrState)
	}
	q := newQP(i, p, attr.CQ.(*soft.CQ), attr)
	i.mu.Lock()
	i.q = q
	i.mu.Unlock()
	return q, nil
}

func (i *id) forgetQP(q *qp) {
	i.mu.Lock()
	if i.q == q {
		i.q = nil
	}
	i.mu.Unlock()
}

// rnrTime is how long a message of the peer waits for a receive (decision: the RNR retry count), 0: without
// end.
func (i *id) rnrTime() time.Duration {
	n := i.param.RNRRetryCount
	if n >= 7 {
		return 0
	}
	return time.Duration(n+1) * 500 * time.Millisecond
}

// userTimeout is how long TCP may retransmit: a share for each retry of the transport.
func userTimeout(retries uint8) time.Duration { return time.Duration(retries+1) * 2 * time.Second }

// configure sets what the connection's parameters say about its stream.
func (i *id) configure(s Stream) error {
	if err := s.SetUserTimeout(userTimeout(i.param.RetryCount)); err != nil {
		return fmt.Errorf("set the user timeout: %w", err)
	}
	if i.tos > 0 {
		if err := s.SetTOS(i.tos); err != nil {
			return fmt.Errorf("set the type of service: %w", err)
		}
	}
	return nil
}

// writeAll writes b, waiting where the stream is full.
func writeAll(s Stream, b []byte) error {
	for len(b) > 0 {
		n, err := s.TryWritev([][]byte{b})
		b = b[n:]
		if errors.Is(err, ErrWouldBlock) {
			err = s.WaitWritable()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hangUp ends a stream whose last word may still be on its way: closing with unread bytes would take it
// back. It reads into nowhere until the peer ends its side too, for a bounded time.
func hangUp(s Stream, buf []byte) {
	s.SetReadDeadline(time.Now().Add(lingerFor))
	vec := [1][]byte{buf}
	for n := 0; n < 16<<20; {
		k, err := s.Readv(vec[:])
		if err != nil {
			break
		}
		n += k
	}
	s.Close()
}

// start makes the queue pair ready and runs the connection; ev tells the owner, at once or, when the peer
// must send first, with its first frame.
func (i *id) start(s Stream, crc, hold bool, ev *verbs.Event) error {
	i.mu.Lock()
	q, rest := i.q, i.rest
	i.rest = nil
	i.mu.Unlock()
	if q == nil || i.closed.Load() || !q.ready(s, crc, hold) {
		s.Close()
		return fmt.Errorf("connect a queue pair that is gone or in error: %w", verbs.ErrState)
	}
	i.mu.Lock()
	i.stream, i.up = s, true
	if hold {
		i.tellUp = ev
	}
	i.mu.Unlock()
	if !hold {
		i.cm.add(*ev)
	}
	r := newReader(q, rest, hold)
	i.spawn(q.writer)
	i.spawn(r.run)
	return nil
}

// released tells the owner that the peer's first frame came.
func (i *id) released() {
	i.mu.Lock()
	ev := i.tellUp
	i.tellUp = nil
	i.mu.Unlock()
	if ev != nil {
		i.cm.add(*ev)
	}
}

// disconnected tells the owner once that the connection is over, or that it never came to be.
func (i *id) disconnected(why error) {
	i.mu.Lock()
	tell, never := !i.ended, i.tellUp != nil
	i.ended, i.tellUp = true, nil
	i.mu.Unlock()
	switch {
	case tell && never:
		i.event(verbs.EventConnectError, why)
	case tell:
		i.event(verbs.EventDisconnected, why)
	}
}

// Disconnect implements verbs.ID: what was posted is still written, then our direction is closed. The peer
// has a bounded time to close the other.
func (i *id) Disconnect() error {
	i.mu.Lock()
	q, up := i.q, i.up
	i.mu.Unlock()
	if q == nil || !up {
		return fmt.Errorf("disconnect without a connection: %w", verbs.ErrState)
	}
	q.finish(i.prov.opt.CloseTimeout)
	return nil
}

func (i *id) Close() error {
	if i.closed.Swap(true) {
		return nil
	}
	if i.cancel != nil {
		i.cancel()
	}
	if i.dialer != nil {
		i.dialer.Close()
		i.dialer = nil
	}
	if i.listener != nil {
		i.listener.Close()
	}
	i.mu.Lock()
	s, q, up := i.stream, i.q, i.up
	for h := range i.half {
		h.SetReadDeadline(longAgo)
	}
	i.mu.Unlock()
	if q != nil {
		q.ToError()
	}
	if s != nil && !up {
		s.Close()
	}
	if i.listener != nil {
		i.done.Wait()
	}
	return nil
}
