package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipeBuffer is what one direction of an in-memory stream holds.
const pipeBuffer = 128 << 10

// Pipes is a Transport in memory: a network of its own, whose streams are bounded buffers. All its time
// and waiting is the standard library's, so a whole fabric runs in a testing/synctest bubble.
type Pipes struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*pipeListener
	bound     map[netip.AddrPort]int
	nextPort  uint16
	dead      map[netip.Addr]bool
	streams   map[*pipeStream]struct{}
}

// NewPipes makes an empty network.
func NewPipes() *Pipes {
	return &Pipes{listeners: make(map[netip.AddrPort]*pipeListener), bound: make(map[netip.AddrPort]int), nextPort: 32768,
		dead: make(map[netip.Addr]bool), streams: make(map[*pipeStream]struct{})}
}

// Vanish cuts an address off without a word: nothing comes from it or goes to it any more, and whoever
// writes to it finds out after the user timeout.
func (n *Pipes) Vanish(a netip.Addr) {
	for _, s := range n.mark(a, true) {
		s.out.mu.Lock()
		if len(s.out.buf) > 0 {
			s.unconfirmed()
		}
		s.out.writable.Broadcast()
		s.out.mu.Unlock()
	}
}

// Return puts an address back that had vanished. What was not confirmed too late is sent again, as TCP does.
func (n *Pipes) Return(a netip.Addr) {
	for _, s := range n.mark(a, false) {
		s.out.mu.Lock()
		if s.clock != nil {
			s.clock.Stop()
			s.clock = nil
		}
		s.out.wake()
		s.out.mu.Unlock()
	}
}

// mark says that an address is gone or not, and gives the streams that touch it.
func (n *Pipes) mark(a netip.Addr, dead bool) (touched []*pipeStream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead[a] = dead
	for s := range n.streams {
		if s.local.Addr() == a || s.remote.Addr() == a {
			touched = append(touched, s)
		}
	}
	return touched
}

func (n *Pipes) gone(a, b netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead[a] || n.dead[b]
}

// take reserves a local address.
func (n *Pipes) take(at netip.AddrPort, reuse bool) (netip.AddrPort, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at.Port() == 0 {
		for {
			n.nextPort = max(n.nextPort+1, 32768)
			at = netip.AddrPortFrom(at.Addr(), n.nextPort)
			if n.bound[at] == 0 {
				break
			}
		}
	} else if n.bound[at] > 0 && !reuse {
		return at, fmt.Errorf("bind %v: %w", at, unix.EADDRINUSE)
	}
	n.bound[at]++
	return at, nil
}

func (n *Pipes) give(at netip.AddrPort) {
	n.mu.Lock()
	if n.bound[at]--; n.bound[at] == 0 {
		delete(n.bound, at)
	}
	n.mu.Unlock()
}

// Bind implements Transport.
func (n *Pipes) Bind(local netip.AddrPort, reuse bool) (Dialer, error) {
	at, err := n.take(local, reuse)
	if err != nil {
		return nil, err
	}
	return &pipeDialer{n, at}, nil
}

// Listen implements Transport.
func (n *Pipes) Listen(local netip.AddrPort) (Listener, error) {
	at, err := n.take(local, false)
	if err != nil {
		return nil, err
	}
	l := &pipeListener{net: n, at: at, backlog: make(chan *pipeStream, 1024), closed: make(chan struct{})}
	n.mu.Lock()
	n.listeners[at] = l
	n.mu.Unlock()
	return l, nil
}

type pipeDialer struct {
	net *Pipes
	at  netip.AddrPort
}

func (d *pipeDialer) Local() netip.AddrPort { return d.at }

func (d *pipeDialer) Close() error {
	d.net.give(d.at)
	return nil
}

func (d *pipeDialer) Dial(ctx context.Context, remote netip.AddrPort) (Stream, error) {
	d.net.mu.Lock()
	l := d.net.listeners[remote]
	dead := d.net.dead[remote.Addr()] || d.net.dead[d.at.Addr()]
	d.net.mu.Unlock()
	if dead {
		<-ctx.Done()
		d.Close()
		return nil, fmt.Errorf("connect to %v: %w", remote, ctx.Err())
	}
	if l == nil {
		d.Close()
		return nil, fmt.Errorf("connect to %v: %w", remote, unix.ECONNREFUSED)
	}
	there, back := newPipe(), newPipe()
	near := &pipeStream{net: d.net, in: back, out: there, local: d.at, remote: remote}
	far := &pipeStream{net: d.net, in: there, out: back, local: remote, remote: d.at, accepted: true}
	d.net.mu.Lock()
	d.net.streams[near], d.net.streams[far] = struct{}{}, struct{}{}
	d.net.mu.Unlock()
	var err error = unix.ECONNREFUSED
	select {
	case l.backlog <- far:
		select {
		case <-l.closed:
			l.drain() // it may have looked before we put ours there
		default:
		}
		return near, nil
	case <-l.closed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	far.Close()
	near.Close()
	return nil, fmt.Errorf("connect to %v: %w", remote, err)
}

type pipeListener struct {
	net     *Pipes
	at      netip.AddrPort
	backlog chan *pipeStream
	closed  chan struct{}
	once    sync.Once
}

func (l *pipeListener) Addr() netip.AddrPort { return l.at }

func (l *pipeListener) Accept() (Stream, error) {
	select {
	case s := <-l.backlog:
		return s, nil
	case <-l.closed:
		return nil, os.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, l.at)
		l.net.mu.Unlock()
		l.net.give(l.at)
		close(l.closed)
		l.drain()
	})
	return nil
}

