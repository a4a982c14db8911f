package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

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

func (c *cm) Close() error { return nil }

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
	tos           int // -1 would be unset; 0 is the default anyway
	dialer        Dialer
	listener      Listener
	cancel        context.CancelFunc

	request *mpaFrame // of the peer, on a child
	mu      sync.Mutex
	stream  Stream
	half    map[Stream]struct{} // a listener's streams that have not asked yet
	q       *qp
	param   verbs.ConnParam
	rest    []byte // read behind the peer's start-up frame
	ended   bool   // EventDisconnected was sent, or never will be
	up      bool   // there is a connection
	tellUp  *verbs.Event
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
	i.tos = int(tos)
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

func (i *id) Listen(int) error {
	if i.dev == nil {
		return fmt.Errorf("listen before bind: %w", verbs.ErrState)
	}
	l, err := i.prov.opt.Transport.Listen(i.local)
	if err != nil {
		return err
	}
	i.listener, i.local = l, l.Addr()
	i.half = make(map[Stream]struct{})
	i.spawn(i.accept)
	return nil
}

func (i *id) ResolveAddr(local, remote netip.AddrPort, reuse bool, _ time.Duration) error {
	if local.IsValid() && local.Addr().IsValid() {
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
	q := &qp{pd: p, cq: attr.CQ.(*soft.CQ), num: qpNumbers.Add(1), attr: attr, id: i, kick: make(chan struct{}, 1),
		stopped: make(chan struct{}), quit: make(chan struct{}), iov: make([][]byte, 0, 4*batchFPDUs)}
	q.posted.L = &q.mu
	i.mu.Lock()
	i.q = q
	i.mu.Unlock()
	return q, nil
}

// qpNumbers tell queue pairs of one process apart; they mean nothing to peers.
var qpNumbers atomic.Uint32

func (i *id) forgetQP(q *qp) {
	i.mu.Lock()
	if i.q == q {
		i.q = nil
	}
	i.mu.Unlock()
}

// rnrTime is how long a message of the peer waits for a receive, 0: without end (spec of decision: the
// RNR retry count, 7 meaning for ever).
func (i *id) rnrTime() time.Duration {
	n := i.param.RNRRetryCount
	if n == 7 {
		return 0
	}
	return time.Duration(n+1) * 500 * time.Millisecond
}

// userTimeout is how long TCP may retransmit: a share for each retry of the transport.
func userTimeout(retries uint8) time.Duration { return time.Duration(retries+1) * 2 * time.Second }

func (i *id) Connect(p verbs.ConnParam) error {
	if i.dialer == nil || i.q == nil {
		return fmt.Errorf("connect before resolve and queue pair: %w", verbs.ErrState)
	}
	p.Private = append([]byte(nil), p.Private...)
	i.param = p
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	i.cancel = cancel
	d := i.dialer
	i.dialer = nil
	i.spawn(func() {
		defer cancel()
		i.connect(ctx, d)
	})
	return nil
}

// connect dials, asks, and takes the answer. A peer that does not know the enhanced set-up is asked again
// without it.
func (i *id) connect(ctx context.Context, d Dialer) {
	s, err := d.Dial(ctx, i.remote)
	if err != nil {
		i.unreachable(err)
		return
	}
	if !i.hold(s) {
		return
	}
	req := mpaFrame{crc: !i.prov.opt.NoCRC, enhanced: true, rev: 2, ird: uint16(i.param.ResponderResources), ord: uint16(i.param.InitiatorDepth), private: i.param.Private}
	rep, err := i.ask(s, &req)
	if errors.Is(err, errOldPeer) {
		s.Close()
		var again Dialer
		if again, err = i.prov.opt.Transport.Bind(i.local, true); err == nil {
			if s, err = again.Dial(ctx, i.remote); err == nil && i.hold(s) {
				req.enhanced, req.rev = false, 1
				rep, err = i.ask(s, &req)
			}
		}
	}
	switch {
	case err != nil:
		if s != nil {
			s.Close()
		}
		i.event(verbs.EventConnectError, err)
	case rep.rejected:
		s.Close()
		kind := verbs.RejectOther
		if len(rep.private) >= 7 {
			kind = verbs.RejectConsumer
		}
		i.cm.add(verbs.Event{Type: verbs.EventRejected, ID: i, Reject: kind, Status: int(unix.ECONNREFUSED), Private: rep.private})
	default:
		ev := &verbs.Event{Type: verbs.EventEstablished, ID: i, Private: rep.private,
			Param: verbs.ConnParam{ResponderResources: uint8(rep.ird & irdMask), InitiatorDepth: uint8(rep.ord & irdMask)}}
		i.start(s, req.crc || rep.crc, false, ev)
	}
}

// hold keeps the stream where Close finds it; false: the id is closed already.
func (i *id) hold(s Stream) bool {
	i.mu.Lock()
	i.stream = s
	i.mu.Unlock()
	if i.closed.Load() {
		s.Close()
		return false
	}
	return true
}

func (i *id) unreachable(err error) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		i.cm.add(verbs.Event{Type: verbs.EventRejected, ID: i, Reject: verbs.RejectNoListener, Status: int(unix.ECONNREFUSED), Err: err})
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EADDRNOTAVAIL):
		i.event(verbs.EventConnectError, err)
	default:
		i.event(verbs.EventUnreachable, err)
	}
}

