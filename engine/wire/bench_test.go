package wire_test

import (
	"fmt"
	"testing"

	"o2ibd/engine/wire"
)

// benchMessages are the shapes whose cost decision 12 bounds.
func benchMessages() []struct {
	name string
	msg  *wire.Msg
} {
	frags := func(n int) wire.Desc {
		d := wire.Desc{Key: 0xabcd1234}
		for i := range n {
			d.Frags = append(d.Frags, wire.Frag{Nob: 4096, Addr: 0x7f0000000000 + uint64(i)<<12})
		}
		return d
	}
	head := func(t wire.MsgType) wire.Header {
		return wire.Header{Version: wire.Version2, Type: t, Credits: 3, SrcNID: nidA, SrcStamp: stampA, DstNID: nidB, DstStamp: stampB}
	}
	put := wire.LNetHeader{DestNID: nidB, SrcNID: nidA, DestPID: wire.LustrePID, SrcPID: wire.LustrePID, Type: wire.LNetPUT, MatchBits: 1, Portal: 51}
	get := put
	get.Type = wire.LNetGET
	type row = struct {
		name string
		msg  *wire.Msg
	}
	rows := []row{
		{"noop", &wire.Msg{Header: head(wire.MsgNoop)}},
		{"immediate", &wire.Msg{Header: head(wire.MsgImmediate), LNet: put}},
		{"put_req", &wire.Msg{Header: head(wire.MsgPutReq), LNet: put, Cookie: 7}},
		{"put_done", &wire.Msg{Header: head(wire.MsgPutDone), Cookie: 7, Status: 4096}},
	}
	for _, n := range []int{1, 256} {
		rows = append(rows,
			row{fmt.Sprintf("put_ack/%d", n), &wire.Msg{Header: head(wire.MsgPutAck), SrcCookie: 1, DstCookie: 2, RD: frags(n)}},
			row{fmt.Sprintf("get_req/%d", n), &wire.Msg{Header: head(wire.MsgGetReq), LNet: get, Cookie: 7, RD: frags(n)}})
	}
	return rows
}

func BenchmarkUnpack(b *testing.B) {
	for _, order := range []string{"little", "big"} {
		for _, r := range benchMessages() {
			b.Run(order+"/"+r.name, func(b *testing.B) {
				r.msg.BigEndian = order == "big"
				buf := make([]byte, wire.MsgSize)
				if _, err := r.msg.Encode(buf, wire.CksumNone); err != nil {
					b.Fatal(err)
				}
				var m wire.Msg
				b.ReportAllocs()
				for b.Loop() {
					if _, err := m.Unpack(buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, order := range []string{"little", "big"} {
		for _, r := range benchMessages() {
			b.Run(order+"/"+r.name, func(b *testing.B) {
				r.msg.BigEndian = order == "big"
				buf := make([]byte, wire.MsgSize)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.msg.Encode(buf, wire.CksumNone); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkCksum(b *testing.B) {
	buf := make([]byte, wire.MsgSize)
	for i := range buf {
		buf[i] = byte(i * 167)
	}
	for _, signed := range []bool{true, false} {
		b.Run(fmt.Sprintf("signed=%v", signed), func(b *testing.B) {
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				wire.Cksum(buf, signed)
			}
		})
	}
}

// BenchmarkVerify is what a receiver pays, whichever variant the peer uses.
func BenchmarkVerify(b *testing.B) {
	for _, kind := range []wire.CksumKind{wire.CksumSigned, wire.CksumUnsigned} {
		b.Run(kind.String(), func(b *testing.B) {
			m := wire.Msg{Header: wire.Header{Version: wire.Version2, Type: wire.MsgImmediate, SrcNID: nidA}, Payload: make([]byte, wire.MaxImmediate)}
			buf := make([]byte, wire.MsgSize)
			n, err := m.Encode(buf, kind)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(n))
			for b.Loop() {
				if wire.Verify(buf) != kind {
					b.Fatal("wrong kind")
				}
			}
		})
	}
}
