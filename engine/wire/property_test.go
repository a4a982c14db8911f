package wire_test

import (
	"bytes"
	"math"
	"testing"

	"pgregory.net/rapid"

	"o2ibd/engine/wire"
)

var messageTypes = []wire.MsgType{
	wire.MsgConnReq, wire.MsgConnAck, wire.MsgNoop, wire.MsgImmediate, wire.MsgPutReq,
	wire.MsgPutNak, wire.MsgPutAck, wire.MsgPutDone, wire.MsgGetReq, wire.MsgGetDone,
}

func drawLNetHeader(t *rapid.T) wire.LNetHeader {
	h := wire.LNetHeader{
		DestNID: wire.NID(rapid.Uint64().Draw(t, "dest nid")), SrcNID: wire.NID(rapid.Uint64().Draw(t, "src nid")),
		DestPID: rapid.Uint32().Draw(t, "dest pid"), SrcPID: rapid.Uint32().Draw(t, "src pid"),
		Type:          wire.LNetType(rapid.Uint32Range(0, 4).Draw(t, "lnet type")),
		PayloadLength: rapid.Uint32().Draw(t, "payload length"),
		Handle:        wire.Handle{Iface: rapid.Uint64().Draw(t, "iface"), Object: rapid.Uint64().Draw(t, "object")},
	}
	match, portal := rapid.Uint64().Draw(t, "match bits"), rapid.Uint32().Draw(t, "portal")
	offset, length := rapid.Uint32().Draw(t, "offset"), rapid.Uint32().Draw(t, "length")
	switch h.Type {
	case wire.LNetPUT:
		h.MatchBits, h.HdrData, h.Portal, h.Offset = match, rapid.Uint64().Draw(t, "hdr data"), portal, offset
	case wire.LNetGET:
		h.MatchBits, h.Portal, h.Offset, h.Length = match, portal, offset, length
	case wire.LNetACK:
		h.MatchBits, h.Length = match, length
	}
	return h
}

func drawMessage(t *rapid.T) *wire.Msg {
	m := &wire.Msg{
		Header: wire.Header{
			Version: rapid.SampledFrom([]wire.Version{wire.Version1, wire.Version2}).Draw(t, "version"),
			Type:    rapid.SampledFrom(messageTypes).Draw(t, "type"),
			Credits: rapid.Uint8().Draw(t, "credits"),
			SrcNID:  wire.NID(rapid.Uint64Max(math.MaxUint64-1).Draw(t, "srcnid")), SrcStamp: rapid.Uint64().Draw(t, "srcstamp"),
			DstNID: wire.NID(rapid.Uint64().Draw(t, "dstnid")), DstStamp: rapid.Uint64().Draw(t, "dststamp"),
		},
		BigEndian: rapid.Bool().Draw(t, "big-endian"),
	}
	switch m.Type {
	case wire.MsgConnReq, wire.MsgConnAck:
		m.Params = wire.ConnParams{
			QueueDepth: rapid.Uint16().Draw(t, "depth"), MaxFrags: rapid.Uint16().Draw(t, "frags"), MaxMsgSize: rapid.Uint32().Draw(t, "size"),
		}
	case wire.MsgImmediate:
		m.LNet = drawLNetHeader(t)
		m.Payload = rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "payload")
		if rapid.Bool().Draw(t, "largest") {
			m.Payload = bytes.Repeat([]byte{0xb7}, wire.MaxImmediate)
		}
	case wire.MsgPutReq, wire.MsgGetReq:
		m.LNet, m.Cookie = drawLNetHeader(t), rapid.Uint64().Draw(t, "cookie")
	case wire.MsgPutAck:
		m.SrcCookie, m.DstCookie = rapid.Uint64().Draw(t, "src cookie"), rapid.Uint64().Draw(t, "dst cookie")
	default:
		m.Cookie, m.Status = rapid.Uint64().Draw(t, "cookie"), rapid.Int32().Draw(t, "status")
	}
	if m.Type == wire.MsgPutAck || m.Type == wire.MsgGetReq {
		m.RD.Key = rapid.Uint32().Draw(t, "key")
		n := rapid.OneOf(rapid.IntRange(1, 4), rapid.IntRange(1, wire.MaxFrags)).Draw(t, "nfrags")
		base := rapid.Uint64().Draw(t, "address")
		nob := rapid.Uint32Max((1<<31-1)/wire.MaxFrags).Draw(t, "fragment")
		for i := range n {
			m.RD.Frags = append(m.RD.Frags, wire.Frag{Nob: nob - uint32(i)%(nob/2+1), Addr: base + uint64(i)*0x10001})
		}
	}
	return m
}

