package pcap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"o2ibd/engine/wire/pcap"
)

// capture is one way to store packets in a file.
type capture struct {
	name string
	link pcap.LinkType
	want time.Time
	file func(link pcap.LinkType, packets ...[]byte) []byte
}

var stamp = time.Date(2026, 12, 1, 11, 0, 0, 123456789, time.UTC)

func classic(o binary.AppendByteOrder, magic uint32, frac uint32) func(pcap.LinkType, ...[]byte) []byte {
	return func(link pcap.LinkType, packets ...[]byte) []byte {
		b := o.AppendUint32(nil, magic)
		b = o.AppendUint16(b, 2)
		b = o.AppendUint16(b, 4)
		b = append(b, make([]byte, 8)...)
		b = o.AppendUint32(b, 65535)
		b = o.AppendUint32(b, uint32(link))
		for _, p := range packets {
			b = o.AppendUint32(b, uint32(stamp.Unix()))
			b = o.AppendUint32(b, frac)
			b = o.AppendUint32(b, uint32(len(p)))
			b = o.AppendUint32(b, uint32(len(p)))
			b = append(b, p...)
		}
		return b
	}
}

func ngBlock(o binary.AppendByteOrder, typ uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	b := o.AppendUint32(nil, typ)
	b = o.AppendUint32(b, uint32(12+len(body)))
	b = append(b, body...)
	return o.AppendUint32(b, uint32(12+len(body)))
}

func ngSection(o binary.AppendByteOrder) []byte {
	b := o.AppendUint32(nil, 0x1a2b3c4d)
	b = o.AppendUint16(b, 1)
	b = o.AppendUint16(b, 0)
	return ngBlock(o, 0x0a0d0d0a, append(b, bytes.Repeat([]byte{0xff}, 8)...))
}

func ngInterface(o binary.AppendByteOrder, link pcap.LinkType, snaplen uint32, options ...byte) []byte {
	b := o.AppendUint16(nil, uint16(link))
	b = o.AppendUint16(b, 0)
	return ngBlock(o, 1, append(o.AppendUint32(b, snaplen), options...))
}

func ngPacket(o binary.AppendByteOrder, iface uint32, ts uint64, p []byte) []byte {
	b := o.AppendUint32(nil, iface)
	b = o.AppendUint32(b, uint32(ts>>32))
	b = o.AppendUint32(b, uint32(ts))
	b = o.AppendUint32(b, uint32(len(p)))
	b = o.AppendUint32(b, uint32(len(p)))
	return ngBlock(o, 6, append(b, p...))
}

func ng(o binary.AppendByteOrder, ts uint64, options ...byte) func(pcap.LinkType, ...[]byte) []byte {
	return func(link pcap.LinkType, packets ...[]byte) []byte {
		b := append(ngSection(o), ngInterface(o, link, 0, options...)...)
		b = append(b, ngBlock(o, 4, []byte("a block of names, which is skipped"))...)
		for _, p := range packets {
			b = append(b, ngPacket(o, 0, ts, p)...)
		}
		return b
	}
}

func ngSimple(link pcap.LinkType, packets ...[]byte) []byte {
	o := binary.LittleEndian
	b := append(ngSection(o), ngInterface(o, link, 60)...)
	for _, p := range packets {
		body := o.AppendUint32(nil, uint32(len(p)))
		b = append(b, ngBlock(o, 3, append(body, p[:min(len(p), 60)]...))...)
	}
	return b
}

