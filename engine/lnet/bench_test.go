package lnet_test

import (
	"fmt"
	"testing"

	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

// Round trips between two nodes over an LND that only copies: the cost of LNet itself.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{160, 65536} {
		b.Run(fmt.Sprintf("put/%d", size), func(b *testing.B) { benchRoundTrip(b, size, "put") })
		b.Run(fmt.Sprintf("put+ack/%d", size), func(b *testing.B) { benchRoundTrip(b, size, "ack") })
		b.Run(fmt.Sprintf("get/%d", size), func(b *testing.B) { benchRoundTrip(b, size, "get") })
	}
	b.Run("own/160", func(b *testing.B) { benchRoundTrip(b, 160, "own") })
}

func benchRoundTrip(b *testing.B, size int, how string) {
	x := newPair(b, 256, 8)
	there, here := x.buf(b, size), x.buf(b, size)
	events := 0
	count := func(lnet.Event) { events++ }
	target, server := nidP, x.p
	if how == "own" {
		target, server = nidN, x.n
	}
	_, err := server.Attach(lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 3}, lnet.MD{
		Segs: seg(there), Threshold: lnet.Unlimited, Options: lnet.OptPut | lnet.OptGet | lnet.OptManageRemote, Handler: count,
	})
	if err != nil {
		b.Fatal(err)
	}
	h, err := x.n.Bind(lnet.MD{Segs: seg(here), Threshold: lnet.Unlimited, Handler: count})
	if err != nil {
		b.Fatal(err)
	}
	op := lnet.Operation{Target: lnet.ProcessID{NID: target, PID: pid}, Portal: 40, MatchBits: 3}
	b.ReportAllocs()
	for b.Loop() {
		if how == "get" {
			err = x.n.Get(h, op)
		} else {
			err = x.n.Put(h, op, how != "put")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	want := 3 * b.N
	if how == "put" {
		want = 2 * b.N
	}
	if events < want {
		b.Errorf("%d events, want %d", events, want)
	}
}

// An operation on memory of its own each time, as an RPC has: attach, bind, put, ack, unlink.
func BenchmarkOneShot(b *testing.B) {
	x := newPair(b, 256, 8)
	there, here := seg(x.buf(b, 160)), seg(x.buf(b, 160))
	me := lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID}
	op := lnet.Operation{Target: lnet.ProcessID{NID: nidP, PID: pid}, Portal: 40}
	b.ReportAllocs()
	for b.Loop() {
		me.MatchBits++
		op.MatchBits++
		if _, err := x.p.Attach(me, lnet.MD{Segs: there, Threshold: 1, Options: lnet.OptPut}); err != nil {
			b.Fatal(err)
		}
		h, err := x.n.Bind(lnet.MD{Segs: here, Threshold: 2})
		if err != nil {
			b.Fatal(err)
		}
		if err := x.n.Put(h, op, true); err != nil {
			b.Fatal(err)
		}
	}
}

// Matching among many MDs that wait for one message each, as the replies of many RPCs do.
func BenchmarkMatchAmong(b *testing.B) {
	for _, posted := range []int{1, 1000, 100000} {
		b.Run(fmt.Sprint(posted), func(b *testing.B) {
			x := newPair(b, 256, 8)
			there := seg(x.buf(b, 160))
			me := lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID}
			for range posted {
				me.MatchBits++
				if _, err := x.p.Attach(me, lnet.MD{Segs: there, Threshold: lnet.Unlimited, Options: lnet.OptPut | lnet.OptManageRemote}); err != nil {
					b.Fatal(err)
				}
			}
			h, err := x.n.Bind(lnet.MD{Segs: there, Threshold: lnet.Unlimited})
			if err != nil {
				b.Fatal(err)
			}
			op := lnet.Operation{Target: lnet.ProcessID{NID: nidP, PID: pid}, Portal: 40, MatchBits: me.MatchBits}
			b.ReportAllocs()
			for b.Loop() {
				if err := x.n.Put(h, op, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
