package o2iblnd_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestT12_01FirstConnreq(t *testing.T) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 10)
		id, req, param := r.tp.request()
		if req.Version != wire.Version2 || req.Credits != 0 || req.Nob != 56 || req.DstStamp != 0 || req.Params != (wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: 4096}) {
			t.Fatalf("CONNREQ %+v %+v", req.Header, req.Params)
		}
		if param.ResponderResources != 0 || param.InitiatorDepth != 0 {
			t.Fatalf("parameters %+v", param)
		}
		c := r.tp.accept(id, req, nil)
		c.expect(wire.MsgImmediate)
		r.finished(m, 0)
	})
}

func TestT12_02PrivilegedSourcePort(t *testing.T) {
	run(t, func(r *rig) {
		r.send(wire.LNetPUT, 10)
		id, req, _ := r.tp.request()
		if p := id.Remote().Port(); p > 1023 {
			t.Fatalf("source port %d", p)
		}
		r.tp.accept(id, req, nil).expect(wire.MsgImmediate)
	}, with("use_privileged_port", "1"))
}

func TestT12_03PassiveAccepts(t *testing.T) {
	run(t, func(r *rig) {
		_, ack := r.tp.connect(r.tp.connreq())
		if ack.DstStamp != r.tp.stamp || ack.DstNID != r.tp.nid || ack.SrcStamp != r.lnd.Incarnation(r.nid) || ack.Params != (wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: 4096}) {
			t.Fatalf("CONNACK %+v %+v", ack.Header, ack.Params)
		}
		if c := r.conn(); c.State != "established" || c.RxPosted != 18 || c.Credits != 8 || c.Reserved != 8 || c.Direction != "passive" {
			t.Fatalf("connection %+v", c)
		}
	})
}

func TestT12_04BigEndianPeer(t *testing.T) {
	run(t, func(r *rig) {
		req := r.tp.connreq()
		req.BigEndian = true
		r.upper.on = func(*wire.LNetHeader) int { return 100 }
		c, ack := r.tp.connect(req)
		if ack.BigEndian {
			t.Fatal("the answer is not in the node's own order")
		}
		c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 100))
		c.open()
		if len(r.upper.data) != 1 {
			t.Fatal("the message of a big-endian peer was not understood")
		}
	})
}

