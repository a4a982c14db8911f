package negotiate_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"o2ibd/engine/o2iblnd/negotiate"
	"o2ibd/engine/wire"
)

// question is a connection request as the probe asked it of a kernel node (testdata/kernel-answers.txt).
type question struct {
	magic    uint32
	version  uint16
	typ      byte
	src, dst wire.NID
	dstStamp uint64
	depth    uint16
	frags    uint16
	size     uint32
	cksum    uint32
	order    binary.ByteOrder
	cut      int
}

const askerStamp = 0x0005335ed0c3a000

func (q *question) bytes() []byte {
	b := make([]byte, wire.ConnMsgSize)
	q.order.PutUint32(b, q.magic)
	q.order.PutUint16(b[4:], q.version)
	b[6] = q.typ
	q.order.PutUint32(b[8:], wire.ConnMsgSize)
	q.order.PutUint32(b[12:], q.cksum)
	q.order.PutUint64(b[16:], uint64(q.src))
	q.order.PutUint64(b[24:], askerStamp)
	q.order.PutUint64(b[32:], uint64(q.dst))
	q.order.PutUint64(b[40:], q.dstStamp)
	q.order.PutUint16(b[48:], q.depth)
	q.order.PutUint16(b[50:], q.frags)
	q.order.PutUint32(b[52:], q.size)
	if q.cut > 0 {
		b = b[:q.cut]
	}
	return b
}

var questions = map[string]func(*question){
	"plain v2 depth 8 frags 256, unprivileged source port": func(*question) {},
	"depth 16":                       func(q *question) { q.depth = 16 },
	"depth 4":                        func(q *question) { q.depth = 4 },
	"depth 1":                        func(q *question) { q.depth = 1 },
	"frags 257":                      func(q *question) { q.frags = 257 },
	"frags 258":                      func(q *question) { q.frags = 258 },
	"frags 32":                       func(q *question) { q.frags = 32 },
	"frags 1":                        func(q *question) { q.frags = 1 },
	"depth 16 and frags 300":         func(q *question) { q.depth, q.frags = 16, 300 },
	"max_msg_size 8192":              func(q *question) { q.size = 8192 },
	"max_msg_size 2048":              func(q *question) { q.size = 2048 },
	"dststamp 12345":                 func(q *question) { q.dstStamp = 12345 },
	"dstnid of another host":         func(q *question) { q.dst = other },
	"dstnid right address on o2ib9":  func(q *question) { q.dst |= 9 << 32 },
	"srcnid all ones":                func(q *question) { q.src = wire.AnyNID },
	"srcnid on another net o2ib9":    func(q *question) { q.src |= 9 << 32 },
	"version 0x13":                   func(q *question) { q.version = 0x13 },
	"version 0x10":                   func(q *question) { q.version = 0x10 },
	"version 0x11 depth 8 frags 256": func(q *question) { q.version = 0x11 },
	"version 0x11 depth 16":          func(q *question) { q.version, q.depth = 0x11, 16 },
	"version 0x11 frags 32":          func(q *question) { q.version, q.frags = 0x11, 32 },
	"magic LNET_PROTO 0x45726963":    func(q *question) { q.magic = wire.LNetProtoMagic },
	"magic 0":                        func(q *question) { q.magic = 0 },
	"type CONNACK":                   func(q *question) { q.typ = 0xc1 },
	"type NOOP":                      func(q *question) { q.typ = 0xd0 },
	"wrong checksum":                 func(q *question) { q.cksum = 0xdeadbeef },
	"big-endian sender":              func(q *question) { q.order = binary.BigEndian },
	"private data cut to 4 bytes":    func(q *question) { q.cut = 4 },
	"private data cut to 6 bytes":    func(q *question) { q.cut = 6 },
	"private data cut to 8 bytes":    func(q *question) { q.cut = 8 },
	"private data cut to 20 bytes":   func(q *question) { q.cut = 20 },
	"private data cut to 48 bytes":   func(q *question) { q.cut = 48 },
	"private data cut to 52 bytes":   func(q *question) { q.cut = 52 },
}

// describeReject is the probe's line about the 24 bytes of a reject.
func describeReject(t *testing.T, r wire.Reject) string {
	t.Helper()
	var b [wire.RejectSize]byte
	r.Encode(b[:])
	le := binary.LittleEndian
	if le.Uint32(b[:]) != wire.Magic {
		t.Errorf("the reject has the magic %#x", le.Uint32(b[:]))
	}
	return fmt.Sprintf("REJECT why=%d version=%#x incarnation=%v depth=%d frags=%d msg=%d",
		b[6], le.Uint16(b[4:]), le.Uint64(b[8:]) != 0, le.Uint16(b[16:]), le.Uint16(b[18:]), le.Uint32(b[20:]))
}

// answer is the probe's line about what a node that knows p of the asker does with private data.
func answer(t *testing.T, private []byte, p negotiate.PeerView) string {
	t.Helper()
	var m wire.Msg
	l, refusal := negotiate.Request(&m, private, 40000, false, find)
	if refusal != nil {
		return describeReject(t, refusal.Reject)
	}
	switch negotiate.Decide(&m, l, p, false) {
	case negotiate.RefuseStale:
		return describeReject(t, negotiate.RejectWith(&m, l, wire.RejectStale))
	case negotiate.RefuseRace:
		return describeReject(t, negotiate.RejectWith(&m, l, wire.RejectConnRace))
	}
	asker := &negotiate.Local{NID: m.SrcNID, Incarnation: m.SrcStamp}
	offered, version := m.Params, m.Version
	ack := wire.Msg{Params: m.Params}
	ack.Header = wire.Header{Version: version, Type: wire.MsgConnAck, SrcNID: l.NID, SrcStamp: l.Incarnation, DstNID: m.SrcNID, DstStamp: m.SrcStamp}
	b := make([]byte, 196)
	if _, err := ack.Encode(b, wire.CksumNone); err != nil {
		t.Fatal(err)
	}
	if err := negotiate.Ack(&m, b, asker, l.NID, version, offered); err != nil {
		t.Errorf("the asker finds fault with the CONNACK: %v", err)
	}
	return fmt.Sprintf("ACCEPT version=%#x type=%x depth=%d frags=%d dststamp-echo=%v",
		uint16(m.Version), uint8(m.Type), m.Params.QueueDepth, m.Params.MaxFrags, m.DstStamp == askerStamp)
}

