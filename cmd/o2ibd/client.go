package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/app"
	"o2ibd/app/config"
)

// errDown says that no appliance answers.
var errDown = errors.New("no appliance answers")

// client asks the appliance over its unix socket, where file permissions stand for sign-in.
type client struct {
	ctx     context.Context
	http    *http.Client
	ifMatch string // entity tag to send, "" for none
}

// dial finds the appliance: at the socket that was named, else in the usual places.
func (e *env) dial() (*client, error) {
	paths := config.Sockets()
	if e.socket != "" {
		paths = []string{e.socket}
	}
	var first error
	for _, path := range paths {
		c, err := net.DialTimeout("unix", path, 5*time.Second)
		if err == nil {
			c.Close()
			tr := &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", path)
				},
			}
			return &client{ctx: e.ctx, http: &http.Client{Transport: tr}}, nil
		}
		if first == nil {
			var errno unix.Errno
			if errors.As(err, &errno) {
				err = errno
			}
			first = fmt.Errorf("%w on %s (%w); start it with o2ibd serve, or name its socket with --socket", errDown, path, err)
		}
	}
	return nil, first
}

// do sends a request and gives the answer's body, which the caller closes. An error status is an error
// with the appliance's own words.
func (c *client) do(method, path string, body any) (io.ReadCloser, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(c.ctx, method, "http://localhost"+path, r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.ifMatch != "" {
		req.Header.Set("If-Match", `"`+c.ifMatch+`"`)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the appliance: %w", err)
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var p app.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&p); err != nil || p.Detail == "" && p.Title == "" {
		return nil, fmt.Errorf("the appliance answered %s", resp.Status)
	}
	if p.Detail == "" {
		p.Detail = p.Title
	}
	return nil, errors.New(p.Detail)
}

// call sends a request and reads the answer into answer, which may be nil.
func (c *client) call(method, path string, body, answer any) error {
	b, err := c.do(method, path, body)
	if err != nil {
		return err
	}
	defer b.Close()
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(b).Decode(answer); err != nil {
		return fmt.Errorf("the appliance's answer to %s %s cannot be read: %w", method, path, err)
	}
	return nil
}

// call finds the appliance and asks it once.
func (e *env) call(method, path string, body, answer any) error {
	return e.callIf("", method, path, body, answer)
}

// callIf is call with the entity tag of what the caller saw, "" for none.
func (e *env) callIf(tag, method, path string, body, answer any) error {
	c, err := e.dial()
	if err != nil {
		return err
	}
	c.ifMatch = tag
	return c.call(method, path, body, answer)
}