func TestRejects(t *testing.T) {
	stamp := uint64(0)
	full := wire.ConnParams{QueueDepth: 8, MaxFrags: 257, MaxMsgSize: 4096}
	bare := wire.ConnParams{MaxMsgSize: 4096}
	for _, row := range []struct {
		name   string
		edit   func(*wire.Msg)
		bytes  func([]byte) []byte
		port   uint16
		why    wire.RejectReason
		ver    wire.Version
		known  bool // the NI was identified
		params wire.ConnParams
		opt    option
	}{
		{name: "T12_05 five bytes", bytes: func(b []byte) []byte { return b[:5] }, why: 3, ver: 0x12, params: bare},
		{name: "T12_06 other magic", bytes: func(b []byte) []byte { return append([]byte{0x63, 0x69, 0x72, 0x45}, b[4:]...) }, why: 3, ver: 0x12, params: bare},
		{name: "T12_06 other magic, swapped", bytes: func(b []byte) []byte { return append([]byte{0x45, 0x72, 0x69, 0x63}, b[4:]...) }, why: 3, ver: 0x12, params: bare},
		{name: "T12_07 version 0x13", edit: func(m *wire.Msg) { m.Version = 0x13 }, why: 3, ver: 0x12, params: bare},
		{name: "T12_08 wrong address", edit: func(m *wire.Msg) { m.DstNID += 9 }, why: 3, ver: 0x12, params: bare},
		{name: "T12_09 stale stamp", edit: func(m *wire.Msg) { m.DstStamp = 1 }, why: 5, ver: 0x12, known: true, params: full},
		{name: "T12_10 not a CONNREQ", bytes: func(b []byte) []byte { b[6] = byte(wire.MsgNoop); return b }, why: 3, ver: 0x12, known: true, params: full},
		{name: "T12_11 depth 9", edit: func(m *wire.Msg) { m.Params.QueueDepth = 9 }, why: 7, ver: 0x12, known: true, params: full},
		{name: "T12_11 depth 9, version 1", edit: func(m *wire.Msg) { m.Version, m.Params.QueueDepth = 0x11, 9 }, why: 3, ver: 0x11, known: true, params: full},
		{name: "T12_12 frags 258", edit: func(m *wire.Msg) { m.Params.MaxFrags = 258 }, why: 6, ver: 0x12, known: true, params: full},
		{name: "T12_13 size 4097", edit: func(m *wire.Msg) { m.Params.MaxMsgSize = 4097 }, why: 3, ver: 0x12, known: true, params: full},
		{name: "depth 0", edit: func(m *wire.Msg) { m.Params.QueueDepth = 0 }, why: 3, ver: 0x12, known: true, params: full},
		{name: "frags 0", edit: func(m *wire.Msg) { m.Params.MaxFrags = 0 }, why: 3, ver: 0x12, known: true, params: full},
		{name: "T12_15 port 40000", port: 40000, why: 3, ver: 0x12, params: bare, opt: with("require_privileged_port", "1")},
	} {
		t.Run(row.name, func(t *testing.T) {
			opt := row.opt
			if opt == nil {
				opt = with("keepalive", "100")
			}
			run(t, func(r *rig) {
				m := r.tp.connreq()
				if row.edit != nil {
					row.edit(m)
				}
				b := r.tp.encode(m)
				if row.bytes != nil {
					b = row.bytes(b)
				}
				rej := r.tp.refused(b, row.port)
				stamp = 0
				if row.known {
					stamp = r.lnd.Incarnation(r.nid)
				}
				params := rej.Params
				if !rej.Full { // version 1: the words are there, but not to be used
					params = row.params
					stamp = rej.Incarnation
				}
				if rej.Why != row.why || rej.Version != row.ver || rej.Incarnation != stamp || params != row.params {
					t.Fatalf("reject %+v, wanted why %d version %#x incarnation %#x params %+v", rej, row.why, row.ver, stamp, row.params)
				}
				if !r.upper.said("reject_sent", "refused a connection from") {
					t.Fatal("no event says why")
				}
				data := r.upper.lastData("reject_sent")
				if data["reason"] != row.why.String() || data["reason_code"] != strconv.Itoa(int(row.why)) {
					t.Fatalf("the event's numbers are %v", data)
				}
				theirs, known := data["theirs_queue_depth"]
				if want := row.known && m.Type == wire.MsgConnReq && row.bytes == nil; known != want || want && (theirs != strconv.Itoa(int(m.Params.QueueDepth)) || data["theirs_max_frags"] != strconv.Itoa(int(m.Params.MaxFrags))) {
					t.Fatalf("the event's numbers are %v", data)
				}
				if row.known && data["ours_queue_depth"] != "8" {
					t.Fatalf("the event's numbers are %v", data)
				}
			}, opt)
		})
	}
}

func TestT12_14ShallowPeer(t *testing.T) {
	run(t, func(r *rig) {
		req := r.tp.connreq()
		req.Params.QueueDepth, req.Params.MaxFrags = 4, 16
		c, ack := r.tp.connect(req)
		if ack.Params != req.Params {
			t.Fatalf("CONNACK with %+v", ack.Params)
		}
		for range 6 {
			r.send(wire.LNetPUT, 10)
		}
		if got := c.take(); len(got) != 4 {
			t.Fatalf("%d credited messages in flight, 4 are allowed", len(got))
		}
		c.sendMsg(c.msg(wire.MsgNoop, 4))
		c.expect(wire.MsgImmediate, wire.MsgImmediate)
	})
}

