package verbs

import (
	"os"
	"path/filepath"
)

// IsBond says whether a network interface is a bonding master, for providers on Linux.
func IsBond(name string) bool {
	if name == "" {
		return false
	}
	_, err := os.Stat(filepath.Join("/sys/class/net", name, "bonding"))
	return err == nil
}
