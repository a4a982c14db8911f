package o2iblnd

import (
	"testing"

	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// TestForeignCompletions: a completion of another generation, of another kind or of nothing is counted and
// changes nothing.
func TestForeignCompletions(t *testing.T) {
	w := newTwins(t, nil)
	a := w.nodes[0]
	w.ended(w.put(10), 0)
	w.settle()
	w.put(9000)
	a.lnd.scheds[0].Step(w.now) // its PUT_REQ is posted
	s, c := a.lnd.scheds[0], a.conns()[0]
	req := c.activeTxs.head
	if req == nil || req.typ != wire.MsgPutReq || req.sending != 1 {
		t.Fatalf("the request is not posted: %+v", req)
	}
	acct, nrx, state := c.acct, c.nrx, c.state
	gen := req.gen.Load()
	for i, id := range []uint64{
		makeWRID(wrTx, req.idx, gen-1), makeWRID(wrTx, req.idx, gen+1), makeWRID(wrTx, 1<<wrIdxBits-1, gen),
		makeWRID(wrRx, c.slot<<rxNumBits, c.gen+1), makeWRID(wrRx, (c.slot+1)<<rxNumBits, c.gen), makeWRID(wrRx, (maxSlots-1)<<rxNumBits, 1),
		makeWRID(wrInvalid, req.idx, gen), makeWRID(7, req.idx, gen),
	} {
		before := s.stale.Load()
		s.complete(&verbs.WC{ID: id, Status: verbs.WCGeneral})
		if s.stale.Load() != before+1 {
			t.Errorf("completion %d (%#x) was not counted", i, id)
		}
	}
	if c.acct != acct || c.nrx != nrx || c.state != state || req.sending != 1 || !req.waiting {
		t.Fatalf("conn %v %+v, %d receives; request %+v", c.state, c.acct, c.nrx, req)
	}
	w.until("the PUT", func() bool { return len(a.ended) == 2 })
}

// TestFailedWrite: a peer whose key is good for nothing gets the connection closed with that reason; the PUT
// ends with an error.
func TestFailedWrite(t *testing.T) {
	w := newTwins(t, nil)
	a, b := w.nodes[0], w.nodes[1]
	w.ended(w.put(10), 0)
	w.settle()
	m := w.put(9000)
	for range 4 {
		a.lnd.scheds[0].Step(w.now)
		w.deliver()
	}
	b.lnd.scheds[0].Step(w.now) // the PUT_ACK is posted
	ack := b.conns()[0].activeTxs.head
	if ack == nil || ack.typ != wire.MsgPutAck {
		t.Fatalf("no PUT_ACK: %+v", ack)
	}
	w.deliver() // to the sender, which has not looked
	spoil := a.conns()[0]
	var in wire.Msg
	for i := range spoil.rxs {
		if _, err := in.Unpack(spoil.rxs[i].buf); err == nil && in.Type == wire.MsgPutAck {
			in.RD.Key ^= 0x55
			if _, err := in.Encode(spoil.rxs[i].buf, wire.CksumNone); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 { // the writes are posted, and fail before connd hears of it
		a.lnd.scheds[0].Step(w.now)
		w.deliver()
	}
	w.until("the end of the PUT", func() bool { return len(a.ended) == 2 })
	if m.Status == 0 {
		t.Fatal("a PUT whose data is nowhere ended well")
	}
	w.settle()
	if a.said("conn_closed", "RDMA write to the peer failed") != 1 {
		t.Fatalf("events %+v", a.events)
	}
}
