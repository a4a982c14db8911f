package lnetctl_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/lnetctl"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// The golden files are the examples of spec lnet 5.5 to 5.7, without the keys that we do not write.
func TestGolden(t *testing.T) {
	const ours, theirs = wire.NID(0x000500000a000001), wire.NID(0x000500000a000002)
	s := &engine.Snapshot{
		Nets: []engine.Net{{
			ID: "10.0.0.1@o2ib", NID: ours, Net: "o2ib", Status: "up", Interface: "ib0",
			PeerCredits: 32, PeerCreditsHiw: 16, ConcurrentSends: 32, Credits: 256,
			SendCount: 1234, RecvCount: 1201, DropCount: 3,
		}},
		Peers: []engine.Peer{
			{ID: "10.0.0.1@o2ib>10.0.0.2@o2ib", NID: theirs, NI: ours, AvailableCredits: 8, MinCredits: -4, SendCount: 55, RecvCount: 50},
			{ID: "10.0.0.9@o2ib>10.0.0.2@o2ib", NID: theirs, NI: ours, SendCount: 1},
		},
		Schedulers: []engine.Scheduler{{CPT: 1}, {CPT: 0}, {CPT: 1}},
		Stats: engine.Stats{
			MsgsMax: 12, SendCount: 1234, RecvCount: 1201, DropCount: 3,
			SendLength: 104857600, RecvLength: 52428800, DropLength: 480,
		},
	}
	eight := *s
	eight.Nets = []engine.Net{{NID: ours, PeerCredits: 8}}
	effective := func(net, name string) string {
		g, n, _ := tunables.Derive(nil, net)
		v, _ := tunables.Effective(g, n, name)
		return v
	}
	for file, got := range map[string][]byte{
		"net.yaml":    lnetctl.Net(s, effective, false),
		"net-v.yaml":  lnetctl.Net(s, effective, true),
		"peer.yaml":   lnetctl.Peer(&eight, false),
		"peer-v.yaml": lnetctl.Peer(&eight, true),
		"stats.yaml":  lnetctl.Stats(s),
	} {
		want, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestWithoutAppliance(t *testing.T) {
	unknown := func(string, string) string { return "" }
	got := string(lnetctl.Net(&engine.Snapshot{}, unknown, false))
	want := "net:\n    - net type: lo\n      local NI(s):\n        - nid: 0@lo\n          status: up\n"
	if got != want {
		t.Errorf("got %q", got)
	}
	if got := string(lnetctl.Peer(&engine.Snapshot{}, true)); got != "peer:\n" {
		t.Errorf("got %q", got)
	}
}
