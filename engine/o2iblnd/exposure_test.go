package o2iblnd_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// write has the peer write n bytes of seed where a descriptor of the node says.
func (c *tpConn) write(rd *wire.Desc, n, seed int) {
	c.p.r.t.Helper()
	off := tpSlots + 512<<10
	copy(c.at(off, n), pattern(n, seed))
	wr := verbs.SendWR{ID: 7, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: rd.Frags[0].Addr, RKey: rd.Key}
	wr.SGE[0] = verbs.SGE{Addr: c.addr(off), Length: uint32(n), LKey: c.p.mr.LKey()}
	batch := []verbs.Posting{{QP: c.qp, Sends: []verbs.SendWR{wr}}}
	c.p.dev.Post(batch)
	c.p.r.must(batch[0].Err)
	synctest.Wait()
}

func (c *tpConn) getDone(req *wire.Msg, status int32) {
	done := c.msg(wire.MsgGetDone, 1)
	done.Cookie, done.Status = req.Cookie, status
	c.sendMsg(done)
}

// TestExposure has a peer write once more where it was told to write before, after it said that it was done.
func TestExposure(t *testing.T) {
	const n = 65536
	for _, row := range []struct {
		level string
		again bool // the old key still works
		same  bool // and the next transfer to the same buffer has it
	}{{"transfer", false, false}, {"cached", true, true}, {"device", true, true}} {
		t.Run(row.level, func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				if got := r.conn().Exposure; got != row.level {
					r.t.Fatalf("the conn says %q", got)
				}
				m, req := getReq(r, c, n)
				c.write(&req.RD, n, 3)
				c.getDone(req, n)
				r.finished(m, 0)
				if !bytes.Equal(m.Segs[0].Bytes(), pattern(n, 3)) {
					r.t.Fatal("the data is not in place")
				}
				again := r.message(wire.LNetGET, n)
				r.arena.Free(again.Segs[0])
				again.Segs = append(again.Segs[:0], m.Segs[0])
				r.lnd.Send(again)
				next := c.expect(wire.MsgGetReq)[0]
				c.write(&next.RD, n, 5)
				c.getDone(next, n)
				r.finished(again, 0)
				if (next.RD.Key == req.RD.Key) != row.same {
					r.t.Fatalf("keys %#x and %#x of two transfers to one buffer", req.RD.Key, next.RD.Key)
				}
				c.write(&req.RD, n, 7)
				if row.again {
					c.open()
				} else {
					c.closed()
					if !bytes.Equal(m.Segs[0].Bytes(), pattern(n, 5)) {
						r.t.Fatal("it was written with a key of the past")
					}
				}
			}, with("exposure", row.level))
		})
	}
}

// TestSinkOutlivesTheTimeout: a sink that the peer was told of is not given back before nothing can be
// written there, even when the connection times out.
func TestSinkOutlivesTheTimeout(t *testing.T) {
	for _, level := range []string{"transfer", "cached", "device"} {
		run(t, func(r *rig) {
			c := established(r)
			m, req := getReq(r, c, 40000)
			time.Sleep(6 * time.Second)
			r.finished(m, unix.ECONNABORTED)
			c.p.maybe(verbs.EventDisconnected)
			c.write(&req.RD, 40000, 8)
			if bytes.Equal(m.Segs[0].Bytes(), pattern(40000, 8)) {
				r.t.Fatal("it was written after its message came back")
			}
		}, with("timeout", "4"), with("exposure", level))
	}
}

