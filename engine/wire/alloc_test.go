package wire_test

import (
	"testing"

	"o2ibd/engine/wire"
)

// TestNoAllocation: the data path decodes, encodes and seals every message without the heap.
func TestNoAllocation(t *testing.T) {
	for _, r := range benchMessages() {
		for _, big := range []bool{false, true} {
			r.msg.BigEndian = big
			buf := make([]byte, wire.MsgSize)
			var m wire.Msg
			for _, kind := range []wire.CksumKind{wire.CksumNone, wire.CksumSigned, wire.CksumUnsigned} {
				var fault error
				n := testing.AllocsPerRun(20, func() {
					nob, err := r.msg.EncodeBody(buf)
					if err != nil {
						fault = err
						return
					}
					r.msg.Nob = uint32(nob)
					wire.Seal(buf, &r.msg.Header, big, kind)
					if _, err := m.Unpack(buf); err != nil {
						fault = err
					}
				})
				if n != 0 || fault != nil {
					t.Errorf("%s, big-endian %v, checksum %v: %v allocations, %v", r.name, big, kind, n, fault)
				}
			}
		}
	}
}
