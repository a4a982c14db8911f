package main

import (
	"runtime"
	"runtime/debug"

	"o2ibd/app"
)

// version is set by the linker.
var version string

// versionName is the linker's version, or what the build says of itself.
func versionName() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	v := "devel"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += "-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}

type versionCmd struct{ format }

// built is what version prints.
type built struct {
	Version   string   `json:"version"`
	Go        string   `json:"go"`
	Providers []string `json:"providers"`
	RDMACore  string   `json:"rdma_core"` // "" where it is not built in
}

func (c *versionCmd) Run(e *env) error {
	v := built{Version: versionName(), Go: runtime.Version(), Providers: app.Providers(), RDMACore: app.RDMACore()}
	return c.print(e, v, func() *table {
		t := &table{}
		t.add("o2ibd", v.Version)
		t.add("go", v.Go)
		for _, p := range v.Providers {
			t.add("provider", p)
		}
		if v.RDMACore == "" {
			v.RDMACore = "left out of this binary (build tag nordma)"
		}
		t.add("rdma-core", v.RDMACore)
		return t
	})
}
