package negotiate_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"o2ibd/engine/o2iblnd/negotiate"
	"o2ibd/engine/wire"
)

// The tests named T12_… are the assertions of spec o2iblnd 12 as far as they need no network.

// rejects judges b and gives the reject that goes back, or none.
func rejects(t *testing.T, b []byte, l *negotiate.Local) *negotiate.Refusal {
	t.Helper()
	var m wire.Msg
	_, r := negotiate.Request(&m, b, 1023, false, func(n wire.NID) *negotiate.Local {
		if n == l.NID {
			return l
		}
		return nil
	})
	return r
}

func TestT12_06UnifiedMagic(t *testing.T) {
	for _, o := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		b := connreq(nil)
		o.PutUint32(b, wire.LNetProtoMagic)
		if r := rejects(t, b, local()); r == nil || r.Reject.Why != wire.RejectFatal || r.Reject.Version != wire.Version2 || r.Reject.Magic != wire.Magic {
			t.Errorf("%v: %+v", o, r)
		}
	}
}

// TestT12_11DepthOfEachVersion: what a reject offers is what a request of that version may ask for.
func TestT12_11DepthOfEachVersion(t *testing.T) {
	for _, row := range []struct {
		name    string
		version wire.Version
		ours    int
		asked   uint16
		why     wire.RejectReason // 0: accepted
		offer   uint16
	}{
		{"one too many", wire.Version2, 8, 9, wire.RejectMsgQueueSize, 8},
		{"deep enough", wire.Version2, 32, 32, 0, 0},
		{"deeper than ours", wire.Version2, 32, 33, wire.RejectMsgQueueSize, 32},
		{"version 1, one too many", wire.Version1, 8, 9, wire.RejectFatal, 8},
		{"version 1 is never deeper than 8", wire.Version1, 32, 9, wire.RejectFatal, 8},
		{"version 1 whatever our depth is", wire.Version1, 4, 8, 0, 0},
		{"version 1 with one credit, which is kept for a NOOP", wire.Version1, 8, 1, wire.RejectFatal, 8},
		{"version 1 that would trade NOOPs without end", wire.Version1, 8, 2, wire.RejectFatal, 8},
		{"version 1 shallow", wire.Version1, 8, 3, 0, 0},
	} {
		l := local()
		l.QueueDepth = row.ours
		r := rejects(t, connreq(func(m *wire.Msg) { m.Version, m.Params.QueueDepth = row.version, row.asked }), l)
		switch {
		case row.why == 0 && r != nil:
			t.Errorf("%s: %+v", row.name, r)
		case row.why != 0 && (r == nil || r.Reject.Why != row.why || r.Reject.Version != row.version || r.Reject.Params.QueueDepth != row.offer):
			t.Errorf("%s: %+v", row.name, r)
		}
	}
	m := wire.Msg{Header: wire.Header{Version: wire.Version1}}
	l := local()
	l.QueueDepth = 32
	if r := negotiate.RejectWith(&m, l, wire.RejectConnRace); r.Version != wire.Version1 || r.Params.QueueDepth != 8 {
		t.Errorf("a race with version 1: %+v", r)
	}
}

