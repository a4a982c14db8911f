package o2iblnd_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// established makes a connection that the peer asked for.
func established(r *rig) *tpConn {
	r.t.Helper()
	c, _ := r.tp.connect(r.tp.connreq())
	return c
}

// TestViolations sends one message and sees the connection closed with an event that says why.
func TestViolations(t *testing.T) {
	for _, row := range []struct {
		name string
		msg  func(c *tpConn) []byte
		text string
	}{
		{"T12_29 wrong dststamp", edited(func(m *wire.Msg) { m.DstStamp++ }), "another life of ours"},
		{"wrong srcstamp", edited(func(m *wire.Msg) { m.SrcStamp++ }), "another life of the peer"},
		{"wrong srcnid", edited(func(m *wire.Msg) { m.SrcNID++ }), "comes from"},
		{"wrong dstnid", edited(func(m *wire.Msg) { m.DstNID++ }), "is for"},
		{"T12_30 wrong checksum", func(c *tpConn) []byte {
			m := c.msg(wire.MsgNoop, 0)
			m.Cksum = 0xdeadbeef
			return c.bytes(m, wire.CksumNone)
		}, "wrong checksum"},
		{"T12_34 credit that is not owed", edited(func(m *wire.Msg) { m.Credits = 1 }), "returned 1 credits"},
		{"unknown type", func(c *tpConn) []byte { b := c.bytes(c.msg(wire.MsgNoop, 0), 0); b[6] = 0xd8; return b }, "unknown message type"},
		{"CONNACK when established", func(c *tpConn) []byte {
			return c.bytes(&wire.Msg{Header: c.msg(wire.MsgConnAck, 0).Header}, 0)
		}, "CONNACK"},
		{"nob larger than what came", func(c *tpConn) []byte { b := c.bytes(c.msg(wire.MsgNoop, 0), 0); b[9] = 2; return b }, "length field"},
		{"truncated", func(c *tpConn) []byte { return c.bytes(c.msg(wire.MsgNoop, 0), 0)[:20] }, "too short"},
		{"garbage", func(c *tpConn) []byte { return pattern(300, 3) }, "magic"},
		{"other version", edited(func(m *wire.Msg) { m.Version = wire.Version1 }), "version"},
		{"PUT_DONE nobody waits for", edited(func(m *wire.Msg) { m.Type = wire.MsgPutDone }), "no PUT_ACK waits"},
		{"GET_DONE nobody waits for", edited(func(m *wire.Msg) { m.Type = wire.MsgGetDone }), "no GET_REQ waits"},
		{"PUT_NAK nobody waits for", edited(func(m *wire.Msg) { m.Type = wire.MsgPutNak }), "no PUT_REQ waits"},
		{"PUT_ACK nobody waits for", edited(func(m *wire.Msg) { m.Type = wire.MsgPutAck; m.RD = wire.Desc{Frags: []wire.Frag{{Nob: 1}}} }), "no PUT_REQ waits"},
		{"PUT_REQ that carries a GET", func(c *tpConn) []byte { return c.bytes(c.lnet(wire.MsgPutReq, wire.LNetGET, 9000), 0) }, "carries an LNet GET"},
		{"GET_REQ that carries a PUT", func(c *tpConn) []byte {
			m := c.lnet(wire.MsgGetReq, wire.LNetPUT, 9000)
			m.RD = wire.Desc{Frags: []wire.Frag{{Nob: 9000}}}
			return c.bytes(m, 0)
		}, "carries an LNet PUT"},
		{"refused by LNet", func(c *tpConn) []byte {
			c.p.r.upper.on = func(*wire.LNetHeader) int { return -3 }
			return c.bytes(c.lnet(wire.MsgImmediate, wire.LNetPUT, 10), 0)
		}, "refused by the test"},
	} {
		t.Run(row.name, func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				c.sendBytes(row.msg(c))
				c.closed()
				if !r.upper.said("conn_closed", row.text) {
					t.Fatalf("no event with %q: %+v", row.text, r.upper.events)
				}
				if got := c.take(); len(got) != 0 {
					t.Fatalf("the node answered %v", got[0].Type)
				}
				if r.upper.downs() != 1 {
					t.Fatalf("LNet was told %d times", r.upper.downs())
				}
			})
		})
	}
}

