package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// TestPeerGoes in several ways; the owner is told once, and why.
func TestPeerGoes(t *testing.T) {
	whole := fpdu(untagged(0x41, 3, 0, 1, 0, []byte("hello")), false)
	for _, row := range []struct {
		name string
		last []byte
		end  func(c *net.TCPConn)
		want string // "": an orderly end
	}{
		{"between frames", whole, func(c *net.TCPConn) { c.Close() }, ""},
		{"with its side only", whole, func(c *net.TCPConn) { c.CloseWrite() }, ""},
		{"in a length", whole[:1], func(c *net.TCPConn) { c.Close() }, "middle of a frame"},
		{"in a head", whole[:15], func(c *net.TCPConn) { c.Close() }, "middle of a frame"},
		{"in a payload", whole[:22], func(c *net.TCPConn) { c.Close() }, "middle of a frame"},
		{"before a CRC", whole[:len(whole)-4], func(c *net.TCPConn) { c.Close() }, "middle of a frame"},
		{"by a reset", nil, func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, "reset"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := serve(t, n, 0x10, 3)
			send(t, c, row.last)
			row.end(c.(*net.TCPConn))
			ev := n.event(verbs.EventDisconnected)
			if row.want == "" && ev.Err != nil || row.want != "" && (ev.Err == nil || !strings.Contains(ev.Err.Error(), row.want)) {
				t.Errorf("the owner is told %v", ev.Err)
			}
			wcs := n.completions(3)
			for i, wc := range wcs {
				want := verbs.WCFlushed
				if i == 0 && row.want == "" {
					want = verbs.WCSuccess
				}
				if wc.ID != uint64(i) || wc.Status != want {
					t.Errorf("completion %d: %+v", i, wc)
				}
			}
			var evs [1]verbs.Event
			if k, _ := n.cm.Poll(evs[:]); k != 0 {
				t.Errorf("one more event: %v", evs[0].Type)
			}
		})
	}
}

// TestSegments: a long message goes out in FPDUs that siw takes, each whole and in its place.
func TestSegments(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	c := serve(t, n, 0x50, 0)
	for i := range n.mem {
		n.mem[i] = byte(i * 7 >> 3)
	}
	const size = 200_001
	long := n.wr(verbs.OpSend, 1, 3, 100_000)
	long.SGE[1] = verbs.SGE{Addr: n.addr(1 << 20), Length: size - 100_000, LKey: n.mr.LKey()}
	long.NSGE = 2
	write := n.wr(verbs.OpWrite, 2, 3, size)
	write.RemoteAddr, write.RKey = 0x123456789, 0x42
	n.post(long, write)
	var message, written []byte
	for len(written) < size {
		var l [2]byte
		if _, err := io.ReadFull(c, l[:]); err != nil {
			t.Fatal(err)
		}
		k := int(binary.BigEndian.Uint16(l[:]))
		rest := make([]byte, k+(-(2+k)&3)+4)
		if _, err := io.ReadFull(c, rest); err != nil {
			t.Fatal(err)
		}
		u := rest[:k]
		if !bytes.Equal(append(l[:], rest...), fpdu(u, true)) {
			t.Fatal("padding or CRC of an FPDU are not right")
		}
		if u[0]&0x80 == 0 {
			payload := u[18:]
			last := byte(0)
			if len(message)+len(payload) == size {
				last = 0x40
			}
			if !bytes.Equal(u, untagged(1|last, 3, 0, 1, uint32(len(message)), payload)) {
				t.Fatalf("head %x at %d of the send", u[:18], len(message))
			}
			message = append(message, payload...)
			continue
		}
		payload := u[14:]
		last := byte(0)
		if len(written)+len(payload) == size {
			last = 0x40
		}
		if !bytes.Equal(u, tagged(0x81|last, 0, 0x42, 0x123456789+uint64(len(written)), payload)) {
			t.Fatalf("head %x at %d of the write", u[:14], len(written))
		}
		written = append(written, payload...)
	}
	if !bytes.Equal(message, append(bytes.Clone(n.mem[3:100_003]), n.mem[1<<20:1<<20+size-100_000]...)) || !bytes.Equal(written, n.mem[3:3+size]) {
		t.Error("the bytes differ")
	}
}