// TestRefusalsNameTheNumbers: an operator learns what was asked and what is allowed.
func TestRefusalsNameTheNumbers(t *testing.T) {
	for _, row := range []struct {
		name string
		edit func(*wire.Msg)
		text []string
	}{
		{"depth", func(m *wire.Msg) { m.Params.QueueDepth = 16 }, []string{"16", "8", "peer_credits", "tries again"}},
		{"depth, version 1", func(m *wire.Msg) { m.Version, m.Params.QueueDepth = 0x11, 16 }, []string{"16", "8", "version 1"}},
		{"fragments", func(m *wire.Msg) { m.Params.MaxFrags = 300 }, []string{"300", "257"}},
		{"size", func(m *wire.Msg) { m.Params.MaxMsgSize = 8192 }, []string{"8192", "4096"}},
		{"size 0", func(m *wire.Msg) { m.Params.MaxMsgSize = 0 }, []string{"messages of 0 bytes"}},
		{"depth 0", func(m *wire.Msg) { m.Params.QueueDepth = 0 }, []string{"queue depth 0"}},
		{"fragments 0", func(m *wire.Msg) { m.Params.MaxFrags = 0 }, []string{"0 fragments"}},
		{"another node", func(m *wire.Msg) { m.DstNID = other }, []string{"10.0.1.1@o2ib"}},
		{"another life", func(m *wire.Msg) { m.DstStamp = 0x4c }, []string{"0x4c", "0x4d"}},
		{"type", func(m *wire.Msg) { m.Type = wire.MsgConnAck }, []string{"CONNACK", "CONNREQ"}},
	} {
		r := rejects(t, connreq(row.edit), local())
		if r == nil {
			t.Errorf("%s: accepted", row.name)
			continue
		}
		for _, s := range row.text {
			if !strings.Contains(r.Error(), s) {
				t.Errorf("%s: %q does not say %q", row.name, r.Error(), s)
			}
		}
	}
	var m wire.Msg
	if _, r := negotiate.Request(&m, connreq(nil), 40000, true, find); r == nil || !strings.Contains(r.Error(), "40000") || r.Reject.Why != wire.RejectFatal {
		t.Errorf("T12_15: %+v", r)
	}
}

// TestEarly: an NI that is still starting says so, and gives nothing away.
func TestEarly(t *testing.T) {
	l := local()
	l.Early = true
	r := rejects(t, connreq(nil), l)
	want := wire.Reject{Magic: wire.Magic, Version: wire.Version2, Why: wire.RejectEarly, Params: wire.ConnParams{MaxMsgSize: 4096}}
	if r == nil || r.Reject != want || !strings.Contains(r.Text, "starting") {
		t.Errorf("%+v", r)
	}
}

// TestUnknownNI: the message of a refusal without an NI has nothing to lean on but the request.
func TestUnknownNI(t *testing.T) {
	var m wire.Msg
	l, r := negotiate.Request(&m, connreq(nil), 1, false, func(wire.NID) *negotiate.Local { return nil })
	if l != nil || r == nil || r.Reject.Why != wire.RejectFatal || r.Reject.Incarnation != 0 || r.Reject.Params.QueueDepth != 0 || !strings.Contains(r.Text, "10.0.0.1@o2ib") {
		t.Errorf("%+v", r)
	}
}

// onReject is what an active side that offered p and has messages waiting makes of r.
func onReject(r wire.Reject, p wire.ConnParams) negotiate.Retry {
	return negotiate.OnReject(negotiate.KindConsumer, reject(r), wire.Version2, p, negotiate.ActiveView{Waiting: true, Version: wire.Version2, Connecting: 1})
}

func TestT12_16To18AdaptsDownwardOnly(t *testing.T) {
	offered := negotiate.Offer(wire.Version2, 8, 256)
	params := func(depth, frags uint16) wire.ConnParams {
		return wire.ConnParams{QueueDepth: depth, MaxFrags: frags, MaxMsgSize: 4096}
	}
	for _, row := range []struct {
		name         string
		why          wire.RejectReason
		params       wire.ConnParams
		again        bool
		depth, frags int
	}{
		{"T12_16 depth 4", wire.RejectMsgQueueSize, params(4, 256), true, 4, 256},
		{"T12_17 fragments 32", wire.RejectRDMAFrags, params(8, 32), true, 8, 32},
		{"T12_18 depth as offered", wire.RejectMsgQueueSize, params(8, 256), false, 0, 0},
		{"deeper than offered", wire.RejectMsgQueueSize, params(16, 256), false, 0, 0},
		{"fragments as offered", wire.RejectRDMAFrags, params(8, 256), false, 0, 0},
		{"more fragments than offered", wire.RejectRDMAFrags, params(8, 257), false, 0, 0},
		{"both lower at once", wire.RejectMsgQueueSize, params(4, 17), true, 4, 17},
		{"one lower, one higher", wire.RejectRDMAFrags, params(32, 17), true, 8, 17},
		{"the depth is lower, the fragments were refused", wire.RejectRDMAFrags, params(4, 256), false, 0, 0},
		{"fragments 0", wire.RejectMsgQueueSize, params(4, 0), false, 0, 0},
		{"depth 0", wire.RejectRDMAFrags, params(0, 17), false, 0, 0},
	} {
		r := onReject(wire.Reject{Why: row.why, Incarnation: 9, Params: row.params}, offered)
		if r.Reconnect != row.again || r.QueueDepth != row.depth || r.MaxFrags != row.frags {
			t.Errorf("%s: %+v", row.name, r)
		}
	}
}