// adapts sees the node try again after a reject, with what it was told.
func adapts(t *testing.T, rej wire.Reject, check func(t *testing.T, req *wire.Msg), opts ...option) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 10)
		id, first, _ := r.tp.request()
		rej.Version = max(rej.Version, first.Version)
		r.tp.reject(id, rej)
		id, again, _ := r.tp.request()
		check(t, again)
		r.tp.accept(id, again, nil).expect(wire.MsgImmediate)
		r.finished(m, 0)
		if s := r.lnd.Snapshot(); s.Peers[0].Reconnects != 1 || r.upper.downs() != 0 {
			t.Fatalf("peer %+v, told down %d times", s.Peers[0], r.upper.downs())
		}
	}, opts...)
}

func TestT12_16RejectedDepth(t *testing.T) {
	adapts(t, wire.Reject{Why: wire.RejectMsgQueueSize, Incarnation: 5, Params: wire.ConnParams{QueueDepth: 8, MaxFrags: 100, MaxMsgSize: 4096}},
		func(t *testing.T, req *wire.Msg) {
			if req.Params.QueueDepth != 8 || req.Params.MaxFrags != 100 || req.DstStamp != 5 {
				t.Fatalf("second CONNREQ offers %+v to %#x", req.Params, req.DstStamp)
			}
		}, with("peer_credits", "32"))
}

func TestT12_17RejectedFrags(t *testing.T) {
	adapts(t, wire.Reject{Why: wire.RejectRDMAFrags, Params: wire.ConnParams{QueueDepth: 8, MaxFrags: 32, MaxMsgSize: 4096}},
		func(t *testing.T, req *wire.Msg) {
			if req.Params.MaxFrags != 32 {
				t.Fatalf("second CONNREQ offers %+v", req.Params)
			}
		})
}

func TestT12_19RejectedStale(t *testing.T) {
	adapts(t, wire.Reject{Why: wire.RejectStale, Incarnation: 0x77},
		func(t *testing.T, req *wire.Msg) {
			if req.DstStamp != 0x77 {
				t.Fatalf("second CONNREQ for %#x", req.DstStamp)
			}
		})
}

func TestT12_20PeerOfVersion1(t *testing.T) {
	run(t, func(r *rig) {
		r.send(wire.LNetPUT, 10)
		id, _, _ := r.tp.request()
		r.tp.reject(id, wire.Reject{Why: wire.RejectFatal, Version: wire.Version1})
		id, again, _ := r.tp.request()
		if again.Version != wire.Version1 || again.DstStamp != ^uint64(0) || again.Params.QueueDepth != 8 || again.Params.MaxFrags != 256 {
			t.Fatalf("second CONNREQ %+v %+v", again.Header, again.Params)
		}
		r.tp.accept(id, again, nil).expect(wire.MsgImmediate)
	}, with("peer_credits", "32"))
}

// givesUp sees the node fail its messages and tell LNet once.
func givesUp(t *testing.T, rej wire.Reject) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 10)
		id, _, _ := r.tp.request()
		rej.Version = wire.Version2
		r.tp.reject(id, rej)
		r.tp.noRequest()
		r.finished(m, unix.ECONNREFUSED)
		if r.upper.downs() != 1 {
			t.Fatalf("LNet was told %d times", r.upper.downs())
		}
		if s := r.lnd.Snapshot(); len(s.Peers) != 0 {
			t.Fatalf("peers %+v", s.Peers)
		}
	})
}

func TestT12_18RejectedDepthNotLower(t *testing.T) {
	givesUp(t, wire.Reject{Why: wire.RejectMsgQueueSize, Params: wire.ConnParams{QueueDepth: 8, MaxFrags: 257, MaxMsgSize: 4096}})
}