func edited(edit func(*wire.Msg)) func(*tpConn) []byte {
	return func(c *tpConn) []byte {
		m := c.msg(wire.MsgNoop, 0)
		edit(m)
		return c.bytes(m, wire.CksumNone)
	}
}

func TestT12_31Checksums(t *testing.T) {
	run(t, func(r *rig) {
		m := r.send(wire.LNetPUT, 500)
		id, req, _ := r.tp.request()
		if req.Cksum == 0 {
			t.Fatal("CONNREQ without a checksum")
		}
		c := r.tp.accept(id, req, nil)
		c.expect(wire.MsgImmediate)
		if k := wire.Verify(c.raw[0]); k != wire.CksumSigned {
			t.Fatalf("checksum is %v", k)
		}
		// The peer uses the other variant: from now on we do too.
		c.sendBytes(c.bytes(c.msg(wire.MsgNoop, 1), wire.CksumUnsigned))
		r.finished(m, 0)
		r.send(wire.LNetPUT, 500)
		c.expect(wire.MsgImmediate)
		if k := wire.Verify(c.raw[1]); k != wire.CksumUnsigned {
			t.Fatalf("checksum towards a peer of the unsigned kind is %v", k)
		}
	}, with("cksum", "1"))
}

func TestT12_32HighWater(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		returned := 0
		for i := range 8 {
			c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 10))
			for _, m := range c.take() {
				if m.Type != wire.MsgNoop {
					t.Fatalf("the node sent %v", m.Type)
				}
				if i < 3 {
					t.Fatalf("a NOOP after %d messages", i+1)
				}
				returned += int(m.Credits)
			}
		}
		if returned != 8 {
			t.Fatalf("%d of 8 credits came back", returned)
		}
		r.credits(8, 0, 8)
	})
}

func TestT12_33ProportionalHighWater(t *testing.T) {
	run(t, func(r *rig) {
		req := r.tp.connreq()
		req.Params.QueueDepth = 4
		c, _ := r.tp.connect(req)
		for i := range 4 {
			c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 10))
			if got := c.take(); (i%2 == 1) != (len(got) == 1) {
				t.Fatalf("after %d messages the node sent %d", i+1, len(got))
			}
		}
	}, with("peer_credits", "32"), with("peer_credits_hiw", "16"))
}

func TestT12_35CreditsRunOut(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		for range 10 {
			r.send(wire.LNetPUT, 10)
		}
		if got := c.take(); len(got) != 8 {
			t.Fatalf("%d messages in flight", len(got))
		}
		if s := r.conn(); s.Credits != 0 || s.TxQueue != 2 || s.CreditStalls != 1 {
			t.Fatalf("connection %+v", s)
		}
		c.sendMsg(c.msg(wire.MsgNoop, 1))
		c.expect(wire.MsgImmediate)
		c.sendMsg(c.msg(wire.MsgNoop, 7))
		c.expect(wire.MsgImmediate)
		r.credits(6, 0, 8)
	})
}

func TestT12_36Version1KeepsTheLastCredit(t *testing.T) {
	run(t, func(r *rig) {
		req := r.tp.connreq()
		req.Version = wire.Version1
		c, ack := r.tp.connect(req)
		if ack.Version != wire.Version1 {
			t.Fatalf("CONNACK of version %#x", uint16(ack.Version))
		}
		for range 10 {
			r.send(wire.LNetPUT, 10)
		}
		if got := c.take(); len(got) != 7 {
			t.Fatalf("%d messages in flight", len(got))
		}
		// T12_37: seven credits owed: the last one goes into a NOOP.
		for range 7 {
			c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 10))
		}
		if got := c.expect(wire.MsgNoop); got[0].Credits != 7 {
			t.Fatalf("NOOP with %d credits", got[0].Credits)
		}
		r.credits(0, 0, 8)
		last := c.lnet(wire.MsgImmediate, wire.LNetPUT, 10)
		last.Credits = 8
		c.sendMsg(last)
		c.expect(wire.MsgImmediate, wire.MsgImmediate, wire.MsgImmediate)
	})
}

