package decode_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"o2ibd/engine/wire"
	"o2ibd/engine/wire/decode"
	"o2ibd/engine/wire/pcap"
)

// file puts IP packets into a classic capture.
func file(packets ...[]byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0)
	b = le.AppendUint32(b, uint32(pcap.LinkRaw))
	for _, p := range packets {
		b = append(b, make([]byte, 8)...)
		b = le.AppendUint32(b, uint32(len(p)))
		b = le.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// pieces cuts what was said into small parts, so that every TCP segment has few bytes.
func pieces(all []said, size int) []said {
	var cut []said
	for _, s := range all {
		for part := range slices.Chunk(s.data, size) {
			cut = append(cut, said{s.from, s.to, part})
		}
	}
	return cut
}

// captured runs a capture and gives the types of what came out.
func captured(t testing.TB, b []byte) (string, error) {
	t.Helper()
	return types(string(b))
}

const siwTypes = "CONNREQ CONNACK IMMEDIATE IMMEDIATE IMMEDIATE IMMEDIATE IMMEDIATE IMMEDIATE IMMEDIATE IMMEDIATE"

func TestReassembly(t *testing.T) {
	want := run(t, tcpCapture(t, siw(t)...), "json")
	small := packets(t, tcpCapture(t, pieces(siw(t), 100)...))
	for _, r := range []struct {
		name  string
		order func(p [][]byte) [][]byte
	}{
		{"one segment after the other", func(p [][]byte) [][]byte { return p }},
		{"every segment twice", func(p [][]byte) [][]byte {
			var twice [][]byte
			for _, s := range p {
				twice = append(twice, s, s)
			}
			return twice
		}},
		{"sent again much later", func(p [][]byte) [][]byte { return append(p, p[3:]...) }},
		{"neighbours swapped", func(p [][]byte) [][]byte {
			for i := 5; i+1 < len(p); i += 2 { // behind both start-up frames' segments, so that the answers keep their order
				p[i], p[i+1] = p[i+1], p[i]
			}
			return p
		}},
		{"the hand-shake sent again", func(p [][]byte) [][]byte { return append(slices.Clone(p[:2]), p...) }},
	} {
		t.Run(r.name, func(t *testing.T) {
			got := run(t, file(r.order(slices.Clone(small))...), "json")
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
	for _, size := range []int{1, 7, 79, 81, 1448} {
		if got := run(t, tcpCapture(t, pieces(siw(t), size)...), "json"); got != want {
			t.Errorf("in segments of %d bytes: got\n%s\nwant\n%s", size, got, want)
		}
	}
}

func TestOverlappingSegments(t *testing.T) {
	a := siw(t)[0].data
	p := packets(t, tcpCapture(t, said{active, passive, a[:50]}, said{active, passive, a[50:]}))
	again := slices.Clone(p[3]) // the first data, and beyond it
	again = append(again, a[50:60]...)
	binary.BigEndian.PutUint16(again[2:], uint16(len(again)))
	if got, err := captured(t, file(p[0], p[1], p[2], p[3], again, p[4])); got != "CONNREQ" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestLostSegment(t *testing.T) {
	p := packets(t, tcpCapture(t, pieces(siw(t), 100)...))
	got, err := captured(t, file(slices.Delete(p, 8, 9)...)) // within the active side's messages
	if err == nil || !strings.Contains(err.Error(), "10.77.0.1:1020 > 10.77.0.2:987: 100 bytes of the stream are not in the capture") {
		t.Errorf("error %v", err)
	}
	if !strings.HasPrefix(got, "CONNREQ CONNACK IMMEDIATE") {
		t.Errorf("got %q", got)
	}
}

func TestStreamJoinedInTheMiddle(t *testing.T) {
	s := siw(t)[2].data
	frame := 2 + int(binary.BigEndian.Uint16(s)) + 4
	inTwo := packets(t, tcpCapture(t, said{active, passive, s[:frame]}, said{active, passive, s[frame:]}))
	if got, err := captured(t, file(inTwo[4:]...)); got != "IMMEDIATE IMMEDIATE IMMEDIATE" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	cut := packets(t, tcpCapture(t, said{active, passive, s[:30]}, said{active, passive, s[30:frame]}, said{active, passive, s[frame:]}))
	if got, err := captured(t, file(cut[4:]...)); got != "IMMEDIATE IMMEDIATE IMMEDIATE" || err != nil {
		t.Errorf("joined within a frame: %q, %v", got, err)
	}
}

func TestAddressesUsedAgain(t *testing.T) {
	p := packets(t, tcpCapture(t, siw(t)...))
	again := packets(t, tcpCapture(t, siw(t)...))
	for _, q := range again { // other sequence numbers: a new connection
		at := q[24:]
		binary.BigEndian.PutUint32(at, binary.BigEndian.Uint32(at)+77777)
	}
	if got, err := captured(t, file(append(p, again...)...)); got != siwTypes+" "+siwTypes || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// startUp is an MPA start-up frame.
func startUp(key string, flags, rev byte, private []byte) []byte {
	b := append([]byte("MPA ID "+key+" Frame"), flags, rev)
	b = binary.BigEndian.AppendUint16(b, uint16(len(private)))
	return append(b, private...)
}

// fpdu is an untagged segment of a message in its frame.
func fpdu(last bool, op byte, queue, msn, offset uint32, payload []byte) []byte {
	ctrl := byte(1)
	if last {
		ctrl |= 0x40
	}
	b := binary.BigEndian.AppendUint16(nil, uint16(18+len(payload)))
	b = append(b, ctrl, 0x40|op, 0, 0, 0, 0)
	for _, v := range []uint32{queue, msn, offset} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return seal(append(b, payload...))
}

// seal pads a frame and adds its CRC.
func seal(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func write(n int) []byte { // an RDMA write
	b := binary.BigEndian.AppendUint16(nil, uint16(14+n))
	return seal(append(append(b, 0xc1, 0x40), make([]byte, 12+n)...))
}

func flip(b []byte) []byte {
	b = slices.Clone(b)
	b[len(b)-1] ^= 1
	return b
}

func TestStreams(t *testing.T) {
	req, noop, rej := unhex(t, vectorText(t, "kernel-CONNREQ-1")), unhex(t, noopHex), unhex(t, rejHex)
	ack := unhex(t, vectorText(t, "kernel-CONNACK-1"))
	words := func(b []byte) []byte { return append([]byte{0, 0, 0, 0}, b...) }
	big := make([]byte, 3000)
	send := func(msn uint32) []byte { return fpdu(true, 3, 0, msn, 0, noop) }
	for _, r := range []struct {
		name            string
		active, passive [][]byte // what each side says, by turns
		want            string
		err             string // part of the error, if there is one
		cause           error
	}{
		{"revision 1", [][]byte{startUp("Req", 0, 1, req)}, [][]byte{startUp("Rep", 0, 1, ack)}, "CONNREQ CONNACK", "", nil},
		{"revision 2, not enhanced", [][]byte{startUp("Req", 0, 2, req)}, nil, "CONNREQ", "", nil},
		{"enhanced", [][]byte{startUp("Req", 0x10, 2, words(req))}, nil, "CONNREQ", "", nil},
		{"rejected", [][]byte{startUp("Req", 0x10, 2, words(req))}, [][]byte{startUp("Rep", 0x30, 2, words(rej))}, "CONNREQ REJ", "", nil},
		{"rejected, revision 1", nil, [][]byte{startUp("Rep", 0x20, 1, rej)}, "REJ", "", nil},
		{"rejected without data", [][]byte{startUp("Req", 0, 1, req)}, [][]byte{startUp("Rep", 0x20, 1, nil)}, "CONNREQ", "", nil},
		{"rejected by a unified protocol", nil, [][]byte{startUp("Rep", 0x20, 1, append([]byte{0x63, 0x69, 0x72, 0x45}, rej[4:]...))}, "REJ", "", nil},
		{"CRC", [][]byte{startUp("Req", 0x40, 1, req), send(1)}, [][]byte{startUp("Rep", 0x40, 1, ack), send(1)}, "CONNREQ CONNACK NOOP NOOP", "", nil},
		{"CRC asked for by the responder, wrong from the initiator", [][]byte{startUp("Req", 0, 1, req), flip(send(1)), send(2)}, [][]byte{startUp("Rep", 0x40, 1, ack)}, "CONNREQ CONNACK NOOP", "FPDU with CRC", nil},
		{"CRC not asked for and wrong", [][]byte{startUp("Req", 0, 1, req), flip(send(1))}, [][]byte{startUp("Rep", 0, 1, ack)}, "CONNREQ CONNACK NOOP", "", nil},
		{"in three segments", [][]byte{startUp("Req", 0, 1, req), fpdu(false, 3, 0, 1, 0, noop[:20]), write(5), fpdu(false, 3, 0, 1, 20, noop[20:23]), fpdu(true, 3, 0, 1, 23, noop[23:])}, nil, "CONNREQ NOOP", "", nil},
		{"send with invalidate and with event", [][]byte{startUp("Req", 0, 1, req), fpdu(true, 4, 0, 1, 0, noop), fpdu(true, 5, 0, 2, 0, noop), fpdu(true, 6, 0, 3, 0, noop)}, nil, "CONNREQ NOOP NOOP NOOP", "", nil},
		{"ready-to-receive: write, empty send", [][]byte{startUp("Req", 0, 1, req), write(0), fpdu(true, 3, 0, 1, 0, nil), send(2)}, nil, "CONNREQ NOOP", "", nil},
		{"read request and terminate", [][]byte{startUp("Req", 0, 1, req), fpdu(true, 1, 1, 1, 0, make([]byte, 28)), fpdu(true, 7, 2, 1, 0, make([]byte, 4))}, nil, "CONNREQ", "", nil},
		{"a segment is missing", [][]byte{startUp("Req", 0, 1, req), fpdu(false, 3, 0, 1, 0, noop[:20]), fpdu(true, 3, 0, 1, 24, noop[24:]), send(2)}, nil, "CONNREQ NOOP", "segment of message 1 at offset 24, message 1 has 20 bytes so far", nil},
		{"no last segment", [][]byte{startUp("Req", 0, 1, req), fpdu(false, 3, 0, 1, 0, noop[:20]), send(2)}, nil, "CONNREQ NOOP", "message 1 ends without its last segment", nil},
		{"no first segment", [][]byte{startUp("Req", 0, 1, req), fpdu(true, 3, 0, 1, 20, noop[20:]), send(2)}, nil, "CONNREQ NOOP", "segment of message 1 at offset 20", nil},
		{"message over 4096 bytes", [][]byte{startUp("Req", 0, 1, req), fpdu(false, 3, 0, 1, 0, big), fpdu(true, 3, 0, 1, 3000, big), send(2)}, nil, "CONNREQ NOOP", "message 1 has more than 4096 bytes", nil},
		{"message of garbage", [][]byte{startUp("Req", 0, 1, req), fpdu(true, 3, 0, 1, 0, big), send(2)}, nil, "CONNREQ NOOP", "wrong magic", wire.ErrMagic},
		{"FPDU too short", [][]byte{startUp("Req", 0, 1, req), {0, 13, 0, 0}, send(1)}, nil, "CONNREQ NOOP", "FPDU of 13 bytes, at least 14 are needed", nil},
		{"untagged header cut", [][]byte{startUp("Req", 0, 1, req), seal([]byte{0, 14, 0x41, 0x43, 13 + 2: 0}), send(1)}, nil, "CONNREQ NOOP", "untagged segment of 14 bytes", nil},
		{"DDP version 2", [][]byte{startUp("Req", 0, 1, req), seal([]byte{0, 18, 0x42, 0x43, 17 + 2: 0}), send(1)}, nil, "CONNREQ NOOP", "DDP version 2, only 1 is known", nil},
		{"markers", [][]byte{startUp("Req", 0, 1, req), send(1)}, [][]byte{startUp("Rep", 0x80, 1, ack), send(1)}, "CONNREQ CONNACK NOOP", "10.77.0.1:1020 > 10.77.0.2:987: the stream has MPA markers", nil},
		{"private data over 512 bytes", [][]byte{startUp("Req", 0, 1, make([]byte, 513)), send(1)}, nil, "", "MPA private data of 513 bytes", nil},
		{"request that does not parse", [][]byte{startUp("Req", 0, 1, req[:55]), send(1)}, nil, "NOOP", "wrong length field", wire.ErrNob},
		{"reject that does not parse", nil, [][]byte{startUp("Rep", 0x20, 1, rej[:6])}, "", "reject: too short", wire.ErrShort},
		{"ends within a frame", [][]byte{startUp("Req", 0, 1, req), send(1)[:40]}, nil, "CONNREQ", "the stream ends 40 bytes into a frame", nil},
		{"ends within start-up", [][]byte{startUp("Req", 0, 1, req)[:40]}, nil, "", "the stream ends 40 bytes into a frame", nil},
		{"another protocol over iWARP", [][]byte{startUp("Req", 0, 1, []byte("iSER hello")), send(1)}, [][]byte{startUp("Rep", 0, 1, nil), send(1)}, "", "no o2iblnd message", decode.ErrNothing},
		{"another protocol over TCP", [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}, [][]byte{[]byte("HTTP/1.1 200 OK\r\n")}, "", "no o2iblnd message", decode.ErrNothing},
	} {
		t.Run(r.name, func(t *testing.T) {
			var all []said
			for i := range max(len(r.active), len(r.passive)) {
				if i < len(r.active) {
					all = append(all, said{active, passive, r.active[i]})
				}
				if i < len(r.passive) {
					all = append(all, said{passive, active, r.passive[i]})
				}
			}
			got, err := captured(t, tcpCapture(t, all...))
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

func TestCorruptCaptureKeepsWhatCameBefore(t *testing.T) {
	capture := tcpCapture(t, siw(t)...)
	got, err := captured(t, capture[:len(capture)-1])
	if !errors.Is(err, pcap.ErrCorrupt) || !strings.Contains(err.Error(), "frame 7: corrupt capture") {
		t.Errorf("error %v", err)
	}
	if want := strings.TrimSuffix(siwTypes, strings.Repeat(" IMMEDIATE", 4)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := captured(t, capture[:20]); !errors.Is(err, pcap.ErrCorrupt) {
		t.Errorf("file header cut: %v", err)
	}
}

// from is a node that is one of many.
func from(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1000)
}

func TestManyStreams(t *testing.T) {
	req := startUp("Req", 0, 1, unhex(t, vectorText(t, "kernel-CONNREQ-1")))
	var all []said
	for i := range 300 {
		all = append(all, said{from(i), passive, req[:50]})
	}
	for i := range all {
		all = append(all, said{all[i].from, passive, req[50:]})
	}
	var out bytes.Buffer
	if err := decode.Run(bytes.NewReader(tcpCapture(t, all...)), &out, "table"); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\nCONNREQ"); n != 300 {
		t.Errorf("%d messages, want 300", n)
	}
}

// TestMoreStreamsThanAreFollowed: other protocols' streams make way for ours; too many of ours are an error,
// and those that are followed go on.
func TestMoreStreamsThanAreFollowed(t *testing.T) {
	req := startUp("Req", 0, 1, unhex(t, vectorText(t, "kernel-CONNREQ-1")))
	const limit = 1 << 16
	for _, r := range []struct {
		name string
		data []byte
		want string
		err  string
	}{
		{"another protocol's", []byte("HELLO"), "CONNREQ CONNREQ", ""},
		{"ours", req[:20], "CONNREQ", "more than 49152 streams and queue pairs at once: further ones are left out"},
	} {
		t.Run(r.name, func(t *testing.T) {
			all := []said{{active, passive, req[:50]}}
			for i := range limit {
				all = append(all, said{from(i), passive, r.data})
			}
			all = append(all, said{active, passive, req[50:]}, said{from(limit), passive, req})
			got, err := captured(t, tcpCapture(t, all...))
			if got != r.want {
				t.Errorf("got %q, want %q", got, r.want)
			}
			if (err == nil) != (r.err == "") || err != nil && !strings.Contains(err.Error(), r.err) {
				t.Errorf("error %v, want %q", err, r.err)
			}
		})
	}
}

// TestGapThatNeverFills: a stream goes on when more waits for a lost segment than memory should hold.
func TestGapThatNeverFills(t *testing.T) {
	req, noop := startUp("Req", 0, 1, unhex(t, vectorText(t, "kernel-CONNREQ-1"))), unhex(t, noopHex)
	for name, size := range map[string]int{"in large segments": 60000, "in small ones": 10} {
		t.Run(name, func(t *testing.T) {
			all := []said{{active, passive, req}, {active, passive, []byte("lost")}}
			for range 5000 * 10 / min(size, 1000) {
				all = append(all, said{active, passive, make([]byte, size)})
			}
			all = append(all, said{active, passive, fpdu(true, 3, 0, 1, 0, noop)}, said{passive, active, startUp("Rep", 0, 1, nil)})
			p := packets(t, tcpCapture(t, all...))
			got, err := captured(t, file(slices.Delete(p, 4, 5)...))
			if got != "CONNREQ NOOP" || err == nil || !strings.Contains(err.Error(), "4 bytes of the stream are not in the capture") {
				t.Fatalf("got %q, %v", got, err)
			}
		})
	}
}

// TestBoundOfAGap: more than a mebibyte does not wait for a lost segment, in few segments neither, so what
// follows is shown in its turn and not at the end of the capture.
func TestBoundOfAGap(t *testing.T) {
	req, ack := unhex(t, vectorText(t, "kernel-CONNREQ-1")), unhex(t, vectorText(t, "kernel-CONNACK-1"))
	for _, r := range []struct {
		name string
		size int
		want string
	}{
		{"less than a mebibyte", 17 * 60000, "CONNREQ CONNACK NOOP"},
		{"more than one", 18 * 60000, "CONNREQ NOOP CONNACK"},
	} {
		t.Run(r.name, func(t *testing.T) {
			all := []said{{active, passive, startUp("Req", 0, 1, req)}, {active, passive, []byte("lost")}}
			for range r.size / 60000 {
				all = append(all, said{active, passive, make([]byte, 60000)})
			}
			all = append(all, said{active, passive, fpdu(true, 3, 0, 1, 0, unhex(t, noopHex))}, said{passive, active, startUp("Rep", 0, 1, ack)})
			got, err := captured(t, file(slices.Delete(packets(t, tcpCapture(t, all...)), 4, 5)...))
			if got != r.want || err == nil {
				t.Fatalf("got %q, wanted %q; %v", got, r.want, err)
			}
		})
	}
}

// TestCRCIsOfAConnection: it is in use when one side asks for it, and not on the next connection between
// the same addresses where nobody does.
func TestCRCIsOfAConnection(t *testing.T) {
	req, ack := unhex(t, vectorText(t, "kernel-CONNREQ-1")), unhex(t, vectorText(t, "kernel-CONNACK-1"))
	spoilt := flip(fpdu(true, 3, 0, 1, 0, unhex(t, noopHex)))
	connection := func(seq uint32, reqFlags, repFlags byte) [][]byte {
		p := packets(t, tcpCapture(t, said{active, passive, startUp("Req", reqFlags, 1, req)}, said{passive, active, startUp("Rep", repFlags, 1, ack)}, said{active, passive, spoilt}))
		for _, q := range p {
			binary.BigEndian.PutUint32(q[24:], binary.BigEndian.Uint32(q[24:])+seq)
		}
		return p
	}
	for _, flags := range [][2]byte{{0x40, 0}, {0, 0x40}, {0x40, 0x40}} {
		got, err := captured(t, file(connection(0, flags[0], flags[1])...))
		if got != "CONNREQ CONNACK" || err == nil || !strings.Contains(err.Error(), "FPDU with CRC") {
			t.Errorf("asked for by %v: got %q, %v", flags, got, err)
		}
	}
	if got, err := captured(t, file(connection(0, 0, 0)...)); got != "CONNREQ CONNACK NOOP" || err != nil {
		t.Errorf("asked for by nobody: got %q, %v", got, err)
	}
	again := slices.Concat(connection(0, 0x40, 0x40)[:5], connection(77777, 0, 0))
	if got, err := captured(t, file(again...)); got != "CONNREQ CONNACK CONNREQ CONNACK NOOP" || err != nil {
		t.Errorf("asked for by nobody where it was in use before: got %q, %v", got, err)
	}
}
