// Command kernelprobe asks an o2ib node over plain TCP (iWARP, MPA revision 2) what it answers to
// correct, odd and wrong connection requests and messages, one line each. testdata/kernel-answers.txt
// holds what the Linux kernel's node answered; the test beside it asks the same of a node of ours and
// compares. Against any other node:
//
//	go run ./test/kernelprobe -addr 127.0.0.1:9870 -peer 127.0.0.1 -me 127.0.0.99 > answers.txt
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

var le = binary.LittleEndian

func nidn(net_ uint64, a, b, c, d byte) uint64 {
	return 5<<48 | net_<<32 | uint64(a)<<24 | uint64(b)<<16 | uint64(c)<<8 | uint64(d)
}

type R struct {
	magic            uint32
	ver              uint16
	typ              byte
	src, ss, dst, ds uint64
	qd, fr           uint16
	ms               uint32
	ck               uint32
	o                binary.ByteOrder
	cut              int
}

var (
	addr         = flag.String("addr", "10.77.0.1:987", "TCP address of the node's o2ib listener")
	peerIP       = flag.String("peer", "10.77.0.1", "IPv4 part of the node's NID (network o2ib)")
	meIP         = flag.String("me", "10.77.0.2", "IPv4 part of the NID that this probe claims")
	me, peer     uint64
	mine, theirs net.IP
)

func withLast(ip net.IP, last byte, n uint64) uint64 { return nidn(n, ip[0], ip[1], ip[2], last) }

var SS = uint64(time.Now().UnixMicro())

func def() R { return R{0x0be91b91, 0x12, 0xc0, me, SS, peer, 0, 8, 256, 4096, 0, le, 0} }
func (r R) bytes() []byte {
	m := make([]byte, 56)
	o := r.o
	o.PutUint32(m, r.magic)
	o.PutUint16(m[4:], r.ver)
	m[6] = r.typ
	o.PutUint32(m[8:], 56)
	o.PutUint32(m[12:], r.ck)
	o.PutUint64(m[16:], r.src)
	o.PutUint64(m[24:], r.ss)
	o.PutUint64(m[32:], r.dst)
	o.PutUint64(m[40:], r.ds)
	o.PutUint16(m[48:], r.qd)
	o.PutUint16(m[50:], r.fr)
	o.PutUint32(m[52:], r.ms)
	if r.cut > 0 {
		m = m[:r.cut]
	}
	return m
}

type C struct {
	c   net.Conn
	msn uint32
	ps  uint64
	v   uint16
	ss  uint64
}

