package iwarp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// consumerReject is the least private data with which a reject is the consumer's (decision: the carrier's
// status does not tell).
const consumerReject = 7

// Connect implements verbs.ID.
func (i *id) Connect(p verbs.ConnParam) error {
	if i.dialer == nil || i.q == nil {
		return fmt.Errorf("connect before resolve and queue pair: %w", verbs.ErrState)
	}
	rev := i.prov.opt.Revision
	req := &mpaFrame{crc: !i.prov.opt.NoCRC, enhanced: rev >= 2, rev: rev, private: bytes.Clone(p.Private),
		ird: uint16(p.ResponderResources), ord: uint16(p.InitiatorDepth)}
	if n := len(p.Private); n > req.maxPrivate() {
		return fmt.Errorf("connect to %v with %d bytes of private data: at most %d fit", i.remote, n, req.maxPrivate())
	}
	p.Private = req.private
	i.param = p
	ctx, cancel := context.WithTimeout(context.Background(), i.prov.opt.ConnectTimeout)
	i.cancel = cancel
	d := i.dialer
	i.dialer = nil
	i.spawn(func() {
		defer cancel()
		i.connect(ctx, d, req)
	})
	return nil
}

// connect dials, asks, and takes the answer. A peer that does not know the enhanced set-up is asked again
// without it.
func (i *id) connect(ctx context.Context, d Dialer, req *mpaFrame) {
	s, rep, err := i.call(ctx, d, req)
	if errors.Is(err, errOldPeer) {
		req.enhanced, req.rev = false, 1
		if d, err = i.prov.opt.Transport.Bind(i.local, true); err == nil {
			s, rep, err = i.call(ctx, d, req)
		}
	}
	switch {
	case err != nil:
		i.failed(err)
	case rep.rejected:
		s.Close()
		kind := verbs.RejectOther
		if len(rep.private) >= consumerReject {
			kind = verbs.RejectConsumer
		}
		i.cm.add(verbs.Event{Type: verbs.EventRejected, ID: i, Reject: kind, Status: int(unix.ECONNREFUSED), Private: rep.private})
	default:
		ev := &verbs.Event{Type: verbs.EventEstablished, ID: i, Private: rep.private,
			Param: verbs.ConnParam{ResponderResources: uint8(rep.ird & irdMask), InitiatorDepth: uint8(rep.ord & irdMask)}}
		if err := i.start(s, req.crc || rep.crc, false, ev); err != nil {
			i.event(verbs.EventConnectError, err)
		}
	}
}

// failed says why there is no connection.
func (i *id) failed(err error) {
	if errors.Is(err, unix.ECONNREFUSED) {
		i.cm.add(verbs.Event{Type: verbs.EventRejected, ID: i, Reject: verbs.RejectNoListener, Status: int(unix.ECONNREFUSED), Err: err})
		return
	}
	for _, e := range []error{os.ErrDeadlineExceeded, context.DeadlineExceeded, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN} {
		if errors.Is(err, e) {
			i.event(verbs.EventUnreachable, err)
			return
		}
	}
	i.event(verbs.EventConnectError, err)
}

// errOldPeer says that the peer's answer to a request of revision 2 was one of revision 1, or the end of
// the stream.
var errOldPeer = errors.New("the peer does not know MPA revision 2")

// call dials, sends a request and reads the reply. With an error the stream is closed.
func (i *id) call(ctx context.Context, d Dialer, req *mpaFrame) (Stream, *mpaFrame, error) {
	s, err := d.Dial(ctx, i.remote)
	if err != nil {
		return nil, nil, err
	}
	s = i.prov.watched(s)
	i.mu.Lock()
	i.stream = s // where Close finds it
	i.mu.Unlock()
	if i.closed.Load() {
		s.Close()
		return nil, nil, verbs.ErrClosed
	}
	rep, err := i.ask(s, req)
	switch {
	case errors.Is(err, errOldPeer):
		// Whoever closes first cannot have the same pair of ports again for a while: that should be the peer.
		hangUp(s, make([]byte, mpaMaxPrivate))
	case err != nil:
		s.Close()
	}
	return s, rep, err
}

func (i *id) ask(s Stream, req *mpaFrame) (*mpaFrame, error) {
	if err := i.configure(s); err != nil {
		return nil, err
	}
	s.SetReadDeadline(time.Now().Add(i.prov.opt.ConnectTimeout))
	if err := writeAll(s, req.append(nil, false)); err != nil {
		return nil, fmt.Errorf("sending the MPA request: %w", err)
	}
	rep, rest, err := readStart(s, true)
	switch {
	case req.rev == 2 && (err == io.EOF || errors.Is(err, unix.ECONNRESET) || err == nil && rep.rev == 1):
		return nil, errOldPeer
	case err != nil:
		return nil, fmt.Errorf("reading the MPA reply: %w", err)
	}
	i.mu.Lock()
	i.rest = rest
	i.mu.Unlock()
	s.SetReadDeadline(time.Time{})
	return rep, nil
}
