package o2iblnd_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/wire"
)

// TestAnswerOfAnotherKind: a cookie is good for the one kind of answer that its request calls for.
func TestAnswerOfAnotherKind(t *testing.T) {
	for _, row := range []struct {
		typ  wire.MsgType
		text string
	}{
		{wire.MsgPutNak, "no PUT_REQ waits"},
		{wire.MsgPutAck, "no PUT_REQ waits"},
		{wire.MsgPutDone, "no PUT_ACK waits"},
	} {
		t.Run(row.typ.String(), func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				m, req := getReq(r, c, 65536)
				answer := c.msg(row.typ, 0)
				answer.Cookie, answer.SrcCookie = req.Cookie, req.Cookie
				answer.RD = wire.Desc{Key: 1, Frags: []wire.Frag{{Nob: 65536, Addr: 1}}}
				c.sendMsg(answer)
				c.closed()
				if !r.upper.said("conn_closed", row.text) {
					t.Fatalf("no event with %q: %+v", row.text, r.upper.events)
				}
				// What the peer wrote for it may still be on the way: the sink is free when the conn is.
				time.Sleep(10 * time.Second)
				r.finished(m, unix.ECONNABORTED)
			})
		})
	}
}

// TestOlderLives: a message of an older life of either side is as foreign as one of a later life.
func TestOlderLives(t *testing.T) {
	for _, row := range []struct {
		name string
		edit func(*wire.Msg)
		text string
	}{
		{"ours", func(m *wire.Msg) { m.DstStamp-- }, "another life of ours"},
		{"the peer's", func(m *wire.Msg) { m.SrcStamp-- }, "another life of the peer"},
		{"unknown", func(m *wire.Msg) { m.DstStamp = 0 }, "another life of ours"},
	} {
		t.Run(row.name, func(t *testing.T) {
			run(t, func(r *rig) {
				c := established(r)
				c.sendBytes(edited(row.edit)(c))
				c.closed()
				if !r.upper.said("conn_closed", row.text) {
					t.Fatalf("no event with %q: %+v", row.text, r.upper.events)
				}
			})
		})
	}
}

// TestPeerRestartsBesideAnAttempt: the peer's record outlives its old connection here, so what was learned
// about its new life has to be in it, or the peer would be refused for ever.
func TestPeerRestartsBesideAnAttempt(t *testing.T) {
	run(t, func(r *rig) {
		r.send(wire.LNetPUT, 10)
		id, req, _ := r.tp.request()
		r.tp.request() // the second connection: never answered
		c := r.tp.accept(id, req, nil)
		c.expect(wire.MsgImmediate)

		again := r.tp.connreq()
		again.SrcStamp++
		if rej := r.tp.refused(r.tp.encode(again), 0); rej.Why != wire.RejectStale {
			t.Fatalf("reject %+v", rej)
		}
		c.closed()
		c.drop()
		r.tp.stamp = again.SrcStamp
		c, _ = r.tp.connect(again)
		c.open()
	}, dutLower, with("conns_per_peer", "2"))
}
