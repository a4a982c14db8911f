package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// serve connects a plain TCP client to a node, which accepts it.
func serve(t testing.TB, n *node, flags byte, receives int) net.Conn {
	t.Helper()
	c := dial(t, n)
	send(t, c, request(flags, 2, make([]byte, 4)))
	n.accept(n.event(verbs.EventConnectRequest), receives, nil)
	reply(t, c)
	n.event(verbs.EventEstablished)
	return c
}

// Bits of a Terminate that say what of the segment follows.
const (
	nothing  = 0
	head     = 0xc0
	headRead = 0xe0
)

// TestTerminates sends segments that break a rule on a live connection and sees the Terminate that the RFCs
// ask for.
func TestTerminates(t *testing.T) {
	for _, row := range []struct {
		name         string
		ulpdu        func(n *node) []byte
		layer, etype byte
		code, flags  byte
		text         string
	}{
		{"unknown key", func(n *node) []byte { return tagged(0xc1, 0, n.mr.RKey()^0xff00, n.addr(0), []byte("x")) }, 1, 1, 0, head, "not valid"},
		{"out of bounds", func(n *node) []byte { return tagged(0xc1, 0, n.mr.RKey(), n.addr(0)+slabSize, []byte("x")) }, 1, 1, 1, head, "outside"},
		{"key of nobody's window", func(n *node) []byte {
			mw, err := n.pd.AllocMW()
			n.must(err)
			return tagged(0xc1, 0, mw.RKey(), n.addr(0), []byte("x"))
		}, 1, 1, 0, head, "not valid"},
		{"address wraps", func(n *node) []byte { return tagged(0xc1, 0, n.mr.RKey(), ^uint64(0)-2, []byte("abcdef")) }, 1, 1, 3, head, "outside"},
		{"write without the right", func(n *node) []byte { return tagged(0xc1, 0, n.readOnly().RKey(), n.addr(0), []byte("x")) }, 0, 1, 2, head, "not allow"},
		{"read without the right", func(n *node) []byte {
			return untagged(0x41, 1, 1, 1, 0, readRequest(1, 2, 100, n.mr.RKey(), n.addr(0)))
		}, 0, 1, 2, headRead, "not allow"},
		{"read of an unknown key", func(n *node) []byte {
			return untagged(0x41, 1, 1, 1, 0, readRequest(1, 2, 100, n.mr.RKey()^0xff00, n.addr(0)))
		}, 0, 1, 0, headRead, "not valid"},
		{"read out of bounds", func(n *node) []byte {
			return untagged(0x41, 1, 1, 1, 0, readRequest(1, 2, 100, n.readOnly().RKey(), n.addr(slabSize-99)))
		}, 0, 1, 1, headRead, "outside"},
		{"read that wraps", func(n *node) []byte {
			return untagged(0x41, 1, 1, 1, 0, readRequest(1, 2, 100, n.readOnly().RKey(), ^uint64(0)-2))
		}, 0, 1, 4, headRead, "outside"},
		{"read request too long", func(*node) []byte { return untagged(0x41, 1, 1, 1, 0, make([]byte, 29)) }, 1, 2, 5, head, "29 bytes"},
		{"read request too short", func(*node) []byte { return untagged(0x41, 1, 1, 1, 0, make([]byte, 27)) }, 0, 2, 0xff, head, "27 bytes"},
		{"read request ahead", func(*node) []byte { return untagged(0x41, 1, 1, 2, 0, make([]byte, 28)) }, 1, 2, 3, head, "is due"},
		{"read request at an offset", func(*node) []byte { return untagged(0x41, 1, 1, 1, 4, make([]byte, 28)) }, 1, 2, 4, head, "request at 4"},
		{"wrong DDP version", func(*node) []byte { return untagged(0x42, 3, 0, 1, 0, nil) }, 1, 2, 6, nothing, "version"},
		{"wrong tagged DDP version", func(n *node) []byte { return tagged(0xc2, 0, n.mr.RKey(), n.addr(0), nil) }, 1, 1, 4, nothing, "version"},
		{"wrong RDMAP version", func(*node) []byte { u := untagged(0x41, 3, 0, 1, 0, nil); u[1] = 0x83; return u }, 0, 2, 5, nothing, "version"},
		{"unknown opcode", func(*node) []byte { return untagged(0x41, 12, 0, 1, 0, nil) }, 0, 2, 6, nothing, "opcode"},
		{"tagged send", func(n *node) []byte { return tagged(0xc1, 3, n.mr.RKey(), n.addr(0), nil) }, 0, 2, 6, nothing, "opcode"},
		{"untagged write", func(n *node) []byte { return untagged(0x41, 0, 0, 1, 0, nil) }, 0, 2, 6, nothing, "opcode"},
		{"wrong queue", func(*node) []byte { return untagged(0x41, 3, 5, 1, 0, nil) }, 1, 2, 1, head, "queue"},
		{"read request in the queue of sends", func(*node) []byte { return untagged(0x41, 1, 0, 1, 0, make([]byte, 28)) }, 1, 2, 1, head, "queue"},
		{"MSN ahead", func(*node) []byte { return untagged(0x41, 3, 0, 2, 0, []byte("x")) }, 1, 2, 3, head, "is due"},
		{"MSN of old", func(*node) []byte { return untagged(0x41, 3, 0, 0, 0, []byte("x")) }, 1, 2, 3, head, "is due"},
		{"offset ahead", func(*node) []byte { return untagged(0x41, 3, 0, 1, 10, []byte("x")) }, 1, 2, 4, head, "is due"},
		{"message too long", func(*node) []byte { return untagged(0x41, 3, 0, 1, 0, make([]byte, 4097)) }, 1, 2, 5, head, "4096"},
		{"invalidation of a region", func(n *node) []byte {
			u := untagged(0x41, 4, 0, 1, 0, []byte("x"))
			binary.BigEndian.PutUint32(u[2:], n.mr.RKey())
			return u
		}, 0, 1, 9, head, "no bound window"},
		{"shorter than its head", func(*node) []byte { return []byte{0x41, 0x43, 0, 0} }, 2, 0, 3, nothing, "shorter"},
		{"read response nobody asked for", func(n *node) []byte { return tagged(0xc1, 2, n.mr.RKey(), n.addr(0), []byte("x")) }, 0, 2, 6, nothing, "nobody asked"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := serve(t, n, 0x50, 2)
			ulpdu := row.ulpdu(n)
			send(t, c, fpdu(ulpdu, true))
			want := []byte{row.layer<<4 | row.etype, row.code, row.flags, 0}
			if row.flags&head == head {
				size := 18
				if ulpdu[0]&0x80 != 0 {
					size = 14
				}
				want = binary.BigEndian.AppendUint16(want, uint16(len(ulpdu)))
				want = append(want, ulpdu[:size]...)
			}
			if row.flags == headRead {
				want = append(want, ulpdu[18:]...)
			}
			terminated(t, n, c, want, row.text)
		})
	}
}

