package verbstest

import (
	"bytes"
	"errors"
	"hash/crc32"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// Run runs the whole suite.
func Run(t *testing.T, env Env) {
	if env.Patience == 0 {
		env.Patience = 20 * time.Second
	}
	for _, c := range []struct {
		name string
		f    func(*testing.T, *world)
	}{
		{"set-up with private data both ways", setup},
		{"reject with private data", reject},
		{"nobody listens", noListener},
		{"port in use", portInUse},
		{"no device at that address", noDevice},
		{"data before the passive side knows", earlyData},
		{"send and receive", sendReceive},
		{"message longer than its receive", tooLong},
		{"writes closed by a send", writes},
		{"completions in posting order", inOrder},
		{"queue full", queueFull},
		{"flush on error", flush},
		{"late receive", lateReceive},
		{"no receive ever", noReceive},
		{"remote key wrong", badRemoteKey},
		{"remote address out of bounds", outOfBounds},
		{"write right missing", noRight},
		{"local key wrong", badLocalKey},
		{"key of the other node", foreignKey},
		{"key that was taken back", staleKey},
		{"memory window", window},
		{"send with invalidate", sendInvalidate},
		{"read", read},
		{"arm", arm},
		{"disconnect by the client", func(t *testing.T, w *world) { disconnect(t, w, true) }},
		{"disconnect by the server", func(t *testing.T, w *world) { disconnect(t, w, false) }},
		{"destroy with work outstanding", destroy},
		{"many connections", many},
		{"much data", bulk},
		{"batch over several queue pairs", batch},
		{"listener closed", listenerClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, &env)
			c.f(t, w)
			w.close()
		})
	}
	if env.Vanish != nil {
		t.Run("peer vanishes", func(t *testing.T) { vanish(t, newWorld(t, &env), &env) })
	}
}

func setup(t *testing.T, w *world) {
	c := &end{side: w.a, id: w.resolve(w.port)}
	var err error
	c.qp, err = c.id.CreateQP(w.a.attr)
	w.a.must(err)
	w.a.must(c.id.Connect(param(pattern(56, 1))))
	req := w.b.event(nil, verbs.EventConnectRequest)
	if req.Listener != w.listener || req.ID.User() != w.listener.User() {
		t.Fatalf("the request says listener %v, user %v", req.Listener, req.ID.User())
	}
	if !bytes.HasPrefix(req.Private, pattern(56, 1)) || len(bytes.Trim(req.Private[56:], "\x00")) != 0 {
		t.Fatalf("private data of the request: %x", req.Private)
	}
	if got := req.ID.Remote().Addr(); got != w.a.node.Addr {
		t.Fatalf("the request comes from %v, the client is at %v", got, w.a.node.Addr)
	}
	if req.ID.Remote().Port() == 0 {
		t.Fatal("the source port is not visible")
	}
	s := &end{side: w.b, id: req.ID}
	s.qp, err = s.id.CreateQP(w.b.attr)
	w.b.must(err)
	w.b.must(s.id.Accept(param(pattern(56, 2))))
	est := w.a.event(c.id, verbs.EventEstablished)
	if !bytes.HasPrefix(est.Private, pattern(56, 2)) {
		t.Fatalf("private data of the answer: %x", est.Private)
	}
	w.b.event(s.id, verbs.EventEstablished)
	if c.id.QP() != c.qp || s.id.QP() != s.qp {
		t.Fatal("the ids do not know their queue pairs")
	}
	c.shut()
	s.shut()
}

func reject(t *testing.T, w *world) {
	c := &end{side: w.a, id: w.resolve(w.port)}
	var err error
	c.qp, err = c.id.CreateQP(w.a.attr)
	w.a.must(err)
	w.a.must(c.id.Connect(param(pattern(56, 1))))
	req := w.b.event(nil, verbs.EventConnectRequest)
	w.b.must(req.ID.Reject(pattern(24, 3)))
	w.b.must(req.ID.Close())
	ev := w.a.event(c.id, verbs.EventRejected)
	if ev.Reject != verbs.RejectConsumer || !bytes.HasPrefix(ev.Private, pattern(24, 3)) {
		t.Fatalf("reject kind %v with %x", ev.Reject, ev.Private)
	}
	c.shut()
}

