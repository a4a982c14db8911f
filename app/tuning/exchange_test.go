package tuning_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

func TestImport(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       tunables.Values
		note, err  string
	}{
		{"modprobe", "# ours\noptions lnet networks=o2ib(ib0)\noptions ko2iblnd peer_credits=16 \\\n  timeout=0 # later\noptions ko2iblnd timeout=70\n",
			values("peer_credits", "16", "timeout", "70"), "", ""},
		{"modprobe of 2016", "options ko2iblnd map_on_demand=32 \"peer_credits=16\"\n", nil, "", `"peer_credits: no such tunable`},
		{"quoted value", "options ko2iblnd ipif_name=\"ib1\"\n", values("ipif_name", "ib1"), "", ""},
		{"old spelling", "options ko2iblnd map_on_demand=32 peer_credits=16\n", values("map_on_demand", "1", "peer_credits", "16"), "map_on_demand 32 → 1", ""},
		{"typo", "options ko2iblnd timeout=1\noptions ko2iblnd peer_credit=8\n", nil, "", "did you mean peer_credits? (line 2)"},
		{"no value", "options ko2iblnd timeout\n", nil, "", `line 1: "timeout" is no option`},
		{"only others", "options lnet networks=o2ib\n", nil, "", "sets no tunable"},
		{"empty", "", nil, "", "sets no tunable"},
		{"lnetctl", "net:\n    - net type: o2ib1\n      local NI(s):\n        - interfaces:\n              0: ib0\n          tunables:\n              peer_credits: 16\n              peer_timeout: -1\n          lnd tunables:\n              tos: 0\n",
			values("o2ib1/peer_credits", "16", "o2ib1/tos", "0"), "", ""},
		{"lnetctl with a typo", "net:\n    - net type: o2ib1\n      local NI(s):\n        - interfaces:\n              0: ib0\n          tunables:\n              peer_credit: 16\n", nil, "", "line:7"},
		{"ours", "listen: 127.0.0.1:1\ntunables:\n  timeout: 0\n", values("timeout", "0"), "only the tunables of the file are taken", ""},
		{"no YAML", "{{{", nil, "", "not valid YAML"},
		{"deep", strings.Repeat("[", 1<<16), nil, "", "nested deeper"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHouse(t, nil)
			r, err := h.Import(t.Context(), tuning.ImportRequest{Text: tc.text, Who: "ada", How: "socket", Reason: "moved here"})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || len(h.Values()) != 0 {
					t.Errorf("%v, want %q", err, tc.err)
				}
				h.inForce(values())
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var notes []string
			for _, n := range r.Notes {
				notes = append(notes, n.Text)
			}
			if !strings.Contains(strings.Join(notes, "\n"), tc.note) {
				t.Errorf("notes %q lack %q", notes, tc.note)
			}
			rows, err := h.History(t.Context(), tuning.HistoryFilter{})
			if err != nil || rows.Changes[0].How != "socket, import" {
				t.Errorf("%+v, %v", rows, err)
			}
			h.inForce(tc.want, store.Applied)
		})
	}
}

// What is exported is imported as it was: what is not set stays so, and zero stays zero.
func TestExport(t *testing.T) {
	h := newHouse(t, values("timeout", "60"))
	h.facts = func() tuning.Facts { return tuning.Facts{NIs: []tuning.NIFacts{{Net: "o2ib1", Interface: "ib0"}}} }
	h.store.Close()
	h.start()
	h.must(changes("peer_credits", "16", "tos", "0", "o2ib1/ntx", "600", "cksum_char", "unsigned"))
	for format, want := range map[string]tunables.Values{
		tuning.FormatModprobe: values("timeout", "60", "peer_credits", "16", "tos", "0"),
		tuning.FormatLnetctl:  values("o2ib1/peer_credits", "16", "o2ib1/tos", "0", "o2ib1/ntx", "600"),
	} {
		text, err := h.Export(format)
		if err != nil {
			t.Fatal(err)
		}
		file := "testdata/export-" + format + ".txt"
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(golden), text); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
		other := newHouse(t, nil)
		if _, err := other.Import(t.Context(), tuning.ImportRequest{Text: text, Who: "ada", How: "socket"}); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if d := cmp.Diff(want, other.Values()); d != "" {
			t.Errorf("%s read back (-want +got):\n%s", format, d)
		}
	}
	if _, err := h.Export("x"); !errors.Is(err, tuning.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