// readOnly registers the slab for reads of the peer alone.
func (n *node) readOnly() verbs.MR {
	mr, err := n.pd.RegMR(n.mem, verbs.RemoteRead)
	n.must(err)
	return mr
}

// terminated sees a Terminate with this content, the end of the stream behind it, and what the owner is told.
func terminated(t *testing.T, n *node, c net.Conn, want []byte, text string) {
	t.Helper()
	u, err := readFPDU(c)
	if err != nil || !bytes.Equal(u, untagged(0x41, 7, 2, 1, 0, want)) {
		t.Fatalf("the node sent %x: %v\nwant a Terminate with %x", u, err, want)
	}
	if _, err := readFPDU(c); err != io.EOF {
		t.Errorf("behind the Terminate: %v", err)
	}
	c.Close()
	ev := n.event(verbs.EventDisconnected)
	if ev.Err == nil || !strings.Contains(ev.Err.Error(), text) {
		t.Errorf("the owner is told %v", ev.Err)
	}
}

func TestTerminateOfCRC(t *testing.T) {
	for name, spoil := range map[string]func(b []byte){
		"in the field":   func(b []byte) { b[len(b)-1] ^= 1 },
		"in the head":    func(b []byte) { b[12] ^= 0x80 },
		"in the payload": func(b []byte) { b[20] ^= 1 },
		"in the padding": func(b []byte) { b[len(b)-5] = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := serve(t, n, 0x50, 2)
			b := fpdu(untagged(0x41, 3, 0, 1, 0, []byte("abcde")), true)
			spoil(b)
			send(t, c, b)
			if name == "in the head" { // which is looked at first
				terminated(t, n, c, append([]byte{0x12, 3, 0xc0, 0, 0, 23}, b[2:20]...), "is due")
				return
			}
			terminated(t, n, c, []byte{0x20, 2, 0, 0}, "CRC")
			if wc := n.completions(1)[0]; wc.Status != verbs.WCFlushed {
				t.Errorf("the receive completes: %+v", wc)
			}
		})
	}
}

