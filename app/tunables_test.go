package app_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app"
	"o2ibd/app/sample"
	"o2ibd/app/tuning"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

func timeoutTo(value string, within time.Duration) tuning.Request {
	return tuning.Request{Changes: []tuning.Change{{Name: "timeout", Value: tuning.NewScalar(value)}}, ConfirmWithin: within, Reason: "test"}
}

func TestConfirmAndRevertOfTunables(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	ctx := t.Context()
	first, err := r.ChangeTunables(ctx, operator, timeoutTo("60", 0))
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.ChangeTunables(ctx, operator, timeoutTo("70", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ConfirmChange(ctx, viewer, second.ChangeID); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("confirmed by a viewer: %v", err)
	}
	if _, err := r.ConfirmChange(ctx, operator, "none"); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("an unknown change: %v", err)
	}
	if done, err := r.ConfirmChange(ctx, operator, second.ChangeID); err != nil || done.Outcome != store.Confirmed {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := r.RevertChange(ctx, viewer, tuning.RevertRequest{ChangeID: second.ChangeID}); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("reverted by a viewer: %v", err)
	}
	if _, err := r.RevertChange(ctx, operator, tuning.RevertRequest{ChangeID: first.ChangeID, Since: true}); err != nil {
		t.Error(err)
	}
	if _, err := r.ImportTunables(ctx, operator, tuning.ImportRequest{Text: "options ko2iblnd timeout=0\n"}); err != nil {
		t.Error(err)
	}
	if got := r.engine.tuned[tunables.Scoped{Scope: "global", Name: "timeout"}]; got != "0" {
		t.Errorf("the engine has %q", got)
	}
	entries, err := r.Audit(ctx, app.AuditFilter{Action: "tunables."})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, strings.Join([]string{e.Actor.Name, e.Action, e.Outcome, e.Before, "→", e.After}, " "))
	}
	want := []string{
		"otto tunables.import done timeout not set → timeout=0",
		"otto tunables.revert done timeout=70 → timeout not set",
		"vera tunables.revert refused  → ",
		"otto tunables.confirm done waits to be confirmed → confirmed",
		"otto tunables.confirm refused  → ",
		"vera tunables.confirm refused  → ",
		"otto tunables.change done timeout=60 → timeout=70",
		"otto tunables.change done timeout not set → timeout=60",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
}

// Nobody confirms: the appliance itself takes the change back, in the engine too, and says so.
func TestUnconfirmedChangeGoes(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	if _, err := r.ChangeTunables(t.Context(), operator, timeoutTo("60", tuning.MinConfirm)); err != nil {
		t.Fatal(err)
	}
	r.event(t, "tunables", "was rolled back: not confirmed in time")
	if v, err := r.VerifyTunables(t.Context()); err != nil || !v.Whole || v.Records != 3 {
		t.Errorf("%+v, %v", v, err)
	}
	if got, set := r.engine.tuned[tunables.Scoped{Scope: "global", Name: "timeout"}]; set {
		t.Errorf("the engine has %q", got)
	}
}

// While a change restarts an NI, the appliance says how far it is.
func TestProgressOfANIRestart(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	r.wait(t, "the engine's snapshot", func() bool { return len(r.Snapshot().Nets) == 1 })
	if r.TuningProgress() != nil {
		t.Error("progress of nothing")
	}
	ni, peer := "127.0.0.1@o2ib", "127.0.0.1@o2ib>127.0.0.2@o2ib"
	var states []string
	look := func(what string, status string, conns int) {
		r.engine.show(func(s *engine.Snapshot) {
			s.Nets[0].Status = status
			for range conns {
				s.Conns = append(s.Conns, engine.Conn{Peer: peer})
			}
		})
		p := r.TuningProgress()
		if p == nil || p.ChangeID == "" || p.Who != "otto" || p.Phase != tuning.PhaseApplying || len(p.NIs) != 1 || p.NIs[0].NI != ni {
			t.Errorf("%s: %+v", what, p)
			return
		}
		states = append(states, p.NIs[0].State)
		if p.NIs[0].ConnsLeft != conns {
			t.Errorf("%s: %+v", what, p.NIs[0])
		}
	}
	r.engine.onRetune = func() {
		look("before", "up", 2)
		look("on the way", "down", 1)
		look("between", "down", 0)
		look("after", "up", 0)
	}
	if _, err := r.ChangeTunables(t.Context(), operator, tuning.Request{Changes: []tuning.Change{{Name: "peer_credits", Value: tuning.NewScalar("16")}}}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{app.NIUp, app.NIDraining, app.NIRestarting, app.NIUp}, states); d != "" {
		t.Error(d)
	}
	if r.TuningProgress() != nil {
		t.Error("progress of what is over")
	}
}

