package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TCP is the Transport over the kernel's TCP, on raw sockets that Go's poller waits for.
type TCP struct{}

// maxIovecs of one system call; a longer list is written in parts.
const maxIovecs = 256

func socket(local netip.AddrPort, reuse bool) (int, error) {
	if !local.Addr().Unmap().Is4() {
		return -1, fmt.Errorf("address %v: %w", local, unix.EAFNOSUPPORT)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if reuse {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().Unmap().As4()})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind %v: %w", local, err)
	}
	return fd, nil
}

// Bind implements Transport.
func (TCP) Bind(local netip.AddrPort, reuse bool) (Dialer, error) {
	fd, err := socket(local, reuse)
	if err != nil {
		return nil, err
	}
	return &tcpDialer{fd}, nil
}

// Listen implements Transport. An address that was in use a moment ago may be taken again.
func (TCP) Listen(local netip.AddrPort) (Listener, error) {
	fd, err := socket(local, true)
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen on %v: %w", local, err)
	}
	f := os.NewFile(uintptr(fd), "o2ib listener")
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &tcpListener{f, rc, sockname(fd)}, nil
}

func sockname(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(sa)
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	if v, ok := sa.(*unix.SockaddrInet4); ok {
		return netip.AddrPortFrom(netip.AddrFrom4(v.Addr), uint16(v.Port))
	}
	return netip.AddrPort{}
}

type tcpDialer struct{ fd int }

func (d *tcpDialer) Local() netip.AddrPort { return sockname(d.fd) }

func (d *tcpDialer) Close() error { return unix.Close(d.fd) }

func (d *tcpDialer) Dial(ctx context.Context, remote netip.AddrPort) (Stream, error) {
	err := unix.Connect(d.fd, &unix.SockaddrInet4{Port: int(remote.Port()), Addr: remote.Addr().Unmap().As4()})
	if err != nil && err != unix.EINPROGRESS {
		unix.Close(d.fd)
		return nil, fmt.Errorf("connect to %v: %w", remote, err)
	}
	s, serr := newTCPStream(d.fd)
	if serr != nil {
		return nil, serr
	}
	s.remote = remote
	if err == nil {
		return s, nil
	}
	if t, ok := ctx.Deadline(); ok {
		s.f.SetWriteDeadline(t)
	}
	stop := context.AfterFunc(ctx, func() { s.f.SetWriteDeadline(time.Unix(1, 0)) })
	var soErr error
	werr := s.rc.Write(func(fd uintptr) bool {
		if _, err := unix.Getpeername(int(fd)); err == nil {
			return true
		}
		e, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && e != 0 {
			err = unix.Errno(e)
		}
		soErr = err
		return err != nil
	})
	if !stop() && ctx.Err() != nil {
		werr = ctx.Err()
	}
	if soErr == nil && werr == nil {
		s.f.SetWriteDeadline(time.Time{})
		s.local = sockname(d.fd)
		return s, nil
	}
	s.Close()
	if soErr != nil {
		return nil, fmt.Errorf("connect to %v: %w", remote, soErr)
	}
	return nil, fmt.Errorf("connect to %v: %w", remote, werr)
}

type tcpListener struct {
	f    *os.File
	rc   syscall.RawConn
	addr netip.AddrPort
}

func (l *tcpListener) Addr() netip.AddrPort { return l.addr }

func (l *tcpListener) Close() error { return l.f.Close() }

func (l *tcpListener) Accept() (Stream, error) {
	var nfd int
	var sa unix.Sockaddr
	var err error
	rerr := l.rc.Read(func(fd uintptr) bool {
		for {
			nfd, sa, err = unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if err != unix.EINTR && err != unix.ECONNABORTED {
				return err != unix.EAGAIN
			}
		}
	})
	if rerr != nil {
		return nil, rerr
	}
	if err != nil {
		return nil, fmt.Errorf("accept on %v: %w", l.addr, err)
	}
	s, err := newTCPStream(nfd)
	if err != nil {
		return nil, err
	}
	s.remote = addrPort(sa)
	return s, nil
}

