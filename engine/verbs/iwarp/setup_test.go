package iwarp_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

func TestPlainClient(t *testing.T) {
	for _, row := range []struct {
		name    string
		flags   byte
		rev     byte
		private []byte // as on the wire
		words   int    // that the set-up takes of it
		crc     bool
	}{
		{"revision 2, enhanced", 0x10, 2, append(make([]byte, 4), "hello"...), 4, false},
		{"revision 2, enhanced, CRC", 0x50, 2, append(make([]byte, 4), "hello"...), 4, true},
		{"revision 2, plain", 0, 2, []byte("hello"), 0, false},
		{"revision 1", 0, 1, []byte("hello"), 0, false},
		{"revision 1, CRC", 0x40, 1, []byte("hello"), 0, true},
		{"no private data", 0x40, 1, nil, 0, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := dial(t, n)
			send(t, c, request(row.flags, row.rev, row.private))
			ev := n.event(verbs.EventConnectRequest)
			if !bytes.Equal(ev.Private, row.private[row.words:]) {
				t.Fatalf("private data %x", ev.Private)
			}
			n.accept(ev, 2, []byte("welcome"))
			flags, rev, private := reply(t, c)
			if rev != row.rev || flags != row.flags || string(private[row.words:]) != "welcome" {
				t.Fatalf("reply flags %#x revision %d private %q", flags, rev, private)
			}
			n.event(verbs.EventEstablished)
			// A send in two segments, written in pieces.
			b := append(fpdu(untagged(0x01, 3, 0, 1, 0, bytes.Repeat([]byte("a"), 1000)), row.crc), fpdu(untagged(0x41, 3, 0, 1, 1000, []byte("bcd")), row.crc)...)
			for len(b) > 0 {
				k := min(len(b), 177)
				send(t, c, b[:k])
				b = b[k:]
			}
			if wc := n.completions(1)[0]; wc.Status != verbs.WCSuccess || wc.ByteLen != 1003 || string(n.mem[998:1003]) != "aabcd" {
				t.Fatalf("receive %+v", wc)
			}
			n.post(n.wr(verbs.OpSend, 9, 0, 7))
			u, err := readFPDU(c)
			if err != nil || !bytes.Equal(u, untagged(0x41, 3, 0, 1, 0, []byte("aaaaaaa"))) {
				t.Fatalf("the node sent %x: %v", u, err)
			}
			n.completions(1)
			c.Close()
			n.event(verbs.EventDisconnected)
		})
	}
}

func TestRejectToPlainClient(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	c := dial(t, n)
	send(t, c, request(0x10, 2, append(make([]byte, 4), 1)))
	ev := n.event(verbs.EventConnectRequest)
	if err := ev.ID.Reject([]byte("no, and why it is no.")); err != nil {
		t.Fatal(err)
	}
	ev.ID.Close()
	if flags, _, private := reply(t, c); flags != 0x30 || string(private[4:]) != "no, and why it is no." {
		t.Fatalf("reject flags %#x private %q", flags, private)
	}
}

func TestStrangers(t *testing.T) {
	for _, row := range []struct {
		name, text string
		bytes      []byte
	}{
		{"HTTP", "not an MPA", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"TLS", "not an MPA", []byte{0x16, 3, 1, 2, 0, 1, 0, 1}},
		{"a reply", "not an MPA", start(replyKey, 0, 1, nil)},
		{"markers", "markers", request(0x80, 1, nil)},
		{"revision 9", "revision", request(0, 9, nil)},
		{"private data too long", "too long", request(0, 1, make([]byte, 513))},
		{"enhanced without its words", "short", request(0x10, 2, []byte{1, 2})},
		{"bytes behind the request", "behind", append(request(0, 1, nil), 1, 2, 3)},
		{"cut", "unexpected EOF", request(0, 1, make([]byte, 100))[:50]},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := dial(t, n)
			send(t, c, row.bytes)
			if row.name == "cut" {
				c.(*net.TCPConn).CloseWrite()
			}
			if err := n.protocolError(); !strings.Contains(err.Error(), row.text) {
				t.Errorf("the listener says %q", err)
			}
			if b, err := io.ReadAll(c); len(b) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("it answered %x, %v", b, err)
			}
		})
	}
}

