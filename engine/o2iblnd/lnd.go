// Package o2iblnd is the LND: LNet's driver for InfiniBand, RoCE and iWARP (spec o2iblnd). It connects to
// peers, keeps their credits, and moves LNet messages as IMMEDIATE messages or by RDMA.
//
// Who owns what. connd (connd.go), one goroutine, owns devices, NIs, the peer table and the set-up and
// tear-down of connections. A scheduler (sched.go) owns each connection from attach to drained: its
// credits, queues, tx and rx. They talk by inboxes alone. Both are step functions, Step(now), with thin
// goroutines around them, so that a simulation can call the steps itself in an order of its own.
// LNet is known only through Upper, Sender and Rx (upper.go). The pure parts are packages of their own:
// credits (section 3), negotiate (section 2), pool (section 6).
//
// Readers use Snapshot: schedulers publish plain counters, connd's tables are read under connd's lock,
// which no scheduler takes.
package o2iblnd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// Config of an LND.
type Config struct {
	Provider verbs.Provider
	Upper    Upper
	Payload  *arena.Arena // where LNet's buffers come from
	Global   tunables.Global
	CPTs     [][]int          // CPUs of each group of schedulers; with one group, or nil, none is pinned
	Scheds   int              // schedulers in a CPT, at least 1
	OnEvent  func(Event)      // must not block; may be nil
	Log      *slog.Logger     // nil: no log
	Rand     *rand.Rand       // for reconnect delays; nil: seeded by chance
	Now      func() time.Time // for incarnations; nil: time.Now
	// BigEndian sends in the order that is not ours, for tests of peers.
	BigEndian bool
}

// Event is something that an operator may want to know.
type Event struct {
	At       time.Time
	Kind     string
	Severity slog.Level
	NI, Peer wire.NID // 0: none
	Conn     uint64
	Text     string
	Data     map[string]string // the numbers that matter, by names that go on a page
}

// LND is the driver. Send and Snapshot may be called from any goroutine; the control calls wait for connd.
type LND struct {
	upper     Upper
	payload   *arena.Arena
	slots     *arena.Arena // message buffers: rx rings and tx slots
	provider  verbs.Provider
	log       *slog.Logger
	onEvent   func(Event)
	bigEndian bool
	now       func() time.Time

	global  atomic.Pointer[tunables.Global]
	scheds  []*scheduler
	cpts    int
	connd   *connd
	nis     atomic.Pointer[[]*ni]
	peers   peerTable
	txs     txTable
	connIDs atomic.Uint64

	expected sync.Map     // NIDs that are coming up
	refused  rejectCounts // requests for no NI of ours

	threads sync.WaitGroup
	stopped chan struct{}
	started bool
}

// New makes an LND without NIs. Start runs it; a simulation calls the steps instead.
func New(cfg Config) (*LND, error) {
	l := &LND{
		upper: cfg.Upper, payload: cfg.Payload, provider: cfg.Provider, log: cfg.Log, onEvent: cfg.OnEvent,
		bigEndian: cfg.BigEndian, now: cfg.Now, cpts: max(len(cfg.CPTs), 1), stopped: make(chan struct{}),
		slots: arena.New(1 << 40),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.now == nil {
		l.now = time.Now
	}
	rng := cfg.Rand
	if rng == nil {
		rng = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	g := cfg.Global
	l.global.Store(&g)
	l.nis.Store(&[]*ni{})
	for cpt := range l.cpts {
		for i := range max(cfg.Scheds, 1) {
			w, err := cfg.Provider.NewWaiter()
			if err != nil {
				return nil, errors.Join(fmt.Errorf("start a scheduler: %w", err), l.closeWaiters())
			}
			s := &scheduler{lnd: l, id: threadID(cpt, i), idx: len(l.scheds), cpt: cpt, waiter: w, cookies: rng.Uint64()}
			if l.cpts > 1 {
				s.cpus = cfg.CPTs[cpt]
			}
			l.scheds = append(l.scheds, s)
		}
	}
	w, err := cfg.Provider.NewWaiter()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start connd: %w", err), l.closeWaiters())
	}
	cm, err := cfg.Provider.OpenCM(w)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the connection manager: %w", err), w.Close(), l.closeWaiters())
	}
	l.connd = newConnd(l, w, cm, rng)
	return l, nil
}

