package tuning_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// words writes a diff as "o2ib1/tos - → 5 (-1 → 5)".
func words(d tuning.Diff) []string {
	list := []string{}
	text := func(s *tuning.Scalar) string {
		if s == nil {
			return "-"
		}
		return string(*s)
	}
	for _, r := range d.Rows {
		list = append(list, fmt.Sprintf("%v %s → %s (%s → %s)", tunables.Scoped{Scope: r.Scope, Name: r.Name}, text(r.From), text(r.To), r.EffectiveFrom, r.EffectiveTo))
	}
	return list
}

func TestDiff(t *testing.T) {
	h := newHouse(t, values("timeout", "60"))
	clock := time.Now()
	h.store.Close()
	h.now = func() time.Time { return clock }
	h.start()
	at := func() string { return clock.UTC().Format(time.RFC3339Nano) }
	t0 := at()
	clock = clock.Add(time.Hour)
	first := h.must(changes("timeout", "50", "o2ib1/tos", "0")).ChangeID // the default, set; and zero, set
	t1 := at()
	clock = clock.Add(time.Hour)
	second := h.must(changes("timeout", "-", "keepalive", "0")).ChangeID
	waits := h.within(time.Hour, changes("keepalive", "7"))
	if _, err := h.Revert(t.Context(), tuning.RevertRequest{ChangeID: waits, Who: "ada", How: "page"}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		from, to string
		want     []string
	}{
		{t0, t1, []string{"timeout 60 → 50 (60 → 50)", "o2ib1/tos - → 0 (-1 → 0)"}},
		{t1, "", []string{"timeout 50 → 60 (50 → 60)", "keepalive - → 0 (100 → 0)"}},
		{"before:" + first, first, []string{"timeout 60 → 50 (60 → 50)", "o2ib1/tos - → 0 (-1 → 0)"}},
		{first, second, []string{"timeout 50 → 60 (50 → 60)", "keepalive - → 0 (100 → 0)"}},
		{second, waits, []string{"keepalive 0 → 7 (0 → 7)"}},
		{waits, "now", []string{"keepalive 7 → 0 (7 → 0)"}},
		{"defaults", "file", []string{"timeout - → 60 (50 → 60)"}},
		{"defaults", "now", []string{"timeout - → 60 (50 → 60)", "keepalive - → 0 (100 → 0)", "o2ib1/tos - → 0 (-1 → 0)"}},
		{"now", "now", []string{}},
		{"2000-01-01", "2000-01-02 15:04", []string{}},
	} {
		d, err := h.Diff(t.Context(), tc.from, tc.to)
		if err != nil {
			t.Errorf("%s to %s: %v", tc.from, tc.to, err)
			continue
		}
		if diff := cmp.Diff(tc.want, words(d)); diff != "" {
			t.Errorf("%s to %s:\n%s", tc.from, tc.to, diff)
		}
	}
	for _, bad := range []string{"yesterday", "before:none", "2000-13-01", "none", strings.Repeat("x", 1000)} {
		if _, err := h.Diff(t.Context(), bad, "now"); !errors.Is(err, tuning.ErrInvalid) || len(err.Error()) > 400 {
			t.Errorf("%.20s: %v", bad, err)
		}
	}
	v, err := h.Verify(t.Context())
	if err != nil || !v.Whole || v.Records != 7 {
		t.Errorf("%+v, %v", v, err)
	}
}

