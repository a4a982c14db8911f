package lnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"o2ibd/engine/wire"
)

// Facts of the ping (spec lnet 0 and 4.2).
const (
	PingMatchBits uint64 = 1 << 63 // of ping GETs and push PUTs, on portal 0
	PingSink             = 3960    // bytes that we ask for: the answer still fits an IMMEDIATE

	pingMagic      = 0x70696E67
	pingHeaderSize = 16
	pingEntrySize  = 16
	maxPingEntries = 4096
	maxPingNIs     = (PingSink-pingHeaderSize)/pingEntrySize - 1
)

// Features of a node, as its ping answer tells them.
type Features uint32

const (
	FeatBase         Features = 1 << iota
	FeatNIStatus              // entries carry a status: mandatory
	FeatRTEDisabled           // does not route
	FeatMultiRail             // understands several NIDs a node
	FeatDiscovery             // takes part in discovery, accepts pushes
	FeatLargeAddr             // has entries with NIDs longer than 8 bytes
	FeatPrimaryLarge          // the primary NID is such
	FeatMetadata              // LND metadata follows

	// ourFeatures make a peer ask once and then send, without pushing to us (spec lnet 4.4, policy A).
	ourFeatures = FeatNIStatus | FeatRTEDisabled
)

// String lists the set features, such as "ni_status,rte_disabled".
func (f Features) String() string {
	names := [...]string{"base", "ni_status", "rte_disabled", "multi_rail", "discovery", "large_addr", "primary_large", "metadata"}
	var set []string
	for i, name := range names {
		if f&(1<<i) != 0 {
			set = append(set, name)
			f &^= 1 << i
		}
	}
	if f != 0 {
		set = append(set, fmt.Sprintf("%#x", uint32(f)))
	}
	return strings.Join(set, ",")
}

// NIStatus is the state of an NI in a ping answer.
type NIStatus uint32

const (
	NIUp   NIStatus = 0x15aac0de
	NIDown NIStatus = 0xdeadface
)

// String is "up", "down", or the number of anything else.
func (s NIStatus) String() string {
	switch s {
	case NIUp:
		return "up"
	case NIDown:
		return "down"
	}
	return fmt.Sprintf("%#x", uint32(s))
}

// PingInfo is what a node tells of itself.
type PingInfo struct {
	Features  Features
	PID       uint32
	NIs       []PingNI  // without loopback; the first has the primary NID
	Large     []LargeNI // those with long NIDs, which o2ib cannot reach
	Sequence  uint32    // of this version of the info, with FeatMultiRail
	Entries   int       // entries that the node has, with loopback: more than NIs when Truncated
	Truncated bool      // we had no room for all of it
	BigEndian bool
	RTT       time.Duration // of the ping that brought it, 0 = came by push
}

// PingNI is one NI in a ping answer.
type PingNI struct {
	NID    wire.NID
	Status NIStatus
}

// LargeNI is one NI whose NID is longer than 8 bytes (spec lnet 1.2).
type LargeNI struct {
	Type   uint8
	Num    uint16
	Addr   []byte
	Status NIStatus
}

// appendPingInfo adds the bytes of our ping answer to dst.
func appendPingInfo(dst []byte, pid uint32, nis []PingNI) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, pingMagic)
	dst = le.AppendUint32(dst, uint32(ourFeatures))
	dst = le.AppendUint32(dst, pid)
	dst = le.AppendUint32(dst, uint32(len(nis)+1))
	dst = appendPingNI(dst, PingNI{wire.LoopbackNID, NIUp})
	for _, i := range nis {
		dst = appendPingNI(dst, i)
	}
	return dst
}

func appendPingNI(dst []byte, i PingNI) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(i.NID))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(i.Status))
	return binary.LittleEndian.AppendUint32(dst, 0)
}

var errPingShort = errors.New("ping info is shorter than it says")

// ParsePingInfo reads a ping answer or a push of either byte order, for which there was room for asked
// bytes. Nothing of b is kept.
func ParsePingInfo(b []byte, asked int) (PingInfo, error) {
	if len(b) < pingHeaderSize+pingEntrySize {
		return PingInfo{}, fmt.Errorf("ping info of %d bytes: at least %d are needed", len(b), pingHeaderSize+pingEntrySize)
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch magic := order.Uint32(b); magic {
	case pingMagic:
	case pingMagic>>24 | pingMagic>>8&0xff00 | pingMagic<<8&0xff0000 | pingMagic<<24&0xff000000:
		order = binary.BigEndian
	default:
		return PingInfo{}, fmt.Errorf("ping info with magic %#x: %#x is needed", magic, uint32(pingMagic))
	}
	info := PingInfo{
		Features: Features(order.Uint32(b[4:])), PID: order.Uint32(b[8:]), BigEndian: order == binary.BigEndian,
	}
	entries := order.Uint32(b[12:])
	switch {
	case info.Features&FeatNIStatus == 0:
		return PingInfo{}, fmt.Errorf("ping info with features %#x: NI status (0x2) is needed", uint32(info.Features))
	case entries < 1 || entries > maxPingEntries:
		return PingInfo{}, fmt.Errorf("ping info with %d entries: 1 to %d are allowed", entries, maxPingEntries)
	}
	lo, rest := b[pingHeaderSize:], b[pingHeaderSize+pingEntrySize:]
	if nid := wire.NID(order.Uint64(lo)); nid != wire.LoopbackNID {
		return PingInfo{}, fmt.Errorf("ping info that begins with %v: 0@lo is needed", nid)
	}
	info.Entries = int(entries)
	small := pingHeaderSize + pingEntrySize*info.Entries
	total := small
	if info.Features&FeatMultiRail != 0 {
		info.Sequence = order.Uint32(lo[8:])
	}
	if info.Features&FeatLargeAddr != 0 {
		told := order.Uint32(lo[12:])
		if told%4 != 0 || uint64(told) < uint64(small) {
			return PingInfo{}, fmt.Errorf("ping info of %d entries and %d bytes in all: that cannot be", entries, told)
		}
		total = int(min(told, 1<<30))
	}
	if len(b) < min(total, asked) {
		return PingInfo{}, fmt.Errorf("%w: %d of %d bytes", errPingShort, len(b), total)
	}
	info.Truncated = len(b) < total
	for range info.Entries - 1 {
		if len(rest) < pingEntrySize {
			break
		}
		info.NIs = append(info.NIs, PingNI{wire.NID(order.Uint64(rest)), NIStatus(order.Uint32(rest[8:]))})
		rest = rest[pingEntrySize:]
	}
	if end := min(total, len(b)); end > small {
		info.Large = parseLarge(b[small:end], order)
	}
	return info, nil
}

// parseLarge reads entries with long NIDs; those that are too long for any NID are skipped.
func parseLarge(b []byte, order binary.ByteOrder) []LargeNI {
	const status, nidHeader, longest = 4, 4, 20
	var all []LargeNI
	for len(b) >= status+nidHeader {
		nid := b[status:]
		size := int(nid[0]) + 8
		entry := (status + size + 3) &^ 3
		if entry > len(b) {
			break
		}
		if size <= longest {
			all = append(all, LargeNI{
				Type: nid[1], Num: binary.BigEndian.Uint16(nid[2:]),
				Addr: append([]byte(nil), nid[nidHeader:size]...), Status: NIStatus(order.Uint32(b)),
			})
		}
		b = b[entry:]
	}
	return all
}