// TestTerminateWithoutReceive: the peer's message waits for a receive as long as its retry count says.
func TestTerminateWithoutReceive(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	n.rnr = 0
	c := serve(t, n, 0x10, 1)
	send(t, c, fpdu(untagged(0x41, 3, 0, 1, 0, nil), false))
	n.completions(1)
	u := untagged(0x41, 3, 0, 2, 0, []byte("x"))
	send(t, c, fpdu(u, false))
	terminated(t, n, c, append([]byte{0x12, 2, 0xc0, 0, 0, 19}, u[:18]...), "no receive was posted")
}

// TestTooManyReads: a peer that asks and asks and takes no answer is cut off.
func TestTooManyReads(t *testing.T) {
	n := newNode(t, iwarp.Options{})
	c := serve(t, n, 0x10, 0)
	mr := n.readOnly()
	for i := range uint32(1000) {
		if _, err := c.Write(fpdu(untagged(0x41, 1, 1, i+1, 0, readRequest(1, 0, slabSize, mr.RKey(), n.addr(0))), false)); err != nil {
			break
		}
	}
	if ev := n.event(verbs.EventDisconnected); ev.Err == nil || !strings.Contains(ev.Err.Error(), "reads at once") {
		t.Fatalf("the owner is told %v", ev.Err)
	}
}

func TestPeerTerminates(t *testing.T) {
	for _, row := range []struct {
		name    string
		content []byte
		text    string
	}{
		{"no receive", []byte{0x12, 2, 0, 0}, "no receive was posted"},
		{"receive too small", []byte{0x12, 5, 0xc0, 0, 0, 1}, "longer than its receive"},
		{"key", []byte{0x11, 0, 0, 0}, "invalid key"},
		{"bounds", []byte{0x11, 1, 0, 0}, "out of bounds"},
		{"right", []byte{0x01, 2, 0, 0}, "right missing"},
		{"window", []byte{0x01, 9, 0, 0}, "cannot be invalidated"},
		{"opcode", []byte{0x02, 6, 0, 0}, "unexpected opcode"},
		{"its own fault", []byte{0x00, 0, 0, 0}, "fault of its own"},
		{"CRC", []byte{0x20, 2, 0, 0}, "CRC"},
		{"unspecified", []byte{0x01, 0xff, 0, 0}, "unspecified"},
		{"unknown", []byte{0xff, 0xff, 0xff, 0xff}, "layer 15 type 15 code 0xff"},
		{"empty", nil, "ended the connection"},
		{"longer than any", append([]byte{0x12, 2, 0, 0}, make([]byte, 1000)...), "no receive was posted"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := serve(t, n, 0x10, 1)
			send(t, c, fpdu(untagged(0x41, 7, 2, 1, 0, row.content), false))
			c.(*net.TCPConn).CloseWrite()
			if ev := n.event(verbs.EventDisconnected); ev.Err == nil || !strings.Contains(ev.Err.Error(), row.text) {
				t.Fatalf("the owner is told %v", ev.Err)
			}
			if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
				t.Errorf("it answered %x, %v", b, err)
			}
		})
	}
}
