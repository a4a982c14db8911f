// Package pcap reads packet captures, and writes one for a dissector to judge us by. The reader takes classic pcap
// (both byte orders, micro- and nanoseconds) and pcapng, and gives packets as they were captured; Packet.Segment
// peels off link, IP and TCP or UDP headers. The writer wraps a TCP stream's bytes in packets. A Reader belongs
// to one goroutine; a Writer may be shared. Nothing here knows of o2iblnd; it serves `o2ibd decode` and the
// tests that ask tshark (decision 19).
package pcap

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// LinkType says what a packet begins with.
type LinkType uint16

// The link types whose packets Segment understands.
const (
	LinkNull     LinkType = 0   // BSD loopback, host order
	LinkEthernet LinkType = 1   // with or without VLAN tags
	LinkRaw      LinkType = 101 // an IP packet
	LinkLoop     LinkType = 108 // OpenBSD loopback, network order
	LinkSLL      LinkType = 113 // Linux cooked
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkSLL2     LinkType = 276 // Linux cooked, version 2
)

// Why a capture cannot be read. Errors of NewReader and Next wrap one of these, or are the stream's own.
var (
	ErrNotCapture = errors.New("neither pcap nor pcapng")
	ErrCorrupt    = errors.New("corrupt capture")
)

const (
	magicMicro  = 0xa1b2c3d4
	magicNano   = 0xa1b23c4d
	magicBlock  = 0x0a0d0d0a // section header block, the same in both byte orders
	magicOrder  = 0x1a2b3c4d
	maxPacket   = 1 << 20
	maxBlock    = 16 << 20
	maxLinks    = 1 << 16
	fileHeader  = 24
	blockFrame  = 12 // type and length before, length behind
	blockIDB    = 1
	blockSPB    = 3
	blockEPB    = 6
	optEnd      = 0
	optTsresol  = 9
	optTsoffset = 14
)

// Packet is one captured packet. Data is overwritten by the next call of Next.
type Packet struct {
	Time time.Time // zero when the capture has none
	Link LinkType
	Data []byte // what was captured
	Len  int    // bytes that it had on the wire
}

// link is an interface of a pcapng section, or the only one of a classic file.
type link struct {
	typ     LinkType
	snaplen uint32 // 0: no limit
	units   uint64 // timestamp units a second
	offset  int64  // seconds to add
}

// Reader gives the packets of a capture in the order in which they stand there.
type Reader struct {
	r     *bufio.Reader
	o     binary.ByteOrder
	ng    bool
	links []link
	buf   bytes.Buffer
}

// IsCapture tells by its first four bytes whether a file is one that NewReader takes.
func IsCapture(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	for _, o := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch o.Uint32(head) {
		case magicMicro, magicNano, magicBlock:
			return true
		}
	}
	return false
}

// NewReader reads the file's header. The error is ErrNotCapture when r is something else.
func NewReader(r io.Reader) (*Reader, error) {
	p := &Reader{r: bufio.NewReaderSize(r, 1<<16)}
	head, err := p.r.Peek(4)
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: %d bytes", ErrNotCapture, len(head))
	case err != nil:
		return nil, err
	case !IsCapture(head):
		return nil, fmt.Errorf("%w: starts with % x", ErrNotCapture, head)
	}
	if binary.LittleEndian.Uint32(head) == magicBlock {
		p.ng = true
		return p, p.section()
	}
	return p, p.classic()
}

// classic reads the header of a classic file.
func (p *Reader) classic() error {
	b, err := p.take(fileHeader)
	if err != nil {
		return err
	}
	p.o = binary.LittleEndian
	if m := p.o.Uint32(b); m != magicMicro && m != magicNano {
		p.o = binary.BigEndian
	}
	l := link{typ: LinkType(p.o.Uint32(b[20:])), units: 1e6} // the upper half of the word holds flags
	if p.o.Uint32(b) == magicNano {
		l.units = 1e9
	}
	if major := p.o.Uint16(b[4:]); major != 2 {
		return fmt.Errorf("%w: pcap version %d, only 2 is known", ErrCorrupt, major)
	}
	p.links = []link{l}
	return nil
}

