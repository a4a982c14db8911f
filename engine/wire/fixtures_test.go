package wire_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"o2ibd/engine/wire"
)

// The two nodes of appendix B.
const (
	nidA   wire.NID = 0x000500000a000001
	nidB   wire.NID = 0x000500000a000002
	stampA uint64   = 0x0005335ed0c3a000
	stampB uint64   = 0x0005335ed0c3a111
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// poisoned is a buffer in which every byte that an encoder forgets shows.
func poisoned() []byte { return bytes.Repeat([]byte{0xa5}, wire.MsgSize) }

// view is what of a message counts for its type, fit to be compared.
type view struct {
	Header    wire.Header
	BigEndian bool
	Params    wire.ConnParams
	LNet      wire.LNetHeader
	Payload   []byte
	Cookies   [3]uint64
	Status    int32
	RD        wire.Desc
}

func viewOf(m *wire.Msg) view {
	v := view{Header: m.Header, BigEndian: m.BigEndian}
	rd := wire.Desc{Key: m.RD.Key, Frags: slices.Clone(m.RD.Frags)}
	switch m.Type {
	case wire.MsgConnReq, wire.MsgConnAck:
		v.Params = m.Params
	case wire.MsgImmediate:
		v.LNet, v.Payload = m.LNet, append([]byte{}, m.Payload...)
	case wire.MsgPutReq:
		v.LNet, v.Cookies[0] = m.LNet, m.Cookie
	case wire.MsgPutNak, wire.MsgPutDone, wire.MsgGetDone:
		v.Cookies[0], v.Status = m.Cookie, m.Status
	case wire.MsgPutAck:
		v.Cookies[1], v.Cookies[2], v.RD = m.SrcCookie, m.DstCookie, rd
	case wire.MsgGetReq:
		v.LNet, v.Cookies[0], v.RD = m.LNet, m.Cookie, rd
	}
	return v
}

func equalViews(a, b view) bool { return cmp.Equal(a, b, cmpopts.EquateEmpty()) }

func sameMessage(t testing.TB, want, got *wire.Msg) {
	t.Helper()
	if d := cmp.Diff(viewOf(want), viewOf(got), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("message differs (-want +got):\n%s", d)
	}
}