// TestRoundTrip: what is encoded unpacks as the same message, with either checksum or none, and encodes
// again as the same bytes.
func TestRoundTrip(t *testing.T) {
	var got wire.Msg // reused, as receivers do
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		kind := rapid.SampledFrom([]wire.CksumKind{wire.CksumNone, wire.CksumSigned, wire.CksumUnsigned}).Draw(t, "checksum")
		buf, again := poisoned(), poisoned()
		n, err := m.Encode(buf, kind)
		if err != nil {
			t.Fatal(err)
		}
		gotKind, err := got.Unpack(buf)
		if err != nil || gotKind != kind {
			t.Fatalf("unpack: checksum %v, want %v: %v", gotKind, kind, err)
		}
		m.Cksum = got.Cksum
		if a, b := viewOf(m), viewOf(&got); !equalViews(a, b) {
			t.Fatalf("unpacked %+v\nwant %+v", b, a)
		}
		if k, err := got.Encode(again, wire.CksumNone); err != nil || !bytes.Equal(again[:k], buf[:n]) {
			t.Fatalf("encoded again as %x, %v\nwant %x", again[:k], err, buf[:n])
		}
	})
}

// TestChecksumCatchesBitFlips: one flipped bit behind the checksum field never passes for a sound message.
func TestChecksumCatchesBitFlips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		kind := rapid.SampledFrom([]wire.CksumKind{wire.CksumSigned, wire.CksumUnsigned}).Draw(t, "checksum")
		buf := poisoned()
		n, err := m.Encode(buf, kind)
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(16, n-1).Draw(t, "byte")
		buf[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got := wire.Verify(buf); got == kind {
			t.Fatalf("a flipped bit in byte %d of %d went unseen", at, n)
		}
	})
}

func TestRejectRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := wire.Reject{
			Magic:     rapid.SampledFrom([]uint32{wire.Magic, wire.LNetProtoMagic}).Draw(t, "magic"),
			Version:   wire.Version2,
			Why:       wire.RejectReason(rapid.Uint8().Draw(t, "why")),
			BigEndian: rapid.Bool().Draw(t, "big-endian"), Full: true,
			Incarnation: rapid.Uint64().Draw(t, "incarnation"),
			Params:      wire.ConnParams{QueueDepth: rapid.Uint16().Draw(t, "depth"), MaxFrags: rapid.Uint16().Draw(t, "frags"), MaxMsgSize: rapid.Uint32().Draw(t, "size")},
		}
		dst := poisoned()
		n := r.Encode(dst)
		if got, err := wire.ParseReject(dst[:n]); err != nil || got != r {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, r)
		}
	})
}

// TestNIDRoundTrip: what prints as a NID of a known network parses as itself; as text in JSON
// every NID comes back, but for loopbacks with a number or an address, which are none.
func TestNIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const lo = 9
		free := wire.NID(rapid.Uint64().Filter(func(v uint64) bool { return v>>48 != lo }).Draw(t, "free"))
		var back wire.NID
		if text, err := free.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != free {
			t.Fatalf("%#x is written %s, %v and read as %#x", uint64(free), text, err, uint64(back))
		}
		net := wire.Net(rapid.SampledFrom([]uint32{2, 5, 13, 14, 15, 16, 18, 19}).Draw(t, "type")<<16 | uint32(rapid.Uint16().Draw(t, "number")))
		nid := wire.MakeNID(net, rapid.Uint32().Draw(t, "address"))
		if got, err := wire.ParseNID(nid.String()); err != nil || got != nid {
			t.Fatalf("%v parses as %v, %v", nid, got, err)
		}
	})
}