func TestT12_38Keepalive(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		time.Sleep(99 * time.Second)
		c.expect()
		time.Sleep(15 * time.Second)
		if got := c.expect(wire.MsgNoop); got[0].Credits != 0 {
			t.Fatalf("keepalive with %d credits", got[0].Credits)
		}
		c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 10))
		time.Sleep(115 * time.Second)
		if got := c.expect(wire.MsgNoop); got[0].Credits != 1 {
			t.Fatalf("keepalive with %d credits", got[0].Credits)
		}
	})
	run(t, func(r *rig) {
		c := established(r)
		time.Sleep(time.Hour)
		c.expect()
		c.open()
	}, with("keepalive", "0"))
}

func TestT12_39NoopFlood(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		for range 200 {
			c.sendMsg(c.msg(wire.MsgNoop, 0))
		}
		c.expect()
		c.open()
		r.credits(8, 0, 8)
		if s := r.conn(); s.NoopsReceived != 200 || s.RxPosted != 18 {
			t.Fatalf("connection %+v", s)
		}
	})
}

func TestT12_40LargestImmediate(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		m := r.send(wire.LNetPUT, 3976)
		got := c.expect(wire.MsgImmediate)
		if got[0].Nob != 4096 || !bytes.Equal(got[0].Payload, pattern(3976, 1)) {
			t.Fatalf("message of %d bytes", got[0].Nob)
		}
		r.finished(m, 0)
	})
}

// putReq sends a PUT of n bytes and gives its PUT_REQ.
func putReq(r *rig, c *tpConn, n int) (*o2iblnd.Message, *wire.Msg) {
	r.t.Helper()
	m := r.send(wire.LNetPUT, n)
	got := c.expect(wire.MsgPutReq)
	if got[0].Nob != wire.PutReqSize {
		r.t.Fatalf("PUT_REQ of %d bytes", got[0].Nob)
	}
	r.unfinished(m)
	return m, got[0]
}

func TestT12_41T12_42PutByRDMA(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		m, req := putReq(r, c, 3977)
		ack := c.msg(wire.MsgPutAck, 0)
		ack.SrcCookie, ack.DstCookie = req.Cookie, 0xdddd
		base := tpSlots + 512<<10
		ack.RD = wire.Desc{Key: c.p.mr.RKey(), Frags: []wire.Frag{{Nob: 1000, Addr: c.addr(base)}, {Nob: 2000, Addr: c.addr(base + 10000)}, {Nob: 977, Addr: c.addr(base + 5000)}}}
		c.sendMsg(ack)
		done := c.expect(wire.MsgPutDone)[0]
		if done.Cookie != 0xdddd || done.Status != 3977 {
			t.Fatalf("PUT_DONE cookie %#x status %d", done.Cookie, done.Status)
		}
		want := pattern(3977, 1)
		if !bytes.Equal(c.at(base, 1000), want[:1000]) || !bytes.Equal(c.at(base+10000, 2000), want[1000:3000]) || !bytes.Equal(c.at(base+5000, 977), want[3000:]) {
			t.Fatal("the data is not where it belongs")
		}
		r.finished(m, 0)
		r.credits(7, 0, 8)
	})
}

func TestT12_43PutNak(t *testing.T) {
	for name, status := range map[string]int32{"T12_43 nothing is wanted": 0, "T12_44 no memory": -12} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				m, req := putReq(r, c, 5000)
				nak := c.msg(wire.MsgPutNak, 0)
				nak.Cookie, nak.Status = req.Cookie, status
				c.sendMsg(nak)
				c.expect()
				r.finished(m, unix.Errno(-status))
				r.credits(7, 0, 8)
			})
		})
	}
}

