package pcap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/engine/wire/pcap"
)

var (
	be     = binary.BigEndian
	client = netip.MustParseAddrPort("10.77.0.1:1020")
	server = netip.MustParseAddrPort("10.77.0.2:987")
)

func tcpHeader(payload string) []byte {
	b := make([]byte, 24, 24+len(payload)) // with four bytes of options
	be.PutUint16(b, 1020)
	be.PutUint16(b[2:], 987)
	be.PutUint32(b[4:], 0xfffffff0)
	b[12], b[13] = 6<<4, pcap.PSH|pcap.ACK
	return append(b, payload...)
}

func udpHeader(payload string) []byte {
	b := make([]byte, 8, 8+len(payload))
	be.PutUint16(b, 1020)
	be.PutUint16(b[2:], 987)
	be.PutUint16(b[4:], uint16(8+len(payload)))
	return append(b, payload...)
}

func ip4(proto byte, body []byte) []byte {
	b := make([]byte, 24, 24+len(body)) // with four bytes of options
	b[0], b[9] = 0x46, proto
	be.PutUint16(b[2:], uint16(24+len(body)))
	copy(b[12:], client.Addr().AsSlice())
	copy(b[16:], server.Addr().AsSlice())
	return append(b, body...)
}

func ip6(next byte, body []byte) []byte {
	b := make([]byte, 40, 40+len(body))
	b[0], b[6] = 0x60, next
	be.PutUint16(b[4:], uint16(len(body)))
	b[23], b[39] = 1, 2
	return append(b, body...)
}

func ethernet(types []byte, body []byte) []byte {
	return append(append(make([]byte, 12), types...), body...)
}

