package lnet_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

// pingBlock makes ping info in one byte order.
type pingBlock struct {
	order    binary.AppendByteOrder
	magic    uint32
	features uint32
	nnis     uint32
	nids     []wire.NID // loopback included
	seq      uint32
	total    uint32
	tail     []byte
}

func block() pingBlock {
	return pingBlock{order: binary.LittleEndian, magic: 0x70696e67, features: 0x1e, nnis: 2, nids: []wire.NID{wire.LoopbackNID, nidP}, seq: 7}
}

func (p pingBlock) bytes() []byte {
	var b []byte
	for _, v := range []uint32{p.magic, p.features, pid, p.nnis} {
		b = p.order.AppendUint32(b, v)
	}
	for i, nid := range p.nids {
		status, second := uint32(lnet.NIUp), uint32(0)
		if i == 0 {
			status, second = p.seq, p.total
		}
		b = p.order.AppendUint64(b, uint64(nid))
		b = p.order.AppendUint32(b, status)
		b = p.order.AppendUint32(b, second)
	}
	return append(b, p.tail...)
}

func TestL8_33ByteSwappedPing(t *testing.T) {
	p := block()
	p.order = binary.BigEndian
	got, err := lnet.ParsePingInfo(p.bytes(), 3960)
	must(t, err)
	want := lnet.PingInfo{
		Features: 0x1e, PID: pid, NIs: []lnet.PingNI{{NID: nidP, Status: lnet.NIUp}}, Sequence: 7, Entries: 2, BigEndian: true,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestL8_34LargeEntriesAreSetApart(t *testing.T) {
	addr := "20010db8000000000000000000000001"
	tail, err := hex.DecodeString("dec0aa15" + "0c020000" + addr)
	must(t, err)
	p := block()
	p.features |= 0x20
	p.total, p.tail = 72, tail
	got, err := lnet.ParsePingInfo(p.bytes(), 3960)
	must(t, err)
	if got.Entries != 2 || len(got.NIs) != 1 || len(got.Large) != 1 {
		t.Fatalf("%+v", got)
	}
	if l := got.Large[0]; l.Type != 2 || l.Num != 0 || hex.EncodeToString(l.Addr) != addr || l.Status != lnet.NIUp {
		t.Errorf("large entry %+v", l)
	}

	over, err := hex.DecodeString("dec0aa15" + "14020000" + addr + "0000000000000000" + "dec0aa15" + "0c020000" + addr)
	must(t, err)
	p.total, p.tail = uint32(48+len(over)), over
	got, err = lnet.ParsePingInfo(p.bytes(), 3960)
	must(t, err)
	if len(got.Large) != 1 {
		t.Errorf("an entry that is too long was not skipped: %+v", got.Large)
	}
}

func TestL8_35MalformedPing(t *testing.T) {
	rows := []struct {
		name   string
		change func(*pingBlock)
		cut    int
		bad    string // "" = good
	}{
		{"good", func(*pingBlock) {}, 48, ""},
		{"policy A", func(p *pingBlock) { p.features = 6 }, 48, ""},
		{"loopback only", func(p *pingBlock) { p.nnis = 1 }, 32, ""},
		{"bytes behind the end", func(p *pingBlock) { p.tail = make([]byte, 100) }, 148, ""},
		{"metadata behind", func(p *pingBlock) { p.features |= 0x80; p.tail = make([]byte, 44) }, 92, ""},
		{"unknown features", func(p *pingBlock) { p.features |= 0x80000000 }, 48, ""},
		{"magic", func(p *pingBlock) { p.magic++ }, 48, "magic"},
		{"no NI status", func(p *pingBlock) { p.features = 0x1c }, 48, "features"},
		{"no entries", func(p *pingBlock) { p.nnis = 0 }, 48, "entries"},
		{"4097 entries", func(p *pingBlock) { p.nnis = 4097 }, 48, "entries"},
		{"2^31 entries", func(p *pingBlock) { p.nnis = 1 << 31 }, 48, "entries"},
		{"first not loopback", func(p *pingBlock) { p.nids[0] = nidP }, 48, "0@lo"},
		{"more entries than bytes", func(p *pingBlock) { p.nnis = 3 }, 48, "shorter"},
		{"cut", func(*pingBlock) {}, 47, "shorter"},
		{"one entry short of the least", func(*pingBlock) {}, 31, "at least"},
		{"empty", func(*pingBlock) {}, 0, "at least"},
		{"total below the entries", func(p *pingBlock) { p.features |= 0x20; p.total = 44 }, 48, "cannot"},
		{"total not whole words", func(p *pingBlock) { p.features |= 0x20; p.total = 50 }, 48, "cannot"},
		{"total beyond the bytes", func(p *pingBlock) { p.features |= 0x20; p.total = 72 }, 48, "shorter"},
		{"total of 4 GiB", func(p *pingBlock) { p.features |= 0x20; p.total = ^uint32(3) }, 48, "shorter"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			p := block()
			row.change(&p)
			_, err := lnet.ParsePingInfo(p.bytes()[:row.cut], 3960)
			if row.bad == "" {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), row.bad) {
				t.Errorf("error %v, want one with %q", err, row.bad)
			}
		})
	}
}

// Who asks with a small sink gets the head of a long list.
func TestTruncatedPing(t *testing.T) {
	p := block()
	p.nnis = 300
	for i := range wire.NID(298) {
		p.nids = append(p.nids, nidP+i)
	}
	b := p.bytes()
	got, err := lnet.ParsePingInfo(b[:3960], 3960)
	must(t, err)
	if !got.Truncated || got.Entries != 300 || len(got.NIs) != 245 {
		t.Errorf("truncated %v, %d entries, %d NIDs", got.Truncated, got.Entries, len(got.NIs))
	}
	if _, err := lnet.ParsePingInfo(b[:3959], 3960); err == nil {
		t.Error("a byte less than asked for was accepted")
	}
}

func TestPingStrings(t *testing.T) {
	if got := lnet.Features(0x80000106).String(); got != "ni_status,rte_disabled,0x80000100" {
		t.Error(got)
	}
	if lnet.NIUp.String() != "up" || lnet.NIDown.String() != "down" || lnet.NIStatus(7).String() != "0x7" {
		t.Error("NI status")
	}
	if lnet.EventReply.String() != "REPLY" || lnet.EventType(9).String() != "event 9" {
		t.Error("event type")
	}
}

func FuzzParsePingInfo(f *testing.F) {
	p := block()
	f.Add(p.bytes(), 3960)
	p.order = binary.BigEndian
	f.Add(p.bytes(), 3960)
	p = block()
	p.features |= 0x20
	p.total, p.tail = 72, make([]byte, 24)
	f.Add(p.bytes(), 3960)
	for _, s := range []string{pingAnswer, pushed} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 272)
	}
	f.Fuzz(func(t *testing.T, b []byte, asked int) {
		info, err := lnet.ParsePingInfo(b, asked)
		if err != nil {
			if errors.Unwrap(err) == nil && err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		if len(info.NIs) > info.Entries-1 || len(info.NIs) < info.Entries-1 && !info.Truncated {
			t.Errorf("%d NIDs of %d entries, truncated %v", len(info.NIs), info.Entries, info.Truncated)
		}
		if used := 32 + 16*len(info.NIs); used > len(b) {
			t.Errorf("%d bytes read of %d", used, len(b))
		}
	})
}
