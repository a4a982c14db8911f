package o2iblnd

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// sponge is an LNet that takes what comes into nothing.
type sponge struct{ received, ended int }

func (u *sponge) Parse(s Sender, _, _ wire.NID, _ *wire.LNetHeader, rx Rx, _ bool) error {
	u.received++
	rx.Receive(s, nil)
	return nil
}

func (u *sponge) Finalize(Sender, *Message) { u.ended++ }

func (u *sponge) NIStatus(wire.NID, bool) {}

func (u *sponge) PeerDown(_, _ wire.NID, _ error, _ time.Time) {}

// steps runs every step of an LND once, as its goroutines would.
func (l *LND) steps(now time.Time) {
	l.connd.Step(now)
	for _, s := range l.scheds {
		s.Step(now)
	}
}

// BenchmarkSmallMessage is what the engine alone costs for one IMMEDIATE: send side and receive side,
// with the credits that come back, on the in-memory provider, stepped from one goroutine.
func BenchmarkSmallMessage(b *testing.B) {
	f := mem.NewFabric(mem.Options{})
	g, n, _ := tunables.Derive(tunables.Values{{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0"}, "o2ib")
	now := time.Now()
	var lnds [2]*LND
	var uppers [2]*sponge
	addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	nids := [2]wire.NID{wire.MakeNID(wire.NetO2IB, 0x0a000001), wire.MakeNID(wire.NetO2IB, 0x0a000002)}
	payload := arena.New(arena.SlabSize)
	for i := range lnds {
		uppers[i] = &sponge{}
		l, err := New(Config{Provider: f.Provider(addrs[i]), Upper: uppers[i], Payload: payload, Global: g, Scheds: 1})
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- l.AddNI(context.Background(), NIConfig{NID: nids[i], Addr: addrs[i], Tunables: n})
		}()
		for up := false; !up; {
			l.steps(now)
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				up = true
			default:
			}
		}
		lnds[i] = l
	}
	const batch = 8
	var msgs [batch]Message
	for i := range msgs {
		msgs[i] = Message{Peer: nids[1], Hdr: wire.LNetHeader{DestNID: nids[1], SrcNID: nids[0], Type: wire.LNetPUT, Handle: wire.NoHandle}}
	}
	round := func() {
		for i := range msgs {
			lnds[0].Send(&msgs[i])
		}
		for want := uppers[0].ended + batch; uppers[0].ended < want; {
			lnds[0].scheds[0].Step(now)
			lnds[1].scheds[0].Step(now)
		}
	}
	lnds[0].Send(&msgs[0])
	for uppers[0].ended == 0 {
		lnds[0].steps(now)
		lnds[1].steps(now)
	}
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/message")
	if uppers[1].received != uppers[0].ended {
		b.Fatalf("%d of %d messages arrived", uppers[1].received, uppers[0].ended)
	}
}