func captures() []capture {
	const e = pcap.LinkEthernet
	micro := stamp.Truncate(time.Microsecond)
	return []capture{
		{"pcap, little-endian, µs", e, micro, classic(binary.LittleEndian, 0xa1b2c3d4, 123456)},
		{"pcap, big-endian, µs", e, micro, classic(binary.BigEndian, 0xa1b2c3d4, 123456)},
		{"pcap, little-endian, ns", e, stamp, classic(binary.LittleEndian, 0xa1b23c4d, 123456789)},
		{"pcap, big-endian, ns", e, stamp, classic(binary.BigEndian, 0xa1b23c4d, 123456789)},
		{"pcapng, little-endian", e, micro, ng(binary.LittleEndian, uint64(stamp.UnixMicro()))},
		{"pcapng, big-endian", e, micro, ng(binary.BigEndian, uint64(stamp.UnixMicro()))},
		{"pcapng, ns", e, stamp, ng(binary.LittleEndian, uint64(stamp.UnixNano()), 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0)},
		{
			"pcapng, 2^-1 s and an hour off", e, stamp.Truncate(time.Second),
			ng(binary.LittleEndian, uint64(stamp.Unix()-3600)*2, 9, 0, 1, 0, 0x81, 0, 0, 0, 14, 0, 8, 0, 0x10, 0x0e, 0, 0, 0, 0, 0, 0),
		},
		{"pcapng, simple packets", e, time.Time{}, ngSimple},
	}
}

func readAll(r io.Reader) ([]pcap.Packet, error) {
	p, err := pcap.NewReader(r)
	if err != nil {
		return nil, err
	}
	var all []pcap.Packet
	for {
		pkt, err := p.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		pkt.Data = slices.Clone(pkt.Data)
		all = append(all, pkt)
	}
}

func TestReader(t *testing.T) {
	packets := [][]byte{[]byte("first"), {}, bytes.Repeat([]byte{7}, 60), []byte("last one")}
	for _, c := range captures() {
		t.Run(c.name, func(t *testing.T) {
			file := c.file(c.link, packets...)
			if !pcap.IsCapture(file) {
				t.Error("not recognised")
			}
			all, err := readAll(bytes.NewReader(file))
			if err != nil || len(all) != len(packets) {
				t.Fatalf("%d packets, %v", len(all), err)
			}
			for i, p := range all {
				if !bytes.Equal(p.Data, packets[i]) || p.Len != len(packets[i]) || p.Link != c.link || !p.Time.Equal(c.want) {
					t.Errorf("packet %d: %+v, want %q at %v", i, p, packets[i], c.want)
				}
			}
		})
	}
}

