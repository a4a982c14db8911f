package decode_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"o2ibd/engine/wire"
	"o2ibd/engine/wire/decode"
)

// udp is an IPv4 packet from one node to the other.
func udp(from, to netip.AddrPort, port uint16, payload []byte) []byte {
	be := binary.BigEndian
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, 17
	be.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], from.Addr().AsSlice())
	copy(b[16:], to.Addr().AsSlice())
	be.PutUint16(b[20:], 49152)
	be.PutUint16(b[22:], port)
	be.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}

// transport is a RoCEv2 packet of the active node: base transport header, the rest, pad and invariant CRC.
func transport(op byte, qpn, psn uint32, payload ...byte) []byte {
	return udp(active, passive, 4791, bth(op, qpn, psn, payload))
}

func bth(op byte, qpn, psn uint32, payload []byte) []byte {
	pad := -len(payload) & 3
	b := []byte{op, byte(pad << 4), 0xff, 0xff, 0, byte(qpn >> 16), byte(qpn >> 8), byte(qpn), 0, byte(psn >> 16), byte(psn >> 8), byte(psn)}
	b = append(b, payload...)
	return append(b, make([]byte, pad+4)...)
}

// cm is a management datagram of communication management with these bytes behind its header.
func cm(from, to netip.AddrPort, attribute uint16, fill map[int][]byte) []byte {
	b := make([]byte, 8+256)
	mad := b[8:]
	mad[0], mad[1], mad[2], mad[3] = 1, 7, 2, 3
	binary.BigEndian.PutUint16(mad[16:], attribute)
	for off, v := range fill {
		copy(mad[24+off:], v)
	}
	return udp(from, to, 4791, bth(0x64, 1, 1, b))
}