// errOldPeer says that the peer ended the stream instead of answering a revision 2 request.
var errOldPeer = errors.New("the peer does not know MPA revision 2")

// ask sends a request and reads the reply.
func (i *id) ask(s Stream, req *mpaFrame) (*mpaFrame, error) {
	if err := i.configure(s); err != nil {
		return nil, err
	}
	s.SetReadDeadline(time.Now().Add(dialTimeout))
	if err := writeAll(s, req.append(nil, false)); err != nil {
		return nil, fmt.Errorf("sending the MPA request: %w", err)
	}
	rep, rest, err := readStart(s, true)
	switch {
	case req.rev == 2 && (err == io.EOF || err == nil && rep.rev == 1 && rep.rejected):
		return nil, errOldPeer
	case err != nil:
		return nil, fmt.Errorf("reading the MPA reply: %w", err)
	}
	i.rest = rest
	s.SetReadDeadline(time.Time{})
	return rep, nil
}

func (i *id) configure(s Stream) error {
	if err := s.SetUserTimeout(userTimeout(i.param.RetryCount)); err != nil {
		return fmt.Errorf("set the user timeout: %w", err)
	}
	if i.tos > 0 {
		if err := s.SetTOS(uint8(i.tos)); err != nil {
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

// readStart reads a start-up frame, and gives what came behind it in the same read.
func readStart(s Stream, reply bool) (*mpaFrame, []byte, error) {
	buf := make([]byte, mpaFrameSize+mpaMaxPrivate+readAhead)
	end := 0
	more := func(n int) error {
		for end < n {
			k, err := s.Readv([][]byte{buf[end:]})
			end += k
			if k == 0 {
				if err == io.EOF && end > 0 {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
		}
		return nil
	}
	// A stranger shows with its first bytes: there is no need to wait for a whole frame of it.
	if err := more(1); err != nil {
		return nil, nil, err
	}
	key := mpaRequestKey[:]
	if reply {
		key = mpaReplyKey[:]
	}
	if k := min(end, len(key)); string(buf[:k]) != string(key[:k]) {
		return nil, nil, fmt.Errorf("%w: it starts with %q", errMPAKey, buf[:k])
	}
	if err := more(mpaFrameSize); err != nil {
		return nil, nil, err
	}
	f, n, err := mpaHead((*[mpaFrameSize]byte)(buf), reply)
	if err != nil {
		return nil, nil, err
	}
	if err := more(mpaFrameSize + n); err != nil {
		return nil, nil, err
	}
	f.body(buf[mpaFrameSize : mpaFrameSize+n])
	return &f, buf[mpaFrameSize+n : end], nil
}

// start makes the queue pair ready and runs the connection; ev tells the owner, at once or, when the peer
// must send first, with its first frame.
func (i *id) start(s Stream, crc, hold bool, ev *verbs.Event) {
	i.mu.Lock()
	q := i.q
	i.mu.Unlock()
	if q == nil || i.closed.Load() {
		s.Close()
		return
	}
	if rec := i.prov.opt.Record; rec != nil {
		s = &recorded{Stream: s, rec: rec}
	}
	q.mu.Lock()
	if q.state != qpIdle {
		q.mu.Unlock()
		s.Close()
		return
	}
	q.stream, q.crc, q.hold, q.state = s, crc, hold, qpReady
	q.mu.Unlock()
	i.mu.Lock()
	i.stream, i.up = s, true
	if hold {
		i.tellUp = ev
	}
	i.mu.Unlock()
	r := &reader{q: q, nextMSN: 1, readMSN: 1, buf: make([]byte, readAhead)}
	r.end = copy(r.buf, i.rest)
	if len(i.rest) > len(r.buf) {
		r.buf = append([]byte(nil), i.rest...)
		r.end = len(i.rest)
	}
	i.rest = nil
	if !hold {
		i.cm.add(*ev)
	}
	i.spawn(q.writer)
	i.spawn(r.run)
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

// disconnected tells the owner once that the connection is over.
func (i *id) disconnected(why error) {
	i.mu.Lock()
	tell := !i.ended
	i.ended = true
	i.mu.Unlock()
	if tell {
		i.event(verbs.EventDisconnected, why)
	}
}

// accept takes streams of peers and reads their requests, each in a goroutine of its own.
func (i *id) accept() {
	for {
		s, err := i.listener.Accept()
		if err != nil {
			if i.closed.Load() || errors.Is(err, os.ErrClosed) {
				return
			}
			i.prov.opt.Log.Warn("accepting a connection failed", "listener", i.local.String(), "err", err)
			// Most likely there are no descriptors left: give others the time to close some.
			time.Sleep(50 * time.Millisecond)
			continue
		}
		i.mu.Lock()
		full := len(i.half) >= maxHalfOpen
		if !full && !i.closed.Load() {
			i.half[s] = struct{}{}
		}
		i.mu.Unlock()
		if full || i.closed.Load() {
			i.prov.opt.OnProtocolError(i.local, s.Remote(), fmt.Errorf("%d connections have not said what they want: closed", maxHalfOpen))
			s.Close()
			continue
		}
		i.spawn(func() { i.greet(s) })
	}
}

// greet reads a peer's request and makes the child that the owner decides about.
func (i *id) greet(s Stream) {
	s.SetReadDeadline(time.Now().Add(startTimeout))
	f, rest, err := readStart(s, false)
	i.mu.Lock()
	delete(i.half, s)
	i.mu.Unlock()
	if err == nil && len(rest) > 0 {
		err = errors.New("bytes behind the MPA request, before it was answered")
	}
	if err != nil || i.closed.Load() {
		if err != nil && err != io.EOF {
			i.prov.opt.OnProtocolError(i.local, s.Remote(), fmt.Errorf("connection set-up: %w", err))
		}
		s.Close()
		return
	}
	s.SetReadDeadline(time.Time{})
	child := &id{cm: i.cm, prov: i.prov, dev: i.dev, local: i.local, remote: s.Remote(), stream: s, request: f}
	child.SetUser(i.User())
	child.param.RetryCount = 5
	i.cm.add(verbs.Event{Type: verbs.EventConnectRequest, ID: child, Listener: i, Private: f.private,
		Param: verbs.ConnParam{ResponderResources: uint8(f.ord & irdMask), InitiatorDepth: uint8(f.ird & irdMask)}})
}

// reply is the frame that answers the peer's request: with CRC if the peer asks for it, as siw does.
func (i *id) reply(private []byte, rejected bool) (*mpaFrame, error) {
	f := &mpaFrame{crc: i.request.crc, rejected: rejected, enhanced: i.request.enhanced, rev: i.request.rev, private: private}
	if len(private) > f.maxPrivate() {
		return nil, fmt.Errorf("%d bytes of private data: at most %d fit", len(private), f.maxPrivate())
	}
	return f, nil
}

func (i *id) Accept(p verbs.ConnParam) error {
	if i.request == nil || i.q == nil || i.up {
		return fmt.Errorf("accept without a request and a queue pair: %w", verbs.ErrState)
	}
	i.param = p
	f, err := i.reply(p.Private, false)
	if err != nil {
		return err
	}
	f.ird, f.ord = uint16(p.ResponderResources), uint16(p.InitiatorDepth)
	// Peer-to-peer: the initiator sends a frame of its choice first, we take any (RFC 6581 section 4.3).
	hold := f.enhanced && i.request.ird&irdPeerToPeer != 0
	if hold {
		f.ird |= i.request.ird & (irdPeerToPeer | irdRTRSend)
		f.ord |= i.request.ord & (ordRTRWrite | ordRTRRead)
	}
	if err := i.configure(i.stream); err != nil {
		return err
	}
	if err := writeAll(i.stream, f.append(nil, true)); err != nil {
		return fmt.Errorf("sending the MPA reply: %w", err)
	}
	i.start(i.stream, f.crc, hold, &verbs.Event{Type: verbs.EventEstablished, ID: i})
	return nil
}

func (i *id) Reject(private []byte) error {
	if i.request == nil || i.up {
		return fmt.Errorf("reject without a request: %w", verbs.ErrState)
	}
	f, err := i.reply(private, true)
	if err != nil {
		return err
	}
	s := i.stream
	i.stream = nil
	if err := writeAll(s, f.append(nil, true)); err != nil {
		s.Close()
		return fmt.Errorf("sending the MPA reject: %w", err)
	}
	s.CloseWrite()
	// Let the peer read it: closing now could take it away again.
	i.spawn(func() {
		s.SetReadDeadline(time.Now().Add(lingerFor))
		buf := make([]byte, 512)
		for {
			if _, err := s.Readv([][]byte{buf}); err != nil {
				s.Close()
				return
			}
		}
	})
	return nil
}

// Disconnect implements verbs.ID: what was posted is still written, then our direction is closed.
func (i *id) Disconnect() error {
	i.mu.Lock()
	q, up := i.q, i.up
	i.mu.Unlock()
	if q == nil || !up {
		return fmt.Errorf("disconnect without a connection: %w", verbs.ErrState)
	}
	q.mu.Lock()
	q.lastSend = true
	write := q.state == qpReady && !q.blocked
	q.mu.Unlock()
	if write {
		q.pump(inlineBytes)
	}
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
	s, q := i.stream, i.q
	for h := range i.half {
		h.SetReadDeadline(longAgo)
	}
	i.mu.Unlock()
	switch {
	case q != nil:
		q.ToError()
	case s != nil && !i.up:
		s.Close()
	}
	if i.listener != nil {
		i.done.Wait()
	}
	return nil
}
