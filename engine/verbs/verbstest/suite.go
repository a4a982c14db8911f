package verbstest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Run runs the whole suite.
func Run(t *testing.T, env Env) {
	if env.Patience == 0 {
		env.Patience = 20 * time.Second
	}
	for _, c := range []struct {
		name string
		f    func(*testing.T, *world)
	}{
		{"set-up with private data both ways", setup},
		{"reject with private data", reject},
		{"nobody listens", noListener},
		{"nobody answers", unreachable},
		{"port in use", portInUse},
		{"no device at that address", noDevice},
		{"closed while connecting", closedEarly},
		{"listener closed", listenerClosed},
		{"data before the passive side knows", earlyData},
		{"disconnect by the client", func(t *testing.T, w *world) { disconnect(t, w, true) }},
		{"disconnect by the server", func(t *testing.T, w *world) { disconnect(t, w, false) }},
		{"disconnect by both", disconnectBoth},
		{"destroy with work outstanding", destroy},
		{"destroy with events outstanding", destroyDeaf},

		{"send before the connection", tooEarly},
		{"send and receive", sendReceive},
		{"message longer than its receive", tooLong},
		{"writes closed by a send", writes},
		{"completions in posting order", inOrder},
		{"receive queue full", recvQueueFull},
		{"send queue full", sendQueueFull},
		{"flush of receives", flushRecvs},
		{"flush of sends", flushSends},
		{"late receive", lateReceive},
		{"no receive ever", noReceive},
		{"arm in time", armInTime},
		{"arm once", armOnce},

		{"remote key wrong", badRemoteKey},
		{"remote address out of bounds", outOfBounds},
		{"write right missing", noRight},
		{"local key wrong", badLocalKey},
		{"local address out of bounds", badLocalAddress},
		{"key of the other node", foreignKey},
		{"key of another protection domain", foreignDomain},
		{"key that was taken back", staleKey},
		{"region that is closed under writes", closedUnderWrites},
		{"receive that tells when a queue pair is drained", drained},
		{"memory window", window},
		{"memory window of another connection", foreignWindow},
		{"memory window on a region that allows none", windowForbidden},
		{"send with invalidate", sendInvalidate},
		{"read", read},
		{"read right missing", readForbidden},

		{"many connections at once", many},
		{"much data", bulk},
		{"batch over several queue pairs", batch},
		{"peer vanishes", vanish},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			w := newWorld(t, &env)
			c.f(t, w)
			w.close()
			goleak.VerifyNone(t, before)
		})
	}
}