// TestRetriesNameTheNumbers: ours and theirs, whether it ends well or not.
func TestRetriesNameTheNumbers(t *testing.T) {
	offered := negotiate.Offer(wire.Version2, 16, 256)
	for _, theirs := range []uint16{8, 32} {
		r := onReject(wire.Reject{Why: wire.RejectMsgQueueSize, Params: wire.ConnParams{QueueDepth: theirs, MaxFrags: 257}}, offered)
		for _, s := range []string{"16", "256", "257", map[uint16]string{8: "8", 32: "32"}[theirs]} {
			if !strings.Contains(r.Text, s) {
				t.Errorf("%q does not say %s", r.Text, s)
			}
		}
		if incompatible := strings.HasPrefix(r.Text, "incompatible"); incompatible == r.Reconnect || r.Why != wire.RejectMsgQueueSize {
			t.Errorf("%+v", r)
		}
	}
}

func TestT12_19StaleAdoptsTheIncarnation(t *testing.T) {
	for _, row := range []struct {
		name        string
		incarnation uint64
	}{{"a new life", 0x1234}, {"unknown: leave it", 0}} {
		r := onReject(wire.Reject{Why: wire.RejectStale, Incarnation: row.incarnation}, negotiate.Offer(wire.Version2, 8, 256))
		if !r.Reconnect || r.Incarnation != row.incarnation || r.Version != wire.Version2 || r.QueueDepth != 0 || r.MaxFrags != 0 {
			t.Errorf("%s: %+v", row.name, r)
		}
	}
}

func TestT12_20FallsBackToVersion1(t *testing.T) {
	r := onReject(wire.Reject{Why: wire.RejectFatal, Version: wire.Version1}, negotiate.Offer(wire.Version2, 32, 256))
	if !r.Reconnect || r.Why != wire.RejectUncompat || r.Version != wire.Version1 || r.Incarnation != ^uint64(0) {
		t.Fatalf("%+v", r)
	}
	if p := negotiate.Offer(r.Version, 32, 32); p != (wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: 4096}) {
		t.Errorf("then offers %+v", p)
	}
	// The same answer to version 1 is the end: there is nothing older.
	b := reject(wire.Reject{Why: wire.RejectFatal, Version: wire.Version1})
	r = negotiate.OnReject(negotiate.KindConsumer, b, wire.Version1, negotiate.Offer(wire.Version1, 8, 256), negotiate.ActiveView{Waiting: true, Version: wire.Version1, Connecting: 1})
	if r.Reconnect || r.Why != wire.RejectFatal {
		t.Errorf("version 1 refused: %+v", r)
	}
}

