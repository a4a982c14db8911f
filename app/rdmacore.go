//go:build !nordma

package app

import (
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/rdmacore"
)

func init() { providers["rdmacore"] = openRDMACore }

// openRDMACore finds devices when the engine binds to the NIs' addresses.
func openRDMACore(EngineConfig) (verbs.Provider, error) { return rdmacore.New(rdmacore.Options{}) }
