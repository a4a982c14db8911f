package lnet_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

// The numbers in names are those of the assertions in spec lnet section 8.

// The kernel closes the connection on these, so Parse returns an error (vectors/kernel-answers.txt).
func TestL8_05to07ProtocolErrors(t *testing.T) {
	rows := []struct {
		name string
		hdr  wire.LNetHeader
		rdma bool
	}{
		{"5 payload over 1 MiB", put(51, 1, 1<<20+1), false},
		{"5 payload over 1 MiB by RDMA", put(51, 1, 2<<20), true},
		{"5 REPLY over 1 MiB", wire.LNetHeader{DestNID: nidN, SrcNID: nidP, Type: wire.LNetREPLY, PayloadLength: 1<<20 + 1}, false},
		{"6 GET with payload", wire.LNetHeader{DestNID: nidN, SrcNID: nidP, Type: wire.LNetGET, PayloadLength: 4}, false},
		{"6 ACK with payload", wire.LNetHeader{DestNID: nidN, SrcNID: nidP, Type: wire.LNetACK, PayloadLength: 4}, false},
		{"6 HELLO", wire.LNetHeader{DestNID: nidN, SrcNID: nidP, Type: wire.LNetHELLO}, false},
		{"6 type 9", wire.LNetHeader{DestNID: nidN, SrcNID: nidP, Type: 9}, false},
		{"7 same net, not ours", wire.LNetHeader{DestNID: nidOther, SrcNID: nidP, Type: wire.LNetPUT}, false},
		{"7 our other NI", wire.LNetHeader{DestNID: nidN1, SrcNID: nidP, Type: wire.LNetPUT}, false},
		{"GET to be routed, by RDMA", wire.LNetHeader{DestNID: nidTCP, SrcNID: nidP, Type: wire.LNetGET}, true},
		{"ACK by RDMA", wire.LNetHeader{DestNID: nidN, SrcNID: nidP, Type: wire.LNetACK}, true},
		{"no source", wire.LNetHeader{DestNID: nidN, SrcNID: wire.AnyNID, Type: wire.LNetPUT}, false},
		{"we as the source", wire.LNetHeader{DestNID: nidN, SrcNID: nidN, Type: wire.LNetGET}, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g, l := newRig(t, twoNIs), new(eventLog)
			g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{Options: lnet.OptPut | lnet.OptTruncate}, l)
			r := &rx{lnd: g.lnd, payload: []byte{}}
			err := g.n.Parse(g.lnd, nidN, nidP, &row.hdr, r, row.rdma)
			if !errors.Is(err, lnet.ErrProtocol) {
				t.Errorf("Parse: %v, want a protocol error", err)
			}
			if r.got != 0 {
				t.Error("the rx was received: it is the LND's on an error")
			}
			g.none(l)
			if s := g.n.Stats(); s.DropCount != 0 || s.RecvCount != 0 {
				t.Errorf("counted %d drops and %d received", s.DropCount, s.RecvCount)
			}
		})
	}
}

func twoNIs(c *lnet.Config) {
	c.NIs = append(c.NIs, lnet.NIConfig{NID: nidN1, Credits: 256, PeerCredits: 8})
}

func TestL8_07OtherNetIsDropped(t *testing.T) {
	g := newRig(t)
	h := put(51, 1, 10)
	h.DestNID = nidTCP
	if r := g.imm(h, make([]byte, 10)); !r.nothing || r.got != 1 {
		t.Errorf("received %d times, nothing wanted: %v", r.got, r.nothing)
	}
	if s := g.n.Stats(); s.DropCount != 1 || s.DropLength != 10 {
		t.Errorf("drops %d of %d bytes, want 1 of 10", s.DropCount, s.DropLength)
	}
}

func TestL8_08DestPIDIsIgnored(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{}, l)
	h := put(51, 1, 10)
	h.DestPID = 999
	g.imm(h, pattern(10))
	g.one(l, lnet.EventPut)
}