// TestPeerToPeer holds the responder back until the initiator's first frame (RFC 6581).
func TestPeerToPeer(t *testing.T) {
	const asks, bySend, byWrite, byRead = 0x80, 0x40, 0x80, 0x40
	for _, row := range []struct {
		name     string
		ird, ord byte // control bits of the request
		want     [2]byte
		frame    []byte
		msn      uint32 // of the next send
		answer   byte   // opcode of what the node says to it, 0: nothing
	}{
		{"write", asks, byWrite | byRead, [2]byte{asks, byWrite | byRead}, tagged(0xc1, 0, 0, 0, nil), 1, 0},
		{"read", asks, byRead, [2]byte{asks, byRead}, untagged(0x41, 1, 1, 1, 0, make([]byte, 28)), 1, 2},
		{"send", asks | bySend, 0, [2]byte{asks | bySend, 0}, untagged(0x41, 3, 0, 1, 0, nil), 2, 0},
		{"any, but no send", asks | bySend, byWrite, [2]byte{asks, byWrite}, tagged(0xc1, 0, 0, 0, nil), 1, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := dial(t, n)
			send(t, c, request(0x10, 2, []byte{row.ird, 0, row.ord, 0}))
			n.accept(n.event(verbs.EventConnectRequest), 2, nil)
			if _, _, p := reply(t, c); p[0] != row.want[0] || p[2] != row.want[1] {
				t.Fatalf("IRD and ORD of the reply: %x", p)
			}
			n.post(n.wr(verbs.OpSend, 9, 0, 3)) // waits
			send(t, c, fpdu(row.frame, false))
			n.event(verbs.EventEstablished)
			opcodes := []byte{3}
			if row.answer != 0 {
				opcodes = append(opcodes, row.answer)
			}
			for _, op := range opcodes {
				if u, err := readFPDU(c); err != nil || u[1]&15 != op {
					t.Fatalf("the node sends %x, %v where opcode %d is due", u, err, op)
				}
			}
			send(t, c, fpdu(untagged(0x41, 3, 0, row.msn, 0, []byte("hello")), false))
			for _, wc := range n.completions(2) {
				if wc.Status != verbs.WCSuccess || wc.Op == verbs.OpRecv && wc.ByteLen != 5 {
					t.Fatalf("%+v", wc)
				}
			}
			c.Close()
			n.event(verbs.EventDisconnected)
		})
	}
}