// take reads n bytes, which stay valid until the next take. Memory grows with what comes, not with what
// a length field says.
func (p *Reader) take(n int) ([]byte, error) {
	p.buf.Reset()
	got, err := io.CopyN(&p.buf, p.r, int64(n))
	if errors.Is(err, io.EOF) {
		if got == 0 {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("%w: cut after %d of %d bytes", ErrCorrupt, got, n)
	}
	return p.buf.Bytes(), err
}

// must is take where the file may not end.
func (p *Reader) must(n int) ([]byte, error) {
	b, err := p.take(n)
	if errors.Is(err, io.EOF) && n > 0 {
		return nil, fmt.Errorf("%w: ends where %d bytes should follow", ErrCorrupt, n)
	}
	return b, err
}

// Next gives the next packet, or io.EOF behind the last.
func (p *Reader) Next() (Packet, error) {
	if p.ng {
		return p.nextBlock()
	}
	b, err := p.take(16)
	if err != nil {
		return Packet{}, err
	}
	l := p.links[0]
	sec, frac := p.o.Uint32(b), p.o.Uint32(b[4:])
	n, orig := p.o.Uint32(b[8:]), p.o.Uint32(b[12:])
	if n > maxPacket || orig > math.MaxInt32 {
		return Packet{}, fmt.Errorf("%w: packet of %d bytes (%d on the wire), at most %d are read", ErrCorrupt, n, orig, maxPacket)
	}
	data, err := p.must(int(n))
	if err != nil {
		return Packet{}, err
	}
	at := time.Unix(int64(sec), int64(frac)*int64(1e9/l.units))
	return Packet{Time: at, Link: l.typ, Data: data, Len: int(orig)}, nil
}

// section reads a section header block from its first byte on, and forgets the interfaces of the last section.
func (p *Reader) section() error {
	head, err := p.r.Peek(blockFrame)
	if err != nil {
		return fmt.Errorf("%w: section header cut", ErrCorrupt)
	}
	switch uint32(magicOrder) {
	case binary.LittleEndian.Uint32(head[8:]):
		p.o = binary.LittleEndian
	case binary.BigEndian.Uint32(head[8:]):
		p.o = binary.BigEndian
	default:
		return fmt.Errorf("%w: section header without byte order", ErrCorrupt)
	}
	p.links = p.links[:0]
	_, body, err := p.block()
	if err != nil {
		return err
	}
	if len(body) < 16 {
		return fmt.Errorf("%w: section header of %d bytes", ErrCorrupt, len(body))
	}
	if major := p.o.Uint16(body[4:]); major != 1 {
		return fmt.Errorf("%w: pcapng version %d, only 1 is known", ErrCorrupt, major)
	}
	return nil
}

// block reads one block of pcapng and gives its type and what lies between its lengths.
func (p *Reader) block() (uint32, []byte, error) {
	head, err := p.r.Peek(8)
	switch {
	case errors.Is(err, io.EOF) && len(head) == 0:
		return 0, nil, io.EOF
	case errors.Is(err, io.EOF):
		return 0, nil, fmt.Errorf("%w: block header cut after %d bytes", ErrCorrupt, len(head))
	case err != nil:
		return 0, nil, err
	}
	typ, n := p.o.Uint32(head), p.o.Uint32(head[4:])
	if n < blockFrame || n%4 != 0 || n > maxBlock {
		return 0, nil, fmt.Errorf("%w: block of %d bytes, multiples of 4 from %d to %d are allowed", ErrCorrupt, n, blockFrame, maxBlock)
	}
	b, err := p.must(int(n))
	if err != nil {
		return 0, nil, err
	}
	if tail := p.o.Uint32(b[n-4:]); tail != n {
		return 0, nil, fmt.Errorf("%w: block says %d bytes before and %d behind", ErrCorrupt, n, tail)
	}
	return typ, b[8 : n-4], nil
}

func (p *Reader) nextBlock() (Packet, error) {
	for {
		head, err := p.r.Peek(4)
		if err == nil && binary.LittleEndian.Uint32(head) == magicBlock {
			if err := p.section(); err != nil {
				return Packet{}, err
			}
			continue
		}
		typ, body, err := p.block()
		if err != nil {
			return Packet{}, err
		}
		switch typ {
		case blockIDB:
			err = p.addLink(body)
		case blockEPB:
			return p.enhanced(body)
		case blockSPB:
			return p.simple(body)
		}
		if err != nil {
			return Packet{}, err
		}
	}
}

// addLink reads an interface description block.
func (p *Reader) addLink(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("%w: interface description of %d bytes", ErrCorrupt, len(b))
	}
	if len(p.links) == maxLinks {
		return fmt.Errorf("%w: more than %d interfaces", ErrCorrupt, maxLinks)
	}
	l := link{typ: LinkType(p.o.Uint16(b)), snaplen: p.o.Uint32(b[4:]), units: 1e6}
	for o := b[8:]; len(o) >= 4; {
		code, n := p.o.Uint16(o), int(p.o.Uint16(o[2:]))
		padded := (n + 3) &^ 3
		if code == optEnd {
			break
		}
		if padded > len(o)-4 {
			return fmt.Errorf("%w: interface option %d of %d bytes in %d", ErrCorrupt, code, n, len(o)-4)
		}
		v := o[4 : 4+n]
		switch {
		case code == optTsresol && n == 1:
			units, err := resolution(v[0])
			if err != nil {
				return err
			}
			l.units = units
		case code == optTsoffset && n == 8:
			l.offset = int64(p.o.Uint64(v))
		}
		o = o[4+padded:]
	}
	p.links = append(p.links, l)
	return nil
}

