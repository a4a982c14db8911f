package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// MaxDemo is the most further nodes that a demo has.
const MaxDemo = 16

const demoNet = "o2ib" // wire.NetO2IB

// demoPorts are tried in order; 0 takes any that is free.
var demoPorts = []int{9870, 9871, 9872, 9873, 9874, 9875, 9876, 9877, 9878, 9879, 0, 0, 0, 0}

// fabric is the demo: the child processes, and this node's share of the load.
type fabric struct {
	app     *App
	service int
	nids    []wire.NID // ours first, then the children's
	spawner *demo.Spawner
	nodes   *demo.Supervisor
	load    sync.WaitGroup
}

// demoTunables are what the demo needs to run without root.
func demoTunables(service int) tunables.Values {
	return tunables.Values{
		{Scope: tunables.GlobalScope, Name: "service"}:             strconv.Itoa(service),
		{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
	}
}

// Node 0 is the appliance's own.
func demoAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}) }

func demoNI(i int) NISpec { return NISpec{demoNet, "lo", demoAddr(i)} }

func demoNID(i int) wire.NID { return wire.MakeNID(wire.NetO2IB, 0x7f000001+uint32(i)) }

// freeService finds a port that is free on the addresses of all nodes.
func freeService(nodes int) (int, error) {
	var last error
	for _, port := range demoPorts {
		if port, last = portFree(port, nodes); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port is free on 127.0.0.1 to %v for the demo's nodes: %w", demoAddr(nodes), last)
}

func portFree(port, nodes int) (int, error) {
	for i := range nodes + 1 {
		l, err := net.Listen("tcp", netip.AddrPortFrom(demoAddr(i), uint16(port)).String())
		if err != nil {
			return 0, err
		}
		defer l.Close()
		port = l.Addr().(*net.TCPAddr).Port
	}
	return port, nil
}

// newFabric plans a demo of n further nodes. args makes this binary a node.
func newFabric(a *App, n, service int, exe string, args []string) *fabric {
	f := &fabric{app: a, service: service}
	for i := range n + 1 {
		f.nids = append(f.nids, demoNID(i))
	}
	f.spawner = demo.NewSpawner(exe, args, f.logged)
	var specs []demo.Spec
	for i := 1; i <= n; i++ {
		specs = append(specs, demo.Spec{
			Index: i, Net: demoNet, NID: f.nids[i], Addr: demoAddr(i), Service: service,
			Peers: f.others(i), Tunables: demoTunables(service),
		})
	}
	f.nodes = demo.NewSupervisor(specs, f.spawner.Spawn, f.changed)
	return f
}

// logged passes on a line of a node's log. It is JSON, but for what a crash writes.
func (f *fabric) logged(index int, line string) {
	var r map[string]any
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		f.app.log.Warn(line, "demo_node", index)
		return
	}
	var level slog.Level
	text, _ := r[slog.MessageKey].(string)
	if l, ok := r[slog.LevelKey].(string); !ok || level.UnmarshalText([]byte(l)) != nil {
		level = slog.LevelWarn
	}
	attrs := []any{"demo_node", index}
	for _, k := range slices.Sorted(maps.Keys(r)) {
		if k != slog.MessageKey && k != slog.LevelKey && k != slog.TimeKey {
			attrs = append(attrs, k, r[k])
		}
	}
	f.app.log.Log(context.Background(), level, text, attrs...)
}

// others are all NIDs but that of node i; ours is node 0.
func (f *fabric) others(i int) []wire.NID {
	var list []wire.NID
	for j, nid := range f.nids {
		if j != i {
			list = append(list, nid)
		}
	}
	return list
}

