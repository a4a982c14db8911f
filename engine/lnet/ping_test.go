package lnet_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

// The numbers in names are those of the assertions in spec lnet section 8.

// A GET whose header names another source on our own network is answered straight to that one, so the
// connection that brought it sees nothing, as with a kernel node; one from behind a router goes back
// through the router.
func TestAnswersFindTheirWay(t *testing.T) {
	rows := []struct {
		name     string
		src, hop wire.NID
		router   bool
	}{
		{"the sender itself", nidP, nidP, false},
		{"another on our network", nidOther, nidOther, false},
		{"behind a router", nidTCP, nidP, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g := newRig(t)
			h := get(0, pingBits, 3960)
			h.SrcNID = row.src
			g.imm(h, nil)
			m := g.lnd.take()
			if m.Hdr.DestNID != row.src || m.Peer != row.hop || m.Router != row.router {
				t.Errorf("REPLY for %v by %v, router %v; want %v by %v, %v", m.Hdr.DestNID, m.Peer, m.Router, row.src, row.hop, row.router)
			}
		})
	}
}

const pingAnswer = "676e69700600000039300000020000000000000000000900dec0aa15000000000100000a00000500dec0aa1500000000"

func TestL8_26to28PingAnswer(t *testing.T) {
	whole, err := hex.DecodeString(pingAnswer)
	must(t, err)
	rows := []struct {
		name   string
		offset uint32
		sink   int
		want   []byte
	}{
		{"26 sink 272", 0, 272, whole},
		{"27 sink 20", 0, 20, whole[:20]},
		{"27 sink 3960", 0, 3960, whole},
		{"27 sink 0", 0, 0, nil},
		{"28 offset 16", 16, 272, whole[16:]},
		{"28 offset 16, sink 8", 16, 8, whole[16:24]},
		{"28 offset at the end", 48, 272, nil},
		{"28 offset beyond the end", 1 << 31, 272, nil},
	}
	for _, row := range rows {
		for _, rdma := range []bool{false, true} {
			g := newRig(t)
			h := get(0, pingBits, row.sink)
			h.Offset = row.offset
			r := g.parse(h, &rx{payload: []byte{}}, rdma)
			got := r.reply
			if !rdma {
				m := g.lnd.take()
				got = bytesOf(m)
				if m.Hdr.PayloadLength != uint32(len(row.want)) || m.Hdr.Handle != h.Handle || m.Hdr.Type != wire.LNetREPLY {
					t.Errorf("%s: REPLY header %+v", row.name, m.Hdr)
				}
				g.lnd.finish(m, 0)
			}
			if !bytes.Equal(got, row.want) {
				t.Errorf("%s, rdma %v: %x, want %x", row.name, rdma, got, row.want)
			}
			if s := g.n.Stats(); s.PingsAnswered != 1 {
				t.Errorf("%s: counted %d pings", row.name, s.PingsAnswered)
			}
		}
	}
}

// What 29 and 30 rest on: a peer sees an NI that is down, and several NIs with the primary first.
func TestPingAnswerFollowsTheNIs(t *testing.T) {
	g := newRig(t, twoNIs)
	ping := func() lnet.PingInfo {
		t.Helper()
		g.imm(get(0, pingBits, 3960), nil)
		m := g.lnd.take()
		info, err := lnet.ParsePingInfo(bytesOf(m), 3960)
		must(t, err)
		g.lnd.finish(m, 0)
		return info
	}
	want := lnet.PingInfo{
		Features: lnet.FeatNIStatus | lnet.FeatRTEDisabled, PID: pid, Entries: 3,
		NIs: []lnet.PingNI{{NID: nidN, Status: lnet.NIUp}, {NID: nidN1, Status: lnet.NIUp}},
	}
	if d := cmp.Diff(want, ping()); d != "" {
		t.Error(d)
	}
	g.imm(get(0, pingBits, 3960), nil) // this answer is on its way while the next is made
	old := g.lnd.take()
	g.n.NIStatus(nidN1, false)
	want.NIs[1].Status = lnet.NIDown
	if d := cmp.Diff(want, ping()); d != "" {
		t.Error(d)
	}
	if info, err := lnet.ParsePingInfo(bytesOf(old), 3960); err != nil || info.NIs[1].Status != lnet.NIUp {
		t.Errorf("the answer on its way changed: %+v, %v", info, err)
	}
	g.lnd.finish(old, 0)
	g.n.NIStatus(nidP, false) // not ours: nothing
	if d := cmp.Diff(want, ping()); d != "" {
		t.Error(d)
	}
}

// pushed is what node 2 of the kernel capture pushed (vectors, kernel-IMMEDIATE-PUT-3).
const pushed = "676e69701e00000039300000020000000000000000000900020000000000000002004d0a00000500dec0aa1500000000"