func TestRoCE(t *testing.T) {
	noop := unhex(t, noopHex)
	put := unhex(t, vectorText(t, "kernel-IMMEDIATE-PUT-2"))
	req, ack, rej := unhex(t, vectorText(t, "kernel-CONNREQ-1")), unhex(t, vectorText(t, "kernel-CONNACK-1")), unhex(t, rejHex)
	imm := []byte{1, 2, 3, 4}
	other := []byte("NFS over RDMA, say")
	consumer := []byte{0, 28}
	cat := slices.Concat[[]byte]
	for _, r := range []struct {
		name    string
		packets [][]byte
		want    string
		err     string
		cause   error
	}{
		{"send only", [][]byte{transport(4, 17, 1, noop...)}, "NOOP", "", nil},
		{"send only with immediate, and with invalidate", [][]byte{transport(5, 17, 1, cat(imm, noop)...), transport(0x17, 17, 2, cat(imm, noop)...)}, "NOOP NOOP", "", nil},
		{"first, middle, last", [][]byte{transport(0, 17, 1, put[:100]...), transport(1, 17, 2, put[100:200]...), transport(2, 17, 3, put[200:]...)}, "IMMEDIATE", "", nil},
		{"last with invalidate", [][]byte{transport(0, 17, 1, put[:100]...), transport(0x16, 17, 2, cat(imm, put[100:])...)}, "IMMEDIATE", "", nil},
		{"packet numbers wrap", [][]byte{transport(0, 17, 0xffffff, put[:100]...), transport(2, 17, 0, put[100:]...), transport(4, 17, 1, noop...)}, "IMMEDIATE NOOP", "", nil},
		{"two queue pairs at once", [][]byte{transport(0, 17, 1, put[:100]...), transport(0, 18, 9, put[:100]...), transport(2, 17, 2, put[100:]...), transport(2, 18, 10, put[100:]...)}, "IMMEDIATE IMMEDIATE", "", nil},
		{"writes between sends", [][]byte{transport(4, 17, 1, noop...), transport(6, 17, 2, make([]byte, 64)...), transport(8, 17, 3, make([]byte, 64)...), transport(4, 17, 4, noop...)}, "NOOP NOOP", "", nil},
		{"sent again", [][]byte{transport(0, 17, 1, put[:100]...), transport(0, 17, 1, put[:100]...), transport(2, 17, 2, put[100:]...), transport(2, 17, 2, put[100:]...), transport(4, 17, 3, noop...), transport(4, 17, 3, noop...)}, "IMMEDIATE NOOP", "", nil},
		{"an older one sent again", [][]byte{transport(4, 17, 1, noop...), transport(4, 17, 2, noop...), transport(4, 17, 1, noop...)}, "NOOP NOOP", "", nil},
		{"as far ahead as can be", [][]byte{transport(4, 17, 1, noop...), transport(4, 17, 1<<23, noop...)}, "NOOP NOOP", "", nil},
		{"half around is behind", [][]byte{transport(4, 17, 1, noop...), transport(4, 17, 1+1<<23, noop...)}, "NOOP", "", nil},
		{"a packet is missing", [][]byte{transport(0, 17, 1, put[:100]...), transport(2, 17, 3, put[200:]...), transport(4, 17, 4, noop...)}, "NOOP", "10.77.0.1 > 10.77.0.2 QP 0x11: a packet of a send is missing before number 3", nil},
		{"the first is missing", [][]byte{transport(4, 17, 1, noop...), transport(2, 17, 3, put[200:]...), transport(4, 17, 4, noop...)}, "NOOP NOOP", "a packet of a send is missing", nil},
		{"the last is missing", [][]byte{transport(0, 17, 1, put[:100]...), transport(4, 17, 3, noop...)}, "NOOP", "a send ends without its last packet", nil},
		{"over 4096 bytes", [][]byte{transport(0, 17, 1, put[:100]...), transport(1, 17, 2, make([]byte, 4000)...), transport(2, 17, 3, 1), transport(4, 17, 4, noop...)}, "NOOP", "a send has more than 4096 bytes", nil},
		{"garbage on a queue pair of ours", [][]byte{transport(4, 17, 1, noop...), transport(4, 17, 2, other...)}, "NOOP", "wrong magic", wire.ErrMagic},
		{"another protocol", [][]byte{transport(4, 17, 1, other...), transport(0, 17, 2, other...), transport(2, 17, 3, other...)}, "", "no o2iblnd message", decode.ErrNothing},
		{"another port", [][]byte{udp(active, passive, 4790, bth(4, 17, 1, noop))}, "", "no o2iblnd message", decode.ErrNothing},
		{"datagrams too short", [][]byte{udp(active, passive, 4791, make([]byte, 15)), udp(active, passive, 4791, append([]byte{5, 0x30}, make([]byte, 16)...)), transport(0x64, 1, 1, make([]byte, 100)...)}, "", "no o2iblnd message", decode.ErrNothing},
		{"cut by the capture", [][]byte{transport(4, 17, 1, noop...), transport(4, 17, 2, noop...)[:60], transport(4, 17, 3, noop...)}, "NOOP NOOP", "the capture cut", nil},
		{"set-up", [][]byte{cm(active, passive, 0x10, map[int][]byte{140 + 36: req}), cm(passive, active, 0x13, map[int][]byte{36: ack})}, "CONNREQ CONNACK", "", nil},
		{"refused", [][]byte{cm(active, passive, 0x10, map[int][]byte{140 + 36: req}), cm(passive, active, 0x12, map[int][]byte{10: consumer, 84: rej})}, "CONNREQ REJ", "", nil},
		{"refused by a unified protocol", [][]byte{cm(passive, active, 0x12, map[int][]byte{10: consumer, 84: cat([]byte{0x45, 0x72, 0x69, 0x63}, unhex(t, "00120300"), make([]byte, 16))})}, "REJ", "", nil},
		{"refused by the manager itself", [][]byte{cm(passive, active, 0x12, map[int][]byte{10: {0, 8}, 84: rej})}, "", "no o2iblnd message", decode.ErrNothing},
		{"set-up of another protocol, and ready to use", [][]byte{cm(active, passive, 0x10, nil), cm(passive, active, 0x13, nil), cm(active, passive, 0x14, nil)}, "", "no o2iblnd message", decode.ErrNothing},
		{"a queue pair number used again", [][]byte{
			transport(4, 17, 500, noop...),
			cm(passive, active, 0x13, map[int][]byte{12: {0, 0, 17}, 36: ack}), transport(4, 17, 3, noop...),
			cm(passive, active, 0x10, map[int][]byte{32: {0, 0, 17}, 140 + 36: req}), transport(4, 17, 2, noop...),
		}, "NOOP CONNACK NOOP CONNREQ NOOP", "", nil},
	} {
		t.Run(r.name, func(t *testing.T) {
			got, err := captured(t, file(r.packets...))
			if got != r.want {
				t.Errorf("got %q, want %q", got, r.want)
			}
			if (err == nil) != (r.err == "") || err != nil && !strings.Contains(err.Error(), r.err) {
				t.Errorf("error %v, want %q", err, r.err)
			}
			if r.cause != nil && !errors.Is(err, r.cause) {
				t.Errorf("error %v does not wrap %v", err, r.cause)
			}
		})
	}
}
