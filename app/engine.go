package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// Engine is what the appliance needs of an engine. All methods may be called from any goroutine.
type Engine interface {
	Start() error
	Stop(ctx context.Context) error
	Snapshot() *engine.Snapshot
	Ping(ctx context.Context, nid wire.NID, timeout time.Duration) (PingResult, error)
	Query(ctx context.Context, ni, nid wire.NID) (time.Time, error)
	DelPeer(ctx context.Context, ni, nid wire.NID) error
	CloseConns(ctx context.Context, ni, nid wire.NID) (int, error)
	Recent(ctx context.Context, ni, nid wire.NID) ([]engine.ConnMessages, error)
	Retune(ctx context.Context, v tunables.Values) error
	DemoNode() (demo.Node, error) // for the demo's load
}

// EngineConfig is an engine to make.
type EngineConfig struct {
	Provider string  // a name of Providers
	CPTs     [][]int // CPUs of each group of schedulers; nil: the host's NUMA nodes
	NIs      []NISpec
	Tunables tunables.Values
	OnEvent  func(engine.Event)            // must not block
	Protest  func(kind, from, text string) // told of garbage on the o2ib port; must not block
	Log      *slog.Logger
}

// NISpec is one NI: its network, the interface and the IPv4 address that it is on.
type NISpec struct {
	Net       string
	Interface string
	Addr      netip.Addr
}

// retryEngine is the time between two attempts to bring the engine up.
const retryEngine = 10 * time.Second

// host keeps the engine that runs, or why none does.
type host struct {
	mu sync.RWMutex

	engine Engine
	err    error           // of the last attempt; nil while it runs or none is wanted
	next   tunables.Values // what was changed while no engine ran; nil: nothing
}

func (h *host) get() (Engine, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.engine, h.err
}

// up tries to bring the engine up. Only the change of the reason is told, not each attempt.
func (a *App) up(ctx context.Context) bool {
	used := a.tuning.Values()
	e, err := a.tryEngine(used)
	h := &a.host
	h.mu.Lock()
	old, next := h.err, h.next
	h.engine, h.err, h.next = e, err, nil
	if err != nil {
		h.next = next
	}
	h.mu.Unlock()
	if err != nil {
		if old == nil || old.Error() != err.Error() {
			a.events.say("engine", SeverityError, "the o2ib engine is not up: %v; it is tried again every %v", err, retryEngine)
		}
		return false
	}
	a.events.say("engine", SeverityInfo, "the o2ib engine is up")
	if next != nil && !maps.Equal(next, used) {
		// Changed while the engine was coming up.
		if err := e.Retune(ctx, next); err != nil {
			a.events.say("engine", SeverityError, "the o2ib engine runs with the tunables from before the last change: %v", err)
		}
	}
	return true
}

func (a *App) tryEngine(values tunables.Values) (Engine, error) {
	nis, err := a.addresses(values)
	if err != nil {
		return nil, err
	}
	e, err := a.makeEngine(EngineConfig{Provider: a.provider, CPTs: a.cfg.CPTs, NIs: nis, Tunables: values, OnEvent: a.events.add, Protest: a.Protest, Log: a.log})
	if err != nil {
		return nil, err
	}
	if err := e.Start(); err != nil {
		return nil, err
	}
	return e, nil
}

// addresses finds the address of each NI's interface. A network that names no interface is on ipif_name's
// (spec o2iblnd 7.2).
func (a *App) addresses(values tunables.Values) ([]NISpec, error) {
	if a.fabric != nil {
		return []NISpec{demoNI(0)}, nil
	}
	var list []NISpec
	for _, ni := range a.cfg.NIs {
		name := ni.Interface
		if name == "" {
			g, _, _ := tunables.Derive(values, ni.Net)
			name = g.IPIFName
		}
		if slices.ContainsFunc(list, func(o NISpec) bool { return o.Net == ni.Net && o.Interface == name }) {
			return nil, fmt.Errorf("network %s is on interface %s twice: one of its NIs names no interface, and the tunable ipif_name says %s", ni.Net, name, name)
		}
		addr, err := interfaceAddr(name)
		switch {
		case err != nil && ni.Interface == "":
			return nil, fmt.Errorf("network %s names no interface, so the tunable ipif_name counts: %w", ni.Net, err)
		case err != nil:
			return nil, fmt.Errorf("network %s: %w", ni.Net, err)
		}
		list = append(list, NISpec{ni.Net, name, addr})
	}
	return list, nil
}

