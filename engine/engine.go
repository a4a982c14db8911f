package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// DefaultArena bounds the payload memory of an engine whose Config names no limit, in bytes.
const DefaultArena = 1 << 30

// NISpec is one NI to bring up: its network, and the address of the interface that it is on.
type NISpec struct {
	Net  wire.Net
	Addr netip.Addr // IPv4
}

// NID of the NI.
func (s NISpec) NID() wire.NID {
	a := s.Addr.As4()
	return wire.MakeNID(s.Net, uint32(a[0])<<24|uint32(a[1])<<16|uint32(a[2])<<8|uint32(a[3]))
}

// Config of an Engine.
type Config struct {
	Provider   verbs.Provider // the engine closes it
	NIs        []NISpec       // at least one; the first is the primary NID
	Tunables   tunables.Values
	CPTs       [][]int     // CPUs of each group of schedulers; nil: the host's NUMA nodes
	ArenaLimit int         // bytes of payload memory; 0: DefaultArena
	OnEvent    func(Event) // must not block; may be nil
	Log        *slog.Logger
}

// Engine is a running o2ib node: the LND, LNet above it, and the memory that messages are in. All methods
// may be called from any goroutine.
type Engine struct {
	cfg   Config
	arena *arena.Arena
	lnd   *o2iblnd.LND
	node  *lnet.Node

	mu      sync.Mutex // one change of tunables at a time
	values  tunables.Values
	started bool
	missing map[wire.NID]bool // NIs that could not be brought up again, as operators were told
	quit    chan struct{}
	ticker  sync.WaitGroup
}

// New checks cfg and builds the engine; nothing runs or listens yet.
func New(cfg Config) (*Engine, error) {
	if cfg.Provider == nil {
		return nil, errors.New("engine without a provider")
	}
	if len(cfg.NIs) == 0 {
		return nil, errors.New("engine without an NI: at least one is needed")
	}
	if bad := tunables.Validate(cfg.Tunables); len(bad) > 0 {
		return nil, &bad[0]
	}
	if cfg.ArenaLimit == 0 {
		cfg.ArenaLimit = DefaultArena
	}
	if cfg.OnEvent == nil {
		cfg.OnEvent = func(Event) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CPTs == nil {
		cfg.CPTs = hostCPTs(nodes)
	}
	if err := CheckCPTs(cfg.CPTs); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, arena: arena.New(cfg.ArenaLimit), values: cfg.Tunables.Clone(), missing: make(map[wire.NID]bool), quit: make(chan struct{})}
	lc := lnet.Config{Arena: e.arena, Log: e.notice}
	for _, s := range cfg.NIs {
		_, n, _ := tunables.Derive(e.values, s.Net.String())
		lc.NIs = append(lc.NIs, lnet.NIConfig{NID: s.NID(), Credits: n.Credits, PeerCredits: n.PeerCredits})
	}
	var err error
	if e.node, err = lnet.New(lc); err != nil {
		return nil, errors.Join(err, e.arena.Close())
	}
	g, _, _ := tunables.Derive(e.values, tunables.GlobalScope)
	e.lnd, err = o2iblnd.New(o2iblnd.Config{
		Provider: cfg.Provider, Upper: e.node, Payload: e.arena, Global: g, CPTs: cfg.CPTs,
		Scheds: schedulers(g.NScheds, len(cfg.CPTs[0])), OnEvent: e.lndEvent, Log: cfg.Log,
	})
	if err != nil {
		e.node.Close()
		return nil, errors.Join(err, e.arena.Close())
	}
	e.node.SetSender(e.lnd)
	return e, nil
}

// schedulers in a CPT of w CPUs (spec o2iblnd 8.2).
func schedulers(nscheds, w int) int {
	w = max(w, 1)
	if nscheds > 0 {
		return min(w, nscheds)
	}
	return min(4, max(2, w/2), w)
}

// Start brings the NIs up. On an error the engine is stopped again: one clear line says why.
func (e *Engine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lnd.Start()
	e.started = true
	for _, s := range e.cfg.NIs {
		e.lnd.Expect(s.NID())
	}
	for _, s := range e.cfg.NIs {
		if err := e.addNI(context.Background(), s); err != nil {
			return errors.Join(err, e.stop(context.Background()))
		}
	}
	e.ticker.Add(1)
	go e.tick()
	return nil
}

func (e *Engine) addNI(ctx context.Context, s NISpec) error {
	_, n, _ := tunables.Derive(e.values, s.Net.String())
	return e.lnd.AddNI(ctx, o2iblnd.NIConfig{NID: s.NID(), Addr: s.Addr, Tunables: n})
}

// mendEvery is the time between two attempts to bring up an NI that is missing.
const mendEvery = 5

// tick gives LNet the time, and now and then looks after the NIs.
func (e *Engine) tick() {
	defer e.ticker.Done()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for i := 1; ; i++ {
		select {
		case <-e.quit:
			return
		case now := <-t.C:
			e.node.Tick(now)
			if i%mendEvery == 0 {
				e.mend()
			}
		}
	}
}

// mend brings up an NI that is not there: its device was away when it was to come back.
func (e *Engine) mend() {
	if !e.mu.TryLock() {
		return // somebody is at it, or stops the engine
	}
	defer e.mu.Unlock()
	for _, s := range e.cfg.NIs {
		if e.lnd.Incarnation(s.NID()) != 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), mendEvery*time.Second)
		err := e.addNI(ctx, s)
		cancel()
		switch told := e.missing[s.NID()]; {
		case err == nil:
			delete(e.missing, s.NID())
			e.tell("ni_restarted", "info", s, fmt.Sprintf("%v is there again", s.NID()))
		case !told:
			e.missing[s.NID()] = true
			e.tell("ni_status", "error", s, fmt.Sprintf("%v is missing, trying on: %v", s.NID(), err))
		}
	}
}

