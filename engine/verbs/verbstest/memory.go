package verbstest

import (
	"bytes"
	"errors"
	"testing"

	"o2ibd/engine/verbs"
)

// refused posts a write that the server must refuse, and a send behind it, and sees both ends fail.
func refused(t *testing.T, c, s *end, key uint32, addr uint64, n int) {
	t.Helper()
	s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64)})
	wr := verbs.SendWR{ID: 2, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: addr, RKey: key}
	wr.SGE[0] = c.sge(0, n)
	c.mustPost([]verbs.RecvWR{c.recv(4, 4096, 64)}, wr, c.send(3, 0, 10))
	if wc := s.completion(1); wc.Status != verbs.WCFlushed {
		t.Fatalf("the server's receive: %+v", wc)
	}
	if wc := c.completion(4); wc.Status != verbs.WCFlushed {
		t.Fatalf("the client's receive: %+v", wc)
	}
	if c.dev.Info().Caps.RemoteAck {
		if wc := c.completion(2); wc.Status != verbs.WCRemoteAccess {
			t.Fatalf("the write: %+v", wc)
		}
		if wc := c.completion(3); wc.Status != verbs.WCFlushed {
			t.Fatalf("the send behind it: %+v", wc)
		}
	}
	for _, e := range []*end{c, s} {
		if ev := e.event(e.id, verbs.EventDisconnected); ev.Err == nil && !e.env.QuietEnd {
			t.Fatal("a refused write is reported as an orderly end")
		}
	}
	c.shut()
	s.shut()
}

func badRemoteKey(t *testing.T, w *world) {
	c, s := w.connect()
	refused(t, c, s, s.mr.RKey()^0x5a00, s.addr(0), 100)
}

func outOfBounds(t *testing.T, w *world) {
	c, s := w.connect()
	refused(t, c, s, s.mr.RKey(), s.addr(slabSize-50), 100)
	c, s = w.connect()
	refused(t, c, s, s.mr.RKey(), s.addr(0)-1, 100)
}

func noRight(t *testing.T, w *world) {
	c, s := w.connect()
	mr, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite)
	s.must(err)
	copy(s.at(1<<20, 100), pattern(100, 1))
	refused(t, c, s, mr.RKey(), s.addr(1<<20), 100)
	if !bytes.Equal(s.at(1<<20, 100), pattern(100, 1)) {
		t.Fatal("it was written all the same")
	}
	s.must(mr.Close())
}

func badLocalKey(t *testing.T, w *world) {
	badLocal(t, w, func(e *verbs.SGE) { e.LKey ^= 0x7700 })
}

func badLocalAddress(t *testing.T, w *world) {
	badLocal(t, w, func(e *verbs.SGE) { e.Addr += slabSize - 50 })
}

// badLocal posts a send of memory that is not registered so; a provider may refuse it at once.
func badLocal(t *testing.T, w *world, spoil func(*verbs.SGE)) {
	c, s := w.connect()
	wr := c.send(1, 0, 100)
	spoil(&wr.SGE[0])
	if p := c.post(nil, wr); p.Err == nil {
		if wc := c.completion(1); !c.failedAs(wc, verbs.WCLocalAccess) {
			t.Fatalf("send: %+v", wc)
		}
		w.a.event(c.id, verbs.EventDisconnected)
		w.b.event(s.id, verbs.EventDisconnected)
	}
	c.shut()
	s.shut()
}

func foreignKey(t *testing.T, w *world) {
	c, s := w.connect()
	refused(t, c, s, c.mr.RKey(), c.addr(0), 100)
}

func foreignDomain(t *testing.T, w *world) {
	c, s := w.connect()
	pd, err := s.dev.AllocPD()
	s.must(err)
	mr, err := pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
	s.must(err)
	refused(t, c, s, mr.RKey(), s.addr(1<<20), 100)
	s.must(mr.Close())
	s.must(pd.Close())
}

func staleKey(t *testing.T, w *world) {
	c, s := w.connect()
	mr, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
	s.must(err)
	key := mr.RKey()
	s.must(mr.Close())
	// What takes its place has another key.
	for range 100 {
		next, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
		s.must(err)
		if next.RKey() == key {
			t.Fatal("a key was soon used again")
		}
		s.must(next.Close())
	}
	again, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
	s.must(err)
	refused(t, c, s, key, s.addr(1<<20), 100)
	s.must(again.Close())
}