// TestPlainServer connects to a peer that speaks bytes, and may know less than we do.
func TestPlainServer(t *testing.T) {
	words := make([]byte, 4)
	refuses := func(end func(c net.Conn)) func(t *testing.T, c net.Conn, again func() net.Conn) {
		return func(t *testing.T, c net.Conn, again func() net.Conn) {
			if flags, rev, p := readStart(t, c, requestKey); flags != 0x50 || rev != 2 || string(p) != "\x00\x00\x00\x00hello" {
				t.Errorf("request with flags %#x, revision %d, private data %q", flags, rev, p)
			}
			end(c)
			c = again()
			if flags, rev, p := readStart(t, c, requestKey); flags != 0x40 || rev != 1 || string(p) != "hello" {
				t.Errorf("second request with flags %#x, revision %d, private data %q", flags, rev, p)
			}
			send(t, c, start(replyKey, 0x40, 1, []byte("welcome")))
		}
	}
	answers := func(b []byte) func(t *testing.T, c net.Conn, again func() net.Conn) {
		return func(t *testing.T, c net.Conn, _ func() net.Conn) {
			readStart(t, c, requestKey)
			send(t, c, b)
			c.(*net.TCPConn).CloseWrite()
		}
	}
	for _, row := range []struct {
		name   string
		opt    iwarp.Options
		server func(t *testing.T, c net.Conn, again func() net.Conn)
		want   verbs.EventType
		reject verbs.RejectKind
		text   string // private data, or part of the error
	}{
		{"revision 2, enhanced", iwarp.Options{}, answers(start(replyKey, 0x50, 2, append(words, "welcome"...))), verbs.EventEstablished, 0, "welcome"},
		{"revision 2, plain", iwarp.Options{}, answers(start(replyKey, 0x40, 2, []byte("welcome"))), verbs.EventEstablished, 0, "welcome"},
		{"asks for revision 1", iwarp.Options{Revision: 1, NoCRC: true}, func(t *testing.T, c net.Conn, _ func() net.Conn) {
			if flags, rev, p := readStart(t, c, requestKey); flags != 0 || rev != 1 || string(p) != "hello" {
				t.Errorf("request with flags %#x, revision %d, private data %q", flags, rev, p)
			}
			send(t, c, start(replyKey, 0, 1, []byte("welcome")))
		}, verbs.EventEstablished, 0, "welcome"},
		{"revision 2 makes the peer close", iwarp.Options{}, refuses(func(c net.Conn) { c.Close() }), verbs.EventEstablished, 0, "welcome"},
		{"revision 2 makes the peer reset", iwarp.Options{}, refuses(func(c net.Conn) {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}), verbs.EventEstablished, 0, "welcome"},
		{"revision 2 is answered in revision 1", iwarp.Options{}, refuses(func(c net.Conn) {
			c.Write(start(replyKey, 0x40, 1, []byte("what?")))
			c.Close()
		}), verbs.EventEstablished, 0, "welcome"},
		{"revision 2 is rejected in revision 1", iwarp.Options{}, refuses(func(c net.Conn) {
			c.Write(start(replyKey, 0x20, 1, nil))
			c.Close()
		}), verbs.EventEstablished, 0, "welcome"},
		{"consumer's reject", iwarp.Options{}, answers(start(replyKey, 0x30, 2, append(words, "because"...))), verbs.EventRejected, verbs.RejectConsumer, "because"},
		{"reject with little data", iwarp.Options{}, answers(start(replyKey, 0x30, 2, append(words, "no"...))), verbs.EventRejected, verbs.RejectOther, "no"},
		{"bare reject", iwarp.Options{}, answers(start(replyKey, 0x20, 2, nil)), verbs.EventRejected, verbs.RejectOther, ""},
		{"markers", iwarp.Options{}, answers(start(replyKey, 0xc0, 2, nil)), verbs.EventConnectError, 0, "markers"},
		{"no MPA", iwarp.Options{}, answers([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), verbs.EventConnectError, 0, "not an MPA"},
		{"private data too long", iwarp.Options{}, answers(start(replyKey, 0x40, 2, make([]byte, 513))), verbs.EventConnectError, 0, "too long"},
		{"enhanced without its words", iwarp.Options{}, answers(start(replyKey, 0x50, 2, words[:3])), verbs.EventConnectError, 0, "too short"},
		{"cut", iwarp.Options{}, answers(start(replyKey, 0x40, 2, make([]byte, 100))[:50]), verbs.EventConnectError, 0, "unexpected EOF"},
		{"revision 7", iwarp.Options{}, answers(start(replyKey, 0x40, 7, nil)), verbs.EventConnectError, 0, "revision"},
	} {
		t.Run(row.name, func(t *testing.T) {
			at, accept := listen(t)
			n := newNode(t, row.opt)
			n.resolve(at, 0)
			n.must(n.id.Connect(verbs.ConnParam{Private: []byte("hello"), RetryCount: 1}))
			c := accept()
			if c.RemoteAddr().String() != n.id.Local().String() {
				t.Errorf("the peer sees %v, the id is bound to %v", c.RemoteAddr(), n.id.Local())
			}
			row.server(t, c, accept)
			ev := n.event(verbs.EventEstablished, verbs.EventRejected, verbs.EventConnectError, verbs.EventUnreachable)
			if ev.Type != row.want || ev.Reject != row.reject {
				t.Fatalf("event %v, reject kind %d, %v", ev.Type, ev.Reject, ev.Err)
			}
			if ev.Type == verbs.EventConnectError {
				if ev.Err == nil || !strings.Contains(ev.Err.Error(), row.text) {
					t.Errorf("the owner is told %v", ev.Err)
				}
			} else if string(ev.Private) != row.text {
				t.Errorf("private data %q", ev.Private)
			}
		})
	}
}

// TestCRC is used where one side asks for it.
func TestCRC(t *testing.T) {
	for _, row := range []struct {
		name  string
		noCRC bool
		reply byte
		used  bool
	}{
		{"both", false, 0x50, true},
		{"the initiator", false, 0x10, true},
		{"the responder", true, 0x50, true},
		{"nobody", true, 0x10, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			at, accept := listen(t)
			n := newNode(t, iwarp.Options{NoCRC: row.noCRC})
			n.resolve(at, 1)
			n.must(n.id.Connect(verbs.ConnParam{RetryCount: 1}))
			c := accept()
			if flags, _, _ := readStart(t, c, requestKey); flags&0x40 != 0 == row.noCRC {
				t.Errorf("flags %#x of the request", flags)
			}
			send(t, c, start(replyKey, row.reply, 2, make([]byte, 4)))
			n.event(verbs.EventEstablished)
			u := untagged(0x41, 3, 0, 1, 0, []byte("abcde"))
			send(t, c, fpdu(u, row.used))
			if wc := n.completions(1)[0]; wc.Status != verbs.WCSuccess || wc.ByteLen != 5 {
				t.Errorf("receive %+v", wc)
			}
			n.post(n.wr(verbs.OpSend, 1, 0, 5))
			want := fpdu(u, row.used)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the node sends %x, %v\nwant %x", got, err, want)
			}
		})
	}
}

