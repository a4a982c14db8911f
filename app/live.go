package app

import (
	"errors"

	"o2ibd/engine/verbs"
)

// providers are the HCA providers built into this binary, by name.
var providers = map[string]func() (verbs.Provider, error){}

func newEngine(c EngineConfig) (Engine, error) { return nil, errors.New("no engine in this build") }
