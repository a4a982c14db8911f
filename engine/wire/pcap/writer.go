package pcap

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// maxSegment is the most that one packet of ours carries: a whole FPDU, whatever its size, fits.
const maxSegment = 65535 - ipHeader - tcpHeader

const ipHeader, tcpHeader = 20, 20

// Writer writes a capture of TCP streams, as a host would that sees both directions: hand-shake, sequence
// and acknowledgement numbers, checksums. Safe for use by several goroutines.
type Writer struct {
	// Now is the clock of the packets, time.Now unless set before the first call.
	Now func() time.Time

	mu    sync.Mutex
	w     io.Writer
	id    uint16
	flows map[[2]netip.AddrPort]uint32 // next sequence number in each direction
	buf   []byte
}

// NewWriter writes the header of a capture with nanoseconds to w.
func NewWriter(w io.Writer) (*Writer, error) {
	b := make([]byte, fileHeader)
	le := binary.LittleEndian
	le.PutUint32(b, magicNano)
	le.PutUint16(b[4:], 2)
	le.PutUint16(b[6:], 4)
	le.PutUint32(b[16:], 1<<18)
	le.PutUint32(b[20:], uint32(LinkRaw))
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("capture header: %w", err)
	}
	return &Writer{Now: time.Now, w: w, flows: make(map[[2]netip.AddrPort]uint32)}, nil
}

// Stream adds the bytes that from sent to to next. Whoever sends first is shown as having connected. Both
// ends are IPv4; an error is that, or the underlying writer's.
func (w *Writer) Stream(from, to netip.AddrPort, data []byte) error {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if !from.Addr().Is4() || !to.Addr().Is4() {
		return fmt.Errorf("capture of %v to %v: only IPv4 is written", from, to)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.flows[[2]netip.AddrPort{from, to}]; !ok {
		w.flows[[2]netip.AddrPort{from, to}] = 1000
		w.flows[[2]netip.AddrPort{to, from}] = 2000
		if err := w.packet(from, to, SYN, nil); err != nil {
			return err
		}
		if err := w.packet(to, from, SYN|ACK, nil); err != nil {
			return err
		}
		if err := w.packet(from, to, ACK, nil); err != nil {
			return err
		}
	}
	for len(data) > 0 {
		n := min(len(data), maxSegment)
		if err := w.packet(from, to, PSH|ACK, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// packet writes one packet and moves the sender's sequence number on.
func (w *Writer) packet(from, to netip.AddrPort, flags uint8, data []byte) error {
	const record = 16
	n := ipHeader + tcpHeader + len(data)
	b := append(w.buf[:0], make([]byte, record+ipHeader+tcpHeader)...)
	b = append(b, data...)
	w.buf = b

	now := w.Now()
	le, be := binary.LittleEndian, binary.BigEndian
	le.PutUint32(b, uint32(now.Unix()))
	le.PutUint32(b[4:], uint32(now.Nanosecond()))
	le.PutUint32(b[8:], uint32(n))
	le.PutUint32(b[12:], uint32(n))

	w.id++
	ip := b[record:]
	src, dst := from.Addr().As4(), to.Addr().As4()
	ip[0] = 0x45
	be.PutUint16(ip[2:], uint16(n))
	be.PutUint16(ip[4:], w.id)
	be.PutUint16(ip[6:], 0x4000) // don't fragment
	ip[8], ip[9] = 64, TCP
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	be.PutUint16(ip[10:], checksum(0, ip[:ipHeader]))

	here, back := [2]netip.AddrPort{from, to}, [2]netip.AddrPort{to, from}
	tcp := ip[ipHeader:]
	be.PutUint16(tcp, from.Port())
	be.PutUint16(tcp[2:], to.Port())
	be.PutUint32(tcp[4:], w.flows[here])
	if flags&ACK != 0 {
		be.PutUint32(tcp[8:], w.flows[back])
	}
	tcp[12], tcp[13] = tcpHeader/4<<4, flags
	be.PutUint16(tcp[14:], 65535)
	pseudo := uint32(TCP) + uint32(len(tcp))
	for _, a := range [][4]byte{src, dst} {
		pseudo += uint32(be.Uint16(a[:])) + uint32(be.Uint16(a[2:]))
	}
	be.PutUint16(tcp[16:], checksum(pseudo, tcp))

	w.flows[here] += uint32(len(data))
	if flags&SYN != 0 {
		w.flows[here]++
	}
	if _, err := w.w.Write(b); err != nil {
		return fmt.Errorf("capture packet: %w", err)
	}
	return nil
}

// checksum is the Internet checksum of b on top of sum.
func checksum(sum uint32, b []byte) uint16 {
	s := uint64(sum)
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
