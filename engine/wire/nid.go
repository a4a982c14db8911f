package wire

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NID is a 64-bit LNet network identifier: type 8 bits, number 16 bits, address 32 bits (spec lnet 1.1).
type NID uint64

// Net is a network id: type and number, the upper half of a NID.
type Net uint32

const (
	// AnyNID matches every NID where one is asked for; it is no address.
	AnyNID NID = ^NID(0)
	// LoopbackNID is 0@lo, a node's name for itself. It never travels as source or destination.
	LoopbackNID NID = 0x0009_0000_0000_0000
	// NetO2IB is the network o2ib, number 0.
	NetO2IB Net = 5 << 16
)

// netTypes are the networks that have a name (spec lnet 1.1); ip tells how their addresses read.
var netTypes = []struct {
	code uint16
	name string
	ip   bool
}{
	{2, "tcp", true}, {5, "o2ib", true}, {9, "lo", false}, {13, "gni", false}, {14, "gip", true},
	{15, "ptlf", false}, {16, "kfi", false}, {18, "efa", true}, {19, "bxi3f", false},
}

const loType = 9

// MakeNID joins a network and an address.
func MakeNID(net Net, addr uint32) NID { return NID(net)<<32 | NID(addr) }

// Net is the network half.
func (n NID) Net() Net { return Net(n >> 32) }

// Addr is the address half; for IP networks the IPv4 address with its first octet on top.
func (n NID) Addr() uint32 { return uint32(n) }

// IPv4 is the address half as an IP address.
func (n NID) IPv4() netip.Addr {
	a := n.Addr()
	return netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
}

// Type is the network's type code, 5 for o2ib.
func (n Net) Type() uint16 { return uint16(n >> 16) }

// Num is the network's number.
func (n Net) Num() uint16 { return uint16(n) }

// String is "o2ib", or "o2ib7" when the number is not 0.
func (n Net) String() string {
	for _, t := range netTypes {
		if t.code == n.Type() {
			if n.Num() == 0 {
				return t.name
			}
			return t.name + strconv.Itoa(int(n.Num()))
		}
	}
	return fmt.Sprintf("<%d:%d>", n.Type(), n.Num())
}

// String is "10.0.0.1@o2ib7"; the wildcard prints as "<?>".
func (n NID) String() string {
	if n == AnyNID {
		return "<?>"
	}
	for _, t := range netTypes {
		if t.code != n.Net().Type() {
			continue
		}
		if t.ip {
			return n.IPv4().String() + "@" + n.Net().String()
		}
		return strconv.FormatUint(uint64(n.Addr()), 10) + "@" + n.Net().String()
	}
	return fmt.Sprintf("%x@%v", n.Addr(), n.Net())
}

// MarshalText writes what String does.
func (n NID) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads a NID as ParseNID does, and beyond that the wildcard and NIDs of unknown networks, so that
// whatever MarshalText wrote comes back as it was.
func (n *NID) UnmarshalText(b []byte) error {
	s := string(b)
	if v, ok := parseUnnamed(s); ok {
		*n = v
		return nil
	}
	v, err := ParseNID(s)
	if err == nil {
		*n = v
	}
	return err
}

// parseUnnamed reads what String writes for a NID that has no name.
func parseUnnamed(s string) (NID, bool) {
	if s == AnyNID.String() {
		return AnyNID, true
	}
	var addr uint32
	var typ, num uint16
	if _, err := fmt.Sscanf(s, "%x@<%d:%d>", &addr, &typ, &num); err != nil {
		return 0, false
	}
	n := MakeNID(Net(typ)<<16|Net(num), addr)
	return n, n.String() == s // nothing but that very spelling
}

// ParseNet reads a network name: a known type, then nothing or a number up to 65535.
func ParseNet(s string) (Net, error) {
	for _, t := range netTypes {
		rest, ok := strings.CutPrefix(s, t.name)
		if !ok {
			continue
		}
		if rest == "" {
			return Net(t.code) << 16, nil
		}
		num, err := strconv.ParseUint(rest, 10, 16)
		if err != nil || t.code == loType {
			continue
		}
		return Net(t.code)<<16 | Net(num), nil
	}
	return 0, fmt.Errorf("unknown network %q: a name such as o2ib, o2ib1 or tcp is needed", s)
}

// ParseNID reads "10.0.0.1@o2ib". Without "@" the network is tcp, as LNet has it.
func ParseNID(s string) (NID, error) {
	addr, netName, found := strings.Cut(s, "@")
	net := Net(2) << 16
	if found {
		var err error
		if net, err = ParseNet(netName); err != nil {
			return AnyNID, fmt.Errorf("NID %q: %w", s, err)
		}
	}
	if net.Type() == loType {
		return LoopbackNID, nil
	}
	for _, t := range netTypes {
		if t.code != net.Type() {
			continue
		}
		if t.ip {
			a, err := parseIPv4(addr)
			if err != nil {
				return AnyNID, fmt.Errorf("NID %q: %w", s, err)
			}
			return MakeNID(net, a), nil
		}
	}
	digits, base := addr, 10
	if hex, ok := strings.CutPrefix(strings.ToLower(addr), "0x"); ok {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 32)
	if err != nil {
		return AnyNID, fmt.Errorf("NID %q: the address must be a number, decimal or 0x and hexadecimal, up to 32 bits", s)
	}
	return MakeNID(net, uint32(v)), nil
}

func parseIPv4(s string) (uint32, error) {
	parts := strings.Split(s, ".")
	var a uint32
	for _, p := range parts {
		v, err := strconv.ParseUint(p, 10, 8)
		if err != nil || len(parts) != 4 {
			return 0, fmt.Errorf("the address must be four numbers up to 255 such as 10.0.0.1")
		}
		a = a<<8 | uint32(v)
	}
	return a, nil
}
