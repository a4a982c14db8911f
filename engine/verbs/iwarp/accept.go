package iwarp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"o2ibd/engine/verbs"
)

// Listen implements verbs.ID.
func (i *id) Listen(int) error {
	if i.dev == nil || i.listener != nil || i.dialer != nil {
		return fmt.Errorf("listen without an address of its own: %w", verbs.ErrState)
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

// accept takes streams of peers and reads their requests, each in a goroutine of its own.
func (i *id) accept() {
	for {
		s, err := i.listener.Accept()
		switch {
		case err == nil:
			i.admit(i.prov.watched(s))
		case i.closed.Load() || errors.Is(err, os.ErrClosed):
			return
		default:
			i.prov.opt.Log.Warn("accepting a connection failed", "listener", i.local.String(), "err", err)
			// Most likely there are no descriptors left: give others the time to close some.
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// admit reads a peer's request, unless too many others have not said theirs.
func (i *id) admit(s Stream) {
	i.mu.Lock()
	closed, full := i.closed.Load(), len(i.half) >= maxHalfOpen
	if !closed && !full {
		i.half[s] = struct{}{}
	}
	i.mu.Unlock()
	switch {
	case closed:
		s.Close()
	case full:
		i.prov.opt.OnProtocolError(i.local, s.Remote(), fmt.Errorf("%d connections have not said what they want: closed", maxHalfOpen))
		s.Close()
	default:
		i.spawn(func() { i.greet(s) })
	}
}

// greet reads a peer's request and makes the child that the owner decides about.
func (i *id) greet(s Stream) {
	s.SetReadDeadline(time.Now().Add(i.prov.opt.StartTimeout))
	if i.closed.Load() {
		s.SetReadDeadline(longAgo) // Close looked before we set ours
	}
	f, rest, err := readStart(s, false)
	i.mu.Lock()
	delete(i.half, s)
	i.mu.Unlock()
	if err == nil && len(rest) > 0 {
		err = errors.New("bytes behind the MPA request, before it was answered")
	}
	if i.closed.Load() {
		s.Close()
		return
	}
	if err != nil {
		// A peer that says nothing and goes is no news.
		if err != io.EOF {
			i.prov.opt.OnProtocolError(i.local, s.Remote(), fmt.Errorf("connection set-up: %w", err))
		}
		s.Close()
		return
	}
	s.SetReadDeadline(time.Time{})
	child := &id{cm: i.cm, prov: i.prov, dev: i.dev, local: i.local, remote: s.Remote(), stream: s, request: f}
	child.SetUser(i.User())
	i.cm.add(verbs.Event{Type: verbs.EventConnectRequest, ID: child, Listener: i, Private: f.private,
		Param: verbs.ConnParam{ResponderResources: uint8(f.ord & irdMask), InitiatorDepth: uint8(f.ird & irdMask)}})
}

// reply is the frame that answers the peer's request: with CRC if the peer asks for it, as siw does.
func (i *id) reply(private []byte, rejected bool) (*mpaFrame, error) {
	f := &mpaFrame{crc: i.request.crc, rejected: rejected, enhanced: i.request.enhanced, rev: i.request.rev, private: private}
	if len(private) > f.maxPrivate() {
		return nil, fmt.Errorf("answer %v with %d bytes of private data: at most %d fit", i.remote, len(private), f.maxPrivate())
	}
	return f, nil
}

// Accept implements verbs.ID.
func (i *id) Accept(p verbs.ConnParam) error {
	if i.request == nil || i.stream == nil || i.q == nil || i.up {
		return fmt.Errorf("accept without a request and a queue pair: %w", verbs.ErrState)
	}
	i.param = p
	f, err := i.reply(p.Private, false)
	if err != nil {
		return err
	}
	f.ird, f.ord = uint16(p.ResponderResources), uint16(p.InitiatorDepth)
	hold := i.request.peerToPeer()
	if hold {
		f.readyToReceive(i.request)
	}
	if err := i.configure(i.stream); err != nil {
		return err
	}
	if err := writeAll(i.stream, f.append(nil, true)); err != nil {
		return fmt.Errorf("sending the MPA reply: %w", err)
	}
	return i.start(i.stream, f.crc, hold, &verbs.Event{Type: verbs.EventEstablished, ID: i})
}

// Reject implements verbs.ID.
func (i *id) Reject(private []byte) error {
	if i.request == nil || i.stream == nil || i.up {
		return fmt.Errorf("reject without a request: %w", verbs.ErrState)
	}
	f, err := i.reply(private, true)
	if err != nil {
		return err
	}
	s := i.stream
	i.mu.Lock()
	i.stream = nil
	i.mu.Unlock()
	err = writeAll(s, f.append(nil, true))
	if err == nil {
		err = s.CloseWrite()
	}
	if err != nil {
		s.Close()
		return fmt.Errorf("sending the MPA reject: %w", err)
	}
	i.spawn(func() { hangUp(s, make([]byte, mpaMaxPrivate)) })
	return nil
}
