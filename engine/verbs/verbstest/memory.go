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
	c.event(c.id, verbs.EventDisconnected)
	s.event(s.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}

func badRemoteKey(t *testing.T, w *world) {
	c, s := w.connect(nil)
	refused(t, c, s, s.mr.RKey()^0x5a00, s.addr(0), 100)
}

func outOfBounds(t *testing.T, w *world) {
	c, s := w.connect(nil)
	refused(t, c, s, s.mr.RKey(), s.addr(slabSize-50), 100)
	c, s = w.connect(nil)
	refused(t, c, s, s.mr.RKey(), s.addr(0)-1, 100)
}

func noRight(t *testing.T, w *world) {
	c, s := w.connect(nil)
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
	c, s := w.connect(nil)
	wr := c.send(1, 0, 100)
	wr.SGE[0].LKey ^= 0x7700
	if p := c.post(nil, wr); p.Err == nil {
		if wc := c.completion(1); wc.Status != verbs.WCLocalAccess {
			t.Fatalf("send with a wrong local key: %+v", wc)
		}
		w.b.event(s.id, verbs.EventDisconnected)
	}
	c.shut()
	s.shut()
}

func foreignKey(t *testing.T, w *world) {
	c, s := w.connect(nil)
	refused(t, c, s, c.mr.RKey(), c.addr(0), 100)
}

func staleKey(t *testing.T, w *world) {
	c, s := w.connect(nil)
	mr, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
	s.must(err)
	key := mr.RKey()
	s.must(mr.Close())
	// What takes its place has another key.
	again, err := s.pd.RegMR(s.at(1<<20, 4096), verbs.LocalWrite|verbs.RemoteWrite)
	s.must(err)
	if again.RKey() == key {
		t.Fatal("a key was used again at once")
	}
	refused(t, c, s, key, s.addr(1<<20), 100)
	s.must(again.Close())
}

func window(t *testing.T, w *world) {
	c, s := w.connect(nil)
	mw, err := s.pd.AllocMW()
	if !w.b.dev.Info().Caps.MemoryWindow {
		if !errors.Is(err, verbs.ErrUnsupported) {
			t.Fatalf("a window on a device without: %v", err)
		}
		c.shut()
		s.shut()
		return
	}
	s.must(err)
	bind := func(id uint64) uint32 {
		key := mw.RKey()
		s.mustPost(nil, verbs.SendWR{ID: id, Op: verbs.OpBindMW, Signaled: true,
			Bind: verbs.BindMWAttr{MW: mw, MR: s.mr, Addr: s.addr(1 << 20), Length: 4096, Access: verbs.RemoteWrite}})
		if wc := s.completion(id); wc.Status != verbs.WCSuccess {
			t.Fatalf("bind: %+v", wc)
		}
		return key
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
	key := bind(10)
	write(key)
	if !bytes.Equal(s.at(1<<20, 4096), pattern(4096, 6)) {
		t.Fatal("the data differs")
	}
	s.mustPost(nil, verbs.SendWR{ID: 14, Op: verbs.OpLocalInv, Signaled: true, RKey: key})
	if wc := s.completion(14); wc.Status != verbs.WCSuccess {
		t.Fatalf("invalidate: %+v", wc)
	}
	next := bind(15)
	if next == key {
		t.Fatal("the next bind has the same key")
	}
	write(next)
	s.mustPost(nil, verbs.SendWR{ID: 16, Op: verbs.OpLocalInv, Signaled: true, RKey: next})
	s.completion(16)
	refused(t, c, s, next, s.addr(1<<20), 100)
	c, s = w.connect(nil)
	key = func() uint32 {
		key := mw.RKey()
		s.mustPost(nil, verbs.SendWR{ID: 17, Op: verbs.OpBindMW, Signaled: true,
			Bind: verbs.BindMWAttr{MW: mw, MR: s.mr, Addr: s.addr(1 << 20), Length: 4096, Access: verbs.RemoteWrite}})
		s.completion(17)
		return key
	}()
	refused(t, c, s, key, s.addr(1<<20)+1, 4096)
	s.must(mw.Close())
}

func sendInvalidate(t *testing.T, w *world) {
	c, s := w.connect(nil)
	caps := w.b.dev.Info().Caps
	if !caps.MemoryWindow || !caps.SendInv {
		c.shut()
		s.shut()
		return
	}
	mw, err := s.pd.AllocMW()
	s.must(err)
	key := mw.RKey()
	s.mustPost([]verbs.RecvWR{s.recv(2, 0, 64)}, verbs.SendWR{ID: 1, Op: verbs.OpBindMW, Signaled: true,
		Bind: verbs.BindMWAttr{MW: mw, MR: s.mr, Addr: s.addr(1 << 20), Length: 4096, Access: verbs.RemoteWrite}})
	s.completion(1)
	wr := c.send(3, 0, 20)
	wr.Op, wr.RKey = verbs.OpSendInv, key
	c.mustPost(nil, wr)
	if wc := s.completion(2); wc.Status != verbs.WCSuccess || wc.InvKey != key {
		t.Fatalf("receive of a send with invalidate: %+v, key %#x", wc, key)
	}
	c.completion(3)
	refused(t, c, s, key, s.addr(1<<20), 100)
	s.must(mw.Close())
}

func read(t *testing.T, w *world) {
	c, s := w.connect(nil)
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