func TestT12_45WrongPutAcks(t *testing.T) {
	for _, row := range []struct {
		name string
		edit func(c *tpConn, m *wire.Msg)
		cut  int
	}{
		{"T12_45 another cookie", func(c *tpConn, m *wire.Msg) { m.SrcCookie++ }, 0},
		{"T12_46 nob too short", nil, 8},
		{"more than was announced", func(c *tpConn, m *wire.Msg) { m.RD.Frags[0].Nob = 1 << 20 }, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				m, req := putReq(r, c, 5000)
				ack := c.msg(wire.MsgPutAck, 0)
				ack.SrcCookie = req.Cookie
				ack.RD = wire.Desc{Key: c.p.mr.RKey(), Frags: []wire.Frag{{Nob: 5000, Addr: c.addr(tpSlots + 512<<10)}}}
				if row.edit != nil {
					row.edit(c, ack)
				}
				b := c.bytes(ack, wire.CksumNone)
				if row.cut > 0 {
					b[8] -= byte(row.cut)
				}
				c.sendBytes(b)
				if row.name == "more than was announced" {
					if done := c.expect(wire.MsgPutDone)[0]; done.Status != -int32(unix.EPROTO) {
						t.Fatalf("PUT_DONE status %d", done.Status)
					}
					r.finished(m, unix.EPROTO)
					return
				}
				c.closed()
				r.finished(m, unix.ECONNABORTED)
			})
		})
	}
}

func TestT12_47TooManyFragments(t *testing.T) {
	run(t, func(r *rig) {
		req := r.tp.connreq()
		req.Params.MaxFrags = 4
		c, _ := r.tp.connect(req)
		m, put := putReq(r, c, 5000)
		ack := c.msg(wire.MsgPutAck, 0)
		ack.SrcCookie, ack.DstCookie = put.Cookie, 1
		ack.RD.Key = c.p.mr.RKey()
		for i := range 5 {
			ack.RD.Frags = append(ack.RD.Frags, wire.Frag{Nob: 1000, Addr: c.addr(tpSlots + 512<<10 + i*2000)})
		}
		c.sendMsg(ack)
		if done := c.expect(wire.MsgPutDone)[0]; done.Status != -int32(unix.EMSGSIZE) {
			t.Fatalf("PUT_DONE status %d", done.Status)
		}
		r.finished(m, unix.EMSGSIZE)
	})
}

func TestT12_48SinkOfPut(t *testing.T) {
	run(t, func(r *rig) {
		r.upper.on = func(h *wire.LNetHeader) int { return 6000 }
		c := established(r)
		req := c.lnet(wire.MsgPutReq, wire.LNetPUT, 9000) // LNet wants 6000 of it
		req.Cookie = 0xfeedface_12345678
		c.sendMsg(req)
		ack := c.expect(wire.MsgPutAck)[0]
		if ack.SrcCookie != req.Cookie || ack.RD.Size() != 6000 || ack.Credits != 0 {
			t.Fatalf("PUT_ACK %+v %+v", ack.Header, ack.RD)
		}
		r.credits(8, 0, 8) // the PUT_REQ's credit is kept until the data came
		c.write(&ack.RD, 6000, 7)
		done := c.msg(wire.MsgPutDone, 0)
		done.Cookie, done.Status = ack.DstCookie, 6000
		c.sendMsg(done)
		c.open()
		if len(r.upper.data) != 1 || !bytes.Equal(r.upper.data[0], pattern(6000, 7)) {
			t.Fatal("the data did not arrive")
		}
		r.credits(8, 1, 8)
	})
}

func TestT12_49UnmatchedPutReq(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		req := c.lnet(wire.MsgPutReq, wire.LNetPUT, 9000)
		req.Cookie = 5
		c.sendMsg(req)
		if nak := c.expect(wire.MsgPutNak)[0]; nak.Status != 0 || nak.Cookie != 5 {
			t.Fatalf("PUT_NAK %+v", nak)
		}
		r.credits(8, 1, 8)
	})
}

// getReq sends a GET of n bytes and gives its GET_REQ.
func getReq(r *rig, c *tpConn, n int) (*o2iblnd.Message, *wire.Msg) {
	r.t.Helper()
	m := r.send(wire.LNetGET, n)
	got := c.expect(wire.MsgGetReq)[0]
	if got.RD.Size() != n || len(got.RD.Frags) != 1 {
		r.t.Fatalf("GET_REQ describes %+v", got.RD)
	}
	return m, got
}