func TestL8_09NoSuchPortal(t *testing.T) {
	for _, portal := range []uint32{64, 1 << 31} {
		g := newRig(t)
		g.imm(put(portal, 1, 10), make([]byte, 10))
		s, ni := g.n.Stats(), g.n.NIs()[0]
		if s.DropCount != 1 || s.DropLength != 10 || ni.Traffic.Dropped.Put != 1 {
			t.Errorf("portal %d: drops %d of %d bytes, NI %d", portal, s.DropCount, s.DropLength, ni.Traffic.Dropped.Put)
		}
		if g.lnd.inFlight() != 0 {
			t.Errorf("portal %d: something was answered", portal)
		}
		if p := g.n.Peers()[0]; p.Traffic.Dropped.Put != 0 {
			t.Errorf("portal %d: the peer was charged", portal)
		}
		g.imm(get(portal, 1, 10), nil)
		if d := g.n.NIs()[0].Traffic.Dropped.Get; d != 1 {
			t.Errorf("portal %d: %d GETs dropped, want 1", portal, d)
		}
	}
}

// The LND turns a receive into nothing into PUT_NAK status 0 and GET_DONE -ENODATA.
func TestL8_10to11UnmatchedRDMA(t *testing.T) {
	g := newRig(t)
	r := g.parse(put(26, 1, 65536), &rx{}, true)
	if r.got != 1 || !r.nothing {
		t.Errorf("PUT_REQ: received %d times, nothing wanted: %v", r.got, r.nothing)
	}
	if s := g.n.Stats(); s.DropLength != 65536 {
		t.Errorf("drop_length %d, want 65536", s.DropLength)
	}
	r = g.parse(get(26, 1, 8192), &rx{}, true)
	if r.got != 1 || !r.nothing {
		t.Errorf("GET_REQ: received %d times, nothing wanted: %v", r.got, r.nothing)
	}
	if s := g.n.Stats(); s.DropLength != 65536 || s.DropCount != 2 {
		t.Errorf("drops %d of %d bytes, want 2 of 65536", s.DropCount, s.DropLength)
	}
}

func TestL8_12to13Matching(t *testing.T) {
	fromOther := put(52, 0x1000, 4)
	fromOther.SrcNID = nidTCP
	wrongPID := put(52, 0x1000, 4)
	wrongPID.SrcPID = 1
	rows := []struct {
		name string
		me   lnet.ME
		hdr  wire.LNetHeader
		want bool
	}{
		{"12 right nid and pid", lnet.ME{NID: nidP, PID: pid, MatchBits: 0x1000}, put(52, 0x1000, 4), true},
		{"12 wrong pid", lnet.ME{NID: nidP, PID: pid, MatchBits: 0x1000}, wrongPID, false},
		{"12 any pid", lnet.ME{NID: nidP, PID: lnet.AnyPID, MatchBits: 0x1000}, wrongPID, true},
		{"12 wrong nid", lnet.ME{NID: nidP, PID: pid, MatchBits: 0x1000}, fromOther, false},
		{"12 any nid", lnet.ME{NID: wire.AnyNID, PID: pid, MatchBits: 0x1000}, fromOther, true},
		{"13 ignored bits differ", lnet.ME{MatchBits: 0xaa00, IgnoreBits: 0xff}, put(52, 0xaa17, 4), true},
		{"13 other bits differ", lnet.ME{MatchBits: 0xaa00, IgnoreBits: 0xff}, put(52, 0xab17, 4), false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g, l := newRig(t), new(eventLog)
			row.me.Portal = 52
			g.attach(row.me, 100, lnet.MD{}, l)
			g.imm(row.hdr, pattern(4))
			if got := len(l.take()) == 1; got != row.want {
				t.Errorf("matched %v, want %v", got, row.want)
			}
			if s := g.n.Stats(); (s.DropCount == 0) != row.want {
				t.Errorf("%d drops", s.DropCount)
			}
		})
	}
}

