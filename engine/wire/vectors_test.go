package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"o2ibd/engine/wire"
)

// describe renders a message as the capture's own description beside each vector does.
func describe(m *wire.Msg) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("%v v=%#x credits=%d nob=%d cksum=%#x src=%v srcstamp=%d dst=%v dststamp=%d",
		m.Type, uint16(m.Version), m.Credits, m.Nob, m.Cksum, m.SrcNID, m.SrcStamp, m.DstNID, m.DstStamp)
	lnet := func() {
		h := &m.LNet
		p(" | lnet %v dst=%v src=%v dpid=%d spid=%d payload=%d", h.Type, h.DestNID, h.SrcNID, h.DestPID, h.SrcPID, h.PayloadLength)
		handle := fmt.Sprintf("%x/%x", h.Handle.Iface, h.Handle.Object)
		switch h.Type {
		case wire.LNetPUT:
			p(" ackh=%s mbits=%x hdrdata=%x ptl=%d off=%d", handle, h.MatchBits, h.HdrData, h.Portal, h.Offset)
		case wire.LNetGET:
			p(" reth=%s mbits=%x ptl=%d srcoff=%d sinklen=%d", handle, h.MatchBits, h.Portal, h.Offset, h.Length)
		case wire.LNetACK:
			p(" dsth=%s mbits=%x mlen=%d", handle, h.MatchBits, h.Length)
		case wire.LNetREPLY:
			p(" dsth=%s", handle)
		}
	}
	frags := func() {
		p(" rkey=%x nfrags=%d frags=[", m.RD.Key, len(m.RD.Frags))
		for i, f := range m.RD.Frags {
			if i > 0 {
				p(", ")
			}
			p("(%d, '%#x')", f.Nob, f.Addr)
		}
		p("]")
	}
	switch m.Type {
	case wire.MsgConnReq, wire.MsgConnAck:
		p(" queue_depth=%d max_frags=%d max_msg_size=%d", m.Params.QueueDepth, m.Params.MaxFrags, m.Params.MaxMsgSize)
	case wire.MsgImmediate:
		lnet()
	case wire.MsgPutReq:
		lnet()
		p(" cookie=%#x", m.Cookie)
	case wire.MsgPutNak, wire.MsgPutDone, wire.MsgGetDone:
		p(" cookie=%#x status=%d", m.Cookie, m.Status)
	case wire.MsgPutAck:
		p(" src_cookie=%#x dst_cookie=%#x", m.SrcCookie, m.DstCookie)
		frags()
	case wire.MsgGetReq:
		lnet()
		p(" cookie=%#x", m.Cookie)
		frags()
	}
	return b.String()
}

// TestKernelVectors decodes what a kernel sent, compares every field with the capture's description and
// encodes it again, byte for byte.
func TestKernelVectors(t *testing.T) {
	files, err := filepath.Glob("testdata/vectors/*.hex")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d vectors, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			raw := unhex(t, string(text))
			desc, err := os.ReadFile(strings.TrimSuffix(file, ".hex") + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			want := strings.TrimSpace(string(desc))
			dst := poisoned()
			if strings.Contains(name, "-REJ-") {
				r, err := wire.ParseReject(raw)
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprintf("REJ cm REJ reason=28 magic=%x v=%#x why=%d incarnation=%d queue_depth=%d max_frags=%d max_msg=%d",
					r.Magic, uint16(r.Version), uint8(r.Why), r.Incarnation, r.Params.QueueDepth, r.Params.MaxFrags, r.Params.MaxMsgSize)
				if got != want {
					t.Errorf("decoded\n%s\nwant\n%s", got, want)
				}
				if n := r.Encode(dst); !bytes.Equal(dst[:n], raw) {
					t.Errorf("encoded %x\nwant    %x", dst[:n], raw)
				}
				return
			}

			var m wire.Msg
			if err := m.Parse(raw); err != nil {
				t.Fatal(err)
			}
			if got := describe(&m); got != want {
				t.Errorf("decoded\n%s\nwant\n%s", got, want)
			}
			kind := wire.CksumNone
			switch {
			case name == "cksum-IMMEDIATE-REPLY-1": // its kernel checksums something else
				kind = wire.CksumBad
			case strings.HasPrefix(name, "cksum-"):
				kind = wire.CksumSigned
			}
			if got := wire.Verify(raw); got != kind {
				t.Errorf("checksum is %v, want %v", got, kind)
			}
			var u wire.Msg
			if got, err := u.Unpack(raw); got != kind || errors.Is(err, wire.ErrCksum) != (kind == wire.CksumBad) {
				t.Errorf("unpack says %v, %v, want checksum %v", got, err, kind)
			}
			n, err := m.Encode(dst, wire.CksumNone)
			if err != nil || !bytes.Equal(dst[:n], raw) {
				t.Errorf("encoded %x, %v\nwant    %x", dst[:n], err, raw)
			}
			if kind == wire.CksumSigned {
				m.Cksum = 0
				dst = poisoned()
				if n, err := m.Encode(dst, kind); err != nil || !bytes.Equal(dst[:n], raw) {
					t.Errorf("encoded with our checksum %x, %v\nwant %x", dst[:n], err, raw)
				}
			}
			for i, c := range dst[n:] {
				if c != 0xa5 {
					t.Fatalf("encode wrote byte %d, behind the message's %d", n+i, n)
				}
			}
		})
	}
}

