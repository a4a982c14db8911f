package tuning

import (
	"testing"

	"o2ibd/engine/tunables"
)

// Whatever is in a file, it is refused in a few words, or gives values that are canonical.
func FuzzReadFile(f *testing.F) {
	f.Add("options ko2iblnd peer_credits=16 timeout=0\n")
	f.Add("options ko2iblnd \\\n map_on_demand=32 # x\noptions ko2iblnd=1")
	f.Add("net:\n    - net type: o2ib1\n      local NI(s):\n        - interfaces:\n              0: ib0\n          tunables:\n              peer_credits: 16\n")
	f.Add("tunables: {timeout: 0, o2ib1/tos: -1}")
	f.Add("alias x y\noptions")
	f.Fuzz(func(t *testing.T, text string) {
		v, _, err := readFile(text)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Fatalf("%d bytes of error: %.200s", len(err.Error()), err)
			}
			return
		}
		for k, value := range v {
			key, canon, _, err := tunables.Canonical(k, value)
			if err != nil || key != k || canon != value {
				t.Fatalf("%v=%q is not canonical: %v=%q, %v", k, value, key, canon, err)
			}
		}
	})
}

func FuzzReadTime(f *testing.F) {
	f.Add("2026-01-02 15:04")
	f.Add("1700000000000")
	f.Add("0000-01-01")
	f.Fuzz(func(t *testing.T, text string) { readTime(text) })
}
