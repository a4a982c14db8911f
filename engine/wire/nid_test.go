package wire_test

import (
	"encoding/json"
	"testing"

	"o2ibd/engine/wire"
)

// TestNID holds spec lnet 1.1 and 1.3, and assertions 8 #1 to #3.
func TestNID(t *testing.T) {
	for _, r := range []struct {
		in   string
		want wire.NID
		out  string // how it prints, when not as it was written
	}{
		{"10.0.0.1@o2ib", 0x000500000a000001, ""},
		{"10.0.0.1@o2ib0", 0x000500000a000001, "10.0.0.1@o2ib"},
		{"10.0.0.1@o2ib7", 0x000500070a000001, ""},
		{"255.255.255.255@o2ib65535", 0x0005ffffffffffff, ""},
		{"10.0.0.1", 0x000200000a000001, "10.0.0.1@tcp"},
		{"1.2.3.4@tcp12", 0x0002000c01020304, ""},
		{"1.2.3.4@gip", 0x000e000001020304, ""},
		{"1.2.3.4@efa1", 0x0012000101020304, ""},
		{"0@lo", wire.LoopbackNID, ""},
		{"whatever@lo", wire.LoopbackNID, "0@lo"},
		{"17@gni", 0x000d000000000011, ""},
		{"010@gni", 0x000d00000000000a, "10@gni"},
		{"0x1F@kfi2", 0x001000020000001f, "31@kfi2"},
		{"0X1f@ptlf", 0x000f00000000001f, "31@ptlf"},
		{"4294967295@bxi3f", 0x00130000ffffffff, ""},
	} {
		got, err := wire.ParseNID(r.in)
		if err != nil || got != r.want {
			t.Errorf("%q: %#x, %v, want %#x", r.in, uint64(got), err, uint64(r.want))
		}
		out := r.out
		if out == "" {
			out = r.in
		}
		if got.String() != out {
			t.Errorf("%q prints as %q, want %q", r.in, got, out)
		}
	}

	for _, in := range []string{
		"", "@", "@o2ib", "10.0.0.1@", "10.0.0.256@o2ib", "10.0.0@o2ib", "10.0.0.1.2@o2ib", "10.0.0.1 @o2ib", " 10.0.0.1@o2ib",
		"10.0.0.+1@o2ib", "10.0.0.1@o2ibx", "10.0.0.1@o2ib65536", "10.0.0.1@o2ib-1", "10.0.0.1@o2ib1@tcp", "0@lo0", "10.0.0.1@nope",
		"10.0.0.1@O2IB", "1@elan", "1@<33:2>", "*", "<?>", "x@gni", "4294967296@gni", "0b1@gni", "1_0@gni", "0x@gni", "1.2.3.4@gni", "host@o2ib",
	} {
		if got, err := wire.ParseNID(in); err == nil || got != wire.AnyNID {
			t.Errorf("%q: %v, %v, want an error and the wildcard", in, got, err)
		}
	}

	for nid, want := range map[wire.NID]string{
		wire.AnyNID:        "<?>",
		0x002100020a000001: "a000001@<33:2>",
		0x001100000000000f: "f@<17:0>",
	} {
		if nid.String() != want {
			t.Errorf("%#x prints as %q, want %q", uint64(nid), nid, want)
		}
	}
	if got := wire.Net(0x00210002).String(); got != "<33:2>" {
		t.Errorf("unknown network prints as %q", got)
	}
}

func TestNIDParts(t *testing.T) {
	n := wire.MakeNID(0x00050007, 0x0a000001)
	if n != 0x000500070a000001 || n.Net() != 0x00050007 || n.Addr() != 0x0a000001 || n.IPv4().String() != "10.0.0.1" {
		t.Errorf("%#x: net %#x, addr %#x, IP %v", uint64(n), uint32(n.Net()), n.Addr(), n.IPv4())
	}
	if n.Net().Type() != 5 || n.Net().Num() != 7 {
		t.Errorf("type %d, number %d", n.Net().Type(), n.Net().Num())
	}
	if got, err := wire.ParseNet("o2ib"); err != nil || got != wire.NetO2IB {
		t.Errorf("o2ib: %#x, %v", uint32(got), err)
	}
}

// TestNIDText: what has no name can still be written and read back, in its own spelling only.
func TestNIDText(t *testing.T) {
	for _, nid := range []wire.NID{0, wire.AnyNID, wire.LoopbackNID, 0x002100020a000001, 0x001100000000000f, ^wire.NID(0) - 1} {
		text, err := nid.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		got := nidA
		if err := got.UnmarshalText(text); err != nil || got != nid {
			t.Errorf("%s: %#x, %v, want %#x", text, uint64(got), err, uint64(nid))
		}
	}
	for _, in := range []string{"", "<>", "0@<5:0>", "A@<33:2>", "0a@<33:2>", "a@<33:2>x", "a@<33>", "a@<65536:0>", "100000000@<33:0>", "10.0.0@o2ib"} {
		got := nidA
		if err := got.UnmarshalText([]byte(in)); err == nil || got != nidA {
			t.Errorf("%q: %v, %v, want an error and nothing changed", in, got, err)
		}
	}
}

func TestNIDInJSON(t *testing.T) {
	type row struct{ NID wire.NID }
	b, err := json.Marshal(row{nidA})
	if err != nil || string(b) != `{"NID":"10.0.0.1@o2ib"}` {
		t.Fatalf("%s, %v", b, err)
	}
	var r row
	if err := json.Unmarshal(b, &r); err != nil || r.NID != nidA {
		t.Errorf("%v, %v", r.NID, err)
	}
	if err := json.Unmarshal([]byte(`{"NID":"10.0.0@o2ib"}`), &r); err == nil || r.NID != nidA {
		t.Errorf("a bad NID gave %v and left %v", err, r.NID)
	}
}