func TestT12_21RejectedForGood(t *testing.T) {
	for _, why := range []wire.RejectReason{wire.RejectFatal, wire.RejectNoResources, wire.RejectEarly, 77} {
		t.Run(why.String(), func(t *testing.T) { givesUp(t, wire.Reject{Why: why}) })
	}
}

func TestNobodyListens(t *testing.T) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 10)
		r.finished(m, unix.EHOSTUNREACH)
		if r.upper.downs() != 1 || !r.upper.said("reject_received", "nobody listens") {
			t.Fatalf("told %v, events %v", r.upper.down, r.upper.events)
		}
		if r.upper.said("connect_failed", "") {
			t.Error("the same is told twice")
		}
	}, tpAway)
}

func TestT12_22StaleForEver(t *testing.T) {
	run(t, func(r *rig) {
		r.send(wire.LNetPUT, 10)
		start := time.Now()
		attempts := 0
		var at []time.Duration
		for attempts < 14 {
			ev, ok := r.tp.maybe(verbs.EventConnectRequest)
			if !ok {
				if time.Since(start) > 20*time.Second {
					t.Fatalf("attempts at %v; events %v", at, r.upper.events)
				}
				time.Sleep(50 * time.Millisecond)
				continue
			}
			attempts++
			at = append(at, time.Since(start))
			r.tp.reject(ev.ID, wire.Reject{Version: wire.Version2, Why: wire.RejectStale, Incarnation: uint64(attempts)})
		}
		if at[10] > time.Second {
			t.Fatalf("the first eleven attempts took %v", at[10])
		}
		for i := 12; i < len(at); i++ {
			if d := at[i] - at[i-1]; d < 700*time.Millisecond {
				t.Fatalf("attempt %d came %v after the one before", i, d)
			}
		}
	})
}

func TestT12_23RaceHigherWins(t *testing.T) {
	run(t, func(r *rig) { // the node has the higher NID
		m := r.send(wire.LNetPUT, 10)
		id, req, _ := r.tp.request()
		if rej := r.tp.refused(r.tp.encode(r.tp.connreq()), 0); rej.Why != wire.RejectConnRace {
			t.Fatalf("reject %+v", rej)
		}
		r.tp.accept(id, req, nil).expect(wire.MsgImmediate)
		r.finished(m, 0)
	})
}

func TestT12_24RaceLowerYields(t *testing.T) {
	run(t, func(r *rig) { // the node has the lower NID
		m := r.send(wire.LNetPUT, 10)
		id, _, _ := r.tp.request()
		c, _ := r.tp.connect(r.tp.connreq())
		r.tp.reject(id, wire.Reject{Version: wire.Version2, Why: wire.RejectConnRace})
		r.tp.noRequest()
		c.expect(wire.MsgImmediate)
		r.finished(m, 0)
	}, dutLower)
}

func TestT12_25RaceTolerance(t *testing.T) {
	run(t, func(r *rig) {
		r.send(wire.LNetPUT, 10)
		r.tp.request() // never answered
		for i := range 20 {
			if rej := r.tp.refused(r.tp.encode(r.tp.connreq()), 0); rej.Why != wire.RejectConnRace {
				t.Fatalf("request %d: %+v", i, rej)
			}
		}
		c, _ := r.tp.connect(r.tp.connreq())
		c.expect(wire.MsgImmediate)
	})
}

func TestT12_26PeerRestarts(t *testing.T) {
	run(t, func(r *rig) {
		c, _ := r.tp.connect(r.tp.connreq())
		again := r.tp.connreq()
		again.SrcStamp++
		rej := r.tp.refused(r.tp.encode(again), 0)
		if rej.Why != wire.RejectStale {
			t.Fatalf("reject %+v", rej)
		}
		c.closed()
		c.drop()
		r.tp.stamp = again.SrcStamp
		c, _ = r.tp.connect(again)
		m := r.send(wire.LNetPUT, 10)
		c.expect(wire.MsgImmediate)
		r.finished(m, 0)
	})
}

