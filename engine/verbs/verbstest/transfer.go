package verbstest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"o2ibd/engine/verbs"
)

// tooEarly posts before there is a connection: receives are taken, sends are not.
func tooEarly(t *testing.T, w *world) {
	c := w.client(w.port)
	if p := c.post([]verbs.RecvWR{c.recv(1, 0, 64)}, c.send(2, 0, 10)); !errors.Is(p.Err, verbs.ErrState) || p.NRecvs != 1 || p.NSends != 0 {
		t.Fatalf("send on a queue pair that is not connected: %d receives and %d sends taken, %v", p.NRecvs, p.NSends, p.Err)
	}
	c.shut()
}

func sendReceive(t *testing.T, w *world) {
	c, s := w.connect()
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
			if len(bytes.Trim(to.at(8192+n, 4096-n), "\x00")) != 0 {
				t.Fatalf("memory behind the %d bytes was written", n)
			}
			if wc := from.completion(uint64(20 + i)); wc.Status != verbs.WCSuccess || wc.Op != verbs.OpSend || wc.QPNum != from.qp.Num() {
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
	c, s := w.connect()
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 100), s.recv(2, 4096, 100)})
	c.mustPost([]verbs.RecvWR{c.recv(4, 0, 64)}, c.send(3, 0, 200))
	if wc := s.completion(1); !s.failedAs(wc, verbs.WCLocalLength) {
		t.Fatalf("receive that is too short: %+v", wc)
	}
	if wc := s.completion(2); wc.Status != verbs.WCFlushed {
		t.Fatalf("receive behind it: %+v", wc)
	}
	if wc := c.completion(3); c.dev.Info().Caps.RemoteAck && wc.Status != verbs.WCRemoteInvalid {
		t.Fatalf("send that is too long: %+v", wc)
	}
	if wc := c.completion(4); wc.Status != verbs.WCFlushed {
		t.Fatalf("receive of the side that sent: %+v", wc)
	}
	w.a.event(c.id, verbs.EventDisconnected)
	w.b.event(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func writes(t *testing.T, w *world) {
	c, s := w.connect()
	const frags, n = 40, 5000
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 4096)})
	var chain []verbs.SendWR
	for i := range frags {
		copy(c.at(1<<20+i*n, n), pattern(n, i))
		wr := verbs.SendWR{ID: uint64(100 + i), Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(2<<20 + i*n), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(1<<20+i*n, n)
		chain = append(chain, wr)
	}
	// One of no bytes and one of two pieces, which lie behind the others.
	chain = append(chain, verbs.SendWR{ID: 200, Op: verbs.OpWrite, RemoteAddr: s.addr(0), RKey: s.mr.RKey()})
	two := verbs.SendWR{ID: 201, Op: verbs.OpWrite, NSGE: 2, RemoteAddr: s.addr(2<<20 + frags*n), RKey: s.mr.RKey()}
	two.SGE[0], two.SGE[1] = c.sge(1<<20, 1000), c.sge(1<<20+2000, 500)
	chain = append(chain, two)
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
	if got := s.at(2<<20+frags*n, 1500); !bytes.Equal(got[:1000], c.at(1<<20, 1000)) || !bytes.Equal(got[1000:], c.at(1<<20+2000, 500)) {
		t.Fatal("the gathered write is not in place when the send arrives")
	}
	if wc := c.completion(2); wc.Status != verbs.WCSuccess {
		t.Fatalf("send: %+v", wc)
	}
	if c.settle(); len(c.wcs) != 0 {
		t.Fatalf("unsignalled writes completed: %+v", c.wcs)
	}
	c.shut()
	s.shut()
}