// TestAppendixB holds the worked vectors of spec o2iblnd appendix B.
func TestAppendixB(t *testing.T) {
	head := func(typ wire.MsgType, credits uint8, src, dst wire.NID, srcStamp, dstStamp uint64) wire.Header {
		return wire.Header{Version: wire.Version2, Type: typ, Credits: credits, SrcNID: src, SrcStamp: srcStamp, DstNID: dst, DstStamp: dstStamp}
	}
	params := wire.ConnParams{QueueDepth: 8, MaxFrags: 256, MaxMsgSize: 4096}
	rows := []struct {
		name             string
		msg              wire.Msg
		hex              string
		signed, unsigned uint32
	}{
		{
			"CONNREQ little-endian", wire.Msg{Header: head(wire.MsgConnReq, 0, nidA, nidB, stampA, 0), Params: params},
			`911be90b 1200 c0 00 38000000 00000000 0100000a00000500 00a0c3d05e330500
			 0200000a00000500 0000000000000000 0800 0001 00100000`,
			0xf566055a, 0x96e605cb,
		},
		{
			"CONNREQ big-endian", wire.Msg{Header: head(wire.MsgConnReq, 0, nidA, nidB, stampA, 0), BigEndian: true, Params: params},
			`0be91b91 0012 c0 00 00000038 00000000 000500000a000001 0005335ed0c3a000
			 000500000a000002 0000000000000000 0008 0100 00001000`,
			0x49bd83db, 0x9b8d83e9,
		},
		{
			"NOOP", wire.Msg{Header: head(wire.MsgNoop, 4, nidA, nidB, stampA, stampB)},
			`911be90b 1200 d0 04 30000000 00000000 0100000a00000500 00a0c3d05e330500
			 0200000a00000500 11a1c3d05e330500`,
			0x0af56fe7, 0x7b975fe7,
		},
		{
			"PUT_ACK", wire.Msg{
				Header: head(wire.MsgPutAck, 1, nidB, nidA, stampB, stampA), SrcCookie: 0x11, DstCookie: 0x22,
				RD: wire.Desc{Key: 0xabcd1234, Frags: []wire.Frag{{Nob: 8192, Addr: 0x7f0012345000}}},
			},
			`911be90b 1200 d4 01 54000000 00000000 0200000a00000500 11a1c3d05e330500
			 0100000a00000500 00a0c3d05e330500 1100000000000000 2200000000000000
			 3412cdab 01000000 00200000 0050341200 7f0000`,
			0x4c7e009e, 0x599d00a5,
		},
		{
			"PUT_DONE", wire.Msg{Header: head(wire.MsgPutDone, 0, nidA, nidB, stampA, stampB), Cookie: 0x22, Status: 8192},
			`911be90b 1200 d5 00 3c000000 00000000 0100000a00000500 00a0c3d05e330500
			 0200000a00000500 11a1c3d05e330500 2200000000000000 00200000`,
			0x57bf812f, 0x76bf8839,
		},
	}
	for i := range rows {
		r := &rows[i]
		t.Run(r.name, func(t *testing.T) {
			raw := unhex(t, r.hex)
			for _, ck := range []struct {
				kind wire.CksumKind
				sum  uint32
			}{{wire.CksumNone, 0}, {wire.CksumSigned, r.signed}, {wire.CksumUnsigned, r.unsigned}} {
				dst := poisoned()
				r.msg.Cksum = 0
				n, err := r.msg.Encode(dst, ck.kind)
				if err != nil {
					t.Fatal(err)
				}
				var m wire.Msg
				kind, err := m.Unpack(dst[:n])
				if err != nil || kind != ck.kind || m.Cksum != ck.sum {
					t.Fatalf("%v: unpacks as %v %#x, %v; want %#x", ck.kind, kind, m.Cksum, err, ck.sum)
				}
				m.Cksum = 0
				sameMessage(t, &r.msg, &m)
				clear(dst[12:16])
				if !bytes.Equal(dst[:n], raw) {
					t.Errorf("%v: encoded %x\nwant %x", ck.kind, dst[:n], raw)
				}
			}
		})
	}

	t.Run("reject", func(t *testing.T) {
		raw := unhex(t, "911be90b 1200 07 00 11a1c3d05e330500 0800 0001 00100000")
		want := wire.Reject{
			Magic: wire.Magic, Version: wire.Version2, Why: wire.RejectMsgQueueSize, Incarnation: stampB, Params: params, Full: true,
		}
		if got, err := wire.ParseReject(raw); err != nil || got != want {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
		dst := poisoned()
		if n := want.Encode(dst); !bytes.Equal(dst[:n], raw) {
			t.Errorf("encoded %x", dst[:n])
		}
	})
}

func TestCksumPrimitives(t *testing.T) {
	for _, r := range []struct {
		hex              string
		signed, unsigned uint32
	}{
		{"", 1, 1},
		{"00000000", 1, 1},
		{"ff", 0xffffffff, 0xff},
		{"010203", 0xb, 0xb},
		{"911be90b", 0xfffffcd8, 0x6d1},
	} {
		b := unhex(t, r.hex)
		if s, u := wire.Cksum(b, true), wire.Cksum(b, false); s != r.signed || u != r.unsigned {
			t.Errorf("%q: signed %#x, unsigned %#x; want %#x, %#x", r.hex, s, u, r.signed, r.unsigned)
		}
	}
}