// interfaceAddr is the first IPv4 address of an interface.
func interfaceAddr(name string) (netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface %s is not there", name)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of interface %s: %w", name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("interface %s has no IPv4 address", name)
}

// keepUp tries until the engine is up or ctx ends, and starts the demo's load on it.
func (a *App) keepUp(ctx context.Context) {
	for !a.up(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryEngine):
		}
	}
	if a.fabric == nil {
		return
	}
	e, _ := a.host.get()
	node, err := e.DemoNode()
	if err != nil {
		a.events.say("engine", SeverityError, "the demo has no load: %v", err)
		return
	}
	a.fabric.start(ctx, node)
}

// down stops the engine, within engineStop.
func (a *App) down() error {
	a.host.mu.Lock()
	e := a.host.engine
	a.host.engine = nil
	a.host.mu.Unlock()
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineStop)
	defer cancel()
	return e.Stop(ctx)
}

// retune is the Applier of tuning. Without an engine there is nothing to do: it comes up with the values.
func (a *App) retune(ctx context.Context, _, next tunables.Values) error {
	a.host.mu.Lock()
	e := a.host.engine
	if e == nil {
		a.host.next = next
	}
	a.host.mu.Unlock()
	if e == nil {
		return nil
	}
	return e.Retune(ctx, next)
}

// snapshot is what the ticker takes: an empty one without an engine.
func (a *App) snapshot() *engine.Snapshot {
	if e, _ := a.host.get(); e != nil {
		return e.Snapshot()
	}
	return &engine.Snapshot{
		TakenAt: time.Now().UnixMilli(), Nets: []engine.Net{}, Devices: []engine.Device{}, Peers: []engine.Peer{},
		Conns: []engine.Conn{}, Pools: []engine.Pool{}, Schedulers: []engine.Scheduler{},
	}
}

// Bounds of a ping's timeout.
const (
	DefaultPing = 5 * time.Second
	maxPing     = 180 * time.Second
)

// Ping asks nid, such as 10.0.0.2@o2ib, once; a timeout of 0 is DefaultPing.
func (a *App) Ping(ctx context.Context, who Actor, nid string, timeout time.Duration) (PingResult, error) {
	r, err := a.ping(ctx, who, nid, timeout)
	if err != nil && !errors.Is(err, ErrForbidden) && !errors.Is(err, ErrInvalid) {
		// A ping changes nothing: it is no matter for the audit log, but who pings whom in vain helps.
		a.log.Info("ping failed", "nid", nid, "who", who.Name, "error", err)
	}
	return r, err
}

func (a *App) ping(ctx context.Context, who Actor, text string, timeout time.Duration) (PingResult, error) {
	if err := allowed(who, RoleOperator); err != nil {
		return PingResult{}, err
	}
	nid, err := wire.ParseNID(text)
	if err != nil {
		return PingResult{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if timeout == 0 {
		timeout = DefaultPing
	}
	if timeout < 0 || timeout > maxPing {
		return PingResult{}, fmt.Errorf("%w: a timeout of %v: more than 0 and at most %v are possible", ErrInvalid, timeout, maxPing)
	}
	e, err := a.running()
	if err != nil {
		return PingResult{}, err
	}
	r, err := e.Ping(ctx, nid, timeout)
	if err != nil && ctx.Err() == nil {
		return r, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return r, err
}

// Providers are the providers built into this binary.
func Providers() []string {
	names := []string{}
	for name := range providers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
