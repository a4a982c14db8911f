package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/app/config"
)

// maxSocketPath is what fits the kernel's address of a unix socket, in bytes, with the zero at its end.
const maxSocketPath = 107

// listenPage binds the page's address and loads the certificate.
func listenPage(c config.Config) (net.Listener, error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: an address and a port are wanted, such as %s", c.Listen, config.DefaultListen)
	}
	if !c.TLS() && !c.InsecureListen && !loopback(host) {
		return nil, fmt.Errorf("listen on %s: beyond loopback the configuration must have tls with cert and key or with self_made: true, or insecure_listen: true", c.Listen)
	}
	var certs tls.Config
	if c.TLS() {
		cert, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("load certificate %s and key %s: %w", c.TLSCert, c.TLSKey, err)
		}
		certs = tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	l, err := net.Listen("tcp", c.Listen)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: another program has this port; end it, or give another address with --listen", c.Listen)
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("listen on %s: ports below 1024 need CAP_NET_BIND_SERVICE; give another address with --listen", c.Listen)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: no interface of this host has that address; give another with --listen", c.Listen)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", c.Listen, err)
	}
	if c.TLS() {
		return tls.NewListener(l, &certs), nil
	}
	return l, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// pageURL is where a browser on this host finds the page.
func pageURL(c config.Config, bound net.Addr) string {
	scheme := "http"
	if c.TLS() {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return scheme + "://" + bound.String()
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			host = "localhost"
		}
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// listenSocket binds the unix socket, for its group too. One that a killed process left is removed.
func listenSocket(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d bytes, at most %d are possible; give a shorter one with --socket", path, len(path), maxSocketPath)
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("socket %s: there is a file that is no socket; move it away, or give another path with --socket", path)
	case err == nil:
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
			return nil, fmt.Errorf("socket %s: another program answers on it; end it, or give another path with --socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the stale socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, errors.Unwrap(err))
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return l, nil
}

type peerKey struct{}

// PeerActor is who asks over the unix socket: uid and name of the process at the other end. File
// permissions have let it in, so it is an administrator. False on any other connection.
func PeerActor(ctx context.Context) (Actor, bool) {
	a, ok := ctx.Value(peerKey{}).(Actor)
	return a, ok
}

// withPeer puts the process at the other end of a unix socket into the context.
func withPeer(ctx context.Context, c net.Conn) (context.Context, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return ctx, errors.New("not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return ctx, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return ctx, err
	}
	if cerr != nil {
		return ctx, cerr
	}
	uid := strconv.FormatUint(uint64(cred.Uid), 10)
	a := Actor{Name: "uid " + uid, Role: RoleAdmin, How: HowSocket, From: "uid " + uid}
	if u, err := user.LookupId(uid); err == nil {
		a.Name = u.Username
	}
	return context.WithValue(ctx, peerKey{}, a), nil
}

// Bounds of the two HTTP servers.
const (
	headerWithin = 10 * time.Second
	idleWithin   = 2 * time.Minute
	maxHeader    = 64 << 10
)

// newServer makes the server of one listener and the listener to serve on. kind names it in events: http
// or socket.
func (a *App) newServer(kind string, l net.Listener, h http.Handler) (*http.Server, net.Listener) {
	g := &guard{kind: kind, protest: a.Protest}
	return &http.Server{
		Handler:           g.handler(h),
		ReadHeaderTimeout: headerWithin,
		IdleTimeout:       idleWithin,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return a.serving },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = g.context(ctx, c)
			if peer, err := withPeer(ctx, c.(*guardedConn).Conn); err == nil {
				ctx = peer
			}
			return ctx
		},
		ConnState: g.state,
		ErrorLog:  slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}, g.listen(l)
}
