package verbstest

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

func setup(t *testing.T, w *world) {
	c := w.client(w.port)
	p := param(pattern(56, 1))
	p.ResponderResources, p.InitiatorDepth = 3, 2
	w.a.must(c.id.Connect(p))
	clear(p.Private) // it was copied
	req := w.b.event(nil, verbs.EventConnectRequest)
	if req.Listener != w.listener || req.ID.User() != w.listener.User() {
		t.Fatalf("the request says listener %v, user %v", req.Listener, req.ID.User())
	}
	samePrivate(t, "request", req.Private, pattern(56, 1))
	if req.Param.ResponderResources != 2 || req.Param.InitiatorDepth != 3 {
		t.Fatalf("the client answers 3 reads at once and makes 2; the request says %+v", req.Param)
	}
	if got := req.ID.Remote(); got != c.id.Local() || got.Port() == 0 {
		t.Fatalf("the request comes from %v, the client is at %v", got, c.id.Local())
	}
	if req.ID.Local() != w.port || c.id.Remote() != w.port {
		t.Fatalf("the listener is at %v, the child at %v, the client connects to %v", w.port, req.ID.Local(), c.id.Remote())
	}
	if req.ID.Device() != w.b.dev {
		t.Fatal("the child is not on its listener's device")
	}
	s := w.server(req)
	s.id.SetUser("child")
	w.b.must(s.id.Accept(param(pattern(56, 2))))
	samePrivate(t, "answer", w.a.event(c.id, verbs.EventEstablished).Private, pattern(56, 2))
	w.b.event(s.id, verbs.EventEstablished)
	if c.id.QP() != c.qp || s.id.QP() != s.qp || c.qp.Num() == s.qp.Num() && w.a.dev == w.b.dev {
		t.Fatal("the ids do not know their queue pairs")
	}
	if s.id.User() != "child" || w.listener.User() != "listener" || c.id.User() != "client" {
		t.Fatalf("users are %v, %v and %v", s.id.User(), w.listener.User(), c.id.User())
	}
	if err := s.id.Accept(param(nil)); !errors.Is(err, verbs.ErrState) {
		t.Fatalf("a second accept gives %v", err)
	}
	c.shut()
	s.shut()
}

// samePrivate compares private data, to which the carrier may add zeros.
func samePrivate(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.HasPrefix(got, want) || len(bytes.Trim(got[len(want):], "\x00")) != 0 {
		t.Fatalf("private data of the %s: %x, want %x", what, got, want)
	}
}

func reject(t *testing.T, w *world) {
	c := w.client(w.port)
	w.a.must(c.id.Connect(param(pattern(56, 1))))
	req := w.b.event(nil, verbs.EventConnectRequest)
	w.b.must(req.ID.Reject(pattern(24, 3)))
	w.b.must(req.ID.Close())
	ev := w.a.event(c.id, verbs.EventRejected)
	if ev.Reject != verbs.RejectConsumer {
		t.Fatalf("reject kind %v", ev.Reject)
	}
	samePrivate(t, "reject", ev.Private, pattern(24, 3))
	c.shut()
}

func noListener(t *testing.T, w *world) {
	l, err := w.b.cm.NewID(nil)
	w.b.must(err)
	w.b.must(l.Bind(netip.AddrPortFrom(w.b.node.Addr, 0), false))
	w.b.must(l.Listen(0))
	at := l.Local()
	w.b.must(l.Close())
	refusedAt(t, w, at)
}

// refusedAt tries to connect where nobody listens.
func refusedAt(t *testing.T, w *world, at netip.AddrPort) {
	t.Helper()
	c := w.client(at)
	w.a.must(c.id.Connect(param(nil)))
	if ev := w.a.event(c.id, verbs.EventRejected); ev.Reject != verbs.RejectNoListener {
		t.Fatalf("reject kind %v", ev.Reject)
	}
	c.shut()
}

