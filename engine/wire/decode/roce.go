package decode

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"o2ibd/engine/wire"
	"o2ibd/engine/wire/pcap"
)

// RoCEv2 as far as sends and connection management need it (InfiniBand specification 1, chapters 9, 12 and 13).
const (
	rocePort = 4791
	bthSize  = 12
	icrcSize = 4

	rcSendFirst     = 0x00
	rcSendMiddle    = 0x01
	rcSendLast      = 0x02
	rcSendLastImm   = 0x03
	rcSendOnly      = 0x04
	rcSendOnlyImm   = 0x05
	rcSendLastInv   = 0x16
	rcSendOnlyInv   = 0x17
	immOrInvSize    = 4
	udSendOnly      = 0x64
	udHeader        = 8
	managementQP    = 1
	managementClass = 7 // communication management

	madHeader   = 24
	madSize     = 256
	cmREQ       = 0x10
	cmREJ       = 0x12
	cmREP       = 0x13
	reqQPN      = 32
	reqPrivate  = 140 + 36 // behind the IP addresses that the RDMA CM puts first
	repQPN      = 12
	repPrivate  = 36
	rejReason   = 10
	rejPrivate  = 84
	rejConsumer = 28
)

// queuePair names the receiving end of an RC connection by the sender's address and its own.
type queuePair struct {
	src, dst netip.Addr
	qpn      uint32
}

func (q queuePair) String() string { return fmt.Sprintf("%v > %v QP %#x", q.src, q.dst, q.qpn) }

// roceFlow is what a queue pair receives.
type roceFlow struct {
	seen   bool   // psn is that of a packet
	psn    uint32 // of the newest send, 24 bits
	msg    []byte
	open   bool
	broken bool // a packet is missing: nothing is printed until the last one went by
	ours   bool // it carried a message of ours, so that faults are worth a word
}

// roce takes one datagram.
func (c *capture) roce(s pcap.Segment) {
	b := s.Payload
	if len(b) < bthSize+icrcSize || s.Missing > 0 {
		if s.Missing > 0 && len(b) >= bthSize {
			c.cut(s)
		}
		return
	}
	op, pad := b[0], int(b[1]>>4&3)
	qpn, psn := be24(b[5:]), be24(b[9:])
	b = b[bthSize : len(b)-icrcSize]
	extra := 0
	switch op {
	case rcSendFirst, rcSendMiddle, rcSendLast, rcSendOnly:
	case rcSendLastImm, rcSendOnlyImm, rcSendLastInv, rcSendOnlyInv:
		extra = immOrInvSize
	case udSendOnly:
		extra = udHeader
	default:
		return
	}
	if len(b) < extra+pad {
		return
	}
	b = b[extra : len(b)-pad]
	if op == udSendOnly {
		if qpn == managementQP {
			c.mad(s, b)
		}
		return
	}
	c.send(queuePair{s.Src.Addr(), s.Dst.Addr(), qpn}, op, psn, b)
}

// cut breaks the message of which the capture kept only a part.
func (c *capture) cut(s pcap.Segment) {
	q := queuePair{s.Src.Addr(), s.Dst.Addr(), be24(s.Payload[5:])}
	if f := c.pairs[q]; f != nil && f.ours && s.Payload[0] <= rcSendOnlyImm {
		f.broken = true
		c.d.fail(q.String(), fmt.Errorf("the capture cut %d bytes off a send", s.Missing))
	}
}

// send takes one packet of an RC send.
func (c *capture) send(q queuePair, op byte, psn uint32, b []byte) {
	first := op == rcSendFirst || op == rcSendOnly || op == rcSendOnlyImm || op == rcSendOnlyInv
	last := op != rcSendFirst && op != rcSendMiddle
	f := c.pairs[q]
	if f == nil {
		if !first || !isOurs(b) || !c.room() {
			return
		}
		f = new(roceFlow)
		c.pairs[q] = f
	}
	const half, mask = 1 << 23, 1<<24 - 1
	step := (psn - f.psn) & mask
	if f.seen && (step == 0 || step >= half) {
		return // sent again
	}
	f.seen, f.psn = true, psn
	fail := func(err error) {
		if f.ours && !f.broken {
			c.d.fail(q.String(), err)
		}
		f.broken = true
	}
	if first {
		if f.open {
			fail(fmt.Errorf("a send ends without its last packet"))
		}
		f.msg, f.open, f.broken = f.msg[:0], true, false
		f.ours = f.ours || isOurs(b)
	}
	switch {
	case f.broken:
	case !f.open || !first && step != 1:
		fail(fmt.Errorf("a packet of a send is missing before number %d", psn))
	case len(f.msg)+len(b) > wire.MsgSize:
		fail(fmt.Errorf("a send has more than %d bytes", wire.MsgSize))
	default:
		f.msg = append(f.msg, b...)
	}
	if !last {
		return
	}
	if !f.broken && f.ours {
		c.d.message(q.String(), f.msg)
	}
	f.msg, f.open, f.broken = f.msg[:0], false, false
}

// mad takes a management datagram: the private data of REQ, REP and REJ. What is not ours is left.
func (c *capture) mad(s pcap.Segment, b []byte) {
	if len(b) < madSize || b[1] != managementClass {
		return
	}
	attribute := binary.BigEndian.Uint16(b[16:])
	b = b[madHeader:madSize]
	of := fmt.Sprintf("%v > %v", s.Src.Addr(), s.Dst.Addr())
	switch attribute {
	case cmREQ:
		if p := b[reqPrivate:]; isOurs(p) {
			delete(c.pairs, queuePair{s.Dst.Addr(), s.Src.Addr(), be24(b[reqQPN:])}) // the number may be used again
			c.d.message(of, p)
		}
	case cmREP:
		if p := b[repPrivate:]; isOurs(p) {
			delete(c.pairs, queuePair{s.Dst.Addr(), s.Src.Addr(), be24(b[repQPN:])})
			c.d.message(of, p)
		}
	case cmREJ:
		p := b[rejPrivate:]
		if binary.BigEndian.Uint16(b[rejReason:]) == rejConsumer && (isOurs(p) || hasMagic(p, wire.LNetProtoMagic)) {
			c.d.reject(of, p)
		}
	}
}

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