func TestT12_51GetByRDMA(t *testing.T) {
	for _, row := range []struct {
		status int32
		errno  unix.Errno
		closes bool
		name   string
	}{
		{1000, 0, false, "T12_51 short"}, {0, 0, false, "nothing"}, {65536, 0, false, "T12_50 the whole sink"},
		{-61, unix.ENODATA, false, "T12_52 unmatched"}, {70000, unix.EPROTO, true, "T12_53 more than the sink"},
	} {
		t.Run(row.name, func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				m, req := getReq(r, c, 65536)
				done := c.msg(wire.MsgGetDone, 0)
				done.Cookie, done.Status = req.Cookie, row.status
				c.sendMsg(done)
				r.finished(m, row.errno)
				if row.errno == 0 && m.RDMALen != int(row.status) {
					t.Fatalf("length %d of a GET that got %d", m.RDMALen, row.status)
				}
				if row.closes {
					c.closed()
				} else {
					c.open()
					r.credits(7, 0, 8)
				}
			})
		})
	}
}

func TestT12_54SmallGet(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		m := r.send(wire.LNetGET, 2000)
		if got := c.expect(wire.MsgImmediate)[0]; got.LNet.Type != wire.LNetGET || got.Nob != wire.ImmediateSize {
			t.Fatalf("GET as %+v", got)
		}
		r.finished(m, 0)
		if m.RDMALen != -1 {
			t.Fatalf("length %d", m.RDMALen)
		}
		// T12_55: towards a router a GET is never by RDMA.
		far := r.message(wire.LNetGET, 65536)
		far.Router = true
		r.lnd.Send(far)
		c.expect(wire.MsgImmediate)
	})
}

func TestT12_57ServeGet(t *testing.T) {
	run(t, func(r *rig) {
		r.upper.on = func(h *wire.LNetHeader) int {
			if h.Portal == 1 {
				return -1
			}
			return 5000
		}
		c := established(r)
		base := tpSlots + 512<<10
		req := c.lnet(wire.MsgGetReq, wire.LNetGET, 65536)
		req.Cookie = 77
		req.RD = wire.Desc{Key: c.p.mr.RKey(), Frags: []wire.Frag{{Nob: 3000, Addr: c.addr(base)}, {Nob: 62536, Addr: c.addr(base + 8192)}}}
		clear(c.at(base, 80000))
		c.sendMsg(req)
		if done := c.expect(wire.MsgGetDone)[0]; done.Status != 5000 || done.Cookie != 77 {
			t.Fatalf("GET_DONE %+v", done)
		}
		want := pattern(5000, 2)
		if !bytes.Equal(c.at(base, 3000), want[:3000]) || !bytes.Equal(c.at(base+8192, 2000), want[3000:]) {
			t.Fatal("the data is not there")
		}
		if !bytes.Equal(c.at(base+8192+2000, 1000), make([]byte, 1000)) {
			t.Fatal("more than 5000 bytes were written")
		}
		r.credits(8, 1, 8)
		// T12_56: nothing matches.
		req = c.lnet(wire.MsgGetReq, wire.LNetGET, 65536)
		req.LNet.Portal, req.Cookie = 1, 78
		req.RD = wire.Desc{Key: c.p.mr.RKey(), Frags: []wire.Frag{{Nob: 65536, Addr: c.addr(base)}}}
		c.sendMsg(req)
		if done := c.expect(wire.MsgGetDone)[0]; done.Status != -61 || done.Cookie != 78 {
			t.Fatalf("GET_DONE %+v", done)
		}
	})
}

func TestT12_58RequestsWait(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		for range 20 {
			r.send(wire.LNetGET, 65536)
		}
		if got := c.take(); len(got) != 8 {
			t.Fatalf("%d requests on the wire", len(got))
		}
		if s := r.conn(); s.TxQueueRsrvd != 12 || s.Reserved != 0 {
			t.Fatalf("connection %+v", s)
		}
	})
}