// unreachable connects to where nobody answers; a provider may find that out at any stage.
func unreachable(t *testing.T, w *world) {
	if !w.a.env.Nowhere.IsValid() {
		return
	}
	id, err := w.a.cm.NewID("client")
	w.a.must(err)
	w.a.must(id.ResolveAddr(netip.AddrPortFrom(w.a.node.Addr, 0), w.a.env.Nowhere, false, w.a.env.Patience/2))
	c := &end{side: w.a, id: id}
	if w.a.event(id, verbs.EventAddrResolved, verbs.EventAddrError).Type == verbs.EventAddrResolved {
		w.a.must(id.ResolveRoute(w.a.env.Patience / 2))
		if w.a.event(id, verbs.EventRouteResolved, verbs.EventRouteError).Type == verbs.EventRouteResolved {
			w.a.open(id.Device())
			c.qp, err = id.CreateQP(w.a.attr)
			w.a.must(err)
			w.a.must(id.Connect(param(nil)))
			w.a.event(id, verbs.EventUnreachable, verbs.EventConnectError)
			c.shut()
			return
		}
	}
	w.a.must(id.Close())
}

func portInUse(t *testing.T, w *world) {
	l, err := w.b.cm.NewID(nil)
	w.b.must(err)
	err = l.Bind(w.port, false)
	if err == nil {
		err = l.Listen(0)
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("a port that is taken gives %v", err)
	}
	w.b.must(l.Close())
}

func noDevice(t *testing.T, w *world) {
	id, err := w.a.cm.NewID(nil)
	w.a.must(err)
	if err := id.Bind(netip.MustParseAddrPort("127.9.9.9:0"), false); !errors.Is(err, verbs.ErrNoDevice) {
		t.Fatalf("an address without a device gives %v", err)
	}
	if d := id.Device(); d != nil {
		t.Fatalf("an id that is not bound has the device %v", d)
	}
	w.a.must(id.Close())
}

// closedEarly closes a client that waits for its answer. The server, which does not know, may see its
// queue pair or accept fail at once, or learn by an event, or by a connection that ends.
func closedEarly(t *testing.T, w *world) {
	c := w.client(w.port)
	w.a.must(c.id.Connect(param(nil)))
	req := w.b.event(nil, verbs.EventConnectRequest)
	c.shut()
	s := &end{side: w.b, id: req.ID}
	var err error
	if s.qp, err = s.id.CreateQP(w.b.attr); errors.Is(err, verbs.ErrState) {
		w.b.must(s.id.Close())
	} else {
		w.b.must(err)
		s.acceptClosed()
		s.shut()
	}
	// The other way round: the server goes without an answer.
	c = w.client(w.port)
	w.a.must(c.id.Connect(param(nil)))
	w.b.must(w.b.event(nil, verbs.EventConnectRequest).ID.Close())
	w.a.wait("the end of the attempt", func() bool {
		// A client may take silence for a peer that is older than it, and ask once more.
		for w.b.poll(); len(w.b.events) > 0; w.b.events = w.b.events[1:] {
			w.b.must(w.b.events[0].ID.Close())
		}
		return slices.ContainsFunc(w.a.events, func(ev verbs.Event) bool { return ev.ID == c.id })
	})
	w.a.event(c.id, verbs.EventRejected, verbs.EventConnectError, verbs.EventUnreachable)
	c.shut()
}

// acceptClosed accepts a request whose client is gone.
func (s *end) acceptClosed() {
	s.t.Helper()
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64)})
	if s.id.Accept(param(nil)) == nil {
		if s.event(s.id, verbs.EventEstablished, verbs.EventConnectError, verbs.EventUnreachable, verbs.EventRejected).Type == verbs.EventEstablished {
			s.event(s.id, verbs.EventDisconnected)
		}
	}
}

func listenerClosed(t *testing.T, w *world) {
	c, s := w.connect()
	w.b.must(w.listener.Close())
	refusedAt(t, w, w.port)
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64)})
	c.mustPost(nil, c.send(2, 0, 10))
	if wc := s.completion(1); wc.Status != verbs.WCSuccess {
		t.Fatalf("a connection from before: %+v", wc)
	}
	c.shut()
	s.shut()
}