// changed tells operators about a node.
func (f *fabric) changed(s demo.Status) {
	e := engine.Event{At: s.Since.UnixMilli(), Kind: "demo_node", Severity: SeverityInfo, Peer: s.Spec.NID.String()}
	switch {
	case s.State == demo.Running:
		e.Text = fmt.Sprintf("demo node %d on %v runs as process %d", s.Spec.Index, s.Spec.Addr, s.PID)
	case s.Error == "":
		e.Text = fmt.Sprintf("demo node %d on %v was stopped", s.Spec.Index, s.Spec.Addr)
	default:
		e.Severity = SeverityWarning
		e.Text = fmt.Sprintf("demo node %d on %v %s: %s", s.Spec.Index, s.Spec.Addr, s.State, s.Error)
	}
	f.app.events.tell(e)
}

// start brings the nodes up and puts this node's share of the load on, until ctx ends. Nodes that fail
// are shown as such.
func (f *fabric) start(ctx context.Context, n demo.Node) {
	f.load.Go(func() {
		if err := f.nodes.StartAll(ctx); err != nil {
			f.app.log.Warn("not every demo node came up", "error", err)
		}
	})
	f.load.Go(func() { demo.Run(ctx, n, f.others(0), demo.DefaultLoad) })
}

// stop ends the nodes; start's ctx has ended.
func (f *fabric) stop(ctx context.Context) {
	f.nodes.Close(ctx)
	f.load.Wait()
	f.spawner.Close()
}

func (f *fabric) info() []DemoNode {
	list := []DemoNode{}
	for _, s := range f.nodes.Status() {
		list = append(list, DemoNode{
			Index: s.Spec.Index, NID: s.Spec.NID, PID: s.PID, State: string(s.State), Since: s.Since.UnixMilli(), Error: s.Error,
		})
	}
	return list
}

// DemoStop ends demo node i, from 1: its process is gone when this returns.
func (a *App) DemoStop(ctx context.Context, who Actor, i int) error {
	return a.demoNode(ctx, who, "demo.stop", i, func(f *fabric) error { return f.nodes.Stop(ctx, i) })
}

// DemoStart starts demo node i again: it is up when this returns.
func (a *App) DemoStart(ctx context.Context, who Actor, i int) error {
	return a.demoNode(ctx, who, "demo.start", i, func(f *fabric) error { return f.nodes.Start(ctx, i) })
}

func (a *App) demoNode(ctx context.Context, who Actor, action string, i int, do func(*fabric) error) error {
	err := allowed(who, RoleOperator)
	switch {
	case err != nil:
	case a.fabric == nil:
		err = fmt.Errorf("%w: this is not a demo", ErrConflict)
	default:
		err = do(a.fabric)
	}
	if errors.Is(err, demo.ErrNoNode) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return a.audited(ctx, who, action, strconv.Itoa(i), err)
}

// RunDemoNode is a demo node's whole process: the order comes on in, one line goes out on out, its log in
// JSON on errs, and it ends with in or ctx.
func RunDemoNode(ctx context.Context, in io.Reader, out, errs io.Writer) error {
	log := slog.New(slog.NewJSONHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return demo.Serve(ctx, in, out, func(ctx context.Context, s demo.Spec) (func(context.Context) error, error) {
		e, err := newEngine(EngineConfig{
			Provider: "iwarp", NIs: []NISpec{{s.Net, "lo", s.Addr}}, Tunables: s.Tunables, Log: log,
			OnEvent: func(engine.Event) {}, // the appliance sees the other end of each
			Protest: func(kind, from, text string) { log.Warn(text, "from", from) },
		})
		if err != nil {
			return nil, err
		}
		if err := e.Start(); err != nil {
			return nil, err
		}
		node, err := e.DemoNode()
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			demo.Run(ctx, node, s.Peers, demo.DefaultLoad)
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineStop)
			defer cancel()
			return e.Stop(stop)
		}, nil
	})
}

// engineStop bounds how long an engine drains.
const engineStop = 10 * time.Second

// ownBinary is the path of the running binary, good even after an upgrade has replaced the file.
func ownBinary() (string, error) {
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}
