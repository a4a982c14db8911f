package o2iblnd

import (
	"bytes"
	"errors"
	"testing"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/pool"
	"o2ibd/engine/wire"
)

// scattered are two pieces of n bytes in different slabs: one descriptor cannot describe both.
func (x *twin) scattered(n int) []arena.Buffer {
	var segs []arena.Buffer
	for len(segs) < 2 {
		b := x.buffer(arena.SlabSize)
		if len(segs) == 0 || b.Slab() != segs[0].Slab() {
			segs = append(segs, b.Slice(0, n))
		}
	}
	return segs
}

// full is an arena without a free byte.
func full(t *testing.T) *arena.Arena {
	a := arena.New(1)
	if _, err := a.Alloc(arena.SlabSize); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// TestScatteredSink: data for pieces in different slabs goes through a contiguous stand-in and arrives; where
// there is no memory for one, the PUT ends on both sides and the connection stays (spec o2iblnd 6.3).
func TestScatteredSink(t *testing.T) {
	for _, row := range []struct {
		name   string
		memory bool
	}{{"with memory", true}, {"without memory", false}} {
		t.Run(row.name, func(t *testing.T) {
			w := newTwins(t, nil)
			a, b := w.nodes[0], w.nodes[1]
			w.ended(w.put(10), 0)
			b.sink = b.scattered(5000)
			if !row.memory {
				b.lnd.payload = full(t)
			}
			m := w.put(10000)
			for i := range m.Segs[0].Bytes() {
				m.Segs[0].Bytes()[i] = byte(i * 7)
			}
			if row.memory {
				w.ended(m, 0)
				w.settle()
				if got := append(bytes.Clone(b.sink[0].Bytes()), b.sink[1].Bytes()...); !bytes.Equal(got, m.Segs[0].Bytes()) {
					t.Fatal("the data differs")
				}
			} else {
				w.ended(m, eNOMEM)
				if r := b.ended[len(b.ended)-1]; r.Status != eNOMEM || r.Health != HealthLocalError || m.Health != HealthRemoteError {
					t.Fatalf("the receiver's ended with %v, %v, the sender's with %v", r.Status, r.Health, m.Health)
				}
			}
			w.ended(w.put(10), 0)
			if a.in(connEstablished) != 1 || a.lnd.connd.conns[1] == nil {
				t.Fatal("the connection is gone")
			}
		})
	}
}

// TestScatteredGet: without memory for a stand-in a GET fails at home, and nothing is sent.
func TestScatteredGet(t *testing.T) {
	w := newTwins(t, nil)
	a, b := w.nodes[0], w.nodes[1]
	w.ended(w.put(10), 0)
	a.lnd.payload = full(t)
	m := &Message{Peer: b.nid, Len: 10000, Segs: a.scattered(5000), Hdr: wire.LNetHeader{DestNID: b.nid, SrcNID: a.nid, Type: wire.LNetGET, Handle: wire.NoHandle, Length: 10000}}
	sent := a.conns()[0].count.txMsgs
	a.lnd.Send(m)
	w.ended(m, eIO)
	if n := a.conns()[0].count.txMsgs - sent; n != 0 || m.RDMALen != -1 {
		t.Fatalf("%d messages were sent, RDMALen %d", n, m.RDMALen)
	}
}

// withoutTransmits leaves a node with n transmits that are free, and none beyond them.
func (x *twin) withoutTransmits(t *testing.T, n int) {
	t.Helper()
	i := x.lnd.ni(x.nid)
	old := i.txs[0]
	made := false
	set, err := pool.New("scarce", n, func(size int) ([]*tx, error) {
		if made {
			return nil, errors.New("no memory")
		}
		made = true
		return x.lnd.newTxs(i, size)
	}, x.lnd.freeTxs, x.lnd.now())
	if err != nil {
		t.Fatal(err)
	}
	i.txs[0] = set
	old.Close()
}

// TestNoTransmit: without a transmit descriptor a message ends with ENOMEM, on whichever side it is, and the
// connection and its credits stay (spec o2iblnd 6.2).
func TestNoTransmit(t *testing.T) {
	t.Run("to send", func(t *testing.T) {
		w := newTwins(t, nil)
		a := w.nodes[0]
		w.ended(w.put(10), 0)
		w.settle()
		a.withoutTransmits(t, 1)
		first, second := w.put(10), w.put(10)
		w.ended(first, 0)
		w.ended(second, eNOMEM)
		if second.Health != HealthLocalError {
			t.Errorf("health %v", second.Health)
		}
		w.ended(w.put(10), 0) // the descriptor is back
	})
	t.Run("to say where data goes", func(t *testing.T) {
		w := newTwins(t, map[string]string{"timeout": "50"})
		a, b := w.nodes[0], w.nodes[1]
		w.ended(w.put(10), 0)
		w.settle()
		b.withoutTransmits(t, 1)
		hold, err := b.lnd.ni(b.nid).txs[0].Alloc(w.now)
		if err != nil {
			t.Fatal(err)
		}
		m := w.put(9000)
		w.until("the request", func() bool { return b.received == 2 })
		w.settle()
		if r := b.ended[len(b.ended)-1]; r.Status != eNOMEM {
			t.Fatalf("the receiver's ended with %v", r.Status)
		}
		for _, x := range a.ended {
			if x == m {
				t.Fatal("the sender's ended without an answer")
			}
		}
		if c := a.conns()[0]; c.state != connEstablished || c.acct.Reserved != c.acct.Depth-1 {
			t.Fatalf("conn %v, %+v", c.state, c.acct)
		}
		b.lnd.ni(b.nid).txs[0].Free(w.now, hold)
	})
}
