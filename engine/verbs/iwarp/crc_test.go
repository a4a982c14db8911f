package iwarp_test

import (
	"bytes"
	"net"
	"testing"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// crcNode has a peer that asks for CRC.
func crcNode(t *testing.T) (*node, net.Conn) {
	n := newNode(t, iwarp.Options{})
	return n, serve(t, n, 0x40, 2)
}

// TestOthersWriteTheSink: what somebody else does to the memory that a segment goes to is no CRC error of
// the segment.
func TestOthersWriteTheSink(t *testing.T) {
	const at, size, half = 1 << 16, 60000, 20000
	n, c := crcNode(t)
	frame := fpdu(tagged(0xc1, 0, n.mr.RKey(), n.addr(at), bytes.Repeat([]byte{'x'}, size)), true)
	send(t, c, frame[:half])
	for i := range n.mem[at : at+size] {
		n.mem[at+i] = 'o'
	}
	send(t, c, frame[half:])
	send(t, c, fpdu(untagged(0x41, 3, 0, 1, 0, []byte("done")), true))
	if wc := n.completions(1)[0]; wc.Status != verbs.WCSuccess || wc.ByteLen != 4 {
		t.Fatalf("the send behind: %+v", wc)
	}
	if bytes.IndexByte(n.mem[at:at+size], 'o') >= 0 {
		t.Error("the segment is not in place")
	}
	c.Close()
}

// TestBadCRCPlacesNothing: a segment whose CRC is wrong changes no memory.
func TestBadCRCPlacesNothing(t *testing.T) {
	const at, size = 1 << 16, 5000
	n, c := crcNode(t)
	frame := fpdu(tagged(0xc1, 0, n.mr.RKey(), n.addr(at), bytes.Repeat([]byte{'x'}, size)), true)
	frame[100] ^= 1
	send(t, c, frame)
	n.event(verbs.EventDisconnected)
	if bytes.IndexByte(n.mem[at:at+size], 'x') >= 0 {
		t.Error("a segment with a wrong CRC was placed")
	}
	c.Close()
}
