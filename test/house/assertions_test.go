package house

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// assertions of spec o2iblnd section 12 that no test is named for, and why.
var assertions = map[int]string{
	63: "peers and connections are not enumerated by index: snapshots hold all of them at one moment",
}

// TestAssertions: every numbered assertion of spec o2iblnd section 12 has a test, or a case of one, whose
// name holds its number as T12_07.
func TestAssertions(t *testing.T) {
	const last = 76
	named := make(map[string]bool)
	number := regexp.MustCompile(`T12_(\d\d)`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "node_modules":
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go") || filepath.Base(filepath.Dir(path)) == "house":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range number.FindAllStringSubmatch(string(text), -1) {
			named[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= last; n++ {
		has, reason := named[fmt.Sprintf("%02d", n)], assertions[n]
		if !has && reason == "" || has && reason != "" {
			t.Errorf("assertion %d: tested: %v, reason why not: %q", n, has, reason)
		}
	}
}