func TestBindErrors(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	busy, err := net.Listen("tcp", nodeAddr+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	taken := netip.MustParseAddrPort(busy.Addr().String())
	away := netip.MustParseAddr("192.0.2.7")
	prov := iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "lo", Addr: n.at.Addr()}, {Name: "lo", Addr: away}}})
	cm, err := prov.OpenCM(n.w)
	n.must(err)
	for _, row := range []struct {
		name  string
		local netip.AddrPort
		want  error
	}{
		{"taken", taken, unix.EADDRINUSE},
		{"of another host", netip.AddrPortFrom(away, 0), unix.EADDRNOTAVAIL},
		{"without a device", netip.MustParseAddrPort("127.0.0.60:0"), verbs.ErrNoDevice},
		{"none", netip.AddrPort{}, verbs.ErrState},
	} {
		t.Run(row.name, func(t *testing.T) {
			id, err := cm.NewID(nil)
			n.must(err)
			defer id.Close()
			if err := id.ResolveAddr(row.local, n.at, false, time.Second); !errors.Is(err, row.want) {
				t.Errorf("resolve gives %v", err)
			}
			if row.local.IsValid() && row.want != verbs.ErrNoDevice {
				id, err := cm.NewID(nil)
				n.must(err)
				defer id.Close()
				n.must(id.Bind(row.local, false))
				if err := id.Listen(0); !errors.Is(err, row.want) {
					t.Errorf("listen gives %v", err)
				}
			}
		})
	}
	n.must(prov.Close())
}

// gated is a network in memory whose accepted streams stop in TryWritev while shut.
type gated struct {
	*iwarp.Pipes
	shut atomic.Bool
	open chan struct{}
}

type gatedListener struct {
	iwarp.Listener
	g *gated
}

type gatedStream struct {
	iwarp.Stream
	g *gated
}

func (g *gated) Listen(at netip.AddrPort) (iwarp.Listener, error) {
	l, err := g.Pipes.Listen(at)
	return gatedListener{l, g}, err
}

func (l gatedListener) Accept() (iwarp.Stream, error) {
	s, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return gatedStream{s, l.g}, nil
}

func (s gatedStream) TryWritev(bufs [][]byte) (int, error) {
	if s.g.shut.Load() {
		<-s.g.open
	}
	return s.Stream.TryWritev(bufs)
}

// TestPostBesideWriter: while the connection's writer is at the stream, a post leaves its work to him, and
// it is done in order.
func TestPostBesideWriter(t *testing.T) {
	g := &gated{}
	inBubbleOn(t, func() (iwarp.Options, *iwarp.Pipes) {
		g.Pipes, g.open = iwarp.NewPipes(), make(chan struct{})
		return iwarp.Options{Transport: g}, g.Pipes
	}, func(t *testing.T, n *node, w *bubble) {
		s := w.dial(n, request(0x10, 2, make([]byte, 4)))
		n.accept(n.event(verbs.EventConnectRequest), 0, nil)
		n.event(verbs.EventEstablished)
		read := func(k int) []byte {
			t.Helper()
			b := make([]byte, k)
			for got := 0; got < k; {
				m, err := s.Readv([][]byte{b[got:]})
				if err != nil {
					t.Fatal(err)
				}
				got += m
			}
			return b
		}
		read(24)
		const size = 60_000
		for i := range uint64(4) { // more than the pipe takes: the writer waits
			n.post(n.wr(verbs.OpSend, i, 0, size))
		}
		g.shut.Store(true)
		frame := len(fpdu(untagged(0, 0, 0, 0, 0, make([]byte, size)), false))
		read(frame) // makes room: the writer is in TryWritev
		w.settle()
		n.post(n.wr(verbs.OpSend, 4, 0, size))
		g.shut.Store(false)
		close(g.open)
		for i := range uint32(4) {
			if b := read(frame); binary.BigEndian.Uint32(b[12:]) != i+2 {
				t.Fatalf("message %d comes where %d is due", binary.BigEndian.Uint32(b[12:]), i+2)
			}
		}
		for i, wc := range n.completions(5) {
			if wc.ID != uint64(i) || wc.Status != verbs.WCSuccess {
				t.Errorf("completion %d: %+v", i, wc)
			}
		}
	})
}