func noListener(t *testing.T, w *world) {
	l, err := w.b.cm.NewID(nil)
	w.b.must(err)
	w.b.must(l.Bind(netip.AddrPortFrom(w.b.node.Addr, 0), false))
	w.b.must(l.Listen(0))
	at := l.Local()
	w.b.must(l.Close())
	c := &end{side: w.a, id: w.resolve(at)}
	c.qp, err = c.id.CreateQP(w.a.attr)
	w.a.must(err)
	w.a.must(c.id.Connect(param(nil)))
	if ev := w.a.event(c.id, verbs.EventRejected); ev.Reject != verbs.RejectNoListener {
		t.Fatalf("reject kind %v", ev.Reject)
	}
	c.shut()
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
	w.a.must(id.Close())
}

// earlyData sends as soon as the client knows, and looks at the server's completions before its events.
func earlyData(t *testing.T, w *world) {
	c := &end{side: w.a, id: w.resolve(w.port)}
	var err error
	c.qp, err = c.id.CreateQP(w.a.attr)
	w.a.must(err)
	w.a.must(c.id.Connect(param(nil)))
	req := w.b.event(nil, verbs.EventConnectRequest)
	s := &end{side: w.b, id: req.ID}
	s.qp, err = s.id.CreateQP(w.b.attr)
	w.b.must(err)
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 4096)})
	w.b.must(s.id.Accept(param(nil)))
	w.a.event(c.id, verbs.EventEstablished)
	copy(c.at(0, 100), pattern(100, 5))
	c.mustPost(nil, c.send(2, 0, 100))
	if wc := s.completion(1); wc.Status != verbs.WCSuccess || wc.ByteLen != 100 || !bytes.Equal(s.at(0, 100), pattern(100, 5)) {
		t.Fatalf("early receive: %+v", wc)
	}
	w.b.event(s.id, verbs.EventEstablished)
	c.shut()
	s.shut()
}

func sendReceive(t *testing.T, w *world) {
	c, s := w.connect(nil)
	for i, n := range []int{0, 1, 3, 100, 4096} {
		for _, e := range [][2]*end{{c, s}, {s, c}} {
			from, to := e[0], e[1]
			to.mustPost([]verbs.RecvWR{to.recv(uint64(10+i), 8192, 4096)})
			copy(from.at(0, n), pattern(n, i))
			clear(to.at(8192, 4096))
			from.mustPost(nil, from.send(uint64(20+i), 0, n))
			if wc := to.completion(uint64(10 + i)); wc.Status != verbs.WCSuccess || wc.Op != verbs.OpRecv || int(wc.ByteLen) != n || wc.QPNum != to.qp.Num() {
				t.Fatalf("receive of %d bytes: %+v", n, wc)
			}
			if !bytes.Equal(to.at(8192, n), pattern(n, i)) {
				t.Fatalf("%d bytes differ", n)
			}
			if wc := from.completion(uint64(20 + i)); wc.Status != verbs.WCSuccess || wc.Op != verbs.OpSend {
				t.Fatalf("send of %d bytes: %+v", n, wc)
			}
		}
	}
	// Two pieces of memory in one message.
	copy(c.at(0, 50), pattern(50, 9))
	copy(c.at(1000, 70), pattern(70, 8))
	s.mustPost([]verbs.RecvWR{s.recv(30, 0, 4096)})
	wr := c.send(31, 0, 50)
	wr.SGE[1], wr.NSGE = c.sge(1000, 70), 2
	c.mustPost(nil, wr)
	if wc := s.completion(30); wc.ByteLen != 120 || !bytes.Equal(s.at(0, 120), append(pattern(50, 9), pattern(70, 8)...)) {
		t.Fatalf("gathered send: %+v", wc)
	}
	c.shut()
	s.shut()
}

