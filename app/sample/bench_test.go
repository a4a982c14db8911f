package sample_test

import (
	"fmt"
	"testing"
	"time"

	"o2ibd/app/sample"
	"o2ibd/engine"
)

// fabric is a snapshot of 10,000 peers with a connection each.
func fabric() *engine.Snapshot {
	s := snapshot(0, 0)
	s.Peers, s.Conns = nil, nil
	for i := range 10_000 {
		id := fmt.Sprintf("%s>10.0.%d.%d@o2ib", ourText, i/250, i%250)
		s.Peers = append(s.Peers, engine.Peer{ID: id, NI: ourNID, State: "connected", TxQueued: i % 7})
		s.Conns = append(s.Conns, engine.Conn{Peer: id, Credits: i % 8})
	}
	return s
}

// A second of a node with 10,000 peers: each tenth samples peers, each 300th folds five minutes.
func BenchmarkAdd(b *testing.B) {
	s := newSampler(b, openStore(b, b.TempDir()), start)
	snap, at := fabric(), start
	var longest time.Duration
	for b.Loop() {
		for i := range snap.Peers {
			snap.Peers[i].SendBytes += uint64(1000 * i)
		}
		at = at.Add(time.Second)
		begin := time.Now()
		if err := s.Add(b.Context(), at, snap); err != nil {
			b.Fatal(err)
		}
		longest = max(longest, time.Since(begin))
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
}

// What a chart asks for: a day of four series of an NI.
func BenchmarkQueryDay(b *testing.B) {
	st := openStore(b, b.TempDir())
	s := newSampler(b, st, start)
	at := start
	for i := range 24 * 360 {
		at = start.Add(time.Duration(10*i) * time.Second)
		if err := s.Add(b.Context(), at, snapshot(uint64(i*i), i%9)); err != nil {
			b.Fatal(err)
		}
	}
	_, bytes, err := st.MetricSources(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	q := sample.Query{Series: []string{sendMsgs, "ni/" + ourText + "/tx_queued", "ni/" + ourText + "/conns", "total/send_msgs"}, From: start.UnixMilli(), To: at.UnixMilli()}
	for b.Loop() {
		if _, err := s.Query(b.Context(), q, at); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes), "stored-bytes-a-day")
}
