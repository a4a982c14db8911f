package negotiate_test

import (
	"errors"
	"strings"
	"testing"

	"o2ibd/engine/o2iblnd/negotiate"
	"o2ibd/engine/wire"
)

const (
	low   = wire.NID(0x000500000a000001) // 10.0.0.1@o2ib
	high  = wire.NID(0x000500000a000002)
	other = wire.NID(0x000500000a000101) // 10.0.1.1@o2ib
)

func local() *negotiate.Local {
	return &negotiate.Local{NID: low, Incarnation: 77, QueueDepth: 8, MaxFrags: wire.MaxFrags}
}

func connreq(edit func(*wire.Msg)) []byte {
	m := wire.Msg{Params: wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: 4096}}
	m.Header = wire.Header{Version: wire.Version2, Type: wire.MsgConnReq, SrcNID: high, SrcStamp: 5, DstNID: low}
	if edit != nil {
		edit(&m)
	}
	b := make([]byte, 196) // padded, as InfiniBand gives it
	if _, err := m.Encode(b, wire.CksumNone); err != nil {
		panic(err)
	}
	return b
}

func find(n wire.NID) *negotiate.Local {
	if n == low {
		return local()
	}
	return nil
}

// TestRequest is the table of spec o2iblnd 2.5, checks 1 to 14.
func TestRequest(t *testing.T) {
	for _, row := range []struct {
		name  string
		b     []byte
		port  int
		priv  bool
		why   wire.RejectReason // 0: accepted
		ver   wire.Version
		known bool
	}{
		{name: "sound", b: connreq(nil)},
		{name: "shallow", b: connreq(func(m *wire.Msg) { m.Params.QueueDepth, m.Params.MaxFrags, m.Params.MaxMsgSize = 1, 1, 2048 })},
		{name: "our incarnation", b: connreq(func(m *wire.Msg) { m.DstStamp = 77 })},
		{name: "257 fragments", b: connreq(func(m *wire.Msg) { m.Params.MaxFrags = 257 })},
		{name: "big-endian", b: connreq(func(m *wire.Msg) { m.BigEndian = true })},
		{name: "privileged port", b: connreq(nil), port: 1023, priv: true},
		{name: "1 other port", b: connreq(nil), port: 1024, priv: true, why: 3, ver: 0x12},
		{name: "2 nothing", b: nil, why: 3, ver: 0x12},
		{name: "2 five bytes", b: connreq(nil)[:5], why: 3, ver: 0x12},
		{name: "4 version", b: connreq(func(m *wire.Msg) { m.Version = 0x13 }), why: 3, ver: 0x12},
		{name: "7 another node", b: connreq(func(m *wire.Msg) { m.DstNID = other }), why: 3, ver: 0x12},
		{name: "8 stale", b: connreq(func(m *wire.Msg) { m.DstStamp = 76 }), why: 5, ver: 0x12, known: true},
		{name: "10 type", b: connreq(func(m *wire.Msg) { m.Type = wire.MsgConnAck }), why: 3, ver: 0x12, known: true},
		{name: "10 type, version 1", b: connreq(func(m *wire.Msg) { m.Type, m.Version = wire.MsgConnAck, 0x11 }), why: 3, ver: 0x11, known: true},
		{name: "11 depth", b: connreq(func(m *wire.Msg) { m.Params.QueueDepth = 9 }), why: 7, ver: 0x12, known: true},
		{name: "11 before 12", b: connreq(func(m *wire.Msg) { m.Params.QueueDepth, m.Params.MaxFrags = 9, 300 }), why: 7, ver: 0x12, known: true},
		{name: "11 version 1", b: connreq(func(m *wire.Msg) { m.Version, m.Params.QueueDepth = 0x11, 9 }), why: 3, ver: 0x11, known: true},
		{name: "12 fragments", b: connreq(func(m *wire.Msg) { m.Params.MaxFrags = 258 }), why: 6, ver: 0x12, known: true},
		{name: "12 version 1", b: connreq(func(m *wire.Msg) { m.Version, m.Params.MaxFrags = 0x11, 258 }), why: 3, ver: 0x11, known: true},
		{name: "14 size", b: connreq(func(m *wire.Msg) { m.Params.MaxMsgSize = 4097 }), why: 3, ver: 0x12, known: true},
		{name: "depth 0", b: connreq(func(m *wire.Msg) { m.Params.QueueDepth = 0 }), why: 3, ver: 0x12, known: true},
		{name: "frags 0", b: connreq(func(m *wire.Msg) { m.Params.MaxFrags = 0 }), why: 3, ver: 0x12, known: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var m wire.Msg
			l, r := negotiate.Request(&m, row.b, row.port, row.priv, find)
			if row.why == 0 {
				if r != nil || l == nil {
					t.Fatalf("refused: %v", r)
				}
				return
			}
			if r == nil {
				t.Fatal("accepted")
			}
			stamp, params := uint64(0), wire.ConnParams{MaxMsgSize: 4096}
			if row.known {
				stamp, params = 77, wire.ConnParams{QueueDepth: 8, MaxFrags: 257, MaxMsgSize: 4096}
			}
			if r.Reject.Why != row.why || r.Reject.Version != row.ver || r.Reject.Incarnation != stamp || r.Reject.Params != params || r.Reject.Magic != wire.Magic || r.Text == "" {
				t.Fatalf("%+v", r)
			}
		})
	}
}

