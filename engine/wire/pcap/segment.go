package pcap

import (
	"encoding/binary"
	"net/netip"
)

// Protocols of a Segment.
const (
	TCP = 6
	UDP = 17
)

// Flags of a TCP segment.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	PSH = 0x08
	ACK = 0x10
)

// Segment is what a packet carries for a TCP stream or as a UDP datagram.
type Segment struct {
	Proto    uint8 // TCP or UDP
	Src, Dst netip.AddrPort
	Seq      uint32 // TCP
	Flags    uint8  // TCP
	Payload  []byte // points into the packet
	Missing  int    // bytes of payload that the capture cut off
}

// Segment reads link, IP and transport headers. ok is false for anything else than a whole TCP segment
// or UDP datagram over IP: other protocols, IP fragments, headers that were cut.
func (p Packet) Segment() (s Segment, ok bool) {
	b, ok := ipPacket(p.Link, p.Data)
	if !ok || len(b) == 0 {
		return s, false
	}
	switch b[0] >> 4 {
	case 4:
		return ipv4(b)
	case 6:
		return ipv6(b)
	}
	return s, false
}

// ipPacket strips the link header; ok is false when something else than IP follows.
func ipPacket(t LinkType, b []byte) ([]byte, bool) {
	const etherIPv4, etherIPv6, etherVLAN, etherQinQ = 0x0800, 0x86dd, 0x8100, 0x88a8
	var ether uint16
	switch t {
	case LinkRaw, LinkIPv4, LinkIPv6, 12, 14: // the last two are what some systems' raw sockets write
		return b, true
	case LinkNull, LinkLoop:
		if len(b) < 4 {
			return nil, false
		}
		return b[4:], true // the family is told better by the IP version
	case LinkEthernet:
		if len(b) < 14 {
			return nil, false
		}
		ether, b = binary.BigEndian.Uint16(b[12:]), b[14:]
	case LinkSLL:
		if len(b) < 16 {
			return nil, false
		}
		ether, b = binary.BigEndian.Uint16(b[14:]), b[16:]
	case LinkSLL2:
		if len(b) < 20 {
			return nil, false
		}
		ether, b = binary.BigEndian.Uint16(b), b[20:]
	default:
		return nil, false
	}
	for ether == etherVLAN || ether == etherQinQ {
		if len(b) < 4 {
			return nil, false
		}
		ether, b = binary.BigEndian.Uint16(b[2:]), b[4:]
	}
	return b, ether == etherIPv4 || ether == etherIPv6
}

func ipv4(b []byte) (s Segment, ok bool) {
	if len(b) < 20 {
		return s, false
	}
	head, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 { // left to the card to fill in
		total = len(b)
	}
	const moreFragments, fragmentOffset = 0x2000, 0x1fff
	frag := binary.BigEndian.Uint16(b[6:])
	if head < 20 || head > len(b) || total < head || frag&(moreFragments|fragmentOffset) != 0 {
		return s, false
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return transport(b[9], src, dst, b[head:min(total, len(b))], total-head)
}

func ipv6(b []byte) (s Segment, ok bool) {
	const hopByHop, routing, options = 0, 43, 60
	if len(b) < 40 {
		return s, false
	}
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	next, total := b[6], int(binary.BigEndian.Uint16(b[4:]))
	b = b[40:]
	if total == 0 {
		total = len(b)
	}
	b = b[:min(total, len(b))]
	for next == hopByHop || next == routing || next == options {
		if len(b) < 8 {
			return s, false
		}
		n := 8 + int(b[1])*8
		if n > len(b) {
			return s, false
		}
		next, b, total = b[0], b[n:], total-n
	}
	return transport(next, src, dst, b, total)
}

// transport reads a TCP or UDP header; total is what b would be had nothing been cut.
func transport(proto uint8, src, dst netip.Addr, b []byte, total int) (s Segment, ok bool) {
	s.Proto = proto
	head := 0
	switch proto {
	case TCP:
		if len(b) < 20 {
			return s, false
		}
		head = int(b[12]>>4) * 4
		s.Seq, s.Flags = binary.BigEndian.Uint32(b[4:]), b[13]
		if head < 20 {
			return s, false
		}
	case UDP:
		if len(b) < 8 {
			return s, false
		}
		head = 8
		if n := int(binary.BigEndian.Uint16(b[4:])); n != 0 {
			if n < head || n > total {
				return s, false
			}
			total = n
			b = b[:min(n, len(b))]
		}
	default:
		return s, false
	}
	if head > len(b) {
		return s, false
	}
	s.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	s.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	s.Payload = b[head:]
	s.Missing = total - len(b)
	return s, true
}
