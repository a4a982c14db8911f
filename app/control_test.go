package app_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"o2ibd/app"
	"o2ibd/engine"
)

func TestControl(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	ctx := t.Context()
	for _, tt := range []struct {
		name string
		do   func() error
		want error
	}{
		{"viewer", func() error { _, err := r.CloseConns(ctx, viewer, app.PeerRequest{NID: "*"}); return err }, app.ErrForbidden},
		{"no NID", func() error { return r.DeletePeer(ctx, operator, app.PeerRequest{NID: "10.0.0"}) }, app.ErrInvalid},
		{"no NID of ours", func() error { return r.DeletePeer(ctx, operator, app.PeerRequest{NID: "*", NI: "x"}) }, app.ErrInvalid},
		{"query of all", func() error { _, err := r.QueryPeer(ctx, operator, app.PeerRequest{NID: "*"}); return err }, app.ErrInvalid},
		{"unknown", func() error { return r.DeletePeer(ctx, operator, app.PeerRequest{NID: "10.0.0.99@o2ib"}) }, app.ErrNotFound},
		{"query towards no NI", func() error {
			_, err := r.QueryPeer(ctx, operator, app.PeerRequest{NID: "10.0.0.2@o2ib7"})
			return err
		}, app.ErrNotFound},
	} {
		if err := tt.do(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := r.DeletePeer(ctx, operator, app.PeerRequest{NID: "10.0.0.99@o2ib"}); err == nil || strings.Count(err.Error(), "not found") != 1 {
		t.Errorf("it is not found: %v", err)
	}
	if ans, err := r.QueryPeer(ctx, operator, app.PeerRequest{NID: "10.0.0.2@o2ib", NI: "10.0.0.1@o2ib"}); err != nil || *ans.LastAliveAt != 1000 || ans.Connecting {
		t.Errorf("query: %+v, %v", ans, err)
	}
	if ans, err := r.CloseConns(ctx, operator, app.PeerRequest{NID: "*"}); err != nil || ans.Closed != 3 {
		t.Errorf("close: %+v, %v", ans, err)
	}
	if err := r.DeletePeer(ctx, operator, app.PeerRequest{NID: "10.0.0.2@o2ib"}); err != nil {
		t.Error(err)
	}
	r.engine.show(func(s *engine.Snapshot) {
		s.Peers = []engine.Peer{{ID: "10.0.0.1@o2ib>10.0.0.2@o2ib", NI: 0x000500000a000001, NID: 0x000500000a000002}}
	})
	tick, latest, leave := r.Watch()
	defer leave()
	for len(latest().Peers) == 0 {
		<-tick
	}
	if m, err := r.Recent(ctx, "10.0.0.1@o2ib>10.0.0.2@o2ib"); err != nil || len(m.Conns) != 1 || m.Conns[0].Conn != "7" {
		t.Errorf("messages: %+v, %v", m, err)
	}
	if _, err := r.Recent(ctx, "10.0.0.2@o2ib"); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("messages with nobody: %v", err)
	}
	want := []string{"delete 0@<0:0> 10.0.0.99@o2ib", "delete 0@<0:0> 10.0.0.99@o2ib", "query 10.0.0.1@o2ib 10.0.0.2@o2ib", "close 0@<0:0> <?>", "delete 0@<0:0> 10.0.0.2@o2ib", "recent 10.0.0.1@o2ib 10.0.0.2@o2ib"}
	if got := r.engine.asked; !slices.Equal(got, want) {
		t.Errorf("the engine was asked\n%q, wanted\n%q", got, want)
	}
	log, err := r.Audit(ctx, app.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"peer.query", "peer.delete", "conn.close"} {
		if !slices.ContainsFunc(log, func(e app.AuditEntry) bool { return e.Action == action && e.Outcome == app.OutcomeDone }) {
			t.Errorf("%s is not in the audit log", action)
		}
	}
}