// TestRetryCondition: each part of the rule when a reconnect is needed (spec o2iblnd 2.8).
func TestRetryCondition(t *testing.T) {
	for _, row := range []struct {
		name  string
		view  negotiate.ActiveView
		again bool
	}{
		{"something waits", negotiate.ActiveView{Waiting: true, Version: 0x12, Connecting: 1}, true},
		{"nothing waits", negotiate.ActiveView{Version: 0x12, Connecting: 1}, false},
		{"nothing waits, its version is unknown", negotiate.ActiveView{Connecting: 1}, true},
		{"nothing waits, its version differs", negotiate.ActiveView{Version: 0x11, Connecting: 1}, true},
		{"several attempts", negotiate.ActiveView{Waiting: true, Version: 0x12, Connecting: 3}, true},
		{"no attempt of ours is left", negotiate.ActiveView{Waiting: true, Version: 0x12}, false},
		{"T12_24 it connects to us", negotiate.ActiveView{Waiting: true, Version: 0x12, Connecting: 1, Accepting: 1}, false},
	} {
		for _, why := range []wire.RejectReason{wire.RejectConnRace, wire.RejectStale, wire.RejectUncompat} {
			r := negotiate.OnReject(negotiate.KindConsumer, reject(wire.Reject{Why: why}), wire.Version2, negotiate.Offer(wire.Version2, 8, 256), row.view)
			if r.Reconnect != row.again {
				t.Errorf("%s, %v: %+v", row.name, why, r)
			}
		}
		// The connection manager's own stale connection follows the same rule, with nothing to adopt.
		r := negotiate.OnReject(negotiate.KindStaleConn, nil, wire.Version2, negotiate.Offer(wire.Version2, 8, 256), row.view)
		if r.Reconnect != row.again || r.Incarnation != 0 {
			t.Errorf("%s, stale connection: %+v", row.name, r)
		}
	}
}

// TestT12_23To25Race plays both nodes of a race, with each comparator.
func TestT12_23To25Race(t *testing.T) {
	between := func(src, dst wire.NID, hashed bool, races int) negotiate.Decision {
		m := wire.Msg{Header: wire.Header{Version: wire.Version2, SrcNID: src, SrcStamp: 5}}
		l := local()
		l.NID = dst
		return negotiate.Decide(&m, l, negotiate.PeerView{Known: true, Version: wire.Version2, Incarnation: 5, Connecting: true, Races: races}, hashed)
	}
	for races := range negotiate.MaxRaces {
		if between(low, high, false, races) != negotiate.RefuseRace {
			t.Fatalf("request %d of the lower NID was let in", races+1)
		}
	}
	if negotiate.MaxRaces != 20 || between(low, high, false, negotiate.MaxRaces) != negotiate.Accept {
		t.Error("the 21st was not")
	}
	for _, hashed := range []bool{false, true} {
		if between(low, low, hashed, 0) != negotiate.Accept {
			t.Error("a node that connects to itself raced")
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		net := wire.NetO2IB + wire.Net(rapid.Uint16().Draw(t, "net"))
		a, b := wire.MakeNID(net, rapid.Uint32().Draw(t, "a")), wire.MakeNID(net, rapid.Uint32().Draw(t, "b"))
		if a == b {
			return
		}
		for _, hashed := range []bool{false, true} {
			// Each is asked by the other: exactly one gives way.
			if (between(a, b, hashed, 0) == negotiate.RefuseRace) == (between(b, a, hashed, 0) == negotiate.RefuseRace) {
				t.Fatalf("%v and %v, hashed %v: no winner", a, b, hashed)
			}
		}
	})
	m := wire.Msg{Header: wire.Header{Version: wire.Version2, SrcNID: low, SrcStamp: 6}}
	l := local()
	l.NID = high
	if d := negotiate.Decide(&m, l, negotiate.PeerView{Known: true, Version: wire.Version2, Incarnation: 6}, false); d != negotiate.Accept {
		t.Errorf("a lower NID, but we are not connecting: %v", d)
	}
	// A new life is told so, race or not.
	if d := negotiate.Decide(&m, l, negotiate.PeerView{Known: true, Version: wire.Version2, Incarnation: 5, Connecting: true}, false); d != negotiate.RefuseStale {
		t.Errorf("stale and racing: %v", d)
	}
}

