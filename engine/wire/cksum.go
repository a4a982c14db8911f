package wire

import "encoding/binary"

// cksumOffset is where the checksum lies in a message.
const cksumOffset = 12

// Cksum is the checksum over a message with its checksum field taken as zero: rotate left by one, add
// the byte, as a signed or an unsigned char (spec o2iblnd 1.7). It is never 0.
func Cksum(p []byte, signed bool) uint32 {
	var sum uint32
	add := func(b []byte) {
		if signed {
			for _, c := range b {
				sum = sum<<1 | sum>>31
				sum += uint32(int32(int8(c)))
			}
			return
		}
		for _, c := range b {
			sum = sum<<1 | sum>>31
			sum += uint32(c)
		}
	}
	if len(p) < cksumOffset+4 {
		add(p)
	} else {
		add(p[:cksumOffset])
		sum = sum<<4 | sum>>28 // four zero bytes
		add(p[cksumOffset+4:])
	}
	if sum == 0 {
		return 1
	}
	return sum
}

// verify judges the checksum field ck of the message p.
func verify(p []byte, ck uint32) CksumKind {
	switch ck {
	case 0:
		return CksumNone
	case Cksum(p, true):
		return CksumSigned
	case Cksum(p, false):
		return CksumUnsigned
	}
	return CksumBad
}

// String is none, signed, unsigned or bad.
func (k CksumKind) String() string {
	return [...]string{"none", "signed", "unsigned", "bad"}[min(k, CksumBad)]
}

// order is the byte order of a message by its magic.
func order(p []byte, magic uint32) (binary.ByteOrder, bool) {
	switch magic {
	case binary.LittleEndian.Uint32(p):
		return binary.LittleEndian, true
	case binary.BigEndian.Uint32(p):
		return binary.BigEndian, true
	}
	return nil, false
}