func TestSearchOrder(t *testing.T) {
	type posted struct {
		me lnet.ME
		md lnet.MD
	}
	exact, wild := lnet.ME{MatchBits: 5}, lnet.ME{MatchBits: 5, IgnoreBits: 1 << 40}
	head := exact
	head.Head = true
	getOnly := lnet.MD{Options: lnet.OptGet}
	rows := []struct {
		name string
		post []posted
		want int
	}{
		{"first of equals", []posted{{exact, lnet.MD{}}, {exact, lnet.MD{}}}, 0},
		{"head before tail", []posted{{exact, lnet.MD{}}, {head, lnet.MD{}}}, 1},
		{"ignoring before exact", []posted{{exact, lnet.MD{}}, {wild, lnet.MD{}}}, 1},
		{"not permitted is passed over", []posted{{exact, getOnly}, {exact, lnet.MD{}}}, 1},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g, l := newRig(t), new(eventLog)
			var handles []lnet.Handle
			for _, p := range row.post {
				p.me.Portal = 7
				h, _ := g.attach(p.me, 100, p.md, l)
				handles = append(handles, h)
			}
			g.imm(put(7, 5, 4), pattern(4))
			if ev := g.one(l, lnet.EventPut); ev.MD != handles[row.want] {
				t.Errorf("matched another MD than number %d", row.want)
			}
		})
	}
}

func TestL8_14TooLongEndsTheSearch(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	must(t, g.n.SetLazy(51, true))
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 160, lnet.MD{}, l)
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 4096, lnet.MD{}, l)
	if r := g.imm(put(51, 1, 161), make([]byte, 161)); !r.nothing {
		t.Error("161 bytes were taken")
	}
	g.none(l)
	if s := g.n.Stats(); s.DropCount != 1 || s.Parked != 0 {
		t.Errorf("%d drops and %d parked, want 1 and 0", s.DropCount, s.Parked)
	}
}

// Also 37, what it counts.
func TestL8_15TruncatedPutIsAcked(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	_, b := g.attach(lnet.ME{Portal: 51, MatchBits: 0x99}, 100, lnet.MD{Options: lnet.OptPut | lnet.OptTruncate}, l)
	h := put(51, 0x99, 160)
	h.Handle, h.HdrData = wire.Handle{Iface: 0x0102030405060708, Object: 0xfedcba9876543210}, 77
	r := g.imm(h, pattern(160))
	if r.before != 0 {
		t.Error("the ACK was sent before the data was in place")
	}
	ev := g.one(l, lnet.EventPut)
	want := lnet.Event{
		Type: lnet.EventPut, MD: ev.MD, MsgType: wire.LNetPUT,
		Target: lnet.ProcessID{NID: nidN, PID: pid}, Initiator: lnet.ProcessID{NID: nidP, PID: pid},
		Source: lnet.ProcessID{NID: nidP, PID: pid}, Sender: nidP,
		Portal: 51, MatchBits: 0x99, RLength: 160, MLength: 100, HdrData: 77,
	}
	if d := cmp.Diff(want, ev); d != "" {
		t.Error(d)
	}
	if !bytes.Equal(b.Bytes(), pattern(160)[:100]) {
		t.Error("the first 100 bytes did not arrive")
	}
	ack := g.lnd.take()
	wantAck := wire.LNetHeader{
		DestNID: nidP, SrcNID: nidN, DestPID: pid, SrcPID: pid, Type: wire.LNetACK,
		Handle: h.Handle, MatchBits: 0x99, Length: 100,
	}
	if d := cmp.Diff(wantAck, ack.Hdr); d != "" || ack.Peer != nidP || ack.Len != 0 {
		t.Errorf("ACK to %v with %d bytes: %s", ack.Peer, ack.Len, d)
	}
	g.lnd.finish(ack, 0)
	s, ni := g.n.Stats(), g.n.NIs()[0]
	got := [...]uint64{s.RecvCount, s.RecvLength, s.SendCount, s.SendLength, ni.Traffic.Sent.Put, ni.Traffic.Sent.Ack, ni.Traffic.Received.Put}
	if want := [...]uint64{1, 100, 1, 0, 1, 0, 1}; got != want {
		t.Errorf("recv_count, recv_length, send_count, send_length, sent put, sent ack, received put: %v, want %v", got, want)
	}
}