func TestT12_59AnswersNeedNoCredits(t *testing.T) {
	run(t, func(r *rig) {
		r.upper.on = func(h *wire.LNetHeader) int { return 5000 }
		c := established(r)
		var mine []*o2iblnd.Message
		for range 8 {
			mine = append(mine, r.send(wire.LNetPUT, 5000))
		}
		reqs := c.take()
		for i := range 8 {
			req := c.lnet(wire.MsgPutReq, wire.LNetPUT, 5000)
			req.Cookie = uint64(i)
			c.sendMsg(req)
		}
		if s := r.conn(); s.Credits != 0 {
			t.Fatalf("connection %+v", s)
		}
		acks := c.take()
		if len(acks) != 8 {
			t.Fatalf("%d PUT_ACKs without credits", len(acks))
		}
		for i, req := range reqs {
			ack := c.msg(wire.MsgPutAck, 0)
			ack.SrcCookie, ack.DstCookie = req.Cookie, uint64(100+i)
			ack.RD = wire.Desc{Key: c.p.mr.RKey(), Frags: []wire.Frag{{Nob: 5000, Addr: c.addr(tpSlots + 512<<10)}}}
			c.sendMsg(ack)
			done := c.msg(wire.MsgPutDone, 0)
			done.Cookie, done.Status = acks[i].DstCookie, 5000
			c.sendMsg(done)
		}
		for _, m := range mine {
			r.finished(m, 0)
		}
		got := c.take()
		credits := 0
		dones := 0
		for _, m := range got {
			credits += int(m.Credits)
			if m.Type == wire.MsgPutDone {
				dones++
			}
		}
		s := r.conn()
		if dones != 8 || credits+s.Outstanding != 8 {
			t.Fatalf("%d PUT_DONEs, %d credits returned, %d owed", dones, credits, s.Outstanding)
		}
	})
}

func TestT12_60SilentPeer(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		m, _ := putReq(r, c, 5000)
		time.Sleep(3900 * time.Millisecond)
		r.unfinished(m)
		time.Sleep(1200 * time.Millisecond)
		c.closed()
		r.finished(m, unix.ECONNABORTED)
		if m.Health != o2iblnd.HealthRemoteTimeout {
			t.Fatalf("health %v", m.Health)
		}
		if r.upper.downs() != 1 || !r.upper.said("conn_closed", "the peer did not say where its data should go") {
			t.Fatalf("told %v, events %v", r.upper.down, r.upper.events)
		}
	}, with("timeout", "4"))
}

func TestQueuedMessageTimesOut(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		for range 9 {
			r.send(wire.LNetPUT, 10)
		}
		c.take()
		time.Sleep(6 * time.Second)
		c.closed()
		if !r.upper.said("conn_closed", "waited for a credit") {
			t.Fatalf("events %v", r.upper.events)
		}
	}, with("timeout", "4"))
}

func TestVanishedPeer(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		r.net.Vanish(r.tp.addr)
		m := r.send(wire.LNetPUT, 5000)
		time.Sleep(70 * time.Second)
		r.finished(m, unix.EIO)
		if r.upper.downs() != 1 {
			t.Fatalf("told %v", r.upper.down)
		}
		c.p.maybe(verbs.EventDisconnected)
	})
}

// TestHeldMessages keeps receives with LNet: their buffers are not reposted until LNet says.
func TestHeldMessages(t *testing.T) {
	run(t, func(r *rig) {
		r.upper.on = func(h *wire.LNetHeader) int { return -2 }
		c := established(r)
		c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 100))
		put := c.lnet(wire.MsgPutReq, wire.LNetPUT, 9000)
		put.Cookie = 3
		c.sendMsg(put)
		r.credits(8, 0, 8)
		h := c.lnet(wire.MsgImmediate, wire.LNetPUT, 100).LNet
		r.upper.held[0].ReceiveLater(r.upper.receive(&h, 100))
		r.upper.held[1].ReceiveLater(r.upper.receive(&h, 9000))
		ack := c.expect(wire.MsgPutAck)[0]
		if ack.SrcCookie != 3 || ack.RD.Size() != 9000 || ack.Credits != 1 {
			t.Fatalf("PUT_ACK %+v", ack)
		}
		if !bytes.Equal(r.upper.data[0], pattern(100, 5)) {
			t.Fatal("the payload that was kept differs")
		}
	})
}