func TestSegment(t *testing.T) {
	v4 := pcap.Segment{Proto: pcap.TCP, Src: client, Dst: server, Seq: 0xfffffff0, Flags: pcap.PSH | pcap.ACK, Payload: []byte("hello")}
	v6 := v4
	v6.Src, v6.Dst = netip.MustParseAddrPort("[::1]:1020"), netip.MustParseAddrPort("[::2]:987")
	udp := pcap.Segment{Proto: pcap.UDP, Src: client, Dst: server, Payload: []byte("hello")}
	tcp := tcpHeader("hello")
	cut := v4
	cut.Payload, cut.Missing = []byte("he"), 3
	for _, r := range []struct {
		name string
		link pcap.LinkType
		data []byte
		want pcap.Segment
	}{
		{"raw", pcap.LinkRaw, ip4(6, tcp), v4},
		{"raw, OpenBSD's number", 14, ip4(6, tcp), v4},
		{"IPv4", pcap.LinkIPv4, ip4(6, tcp), v4},
		{"IPv6", pcap.LinkIPv6, ip6(6, tcp), v6},
		{"IPv6 with extension headers", pcap.LinkRaw, ip6(0, append([]byte{60, 0, 0, 0, 0, 0, 0, 0, 6, 1, 14: 0, 23: 0}, tcp...)), v6},
		{"null", pcap.LinkNull, append([]byte{2, 0, 0, 0}, ip4(6, tcp)...), v4},
		{"loop", pcap.LinkLoop, append([]byte{0, 0, 0, 30}, ip6(6, tcp)...), v6},
		{"Ethernet, padded", pcap.LinkEthernet, append(ethernet([]byte{8, 0}, ip4(6, tcp)), 0, 0, 0, 0, 0, 0), v4},
		{"Ethernet, IPv6", pcap.LinkEthernet, ethernet([]byte{0x86, 0xdd}, ip6(6, tcp)), v6},
		{"VLAN", pcap.LinkEthernet, ethernet([]byte{0x81, 0, 0, 5, 8, 0}, ip4(6, tcp)), v4},
		{"VLAN in VLAN", pcap.LinkEthernet, ethernet([]byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0}, ip4(6, tcp)), v4},
		{"Linux cooked", pcap.LinkSLL, append(append(make([]byte, 14), 8, 0), ip4(6, tcp)...), v4},
		{"Linux cooked, version 2", pcap.LinkSLL2, append(append([]byte{8, 0}, make([]byte, 18)...), ip4(6, tcp)...), v4},
		{"UDP", pcap.LinkRaw, ip4(17, udpHeader("hello")), udp},
		{"UDP, length left out", pcap.LinkRaw, ip4(17, append([]byte{3, 252, 3, 219, 0, 0, 0, 0}, "hello"...)), udp},
		{"UDP, padded", pcap.LinkRaw, ip4(17, append(udpHeader("hello"), 0, 0)), udp},
		{"cut by the capture", pcap.LinkRaw, ip4(6, tcp)[:24+24+2], cut},
	} {
		t.Run(r.name, func(t *testing.T) {
			got, ok := pcap.Packet{Link: r.link, Data: r.data}.Segment()
			if !ok {
				t.Fatal("no segment")
			}
			if d := cmp.Diff(r.want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestSegmentRefuses(t *testing.T) {
	tcp := tcpHeader("hello")
	set := func(b []byte, off int, v ...byte) []byte { copy(b[off:], v); return b }
	for _, r := range []struct {
		name string
		link pcap.LinkType
		data []byte
	}{
		{"empty", pcap.LinkRaw, nil},
		{"unknown link", 147, ip4(6, tcp)},
		{"Ethernet header cut", pcap.LinkEthernet, make([]byte, 13)},
		{"ARP", pcap.LinkEthernet, ethernet([]byte{8, 6}, make([]byte, 28))},
		{"VLAN tag cut", pcap.LinkEthernet, ethernet([]byte{0x81, 0, 0}, nil)},
		{"null header cut", pcap.LinkNull, []byte{2, 0, 0}},
		{"SLL header cut", pcap.LinkSLL, make([]byte, 15)},
		{"SLL2 header cut", pcap.LinkSLL2, make([]byte, 19)},
		{"IP version 5", pcap.LinkRaw, set(ip4(6, tcp), 0, 0x56)},
		{"IPv4 header cut", pcap.LinkRaw, ip4(6, tcp)[:19]},
		{"IPv4 options cut", pcap.LinkRaw, set(ip4(6, tcp), 0, 0x4f)[:40]},
		{"IPv4 header of 16 bytes", pcap.LinkRaw, set(ip4(6, tcp), 0, 0x44)},
		{"IPv4 total below its header", pcap.LinkRaw, set(ip4(6, tcp), 2, 0, 20)},
		{"first fragment", pcap.LinkRaw, set(ip4(6, tcp), 6, 0x20, 0)},
		{"later fragment", pcap.LinkRaw, set(ip4(6, tcp), 6, 0, 1)},
		{"ICMP", pcap.LinkRaw, ip4(1, tcp)},
		{"TCP header cut", pcap.LinkRaw, ip4(6, tcp[:19])},
		{"TCP header of 16 bytes", pcap.LinkRaw, ip4(6, set(tcpHeader(""), 12, 4<<4))},
		{"TCP options over the end", pcap.LinkRaw, ip4(6, set(tcpHeader(""), 12, 15<<4))},
		{"UDP header cut", pcap.LinkRaw, ip4(17, make([]byte, 7))},
		{"UDP length 7", pcap.LinkRaw, ip4(17, set(udpHeader("hello"), 4, 0, 7))},
		{"UDP length over the packet", pcap.LinkRaw, ip4(17, set(udpHeader("hello"), 4, 0, 99))},
		{"IPv6 header cut", pcap.LinkRaw, ip6(6, nil)[:39]},
		{"IPv6 fragment", pcap.LinkRaw, ip6(44, append(make([]byte, 8), tcp...))},
		{"IPv6 extension cut", pcap.LinkRaw, ip6(0, []byte{6, 0, 0})},
		{"IPv6 extension over the end", pcap.LinkRaw, ip6(0, []byte{6, 9, 0, 0, 0, 0, 0, 0})},
	} {
		if s, ok := (pcap.Packet{Link: r.link, Data: r.data}).Segment(); ok {
			t.Errorf("%s: %+v", r.name, s)
		}
	}
}

// sum is the Internet checksum that a receiver takes: 0xffff when all is well.
func sum(parts ...[]byte) uint32 {
	s := uint32(0)
	for _, b := range parts {
		if len(b)%2 == 1 {
			b = append(b[:len(b):len(b)], 0)
		}
		for ; len(b) > 0; b = b[2:] {
			s += uint32(be.Uint16(b))
			s = s>>16 + s&0xffff
		}
	}
	return s
}

func TestWriter(t *testing.T) {
	var file bytes.Buffer
	w, err := pcap.NewWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_800_000_000, 5)
	w.Now = func() time.Time { at = at.Add(time.Microsecond); return at }
	long := bytes.Repeat([]byte("0123456789abcdef!"), 9000)
	sent := map[netip.AddrPort][]byte{}
	for _, s := range []struct {
		from, to netip.AddrPort
		data     []byte
	}{
		{client, server, []byte("request")}, {server, client, []byte("reply")}, {client, server, long}, {server, client, nil}, {server, client, []byte("!")},
	} {
		if err := w.Stream(s.from, s.to, s.data); err != nil {
			t.Fatal(err)
		}
		sent[s.from] = append(sent[s.from], s.data...)
	}

	packets, err := readAll(&file)
	if err != nil {
		t.Fatal(err)
	}
	next := map[netip.AddrPort]uint32{}
	got := map[netip.AddrPort][]byte{}
	for i, p := range packets {
		s, ok := p.Segment()
		if !ok || s.Proto != pcap.TCP {
			t.Fatalf("packet %d is no TCP: %+v", i, s)
		}
		if want := []uint8{pcap.SYN, pcap.SYN | pcap.ACK, pcap.ACK, pcap.PSH | pcap.ACK}[min(i, 3)]; s.Flags != want {
			t.Errorf("packet %d has flags %#x, want %#x", i, s.Flags, want)
		}
		if n, seen := next[s.Src]; seen && n != s.Seq {
			t.Errorf("packet %d has sequence number %d, want %d", i, s.Seq, n)
		}
		next[s.Src] = s.Seq + uint32(len(s.Payload))
		if s.Flags&pcap.SYN != 0 {
			next[s.Src]++
		}
		ip, tcp := p.Data[:20], p.Data[20:]
		if ack := be.Uint32(tcp[8:]); s.Flags&pcap.ACK != 0 && ack != next[s.Dst] {
			t.Errorf("packet %d acknowledges %d, want %d", i, ack, next[s.Dst])
		}
		pseudo := append(append([]byte{}, ip[12:20]...), 0, 6, byte(len(tcp)>>8), byte(len(tcp)))
		if a, b := sum(ip), sum(pseudo, tcp); a != 0xffff || b != 0xffff {
			t.Errorf("packet %d: checksums %#x, %#x", i, a, b)
		}
		if want := time.Unix(1_800_000_000, 5).Add(time.Duration(i+1) * time.Microsecond); !p.Time.Equal(want) {
			t.Errorf("packet %d at %v, want %v", i, p.Time, want)
		}
		got[s.Src] = append(got[s.Src], s.Payload...)
	}
	for from, want := range sent {
		if !bytes.Equal(got[from], want) {
			t.Errorf("%v sent %d bytes, the capture has %d", from, len(want), len(got[from]))
		}
	}
}

func TestWriterErrors(t *testing.T) {
	w, err := pcap.NewWriter(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Stream(netip.MustParseAddrPort("[::1]:1"), server, nil); err == nil {
		t.Error("IPv6 was written")
	}
	fault := errors.New("disk full")
	if _, err := pcap.NewWriter(full{fault}); !errors.Is(err, fault) {
		t.Errorf("header on a full disk: %v", err)
	}
}

type full struct{ err error }

func (f full) Write([]byte) (int, error) { return 0, f.err }

// FuzzReader: no file panics, and reading ends.
func FuzzReader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := pcap.NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		for n := 0; ; n++ {
			p, err := r.Next()
			if err != nil {
				return
			}
			if n > len(b) {
				t.Fatal("more packets than bytes")
			}
			if s, ok := p.Segment(); ok && (len(s.Payload) > len(p.Data) || s.Missing < 0) {
				t.Fatalf("%d bytes of payload in %d, %d missing", len(s.Payload), len(p.Data), s.Missing)
			}
		}
	})
}