func dial(r R, lport int) (*C, string) {
	d := net.Dialer{Timeout: 5 * time.Second}
	if lport > 0 {
		d.LocalAddr = &net.TCPAddr{Port: lport}
	}
	c, e := d.Dial("tcp", *addr)
	if e != nil {
		return nil, "dial: " + e.Error()
	}
	pd := append([]byte{0, 0, 0, 0}, r.bytes()...)
	q := append([]byte("MPA ID Req Frame"), 0x10, 2, 0, byte(len(pd)))
	q = append(q, pd...)
	c.Write(q)
	c.SetDeadline(time.Now().Add(6 * time.Second))
	h := make([]byte, 20)
	if _, e := io.ReadFull(c, h); e != nil {
		c.Close()
		return nil, "no MPA reply: " + e.Error()
	}
	p := make([]byte, binary.BigEndian.Uint16(h[18:]))
	io.ReadFull(c, p)
	if h[16]&0x20 != 0 {
		c.Close()
		if len(p) >= 28 {
			x := p[4:]
			return nil, fmt.Sprintf("REJECT why=%d version=0x%x incarnation=%v depth=%d frags=%d msg=%d", x[6], le.Uint16(x[4:]), le.Uint64(x[8:]) != 0, le.Uint16(x[16:]), le.Uint16(x[18:]), le.Uint32(x[20:]))
		}
		return nil, fmt.Sprintf("REJECT with %d bytes of private data", len(p))
	}
	a := p[4:]
	return &C{c, 0, le.Uint64(a[24:]), r.ver, r.ss}, fmt.Sprintf("ACCEPT version=0x%x type=%x depth=%d frags=%d dststamp-echo=%v", le.Uint16(a[4:]), a[6], le.Uint16(a[48:]), le.Uint16(a[50:]), le.Uint64(a[40:]) == r.ss)
}
func (c *C) send(b []byte) {
	c.msn++
	ul := 18 + len(b)
	pad := (4 - (2+ul)%4) % 4
	f := make([]byte, 2+ul+pad+4)
	binary.BigEndian.PutUint16(f, uint16(ul))
	f[2] = 0x41
	f[3] = 0x43
	binary.BigEndian.PutUint32(f[12:], c.msn)
	copy(f[20:], b)
	c.c.Write(f)
}
func (c *C) msg(typ, cr byte, body []byte, ed func([]byte)) []byte {
	m := make([]byte, 48+len(body))
	le.PutUint32(m, 0x0be91b91)
	le.PutUint16(m[4:], c.v)
	m[6] = typ
	m[7] = cr
	le.PutUint32(m[8:], uint32(len(m)))
	le.PutUint64(m[16:], me)
	le.PutUint64(m[24:], c.ss)
	le.PutUint64(m[32:], peer)
	le.PutUint64(m[40:], c.ps)
	copy(m[48:], body)
	if ed != nil {
		ed(m)
	}
	return m
}
func (c *C) recv(to time.Duration) (string, error) {
	c.c.SetReadDeadline(time.Now().Add(to))
	var h [2]byte
	if _, e := io.ReadFull(c.c, h[:]); e != nil {
		return "", e
	}
	ul := int(binary.BigEndian.Uint16(h[:]))
	pad := (4 - (2+ul)%4) % 4
	b := make([]byte, ul+pad+4)
	if _, e := io.ReadFull(c.c, b); e != nil {
		return "", e
	}
	op := b[1] & 15
	if op == 7 {
		return fmt.Sprintf("TERMINATE ctrl=%02x%02x %x", b[0], b[1], b[2:ul]), nil
	}
	if b[0]&0x80 != 0 {
		return fmt.Sprintf("WRITE stag=%x to=%x len=%d", binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint64(b[6:]), ul-14), nil
	}
	m := b[18:ul]
	s := fmt.Sprintf("type=%x credits=%d nob=%d", m[6], m[7], le.Uint32(m[8:]))
	switch m[6] {
	case 0xd1:
		s += fmt.Sprintf(" lnet=%d payload=%d", le.Uint32(m[72:]), le.Uint32(m[76:]))
	case 0xd3, 0xd5, 0xd7:
		s += fmt.Sprintf(" cookie=%x status=%d", le.Uint64(m[48:]), int32(le.Uint32(m[56:])))
	case 0xd4:
		s += fmt.Sprintf(" src_cookie=%x nfrags=%d nob=%d", le.Uint64(m[48:]), le.Uint32(m[68:]), le.Uint32(m[72:]))
	}
	return s, nil
}
func (c *C) drain(to time.Duration) string {
	var o []string
	for {
		s, e := c.recv(to)
		if e != nil {
			if ne, ok := e.(net.Error); ok && ne.Timeout() {
				o = append(o, "(stays open)")
			} else {
				o = append(o, "closed: "+e.Error())
			}
			break
		}
		o = append(o, s)
	}
	return strings.Join(o, "; ")
}
func hdr(typ uint32, plen uint32, ed func([]byte)) []byte {
	h := make([]byte, 72)
	le.PutUint64(h, peer)
	le.PutUint64(h[8:], me)
	le.PutUint32(h[16:], 12345)
	le.PutUint32(h[20:], 12345)
	le.PutUint32(h[24:], typ)
	le.PutUint32(h[28:], plen)
	for i := 32; i < 48; i++ {
		h[i] = 0xff
	}
	if ed != nil {
		ed(h)
	}
	return h
}
func main() {
	flag.Parse()
	ask(os.Stdout)
}