// TestHeldMessagesOutliveTheConn closes the connection while LNet still has a buffer.
func TestHeldMessagesOutliveTheConn(t *testing.T) {
	run(t, func(r *rig) {
		r.upper.on = func(h *wire.LNetHeader) int { return -2 }
		c := established(r)
		c.sendMsg(c.lnet(wire.MsgImmediate, wire.LNetPUT, 100))
		r.must(c.id.Disconnect())
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if s := r.lnd.Snapshot(); len(s.Conns) != 1 || s.Conns[0].State != "disconnected" {
			t.Fatalf("connections %+v", s.Conns)
		}
		h := c.lnet(wire.MsgImmediate, wire.LNetPUT, 100).LNet
		m := r.upper.receive(&h, 100)
		r.upper.held[0].ReceiveLater(m)
		r.finished(m, 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := r.lnd.Snapshot(); len(s.Conns) != 0 {
			t.Fatalf("connections %+v", s.Conns)
		}
	})
}

func TestT12_75StopWithTraffic(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		var all []*o2iblnd.Message
		for i := range 30 {
			typ, n := wire.LNetPUT, 10
			if i%3 == 1 {
				n = 5000
			} else if i%3 == 2 {
				typ, n = wire.LNetGET, 65536
			}
			all = append(all, r.send(typ, n))
		}
		c.take()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r.must(r.lnd.DelNI(ctx, r.nid))
		synctest.Wait()
		for _, m := range all {
			if !r.upper.done(m) {
				t.Fatalf("a %v of %d bytes did not come back", m.Hdr.Type, m.Len)
			}
		}
		c.closed()
	})
}

func TestT12_73NIRestarts(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		old := c.stamp
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r.must(r.lnd.DelNI(ctx, r.nid))
		c.closed()
		c.drop()
		r.must(r.lnd.AddNI(ctx, r.niConfig()))
		req := r.tp.connreq()
		req.DstStamp = old
		rej := r.tp.refused(r.tp.encode(req), 0)
		if rej.Why != wire.RejectStale || rej.Incarnation == old {
			t.Fatalf("reject %+v", rej)
		}
		req.DstStamp = rej.Incarnation
		r.tp.connect(req)
	})
}

func TestT12_69PoolGrows(t *testing.T) {
	run(t, func(r *rig) {
		c := established(r)
		for range 300 {
			r.send(wire.LNetPUT, 10)
		}
		synctest.Wait()
		if p := r.lnd.Snapshot().Pools[0]; p.Pools != 2 || p.Grows != 1 || p.Size != 1024 && p.Size != 512 {
			t.Fatalf("pool %+v", p)
		}
		for {
			got := c.take()
			if len(got) == 0 {
				break
			}
			c.sendMsg(c.msg(wire.MsgNoop, uint8(len(got))))
		}
		time.Sleep(301 * time.Second)
		m := r.send(wire.LNetPUT, 10)
		c.take()
		r.finished(m, 0)
		if p := r.lnd.Snapshot().Pools[0]; p.Pools != 1 || p.Shrinks != 1 {
			t.Fatalf("pool %+v", p)
		}
	}, with("ntx", "256"), with("timeout", "3000"), with("keepalive", "0"))
}

// TestFragmentedMemory offers memory in more pieces than the peer takes fragments.
func TestFragmentedMemory(t *testing.T) {
	for _, level := range []string{"transfer", "cached", "device"} {
		run(t, func(r *rig) {
			req := r.tp.connreq()
			req.Params.MaxFrags = 2
			c, _ := r.tp.connect(req)
			// Ten pieces that do not touch, towards a peer that takes two fragments: it must come out as one.
			m := r.message(wire.LNetGET, 50000)
			whole := m.Segs[0]
			m.Segs = nil
			for i := range 10 {
				m.Segs = append(m.Segs, whole.Slice(i*5000, 4900))
			}
			m.Len = 49000
			m.Hdr.Length = 49000
			r.lnd.Send(m)
			get := c.expect(wire.MsgGetReq)[0]
			if len(get.RD.Frags) > 2 || get.RD.Size() != 49000 {
				t.Fatalf("GET_REQ describes %d fragments of %d bytes", len(get.RD.Frags), get.RD.Size())
			}
			c.write(&get.RD, 49000, 9)
			done := c.msg(wire.MsgGetDone, 0)
			done.Cookie, done.Status = get.Cookie, 49000
			c.sendMsg(done)
			r.finished(m, 0)
			var got []byte
			for _, s := range m.Segs {
				got = append(got, s.Bytes()...)
			}
			if !bytes.Equal(got, pattern(49000, 9)) {
				t.Fatal("the data differs")
			}
		}, with("exposure", level))
	}
}
