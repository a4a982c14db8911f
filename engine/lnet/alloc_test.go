//go:build !race

package lnet_test

import (
	"testing"

	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

// The steady path allocates nothing. (Under the race detector pools lose things on purpose.)
func TestNoAllocations(t *testing.T) {
	x := newPair(t, 256, 8)
	there, here := seg(x.buf(t, 4096)), seg(x.buf(t, 4096))
	me := lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 3}
	_, err := x.p.Attach(me, lnet.MD{Segs: there, Threshold: lnet.Unlimited, Options: lnet.OptPut | lnet.OptGet | lnet.OptManageRemote})
	must(t, err)
	h, err := x.n.Bind(lnet.MD{Segs: here, Threshold: lnet.Unlimited})
	must(t, err)
	small, err := x.n.Bind(lnet.MD{Segs: seg(here[0].Slice(0, 160)), Threshold: lnet.Unlimited})
	must(t, err)
	op := lnet.Operation{Target: lnet.ProcessID{NID: nidP, PID: pid}, Portal: 40, MatchBits: 3}
	once := op
	once.MatchBits = 4
	rows := []struct {
		name string
		do   func() error
	}{
		{"PUT", func() error { return x.n.Put(small, op, false) }},
		{"PUT and ACK", func() error { return x.n.Put(small, op, true) }},
		{"PUT and ACK by RDMA", func() error { return x.n.Put(h, op, true) }},
		{"GET and REPLY", func() error { return x.n.Get(small, op) }},
		{"GET by RDMA", func() error { return x.n.Get(h, op) }},
		{"attach, bind, PUT, ACK", func() error {
			own := me
			own.MatchBits = 4
			if _, err := x.p.Attach(own, lnet.MD{Segs: there, Threshold: 1, Options: lnet.OptPut}); err != nil {
				return err
			}
			src, err := x.n.Bind(lnet.MD{Segs: here, Threshold: 2})
			if err != nil {
				return err
			}
			return x.n.Put(src, once, true)
		}},
	}
	for _, row := range rows {
		got := testing.AllocsPerRun(500, func() {
			if err := row.do(); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%s: %v allocations", row.name, got)
		}
	}
}