func kernelAnswers(t *testing.T, kind string) (names []string, answers map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "kernel-answers.txt"))
	if err != nil {
		t.Fatal(err)
	}
	answers = map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, a, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if name, ours := strings.CutPrefix(name, kind+" "); ok && ours {
			names = append(names, name)
			answers[name] = a
		}
	}
	return names, answers
}

// TestKernelAnswers asks every question about connection requests that a kernel node was asked, with the
// private data exact, as iWARP gives it, and padded, as InfiniBand does.
func TestKernelAnswers(t *testing.T) {
	names, answers := kernelAnswers(t, "Q")
	if len(names) != len(questions) {
		t.Errorf("%d questions, %d answers", len(questions), len(names))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			edit := questions[name]
			if edit == nil {
				t.Fatal("there is no such question")
			}
			q := question{magic: wire.Magic, version: 0x12, typ: 0xc0, src: high, dst: low, depth: 8, frags: 256, size: 4096, order: binary.LittleEndian}
			edit(&q)
			forms := map[string][]byte{"exact": q.bytes()}
			if q.cut == 0 {
				forms["padded"] = append(q.bytes(), make([]byte, 140)...)
			}
			for form, b := range forms {
				if got := answer(t, b, negotiate.PeerView{}); got != answers[name] {
					t.Errorf("%s:\n got %s\nwant %s", form, got, answers[name])
				}
			}
		})
	}
}

// TestKernelAnswersToANewLife is the kernel's answers to a node that connects twice, then restarts.
func TestKernelAnswersToANewLife(t *testing.T) {
	_, answers := kernelAnswers(t, "S")
	b := connreq(func(m *wire.Msg) { m.SrcStamp = askerStamp })
	known := negotiate.PeerView{Known: true, Version: wire.Version2, Incarnation: askerStamp}
	old := known
	old.Incarnation--
	for _, row := range []struct {
		name string
		view negotiate.PeerView
	}{
		{"first connection", negotiate.PeerView{}},
		{"second connection, same stamp", known},
		{"third, new stamp", old},
		{"new stamp again", known}, // adopted with the refusal
	} {
		if got := answer(t, b, row.view); got != answers[row.name] {
			t.Errorf("%s:\n got %s\nwant %q", row.name, got, answers[row.name])
		}
	}
}

func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCapturedSetup replays how two kernel nodes with queue depths 16 and 8 came to terms, with and without
// checksums: each side of ours says what the kernel's said.
func TestCapturedSetup(t *testing.T) {
	for _, set := range []string{"depth", "cksum"} {
		t.Run(set, func(t *testing.T) {
			var m wire.Msg
			first := vector(t, set+"-CONNREQ-1")
			if _, err := m.Unpack(first); err != nil {
				t.Fatal(err)
			}
			asker := &negotiate.Local{NID: m.SrcNID, Incarnation: m.SrcStamp}
			asked, offered := m.DstNID, m.Params
			rej, err := wire.ParseReject(vector(t, set+"-REJ-1"))
			if err != nil {
				t.Fatal(err)
			}
			passive := &negotiate.Local{NID: asked, Incarnation: rej.Incarnation, QueueDepth: 8, MaxFrags: wire.MaxFrags}
			find := func(n wire.NID) *negotiate.Local {
				if n == asked {
					return passive
				}
				return nil
			}
			_, refusal := negotiate.Request(&m, first, 1023, true, find)
			if refusal == nil {
				t.Fatal("the first request was accepted")
			}
			var b [wire.RejectSize]byte
			refusal.Reject.Encode(b[:])
			if want := vector(t, set+"-REJ-1"); string(b[:]) != string(want) {
				t.Fatalf("our reject %x\nthe kernel's %x", b, want)
			}
			r := negotiate.OnReject(negotiate.KindConsumer, vector(t, set+"-REJ-1"), wire.Version2, offered, negotiate.ActiveView{Waiting: true, Connecting: 1})
			if !r.Reconnect || r.QueueDepth != 8 || r.MaxFrags != 257 || r.Incarnation != rej.Incarnation || r.Version != wire.Version2 {
				t.Fatalf("%+v", r)
			}
			second := vector(t, set+"-CONNREQ-2")
			if _, refusal = negotiate.Request(&m, second, 1023, true, find); refusal != nil {
				t.Fatal(refusal)
			}
			if m.Params.QueueDepth != uint16(r.QueueDepth) || m.Params.MaxFrags != uint16(r.MaxFrags) || m.DstStamp != r.Incarnation {
				t.Fatalf("the kernel tried again with %+v to life %#x, we with %+v", m.Params, m.DstStamp, r)
			}
			offered = m.Params
			if err := negotiate.Ack(&m, vector(t, set+"-CONNACK-1"), asker, asked, wire.Version2, offered); err != nil {
				t.Fatal(err)
			}
		})
	}
}