// Two operators looked at the same values; the second sees what was there, what is there, and what was asked for.
func TestThreeSides(t *testing.T) {
	h := newHouse(t, values("cksum", "1"))
	h.must(changes("peer_credits", "16", "keepalive", "10"))
	seen := h.Tag()
	bob := request(changes("peer_credits", "-", "timeout", "0"))
	bob.Who, bob.Reason = "bob", "night shift"
	second, err := h.Change(t.Context(), bob)
	if err != nil {
		t.Fatal(err)
	}
	mine := request(changes("peer_credits", "64", "keepalive", "20"))
	mine.IfMatch = seen
	_, err = h.Change(t.Context(), mine)
	var c *tuning.ConflictError
	if !errors.As(err, &c) || !c.BaseKnown || c.Tag != h.Tag() || len(c.Clashes) != 2 || len(c.Others) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	credits, keepalive, other := c.Clashes[0], c.Clashes[1], c.Others[0]
	if *credits.Base != "16" || credits.Now != nil || *credits.Yours != "64" || !credits.Touched || credits.Who != "bob" || credits.Reason != "night shift" || credits.ChangeID != second.ChangeID {
		t.Errorf("%+v", credits)
	}
	if *keepalive.Base != "10" || *keepalive.Now != "10" || keepalive.Touched || keepalive.Who != "ada" {
		t.Errorf("%+v", keepalive)
	}
	if other.Name != "timeout" || other.Old != nil || *other.New != "0" {
		t.Errorf("%+v", other)
	}
	for _, strange := range []string{"999-00000000", "x", "1", "-1-" + strings.Repeat("f", 8)} {
		mine.IfMatch = strange
		if _, err := h.Change(t.Context(), mine); !errors.As(err, &c) || c.BaseKnown {
			t.Errorf("tag %s: %+v, %v", strange, c, err)
		}
	}
	h.inForce(values("keepalive", "10", "timeout", "0"), store.Applied, store.Applied)
}

func TestCost(t *testing.T) {
	h := newHouse(t, nil)
	h.facts = func() tuning.Facts {
		return tuning.Facts{CPTs: 2, NIs: []tuning.NIFacts{
			{NID: "10.0.0.1@o2ib", Net: "o2ib", MaxQPWR: 16384, Conns: 6, Depths: []int{16, 16, 4}},
			{NID: "10.0.0.1@o2ib1", Net: "o2ib1", Depths: []int{8}},
		}}
	}
	h.store.Close()
	h.start()
	h.must(changes("o2ib/peer_credits", "16"))
	dry := request(changes("o2ib/peer_credits", "128", "o2ib/conns_per_peer", "2"))
	dry.DryRun = true
	r, err := h.Change(t.Context(), dry)
	if err != nil || len(r.Costs) != 1 || len(r.Restarts) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if d := cmp.Diff(tuning.Restart{NI: "10.0.0.1@o2ib", Conns: 6, Peers: 3}, r.Restarts[0]); d != "" {
		t.Error(d)
	}
	c := r.Costs[0]
	want := tunables.Cost{QueueDepth: 63, ConnBytes: 128 * 4096, PeerBytes: 2 * 128 * 4096, NIBytes: 512 * 4096, SendWRs: 63 * 259, RecvWRs: 128, CQEntries: 63*259 + 128, MaxQPWR: 16384}
	if d := cmp.Diff(want, c.After); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if c.Before.QueueDepth != 16 || c.Before.PeerBytes != 34*4096 {
		t.Errorf("%+v", c.Before)
	}
	if d := cmp.Diff(tuning.Negotiation{Peers: 3, Keep: 1, Maybe: 2}, c.Negotiation); d != "" {
		t.Error(d)
	}
	text := strings.Join(c.Text, "\n")
	for _, part := range []string{"memory for each peer: 1.0 MiB, now 136 KiB", "of the 16384 that the HCA takes", "the HCA cannot hold a queue depth of 128: connections are made with 63",
		"2 of 3 connected peers may use up to 63", "1 of 3 connected peers keep their own"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
	dry.Changes = changes("o2ib/peer_credits", "8")
	if r, err = h.Change(t.Context(), dry); err != nil || r.Costs[0].Negotiation.Lower != 2 {
		t.Errorf("%+v, %v", r.Costs, err)
	}
	dry.Changes = changes("timeout", "0", "retry_count", "7")
	if r, err = h.Change(t.Context(), dry); err != nil || len(r.Costs)+len(r.Restarts) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