func TestL8_32PushIsAcked(t *testing.T) {
	good, err := hex.DecodeString(pushed)
	must(t, err)
	rows := []struct {
		name    string
		payload []byte
		rdma    bool
		mlength uint32
		asks    bool
		known   bool
	}{
		{"good", good, false, 48, false, true},
		{"garbage", pattern(300), false, 300, true, false},
		{"empty", nil, false, 0, true, false},
		{"without multi-rail", append(append(slices.Clone(good[:4]), 6), good[5:]...), false, 48, false, false},
		{"longer than our memory", append(slices.Clone(good), make([]byte, 8000)...), true, 4096, true, false},
		{"says more than it has", append(append(slices.Clone(good[:12]), 9), good[13:]...), false, 48, true, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			g := newRig(t)
			for i := range 20 { // more than there are targets: they have to be reposted
				h := put(0, pingBits, len(row.payload))
				h.Handle = wire.Handle{Iface: 5, Object: uint64(i)}
				r := g.parse(h, &rx{payload: row.payload, data: row.payload}, row.rdma)
				if r.nothing {
					t.Fatal("dropped")
				}
				ack := g.lnd.take()
				if ack.Hdr.Type != wire.LNetACK || ack.Hdr.Length != row.mlength || ack.Hdr.Handle != h.Handle || ack.Hdr.MatchBits != pingBits {
					t.Fatalf("the first answer is %+v", ack.Hdr)
				}
				g.lnd.finish(ack, 0)
				if !row.asks || i > 0 { // one ping at a time
					if k := g.lnd.inFlight(); k != 0 && i == 0 {
						t.Fatalf("%d more messages", k)
					}
					continue
				}
				ping := g.lnd.take()
				if ping.Hdr.Type != wire.LNetGET || ping.Hdr.DestNID != nidP || ping.Hdr.Portal != 0 || ping.Hdr.MatchBits != pingBits || ping.Hdr.Length != 3960 {
					t.Fatalf("the second answer is %+v", ping.Hdr)
				}
				defer g.lnd.finish(ping, 0)
			}
			if known := g.n.Peers()[0].Ping != nil; known != row.known {
				t.Errorf("remembered %v, want %v", known, row.known)
			}
			if s := g.n.Stats(); s.PushesReceived != 20 || s.DropCount != 0 {
				t.Errorf("counted %d pushes and %d drops", s.PushesReceived, s.DropCount)
			}
			g.imm(get(0, pingBits, 272), nil) // still healthy
			if m := g.lnd.take(); m.Hdr.PayloadLength != 48 {
				t.Errorf("ping answer of %d bytes", m.Hdr.PayloadLength)
			} else {
				g.lnd.finish(m, 0)
			}
		})
	}
}

// A push brings no other node of ours into play than its sender, and other PUTs to portal 0 are drops.
func TestPortalZero(t *testing.T) {
	g := newRig(t)
	h := put(0, pingBits, 300)
	h.SrcNID = nidOther
	g.imm(h, pattern(300))
	if g.lnd.inFlight() != 0 {
		t.Error("somebody else was pinged")
	}
	g.imm(put(0, 1, 300), pattern(300))
	if s := g.n.Stats(); s.DropCount != 1 || s.Parked != 0 {
		t.Errorf("PUT with other bits: %d drops and %d parked, want 1 and 0", s.DropCount, s.Parked)
	}
	for _, e := range []lnet.ME{{Portal: 0, NID: nidP}, {Portal: 64, NID: nidP}, {Portal: 5}} {
		if _, err := g.n.Attach(e, lnet.MD{Threshold: 1, Options: lnet.OptPut}); err == nil {
			t.Errorf("attach of %+v was allowed", e)
		}
	}
	if g.n.SetLazy(0, false) == nil || g.n.SetLazy(64, true) == nil {
		t.Error("SetLazy of portal 0 or 64 was allowed")
	}
}

// More pushes at once than there are targets wait for one.
func TestPushesAtOnce(t *testing.T) {
	g := newRig(t)
	var rxs []*rx
	for range 12 {
		rxs = append(rxs, g.parse(put(0, pingBits, 5000), &rx{data: pattern(5000), hold: true}, true))
	}
	if s := g.n.Stats(); s.Parked != 4 {
		t.Fatalf("%d parked, want 4", s.Parked)
	}
	for _, r := range rxs {
		if r.got != 1 {
			t.Fatal("a push was not taken")
		}
		g.lnd.finish(r.m, 0)
	}
	if s := g.n.Stats(); s.Parked != 0 || s.PushesReceived != 12 {
		t.Errorf("%d parked, %d taken", s.Parked, s.PushesReceived)
	}
}
