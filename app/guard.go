package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// guard watches the connections of an HTTP server for what net/http refuses by itself, before any handler
// sees it: garbage, headers that are too large, requests cut off. Each becomes one event.
type guard struct {
	kind    string
	protest func(kind, from, text string)
}

type guardKey struct{}

// listen wraps the connections of l.
func (g *guard) listen(l net.Listener) net.Listener { return guardedListener{l, g} }

type guardedListener struct {
	net.Listener
	g *guard
}

func (l guardedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: c, g: l.g}, nil
}

// guardedConn is one connection of a guarded server.
type guardedConn struct {
	net.Conn
	g       *guard
	got     atomic.Bool // bytes of a request have come that no handler has seen
	request atomic.Bool // a handler has the connection
	said    atomic.Bool // its event is out
}

func (c *guardedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.request.Load() {
		c.got.Store(true)
	}
	if err != nil && handshakeFailed(c.Conn, err) {
		c.say("connection closed: no TLS handshake: " + err.Error())
	}
	return n, err
}

// Write sees the server's own answers: those that no handler gave.
func (c *guardedConn) Write(b []byte) (int, error) {
	if status, ok := refusal(b); ok && !c.request.Load() {
		c.say(fmt.Sprintf("connection closed: not a request: %s", status))
	}
	return c.Conn.Write(b)
}

// handshakeFailed tells garbage on a TLS port from a port that was only knocked at.
func handshakeFailed(c net.Conn, err error) bool {
	t, ok := c.(*tls.Conn)
	return ok && !t.ConnectionState().HandshakeComplete && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed)
}

func (c *guardedConn) say(text string) {
	if !c.said.Swap(true) {
		c.g.protest(c.g.kind, remote(c.Conn), text)
	}
}

// refusal reads the status of an answer that starts with an error.
func refusal(b []byte) (string, bool) {
	line, _, _ := bytes.Cut(b[:min(len(b), 80)], []byte("\r\n"))
	proto, status, ok := bytes.Cut(line, []byte(" "))
	if !ok || !bytes.HasPrefix(proto, []byte("HTTP/")) || len(status) == 0 || status[0] < '4' {
		return "", false
	}
	return string(status), true
}

func remote(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil && a.Network() != "unix" {
		return a.String()
	}
	return "the unix socket"
}

// context is the server's ConnContext hook: handler finds the connection in it.
func (g *guard) context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, guardKey{}, c)
}

// handler marks the connection while a handler has it.
func (g *guard) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(guardKey{}).(*guardedConn); ok {
			c.request.Store(true)
			c.got.Store(false)
		}
		h.ServeHTTP(w, r)
	})
}

// state is the server's ConnState hook.
func (g *guard) state(conn net.Conn, s http.ConnState) {
	c, ok := conn.(*guardedConn)
	if !ok {
		return
	}
	switch s {
	case http.StateIdle:
		c.request.Store(false)
	case http.StateClosed:
		if c.got.Load() && !c.request.Load() {
			c.say("connection closed in the middle of a request")
		}
	}
}