func TestL8_16to17WhoIsAcked(t *testing.T) {
	rows := []struct {
		name    string
		handle  wire.Handle
		options lnet.Options
		want    bool
	}{
		{"16 half of no handle", wire.Handle{Iface: 1, Object: ^uint64(0)}, 0, true},
		{"16 other half of no handle", wire.Handle{Iface: ^uint64(0), Object: 1}, 0, true},
		{"16 no handle", wire.NoHandle, 0, false},
		{"17 ack disabled", wire.Handle{Iface: 1, Object: 2}, lnet.OptAckDisable, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g, l := newRig(t), new(eventLog)
			g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{Options: lnet.OptPut | row.options}, l)
			h := put(51, 1, 0)
			h.Handle = row.handle
			g.imm(h, nil)
			g.one(l, lnet.EventPut)
			if got := g.lnd.inFlight() == 1; got != row.want {
				t.Errorf("acked %v, want %v", got, row.want)
			}
		})
	}
}

func TestNoAckForDataThatDidNotArrive(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 65536, lnet.MD{}, l)
	h := put(51, 1, 65536)
	h.Handle = wire.Handle{Iface: 1, Object: 2}
	r := g.parse(h, &rx{hold: true}, true)
	g.none(l)
	g.lnd.finish(r.m, -5)
	if ev := g.one(l, lnet.EventPut); ev.Status != -5 || ev.MLength != 0 {
		t.Errorf("PUT event with status %d and %d bytes, want -5 and 0", ev.Status, ev.MLength)
	}
	if g.lnd.inFlight() != 0 {
		t.Error("an ACK was sent")
	}
	if s := g.n.Stats(); s.RecvCount != 0 || s.DropCount != 0 {
		t.Errorf("counted %d received and %d drops: failures count as nothing", s.RecvCount, s.DropCount)
	}
}

func TestL8_18Offsets(t *testing.T) {
	rows := []struct {
		name   string
		md     lnet.MD
		offset uint32
		want   []int
		unlink []bool
	}{
		{"local", lnet.MD{Threshold: 2}, 50, []int{0, 10}, []bool{false, true}},
		{"remote", lnet.MD{Threshold: 2, Options: lnet.OptPut | lnet.OptManageRemote}, 50, []int{50, 50}, []bool{false, true}},
		{"retained", lnet.MD{Threshold: 2, Retain: true}, 50, []int{0, 10}, []bool{false, false}},
		{"max_size uses it up", lnet.MD{MaxSize: 45}, 0, []int{0, 10}, []bool{false, false}},
		{"max_size uses it up at once", lnet.MD{MaxSize: 95}, 0, []int{0}, []bool{true}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g, l := newRig(t), new(eventLog)
			_, b := g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, row.md, l)
			for range row.want {
				h := put(51, 1, 10)
				h.Offset = row.offset
				g.imm(h, pattern(10))
			}
			for i, ev := range l.take() {
				if ev.Offset != row.want[i] || ev.Unlinked != row.unlink[i] || ev.MLength != 10 {
					t.Errorf("PUT %d: %d bytes at %d, unlinked %v; want 10 at %d, %v", i, ev.MLength, ev.Offset, ev.Unlinked, row.want[i], row.unlink[i])
				}
				if !bytes.Equal(b.Bytes()[row.want[i]:][:10], pattern(10)) {
					t.Errorf("PUT %d is not in its place", i)
				}
			}
			if row.md.Threshold == 2 {
				if r := g.imm(put(51, 1, 10), pattern(10)); !r.nothing {
					t.Error("a third PUT was taken")
				}
			}
		})
	}
}

