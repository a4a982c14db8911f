package iwarp_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func provider(addr string, opt iwarp.Options) verbs.Provider {
	opt.Interfaces = []iwarp.Interface{{Name: "lo", Addr: netip.MustParseAddr(addr), MTU: 65536}}
	return iwarp.New(opt)
}

func TestConformanceTCP(t *testing.T) {
	for _, noCRC := range []bool{false, true} {
		name := "with CRC"
		if noCRC {
			name = "without CRC"
		}
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, verbstest.Env{New: func(*testing.T) (c, s verbstest.Node) {
				opt := iwarp.Options{NoCRC: noCRC}
				return verbstest.Node{Provider: provider("127.0.0.51", opt), Addr: netip.MustParseAddr("127.0.0.51")},
					verbstest.Node{Provider: provider("127.0.0.52", opt), Addr: netip.MustParseAddr("127.0.0.52")}
			}})
		})
	}
}

func TestConformancePipes(t *testing.T) {
	var net *iwarp.Pipes
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	verbstest.Run(t, verbstest.Env{
		New: func(*testing.T) (c, s verbstest.Node) {
			net = iwarp.NewPipes()
			opt := iwarp.Options{Transport: net}
			return verbstest.Node{Provider: provider("10.0.0.1", opt), Addr: a}, verbstest.Node{Provider: provider("10.0.0.2", opt), Addr: b}
		},
		Vanish: func() { net.Vanish(b) },
	})
}