func TestT12_27And28BadAck(t *testing.T) {
	offered := negotiate.Offer(wire.Version2, 8, 256)
	ack := func(edit func(*wire.Msg)) error {
		var m wire.Msg
		return negotiate.Ack(&m, connreq(func(m *wire.Msg) {
			m.Type, m.DstStamp = wire.MsgConnAck, 77
			edit(m)
		}), local(), high, wire.Version2, offered)
	}
	if err := ack(func(m *wire.Msg) { m.Params.QueueDepth = 9 }); err == nil || errors.Is(err, negotiate.ErrStale) || !strings.Contains(err.Error(), "depth 9, offered was 8") {
		t.Errorf("T12_27: %v", err)
	}
	if err := ack(func(m *wire.Msg) { m.DstStamp = 78 }); !errors.Is(err, negotiate.ErrStale) {
		t.Errorf("T12_28: %v", err)
	}
	// The order of the checks: a violation is not called stale.
	if err := ack(func(m *wire.Msg) { m.DstStamp, m.Params.MaxFrags = 78, 257 }); err == nil || errors.Is(err, negotiate.ErrStale) {
		t.Errorf("both wrong: %v", err)
	}
	if err := ack(func(m *wire.Msg) { m.Params.MaxFrags = 0 }); err == nil {
		t.Error("a CONNACK with 0 fragments was accepted")
	}
	var m wire.Msg
	if err := negotiate.Ack(&m, nil, local(), high, wire.Version2, offered); !errors.Is(err, wire.ErrShort) {
		t.Errorf("no private data: %v", err)
	}
	v1 := negotiate.Offer(wire.Version1, 8, 256)
	if err := negotiate.Ack(&m, connreq(func(m *wire.Msg) {
		m.Type, m.DstStamp, m.Version, m.Params.QueueDepth = wire.MsgConnAck, 77, 0x11, 2
	}), local(), high, wire.Version1, v1); err == nil {
		t.Error("version 1 with depth 2 was accepted")
	}
}

// TestNegotiationEnds: whatever the tunables of two nodes are, they agree after one reject at most, on what
// both can do, even where both values of the active side are too high.
func TestNegotiationEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := local()
		l.QueueDepth, l.MaxFrags = rapid.IntRange(1, 255).Draw(t, "depth"), rapid.IntRange(1, 257).Draw(t, "frags")
		depth, frags := rapid.IntRange(1, 255).Draw(t, "asked depth"), rapid.IntRange(1, 257).Draw(t, "asked frags")
		version, stamp := wire.Version2, rapid.SampledFrom([]uint64{0, l.Incarnation}).Draw(t, "stamp")
		big := rapid.Bool().Draw(t, "big-endian")
		want := wire.ConnParams{QueueDepth: uint16(min(depth, l.QueueDepth)), MaxFrags: uint16(min(frags, l.MaxFrags)), MaxMsgSize: 4096}
		for attempt := 1; ; attempt++ {
			offered := negotiate.Offer(version, depth, frags)
			b := connreq(func(m *wire.Msg) { m.Version, m.Params, m.DstStamp, m.BigEndian = version, offered, stamp, big })
			var m wire.Msg
			_, refusal := negotiate.Request(&m, b, 1, false, func(wire.NID) *negotiate.Local { return l })
			if refusal == nil {
				if m.Params != want {
					t.Fatalf("agreed on %+v, both can do %+v", m.Params, want)
				}
				return
			}
			if attempt == 2 {
				t.Fatalf("refused twice: %v", refusal)
			}
			rej := refusal.Reject
			rej.BigEndian = big
			data := make([]byte, wire.RejectSize)
			rej.Encode(data)
			r := negotiate.OnReject(negotiate.KindConsumer, data, version, offered, negotiate.ActiveView{Waiting: true, Connecting: 1})
			if !r.Reconnect {
				t.Fatalf("gave up: %s", r.Text)
			}
			version, stamp, depth, frags = r.Version, r.Incarnation, r.QueueDepth, r.MaxFrags
		}
	})
}
