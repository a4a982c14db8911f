package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"o2ibd/engine/wire"
)

// edit is a change to a sound message, in the message's own byte order.
type edit func(b []byte, o binary.ByteOrder) []byte

func put16(off int, v uint16) edit {
	return func(b []byte, o binary.ByteOrder) []byte { o.PutUint16(b[off:], v); return b }
}

func put32(off int, v uint32) edit {
	return func(b []byte, o binary.ByteOrder) []byte { o.PutUint32(b[off:], v); return b }
}

func put64(off int, v uint64) edit {
	return func(b []byte, o binary.ByteOrder) []byte { o.PutUint64(b[off:], v); return b }
}

func cut(n int) edit { return func(b []byte, _ binary.ByteOrder) []byte { return b[:n] } }

func pad(n int) edit {
	return func(b []byte, _ binary.ByteOrder) []byte { return append(b, make([]byte, n-len(b))...) }
}

func setType(t wire.MsgType) edit {
	return func(b []byte, _ binary.ByteOrder) []byte { b[6] = byte(t); return b }
}

// TestMalformed breaks sound messages at each check of spec o2iblnd 1.8. Rows with two faults show the
// order of the checks: the earlier one is reported.
func TestMalformed(t *testing.T) {
	const nob, cksum, srcNID = 8, 12, 16
	noop := wire.Msg{Header: wire.Header{Version: wire.Version2, Type: wire.MsgNoop, SrcNID: nidA, DstNID: nidB}}
	ack := wire.Msg{Header: wire.Header{Version: wire.Version2, Type: wire.MsgPutAck, SrcNID: nidA, DstNID: nidB}, RD: wire.Desc{Frags: make([]wire.Frag, 2)}}
	get := ack
	get.Type = wire.MsgGetReq
	rows := []struct {
		name  string
		msg   *wire.Msg
		edits []edit
		want  error
	}{
		{"empty", &noop, []edit{cut(0)}, wire.ErrShort},
		{"1: five bytes", &noop, []edit{cut(5)}, wire.ErrShort},
		{"1 before 2: five bytes, wrong magic", &noop, []edit{put32(0, 1), cut(5)}, wire.ErrShort},
		{"2: wrong magic", &noop, []edit{put32(0, wire.Magic+1)}, wire.ErrMagic},
		{"2: the unified protocol's magic", &noop, []edit{put32(0, wire.LNetProtoMagic)}, wire.ErrMagic},
		{"2: half-swapped magic", &noop, []edit{put32(0, 0x1b910be9)}, wire.ErrMagic},
		{"2 before 3: wrong magic and version", &noop, []edit{put32(0, 1), put16(4, 9)}, wire.ErrMagic},
		{"3: version 0x10", &noop, []edit{put16(4, 0x10)}, wire.ErrVersion},
		{"3: version 0x13", &noop, []edit{put16(4, 0x13)}, wire.ErrVersion},
		{"3: swapped version", &noop, []edit{put16(4, 0x1200)}, wire.ErrVersion},
		{"3 before 4: six bytes, wrong version", &noop, []edit{put16(4, 0), cut(6)}, wire.ErrVersion},
		{"4: six bytes", &noop, []edit{cut(6)}, wire.ErrShort},
		{"4: 47 bytes", &noop, []edit{cut(47)}, wire.ErrShort},
		{"5: one byte missing", &get, []edit{cut(136 + 23)}, wire.ErrNob},
		{"5: nob one too much", &noop, []edit{cut(48), put32(nob, 49)}, wire.ErrNob},
		{"5: nob negative", &noop, []edit{put32(nob, 1<<31)}, wire.ErrNob},
		{"5: nob all ones", &noop, []edit{put32(nob, 1<<32-1)}, wire.ErrNob},
		{"5: nob over 4096", &noop, []edit{put32(nob, 4097)}, wire.ErrNob},
		{"5: nob over 4096, and so many bytes", &noop, []edit{put32(nob, 4097), pad(4097)}, wire.ErrNob},
		{"5: nob below the header", &noop, []edit{put32(nob, 47)}, wire.ErrNob},
		{"5: nob 0", &noop, []edit{put32(nob, 0)}, wire.ErrNob},
		{"5 before 6: nob and checksum", &noop, []edit{put32(nob, 47), put32(cksum, 1)}, wire.ErrNob},
		{"6: wrong checksum", &noop, []edit{put32(cksum, 1)}, wire.ErrCksum},
		{"6 before 8: checksum and wildcard", &noop, []edit{put32(cksum, 1), put64(srcNID, 1<<64-1)}, wire.ErrCksum},
		{"6 before 11: checksum and fragments", &ack, []edit{put32(cksum, 1), put32(68, 0)}, wire.ErrCksum},
		{"8: wildcard source", &noop, []edit{put64(srcNID, 1<<64-1)}, wire.ErrSrcNID},
		{"8 before 9: wildcard and size", &noop, []edit{put64(srcNID, 1<<64-1), setType(wire.MsgPutReq)}, wire.ErrSrcNID},
		{"9: CONNREQ of 48 bytes", &noop, []edit{setType(wire.MsgConnReq)}, wire.ErrSize},
		{"9: CONNACK of 48 bytes", &noop, []edit{setType(wire.MsgConnAck)}, wire.ErrSize},
		{"9: IMMEDIATE of 119 bytes", &ack, []edit{setType(wire.MsgImmediate), put32(nob, 95)}, wire.ErrSize},
		{"9: PUT_REQ of 127 bytes", &get, []edit{setType(wire.MsgPutReq), put32(nob, 127)}, wire.ErrSize},
		{"9: PUT_NAK of 59 bytes", &get, []edit{setType(wire.MsgPutNak), put32(nob, 59)}, wire.ErrSize},
		{"9: PUT_DONE of 59 bytes", &get, []edit{setType(wire.MsgPutDone), put32(nob, 59)}, wire.ErrSize},
		{"9: GET_DONE of 59 bytes", &get, []edit{setType(wire.MsgGetDone), put32(nob, 59)}, wire.ErrSize},
		{"9: PUT_ACK of 71 bytes", &ack, []edit{put32(nob, 71)}, wire.ErrSize},
		{"9: GET_REQ of 135 bytes", &get, []edit{put32(nob, 135)}, wire.ErrSize},
		{"9 before 11: size and fragments", &ack, []edit{put32(nob, 71), put32(68, 0)}, wire.ErrSize},
		{"10: type 0", &noop, []edit{setType(0)}, wire.ErrType},
		{"10: type 0xd8", &noop, []edit{setType(0xd8)}, wire.ErrType},
		{"10: type 0xc2", &noop, []edit{setType(0xc2)}, wire.ErrType},
		{"11: PUT_ACK without fragments", &ack, []edit{put32(68, 0)}, wire.ErrFrags},
		{"11: GET_REQ without fragments", &get, []edit{put32(132, 0)}, wire.ErrFrags},
		{"11: 258 fragments", &ack, []edit{put32(68, 258)}, wire.ErrFrags},
		{"11: 2^31 fragments", &get, []edit{put32(132, 1<<31)}, wire.ErrFrags},
		{"11: 2^32-1 fragments", &ack, []edit{put32(68, 1<<32-1)}, wire.ErrFrags},
		{"11: three fragments in the room of two", &ack, []edit{put32(68, 3)}, wire.ErrDesc},
		{"11: one byte short of two", &get, []edit{put32(nob, 136+23)}, wire.ErrDesc},
		{"11: 257 fragments in the room of two", &get, []edit{put32(132, 257)}, wire.ErrDesc},
		{"11: 2^31 bytes in all", &ack, []edit{put32(72, 1<<31-1), put32(84, 1)}, wire.ErrDesc},
		{"11: sum over 32 bits", &get, []edit{put32(136, 1<<32-1), put32(148, 2)}, wire.ErrDesc},
	}
	for _, big := range []bool{false, true} {
		var o binary.ByteOrder = binary.LittleEndian
		if big {
			o = binary.BigEndian
		}
		for _, r := range rows {
			t.Run(o.String()+"/"+r.name, func(t *testing.T) {
				m := *r.msg
				m.BigEndian = big
				buf := poisoned()
				n, err := m.Encode(buf, wire.CksumNone)
				if err != nil {
					t.Fatal(err)
				}
				buf = buf[:n]
				for _, e := range r.edits {
					buf = e(buf, o)
				}
				buf = slices.Clip(slices.Clone(buf)) // so that a read past its end is caught
				if _, err := m.Unpack(buf); !errors.Is(err, r.want) {
					t.Errorf("unpack: %v, want %v", err, r.want)
				}
				want := r.want
				if want == wire.ErrCksum {
					return // Parse does not look at it
				}
				if err := m.Parse(buf); !errors.Is(err, want) {
					t.Errorf("parse: %v, want %v", err, want)
				}
			})
		}
	}
}

