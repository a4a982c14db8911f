// Package fabric is a made-up engine of any size, for tests and benchmarks of what shows it: it takes the
// place of the real one through app.Options.NewEngine.
package fabric

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"o2ibd/app"
	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// Engine has a number of peers, with one connection each, of which every tenth moves between two
// snapshots. Its methods may be called by any goroutine.
type Engine struct {
	mu   sync.Mutex
	tick int
	snap engine.Snapshot
}

// Config is a configuration file that wants one NI, for the engine to stand in for.
const Config = "provider: iwarp\nnet:\n  - net type: o2ib\n    local NI(s):\n      - interfaces:\n          0: lo\n"

// New makes an engine with n peers: 10.0.0.2@o2ib and up. One in 500 is down.
func New(n int) *Engine {
	const ni = 10<<24 + 1
	us := wire.MakeNID(wire.NetO2IB, ni)
	e := &Engine{snap: engine.Snapshot{
		Nets:       []engine.Net{{RejectsSentBy: map[string]uint64{}, RejectsReceivedBy: map[string]uint64{}, UnpackErrorsBy: map[string]uint64{}, ID: us.String(), NID: us, Net: "o2ib", Status: "up", Device: "hca0", Interface: "ib0", PeerCredits: 8, PeerCreditsHiw: 4, Credits: 256, AvailableCredits: 256, MaxFrags: 256, Peers: n, Conns: n}},
		Devices:    []engine.Device{{ID: "hca0 10.0.0.1", Name: "hca0", Interface: "ib0", Addr: "10.0.0.1", Provider: "fabric", State: "active", MTU: 4096, MaxQPWR: 16384}},
		Pools:      []engine.Pool{{ID: "tx o2ib cpt 0", Kind: "tx", Net: "o2ib", Size: 512}},
		Schedulers: []engine.Scheduler{},
	}}
	now := time.Now().UnixMilli()
	for i := range n {
		nid := wire.MakeNID(wire.NetO2IB, ni+1+uint32(i))
		p := engine.Peer{
			ID: us.String() + ">" + nid.String(), NID: nid, NI: us, Net: "o2ib", State: "connected", Conns: 1, Version: 0x12, QueueDepth: 8, MaxFrags: 256,
			LastAliveAt: &now, AvailableCredits: 8, MinCredits: 8 - i%12,
		}
		if i%500 == 499 {
			p.State, p.Conns, p.Error, p.ErrorAt = "down", 0, "timed out RDMA: no answer for 50 s", &now
		}
		e.snap.Peers = append(e.snap.Peers, p)
		if p.Conns > 0 {
			e.snap.Conns = append(e.snap.Conns, engine.Conn{
				ID: fmt.Sprint(i + 1), Peer: p.ID, NID: nid, State: "established", Direction: "active", Version: 0x12, Credits: 8, ReservedCredits: 8,
				QueueDepth: 8, HighWater: 4, MaxFrags: 256, RxPosted: 18, EstablishedAt: &now, Device: "hca0", Exposure: "device", Cksum: "none",
			})
		}
	}
	slices.SortFunc(e.snap.Peers, func(a, b engine.Peer) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return e
}

// Snapshot moves a tenth of the peers and gives what there is.
func (e *Engine) Snapshot() *engine.Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tick++
	s := &e.snap
	s.TakenAt = time.Now().UnixMilli()
	for i := e.tick % 10; i < len(s.Peers); i += 10 {
		p := &s.Peers[i]
		if p.State == "down" {
			continue
		}
		p.SendCount++
		p.RecvCount += 2
		p.SendBytes += 4096
		p.TxQueued = (i/10 + e.tick) % 4
		at := s.TakenAt
		p.LastAliveAt = &at
	}
	for i := e.tick % 10; i < len(s.Conns); i += 10 {
		c := &s.Conns[i]
		c.TxMsgs++
		c.RxMsgs += 2
		c.TxBytes += 4096
		c.Credits = 1 + (c.Credits+2)%8
	}
	s.Nets[0].SendCount += uint64(len(s.Peers) / 10)
	s.Stats.SendCount = s.Nets[0].SendCount
	out := *s
	out.Peers, out.Conns, out.Nets, out.Pools = slices.Clone(s.Peers), slices.Clone(s.Conns), slices.Clone(s.Nets), slices.Clone(s.Pools)
	return &out
}

// Start, Stop and Retune have nothing to do.
func (*Engine) Start() error { return nil }

// Stop does nothing.
func (*Engine) Stop(context.Context) error { return nil }

// Retune does nothing.
func (*Engine) Retune(context.Context, tunables.Values) error { return nil }

// Query knows of nobody.
func (*Engine) Query(context.Context, wire.NID, wire.NID) (time.Time, error) { return time.Time{}, nil }

// DelPeer does nothing.
func (*Engine) DelPeer(context.Context, wire.NID, wire.NID) error { return nil }

// CloseConns closes none.
func (*Engine) CloseConns(context.Context, wire.NID, wire.NID) (int, error) { return 0, nil }

// Recent remembers nothing.
func (*Engine) Recent(context.Context, wire.NID, wire.NID) ([]engine.ConnMessages, error) {
	return []engine.ConnMessages{}, nil
}

// DemoNode is none.
func (*Engine) DemoNode() (demo.Node, error) { return nil, nil }

// Ping is answered by nobody.
func (*Engine) Ping(_ context.Context, nid wire.NID, _ time.Duration) (app.PingResult, error) {
	return app.PingResult{}, fmt.Errorf("%w: ping %v", app.ErrUnreachable, nid)
}

var _ app.Engine = (*Engine)(nil)
