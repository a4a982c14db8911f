package lnet

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// ErrClosed says that the node was closed.
var ErrClosed = errors.New("LNet is shut down")

// Config of a Node. Zero values stand for the defaults that are named.
type Config struct {
	NIs   []NIConfig   // at least one; the first is the primary NID
	Arena *arena.Arena // for ping info, pushes and parked PUTs
	PID   uint32       // 12345, as every kernel node has

	// TransactionTimeout (150 s) is how long an answer may take, and how long a message may wait for
	// its credits.
	TransactionTimeout time.Duration
	// MaxParked (1024) PUTs wait on one lazy portal; more are dropped.
	MaxParked int
	// MaxPeers (65536) are remembered by one NI; what comes from more is dropped.
	MaxPeers int
	// ForgetAfter (a week) without a message either way a peer's record goes.
	ForgetAfter time.Duration
	// Cookie is the interface cookie in handles: unique to this life of the node. 0: a random one.
	Cookie uint64

	Now func() time.Time // time.Now
	Log func(Notice)     // told about what operators should see; must not block
}

// NIConfig is one NI.
type NIConfig struct {
	NID         wire.NID
	Credits     int // messages in flight over the NI
	PeerCredits int // messages in flight to one peer
}

// Node is the LNet node. All methods are safe for use by several goroutines.
type Node struct {
	cfg    Config
	cookie uint64
	sender o2iblnd.Sender

	nis     []*ni
	portals [numPortals]portal
	handles handleTable
	tracker tracker
	local   loopback
	aside   asideMemory
	stats   counters
	drops   dropLog
	ping    pingTarget
	closed  atomic.Bool

	msgs, mds sync.Pool
}

var _ o2iblnd.Upper = (*Node)(nil)

// New makes a node that answers pings. SetSender has to follow before anything is sent or received.
func New(cfg Config) (*Node, error) {
	switch {
	case len(cfg.NIs) == 0:
		return nil, errors.New("LNet without an NI: at least one is needed")
	case len(cfg.NIs) > maxPingNIs:
		return nil, fmt.Errorf("LNet with %d NIs: at most %d fit a ping answer", len(cfg.NIs), maxPingNIs)
	case cfg.Arena == nil:
		return nil, errors.New("LNet without an arena")
	}
	setDefault(&cfg.PID, wire.LustrePID)
	setDefault(&cfg.TransactionTimeout, 150*time.Second)
	setDefault(&cfg.MaxParked, 1024)
	setDefault(&cfg.MaxPeers, 65536)
	setDefault(&cfg.ForgetAfter, 7*24*time.Hour)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = func(Notice) {}
	}
	n := &Node{cfg: cfg, cookie: cfg.Cookie}
	for n.cookie == 0 || n.cookie == wire.NoHandle.Iface {
		var b [8]byte
		rand.Read(b[:])
		n.cookie = binary.LittleEndian.Uint64(b[:])
	}
	n.msgs.New = func() any {
		m := new(msg)
		m.RDMALen, m.Owner = -1, m
		return m
	}
	n.mds.New = func() any { return new(md) }
	n.aside.arena = cfg.Arena
	for i := range n.portals {
		n.portals[i].index, n.portals[i].most = uint32(i), cfg.MaxParked
		n.portals[i].exact = make(map[uint64]mdList)
	}
	for _, c := range cfg.NIs {
		if n.ni(c.NID) != nil {
			return nil, fmt.Errorf("two NIs with the NID %v", c.NID)
		}
		i, err := newNI(c)
		if err != nil {
			return nil, err
		}
		n.nis = append(n.nis, i)
	}
	if err := n.answerPings(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// SetSender gives the node its LND: called once, before anything is sent or received.
func (n *Node) SetSender(s o2iblnd.Sender) { n.sender = s }

// Close ends everything that the node can end itself: MDs are unlinked, what waits for credits fails
// with ESHUTDOWN, parked PUTs are dropped, pings return. What the LND still has ends when the LND gives
// it back. Afterwards every method returns ErrClosed and every message that arrives is an error.
func (n *Node) Close() {
	if n.closed.Swap(true) {
		return
	}
	for i := range n.portals {
		pt := &n.portals[i]
		pt.mu.Lock()
		pt.closed = true
		dropped := pt.parked.take()
		pt.mu.Unlock()
		for m := dropped.pop(); m != nil; m = dropped.pop() {
			n.dropParked(m)
		}
	}
	for _, h := range n.handles.close() {
		// A stale handle means that its last operation ended in between.
		_ = n.Unlink(h)
	}
	for _, i := range n.nis {
		for _, p := range i.closePeers() {
			n.failQueued(p, eShutdown)
		}
	}
	n.aside.close()
}

// ni finds an NI of ours by NID, nil for others.
func (n *Node) ni(nid wire.NID) *ni {
	for _, i := range n.nis {
		if i.nid == nid {
			return i
		}
	}
	return nil
}

// niTowards chooses the NI for messages to a NID on another node: the first that is up on its network,
// else the first.
func (n *Node) niTowards(nid wire.NID) *ni {
	var down *ni
	for _, i := range n.nis {
		if i.nid.Net() != nid.Net() {
			continue
		}
		if i.up.Load() {
			return i
		}
		if down == nil {
			down = i
		}
	}
	return down
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
