package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"o2ibd/engine/wire"
)

// TestLNetHeader holds the layouts of spec lnet 2.1; the first row is assertion 8 #4.
func TestLNetHeader(t *testing.T) {
	common := `0200000a00000500 0100000a00000500 39300000 39300000 `
	head := wire.LNetHeader{DestNID: nidB, SrcNID: nidA, DestPID: wire.LustrePID, SrcPID: wire.LustrePID}
	with := func(change func(h *wire.LNetHeader)) wire.LNetHeader {
		h := head
		change(&h)
		return h
	}
	handle := wire.Handle{Iface: 0x1122334455667788, Object: 0x99}
	for _, r := range []struct {
		name string
		h    wire.LNetHeader
		hex  string
		text string // behind the names of both processes
	}{
		{"PUT without ACK", with(func(h *wire.LNetHeader) {
			h.Type, h.PayloadLength, h.Handle, h.MatchBits, h.Portal = wire.LNetPUT, 160, wire.NoHandle, 1, 51
		}), common + `01000000 a0000000 ffffffffffffffff ffffffffffffffff 0100000000000000 0000000000000000 33000000 00000000`, "payload 160, handle 0xffffffffffffffff/0xffffffffffffffff, match 0x1, data 0x0, portal 51, offset 0"},
		{"PUT", with(func(h *wire.LNetHeader) {
			h.Type, h.PayloadLength, h.Handle, h.MatchBits = wire.LNetPUT, 1<<20, handle, 0x0102030405060708
			h.HdrData, h.Portal, h.Offset = 0x1112131415161718, 63, 0x01020304
		}), common + `01000000 00001000 8877665544332211 9900000000000000 0807060504030201 1817161514131211 3f000000 04030201`, "payload 1048576, handle 0x1122334455667788/0x99, match 0x102030405060708, data 0x1112131415161718, portal 63, offset 16909060"},
		{"GET", with(func(h *wire.LNetHeader) {
			h.Type, h.Handle, h.MatchBits, h.Portal, h.Offset, h.Length = wire.LNetGET, handle, 1<<63, 2, 3, 3960
		}), common + `02000000 00000000 8877665544332211 9900000000000000 0000000000000080 02000000 03000000 780f0000 00000000`, "payload 0, handle 0x1122334455667788/0x99, match 0x8000000000000000, portal 2, offset 3, length 3960"},
		{"ACK", with(func(h *wire.LNetHeader) {
			h.Type, h.Handle, h.MatchBits, h.Length = wire.LNetACK, handle, 1<<63, 48
		}), common + `00000000 00000000 8877665544332211 9900000000000000 0000000000000080 30000000 000000000000000000000000`, "payload 0, handle 0x1122334455667788/0x99, match 0x8000000000000000, length 48"},
		{"REPLY", with(func(h *wire.LNetHeader) {
			h.Type, h.PayloadLength, h.Handle = wire.LNetREPLY, 64, handle
		}), common + `03000000 40000000 8877665544332211 9900000000000000 000000000000000000000000000000000000000000000000`, "payload 64, handle 0x1122334455667788/0x99"},
	} {
		t.Run(r.name, func(t *testing.T) {
			raw := unhex(t, r.hex)
			dst := poisoned()
			r.h.Encode(dst)
			if !bytes.Equal(dst[:wire.LNetHeaderSize], raw) {
				t.Errorf("encoded %x\nwant    %x", dst[:wire.LNetHeaderSize], raw)
			}
			if dst[wire.LNetHeaderSize] != 0xa5 {
				t.Error("wrote behind the header")
			}
			got := wire.LNetHeader{MatchBits: 9, HdrData: 9, Portal: 9, Offset: 9, Length: 9} // what was there before does not shine through
			got.Decode(raw)
			if got != r.h {
				t.Errorf("decoded %+v\nwant    %+v", got, r.h)
			}
			typ, _, _ := strings.Cut(r.name, " ")
			if want := typ + " 12345-10.0.0.1@o2ib > 12345-10.0.0.2@o2ib, " + r.text; got.String() != want {
				t.Errorf("prints as %q\nwant      %q", got, want)
			}
		})
	}
}