func tooLong(t *testing.T, w *world) {
	c, s := w.connect(nil)
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 100), s.recv(2, 4096, 100)})
	c.mustPost(nil, c.send(3, 0, 200))
	if wc := s.completion(1); wc.Status != verbs.WCLocalLength {
		t.Fatalf("receive that is too short: %+v", wc)
	}
	if wc := s.completion(2); wc.Status != verbs.WCFlushed {
		t.Fatalf("receive behind it: %+v", wc)
	}
	w.a.event(c.id, verbs.EventDisconnected)
	w.b.event(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func writes(t *testing.T, w *world) {
	c, s := w.connect(nil)
	const frags, n = 40, 5000
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 4096)})
	var chain []verbs.SendWR
	for i := range frags {
		copy(c.at(1<<20+i*n, n), pattern(n, i))
		wr := verbs.SendWR{ID: uint64(100 + i), Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(2<<20 + i*n), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(1<<20+i*n, n)
		chain = append(chain, wr)
	}
	copy(c.at(0, 60), pattern(60, 99))
	chain = append(chain, c.send(2, 0, 60))
	c.mustPost(nil, chain...)
	if wc := s.completion(1); wc.Status != verbs.WCSuccess || wc.ByteLen != 60 {
		t.Fatalf("the send behind the writes: %+v", wc)
	}
	for i := range frags {
		if !bytes.Equal(s.at(2<<20+i*n, n), pattern(n, i)) {
			t.Fatalf("fragment %d is not in place when the send arrives", i)
		}
	}
	if wc := c.completion(2); wc.Status != verbs.WCSuccess {
		t.Fatalf("send: %+v", wc)
	}
	if c.poll(); len(c.wcs) != 0 {
		t.Fatalf("unsignalled writes completed: %+v", c.wcs)
	}
	c.shut()
	s.shut()
}