func TestT12_27BadConnack(t *testing.T) {
	for _, row := range []struct {
		name string
		edit func(*wire.Msg)
		text string
	}{
		{"T12_27 deeper than offered", func(m *wire.Msg) { m.Params.QueueDepth = 9 }, "queue depth 9"},
		{"T12_28 wrong stamp", func(m *wire.Msg) { m.DstStamp++ }, "another life"},
		{"more fragments than offered", func(m *wire.Msg) { m.Params.MaxFrags = 257 }, "257 fragments"},
		{"another node", func(m *wire.Msg) { m.SrcNID += 3 }, "it is"},
		{"another version", func(m *wire.Msg) { m.Version = wire.Version1 }, "version"},
		{"another type", func(m *wire.Msg) { m.Type = wire.MsgConnReq }, "CONNREQ"},
	} {
		t.Run(row.name, func(t *testing.T) {
			run(t, func(r *rig) {
				m := r.send(wire.LNetPUT, 10)
				id, req, _ := r.tp.request()
				c := r.tp.accept(id, req, row.edit)
				c.closed()
				r.finished(m, unix.ECONNABORTED)
				if !r.upper.said("conn_closed", row.text) {
					t.Fatalf("events %v", r.upper.events)
				}
			})
		})
	}
}

func TestT12_61OrderlyClose(t *testing.T) {
	run(t, func(r *rig) {
		c, _ := r.tp.connect(r.tp.connreq())
		r.must(c.id.Disconnect())
		synctest.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := r.lnd.Snapshot(); len(s.Peers) != 0 || len(s.Conns) != 0 {
			t.Fatalf("peers %+v, connections %+v", s.Peers, s.Conns)
		}
		if r.upper.downs() != 0 {
			t.Fatalf("LNet was told: %v", r.upper.down)
		}
	})
}

func TestT12_62DeleteWhileConnecting(t *testing.T) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 10)
		id, req, _ := r.tp.request()
		r.must(r.lnd.DelPeer(r.t.Context(), r.nid, r.tp.nid))
		r.finished(m, unix.EIO)
		c := r.tp.accept(id, req, nil)
		c.closed()
	})
}

func TestT12_72EarlyData(t *testing.T) {
	run(t, func(r *rig) {
		r.upper.on = func(*wire.LNetHeader) int { return 50 }
		r.send(wire.LNetPUT, 10)
		id, req, _ := r.tp.request()
		c := r.tp.newConn(id)
		c.stamp = req.SrcStamp
		ack := wire.Msg{Params: req.Params}
		ack.Header = wire.Header{Version: req.Version, Type: wire.MsgConnAck, SrcNID: r.tp.nid, SrcStamp: r.tp.stamp, DstNID: req.SrcNID, DstStamp: req.SrcStamp}
		// The data goes out behind the answer, before the node can have seen either.
		r.must(id.Accept(param(r.tp.encode(&ack))))
		c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 50))
		c.open()
		c.expect(wire.MsgImmediate)
		if len(r.upper.data) < 1 {
			t.Fatal("the early message was not delivered")
		}
	})
}

func TestT12_74TwoConnections(t *testing.T) {
	run(t, func(r *rig) {
		a, _ := r.tp.connect(r.tp.connreq())
		b, _ := r.tp.connect(r.tp.connreq())
		a.open()
		r.upper.on = func(h *wire.LNetHeader) int { return 5000 }
		for _, c := range []*tpConn{a, b, a, b} {
			req := c.lnet(wire.MsgPutReq, wire.LNetPUT, 5000)
			req.Cookie = 9
			c.sendMsg(req)
			c.expect(wire.MsgPutAck)
		}
	})
}

func TestConnectTimeout(t *testing.T) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 10)
		r.tp.request() // never answered
		time.Sleep(11 * time.Second)
		r.unfinished(m)
		time.Sleep(4 * time.Second)
		r.finished(m, unix.ENETDOWN)
	})
}
