package verbstest

import (
	"bytes"
	"errors"
	"hash/crc32"
	"testing"

	"o2ibd/engine/verbs"
)

// many sets all connections up before any is accepted, and then lets all of them talk.
func many(t *testing.T, w *world) {
	const n = 64
	cs, ss := make([]*end, n), make([]*end, n)
	for i := range n {
		cs[i] = w.client(w.port)
	}
	for i := range n {
		w.a.must(cs[i].id.Connect(param([]byte{byte(i)})))
	}
	for range n {
		req := w.b.event(nil, verbs.EventConnectRequest)
		i := req.Private[0]
		if ss[i] != nil || req.ID.Remote() != cs[i].id.Local() {
			t.Fatalf("request of client %d comes from %v: twice, or not from %v", i, req.ID.Remote(), cs[i].id.Local())
		}
		ss[i] = w.server(req)
		w.b.must(ss[i].id.Accept(param(nil)))
	}
	for i := range n {
		w.a.event(cs[i].id, verbs.EventEstablished)
		w.b.event(ss[i].id, verbs.EventEstablished)
	}
	for round := range 3 {
		for i := range n {
			ss[i].mustPost([]verbs.RecvWR{ss[i].recv(uint64(i), i*4096, 4096)})
			copy(cs[i].at(i*4096, 64), pattern(64, i+round))
			cs[i].mustPost(nil, cs[i].send(uint64(1000+i), i*4096, 64))
		}
		for i := range n {
			if wc := ss[i].completion(uint64(i)); wc.Status != verbs.WCSuccess || !bytes.Equal(ss[i].at(i*4096, 64), pattern(64, i+round)) || wc.QPNum != ss[i].qp.Num() {
				t.Fatalf("connection %d: %+v", i, wc)
			}
			if wc := cs[i].completion(uint64(1000 + i)); wc.Status != verbs.WCSuccess {
				t.Fatalf("connection %d: %+v", i, wc)
			}
		}
	}
	for i := range n {
		cs[i].shut()
		ss[i].shut()
	}
}

// bulk writes 64 times 1 MiB, no two alike.
func bulk(t *testing.T, w *world) {
	c, s := w.connect()
	const n = 1 << 20
	copy(c.at(1<<20, n), pattern(n, 1))
	for i := range 64 {
		for k := 0; k < n; k += 1021 {
			c.at(1<<20+k, 1)[0] += byte(i + k)
		}
		want := crc32.ChecksumIEEE(c.at(1<<20, n))
		s.mustPost([]verbs.RecvWR{s.recv(1, 0, 64)})
		wr := verbs.SendWR{ID: 2, Op: verbs.OpWrite, NSGE: 1, RemoteAddr: s.addr(2 << 20), RKey: s.mr.RKey()}
		wr.SGE[0] = c.sge(1<<20, n)
		c.mustPost(nil, wr, c.send(3, 0, 10))
		if wc := s.completion(1); wc.Status != verbs.WCSuccess || crc32.ChecksumIEEE(s.at(2<<20, n)) != want {
			t.Fatalf("transfer %d: %+v", i, wc)
		}
		c.completion(3)
	}
	c.shut()
	s.shut()
}

func batch(t *testing.T, w *world) {
	var cs, ss []*end
	for range 4 {
		c, s := w.connect()
		cs, ss = append(cs, c), append(ss, s)
	}
	var recvs, sends []verbs.Posting
	for i := range cs {
		recvs = append(recvs, verbs.Posting{QP: ss[i].qp, Recvs: []verbs.RecvWR{ss[i].recv(uint64(i), i*4096, 64)}})
		sends = append(sends, verbs.Posting{QP: cs[i].qp, Sends: []verbs.SendWR{cs[i].send(uint64(10+i), i, 1)}})
	}
	// One bad share must not spoil the others.
	for range w.b.attr.MaxRecvWR {
		recvs[1].Recvs = append(recvs[1].Recvs, ss[1].recv(1, 4096, 64))
	}
	w.b.dev.Post(recvs)
	for i := range recvs {
		p := &recvs[i]
		w.b.enter(p)
		if i == 1 {
			if !errors.Is(p.Err, verbs.ErrQueueFull) || p.NRecvs != w.b.attr.MaxRecvWR {
				t.Fatalf("the share that is too long: %d posted, %v", p.NRecvs, p.Err)
			}
		} else if p.Err != nil || p.NRecvs != 1 {
			t.Fatalf("share %d: %d posted, %v", i, p.NRecvs, p.Err)
		}
	}
	w.a.dev.Post(sends)
	for i := range sends {
		p := &sends[i]
		w.a.enter(p)
		if p.Err != nil || p.NSends != 1 {
			t.Fatalf("share %d: %d posted, %v", i, p.NSends, p.Err)
		}
		if wc := ss[i].completion(uint64(i)); wc.Status != verbs.WCSuccess || wc.QPNum != ss[i].qp.Num() {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	for i := range cs {
		cs[i].shut()
		ss[i].shut()
	}
}

// vanish takes the server away in the middle of a transfer.
func vanish(t *testing.T, w *world) {
	if w.a.env.Vanish == nil {
		return
	}
	c, s := w.connect()
	c.mustPost([]verbs.RecvWR{c.recv(1, 0, 64)})
	const n = 64
	for i := range n {
		wr := verbs.SendWR{ID: uint64(100 + i), Op: verbs.OpWrite, Signaled: true, NSGE: 1, RemoteAddr: w.b.addr(0), RKey: w.b.mr.RKey()}
		wr.SGE[0] = c.sge(0, 1<<20)
		c.mustPost(nil, wr)
		if i == 3 {
			w.a.env.Vanish()
		}
	}
	if ev := w.a.event(c.id, verbs.EventDisconnected); ev.Err == nil {
		t.Fatal("a vanished peer is reported as an orderly end")
	}
	if wc := c.completion(1); wc.Status != verbs.WCFlushed {
		t.Fatalf("posted receive: %+v", wc)
	}
	failed := false
	for i, wc := range c.completions(n) {
		if wc.ID != uint64(100+i) || failed && wc.Status != verbs.WCFlushed {
			t.Fatalf("write %d: %+v", i, wc)
		}
		failed = failed || wc.Status != verbs.WCSuccess
	}
	if !failed {
		t.Fatal("all of it was written to a peer that is gone")
	}
	c.noEvent(c.id, verbs.EventDisconnected)
	c.shut()
	s.shut()
}