// drain closes what nobody will accept any more.
func (l *pipeListener) drain() {
	for {
		select {
		case s := <-l.backlog:
			s.Close()
		default:
			return
		}
	}
}

// pipe is one direction.
type pipe struct {
	mu       sync.Mutex
	buf      []byte
	eof      bool  // the writer is done
	err      error // the stream broke
	deadline time.Time
	timer    *time.Timer
	readable sync.Cond
	writable sync.Cond
}

func newPipe() *pipe {
	p := &pipe{buf: make([]byte, 0, pipeBuffer)}
	p.readable.L, p.writable.L = &p.mu, &p.mu
	return p
}

func (p *pipe) wake() {
	p.readable.Broadcast()
	p.writable.Broadcast()
}

// pipeStream is one end of an in-memory stream.
type pipeStream struct {
	net           *Pipes
	in, out       *pipe
	local, remote netip.AddrPort
	userTimeout   time.Duration
	clock         *time.Timer // of bytes that nobody confirms
	accepted      bool        // its local address is its listener's
	once          sync.Once
}

func (s *pipeStream) Local() netip.AddrPort  { return s.local }
func (s *pipeStream) Remote() netip.AddrPort { return s.remote }

func (s *pipeStream) SetTOS(uint8) error { return nil }

func (s *pipeStream) SetUserTimeout(d time.Duration) error {
	s.userTimeout = d
	return nil
}

func (s *pipeStream) TryWritev(bufs [][]byte) (int, error) {
	p := s.out
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	if p.eof {
		return 0, unix.EPIPE
	}
	if s.net.gone(s.local.Addr(), s.remote.Addr()) {
		s.unconfirmed()
		return 0, ErrWouldBlock
	}
	n := 0
	for _, b := range bufs {
		k := min(len(b), pipeBuffer-len(p.buf))
		p.buf = append(p.buf, b[:k]...)
		n += k
		if k < len(b) {
			p.readable.Broadcast()
			return n, ErrWouldBlock
		}
	}
	p.readable.Broadcast()
	return n, nil
}

// unconfirmed starts the clock of what the wire swallows; out.mu is held.
func (s *pipeStream) unconfirmed() {
	if s.clock == nil {
		s.clock = time.AfterFunc(s.userTimeout, s.breakOff)
	}
}

// breakOff ends the stream on this side for want of a confirmation.
func (s *pipeStream) breakOff() {
	for _, p := range []*pipe{s.in, s.out} {
		p.mu.Lock()
		if p.err == nil {
			p.err = unix.ETIMEDOUT
		}
		p.wake()
		p.mu.Unlock()
	}
}

func (s *pipeStream) WaitWritable() error {
	p := s.out
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.err == nil {
		if p.eof {
			return unix.EPIPE
		}
		gone := s.net.gone(s.local.Addr(), s.remote.Addr())
		if gone {
			s.unconfirmed()
		} else if len(p.buf) < pipeBuffer {
			break
		}
		p.writable.Wait()
	}
	return p.err
}

func (s *pipeStream) Readv(bufs [][]byte) (int, error) {
	p := s.in
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 {
		switch {
		case p.err != nil:
			return 0, p.err
		case p.eof && !s.net.gone(s.local.Addr(), s.remote.Addr()):
			return 0, io.EOF
		case !p.deadline.IsZero() && !time.Now().Before(p.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		p.readable.Wait()
	}
	n := 0
	for _, b := range bufs {
		n += copy(b, p.buf[n:])
	}
	p.buf = append(p.buf[:0], p.buf[n:]...)
	p.writable.Broadcast()
	return n, nil
}

func (s *pipeStream) SetReadDeadline(t time.Time) error {
	p := s.in
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if !t.IsZero() {
		p.timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			p.readable.Broadcast()
			p.mu.Unlock()
		})
	}
	p.readable.Broadcast()
	return nil
}

func (s *pipeStream) CloseWrite() error {
	p := s.out
	p.mu.Lock()
	p.eof = true
	p.wake()
	p.mu.Unlock()
	return nil
}

func (s *pipeStream) Close() error {
	s.once.Do(func() {
		s.net.mu.Lock()
		delete(s.net.streams, s)
		s.net.mu.Unlock()
		if !s.accepted {
			s.net.give(s.local)
		}
		s.CloseWrite()
		s.out.mu.Lock()
		if s.clock != nil {
			s.clock.Stop()
		}
		s.out.mu.Unlock()
		p := s.in
		p.mu.Lock()
		if p.timer != nil {
			p.timer.Stop()
		}
		if p.err == nil {
			p.err = errors.Join(os.ErrClosed, unix.ECONNRESET)
		}
		p.wake()
		p.mu.Unlock()
	})
	return nil
}