func (e *Engine) tell(kind, severity string, s NISpec, text string) {
	e.cfg.OnEvent(Event{At: time.Now().UnixMilli(), Kind: kind, Severity: severity, NI: s.NID().String(), Text: text})
}

// Stop ends traffic, drains connections and gives everything back. When ctx ends before the peers let go,
// it says so and what is left stays until the process ends.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop(ctx)
}

func (e *Engine) stop(ctx context.Context) error {
	select {
	case <-e.quit:
		return nil
	default:
	}
	close(e.quit)
	e.ticker.Wait()
	e.node.Close()
	if e.started {
		if err := e.lnd.Stop(ctx); err != nil {
			return fmt.Errorf("stop the o2ib engine: %w", err)
		}
	}
	return errors.Join(e.cfg.Provider.Close(), e.arena.Close())
}

// Retune puts v in force: what acts at once does, the rest counts for new connections, and a change that
// needs an NI restart drains that NI and brings it up again. Values with the effect "engine restart"
// count from the next start. On an error the old values are in force again.
func (e *Engine) Retune(ctx context.Context, v tunables.Values) error {
	if bad := tunables.Validate(v); len(bad) > 0 {
		return &bad[0]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.values
	if err := e.retune(ctx, v.Clone()); err != nil {
		if undo := e.retune(context.WithoutCancel(ctx), old); undo != nil {
			err = errors.Join(err, fmt.Errorf("and the old values could not be put back: %w", undo))
		}
		return err
	}
	return nil
}

func (e *Engine) retune(ctx context.Context, v tunables.Values) error {
	before := e.values
	e.values = v
	g0, _, _ := tunables.Derive(before, tunables.GlobalScope)
	g, _, _ := tunables.Derive(v, tunables.GlobalScope)
	// These belong to what is running: the listener, the scheduler threads, the failover thread.
	g.Service, g.NScheds, g.DevFailover = g0.Service, g0.NScheds, g0.DevFailover
	e.lnd.SetGlobal(g)
	for _, s := range e.cfg.NIs {
		_, n0, _ := tunables.Derive(before, s.Net.String())
		_, n, _ := tunables.Derive(v, s.Net.String())
		if n == n0 && e.lnd.Incarnation(s.NID()) != 0 {
			continue
		}
		onlyTimeout := n0
		onlyTimeout.Timeout = n.Timeout
		if n == onlyTimeout && e.lnd.Incarnation(s.NID()) != 0 {
			if err := e.lnd.SetNI(s.NID(), n); err != nil {
				return err
			}
			continue
		}
		e.lnd.Expect(s.NID())
		if e.lnd.Incarnation(s.NID()) != 0 {
			if err := e.lnd.DelNI(ctx, s.NID()); err != nil {
				return fmt.Errorf("take %v down: %w", s.NID(), err)
			}
		}
		if err := e.node.Retune(s.NID(), n.Credits, n.PeerCredits); err != nil {
			return err
		}
		if err := e.addNI(ctx, s); err != nil {
			return fmt.Errorf("bring %v up again: %w", s.NID(), err)
		}
		e.tell("ni_restarted", "info", s, fmt.Sprintf("%v was restarted for new tunables", s.NID()))
	}
	return nil
}

// Alloc gives payload memory, 1 byte to arena.SlabSize; Free takes it back.
func (e *Engine) Alloc(n int) (arena.Buffer, error) { return e.arena.Alloc(n) }

// Free takes back what Alloc gave, once no operation names it any more.
func (e *Engine) Free(b arena.Buffer) { e.arena.Free(b) }

// LNet is the node above the LND: portals, PUT, GET, ping.
func (e *Engine) LNet() *lnet.Node { return e.node }

// Query says when a peer was last alive, as o2iblnd.LND.Query does.
func (e *Engine) Query(ctx context.Context, ni, nid wire.NID) (time.Time, error) {
	return e.lnd.Query(ctx, ni, nid)
}

// DelPeer forgets a peer and closes its connections; traffic makes it anew. wire.AnyNID stands for all
// peers, ni 0 for all NIs.
func (e *Engine) DelPeer(ctx context.Context, ni, nid wire.NID) error {
	err := e.lnd.DelPeer(ctx, ni, nid)
	if e.node.DelPeer(ni, nid) > 0 && errors.Is(err, o2iblnd.ErrNotFound) {
		return nil // LNet alone remembered it
	}
	return err
}

// CloseConns closes a peer's connections, or those of all with wire.AnyNID, and says how many.
func (e *Engine) CloseConns(ctx context.Context, ni, nid wire.NID) (int, error) {
	return e.lnd.CloseConns(ctx, ni, nid)
}

func (e *Engine) lndEvent(v o2iblnd.Event) {
	out := Event{At: v.At.UnixMilli(), Kind: v.Kind, Severity: severity(v.Severity), Text: v.Text, Data: v.Data}
	if v.NI != 0 {
		out.NI = v.NI.String()
	}
	if v.Peer != 0 {
		out.Peer = v.Peer.String()
	}
	if v.Conn != 0 {
		out.Conn = fmt.Sprint(v.Conn)
	}
	e.cfg.OnEvent(out)
}

func severity(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "error"
	case l >= slog.LevelWarn:
		return "warning"
	}
	return "info"
}

func (e *Engine) notice(v lnet.Notice) {
	out := Event{At: time.Now().UnixMilli(), Kind: v.Kind, Severity: string(v.Severity), Text: v.Text}
	if v.NI != 0 {
		out.NI = v.NI.String()
	}
	if v.Peer != 0 {
		out.Peer = v.Peer.String()
	}
	e.cfg.OnEvent(out)
}