func (l *LND) closeWaiters() error {
	var errs []error
	for _, s := range l.scheds {
		errs = append(errs, s.waiter.Close())
	}
	return errors.Join(errs...)
}

// Start runs connd and the schedulers.
func (l *LND) Start() {
	l.started = true
	l.threads.Add(1 + len(l.scheds))
	go l.connd.run()
	for _, s := range l.scheds {
		go s.run()
	}
}

// Stop takes every NI down and ends the goroutines. When ctx ends first it says what was left.
func (l *LND) Stop(ctx context.Context) error {
	var errs []error
	for _, n := range *l.nis.Load() {
		errs = append(errs, l.DelNI(ctx, n.nid))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	close(l.stopped)
	l.connd.waiter.Wake()
	for _, s := range l.scheds {
		s.waiter.Wake()
	}
	l.threads.Wait()
	l.settle()
	return errors.Join(l.connd.cm.Close(), l.connd.waiter.Close(), l.closeWaiters(), l.slots.Close())
}

// settle ends what LNet sent from the callbacks of the last turns: no goroutine is left to do it.
func (l *LND) settle() {
	for more := true; more; {
		more = l.connd.waits()
		l.connd.Step(time.Now())
		for _, s := range l.scheds {
			more = more || s.waits()
			s.Step(time.Now())
		}
	}
}

// Send implements Sender for any goroutine.
func (l *LND) Send(m *Message) {
	if c := l.route(m); c != nil {
		c.sched.submit(op{kind: opSend, c: c, m: m})
		return
	}
	l.connd.submit(cop{kind: copSend, m: m})
}

// route picks an established conn for m, round robin over the peer's, or nil.
func (l *LND) route(m *Message) *conn {
	n := l.ni(m.Hdr.SrcNID)
	if n == nil {
		return nil
	}
	p := l.peers.find(n, m.Peer)
	if p == nil {
		return nil
	}
	live := p.live.Load()
	if live == nil || len(*live) == 0 {
		return nil
	}
	return (*live)[int(p.next.Add(1))%len(*live)]
}

func (l *LND) ni(nid wire.NID) *ni {
	for _, n := range *l.nis.Load() {
		if n.nid == nid {
			return n
		}
	}
	return nil
}

// SetGlobal puts new process-wide tunables in force: those that act at once do.
func (l *LND) SetGlobal(g tunables.Global) { l.global.Store(&g) }

// SetNI puts new tunables of an NI in force, for connections made from now on.
func (l *LND) SetNI(nid wire.NID, t tunables.NI) error {
	n := l.ni(nid)
	if n == nil {
		return fmt.Errorf("no NI %v", nid)
	}
	n.tun.Store(&t)
	return nil
}

// timeout is the transmit deadline, and what the pace of the scans follows.
func (l *LND) timeout() time.Duration { return l.global.Load().Timeout }

func (l *LND) event(e Event) {
	if e.At.IsZero() {
		e.At = l.now()
	}
	l.log.Log(context.Background(), e.Severity, e.Text, "kind", e.Kind, "ni", e.NI.String(), "peer", e.Peer.String())
	if l.onEvent != nil {
		l.onEvent(e)
	}
}

// fault reports a device call that failed.
func (l *LND) fault(h *hcaDev, what string, err error) {
	l.event(Event{Kind: "device", Severity: slog.LevelError, Text: fmt.Sprintf("%s: could not %s: %v", h.info.Name, what, err)})
}