func TestMetrics(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	ctx := t.Context()
	if _, err := r.ChangeTunables(ctx, operator, timeoutTo("60", 0)); err != nil {
		t.Fatal(err)
	}
	from := time.Now().Add(-time.Minute).UnixMilli()
	ask := func() sample.Answer {
		a, err := r.Metrics(ctx, sample.Query{Series: []string{"total/conns", "ni/127.0.0.1@o2ib/available_credits"}, From: from, Step: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	sampled := func(points []*float64) (n int) {
		for _, p := range points {
			if p != nil {
				n++
			}
		}
		return n
	}
	r.wait(t, "two samples", func() bool { return sampled(ask().Series[1].Avg) >= 2 })
	a := ask()
	if len(a.Series[0].Avg) != len(a.At) || a.Series[0].Avg[0] != nil {
		t.Errorf("a minute ago: %+v", a.Series[0].Avg[0])
	}
	if len(a.Markers) != 1 || a.Markers[0].Kind != sample.MarkTunables || a.Markers[0].Text != "otto changed timeout" || a.Markers[0].ChangeID == "" {
		t.Errorf("markers are %+v", a.Markers)
	}
	var bad *sample.QueryError
	if _, err := r.Metrics(ctx, sample.Query{Series: []string{"nonsense"}}); !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	if len(r.MetricSeries()) < 11+12 {
		t.Errorf("%d series", len(r.MetricSeries()))
	}
	_, files := r.unzip(t, r.made(t, true))
	csv := string(files["metrics/ni-1s.csv"])
	lines := strings.Split(strings.TrimSpace(csv), "\n")
	if !strings.HasPrefix(lines[0], "at_ms,time,source,send_msgs,send_msgs_min,send_msgs_max,") || len(lines) < 3 || strings.Count(lines[1], ",") != strings.Count(lines[0], ",") {
		t.Errorf("metrics of the NI:\n%.500s", csv)
	}
	if strings.Contains(csv, "127.0.0.1") {
		t.Errorf("a redacted bundle tells the NID:\n%.500s", csv)
	}

	// What was sampled is there in the next run.
	r.stop()
	r = start(t, o, nil)
	if n := sampled(ask().Series[1].Avg); n < 2 {
		t.Errorf("%d samples after a restart", n)
	}
}

func TestPinnedPeers(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	const id = "10.0.0.1@o2ib>10.0.0.2@o2ib"
	if err := r.PinPeer(ctx, viewer, id, true); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("%v", err)
	}
	for _, wrong := range []string{"", "10.0.0.1@o2ib", ">", strings.Repeat("x", 99) + ">y"} {
		if err := r.PinPeer(ctx, operator, wrong, true); !errors.Is(err, app.ErrInvalid) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	for range 2 {
		if err := r.PinPeer(ctx, operator, id, true); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{id}, r.PinnedPeers()); d != "" {
		t.Error(d)
	}
	if err := r.PinPeer(ctx, operator, id, false); err != nil || len(r.PinnedPeers()) != 0 {
		t.Errorf("%v, %v", r.PinnedPeers(), err)
	}
	entries, err := r.Audit(ctx, app.AuditFilter{Action: "peer.pin"})
	if err != nil || len(entries) != 7 || entries[0].Before != "pinned" || entries[0].After != "not pinned" {
		t.Errorf("%d entries, %+v, %v", len(entries), entries[0], err)
	}
}
