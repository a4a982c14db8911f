package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

func stream(t testing.TB, side string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "iwarp-siw-"+side+"-stream.hex"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// messages takes a captured stream apart by hand: private data, then the sends.
func messages(t testing.TB, b []byte) (private []byte, sends [][]byte) {
	t.Helper()
	n := int(binary.BigEndian.Uint16(b[18:]))
	private, b = b[24:20+n], b[20+n:]
	for len(b) > 0 {
		l := int(binary.BigEndian.Uint16(b))
		if b[2]&0x80 == 0 {
			sends = append(sends, b[20:2+l])
		}
		b = b[2+l+(-(2+l)&3)+4:]
	}
	return private, sends
}

// TestSiwStreams replays what the kernel's soft iWARP sent, into our passive and our active side.
func TestSiwStreams(t *testing.T) {
	t.Run("passive", func(t *testing.T) {
		b := stream(t, "active")
		private, sends := messages(t, b)
		n := newNode(t, iwarp.Options{})
		c := dial(t, n)
		head := 20 + int(binary.BigEndian.Uint16(b[18:]))
		send(t, c, b[:head])
		ev := n.event(verbs.EventConnectRequest)
		if !bytes.Equal(ev.Private, private) || len(private) != 56 {
			t.Fatalf("private data %x", ev.Private)
		}
		n.accept(ev, len(sends), nil)
		send(t, c, b[head:])
		n.event(verbs.EventEstablished)
		check(t, n, sends)
		c.Close()
		n.event(verbs.EventDisconnected)
	})
	t.Run("active", func(t *testing.T) {
		b := stream(t, "passive")
		private, sends := messages(t, b)
		at, accept := listen(t)
		n := newNode(t, iwarp.Options{NoCRC: true})
		n.resolve(at, len(sends))
		n.must(n.id.Connect(verbs.ConnParam{Private: []byte("x"), RetryCount: 1}))
		c := accept()
		// The reply and everything behind it in one write: it may all come with one read.
		send(t, c, b)
		if ev := n.event(verbs.EventEstablished); !bytes.Equal(ev.Private, private) || len(private) != 56 {
			t.Fatalf("private data %x", ev.Private)
		}
		check(t, n, sends)
		c.Close()
		n.event(verbs.EventDisconnected)
	})
}

func check(t *testing.T, n *node, sends [][]byte) {
	t.Helper()
	for i, wc := range n.completions(len(sends))[:len(sends)] {
		if wc.Status != verbs.WCSuccess || !bytes.Equal(n.mem[i*4096:i*4096+int(wc.ByteLen)], sends[i]) {
			t.Fatalf("message %d: %+v", i, wc)
		}
	}
}