func inOrder(t *testing.T, w *world) {
	c, s := w.connect(nil)
	const n = 40
	var recvs []verbs.RecvWR
	for i := range n {
		recvs = append(recvs, s.recv(uint64(i), i*4096, 4096))
	}
	s.mustPost(recvs)
	for i := range n {
		c.at(i, 1)[0] = byte(i)
		c.mustPost(nil, c.send(uint64(100+i), i, 1))
	}
	for i, wc := range s.completions(n) {
		if wc.ID != uint64(i) || wc.Status != verbs.WCSuccess || s.at(i*4096, 1)[0] != byte(i) {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	for i, wc := range c.completions(n) {
		if wc.ID != uint64(100+i) || wc.Status != verbs.WCSuccess {
			t.Fatalf("send %d: %+v", i, wc)
		}
	}
	c.shut()
	s.shut()
}

func queueFull(t *testing.T, w *world) {
	c, s := w.connect(nil)
	var recvs []verbs.RecvWR
	for i := range w.b.attr.MaxRecvWR + 3 {
		recvs = append(recvs, s.recv(uint64(i), 0, 64))
	}
	if p := s.post(recvs, s.send(999, 0, 1)); !errors.Is(p.Err, verbs.ErrQueueFull) || p.NRecvs != w.b.attr.MaxRecvWR || p.NSends != 0 {
		t.Fatalf("posting %d receives: %+v", len(recvs), p)
	}
	c.shut()
	w.b.event(s.id, verbs.EventDisconnected)
	for i, wc := range s.completions(w.b.attr.MaxRecvWR) {
		if wc.ID != uint64(i) || wc.Status != verbs.WCFlushed {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	s.shut()
}

func flush(t *testing.T, w *world) {
	c, s := w.connect(nil)
	c.mustPost([]verbs.RecvWR{c.recv(1, 0, 64), c.recv(2, 64, 64)})
	c.must(c.qp.ToError())
	c.must(c.qp.ToError())
	for i, wc := range c.completions(2) {
		if wc.ID != uint64(1+i) || wc.Status != verbs.WCFlushed {
			t.Fatalf("posted receive: %+v", wc)
		}
	}
	c.mustPost([]verbs.RecvWR{c.recv(3, 0, 64)}, c.send(4, 0, 10))
	for _, id := range []uint64{3, 4} {
		if wc := c.completion(id); wc.Status != verbs.WCFlushed {
			t.Fatalf("posted to a queue pair in error: %+v", wc)
		}
	}
	w.b.event(s.id, verbs.EventDisconnected)
	w.a.event(c.id, verbs.EventDisconnected)
	w.a.noEvent(c.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func lateReceive(t *testing.T, w *world) {
	c, s := w.connect(nil)
	copy(c.at(0, 100), pattern(100, 4))
	c.mustPost(nil, c.send(1, 0, 100))
	if w.a.env.Pump == nil {
		// Nothing can say that it has arrived: the receive is late either way, by a little or by more.
		w.b.w.Wait(time.Now().Add(50 * time.Millisecond))
	}
	s.mustPost([]verbs.RecvWR{s.recv(2, 0, 4096)})
	if wc := s.completion(2); wc.Status != verbs.WCSuccess || !bytes.Equal(s.at(0, 100), pattern(100, 4)) {
		t.Fatalf("receive that came late: %+v", wc)
	}
	if wc := c.completion(1); wc.Status != verbs.WCSuccess {
		t.Fatalf("send: %+v", wc)
	}
	c.shut()
	s.shut()
}

func noReceive(t *testing.T, w *world) {
	c, s := w.connect(nil)
	c.mustPost(nil, c.send(1, 0, 100))
	w.a.event(c.id, verbs.EventDisconnected)
	if wc := c.completion(1); w.a.dev.Info().Caps.RemoteAck && wc.Status != verbs.WCRNRRetry {
		t.Fatalf("send that nobody takes: %+v", wc)
	}
	c.shut()
	s.shut()
}

// arm sees that what comes between an empty poll and the arming is found by the poll after it, and that
// what comes later wakes.
func arm(t *testing.T, w *world) {
	c, s := w.connect(nil)
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64), s.recv(2, 0, 64)})
	s.poll()
	c.mustPost(nil, c.send(3, 0, 10))
	c.completion(3)
	s.must(s.cq.Arm())
	s.completion(1)
	s.must(s.cq.Arm())
	c.mustPost(nil, c.send(4, 0, 10))
	if w.a.env.Pump == nil {
		// Without a wake this would wait for all of the patience.
		before := time.Now()
		for len(s.wcs) == 0 && time.Since(before) < s.env.Patience {
			s.w.Wait(before.Add(s.env.Patience))
			s.poll()
		}
	}
	s.completion(2)
	c.shut()
	s.shut()
}

func disconnect(t *testing.T, w *world, client bool) {
	c, s := w.connect(nil)
	from, to := s, c
	if client {
		from, to = c, s
	}
	to.mustPost([]verbs.RecvWR{to.recv(1, 0, 4096), to.recv(2, 4096, 64)})
	copy(from.at(0, 4000), pattern(4000, 2))
	from.mustPost([]verbs.RecvWR{from.recv(3, 8192, 64)}, from.send(4, 0, 4000))
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
	from.event(from.id, verbs.EventDisconnected)
	from.must(from.qp.ToError())
	if wc := from.completion(3); wc.Status != verbs.WCFlushed {
		t.Fatalf("receive of the side that disconnects: %+v", wc)
	}
	from.noEvent(from.id, verbs.EventDisconnected)
	to.noEvent(to.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func destroy(t *testing.T, w *world) {
	c, s := w.connect(nil)
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
	c.poll()
	for _, ev := range c.events {
		if ev.ID == c.id {
			t.Fatalf("event of a closed id: %v", ev.Type)
		}
	}
	w.b.event(s.id, verbs.EventDisconnected)
	s.shut()
}

func many(t *testing.T, w *world) {
	const n = 48
	var cs, ss []*end
	for range n {
		c, s := w.connect(nil)
		cs, ss = append(cs, c), append(ss, s)
	}
	for round := range 3 {
		for i := range n {
			ss[i].mustPost([]verbs.RecvWR{ss[i].recv(uint64(i), i*4096, 4096)})
			c := cs[i].at(i*4096, 64)
			copy(c, pattern(64, i+round))
			cs[i].mustPost(nil, cs[i].send(uint64(1000+i), i*4096, 64))
		}
		for i := range n {
			if wc := ss[i].completion(uint64(i)); wc.Status != verbs.WCSuccess || !bytes.Equal(ss[i].at(i*4096, 64), pattern(64, i+round)) || wc.QPNum != ss[i].qp.Num() {
				t.Fatalf("connection %d: %+v", i, wc)
			}
			cs[i].completion(uint64(1000 + i))
		}
	}
	for i := range n {
		cs[i].shut()
		ss[i].shut()
	}
}

func bulk(t *testing.T, w *world) {
	c, s := w.connect(nil)
	const n = 1 << 20
	copy(c.at(1<<20, n), pattern(n, 1))
	want := crc32.ChecksumIEEE(c.at(1<<20, n))
	for i := range 32 {
		s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64)})
		clear(s.at(2<<20, n))
		wr := verbs.SendWR{ID: 2, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(2 << 20), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(1<<20, n)
		c.mustPost(nil, wr, c.send(3, 0, 10))
		if wc := s.completion(1); wc.Status != verbs.WCSuccess || crc32.ChecksumIEEE(s.at(2<<20, n)) != want {
			t.Fatalf("transfer %d: %+v", i, wc)
		}
		c.completion(3)
	}
	c.shut()
	s.shut()
}

func batch(t *testing.T, w *world) {
	var cs, ss []*end
	for range 4 {
		c, s := w.connect(nil)
		cs, ss = append(cs, c), append(ss, s)
	}
	var recvs, sends []verbs.Posting
	for i := range cs {
		recvs = append(recvs, verbs.Posting{QP: ss[i].qp, Recvs: []verbs.RecvWR{ss[i].recv(uint64(i), i*4096, 64)}})
		sends = append(sends, verbs.Posting{QP: cs[i].qp, Sends: []verbs.SendWR{cs[i].send(uint64(10+i), i, 1)}})
	}
	// One bad share must not spoil the others.
	recvs[1].Recvs = append(recvs[1].Recvs, make([]verbs.RecvWR, w.b.attr.MaxRecvWR)...)
	w.b.dev.Post(recvs)
	for i, p := range recvs {
		if i == 1 {
			if !errors.Is(p.Err, verbs.ErrQueueFull) || p.NRecvs != w.b.attr.MaxRecvWR {
				t.Fatalf("the share that is too long: %d posted, %v", p.NRecvs, p.Err)
			}
		} else if p.Err != nil || p.NRecvs != 1 {
			t.Fatalf("share %d: %d posted, %v", i, p.NRecvs, p.Err)
		}
	}
	w.a.dev.Post(sends)
	for i, p := range sends {
		if p.Err != nil || p.NSends != 1 {
			t.Fatalf("share %d: %d posted, %v", i, p.NSends, p.Err)
		}
		if wc := ss[i].completion(uint64(i)); wc.Status != verbs.WCSuccess {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	for i := range cs {
		cs[i].shut()
		ss[i].shut()
	}
}

func listenerClosed(t *testing.T, w *world) {
	c, s := w.connect(nil)
	w.b.must(w.listener.Close())
	d := &end{side: w.a, id: w.resolve(w.port)}
	var err error
	d.qp, err = d.id.CreateQP(w.a.attr)
	w.a.must(err)
	w.a.must(d.id.Connect(param(nil)))
	if ev := w.a.event(d.id, verbs.EventRejected); ev.Reject != verbs.RejectNoListener {
		t.Fatalf("reject kind %v", ev.Reject)
	}
	d.shut()
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64)})
	c.mustPost(nil, c.send(2, 0, 10))
	if wc := s.completion(1); wc.Status != verbs.WCSuccess {
		t.Fatalf("a connection from before: %+v", wc)
	}
	c.shut()
	s.shut()
}

// vanish takes the server away in the middle of a transfer.
func vanish(t *testing.T, w *world, env *Env) {
	c, s := w.connect(nil)
	c.mustPost([]verbs.RecvWR{c.recv(1, 0, 64)})
	for i := range 64 {
		wr := verbs.SendWR{ID: uint64(100 + i), Op: verbs.OpWrite, Signaled: true, NSGE: 1, RemoteAddr: w.b.addr(0), RKey: w.b.mr.RKey()}
		wr.SGE[0] = c.sge(0, 1<<20)
		c.mustPost(nil, wr)
		if i == 3 {
			env.Vanish()
		}
	}
	if ev := w.a.event(c.id, verbs.EventDisconnected); ev.Err == nil {
		t.Fatal("a vanished peer is reported as an orderly end")
	}
	if wc := c.completion(1); wc.Status != verbs.WCFlushed {
		t.Fatalf("posted receive: %+v", wc)
	}
	if wc := c.completion(163); wc.Status == verbs.WCSuccess {
		t.Fatalf("the last write: %+v", wc)
	}
	c.shut()
	s.shut()
	w.close()
}
