package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// PeerRequest names a peer for a control operation.
type PeerRequest struct {
	NID string `json:"nid"` // "10.0.0.2@o2ib"; "*": all, where that makes sense
	NI  string `json:"ni"`  // our NID towards it; "": the NI of its network, or for deletion and closing all NIs
}

// PeerAnswer is what a control operation on peers came to.
type PeerAnswer struct {
	NID         string `json:"nid"`
	LastAliveAt *int64 `json:"last_alive_at"` // Query
	Connecting  bool   `json:"connecting"`    // Query: a connection was started
	Closed      int    `json:"closed"`        // CloseConns
}

// Messages are the last messages with a peer, by connection, the oldest connection first.
type Messages struct {
	Peer  string                `json:"peer"` // its id
	Conns []engine.ConnMessages `json:"conns"`
}

// controlTimeout bounds how long a control operation waits for the engine.
const controlTimeout = 10 * time.Second

// QueryPeer says when a peer was last alive, and starts a connection to one that is not known.
func (a *App) QueryPeer(ctx context.Context, who Actor, q PeerRequest) (PeerAnswer, error) {
	var ans PeerAnswer
	err := a.control(ctx, who, "peer.query", q, false, func(ctx context.Context, e Engine, ni, nid wire.NID) error {
		at, err := e.Query(ctx, ni, nid)
		if err == nil && !at.IsZero() {
			ms := at.UnixMilli()
			ans.LastAliveAt = &ms
		}
		ans.NID, ans.Connecting = nid.String(), err == nil && at.IsZero()
		return err
	})
	return ans, err
}

// DeletePeer forgets a peer, or all: what waits for it fails, its connections close.
func (a *App) DeletePeer(ctx context.Context, who Actor, q PeerRequest) error {
	return a.control(ctx, who, "peer.delete", q, true, func(ctx context.Context, e Engine, ni, nid wire.NID) error {
		return e.DelPeer(ctx, ni, nid)
	})
}

// CloseConns closes the connections of a peer, or of all; traffic makes new ones.
func (a *App) CloseConns(ctx context.Context, who Actor, q PeerRequest) (PeerAnswer, error) {
	ans := PeerAnswer{NID: q.NID}
	err := a.control(ctx, who, "conn.close", q, true, func(ctx context.Context, e Engine, ni, nid wire.NID) error {
		var err error
		ans.Closed, err = e.CloseConns(ctx, ni, nid)
		return err
	})
	return ans, err
}

// Recent gives the last messages with a peer, by the peer's id: for anybody who may look.
func (a *App) Recent(ctx context.Context, peer string) (Messages, error) {
	peers := a.Snapshot().Peers
	i := slices.IndexFunc(peers, func(p engine.Peer) bool { return p.ID == peer })
	if i < 0 {
		return Messages{}, fmt.Errorf("%w: no peer %.100s is known", ErrNotFound, peer)
	}
	p := peers[i]
	e, err := a.running()
	if err != nil {
		return Messages{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	conns, err := e.Recent(ctx, p.NI, p.NID)
	if errors.Is(err, o2iblnd.ErrNotFound) {
		// The NI is away at the moment, and with it all that it knew.
		return Messages{Peer: peer, Conns: []engine.ConnMessages{}}, nil
	}
	return Messages{Peer: peer, Conns: conns}, err
}

// control checks what was asked for, does it and records it.
func (a *App) control(ctx context.Context, who Actor, action string, q PeerRequest, all bool, do func(ctx context.Context, e Engine, ni, nid wire.NID) error) error {
	err := allowed(who, RoleOperator)
	var ni, nid wire.NID
	var e Engine
	if err == nil {
		ni, nid, err = q.parse(all)
	}
	if err == nil {
		e, err = a.running()
	}
	if err == nil && ni == 0 && !all {
		ni, err = a.niTowards(nid)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, controlTimeout)
		defer cancel()
		if err = do(ctx, e, ni, nid); errors.Is(err, o2iblnd.ErrNotFound) {
			// Both would say so.
			err = fmt.Errorf("%w: %s", ErrNotFound, strings.TrimSuffix(err.Error(), ": "+o2iblnd.ErrNotFound.Error()))
		}
	}
	return a.audited(ctx, who, action, q.NID, err)
}

func (q PeerRequest) parse(all bool) (ni, nid wire.NID, err error) {
	if q.NI != "" {
		if ni, err = wire.ParseNID(q.NI); err != nil {
			return 0, 0, fmt.Errorf("%w: ni: %w", ErrInvalid, err)
		}
	}
	if q.NID == "*" && all {
		return ni, wire.AnyNID, nil
	}
	if nid, err = wire.ParseNID(q.NID); err != nil {
		return 0, 0, fmt.Errorf("%w: nid: %w", ErrInvalid, err)
	}
	return ni, nid, nil
}

// niTowards is our NI on the network of nid.
func (a *App) niTowards(nid wire.NID) (wire.NID, error) {
	for _, n := range a.Snapshot().Nets {
		if n.NID.Net() == nid.Net() {
			return n.NID, nil
		}
	}
	return 0, fmt.Errorf("%w: no NI of ours is on %v", ErrNotFound, nid.Net())
}

// running is the engine, or why there is none.
func (a *App) running() (Engine, error) {
	e, why := a.host.get()
	if e != nil {
		return e, nil
	}
	if why == nil {
		why = errors.New("none is configured")
	}
	return nil, fmt.Errorf("%w: %w", ErrNoEngine, why)
}