// resolution gives the units a second of if_tsresol: a negative power of 10, or of 2 with the top bit set.
func resolution(v byte) (uint64, error) {
	exp := v & 0x7f
	if v&0x80 != 0 {
		if exp > 63 {
			return 0, fmt.Errorf("%w: timestamps of 2^-%d s", ErrCorrupt, exp)
		}
		return 1 << exp, nil
	}
	if exp > 19 {
		return 0, fmt.Errorf("%w: timestamps of 10^-%d s", ErrCorrupt, exp)
	}
	units := uint64(1)
	for range exp {
		units *= 10
	}
	return units, nil
}

// time of a 64-bit timestamp.
func (l link) time(ts uint64) time.Time {
	frac := float64(ts%l.units) / float64(l.units) * 1e9
	if l.units <= 1e9 && 1e9%l.units == 0 {
		frac = float64(ts % l.units * (1e9 / l.units))
	}
	return time.Unix(int64(ts/l.units)+l.offset, int64(frac))
}

func (p *Reader) enhanced(b []byte) (Packet, error) {
	if len(b) < 20 {
		return Packet{}, fmt.Errorf("%w: packet block of %d bytes", ErrCorrupt, len(b))
	}
	id := p.o.Uint32(b)
	if uint64(id) >= uint64(len(p.links)) {
		return Packet{}, fmt.Errorf("%w: packet of interface %d, %d are described", ErrCorrupt, id, len(p.links))
	}
	n, orig := p.o.Uint32(b[12:]), p.o.Uint32(b[16:])
	if uint64(n) > uint64(len(b)-20) || n > maxPacket || orig > math.MaxInt32 {
		return Packet{}, fmt.Errorf("%w: packet of %d bytes (%d on the wire) in a block of %d", ErrCorrupt, n, orig, len(b))
	}
	l := p.links[id]
	ts := uint64(p.o.Uint32(b[4:]))<<32 | uint64(p.o.Uint32(b[8:]))
	return Packet{Time: l.time(ts), Link: l.typ, Data: b[20 : 20+n], Len: int(orig)}, nil
}

func (p *Reader) simple(b []byte) (Packet, error) {
	if len(b) < 4 || len(p.links) == 0 {
		return Packet{}, fmt.Errorf("%w: simple packet block of %d bytes, %d interfaces", ErrCorrupt, len(b), len(p.links))
	}
	l := p.links[0]
	orig := p.o.Uint32(b)
	n := orig
	if l.snaplen != 0 {
		n = min(n, l.snaplen)
	}
	if uint64(n) > uint64(len(b)-4) || n > maxPacket || orig > math.MaxInt32 {
		return Packet{}, fmt.Errorf("%w: packet of %d bytes in a block of %d", ErrCorrupt, n, len(b))
	}
	return Packet{Link: l.typ, Data: b[4 : 4+n], Len: int(orig)}, nil
}
