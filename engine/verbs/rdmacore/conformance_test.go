//go:build hca && !nordma

package rdmacore_test

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/rdmacore"
	"o2ibd/engine/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setting is what the script around the test says about the host's devices.
func setting(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: this test wants a host with RDMA devices, see test/hca", name)
	}
	return v
}

func node(t *testing.T, addr string, opt rdmacore.Options) verbstest.Node {
	t.Helper()
	p, err := rdmacore.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return verbstest.Node{Provider: p, Addr: netip.MustParseAddr(setting(t, addr))}
}

func environment(opt rdmacore.Options) verbstest.Env {
	return verbstest.Env{
		New: func(t *testing.T) (c, s verbstest.Node) {
			return node(t, "O2IBD_HCA_CLIENT", opt), node(t, "O2IBD_HCA_SERVER", opt)
		},
		Patience: 30 * time.Second,
		Vague:    os.Getenv("O2IBD_HCA_VAGUE") != "",
		QuietEnd: os.Getenv("O2IBD_HCA_QUIET_END") != "",
	}
}

// TestLooseWindows runs it with the windows of a device that does not keep peers inside of them: they are
// bound, used and taken back like others.
func TestLooseWindows(t *testing.T) {
	env := environment(rdmacore.Options{LooseWindows: true, ACKTimeout: 14})
	env.LooseWindows = true
	verbstest.Run(t, env)
}

// TestConformance runs the suite between two addresses of this host.
func TestConformance(t *testing.T) {
	env := environment(rdmacore.Options{})
	if a := os.Getenv("O2IBD_HCA_NOWHERE"); a != "" {
		env.Nowhere = netip.MustParseAddrPort(a)
	}
	if cmd := os.Getenv("O2IBD_HCA_VANISH"); cmd != "" {
		run := func(cmd string) {
			if out, err := exec.Command("sh", "-c", cmd).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", cmd, err, out)
			}
		}
		env.Vanish = func() { run(cmd) }
		defer run(setting(t, "O2IBD_HCA_RETURN"))
	}
	verbstest.Run(t, env)
}

func TestDevices(t *testing.T) {
	n := node(t, "O2IBD_HCA_CLIENT", rdmacore.Options{})
	infos, err := n.Provider.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		t.Logf("%+v", i)
		if i.Addr == n.Addr {
			if i.Name == "" || i.Interface == "" || i.Port < 1 || i.State != verbs.PortActive || i.Caps.MaxQPWR < 1 || i.Caps.MaxCQE < 1 || i.Caps.MaxSGE < 1 {
				t.Fatalf("%+v", i)
			}
			return
		}
	}
	t.Fatalf("no device has %v", n.Addr)
}
