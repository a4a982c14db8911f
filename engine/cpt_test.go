package engine

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostCPTs(t *testing.T) {
	dir := t.TempDir()
	put := func(node, cpus string) {
		if err := os.MkdirAll(filepath.Join(dir, node), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, node, "cpulist"), []byte(cpus+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := hostCPTs(dir); len(got) != 1 || len(got[0]) != runtime.NumCPU() {
		t.Errorf("without nodes: %v", got)
	}
	put("node1", "0")
	put("node0", "1-900")       // what this process may not use does not count
	put("node2", "1000-1002")   // nothing of it is ours
	put("node3", "every other") // not understood: left out
	want := [][]int{{0}}
	if runtime.NumCPU() > 1 {
		var rest []int
		for c := 1; c < runtime.NumCPU(); c++ {
			rest = append(rest, c)
		}
		want = append(want, rest)
	}
	if d := cmp.Diff(want, hostCPTs(dir)); d != "" {
		t.Error(d)
	}
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "3,0-1": {0, 1, 3}, "2-4,3": {2, 3, 4}} {
		if got, err := ParseCPUs(text); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "a", "-1", "3-1", "0-", "0-100000", "1,,2"} {
		if got, err := ParseCPUs(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	for _, bad := range [][][]int{{{0}, {}}, {{0, 1}, {1}}} {
		if CheckCPTs(bad) == nil {
			t.Errorf("%v passed", bad)
		}
	}
	if err := CheckCPTs([][]int{{0, 1}, {2}}); err != nil {
		t.Error(err)
	}
}
