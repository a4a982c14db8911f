//go:build nordma

package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"o2ibd/app"
)

func TestProviderLeftOut(t *testing.T) {
	o := options(t)
	o.NewEngine = nil
	o.ConfigFile = filepath.Join(t.TempDir(), "o2ibd.yaml")
	if err := os.WriteFile(o.ConfigFile, []byte("provider: rdmacore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := app.Open(t.Context(), o)
	if err == nil {
		a.Close()
		t.Fatal("it opens")
	}
	if !strings.Contains(err.Error(), "rdmacore is not built into this binary") {
		t.Fatal(err)
	}
}