// ask puts every question to the node at -addr and writes its answers to out.
func ask(out io.Writer) {
	mine = net.ParseIP(*meIP).To4()
	theirs = net.ParseIP(*peerIP).To4()
	me = withLast(mine, mine[3], 0)
	peer = withLast(theirs, theirs[3], 0)
	try := func(name string, f func(*R)) {
		r := def()
		SS++
		r.ss = SS
		f(&r)
		c, s := dial(r, 0)
		fmt.Fprintf(out, "Q %s => %s\n", name, s)
		if c != nil {
			c.c.Close()
			time.Sleep(700 * time.Millisecond)
		}
	}
	// each with own stamp: wait between so that conn is gone
	try("plain v2 depth 8 frags 256, unprivileged source port", func(r *R) {})
	try("depth 16", func(r *R) { r.qd = 16 })
	try("depth 4", func(r *R) { r.qd = 4 })
	try("depth 1", func(r *R) { r.qd = 1 })
	try("frags 257", func(r *R) { r.fr = 257 })
	try("frags 258", func(r *R) { r.fr = 258 })
	try("frags 32", func(r *R) { r.fr = 32 })
	try("frags 1", func(r *R) { r.fr = 1 })
	try("depth 16 and frags 300", func(r *R) { r.qd = 16; r.fr = 300 })
	try("max_msg_size 8192", func(r *R) { r.ms = 8192 })
	try("max_msg_size 2048", func(r *R) { r.ms = 2048 })
	try("dststamp 12345", func(r *R) { r.ds = 12345 })
	try("dstnid of another host", func(r *R) { r.dst = withLast(theirs, 219, 0) })
	try("dstnid right address on o2ib9", func(r *R) { r.dst = withLast(theirs, theirs[3], 9) })
	try("srcnid all ones", func(r *R) { r.src = ^uint64(0) })
	try("srcnid on another net o2ib9", func(r *R) { r.src = withLast(mine, mine[3], 9) })
	try("version 0x13", func(r *R) { r.ver = 0x13 })
	try("version 0x10", func(r *R) { r.ver = 0x10 })
	try("version 0x11 depth 8 frags 256", func(r *R) { r.ver = 0x11 })
	try("version 0x11 depth 16", func(r *R) { r.ver = 0x11; r.qd = 16 })
	try("version 0x11 frags 32", func(r *R) { r.ver = 0x11; r.fr = 32 })
	try("magic LNET_PROTO 0x45726963", func(r *R) { r.magic = 0x45726963 })
	try("magic 0", func(r *R) { r.magic = 0 })
	try("type CONNACK", func(r *R) { r.typ = 0xc1 })
	try("type NOOP", func(r *R) { r.typ = 0xd0 })
	try("wrong checksum", func(r *R) { r.ck = 0xdeadbeef })
	try("big-endian sender", func(r *R) { r.o = binary.BigEndian })
	for _, n := range []int{0, 4, 6, 8, 20, 48, 52} {
		n := n
		if n == 0 {
			continue
		}
		try(fmt.Sprintf("private data cut to %d bytes", n), func(r *R) { r.cut = n })
	}
	// stale: same nid, second connection with the same stamp, then a new stamp
	r := def()
	SS++
	r.ss = SS
	c1, s := dial(r, 0)
	fmt.Fprintln(out, "S first connection =>", s)
	c2, s := dial(r, 0)
	fmt.Fprintln(out, "S second connection, same stamp =>", s)
	if c2 != nil {
		defer c2.c.Close()
	}
	r2 := r
	SS++
	r2.ss = SS
	_, s = dial(r2, 0)
	fmt.Fprintln(out, "S third, new stamp =>", s)
	fmt.Fprintln(out, "S   first then sees:", c1.drain(2*time.Second))
	if c2 != nil {
		fmt.Fprintln(out, "S   second then sees:", c2.drain(2*time.Second))
	}
	c4, s := dial(r2, 0)
	fmt.Fprintln(out, "S new stamp again =>", s)
	if c4 != nil {
		c4.c.Close()
	}
	time.Sleep(time.Second)
	data := func(name string, f func(c *C)) {
		r := def()
		SS++
		r.ss = SS
		var c *C
		var s string
		for i := 0; i < 6; i++ {
			c, s = dial(r, 0)
			if c != nil {
				break
			}
			time.Sleep(time.Second)
		}
		if c == nil {
			fmt.Fprintln(out, "D", name, "no conn", s)
			return
		}
		f(c)
		fmt.Fprintf(out, "D %s => %s\n", name, c.drain(2500*time.Millisecond))
		c.c.Close()
		time.Sleep(900 * time.Millisecond)
	}
	ping := func(sink uint32) []byte {
		return hdr(2, 0, func(h []byte) {
			le.PutUint64(h[32:], 0x1111)
			le.PutUint64(h[40:], 0x2222)
			le.PutUint64(h[48:], 1<<63)
			le.PutUint32(h[64:], sink)
		})
	}
	data("ping, sink 3960", func(c *C) { c.send(c.msg(0xd1, 0, ping(3960), nil)) })
	data("ping, sink 20", func(c *C) { c.send(c.msg(0xd1, 0, ping(20), nil)) })
	data("9 pings at once (depth 8)", func(c *C) {
		for i := 0; i < 9; i++ {
			c.send(c.msg(0xd1, 0, ping(3960), nil))
		}
	})
	data("NOOP with 1 credit not owed", func(c *C) { c.send(c.msg(0xd0, 1, nil, nil)) })
	data("NOOP with 0 credits", func(c *C) { c.send(c.msg(0xd0, 0, nil, nil)) })
	data("unknown type 0xd8", func(c *C) { c.send(c.msg(0xd8, 0, nil, nil)) })
	data("CONNACK on a live connection", func(c *C) { c.send(c.msg(0xc1, 0, []byte{8, 0, 0, 1, 0, 16, 0, 0}, nil)) })
	data("wrong dststamp", func(c *C) { c.send(c.msg(0xd0, 0, nil, func(m []byte) { le.PutUint64(m[40:], 77) })) })
	data("wrong srcstamp", func(c *C) { c.send(c.msg(0xd0, 0, nil, func(m []byte) { le.PutUint64(m[24:], 77) })) })
	data("wrong srcnid", func(c *C) {
		c.send(c.msg(0xd0, 0, nil, func(m []byte) { le.PutUint64(m[16:], withLast(mine, 213, 0)) }))
	})
	data("nob larger than received", func(c *C) { c.send(c.msg(0xd0, 0, nil, func(m []byte) { le.PutUint32(m[8:], 500) })) })
	data("nob smaller than received (trailing bytes)", func(c *C) { c.send(append(c.msg(0xd0, 0, nil, nil), make([]byte, 100)...)) })
	data("version 0x11 inside a v2 connection", func(c *C) { c.send(c.msg(0xd0, 0, nil, func(m []byte) { le.PutUint16(m[4:], 0x11) })) })
	data("PUT_DONE unknown cookie", func(c *C) { c.send(c.msg(0xd5, 0, append(make([]byte, 8), 0, 0, 0, 0), nil)) })
	data("PUT_ACK unknown cookie", func(c *C) {
		b := make([]byte, 24+12)
		le.PutUint32(b[20:], 1)
		le.PutUint32(b[24:], 4096)
		c.send(c.msg(0xd4, 0, b, nil))
	})
	data("PUT_ACK nfrags 0", func(c *C) { b := make([]byte, 24+12); c.send(c.msg(0xd4, 0, b, nil)) })
	putreq := func(ptl uint32, n uint32) []byte {
		return append(hdr(1, n, func(h []byte) { le.PutUint64(h[48:], 0x55); le.PutUint32(h[64:], ptl) }), 0xab, 0, 0, 0, 0, 0, 0, 0)
	}
	data("PUT_REQ to an unused portal, 8192 bytes", func(c *C) { c.send(c.msg(0xd2, 0, putreq(40, 8192), nil)) })
	data("PUT_REQ payload 2 MiB", func(c *C) { c.send(c.msg(0xd2, 0, putreq(40, 2<<20), nil)) })
	getreq := func(ptl uint32, mb uint64, n uint32, frn uint32) []byte {
		b := append(hdr(2, 0, func(h []byte) {
			le.PutUint64(h[32:], 0x1111)
			le.PutUint64(h[40:], 0x2222)
			le.PutUint64(h[48:], mb)
			le.PutUint32(h[56:], ptl)
			le.PutUint32(h[64:], n)
		}), 0xcd, 0, 0, 0, 0, 0, 0, 0)
		x := make([]byte, 8+12*max(frn, 1))
		le.PutUint32(x, 0x4455)
		le.PutUint32(x[4:], frn)
		for i := uint32(0); i < frn; i++ {
			le.PutUint32(x[8+12*i:], n/frn)
			le.PutUint64(x[12+12*i:], 0x10000+uint64(i)*uint64(n/frn))
		}
		return append(b, x...)
	}
	data("GET_REQ to an unused portal", func(c *C) { c.send(c.msg(0xd6, 0, getreq(40, 5, 8192, 1), nil)) })
	data("GET_REQ ping, sink 8192 in 1 fragment", func(c *C) { c.send(c.msg(0xd6, 0, getreq(0, 1<<63, 8192, 1), nil)) })
	data("GET_REQ ping, sink 8192 in 2 fragments of 4096", func(c *C) { c.send(c.msg(0xd6, 0, getreq(0, 1<<63, 8192, 2), nil)) })
	data("GET_REQ nfrags 0", func(c *C) { c.send(c.msg(0xd6, 0, getreq(0, 1<<63, 8192, 0), nil)) })
	data("GET_REQ nfrags 258 claimed", func(c *C) {
		c.send(c.msg(0xd6, 0, getreq(0, 1<<63, 8192, 1), func(m []byte) { le.PutUint32(m[132:], 258) }))
	})
	data("IMMEDIATE PUT, unused portal, no ack", func(c *C) {
		c.send(c.msg(0xd1, 0, append(hdr(1, 16, func(h []byte) { le.PutUint64(h[48:], 5); le.PutUint32(h[64:], 40) }), make([]byte, 16)...), nil))
	})
	data("IMMEDIATE PUT, payload_length 4000 with 16 bytes there", func(c *C) {
		c.send(c.msg(0xd1, 0, append(hdr(1, 4000, func(h []byte) { le.PutUint64(h[48:], 5); le.PutUint32(h[64:], 40) }), make([]byte, 16)...), nil))
	})
	data("IMMEDIATE PUT push to portal 0, ack wanted, garbage ping info", func(c *C) {
		c.send(c.msg(0xd1, 0, append(hdr(1, 48, func(h []byte) {
			le.PutUint64(h[32:], 0x33)
			le.PutUint64(h[40:], 0x44)
			le.PutUint64(h[48:], 1<<63)
			le.PutUint32(h[64:], 0)
		}), make([]byte, 48)...), nil))
	})
	data("IMMEDIATE LNet type 9", func(c *C) { c.send(c.msg(0xd1, 0, hdr(9, 0, nil), nil)) })
	data("IMMEDIATE REPLY with unknown handle", func(c *C) { c.send(c.msg(0xd1, 0, hdr(3, 0, nil), nil)) })
	data("IMMEDIATE to another dest_nid in the LNet header", func(c *C) {
		c.send(c.msg(0xd1, 0, hdr(2, 0, func(h []byte) { le.PutUint64(h, withLast(mine, 218, 0)) }), nil))
	})
	data("IMMEDIATE from another src_nid in the LNet header (ping)", func(c *C) {
		p := ping(3960)
		le.PutUint64(p[8:], withLast(mine, 218, 0))
		c.send(c.msg(0xd1, 0, p, nil))
	})
	fmt.Fprintln(out, "END")
}
