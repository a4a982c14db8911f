package iwarp_test

import (
	"bytes"
	"testing"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// asked posts a read and what goes behind it, and takes the read request off the wire.
func asked(t *testing.T, n *node, behind verbs.SendWR) (peer func() []byte, answer func(b []byte)) {
	t.Helper()
	c := serve(t, n, 0x10, 1)
	read := n.wr(verbs.OpRead, 1, 8192, 10)
	read.RemoteAddr, read.RKey = 0x5000, 0x77
	n.post(read, behind)
	peer = func() []byte {
		t.Helper()
		u, err := readFPDU(c)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if u := peer(); !bytes.Equal(u, untagged(0x41, 1, 1, 1, 0, readRequest(n.mr.LKey(), n.addr(8192), 10, 0x77, 0x5000))) {
		t.Fatalf("the node asks %x", u)
	}
	return peer, func(b []byte) { send(t, c, fpdu(b, false)) }
}

// TestCompletionsBehindRead: what is posted behind a read is written before its response comes, and
// completes after it.
func TestCompletionsBehindRead(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	peer, answer := asked(t, n, n.wr(verbs.OpSend, 2, 0, 5))
	if u := peer(); u[1]&15 != 3 {
		t.Fatalf("behind the read request the node sends %x", u)
	}
	answer(tagged(0x81, 2, n.mr.LKey(), n.addr(8192), []byte("0123")))
	answer(tagged(0xc1, 2, n.mr.LKey(), n.addr(8196), []byte("456789")))
	wcs := n.completions(2)
	if wcs[0].ID != 1 || wcs[0].Op != verbs.OpRead || wcs[0].Status != verbs.WCSuccess || wcs[1].ID != 2 || wcs[1].Status != verbs.WCSuccess {
		t.Errorf("completions %+v", wcs)
	}
	if string(n.mem[8192:8202]) != "0123456789" {
		t.Errorf("read %q", n.mem[8192:8202])
	}
}

// TestCompletionBeforeRead: what was posted in front of a read does not wait for it, though all went as one
// chain.
func TestCompletionBeforeRead(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	c := serve(t, n, 0x10, 0)
	read := n.wr(verbs.OpRead, 2, 8192, 10)
	n.post(n.wr(verbs.OpSend, 1, 0, 5), read, n.wr(verbs.OpSend, 3, 0, 5))
	if wcs := n.completions(1); len(wcs) != 1 || wcs[0].ID != 1 || wcs[0].Status != verbs.WCSuccess {
		t.Fatalf("before the response: %+v", wcs)
	}
	for range 3 {
		if _, err := readFPDU(c); err != nil {
			t.Fatal(err)
		}
	}
	send(t, c, fpdu(tagged(0xc1, 2, n.mr.LKey(), n.addr(8192), make([]byte, 10)), false))
	if wcs := n.completions(2); wcs[0].ID != 2 || wcs[1].ID != 3 || wcs[1].Status != verbs.WCSuccess {
		t.Fatalf("after it: %+v", wcs)
	}
}

// TestFence: a fenced request waits for reads in front of it; answers to reads of the peer, which may be
// fenced as well, do not wait for it.
func TestFence(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	fenced := n.wr(verbs.OpSend, 2, 0, 5)
	fenced.Fence = true
	peer, answer := asked(t, n, fenced)
	mr := n.readOnly()
	copy(n.mem, "abcdef")
	for i, want := range []string{"abc", "def"} {
		answer(untagged(0x41, 1, 1, uint32(i+1), 0, readRequest(0x99, 0x6000, 3, mr.RKey(), n.addr(3*i))))
		if u := peer(); !bytes.Equal(u, tagged(0xc1, 2, 0x99, 0x6000, []byte(want))) {
			t.Fatalf("in front of the fence the node sends %x", u)
		}
	}
	answer(tagged(0xc1, 2, n.mr.LKey(), n.addr(8192), []byte("0123456789")))
	if u := peer(); u[1]&15 != 3 {
		t.Fatalf("behind the fence the node sends %x", u)
	}
	if wcs := n.completions(2); wcs[0].ID != 1 || wcs[1].ID != 2 || wcs[1].Status != verbs.WCSuccess {
		t.Errorf("completions %+v", wcs)
	}
}

// TestInvalidateBehindRead: a window is not taken back while a read in front of that is under way.
func TestInvalidateBehindRead(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	_, answer := asked(t, n, verbs.SendWR{ID: 2, Op: verbs.OpLocalInv, Signaled: true, RKey: n.mr.RKey()})
	answer(tagged(0xc1, 2, n.mr.LKey(), n.addr(8192), []byte("0123456789")))
	// A region cannot be invalidated: the read completes, and then that fails.
	wcs := n.completions(3)
	if wcs[0].ID != 1 || wcs[0].Status != verbs.WCSuccess || wcs[1].ID != 2 || wcs[1].Op != verbs.OpLocalInv || wcs[1].Status != verbs.WCBindError || wcs[2].Status != verbs.WCFlushed {
		t.Errorf("completions %+v", wcs)
	}
}

// TestReadRefused: the peer's Terminate is about our read, which fails as such; all else is flushed.
func TestReadRefused(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	peer, answer := asked(t, n, n.wr(verbs.OpSend, 2, 0, 5))
	peer()
	answer(untagged(0x41, 7, 2, 1, 0, append([]byte{0x01, 2, 0xe0, 0, 0, 46}, make([]byte, 46)...)))
	wcs := n.completions(3)
	if wcs[0].ID != 1 || wcs[0].Status != verbs.WCRemoteAccess || wcs[1].ID != 2 || wcs[1].Status != verbs.WCFlushed || wcs[2].Op != verbs.OpRecv || wcs[2].Status != verbs.WCFlushed {
		t.Errorf("completions %+v", wcs)
	}
}

// TestBadResponses end the connection, and nothing is placed where it was not asked for.
func TestBadResponses(t *testing.T) {
	for name, response := range map[string]func(n *node) []byte{
		"other key":    func(n *node) []byte { return tagged(0xc1, 2, n.mr.LKey()^1, n.addr(8192), make([]byte, 10)) },
		"other offset": func(n *node) []byte { return tagged(0xc1, 2, n.mr.LKey(), n.addr(8193), make([]byte, 9)) },
		"too long":     func(n *node) []byte { return tagged(0xc1, 2, n.mr.LKey(), n.addr(8192), make([]byte, 11)) },
		"too short":    func(n *node) []byte { return tagged(0xc1, 2, n.mr.LKey(), n.addr(8192), []byte("zzzz")) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			copy(n.mem[8192:], "zzzzzzzzzzzz")
			peer, answer := asked(t, n, n.wr(verbs.OpSend, 2, 0, 5))
			peer()
			answer(response(n))
			if u := peer(); u[1]&15 != 7 {
				t.Fatalf("the node sends %x", u)
			}
			if wcs := n.completions(3); wcs[0].ID != 1 || wcs[0].Status == verbs.WCSuccess || wcs[1].Status == verbs.WCSuccess {
				t.Errorf("completions %+v", wcs)
			}
			if string(n.mem[8192:8204]) != "zzzzzzzzzzzz" {
				t.Errorf("placed %q", n.mem[8192:8204])
			}
		})
	}
}
