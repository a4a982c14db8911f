package lnet_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

func encoded(h wire.LNetHeader) []byte {
	b := make([]byte, wire.LNetHeaderSize)
	h.Encode(b)
	return b
}

func TestL8_04PutHeaderBytes(t *testing.T) {
	g, l := newRig(t), new(eventLog)
	h, _ := g.bind(160, 1, 0, l)
	must(t, g.n.Put(h, toP(51, 1), false))
	want, err := hex.DecodeString("0200000a00000500" + "0100000a00000500" + "3930000039300000" + "01000000a0000000" +
		strings.Repeat("ff", 16) + "0100000000000000" + "0000000000000000" + "3300000000000000")
	must(t, err)
	if got := encoded(g.lnd.take().Hdr); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// captured is a message of the kernel's node (vectors/README.md): LNet header and payload.
func captured(t *testing.T, name string) (header, payload []byte) {
	t.Helper()
	text, err := os.ReadFile("testdata/kernel-IMMEDIATE-" + name + ".hex")
	must(t, err)
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	must(t, err)
	return b[wire.HeaderSize:wire.ImmediateSize], b[wire.ImmediateSize:]
}

// To the same question we give the kernel's answer, byte for byte but for the features.
func TestAnswersAreTheKernels(t *testing.T) {
	node1, node2 := wire.MakeNID(wire.NetO2IB, 0x0a4d0001), wire.MakeNID(wire.NetO2IB, 0x0a4d0002)
	rows := []struct {
		asked, answered string
		us              wire.NID
	}{
		{"GET-1", "REPLY-1", node2},
		{"PUT-3", "ACK-2", node1},
	}
	for _, row := range rows {
		t.Run(row.asked, func(t *testing.T) {
			g := newRig(t, func(c *lnet.Config) { c.NIs[0].NID = row.us })
			header, payload := captured(t, row.asked)
			var h wire.LNetHeader
			h.Decode(header)
			must(t, g.n.Parse(g.lnd, row.us, h.SrcNID, &h, &rx{lnd: g.lnd, payload: payload}, false))
			m := g.lnd.take()
			wantHeader, wantPayload := captured(t, row.answered)
			if got := encoded(m.Hdr); !bytes.Equal(got, wantHeader) {
				t.Errorf("header %x, want %x", got, wantHeader)
			}
			if len(wantPayload) > 0 {
				wantPayload[4] = 0x06                                    // the kernel has discovery on
				copy(wantPayload[24:28], []byte{0xde, 0xc0, 0xaa, 0x15}) // and a sequence number where we have a status
			}
			if got := bytesOf(m); !bytes.Equal(got, wantPayload) {
				t.Errorf("payload %x, want %x", got, wantPayload)
			}
		})
	}
}

// Whatever arrives, it is refused or received exactly once, and nothing is left over.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"GET-1", "REPLY-1", "PUT-3", "ACK-2"} {
		b, err := os.ReadFile("testdata/kernel-IMMEDIATE-" + name + ".hex")
		if err != nil {
			f.Fatal(err)
		}
		raw, err := hex.DecodeString(strings.TrimSpace(string(b)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw[wire.HeaderSize:], false)
	}
	f.Add(encoded(put(0, pingBits, 65536)), true)
	f.Add(encoded(get(0, pingBits, 65536)), true)
	f.Add(append(encoded(put(51, 0x10, 30)), pattern(30)...), false)
	f.Add(append(encoded(put(50, 1, 30)), pattern(30)...), false)
	f.Fuzz(func(t *testing.T, b []byte, rdma bool) {
		if len(b) < wire.LNetHeaderSize {
			return
		}
		g, l := newRig(t), new(eventLog)
		must(t, g.n.SetLazy(50, true))
		var h wire.LNetHeader
		h.Decode(b)
		g.attach(lnet.ME{Portal: 51, MatchBits: 0x10, IgnoreBits: 0xf}, 100, lnet.MD{Threshold: 3, Options: lnet.OptPut | lnet.OptGet | lnet.OptManageRemote}, l)
		active, _ := g.bind(64, 2, lnet.OptTruncate, l)
		must(t, g.n.Get(active, toP(52, 1)))
		r := &rx{lnd: g.lnd, payload: b[wire.LNetHeaderSize:]}
		if rdma {
			r.payload, r.data = nil, make([]byte, min(h.PayloadLength, wire.MaxPayload))
		} else if k := int(min(h.PayloadLength, wire.MaxPayload)); len(r.payload) > k {
			r.payload = r.payload[:k]
		}
		err := g.n.Parse(g.lnd, nidN, nidP, &h, r, rdma)
		parked := g.n.Stats().Parked
		switch {
		case err != nil && r.got != 0, err == nil && r.got > 1, err == nil && r.got == 0 && parked == 0:
			t.Errorf("error %v, received %d times, %d parked", err, r.got, parked)
		}
		g.n.Close()
		if err == nil && r.got != 1 {
			t.Errorf("received %d times after Close", r.got)
		}
	})
}