func TestRemoteOffsetBeyondTheEnd(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{Options: lnet.OptPut | lnet.OptManageRemote | lnet.OptTruncate}, l)
	g.attach(lnet.ME{Portal: 51, MatchBits: 2}, 100, lnet.MD{Options: lnet.OptPut | lnet.OptManageRemote, MaxSize: 50}, l)
	for _, offset := range []uint32{101, 1 << 31, ^uint32(0)} {
		h := put(51, 1, 10)
		h.Offset = offset
		g.imm(h, pattern(10))
		if ev := g.one(l, lnet.EventPut); ev.MLength != 0 || ev.RLength != 10 {
			t.Errorf("offset %d: %d bytes taken, want 0", offset, ev.MLength)
		}
		h.MatchBits = 2
		if r := g.imm(h, pattern(10)); !r.nothing {
			t.Errorf("offset %d: taken without truncation", offset)
		}
	}
}

func TestL8_19LazyPortal(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	must(t, g.n.SetLazy(51, true))
	r := g.imm(put(51, 1, 100), pattern(100))
	clear(r.payload) // the buffer is the LND's again
	if r.got != 1 || !r.nothing {
		t.Error("the receive buffer of a parked IMMEDIATE was not given back")
	}
	rdma := g.parse(put(51, 1, 65536), &rx{data: pattern(65536)}, true)
	if rdma.got != 0 {
		t.Error("a parked PUT_REQ was received")
	}
	if s := g.n.Stats(); s.DropCount != 0 || s.Parked != 2 || s.RecvCount != 0 {
		t.Errorf("%d drops, %d parked, %d received; want 0, 2, 0", s.DropCount, s.Parked, s.RecvCount)
	}
	_, b := g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 100, lnet.MD{Threshold: 1}, l)
	if ev := g.one(l, lnet.EventPut); ev.MLength != 100 || !ev.Unlinked || !bytes.Equal(b.Bytes(), pattern(100)) {
		t.Errorf("parked PUT of %d bytes, unlinked %v, or its data is wrong", ev.MLength, ev.Unlinked)
	}
	_, b = g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 65536, lnet.MD{Threshold: 1}, l)
	if g.one(l, lnet.EventPut); rdma.got != 1 || !bytes.Equal(b.Bytes(), pattern(65536)) {
		t.Error("the parked PUT_REQ did not arrive")
	}

	g.imm(put(51, 1, 10), pattern(10))
	g.attach(lnet.ME{Portal: 51, MatchBits: 1}, 5, lnet.MD{}, l) // oversize: dropped
	g.none(l)
	if s := g.n.Stats(); s.DropCount != 1 || s.Parked != 0 {
		t.Errorf("oversize: %d drops and %d parked, want 1 and 0", s.DropCount, s.Parked)
	}
	rdma = g.parse(put(51, 2, 65536), &rx{}, true)
	must(t, g.n.SetLazy(51, false))
	if s := g.n.Stats(); s.DropCount != 2 || s.Parked != 0 || rdma.got != 1 || !rdma.nothing {
		t.Errorf("no longer lazy: %d drops and %d parked, received %d times", s.DropCount, s.Parked, rdma.got)
	}
}

func TestParkingIsBounded(t *testing.T) {
	g := newRig(t, func(c *lnet.Config) { c.MaxParked = 3 })
	must(t, g.n.SetLazy(50, true))
	g.imm(put(50, 1, 3000), pattern(16)) // says more than it brings
	if s := g.n.Stats(); s.Parked != 0 || s.DropCount != 1 {
		t.Errorf("%d parked and %d drops, want 0 and 1", s.Parked, s.DropCount)
	}
	for range 5 {
		g.imm(put(50, 1, 10), pattern(10))
	}
	if s := g.n.Stats(); s.Parked != 3 || s.DropCount != 3 {
		t.Errorf("%d parked and %d drops, want 3 and 3", s.Parked, s.DropCount)
	}
}

func TestL8_20GetIsNotParked(t *testing.T) {
	g := newRig(t)
	must(t, g.n.SetLazy(51, true))
	if r := g.imm(get(51, 1, 10), nil); !r.nothing {
		t.Error("taken")
	}
	if s := g.n.Stats(); s.DropCount != 1 || s.Parked != 0 {
		t.Errorf("%d drops and %d parked, want 1 and 0", s.DropCount, s.Parked)
	}
}

func freshCookie(c *lnet.Config) { c.Cookie = 0 }

