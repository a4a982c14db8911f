package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire/pcap"
)

// node is one provider with a listener, for tests that speak bytes to it.
type node struct {
	t        testing.TB
	prov     verbs.Provider
	w        verbs.Waiter
	cm       verbs.CM
	listener verbs.ID
	cq       verbs.CQ
	pd       verbs.PD
	mr       verbs.MR
	mem      []byte
	id       verbs.ID
	qp       verbs.QP
	mu       sync.Mutex
	errs     []error // protocol errors before a connection
	at       netip.AddrPort
	rnr      uint8
}

func newNode(t testing.TB, opt iwarp.Options) *node {
	t.Helper()
	n := &node{t: t, rnr: 1}
	opt.OnProtocolError = func(_, _ netip.AddrPort, err error) {
		n.mu.Lock()
		n.errs = append(n.errs, err)
		n.mu.Unlock()
		n.w.Wake()
	}
	n.prov = provider("127.0.0.61", opt)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	n.w, err = n.prov.NewWaiter()
	must(err)
	n.cm, err = n.prov.OpenCM(n.w)
	must(err)
	n.listener, err = n.cm.NewID(nil)
	must(err)
	must(n.listener.Bind(netip.MustParseAddrPort("127.0.0.61:0"), false))
	must(n.listener.Listen(0))
	n.at = n.listener.Local()
	dev := n.listener.Device()
	n.pd, err = dev.AllocPD()
	must(err)
	n.cq, err = dev.CreateCQ(100, n.w)
	must(err)
	n.mem, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(err)
	n.mr, err = n.pd.RegMR(n.mem, verbs.LocalWrite|verbs.RemoteWrite)
	must(err)
	t.Cleanup(func() {
		if n.qp != nil {
			must(n.qp.Close())
			must(n.id.Close())
		}
		must(n.listener.Close())
		must(n.prov.Close())
		must(unix.Munmap(n.mem))
	})
	return n
}

func (n *node) addr(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&n.mem[off]))) }

// event waits for the next event.
func (n *node) event(types ...verbs.EventType) verbs.Event {
	n.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		var evs [1]verbs.Event
		if k, err := n.cm.Poll(evs[:]); err != nil {
			n.t.Fatal(err)
		} else if k == 1 {
			ev := evs[0]
			ev.Private = bytes.Clone(ev.Private)
			for _, typ := range types {
				if ev.Type == typ {
					return ev
				}
			}
			n.t.Fatalf("event %v (%v), wanted %v", ev.Type, ev.Err, types)
		}
		n.w.Wait(deadline)
	}
	n.t.Fatalf("no event of %v", types)
	return verbs.Event{}
}

// protocolError waits for what the listener has to say about a stranger.
func (n *node) protocolError() error {
	n.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		n.mu.Lock()
		var err error
		if len(n.errs) > 0 {
			err = n.errs[0]
		}
		n.mu.Unlock()
		if err != nil {
			return err
		}
		n.w.Wait(deadline)
	}
	n.t.Fatal("the listener complained about nothing")
	return nil
}

// accept builds a queue pair with posted receives on the child of a request, and accepts.
func (n *node) accept(ev verbs.Event, receives int, private []byte) {
	n.t.Helper()
	n.id = ev.ID
	var err error
	n.qp, err = n.id.CreateQP(verbs.QPAttr{PD: n.pd, CQ: n.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 1})
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range receives {
		wr := verbs.RecvWR{ID: uint64(i), NSGE: 1}
		wr.SGE[0] = verbs.SGE{Addr: n.addr(i * 4096), Length: 4096, LKey: n.mr.LKey()}
		b := []verbs.Posting{{QP: n.qp, Recvs: []verbs.RecvWR{wr}}}
		n.id.Device().Post(b)
		if b[0].Err != nil {
			n.t.Fatal(b[0].Err)
		}
	}
	if err := n.id.Accept(verbs.ConnParam{Private: private, RetryCount: 1, RNRRetryCount: n.rnr}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) completions(k int) []verbs.WC {
	n.t.Helper()
	var got []verbs.WC
	deadline := time.Now().Add(15 * time.Second)
	for len(got) < k && time.Now().Before(deadline) {
		var wcs [16]verbs.WC
		c, err := n.cq.Poll(wcs[:])
		if err != nil {
			n.t.Fatal(err)
		}
		got = append(got, wcs[:c]...)
		if c == 0 {
			n.cq.Arm()
			if c, _ = n.cq.Poll(wcs[:]); c > 0 {
				got = append(got, wcs[:c]...)
				continue
			}
			n.w.Wait(deadline)
		}
	}
	if len(got) < k {
		n.t.Fatalf("%d completions of %d: %+v", len(got), k, got)
	}
	return got
}

func dial(t testing.TB, n *node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(15 * time.Second))
	return c
}