// earlyData sends as soon as the client knows. The server takes its completions before its events.
func earlyData(t *testing.T, w *world) {
	c := w.client(w.port)
	w.a.must(c.id.Connect(param(nil)))
	s := w.server(w.b.event(nil, verbs.EventConnectRequest))
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 4096)})
	w.b.deaf = true
	w.b.must(s.id.Accept(param(nil)))
	w.a.event(c.id, verbs.EventEstablished)
	copy(c.at(0, 100), pattern(100, 5))
	c.mustPost(nil, c.send(2, 0, 100))
	if wc := s.completion(1); wc.Status != verbs.WCSuccess || wc.ByteLen != 100 || !bytes.Equal(s.at(0, 100), pattern(100, 5)) {
		t.Fatalf("early receive: %+v", wc)
	}
	w.b.deaf = false
	w.b.event(s.id, verbs.EventEstablished)
	c.shut()
	s.shut()
}

func disconnect(t *testing.T, w *world, client bool) {
	c, s := w.connect()
	from, to := s, c
	if client {
		from, to = c, s
	}
	to.mustPost([]verbs.RecvWR{to.recv(1, 0, 4096), to.recv(2, 4096, 64)})
	copy(from.at(0, 4000), pattern(4000, 2))
	from.mustPost([]verbs.RecvWR{from.recv(3, 8192, 64)}, from.send(4, 0, 4000))
	if wc := from.completion(4); wc.Status != verbs.WCSuccess {
		t.Fatalf("send before the disconnect: %+v", wc)
	}
	from.must(from.id.Disconnect())
	if wc := to.completion(1); wc.Status != verbs.WCSuccess || !bytes.Equal(to.at(0, 4000), pattern(4000, 2)) {
		t.Fatalf("what was sent before the disconnect: %+v", wc)
	}
	if ev := to.event(to.id, verbs.EventDisconnected); ev.Err != nil {
		t.Fatalf("an orderly end is reported as %v", ev.Err)
	}
	to.must(to.qp.ToError())
	if wc := to.completion(2); wc.Status != verbs.WCFlushed {
		t.Fatalf("receive of the other side: %+v", wc)
	}
	if ev := from.event(from.id, verbs.EventDisconnected); ev.Err != nil {
		t.Fatalf("an orderly end is reported as %v", ev.Err)
	}
	from.must(from.qp.ToError())
	if wc := from.completion(3); wc.Status != verbs.WCFlushed {
		t.Fatalf("receive of the side that disconnects: %+v", wc)
	}
	from.must(from.id.Disconnect())
	from.noEvent(from.id, verbs.EventDisconnected)
	to.noEvent(to.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func disconnectBoth(t *testing.T, w *world) {
	c, s := w.connect()
	for _, e := range []*end{c, s} {
		e.mustPost([]verbs.RecvWR{e.recv(1, 0, 64)})
		e.must(e.id.Disconnect())
	}
	for _, e := range []*end{c, s} {
		e.event(e.id, verbs.EventDisconnected)
		e.must(e.qp.ToError())
		if wc := e.completion(1); wc.Status != verbs.WCFlushed {
			t.Fatalf("posted receive: %+v", wc)
		}
	}
	c.noEvent(c.id, verbs.EventDisconnected)
	s.noEvent(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func destroy(t *testing.T, w *world) {
	c, s := w.connect()
	var recvs []verbs.RecvWR
	for i := range 20 {
		recvs = append(recvs, c.recv(uint64(i), 0, 64))
	}
	c.mustPost(recvs)
	for i := range 20 {
		wr := verbs.SendWR{ID: uint64(100 + i), Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(0), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(0, 1<<20)
		c.mustPost(nil, wr)
	}
	c.shut()
	w.b.event(s.id, verbs.EventDisconnected)
	w.a.settle() // which fails if the closed id has an event
	s.shut()
}

// destroyDeaf closes an id whose events nobody took.
func destroyDeaf(t *testing.T, w *world) {
	c, s := w.connect()
	w.a.deaf = true
	s.must(s.id.Disconnect())
	s.event(s.id, verbs.EventDisconnected)
	w.a.settle()
	c.shut()
	w.a.deaf = false
	w.a.settle() // which fails if the closed id has an event
	s.shut()
}