// The form of the REPLY is the LND's choice by its length; LNet has to send it as a message.
func TestL8_25ImmediateGetOfMuchData(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	_, b := g.attach(lnet.ME{Portal: 52, MatchBits: 7}, 65536, lnet.MD{Options: lnet.OptGet}, l)
	copy(b.Bytes(), pattern(65536))
	h := get(52, 7, 65536)
	h.SrcPID = 4711
	r := g.imm(h, nil)
	if !r.nothing || r.before != 0 {
		t.Error("the receive buffer has to go back before the REPLY is sent, so that it carries the credit")
	}
	g.none(l)
	m := g.lnd.take()
	want := wire.LNetHeader{
		DestNID: nidP, SrcNID: nidN, DestPID: 4711, SrcPID: pid, Type: wire.LNetREPLY,
		PayloadLength: 65536, Handle: h.Handle,
	}
	if d := cmp.Diff(want, m.Hdr); d != "" || m.Peer != nidP || !bytes.Equal(bytesOf(m), pattern(65536)) {
		t.Errorf("REPLY to %v: %s", m.Peer, d)
	}
	g.lnd.finish(m, 0)
	if ev := g.one(l, lnet.EventGet); ev.RLength != 65536 || ev.MLength != 65536 || ev.MatchBits != 7 {
		t.Errorf("GET event %+v", ev)
	}
	s, ni := g.n.Stats(), g.n.NIs()[0].Traffic
	if s.SendCount != 1 || s.SendLength != 65536 || s.RecvCount != 1 || ni.Sent.Get != 1 || ni.Received.Get != 1 {
		t.Errorf("counted %+v, NI %+v", s, ni)
	}
}

func TestGetByRDMA(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	_, b := g.attach(lnet.ME{Portal: 52, MatchBits: 7}, 65536, lnet.MD{Options: lnet.OptGet}, l)
	copy(b.Bytes(), pattern(65536))
	r := g.parse(get(52, 7, 65536), &rx{}, true)
	if r.m == nil || !bytes.Equal(r.reply, pattern(65536)) {
		t.Error("the data was not handed to the LND")
	}
	if ev := g.one(l, lnet.EventGet); ev.MLength != 65536 || ev.Status != 0 {
		t.Errorf("GET event %+v", ev)
	}
	s, ni := g.n.Stats(), g.n.NIs()[0].Traffic
	if s.SendCount != 0 || s.SendLength != 65536 || s.RecvCount != 1 || ni.Received.Reply != 1 || g.lnd.inFlight() != 0 {
		t.Errorf("counted %+v, NI %+v", s, ni)
	}
}

func TestL8_59to60Ptlrpc(t *testing.T) {
	g := newRig(t)
	for portal := range uint32(64) {
		if portal == 0 {
			continue
		}
		h := put(portal, 0x1234, 200)
		h.Handle = wire.Handle{Iface: 1, Object: 2} // 60: with ack
		if r := g.imm(h, pattern(200)); !r.nothing || r.got != 1 {
			t.Errorf("portal %d: PUT taken", portal)
		}
		if r := g.parse(put(portal, 0x1234, 1<<20), &rx{}, true); !r.nothing {
			t.Errorf("portal %d: bulk PUT taken", portal)
		}
		if r := g.parse(get(portal, 0x1234, 1<<20), &rx{}, true); !r.nothing {
			t.Errorf("portal %d: bulk GET taken", portal)
		}
	}
	if g.lnd.inFlight() != 0 {
		t.Error("something was answered")
	}
	if s := g.n.Stats(); s.DropCount != 3*63 || s.Parked != 0 {
		t.Errorf("%d drops, want %d", s.DropCount, 3*63)
	}
	if len(g.notices) != 1 || g.notices[0].Kind != "drop" || g.notices[0].Peer != nidP {
		t.Errorf("notices %v, want one", g.notices)
	}
	g.imm(get(0, pingBits, 272), nil)
	if m := g.lnd.take(); m.Hdr.PayloadLength != 48 {
		t.Errorf("ping answer of %d bytes", m.Hdr.PayloadLength)
	}
}
