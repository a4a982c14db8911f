// Package house tests the rules of the house that no compiler knows: who may import whom, and that every
// package says what it is.
package house

import (
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"
)

type pkg struct {
	ImportPath string
	Doc        string
	GoFiles    []string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,GoFiles,Imports", "o2ibd/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// TestImports: the layers of docs/architecture.md, each with what it must not reach.
func TestImports(t *testing.T) {
	rules := []struct {
		who  string   // the package and those below it
		not  []string // must not be imported by it
		only []string // of ours, nothing but these; nil: no such rule
	}{
		{who: "o2ibd/engine", not: []string{"o2ibd/app", "o2ibd/web", "o2ibd/store", "o2ibd/migrations"}},
		{who: "o2ibd/engine/tunables", only: []string{}},
		{who: "o2ibd/engine/arena", only: []string{}},
		{who: "o2ibd/engine/wire", only: []string{"o2ibd/engine/wire"}},
		{who: "o2ibd/engine/verbs", only: []string{"o2ibd/engine/verbs"}},
		{who: "o2ibd/engine/o2iblnd", not: []string{"o2ibd/engine/lnet"}},
		{who: "o2ibd/engine/o2iblnd/credits", only: []string{"o2ibd/engine/wire"}},
		{who: "o2ibd/engine/o2iblnd/negotiate", only: []string{"o2ibd/engine/wire"}},
		{who: "o2ibd/engine/o2iblnd/pool", only: []string{}},
		{who: "o2ibd/store", only: []string{"o2ibd/migrations"}},
		{who: "o2ibd/app", not: []string{"o2ibd/web"}},
		{who: "o2ibd/web", not: []string{"o2ibd/engine/o2iblnd", "o2ibd/engine/lnet", "o2ibd/engine/verbs"}},
		{who: "o2ibd/cmd", not: []string{"o2ibd/engine/o2iblnd", "o2ibd/engine/lnet", "o2ibd/engine/verbs", "o2ibd/store"}},
	}
	below := func(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
	for _, p := range packages(t) {
		for _, r := range rules {
			if !below(p.ImportPath, r.who) {
				continue
			}
			for _, i := range p.Imports {
				for _, n := range r.not {
					if below(i, n) {
						t.Errorf("%s imports %s: %s must not", p.ImportPath, i, r.who)
					}
				}
				if r.only == nil || !strings.HasPrefix(i, "o2ibd/") {
					continue
				}
				allowed := false
				for _, o := range r.only {
					allowed = allowed || below(i, o)
				}
				if !allowed {
					t.Errorf("%s imports %s: of ours, it may use only %v", p.ImportPath, i, r.only)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