func inOrder(t *testing.T, w *world) {
	c, s := w.connect()
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

func recvQueueFull(t *testing.T, w *world) {
	c, s := w.connect()
	var recvs []verbs.RecvWR
	for i := range w.b.attr.MaxRecvWR + 3 {
		recvs = append(recvs, s.recv(uint64(i), 0, 64))
	}
	if p := s.post(recvs, s.send(999, 0, 1)); !errors.Is(p.Err, verbs.ErrQueueFull) || p.NRecvs != w.b.attr.MaxRecvWR || p.NSends != 0 {
		t.Fatalf("posting %d receives and a send: %d and %d taken, %v", len(recvs), p.NRecvs, p.NSends, p.Err)
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

func sendQueueFull(t *testing.T, w *world) {
	c, s := w.connect()
	var sends []verbs.SendWR
	for i := range w.a.attr.MaxSendWR + 3 {
		sends = append(sends, c.send(uint64(i), 0, 1))
	}
	p := c.post([]verbs.RecvWR{c.recv(9999, 0, 64)}, sends...)
	if !errors.Is(p.Err, verbs.ErrQueueFull) || p.NRecvs != 1 || p.NSends != w.a.attr.MaxSendWR {
		t.Fatalf("posting a receive and %d sends: %d and %d taken, %v", len(sends), p.NRecvs, p.NSends, p.Err)
	}
	c.shut() // counts the completions
	s.shut()
}

func flushRecvs(t *testing.T, w *world) {
	c, s := w.connect()
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

// flushSends fails a queue pair with a chain of unsignalled writes and signalled sends on it, for which
// the peer posts no receives. Some may have been carried out. From the first that was not, every one
// completes, signalled or not.
func flushSends(t *testing.T, w *world) {
	c, s := w.connect()
	const n = 24
	var chain []verbs.SendWR
	for i := range n / 2 {
		wr := verbs.SendWR{ID: uint64(2 * i), Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(0), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(0, 1<<18)
		chain = append(chain, wr, c.send(uint64(2*i+1), 0, 64))
	}
	c.mustPost(nil, chain...)
	c.must(c.qp.ToError())
	next, failed := 0, false
	for next < n {
		wc := c.completions(1)[0]
		for !failed && wc.Status == verbs.WCSuccess && next%2 == 0 && next < int(wc.ID) {
			next++ // an unsignalled one that was carried out
		}
		for !failed && wc.Status != verbs.WCSuccess && next%2 == 0 && next+1 == int(wc.ID) {
			next++ // the same, in front of the one that failed
		}
		if int(wc.ID) != next || failed && wc.Status != verbs.WCFlushed || wc.Status == verbs.WCSuccess && !chain[next].Signaled || wc.Op != chain[next].Op {
			t.Fatalf("request %d is next: %+v", next, wc)
		}
		failed = failed || wc.Status != verbs.WCSuccess
		next++
	}
	if c.settle(); len(c.wcs) != 0 {
		t.Fatalf("more completions than requests: %+v", c.wcs)
	}
	w.b.event(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func lateReceive(t *testing.T, w *world) {
	c, s := w.connect()
	if !w.a.dev.Info().Caps.RNRRetry {
		c.shut()
		s.shut()
		return
	}
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

// noReceive sends to a peer that posts no receive: the retries end, or the device has none.
func noReceive(t *testing.T, w *world) {
	c, s := w.connect()
	c.mustPost([]verbs.RecvWR{c.recv(2, 0, 64)}, c.send(1, 0, 100))
	if ev := w.a.event(c.id, verbs.EventDisconnected); ev.Err == nil && !c.env.QuietEnd {
		t.Fatal("it is reported as an orderly end")
	}
	w.b.event(s.id, verbs.EventDisconnected)
	if wc := c.completion(1); w.a.dev.Info().Caps.RemoteAck && wc.Status != verbs.WCRNRRetry {
		t.Fatalf("send that nobody takes: %+v", wc)
	}
	if wc := c.completion(2); wc.Status != verbs.WCFlushed {
		t.Fatalf("posted receive: %+v", wc)
	}
	c.shut()
	s.shut()
}

// watch is a completion queue of the server's with a waiter of its own, so that nothing else wakes it, and
// a connection on it.
type watch struct {
	waiter verbs.Waiter
	cq     verbs.CQ
	c, s   *end
}

func newWatch(w *world) *watch {
	w.t.Helper()
	x := &watch{}
	var err error
	x.waiter, err = w.b.node.Provider.NewWaiter()
	w.b.must(err)
	x.cq, err = w.b.dev.CreateCQ(64, x.waiter)
	w.b.must(err)
	shared := w.b.attr.CQ
	w.b.attr.CQ = x.cq
	x.c, x.s = w.connect()
	w.b.attr.CQ = shared
	return x
}

// send gives the server one completion, sooner or later.
func (x *watch) send() {
	x.s.t.Helper()
	x.s.mustPost([]verbs.RecvWR{x.s.recv(1, 0, 64)})
	x.c.mustPost(nil, x.c.send(2, 0, 10))
	x.c.completion(2)
	x.s.settle()
}

// woken waits and says whether it was woken, rather than out of time.
func (x *watch) woken(d time.Duration) bool {
	start := time.Now()
	x.waiter.Wait(start.Add(d))
	return time.Since(start) < d
}

func (x *watch) close() {
	x.s.t.Helper()
	x.s.wcs = x.s.wcs[:0]
	x.c.shut()
	x.s.shut()
	x.s.must(x.cq.Close())
	x.s.must(x.waiter.Close())
}

// armInTime: whatever comes while the owner goes to sleep is found by its poll after arming, or wakes it.
func armInTime(t *testing.T, w *world) {
	x := newWatch(w)
	for range 100 {
		if x.s.reap(x.cq) {
			t.Fatal("a completion too many")
		}
		x.send()
		x.s.must(x.cq.Arm())
		for !x.s.reap(x.cq) {
			if !x.woken(x.s.env.Patience) {
				t.Fatal("asleep with a completion to take")
			}
			x.s.must(x.cq.Arm())
		}
	}
	x.close()
}

// armOnce: armed once is woken once, by the next completion and not by those that are there.
func armOnce(t *testing.T, w *world) {
	x := newWatch(w)
	patience := x.s.env.Patience
	x.s.must(x.cq.Arm())
	x.send()
	if !x.woken(patience) {
		t.Fatal("not woken")
	}
	x.send()
	if x.woken(20 * time.Millisecond) {
		t.Fatal("woken again without being armed again")
	}
	deadline := time.Now().Add(patience)
	for len(x.s.wcs) < 2 && time.Now().Before(deadline) {
		x.s.reap(x.cq) // not armed: nothing will wake
	}
	x.send()
	for len(x.s.wcs) < 3 && time.Now().Before(deadline) {
		x.s.must(x.cq.Arm())
		if !x.s.reap(x.cq) {
			x.waiter.Wait(deadline)
		}
	}
	if len(x.s.wcs) != 3 {
		t.Fatalf("%d completions", len(x.s.wcs))
	}
	x.close()
}
