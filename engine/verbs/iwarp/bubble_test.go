package iwarp_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// inBubble runs f with a node on a network in memory, where time passes only when all wait.
func inBubble(t *testing.T, opt iwarp.Options, f func(t *testing.T, n *node, w *bubble)) {
	inBubbleOn(t, func() (iwarp.Options, *iwarp.Pipes) {
		net := iwarp.NewPipes()
		opt.Transport = net
		return opt, net
	}, f)
}

// inBubbleOn is inBubble with options that are made inside.
func inBubbleOn(t *testing.T, inside func() (iwarp.Options, *iwarp.Pipes), f func(t *testing.T, n *node, w *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		opt, net := inside()
		f(t, newNode(t, opt), &bubble{t: t, net: net})
	})
}

type bubble struct {
	t   *testing.T
	net *iwarp.Pipes
}

// dial gives a stream to n, with the first bytes sent.
func (w *bubble) dial(n *node, first []byte) iwarp.Stream {
	w.t.Helper()
	d, err := w.net.Bind(netip.MustParseAddrPort("10.0.0.9:0"), false)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := d.Dial(w.t.Context(), n.at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	if _, err := s.TryWritev([][]byte{first}); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// settle waits until all others wait.
func (w *bubble) settle() { synctest.Wait() }

// took says how long f takes.
func took(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func TestStartTimeout(t *testing.T) {
	for name, first := range map[string][]byte{"nothing": nil, "half a frame": request(0, 1, nil)[:10]} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, iwarp.Options{StartTimeout: 7 * time.Second}, func(t *testing.T, n *node, w *bubble) {
				s := w.dial(n, first)
				d := took(func() {
					if err := n.protocolError(); !strings.Contains(err.Error(), "timeout") {
						t.Errorf("the listener says %v", err)
					}
				})
				if d != 7*time.Second {
					t.Errorf("it took %v", d)
				}
				if k, err := s.Readv([][]byte{make([]byte, 1)}); k != 0 || err == nil {
					t.Errorf("the peer gets %d bytes, %v", k, err)
				}
			})
		})
	}
}

// TestHalfOpen: those who say nothing cannot keep out more than their number; when they are gone others
// may come.
func TestHalfOpen(t *testing.T) {
	inBubble(t, iwarp.Options{}, func(t *testing.T, n *node, w *bubble) {
		for range 256 {
			w.dial(n, nil)
		}
		w.settle()
		w.dial(n, nil)
		if err := n.protocolError(); !strings.Contains(err.Error(), "256 connections") {
			t.Errorf("the listener says %v", err)
		}
		time.Sleep(11 * time.Second)
		w.dial(n, request(0, 1, nil))
		n.must(n.event(verbs.EventConnectRequest).ID.Close())
	})
}

func TestNoFirstFrame(t *testing.T) {
	inBubble(t, iwarp.Options{}, func(t *testing.T, n *node, w *bubble) {
		w.dial(n, request(0x10, 2, []byte{0x80, 0, 0x80, 0}))
		n.accept(n.event(verbs.EventConnectRequest), 1, nil)
		d := took(func() {
			if ev := n.event(verbs.EventConnectError); ev.Err == nil || !strings.Contains(ev.Err.Error(), "first frame") {
				t.Errorf("the owner is told %v", ev.Err)
			}
		})
		if d < 10*time.Second || d > 13*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

func TestSilentServer(t *testing.T) {
	inBubble(t, iwarp.Options{ConnectTimeout: 5 * time.Second}, func(t *testing.T, n *node, w *bubble) {
		l, err := w.net.Listen(netip.MustParseAddrPort("10.0.0.9:987"))
		n.must(err)
		defer l.Close()
		n.resolve(l.Addr(), 0)
		n.must(n.id.Connect(verbs.ConnParam{}))
		if d := took(func() { n.event(verbs.EventUnreachable) }); d != 5*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestDisconnectIsBounded: a peer that keeps its side open does not keep the connection.
func TestDisconnectIsBounded(t *testing.T) {
	inBubble(t, iwarp.Options{CloseTimeout: 4 * time.Second}, func(t *testing.T, n *node, w *bubble) {
		s := w.dial(n, request(0x10, 2, make([]byte, 4)))
		n.accept(n.event(verbs.EventConnectRequest), 1, nil)
		n.event(verbs.EventEstablished)
		n.post(n.wr(verbs.OpSend, 1, 0, 100))
		n.must(n.id.Disconnect())
		d := took(func() {
			if ev := n.event(verbs.EventDisconnected); ev.Err == nil || !strings.Contains(ev.Err.Error(), "in time") {
				t.Errorf("the owner is told %v", ev.Err)
			}
		})
		if d < 4*time.Second || d > 7*time.Second {
			t.Errorf("it took %v", d)
		}
		if wcs := n.completions(2); wcs[0].ID != 1 || wcs[0].Status != verbs.WCSuccess || wcs[1].Status != verbs.WCFlushed {
			t.Errorf("completions %+v", wcs)
		}
		b := make([]byte, 1000)
		if k, err := s.Readv([][]byte{b}); err != nil || k < 24+122 {
			t.Errorf("the peer gets %d bytes, %v: the reply and the send are due", k, err)
		}
	})
}

// TestListenerGoes: what has not been accepted ends at once.
func TestListenerGoes(t *testing.T) {
	inBubble(t, iwarp.Options{}, func(t *testing.T, n *node, w *bubble) {
		s := w.dial(n, nil)
		w.settle()
		if d := took(func() { n.must(n.listener.Close()) }); d != 0 {
			t.Errorf("it took %v", d)
		}
		if k, err := s.Readv([][]byte{make([]byte, 1)}); k != 0 || err == nil {
			t.Errorf("the peer gets %d bytes, %v", k, err)
		}
	})
}

// TestPipesEnd: nobody is left waiting at either end of a stream in memory.
func TestPipesEnd(t *testing.T) {
	for name, end := range map[string]func(near, far iwarp.Stream) error{
		"by CloseWrite":         func(near, _ iwarp.Stream) error { return near.CloseWrite() },
		"by Close":              func(near, _ iwarp.Stream) error { return near.Close() },
		"by Close of the other": func(_, far iwarp.Stream) error { return far.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := iwarp.NewPipes()
				l, err := net.Listen(netip.MustParseAddrPort("10.0.0.1:987"))
				if err != nil {
					t.Fatal(err)
				}
				d, err := net.Bind(netip.MustParseAddrPort("10.0.0.2:0"), false)
				if err != nil {
					t.Fatal(err)
				}
				near, err := d.Dial(t.Context(), l.Addr())
				if err != nil {
					t.Fatal(err)
				}
				far, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				for err == nil {
					_, err = near.TryWritev([][]byte{make([]byte, 1<<16)})
				}
				waited := make(chan error)
				go func() { waited <- near.WaitWritable() }()
				synctest.Wait()
				if err := end(near, far); err != nil {
					t.Fatal(err)
				}
				if err := <-waited; err == nil {
					t.Error("the stream takes more")
				}
				near.Close()
				far.Close()
				l.Close()
			})
		})
	}
}

// TestPipesListenerGoes: who is in a backlog hears of its end.
func TestPipesListenerGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := iwarp.NewPipes()
		l, err := net.Listen(netip.MustParseAddrPort("10.0.0.1:987"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := net.Bind(netip.MustParseAddrPort("10.0.0.2:0"), false)
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.Dial(t.Context(), l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if k, err := s.Readv([][]byte{make([]byte, 1)}); k != 0 || err == nil {
			t.Errorf("read %d bytes, %v", k, err)
		}
		s.Close()
	})
}
