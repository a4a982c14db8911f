package wire_test

import (
	"bytes"
	"testing"

	"o2ibd/engine/wire"
)

// FuzzUnpack: no bytes panic, and what parses encodes as a message that parses the same.
func FuzzUnpack(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again wire.Msg
		kind, err := m.Unpack(b)
		if err == nil && kind != wire.Verify(b) {
			t.Fatalf("unpack says checksum %v, verify %v", kind, wire.Verify(b))
		}
		if m.Parse(b) != nil {
			return
		}
		if m.RD.Size() < 0 || len(m.Payload) > wire.MaxImmediate {
			t.Fatalf("%d bytes of fragments, %d of payload", m.RD.Size(), len(m.Payload))
		}
		buf := poisoned()
		n, err := m.Encode(buf, wire.CksumNone)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Parse(buf[:n]); err != nil {
			t.Fatalf("encoded as %x: %v", buf[:n], err)
		}
		sameMessage(t, &m, &again)
	})
}

func FuzzParseReject(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.ParseReject(b)
		if err != nil {
			return
		}
		dst := poisoned()
		n := r.Encode(dst)
		again, err := wire.ParseReject(dst[:n])
		if err != nil {
			t.Fatal(err)
		}
		r.Full = again.Full // what was cut is whole once encoded
		if again != r {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}

func FuzzLNetHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < wire.LNetHeaderSize {
			return
		}
		var h, again wire.LNetHeader
		h.Decode(b)
		one, two := poisoned(), poisoned()
		h.Encode(one)
		again.Decode(one)
		again.Encode(two)
		if again != h || !bytes.Equal(one, two) {
			t.Fatalf("%+v became %+v", h, again)
		}
		if !bytes.Equal(one[:48], b[:48]) {
			t.Fatalf("common part %x became %x", b[:48], one[:48])
		}
	})
}

func FuzzParseNID(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		n, err := wire.ParseNID(s)
		if err != nil {
			if n != wire.AnyNID {
				t.Fatalf("%q failed and gave %v", s, n)
			}
			return
		}
		again, err := wire.ParseNID(n.String())
		if err != nil || again != n {
			t.Fatalf("%q is %v, which is %v, %v", s, n, again, err)
		}
		if len(n.String()) > 63 {
			t.Fatalf("%q prints as %q", s, n)
		}
	})
}
