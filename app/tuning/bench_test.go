package tuning_test

import (
	"crypto/rand"
	"strconv"
	"testing"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// A dry run of every tunable, globally and for a net where that is possible, with two NIs of 5,000 peers.
// The goal is 1 ms.
func BenchmarkDryRunOfAll(b *testing.B) {
	st, err := store.Open(b.Context(), b.TempDir(), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	depths := make([]int, 5000)
	for i := range depths {
		depths[i] = 8
	}
	facts := tuning.Facts{CPTs: 2, NIs: []tuning.NIFacts{{NID: "10.0.0.1@o2ib", Net: "o2ib", MaxQPWR: 16384, Depths: depths}, {NID: "10.0.0.1@o2ib1", Net: "o2ib1", Depths: depths}}}
	s, err := tuning.New(b.Context(), tuning.Options{Store: st, Now: time.Now, IDs: rand.Reader, Facts: func() tuning.Facts { return facts }})
	if err != nil {
		b.Fatal(err)
	}
	r := tuning.Request{DryRun: true, Who: "ada", How: "page"}
	other := map[tunables.Kind]string{tunables.String: "eth9"}
	for _, t := range tunables.All {
		value := other[t.Kind]
		switch {
		case t.Flag():
			value = "0"
		case t.Kind == tunables.Int:
			value = strconv.FormatInt(min(7, t.Max), 10)
		case t.Kind == tunables.Enum:
			value = t.Allowed[len(t.Allowed)-1]
		}
		if t.Name == "ntx" || t.Name == "fmr_pool_size" {
			value = "700"
		}
		r.Changes = append(r.Changes, tuning.Change{Name: t.Name, Value: tuning.NewScalar(value)})
		if t.PerNet {
			r.Changes = append(r.Changes, tuning.Change{Scope: "o2ib1", Name: t.Name, Value: tuning.NewScalar(value)})
		}
	}
	for b.Loop() {
		if _, err := s.Change(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
