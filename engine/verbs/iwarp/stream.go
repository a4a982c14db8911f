package iwarp

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// ErrWouldBlock says that a stream takes no more bytes at the moment.
var ErrWouldBlock = errors.New("stream takes no more now")

// Stream is the byte stream under one connection. One goroutine reads and one writes at a time, also while
// another is in WaitWritable; Close may come from any, and ends what waits.
type Stream interface {
	// TryWritev writes what the stream takes at once and never blocks. With n short of everything the
	// error is ErrWouldBlock, or what broke the stream.
	TryWritev(bufs [][]byte) (n int, err error)
	// WaitWritable waits until TryWritev may take something.
	WaitWritable() error
	// Readv waits for at least one byte and fills bufs in order. io.EOF when the peer is done.
	Readv(bufs [][]byte) (n int, err error)
	// CloseWrite says that we are done; what was written is still delivered.
	CloseWrite() error
	// SetReadDeadline bounds Readv; the zero time takes the bound away.
	SetReadDeadline(t time.Time) error
	// SetUserTimeout bounds how long written bytes may stay without the peer's confirmation.
	SetUserTimeout(d time.Duration) error
	SetTOS(tos uint8) error
	Close() error
	Local() netip.AddrPort
	Remote() netip.AddrPort
}

// Transport makes streams. Errors of binding are found by errors.Is with EADDRINUSE, EADDRNOTAVAIL and
// EACCES; a port where nobody listens gives ECONNREFUSED.
type Transport interface {
	// Bind reserves a local address for one outgoing stream. Port 0 means any.
	Bind(local netip.AddrPort, reuse bool) (Dialer, error)
	Listen(local netip.AddrPort) (Listener, error)
}

// Dialer is a bound local address that becomes one Stream.
type Dialer interface {
	Dial(ctx context.Context, remote netip.AddrPort) (Stream, error)
	Local() netip.AddrPort
	Close() error // without a Dial
}

// Listener accepts streams until it is closed.
type Listener interface {
	Accept() (Stream, error)
	Addr() netip.AddrPort
	Close() error
}
