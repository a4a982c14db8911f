package negotiate_test

import (
	"testing"

	"o2ibd/engine/o2iblnd/negotiate"
	"o2ibd/engine/wire"
)

// FuzzAck: a CONNACK that is taken raises nothing, is between these two lives, and leaves a connection
// that can work.
func FuzzAck(f *testing.F) {
	for _, name := range []string{"depth-CONNACK-1", "cksum-CONNACK-1"} {
		f.Add(vector(f, name), uint8(8), false)
	}
	sound := connreq(func(m *wire.Msg) { m.Type, m.DstStamp = wire.MsgConnAck, 77 })
	f.Add(sound, uint8(8), false)
	f.Add(connreq(func(m *wire.Msg) { m.Type, m.DstStamp, m.Version = wire.MsgConnAck, 77, wire.Version1 }), uint8(8), true)
	f.Fuzz(func(t *testing.T, b []byte, depth uint8, old bool) {
		v := wire.Version2
		if old {
			v = wire.Version1
		}
		offered := negotiate.Offer(v, int(depth), 256)
		var m wire.Msg
		err := negotiate.Ack(&m, b, local(), high, v, offered)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("refused without a word")
			}
			return
		}
		least := uint16(1)
		if old {
			least = 3
		}
		p := m.Params
		if m.Type != wire.MsgConnAck || m.Version != v || m.SrcNID != high || m.DstNID != low || m.DstStamp != 77 ||
			p.QueueDepth < least || p.QueueDepth > offered.QueueDepth || p.MaxFrags < 1 || p.MaxFrags > offered.MaxFrags || p.MaxMsgSize > wire.MsgSize {
			t.Fatalf("taken with depth %d offered: %+v %+v", depth, m.Header, p)
		}
	})
}

// FuzzRefusal: whatever is refused, the reject reads back as it was meant, in the requester's byte order or
// ours, and the requester that tries again offers less, or knows more.
func FuzzRefusal(f *testing.F) {
	f.Add(connreq(func(m *wire.Msg) { m.Params.QueueDepth = 16 }), uint16(2000), true, false)
	f.Add(connreq(func(m *wire.Msg) { m.DstStamp = 5 }), uint16(1023), false, true)
	f.Add(connreq(func(m *wire.Msg) { m.Version, m.Params.QueueDepth = wire.Version1, 9 }), uint16(1023), false, false)
	f.Fuzz(func(t *testing.T, b []byte, port uint16, privileged, big bool) {
		var m wire.Msg
		_, refusal := negotiate.Request(&m, b, int(port), privileged, find)
		if refusal == nil {
			if privileged && port >= 1024 {
				t.Fatal("a port without privilege was let in")
			}
			return
		}
		want := refusal.Reject
		want.BigEndian = big
		data := make([]byte, wire.RejectSize)
		want.Encode(data)
		want.Full = want.Version != wire.Version1
		got, err := wire.ParseReject(data)
		if !want.Full {
			want.Incarnation, want.Params = 0, wire.ConnParams{} // not believed of version 1
		}
		if err != nil || got != want {
			t.Fatalf("sent %+v, read %+v, %v", want, got, err)
		}
		if refusal.Text == "" {
			t.Fatal("refused without a word")
		}
		offered := m.Params
		r := negotiate.OnReject(negotiate.KindConsumer, data, want.Version, offered, negotiate.ActiveView{Waiting: true, Connecting: 1})
		if !r.Reconnect {
			return
		}
		lower := r.QueueDepth > 0 && (r.QueueDepth < int(offered.QueueDepth) || r.MaxFrags < int(offered.MaxFrags))
		if !lower && want.Why != wire.RejectStale {
			t.Fatalf("%v for %+v: tries again with %+v", want.Why, offered, r)
		}
	})
}