// TestGapsAreNotExposed: pieces with gaps between them go through one piece unless use_fastreg_gaps says
// otherwise.
func TestGapsAreNotExposed(t *testing.T) {
	for _, row := range []struct {
		exposure, gaps string
		frags          int
	}{{"transfer", "0", 1}, {"transfer", "1", 2}, {"cached", "0", 1}, {"device", "0", 2}} {
		run(t, func(r *rig) {
			c := established(r)
			m := r.message(wire.LNetGET, 50000)
			whole := m.Segs[0]
			m.Segs = []arena.Buffer{whole.Slice(0, 20000), whole.Slice(30000, 20000)}
			m.Len, m.Hdr.Length = 40000, 40000
			r.lnd.Send(m)
			req := c.expect(wire.MsgGetReq)[0]
			if len(req.RD.Frags) != row.frags || req.RD.Size() != 40000 {
				t.Fatalf("%+v: %d fragments of %d bytes", row, len(req.RD.Frags), req.RD.Size())
			}
			for i, f := range req.RD.Frags {
				c.write(&wire.Desc{Key: req.RD.Key, Frags: req.RD.Frags[i:]}, int(f.Nob), 3)
			}
			c.getDone(req, 40000)
			r.finished(m, 0)
			want := pattern(40000, 3)
			if row.frags == 2 {
				want = append(pattern(20000, 3), pattern(20000, 3)...)
			}
			if !bytes.Equal(append(bytes.Clone(m.Segs[0].Bytes()), m.Segs[1].Bytes()...), want) {
				t.Fatalf("%+v: the data differs", row)
			}
		}, with("exposure", row.exposure), with("use_fastreg_gaps", row.gaps))
	}
}

// fmr gives the registration pool of the node under test.
func fmr(t *testing.T, l *o2iblnd.LND) o2iblnd.PoolState {
	t.Helper()
	for _, p := range l.Snapshot().Pools {
		if p.Kind == "fmr" {
			return p
		}
	}
	t.Fatal("no registration pool")
	return o2iblnd.PoolState{}
}

// TestWithoutWindows registers for each transfer, or keeps what it registered.
func TestWithoutWindows(t *testing.T) {
	for _, level := range []string{"transfer", "cached"} {
		runTwins(t, mem.Options{NoWindows: true}, func(w *twins) {
			w.a.works(w.b)
			w.b.works(w.a)
			if p := fmr(t, w.a.lnd); level == "transfer" && p.Used != 0 || p.Maps != 2 {
				t.Fatalf("%s: %+v", level, p)
			}
			// One that cannot be registered is refused, not lost: the peer gets a PUT_NAK.
			w.f.FailNth(w.b.addr, mem.CallRegister, 1)
			w.a.fails(w.a.send(w.b, wire.LNetPUT, 50000), unix.ENOMEM)
			if !w.b.upper.said("device", "could not register memory") {
				t.Fatalf("events: %v", w.b.upper.events)
			}
			w.a.works(w.b)
		}, "exposure", level)
	}
}

// TestCacheFlush uses more buffers than the cache keeps.
func TestCacheFlush(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		for range 200 {
			m := w.a.send(w.b, wire.LNetGET, 5000)
			synctest.Wait()
			if !w.a.upper.done(m) || m.Status != 0 {
				t.Fatalf("a GET: %v", m.Status)
			}
		}
		if p := fmr(t, w.a.lnd); p.Flushes != 1 || p.Maps != 200 || p.Hits != 0 || p.Used != 200-193 || p.Pools != 1 {
			t.Fatalf("after 200 buffers: %+v", p)
		}
	}, "exposure", "cached", "fmr_flush_trigger", "192", "fmr_pool_size", "256", "ntx", "256")
}

// TestWindowOfADeadConn: a window that was bound when its connection died serves others again.
func TestWindowOfADeadConn(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		w.a.works(w.b)
		take := w.b.upper.on
		w.b.upper.on = func(*wire.LNetHeader) int { return -2 }
		m := w.a.send(w.b, wire.LNetGET, 50000)
		synctest.Wait()
		if n, err := w.a.lnd.CloseConns(w.t.Context(), w.a.nid, w.b.nid); n != 1 || err != nil {
			t.Fatalf("closed %d: %v", n, err)
		}
		w.a.fails(m, unix.ECONNABORTED)
		w.b.upper.on = take
		for _, rx := range w.b.upper.held {
			rx.ReceiveLater(nil)
		}
		for range 5 {
			w.a.works(w.b)
		}
		if w.a.upper.said("conn_closed", "window") {
			t.Fatalf("events: %v", w.a.upper.events)
		}
	})
}