// TestPrivateDataThatDoesNotFit is refused before anything is sent.
func TestPrivateDataThatDoesNotFit(t *testing.T) {
	at, accept := listen(t)
	n := newNode(t, iwarp.Options{})
	n.resolve(at, 0)
	if err := n.id.Connect(verbs.ConnParam{Private: make([]byte, 509)}); err == nil || !strings.Contains(err.Error(), "at most 508") {
		t.Fatalf("connecting with 509 bytes: %v", err)
	}
	n.must(n.id.Connect(verbs.ConnParam{Private: make([]byte, 508)}))
	c := accept()
	if _, _, p := readStart(t, c, requestKey); len(p) != 512 {
		t.Fatalf("%d bytes of private data on the wire", len(p))
	}
	send(t, c, start(replyKey, 0x30, 2, make([]byte, 4)))
	n.event(verbs.EventRejected)

	p := dial(t, n)
	send(t, p, request(0, 1, nil))
	child := n.event(verbs.EventConnectRequest).ID
	if err := child.Reject(make([]byte, 513)); err == nil || !strings.Contains(err.Error(), "at most 512") {
		t.Fatalf("rejecting with 513 bytes: %v", err)
	}
	n.must(child.Reject(make([]byte, 512)))
	n.must(child.Close())
	if flags, _, private := reply(t, p); flags != 0x20 || len(private) != 512 {
		t.Fatalf("reject with flags %#x and %d bytes", flags, len(private))
	}
}

// TestRequestsThatNobodyTakes end with their event channel.
func TestRequestsThatNobodyTakes(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	c := dial(t, n)
	send(t, c, request(0x10, 2, make([]byte, 4)))
	n.w.Wait(time.Now().Add(15 * time.Second)) // until the request is there
	n.must(n.listener.Close())
	n.must(n.cm.Close())
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("the peer gets %x, %v", b, err)
	}
}