// TestSoundEdges are messages at the edge of what 1.8 lets pass.
func TestSoundEdges(t *testing.T) {
	head := wire.Header{Version: wire.Version1, SrcNID: nidA, DstNID: nidB}
	full := make([]wire.Frag, wire.MaxFrags)
	for _, r := range []struct {
		name  string
		typ   wire.MsgType
		frags []wire.Frag
		edits []edit
	}{
		{"NOOP with a longer nob", wire.MsgNoop, nil, []edit{put32(8, 4096)}},
		{"message with bytes behind it", wire.MsgNoop, nil, nil},
		{"257 fragments in a GET_REQ", wire.MsgGetReq, full, nil},
		{"257 fragments in a PUT_ACK", wire.MsgPutAck, full, nil},
		{"2^31-1 bytes in all", wire.MsgPutAck, make([]wire.Frag, 2), []edit{put32(72, 1<<31-2), put32(84, 1)}},
		{"wildcard as destination", wire.MsgNoop, nil, []edit{put64(32, 1<<64-1)}},
	} {
		t.Run(r.name, func(t *testing.T) {
			m := wire.Msg{Header: head, RD: wire.Desc{Frags: r.frags}}
			m.Type = r.typ
			buf := poisoned()
			if _, err := m.Encode(buf, wire.CksumNone); err != nil {
				t.Fatal(err)
			}
			for _, e := range r.edits {
				buf = e(buf, binary.LittleEndian)
			}
			var got wire.Msg
			if _, err := got.Unpack(buf); err != nil {
				t.Fatal(err)
			}
			if len(got.RD.Frags) != len(r.frags) {
				t.Errorf("%d fragments, want %d", len(got.RD.Frags), len(r.frags))
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	for _, r := range []struct {
		name string
		msg  wire.Msg
		room int
		want error // nil: any
	}{
		{"unknown type", wire.Msg{Header: wire.Header{Type: 0xee}}, 4096, wire.ErrType},
		{"no fragments", wire.Msg{Header: wire.Header{Type: wire.MsgPutAck}}, 4096, wire.ErrFrags},
		{"258 fragments", wire.Msg{Header: wire.Header{Type: wire.MsgGetReq}, RD: wire.Desc{Frags: make([]wire.Frag, 258)}}, 8192, wire.ErrFrags},
		{"payload over 3976", wire.Msg{Header: wire.Header{Type: wire.MsgImmediate}, Payload: make([]byte, wire.MaxImmediate+1)}, 8192, nil},
		{"no room", wire.Msg{Header: wire.Header{Type: wire.MsgConnReq}}, 55, nil},
	} {
		buf := make([]byte, r.room)
		if n, err := r.msg.Encode(buf, wire.CksumNone); err == nil || n != 0 || r.want != nil && !errors.Is(err, r.want) {
			t.Errorf("%s: %d, %v", r.name, n, err)
		}
	}
}

func TestVerifyOfBrokenHeaders(t *testing.T) {
	for name, b := range map[string][]byte{
		"short": make([]byte, 47), "no magic": make([]byte, 48),
		"nob over the end":     unhex(t, "911be90b1200d00431000000"+"00000000"+"0100000a00000500"+"000000000000000000000000000000000000000000000000"),
		"nob below the header": unhex(t, "911be90b1200d0042f000000"+"00000000"+"0100000a00000500"+"000000000000000000000000000000000000000000000000"),
	} {
		if got := wire.Verify(b); got != wire.CksumBad {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestParseReject(t *testing.T) {
	const full = "911be90b 1200 05 00 11a1c3d05e330500 0800 0001 00100000"
	params := wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: 4096}
	for _, r := range []struct {
		name string
		hex  string
		want wire.Reject
		err  error
	}{
		{"full", full, wire.Reject{Magic: wire.Magic, Version: 0x12, Why: 5, Incarnation: stampB, Params: params, Full: true}, nil},
		{"padded, as InfiniBand gives it", full + "0000000000000000", wire.Reject{Magic: wire.Magic, Version: 0x12, Why: 5, Incarnation: stampB, Params: params, Full: true}, nil},
		{"big-endian", "0be91b91 0012 05 00 0005335ed0c3a111 0008 0100 00001000", wire.Reject{Magic: wire.Magic, Version: 0x12, Why: 5, Incarnation: stampB, Params: params, BigEndian: true, Full: true}, nil},
		{"version 1 has no parameters", "911be90b 1100 03 00 11a1c3d05e330500 0800 0001 00100000", wire.Reject{Magic: wire.Magic, Version: 0x11, Why: 3}, nil},
		{"cut to 23 bytes", full[:len(full)-2], wire.Reject{Magic: wire.Magic, Version: 0x12, Why: 5}, nil},
		{"seven bytes", "911be90b 1200 01", wire.Reject{Magic: wire.Magic, Version: 0x12, Why: 1}, nil},
		{"the unified protocol's magic", "63697245 1200 03 00", wire.Reject{Magic: wire.LNetProtoMagic, Version: 0x12, Why: 3}, nil},
		{"the same, big-endian", "45726963 0011 03 00", wire.Reject{Magic: wire.LNetProtoMagic, Version: 0x11, Why: 3, BigEndian: true}, nil},
		{"six bytes", "911be90b 1200", wire.Reject{}, wire.ErrShort},
		{"empty", "", wire.Reject{}, wire.ErrShort},
		{"wrong magic", "911be90c 1200 05 00", wire.Reject{}, wire.ErrMagic},
		{"version 0x13", "911be90b 1300 05 00", wire.Reject{}, wire.ErrVersion},
	} {
		t.Run(r.name, func(t *testing.T) {
			got, err := wire.ParseReject(unhex(t, r.hex))
			if !errors.Is(err, r.err) {
				t.Fatalf("error %v, want %v", err, r.err)
			}
			if err == nil && got != r.want {
				t.Errorf("got %+v\nwant %+v", got, r.want)
			}
		})
	}
}

// TestPayloadInPlace: who puts the payload where it goes gives it again as Payload, and the message is the same
// as with a payload from elsewhere.
func TestPayloadInPlace(t *testing.T) {
	m := wire.Msg{
		Header: wire.Header{Version: wire.Version2, Type: wire.MsgImmediate, SrcNID: nidA, DstNID: nidB},
		LNet:   wire.LNetHeader{Type: wire.LNetPUT, PayloadLength: 9}, Payload: []byte("elsewhere"),
	}
	want, buf := poisoned(), poisoned()
	n, err := m.Encode(want, wire.CksumSigned)
	if err != nil {
		t.Fatal(err)
	}
	m.Payload = buf[wire.ImmediateSize:][:copy(buf[wire.ImmediateSize:], "elsewhere")]
	nob, err := m.EncodeBody(buf)
	if err != nil || nob != n {
		t.Fatalf("%d bytes, %v, want %d", nob, err, n)
	}
	if slices.ContainsFunc(buf[:wire.HeaderSize], func(c byte) bool { return c != 0xa5 }) {
		t.Errorf("the body's encoder wrote into the header: %x", buf[:wire.HeaderSize])
	}
	m.Nob = uint32(nob)
	wire.Seal(buf, &m.Header, m.BigEndian, wire.CksumSigned)
	if !bytes.Equal(buf, want) {
		t.Errorf("encoded %x\nwant    %x", buf[:n], want[:n])
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		wire.MsgType(0xd9).String():      "type 0xd9",
		wire.MsgGetReq.String():          "GET_REQ",
		wire.LNetREPLY.String():          "REPLY",
		wire.LNetType(9).String():        "type 9",
		wire.RejectMsgQueueSize.String(): "queue depth too large",
		wire.RejectReason(200).String():  "reason 200",
		wire.CksumUnsigned.String():      "unsigned",
		wire.CksumKind(77).String():      "bad",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