// tcpStream is one TCP connection. The functions for the poller are made once, so a read or a write
// allocates nothing.
type tcpStream struct {
	f             *os.File
	rc            syscall.RawConn
	local, remote netip.AddrPort

	riov, wiov  []unix.Iovec
	rn, wn      int
	rerr, werr  unix.Errno
	rfn, waitFn func(uintptr) bool
	wfn         func(uintptr)
	poll        [1]unix.PollFd
}

func newTCPStream(fd int) (*tcpStream, error) {
	f := os.NewFile(uintptr(fd), "o2ib connection")
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	s := &tcpStream{f: f, rc: rc, local: sockname(fd), riov: make([]unix.Iovec, 0, 8), wiov: make([]unix.Iovec, 0, maxIovecs)}
	s.rfn = func(fd uintptr) bool {
		for {
			n, _, e := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.riov))), uintptr(len(s.riov)))
			s.rn, s.rerr = int(n), e
			if e != unix.EINTR {
				return e != unix.EAGAIN
			}
		}
	}
	s.wfn = func(fd uintptr) {
		for {
			n, _, e := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.wiov))), uintptr(len(s.wiov)))
			s.wn, s.werr = int(n), e
			if e != unix.EINTR {
				return
			}
		}
	}
	s.waitFn = func(fd uintptr) bool {
		// The poller has forgotten earlier edges by now: look for ourselves before it waits for one.
		s.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		n, _ := unix.Poll(s.poll[:], 0)
		return n > 0
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		f.Close()
		return nil, fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	return s, nil
}

func iovecs(v []unix.Iovec, bufs [][]byte) []unix.Iovec {
	v = v[:0]
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if len(v) == maxIovecs {
			break
		}
		e := unix.Iovec{Base: unsafe.SliceData(b)}
		e.SetLen(len(b))
		v = append(v, e)
	}
	return v
}

func (s *tcpStream) TryWritev(bufs [][]byte) (int, error) {
	s.wiov = iovecs(s.wiov, bufs)
	if len(s.wiov) == 0 {
		return 0, nil
	}
	want := 0
	for i := range s.wiov {
		want += int(s.wiov[i].Len)
	}
	// Control, not Write: that would wait for whoever is in WaitWritable.
	err := s.rc.Control(s.wfn)
	clear(s.wiov)
	switch {
	case err != nil:
		return 0, err
	case s.werr == unix.EAGAIN:
		return 0, ErrWouldBlock
	case s.werr != 0:
		return 0, s.werr
	case s.wn < want:
		return s.wn, ErrWouldBlock
	}
	return s.wn, nil
}

func (s *tcpStream) WaitWritable() error {
	return s.rc.Write(s.waitFn)
}

func (s *tcpStream) Readv(bufs [][]byte) (int, error) {
	s.riov = iovecs(s.riov, bufs)
	if len(s.riov) == 0 {
		return 0, nil
	}
	err := s.rc.Read(s.rfn)
	clear(s.riov)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, os.ErrDeadlineExceeded
	case err != nil:
		return 0, err
	case s.rerr != 0:
		return 0, s.rerr
	case s.rn == 0:
		return 0, io.EOF
	}
	return s.rn, nil
}

func (s *tcpStream) CloseWrite() error {
	var e error
	if err := s.rc.Control(func(fd uintptr) { e = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return e
}

func (s *tcpStream) option(level, name, value int) error {
	var e error
	if err := s.rc.Control(func(fd uintptr) { e = unix.SetsockoptInt(int(fd), level, name, value) }); err != nil {
		return err
	}
	return e
}

func (s *tcpStream) SetUserTimeout(d time.Duration) error {
	return s.option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

func (s *tcpStream) SetTOS(tos uint8) error { return s.option(unix.IPPROTO_IP, unix.IP_TOS, int(tos)) }

func (s *tcpStream) SetReadDeadline(t time.Time) error { return s.f.SetReadDeadline(t) }

func (s *tcpStream) Close() error { return s.f.Close() }

func (s *tcpStream) Local() netip.AddrPort { return s.local }

func (s *tcpStream) Remote() netip.AddrPort { return s.remote }
