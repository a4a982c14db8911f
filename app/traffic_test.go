package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"o2ibd/app/demo"
	"o2ibd/engine"
)

// startNode runs a real engine as node i of a demo, on the port.
func startNode(t *testing.T, i, service int) demo.Node {
	t.Helper()
	e, err := newEngine(EngineConfig{
		Provider: "iwarp", NIs: []NISpec{demoNI(i)}, Tunables: demoTunables(service),
		OnEvent: func(engine.Event) {}, Protest: func(_, _, _ string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), engineStop)
		defer cancel()
		if err := e.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	n, err := e.DemoNode()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDemoNodesMoveData(t *testing.T) {
	service, err := freeService(2)
	if err != nil {
		t.Fatal(err)
	}
	a, b := startNode(t, 0, service), startNode(t, 1, service)
	if a.NID() != demoNID(0) || b.NID() != demoNID(1) {
		t.Errorf("the nodes are %v and %v", a.NID(), b.NID())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"ping", func() error { return a.Ping(ctx, b.NID()) }},
		{"small put", func() error { return a.Put(ctx, b.NID(), 1) }},
		{"large put", func() error { return b.Put(ctx, a.NID(), 1<<20) }},
		{"small get", func() error { return a.Get(ctx, b.NID(), 100) }},
		{"large get", func() error { return b.Get(ctx, a.NID(), 1<<20) }},
		{"put without ack", func() error { return a.Send(ctx, b.NID(), 3000) }},
	} {
		if err := op.do(); err != nil {
			t.Errorf("%s: %v", op.name, err)
		}
	}
	if err := a.Put(ctx, demoNID(7), 10); err == nil || strings.Contains(err.Error(), "without an answer") {
		t.Errorf("put to nobody: %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := a.Put(short, demoNID(8), 10); err == nil {
		t.Error("put to nobody, given up at once: no error")
	}
}
