package main

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire"
)

// differences are the answers that differ from the kernel's on purpose: question to ours, and why.
var differences = map[string]struct{ ours, why string }{
	"D GET_REQ ping, sink 8192 in 1 fragment": {
		"WRITE stag=4455 to=10000 len=48; type=d7 credits=0 nob=60 cookie=cd status=48; (stays open)",
		"the kernel says 48 and loses the write (spec o2iblnd 4.6)"},
	"D GET_REQ ping, sink 8192 in 2 fragments of 4096": {
		"WRITE stag=4455 to=10000 len=48; type=d7 credits=0 nob=60 cookie=cd status=48; (stays open)",
		"the kernel says 48 and loses the write (spec o2iblnd 4.6)"},
	"D version 0x11 inside a v2 connection": {"closed: EOF", "a version is for the life of a connection"},
}

// TestAnswersAsTheKernel asks a node of ours, over TCP, what the kernel's node was asked, and compares
// every answer.
func TestAnswersAsTheKernel(t *testing.T) {
	a := netip.MustParseAddr("127.0.0.31")
	e, err := engine.New(engine.Config{
		Provider: iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "lo", Addr: a}}}),
		NIs:      []engine.NISpec{{Net: wire.NetO2IB, Addr: a}},
		Tunables: tunables.Values{
			{Scope: tunables.GlobalScope, Name: "service"}: "19871", {Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
		},
		OnEvent: func(ev engine.Event) { t.Logf("event: %s: %s", ev.Kind, ev.Text) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	*addr, *peerIP, *meIP = "127.0.0.31:19871", "127.0.0.31", "127.0.0.32"
	var out bytes.Buffer
	ask(&out)

	kernel, err := os.ReadFile("testdata/kernel-answers.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(kernel)), "\n")
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d answers, the kernel gave %d:\n%s", len(got), len(want), out.String())
	}
	used := 0
	for i := range want {
		q, _, _ := strings.Cut(want[i], " => ")
		expect := want[i]
		if d, ok := differences[q]; ok {
			expect = q + " => " + d.ours
			used++
		}
		if got[i] != expect {
			t.Errorf("answer %d\n  ours:   %s\n  wanted: %s", i, got[i], expect)
		}
	}
	if used != len(differences) {
		t.Errorf("%d of %d listed differences belong to no question", len(differences)-used, len(differences))
	}
}