// closedUnderWrites takes a region away while the peer writes to it: from then on its memory is the owner's.
func closedUnderWrites(t *testing.T, w *world) {
	c, s := w.connect()
	const n, times = 1 << 20, 12
	mr, err := s.pd.RegMR(s.at(1<<20, n), verbs.LocalWrite|verbs.RemoteWrite)
	s.must(err)
	wr := verbs.SendWR{ID: 1, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(1 << 20), RKey: mr.RKey()}
	wr.SGE[0] = c.sge(0, n)
	var chain []verbs.SendWR
	for range times {
		chain = append(chain, wr)
	}
	c.mustPost(nil, chain...)
	s.must(mr.Close())
	copy(s.at(1<<20, n), pattern(n, 4))
	// Where all of it was done already, one more has to fail.
	c.post(nil, wr)
	c.event(c.id, verbs.EventDisconnected)
	s.event(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
	if !bytes.Equal(s.at(1<<20, n), pattern(n, 4)) {
		t.Fatal("it was written after it was closed")
	}
}

// drained posts a receive on a queue pair in error, into which the peer is writing: when that receive comes
// back, behind all others, nothing is written any more.
func drained(t *testing.T, w *world) {
	c, s := w.connect()
	const n, times = 1 << 20, 12
	wr := verbs.SendWR{ID: 1, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(1 << 20), RKey: s.mr.RKey()}
	wr.SGE[0] = c.sge(0, n)
	var chain []verbs.SendWR
	for range times {
		chain = append(chain, wr)
	}
	s.mustPost([]verbs.RecvWR{s.recv(2, 0, 64), s.recv(3, 64, 64)})
	c.mustPost(nil, chain...)
	s.must(s.qp.ToError())
	s.mustPost([]verbs.RecvWR{s.recv(4, 128, 64)})
	for i, wc := range s.completions(3) {
		if wc.ID != uint64(2+i) || wc.Status != verbs.WCFlushed {
			t.Fatalf("completion %d: %+v", i, wc)
		}
	}
	copy(s.at(1<<20, n), pattern(n, 4))
	c.event(c.id, verbs.EventDisconnected)
	s.event(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
	if !bytes.Equal(s.at(1<<20, n), pattern(n, 4)) {
		t.Fatal("it was written after the queue pair was drained")
	}
}

// windowed makes a window for s, or says that its device has none.
func windowed(t *testing.T, s *end) (verbs.MW, bool) {
	t.Helper()
	mw, err := s.pd.AllocMW()
	if !s.dev.Info().Caps.MemoryWindow {
		if !errors.Is(err, verbs.ErrUnsupported) {
			t.Fatalf("a window on a device without: %v", err)
		}
		return nil, false
	}
	s.must(err)
	return mw, true
}

// bind makes a window of the 4096 bytes at 1 MiB of the slab, and gives its key.
func (s *end) bind(mw verbs.MW) uint32 {
	s.t.Helper()
	key := mw.RKey()
	s.mustPost(nil, verbs.SendWR{ID: 70, Op: verbs.OpBindMW, Signaled: true,
		Bind: verbs.BindMWAttr{MW: mw, MR: s.mr, Addr: s.addr(1 << 20), Length: 4096, Access: verbs.RemoteWrite}})
	if wc := s.completion(70); wc.Status != verbs.WCSuccess || wc.Op != verbs.OpBindMW {
		s.t.Fatalf("bind: %+v", wc)
	}
	return key
}

func (s *end) invalidate(key uint32) {
	s.t.Helper()
	s.mustPost(nil, verbs.SendWR{ID: 71, Op: verbs.OpLocalInv, Signaled: true, RKey: key})
	if wc := s.completion(71); wc.Status != verbs.WCSuccess || wc.Op != verbs.OpLocalInv {
		s.t.Fatalf("invalidate: %+v", wc)
	}
}

func window(t *testing.T, w *world) {
	c, s := w.connect()
	mw, ok := windowed(t, s)
	if !ok {
		c.shut()
		s.shut()
		return
	}
	write := func(key uint32) {
		s.mustPost([]verbs.RecvWR{s.recv(11, 0, 64)})
		wr := verbs.SendWR{ID: 12, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(1 << 20), RKey: key}
		wr.SGE[0] = c.sge(0, 4096)
		c.mustPost(nil, wr, c.send(13, 0, 1))
		if wc := s.completion(11); wc.Status != verbs.WCSuccess {
			t.Fatalf("write through a window: %+v", wc)
		}
		c.completion(13)
	}
	copy(c.at(0, 4096), pattern(4096, 6))
	key := s.bind(mw)
	write(key)
	if !bytes.Equal(s.at(1<<20, 4096), pattern(4096, 6)) {
		t.Fatal("the data differs")
	}
	s.invalidate(key)
	next := s.bind(mw)
	if next == key {
		t.Fatal("the next bind has the same key")
	}
	write(next)
	s.invalidate(next)
	refused(t, c, s, next, s.addr(1<<20), 100)

	if !w.b.env.LooseWindows {
		// Out of the window, though still in the region.
		c, s = w.connect()
		key = s.bind(mw)
		refused(t, c, s, key, s.addr(1<<20)+1, 4096)
	}
	s.must(mw.Close())
}

// foreignWindow writes through a window that is bound on another connection.
func foreignWindow(t *testing.T, w *world) {
	c, s := w.connect()
	d, u := w.connect()
	if mw, ok := windowed(t, s); ok {
		refused(t, d, u, s.bind(mw), s.addr(1<<20), 100)
		s.must(mw.Close())
	} else {
		d.shut()
		u.shut()
	}
	c.shut()
	s.shut()
}

func windowForbidden(t *testing.T, w *world) {
	c, s := w.connect()
	if mw, ok := windowed(t, s); ok {
		mr, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
		s.must(err)
		p := s.post(nil, verbs.SendWR{ID: 1, Op: verbs.OpBindMW, Signaled: true,
			Bind: verbs.BindMWAttr{MW: mw, MR: mr, Addr: s.addr(1 << 20), Length: 4096, Access: verbs.RemoteWrite}})
		if p.Err == nil {
			if wc := s.completion(1); wc.Status != verbs.WCBindError {
				t.Fatalf("bind: %+v", wc)
			}
			w.a.event(c.id, verbs.EventDisconnected)
		}
		s.must(mw.Close())
		s.must(mr.Close())
	}
	c.shut()
	s.shut()
}

func sendInvalidate(t *testing.T, w *world) {
	c, s := w.connect()
	if !s.dev.Info().Caps.SendInv {
		c.shut()
		s.shut()
		return
	}
	mw, ok := windowed(t, s)
	if !ok {
		t.Fatal("a device without windows says that it can invalidate them")
	}
	key := s.bind(mw)
	s.mustPost([]verbs.RecvWR{s.recv(2, 0, 64)})
	wr := c.send(3, 0, 20)
	wr.Op, wr.RKey = verbs.OpSendInv, key
	c.mustPost(nil, wr)
	if wc := s.completion(2); wc.Status != verbs.WCSuccess || wc.InvKey != key || wc.ByteLen != 20 {
		t.Fatalf("receive of a send with invalidate: %+v, key %#x", wc, key)
	}
	c.completion(3)
	refused(t, c, s, key, s.addr(1<<20), 100)
	s.must(mw.Close())
}

func read(t *testing.T, w *world) {
	c, s := w.connect()
	if w.b.dev.Info().Caps.Read {
		const n = 200000
		copy(s.at(1<<20, n), pattern(n, 3))
		wr := verbs.SendWR{ID: 1, Op: verbs.OpRead, Signaled: true, NSGE: 1, RemoteAddr: s.addr(1 << 20), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(0, n)
		c.mustPost(nil, wr)
		if wc := c.completion(1); wc.Status != verbs.WCSuccess || !bytes.Equal(c.at(0, n), pattern(n, 3)) {
			t.Fatalf("read: %+v", wc)
		}
	}
	c.shut()
	s.shut()
}

func readForbidden(t *testing.T, w *world) {
	c, s := w.connect()
	if w.b.dev.Info().Caps.Read {
		mr, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
		s.must(err)
		clear(c.at(0, 100))
		copy(s.at(1<<20, 100), pattern(100, 3))
		wr := verbs.SendWR{ID: 1, Op: verbs.OpRead, Signaled: true, NSGE: 1, RemoteAddr: s.addr(1 << 20), RKey: mr.RKey()}
		wr.SGE[0] = c.sge(0, 100)
		c.mustPost(nil, wr)
		if wc := c.completion(1); wc.Status == verbs.WCSuccess || c.dev.Info().Caps.RemoteAck && wc.Status != verbs.WCRemoteAccess {
			t.Fatalf("read: %+v", wc)
		}
		if len(bytes.Trim(c.at(0, 100), "\x00")) != 0 {
			t.Fatal("it was read all the same")
		}
		w.a.event(c.id, verbs.EventDisconnected)
		w.b.event(s.id, verbs.EventDisconnected)
		s.must(mr.Close())
	}
	c.shut()
	s.shut()
}