func send(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// start is an MPA request or reply.
func start(key string, flags, rev byte, private []byte) []byte {
	b := append([]byte(key), flags, rev)
	b = binary.BigEndian.AppendUint16(b, uint16(len(private)))
	return append(b, private...)
}

func request(flags, rev byte, private []byte) []byte {
	return start("MPA ID Req Frame", flags, rev, private)
}

// reply reads an MPA reply: its flags, revision, private data.
func reply(t testing.TB, c net.Conn) (flags, rev byte, private []byte) {
	t.Helper()
	h := make([]byte, 20)
	if _, err := io.ReadFull(c, h); err != nil {
		t.Fatalf("no MPA reply: %v", err)
	}
	if string(h[:16]) != "MPA ID Rep Frame" {
		t.Fatalf("MPA reply %x", h)
	}
	p := make([]byte, binary.BigEndian.Uint16(h[18:]))
	if _, err := io.ReadFull(c, p); err != nil {
		t.Fatal(err)
	}
	return h[16], h[17], p
}

// fpdu frames a ULPDU, with CRC or with a zero field.
func fpdu(ulpdu []byte, crc bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if !crc {
		return append(b, 0, 0, 0, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// untagged is a ULPDU of RDMAP opcode op.
func untagged(ctrl, op byte, queue, msn, mo uint32, payload []byte) []byte {
	b := []byte{ctrl, 0x40 | op, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, queue)
	b = binary.BigEndian.AppendUint32(b, msn)
	b = binary.BigEndian.AppendUint32(b, mo)
	return append(b, payload...)
}

func tagged(ctrl, op byte, stag uint32, to uint64, payload []byte) []byte {
	b := []byte{ctrl, 0x40 | op}
	b = binary.BigEndian.AppendUint32(b, stag)
	b = binary.BigEndian.AppendUint64(b, to)
	return append(b, payload...)
}

// readFPDU reads one and gives its ULPDU.
func readFPDU(c net.Conn) ([]byte, error) {
	var l [2]byte
	if _, err := io.ReadFull(c, l[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(l[:]))
	b := make([]byte, n+(-(2+n)&3)+4)
	_, err := io.ReadFull(c, b)
	return b[:n], err
}

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
			wr := verbs.SendWR{ID: 9, Op: verbs.OpSend, Signaled: true, NSGE: 1}
			wr.SGE[0] = verbs.SGE{Addr: n.addr(0), Length: 7, LKey: n.mr.LKey()}
			batch := []verbs.Posting{{QP: n.qp, Sends: []verbs.SendWR{wr}}}
			n.id.Device().Post(batch)
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
		{"a reply", "not an MPA", start("MPA ID Rep Frame", 0, 1, nil)},
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

// TestTerminates sends frames that break a rule on a live connection and sees the Terminate that the RFCs
// ask for.
func TestTerminates(t *testing.T) {
	for _, row := range []struct {
		name         string
		frame        func(n *node) []byte
		layer, etype byte
		code         byte
		text         string
	}{
		{"unknown key", func(n *node) []byte { return fpdu(tagged(0xc1, 0, n.mr.RKey()^0xff00, n.addr(0), []byte("x")), true) }, 1, 1, 0, "not valid"},
		{"out of bounds", func(n *node) []byte { return fpdu(tagged(0xc1, 0, n.mr.RKey(), n.addr(0)+1<<20, []byte("x")), true) }, 1, 1, 1, "outside"},
		{"address wraps", func(n *node) []byte { return fpdu(tagged(0xc1, 0, n.mr.RKey(), ^uint64(0)-2, []byte("abcdef")), true) }, 1, 1, 1, "outside"},
		{"read without the right", func(n *node) []byte {
			p := make([]byte, 28)
			binary.BigEndian.PutUint32(p[12:], 100)
			binary.BigEndian.PutUint32(p[16:], n.mr.RKey())
			binary.BigEndian.PutUint64(p[20:], n.addr(0))
			return fpdu(untagged(0x41, 1, 1, 1, 0, p), true)
		}, 0, 1, 2, "not allow"},
		{"wrong DDP version", func(*node) []byte { return fpdu(untagged(0x42, 3, 0, 1, 0, nil), true) }, 1, 2, 6, "version"},
		{"wrong RDMAP version", func(*node) []byte { u := untagged(0x41, 3, 0, 1, 0, nil); u[1] = 0x83; return fpdu(u, true) }, 0, 2, 5, "version"},
		{"unknown opcode", func(*node) []byte { return fpdu(untagged(0x41, 12, 0, 1, 0, nil), true) }, 0, 2, 6, "opcode"},
		{"tagged send", func(n *node) []byte { return fpdu(tagged(0xc1, 3, n.mr.RKey(), n.addr(0), nil), true) }, 0, 2, 6, "opcode"},
		{"wrong queue", func(*node) []byte { return fpdu(untagged(0x41, 3, 5, 1, 0, nil), true) }, 1, 2, 1, "queue"},
		{"MSN ahead", func(*node) []byte { return fpdu(untagged(0x41, 3, 0, 2, 0, []byte("x")), true) }, 1, 2, 3, "is due"},
		{"offset ahead", func(*node) []byte { return fpdu(untagged(0x41, 3, 0, 1, 10, []byte("x")), true) }, 1, 2, 4, "is due"},
		{"message too long", func(*node) []byte { return fpdu(untagged(0x41, 3, 0, 1, 0, make([]byte, 4097)), true) }, 1, 2, 5, "4096"},
		{"CRC", func(*node) []byte {
			b := fpdu(untagged(0x41, 3, 0, 1, 0, []byte("abcd")), true)
			b[len(b)-1] ^= 1
			return b
		}, 2, 0, 2, "CRC"},
		{"shorter than its head", func(*node) []byte { return fpdu([]byte{0x41, 0x43, 0, 0}, true) }, 2, 0, 2, "shorter"},
		{"read response nobody asked for", func(n *node) []byte { return fpdu(tagged(0xc1, 2, n.mr.RKey(), n.addr(0), []byte("x")), true) }, 0, 2, 6, "nobody asked"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := dial(t, n)
			send(t, c, request(0x50, 2, make([]byte, 4)))
			n.accept(n.event(verbs.EventConnectRequest), 2, nil)
			reply(t, c)
			n.event(verbs.EventEstablished)
			send(t, c, row.frame(n))
			u, err := readFPDU(c)
			if err != nil || len(u) < 20 || u[1]&15 != 7 || u[18] != row.layer<<4|row.etype || u[19] != row.code {
				t.Fatalf("the node sent %x: %v", u, err)
			}
			if _, err := readFPDU(c); err != io.EOF {
				t.Errorf("behind the Terminate: %v", err)
			}
			c.Close()
			ev := n.event(verbs.EventDisconnected)
			if ev.Err == nil || !strings.Contains(ev.Err.Error(), row.text) {
				t.Errorf("the owner is told %v", ev.Err)
			}
		})
	}
}

func TestPeerTerminates(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	c := dial(t, n)
	send(t, c, request(0x10, 2, make([]byte, 4)))
	n.accept(n.event(verbs.EventConnectRequest), 1, nil)
	reply(t, c)
	n.event(verbs.EventEstablished)
	send(t, c, fpdu(untagged(0x41, 7, 2, 1, 0, []byte{0x12, 0x02, 0, 0}), false))
	c.(*net.TCPConn).CloseWrite()
	if ev := n.event(verbs.EventDisconnected); ev.Err == nil || !strings.Contains(ev.Err.Error(), "no receive was posted") {
		t.Fatalf("the owner is told %v", ev.Err)
	}
}

// TestPeerToPeer holds the responder back until the initiator's first frame (RFC 6581).
func TestPeerToPeer(t *testing.T) {
	for name, frame := range map[string][]byte{
		"write": fpdu(tagged(0xc1, 0, 0, 0, nil), false),
		"read":  fpdu(untagged(0x41, 1, 1, 1, 0, make([]byte, 28)), false),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := dial(t, n)
			send(t, c, request(0x10, 2, []byte{0x80, 0, 0xc0, 0}))
			n.accept(n.event(verbs.EventConnectRequest), 2, nil)
			if _, _, p := reply(t, c); p[0]&0x80 == 0 {
				t.Fatalf("IRD and ORD of the reply: %x", p)
			}
			send(t, c, frame)
			n.event(verbs.EventEstablished)
			send(t, c, fpdu(untagged(0x41, 3, 0, 1, 0, []byte("hello")), false))
			if wc := n.completions(1)[0]; wc.Status != verbs.WCSuccess || wc.ByteLen != 5 {
				t.Fatalf("%+v", wc)
			}
			c.Close()
			n.event(verbs.EventDisconnected)
		})
	}
}

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
		l, err := net.Listen("tcp", "127.0.0.62:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		n := newNode(t, iwarp.Options{NoCRC: true})
		n.id, err = n.cm.NewID(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.id.ResolveAddr(netip.MustParseAddrPort("127.0.0.61:0"), netip.MustParseAddrPort(l.Addr().String()), false, time.Second); err != nil {
			t.Fatal(err)
		}
		n.event(verbs.EventAddrResolved)
		if n.qp, err = n.id.CreateQP(verbs.QPAttr{PD: n.pd, CQ: n.cq, MaxSendWR: 8, MaxRecvWR: 64}); err != nil {
			t.Fatal(err)
		}
		for i := range sends {
			wr := verbs.RecvWR{ID: uint64(i), NSGE: 1}
			wr.SGE[0] = verbs.SGE{Addr: n.addr(i * 4096), Length: 4096, LKey: n.mr.LKey()}
			n.id.Device().Post([]verbs.Posting{{QP: n.qp, Recvs: []verbs.RecvWR{wr}}})
		}
		if err := n.id.Connect(verbs.ConnParam{Private: []byte("x"), RetryCount: 1}); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
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

// TestWireshark has tshark judge a capture of two of our nodes, and of the kernel's streams: nothing of
// warning or above, but for what its MPA dissector says of every start-up of revision 2.
func TestWireshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Fatal("tshark is not here: make deps-test installs it")
	}
	dir := t.TempDir()
	ours := filepath.Join(dir, "ours.pcap")
	f, err := os.Create(ours)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pcap.NewWriter(f)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	opt := iwarp.Options{Record: func(from, to netip.AddrPort, b []byte) {
		if from.Addr() == netip.MustParseAddr("127.0.0.61") && to.Port() == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err := w.Stream(from, to, b); err != nil {
			t.Error(err)
		}
	}}
	n := newNode(t, opt)
	c := dial(t, n)
	from := netip.MustParseAddrPort(c.LocalAddr().String())
	req := request(0x50, 2, append(make([]byte, 4), "private"...))
	if err := w.Stream(from, n.at, req); err != nil {
		t.Fatal(err)
	}
	send(t, c, req)
	n.accept(n.event(verbs.EventConnectRequest), 4, []byte("answer"))
	flags, rev, private := reply(t, c)
	if err := w.Stream(n.at, from, start("MPA ID Rep Frame", flags, rev, private)); err != nil {
		t.Fatal(err)
	}
	n.event(verbs.EventEstablished)
	for i := range uint32(3) {
		send(t, c, fpdu(untagged(0x41, 3, 0, i+1, 0, []byte(fmt.Sprintf("message %d", i))), true))
	}
	n.completions(3)
	send(t, c, fpdu(tagged(0xc1, 0, n.mr.RKey(), n.addr(65536), make([]byte, 5000)), true))
	send(t, c, fpdu(untagged(0x41, 3, 0, 4, 0, []byte("done")), true))
	n.completions(1)
	var chain []verbs.SendWR
	for i := range 3 {
		wr := verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, NSGE: 1, RemoteAddr: 0x1000, RKey: 0x1234}
		wr.SGE[0] = verbs.SGE{Addr: n.addr(0), Length: 30000, LKey: n.mr.LKey()}
		chain = append(chain, wr)
	}
	wr := verbs.SendWR{ID: 9, Op: verbs.OpSend, Signaled: true, NSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: n.addr(0), Length: 61, LKey: n.mr.LKey()}
	n.id.Device().Post([]verbs.Posting{{QP: n.qp, Sends: append(chain, wr)}})
	for range 4 {
		if _, err := readFPDU(c); err != nil {
			t.Fatal(err)
		}
	}
	n.completions(1)
	c.Close()
	n.event(verbs.EventDisconnected)
	mu.Lock()
	f.Close()
	mu.Unlock()

	kernel := filepath.Join(dir, "kernel.pcap")
	k, err := os.Create(kernel)
	if err != nil {
		t.Fatal(err)
	}
	kw, err := pcap.NewWriter(k)
	if err != nil {
		t.Fatal(err)
	}
	a, p := stream(t, "active"), stream(t, "passive")
	ends := [2]netip.AddrPort{netip.MustParseAddrPort("10.77.0.1:1020"), netip.MustParseAddrPort("10.77.0.2:987")}
	ha, hp := 20+int(binary.BigEndian.Uint16(a[18:])), 20+int(binary.BigEndian.Uint16(p[18:]))
	for _, part := range []struct {
		from, to int
		b        []byte
	}{{0, 1, a[:ha]}, {1, 0, p[:hp]}, {0, 1, a[ha:]}, {1, 0, p[hp:]}} {
		if err := kw.Stream(ends[part.from], ends[part.to], part.b); err != nil {
			t.Fatal(err)
		}
	}
	k.Close()
	for _, path := range []string{ours, kernel} {
		out, err := exec.Command("tshark", "-r", path, "--disable-protocol", "rpcordma", "-T", "fields", "-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.expert.severity", "-e", "_ws.expert.message", "-E", "occurrence=a", "-E", "separator=|").Output()
		if err != nil {
			t.Fatalf("tshark: %v\n%s", err, out)
		}
		if !bytes.Contains(out, []byte("iwarp_mpa")) || !bytes.Contains(out, []byte("iwarp_ddp_rdmap")) {
			t.Errorf("tshark does not see iWARP in %s:\n%s", filepath.Base(path), out)
		}
		for _, line := range strings.Split(string(out), "\n") {
			for _, message := range strings.Split(line[strings.LastIndexByte(line, '|')+1:], ",") {
				switch message = strings.TrimSpace(message); {
				case message == "", strings.Contains(message, "Rev field is NOT set to one"), strings.Contains(message, "Res field is NOT set to zero"):
				case strings.HasPrefix(message, "Connection "), strings.Contains(message, "SYN"), strings.Contains(message, "FIN"):
				default:
					t.Errorf("%s: %s", filepath.Base(path), line)
				}
			}
		}
	}
}

// FuzzStream writes arbitrary bytes to a live connection: it ends, or waits for more; nothing breaks.
func FuzzStream(f *testing.F) {
	f.Add(fpdu(untagged(0x41, 3, 0, 1, 0, []byte("hello")), false))
	f.Add(fpdu(tagged(0xc1, 0, 1, 2, []byte("x")), false))
	f.Add(stream(f, "active")[80:])
	f.Add(fpdu(untagged(0x41, 7, 2, 1, 0, []byte{0x12, 2, 0, 0}), false))
	f.Add(fpdu(untagged(0x41, 1, 1, 1, 0, make([]byte, 28)), false))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		n := newNode(t, iwarp.Options{})
		n.rnr = 0
		c := dial(t, n)
		send(t, c, request(0x10, 2, make([]byte, 4)))
		n.accept(n.event(verbs.EventConnectRequest), 4, nil)
		reply(t, c)
		n.event(verbs.EventEstablished)
		if _, err := c.Write(b); err == nil {
			c.(*net.TCPConn).CloseWrite()
		}
		n.event(verbs.EventDisconnected)
		c.Close()
	})
}

// FuzzStart writes arbitrary bytes to the listener.
func FuzzStart(f *testing.F) {
	f.Add(request(0x10, 2, make([]byte, 60)))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add(stream(f, "active")[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		n := newNode(t, iwarp.Options{})
		c := dial(t, n)
		if _, err := c.Write(b); err == nil {
			c.(*net.TCPConn).CloseWrite()
		}
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		io.Copy(io.Discard, c)
		c.Close()
		for {
			var evs [4]verbs.Event
			k, _ := n.cm.Poll(evs[:])
			if k == 0 {
				return
			}
			for _, ev := range evs[:k] {
				if ev.Type == verbs.EventConnectRequest {
					ev.ID.Reject(nil)
				}
				ev.ID.Close()
			}
		}
	})
}