func TestDecide(t *testing.T) {
	for _, row := range []struct {
		name   string
		src    wire.NID
		view   negotiate.PeerView
		hashed bool
		want   negotiate.Decision
	}{
		{"unknown", low, negotiate.PeerView{}, false, negotiate.Accept},
		{"known", high, negotiate.PeerView{Known: true, Version: 0x12, Incarnation: 5}, false, negotiate.Accept},
		{"known, never talked", high, negotiate.PeerView{Known: true}, false, negotiate.Accept},
		{"other incarnation", high, negotiate.PeerView{Known: true, Version: 0x12, Incarnation: 4}, false, negotiate.RefuseStale},
		{"other version", high, negotiate.PeerView{Known: true, Version: 0x11, Incarnation: 5}, false, negotiate.RefuseStale},
		{"race, its NID is lower", low, negotiate.PeerView{Known: true, Connecting: true}, false, negotiate.RefuseRace},
		{"race, its NID is higher", other, negotiate.PeerView{Known: true, Connecting: true}, false, negotiate.Accept},
		{"race, folded", other, negotiate.PeerView{Known: true, Connecting: true}, true, negotiate.RefuseRace},
		{"race, for the 21st time", low, negotiate.PeerView{Known: true, Connecting: true, Races: negotiate.MaxRaces}, false, negotiate.Accept},
	} {
		m := wire.Msg{Header: wire.Header{Version: wire.Version2, SrcNID: row.src, SrcStamp: 5}}
		l := local()
		l.NID = high
		if got := negotiate.Decide(&m, l, row.view, row.hashed); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
	// The examples of spec 2.6: 10.0.1.1 folds below 10.0.0.1.
	if !negotiate.Lower(other, low, true) || negotiate.Lower(other, low, false) || !negotiate.Lower(low, high, true) {
		t.Error("the folded comparison")
	}
}

func TestAck(t *testing.T) {
	offered := negotiate.Offer(wire.Version2, 8, 256)
	for _, row := range []struct {
		name  string
		edit  func(*wire.Msg)
		text  string
		stale bool
	}{
		{"sound", nil, "", false},
		{"lower", func(m *wire.Msg) { m.Params.QueueDepth, m.Params.MaxFrags = 3, 17 }, "", false},
		{"type", func(m *wire.Msg) { m.Type = wire.MsgConnReq }, "CONNREQ", false},
		{"version", func(m *wire.Msg) { m.Version = 0x11 }, "0x11", false},
		{"depth", func(m *wire.Msg) { m.Params.QueueDepth = 9 }, "9", false},
		{"depth 0", func(m *wire.Msg) { m.Params.QueueDepth = 0 }, "0", false},
		{"frags", func(m *wire.Msg) { m.Params.MaxFrags = 257 }, "257", false},
		{"size", func(m *wire.Msg) { m.Params.MaxMsgSize = 8192 }, "8192", false},
		{"for another life", func(m *wire.Msg) { m.DstStamp = 78 }, "life", true},
		{"for another node", func(m *wire.Msg) { m.DstNID = other }, "for", true},
		{"from another node", func(m *wire.Msg) { m.SrcNID = other }, "says it is", true},
	} {
		b := connreq(func(m *wire.Msg) {
			m.Type, m.DstStamp = wire.MsgConnAck, 77
			if row.edit != nil {
				row.edit(m)
			}
		})
		var m wire.Msg
		err := negotiate.Ack(&m, b, local(), high, wire.Version2, offered)
		if (err == nil) != (row.text == "") || err != nil && (!strings.Contains(err.Error(), row.text) || errors.Is(err, negotiate.ErrStale) != row.stale) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	if o := negotiate.Offer(wire.Version1, 32, 12); o.QueueDepth != 8 || o.MaxFrags != 256 {
		t.Errorf("version 1 offers %+v", o)
	}
}

func reject(r wire.Reject) []byte {
	r.Magic = wire.Magic
	if r.Version == 0 {
		r.Version = wire.Version2
	}
	b := make([]byte, 148)
	r.Encode(b)
	return b
}

func TestOnReject(t *testing.T) {
	lower := wire.ConnParams{QueueDepth: 8, MaxFrags: 32, MaxMsgSize: 4096}
	same := wire.ConnParams{QueueDepth: 32, MaxFrags: 256, MaxMsgSize: 4096}
	waiting := negotiate.ActiveView{Waiting: true, Version: wire.Version2, Connecting: 1}
	for _, row := range []struct {
		name  string
		kind  negotiate.RejectKind
		b     []byte
		view  negotiate.ActiveView
		want  negotiate.Retry // without Text
		text  string
		again bool
	}{
		{"CM knows an old connection", negotiate.KindStaleConn, nil, waiting, negotiate.Retry{Version: 0x12}, "older connection", true},
		{"no listener", negotiate.KindNoListener, nil, waiting, negotiate.Retry{}, "nobody listens", false},
		{"no reason", negotiate.KindOther, nil, waiting, negotiate.Retry{}, "without a reason", false},
		{"cut", negotiate.KindConsumer, reject(wire.Reject{Why: 5})[:6], waiting, negotiate.Retry{}, "unreadable", false},
		{"garbage", negotiate.KindConsumer, []byte("0123456789"), waiting, negotiate.Retry{}, "unreadable", false},
		{"race", negotiate.KindConsumer, reject(wire.Reject{Why: 1, Incarnation: 9}), waiting, negotiate.Retry{Version: 0x12, Incarnation: 9}, "at once", true},
		{"race, and it connects to us", negotiate.KindConsumer, reject(wire.Reject{Why: 1}), negotiate.ActiveView{Waiting: true, Connecting: 1, Accepting: 1}, negotiate.Retry{}, "at once", false},
		{"race, and nothing waits", negotiate.KindConsumer, reject(wire.Reject{Why: 1}), negotiate.ActiveView{Version: wire.Version2, Connecting: 1}, negotiate.Retry{}, "at once", false},
		{"stale", negotiate.KindConsumer, reject(wire.Reject{Why: 5, Incarnation: 9}), waiting, negotiate.Retry{Version: 0x12, Incarnation: 9}, "restarted", true},
		{"stale, nothing waits, version unknown", negotiate.KindConsumer, reject(wire.Reject{Why: 5, Incarnation: 9}), negotiate.ActiveView{Connecting: 1}, negotiate.Retry{Version: 0x12, Incarnation: 9}, "restarted", true},
		{"depth", negotiate.KindConsumer, reject(wire.Reject{Why: 7, Incarnation: 9, Params: lower}), waiting, negotiate.Retry{Version: 0x12, Incarnation: 9, QueueDepth: 8, MaxFrags: 32}, "32 and 256 fragments, it accepts 8 and 32", true},
		{"depth, big-endian", negotiate.KindConsumer, reject(wire.Reject{Why: 7, Incarnation: 9, Params: lower, BigEndian: true}), waiting, negotiate.Retry{Version: 0x12, Incarnation: 9, QueueDepth: 8, MaxFrags: 32}, "", true},
		{"depth, not lower", negotiate.KindConsumer, reject(wire.Reject{Why: 7, Params: same}), waiting, negotiate.Retry{}, "without an offer", false},
		{"depth 0", negotiate.KindConsumer, reject(wire.Reject{Why: 7, Params: wire.ConnParams{MaxFrags: 32}}), waiting, negotiate.Retry{}, "without an offer", false},
		{"fragments", negotiate.KindConsumer, reject(wire.Reject{Why: 6, Incarnation: 9, Params: lower}), waiting, negotiate.Retry{Version: 0x12, Incarnation: 9, QueueDepth: 8, MaxFrags: 32}, "", true},
		{"version 1 peer", negotiate.KindConsumer, reject(wire.Reject{Why: 3, Version: 0x11}), waiting, negotiate.Retry{Version: 0x11, Incarnation: ^uint64(0)}, "version 1", true},
		{"version 1 peer, short reject", negotiate.KindConsumer, reject(wire.Reject{Why: 3, Version: 0x11})[:8], waiting, negotiate.Retry{Version: 0x11, Incarnation: ^uint64(0)}, "version 1", true},
		{"fatal", negotiate.KindConsumer, reject(wire.Reject{Why: 3}), waiting, negotiate.Retry{}, "for good", false},
		{"no resources", negotiate.KindConsumer, reject(wire.Reject{Why: 2}), waiting, negotiate.Retry{}, "resources", false},
		{"early", negotiate.KindConsumer, reject(wire.Reject{Why: 9}), waiting, negotiate.Retry{}, "starting", false},
		{"unknown", negotiate.KindConsumer, reject(wire.Reject{Why: 200}), waiting, negotiate.Retry{}, "200", false},
	} {
		r := negotiate.OnReject(row.kind, row.b, wire.Version2, wire.ConnParams{QueueDepth: 32, MaxFrags: 256, MaxMsgSize: 4096}, row.view)
		if r.Reconnect != row.again || !strings.Contains(r.Text, row.text) || r.Text == "" {
			t.Errorf("%s: %+v", row.name, r)
		}
		if row.again && (r.Version != row.want.Version || r.Incarnation != row.want.Incarnation || r.QueueDepth != row.want.QueueDepth || r.MaxFrags != row.want.MaxFrags) {
			t.Errorf("%s: %+v", row.name, r)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(connreq(nil))
	f.Add(connreq(func(m *wire.Msg) { m.BigEndian = true }))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m wire.Msg
		l, r := negotiate.Request(&m, b, 1, false, find)
		if (l == nil) == (r == nil) {
			t.Fatal("neither accepted nor refused")
		}
		_ = negotiate.Ack(&m, b, local(), high, wire.Version2, negotiate.Offer(wire.Version2, 8, 256))
	})
}

func FuzzOnReject(f *testing.F) {
	f.Add(reject(wire.Reject{Why: 7, Params: wire.ConnParams{QueueDepth: 1, MaxFrags: 1}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		offered := negotiate.Offer(wire.Version2, 32, 256)
		r := negotiate.OnReject(negotiate.KindConsumer, b, wire.Version2, offered, negotiate.ActiveView{Waiting: true, Connecting: 1})
		if r.QueueDepth > int(offered.QueueDepth) || r.MaxFrags > int(offered.MaxFrags) || r.QueueDepth < 0 || r.MaxFrags < 0 || r.Text == "" {
			t.Fatalf("%+v", r)
		}
	})
}