func TestSimplePacketIsCutToSnaplen(t *testing.T) {
	all, err := readAll(bytes.NewReader(ngSimple(pcap.LinkRaw, make([]byte, 100))))
	if err != nil || len(all) != 1 || len(all[0].Data) != 60 || all[0].Len != 100 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestSectionsHaveInterfacesOfTheirOwn(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	file := slices.Concat(
		ngSection(le), ngInterface(le, pcap.LinkRaw, 0), ngInterface(le, pcap.LinkSLL, 0), ngPacket(le, 1, 0, []byte("one")),
		ngSection(be), ngInterface(be, pcap.LinkNull, 0), ngPacket(be, 0, 0, []byte("two")), ngPacket(be, 1, 0, []byte("three")))
	all, err := readAll(bytes.NewReader(file))
	if !errors.Is(err, pcap.ErrCorrupt) {
		t.Errorf("interface 1 of the second section: %v, want a corrupt capture", err)
	}
	if len(all) != 2 || all[0].Link != pcap.LinkSLL || all[1].Link != pcap.LinkNull {
		t.Errorf("%+v", all)
	}
}

func TestBadCaptures(t *testing.T) {
	le := binary.LittleEndian
	good := classic(le, 0xa1b2c3d4, 0)(pcap.LinkRaw, []byte("packet"))
	patch := func(b []byte, off int, v uint32) []byte {
		b = slices.Clone(b)
		le.PutUint32(b[off:], v)
		return b
	}
	idb := slices.Concat(ngSection(le), ngInterface(le, pcap.LinkRaw, 0))
	for _, r := range []struct {
		name string
		file []byte
		want error
	}{
		{"empty", nil, pcap.ErrNotCapture},
		{"three bytes", []byte{0xd4, 0xc3, 0xb2}, pcap.ErrNotCapture},
		{"hex", []byte("911be90b1200c000"), pcap.ErrNotCapture},
		{"modified pcap", []byte{0x34, 0xcd, 0xb2, 0xa1, 0, 0, 0, 0}, pcap.ErrNotCapture},
		{"header cut", good[:23], pcap.ErrCorrupt},
		{"version 3", patch(good, 4, 3), pcap.ErrCorrupt},
		{"record header cut", good[:30], pcap.ErrCorrupt},
		{"packet missing", good[:40], pcap.ErrCorrupt},
		{"packet cut", good[:43], pcap.ErrCorrupt},
		{"packet of 4 GB", patch(good, 32, 1<<32-1), pcap.ErrCorrupt},
		{"packet of 4 GB on the wire", patch(good, 36, 1<<32-1), pcap.ErrCorrupt},
		{"section header cut", ngSection(le)[:11], pcap.ErrCorrupt},
		{"section without byte order", patch(ngSection(le), 8, 0), pcap.ErrCorrupt},
		{"section too short", ngBlock(le, 0x0a0d0d0a, ngSection(le)[8:16]), pcap.ErrCorrupt},
		{"pcapng version 2", patch(ngSection(le), 12, 2), pcap.ErrCorrupt},
		{"block header cut", append(ngSection(le), 1, 0, 0, 0, 20), pcap.ErrCorrupt},
		{"block length 8", append(ngSection(le), 1, 0, 0, 0, 8, 0, 0, 0), pcap.ErrCorrupt},
		{"block length odd", append(ngSection(le), 1, 0, 0, 0, 21, 0, 0, 0), pcap.ErrCorrupt},
		{"block of 4 GB", append(ngSection(le), 1, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff), pcap.ErrCorrupt},
		{"block cut", idb[:len(idb)-1], pcap.ErrCorrupt},
		{"lengths differ", patch(idb, len(idb)-4, 24), pcap.ErrCorrupt},
		{"interface too short", slices.Concat(ngSection(le), ngBlock(le, 1, []byte{1, 2, 3, 4})), pcap.ErrCorrupt},
		{"option over the end", slices.Concat(ngSection(le), ngInterface(le, 1, 0, 9, 0, 99, 0)), pcap.ErrCorrupt},
		{"option as long as what is left with its header", slices.Concat(ngSection(le), ngInterface(le, 1, 0, 9, 0, 4, 0)), pcap.ErrCorrupt},
		{"10^-20 s", slices.Concat(ngSection(le), ngInterface(le, 1, 0, 9, 0, 1, 0, 20, 0, 0, 0)), pcap.ErrCorrupt},
		{"2^-64 s", slices.Concat(ngSection(le), ngInterface(le, 1, 0, 9, 0, 1, 0, 0xc0, 0, 0, 0)), pcap.ErrCorrupt},
		{"packet without interface", slices.Concat(ngSection(le), ngPacket(le, 0, 0, nil)), pcap.ErrCorrupt},
		{"simple packet without interface", slices.Concat(ngSection(le), ngBlock(le, 3, make([]byte, 4))), pcap.ErrCorrupt},
		{"simple packet over the end", slices.Concat(idb, ngBlock(le, 3, []byte{5, 0, 0, 0, 1, 2, 3, 4})), pcap.ErrCorrupt},
		{"packet block too short", slices.Concat(idb, ngBlock(le, 6, make([]byte, 16))), pcap.ErrCorrupt},
		{"packet over the end of its block", patch(slices.Concat(idb, ngPacket(le, 0, 0, []byte("four"))), len(idb)+20, 5), pcap.ErrCorrupt},
	} {
		t.Run(r.name, func(t *testing.T) {
			if _, err := readAll(bytes.NewReader(r.file)); !errors.Is(err, r.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line of %v", err, r.want)
			}
		})
	}
}

func TestReaderPassesErrorsOn(t *testing.T) {
	fault := errors.New("disk gone")
	good := classic(binary.LittleEndian, 0xa1b2c3d4, 0)(pcap.LinkRaw, []byte("packet"))
	for _, n := range []int{0, 10, 30, 42} {
		r := io.MultiReader(bytes.NewReader(good[:n]), broken{fault})
		if _, err := readAll(r); !errors.Is(err, fault) {
			t.Errorf("after %d bytes: %v, want the reader's own error", n, err)
		}
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
