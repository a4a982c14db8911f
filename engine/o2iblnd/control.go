package o2iblnd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"o2ibd/engine/wire"
)

// Control operations (spec o2iblnd 10), for any goroutine. They wait for connd, or until ctx ends.

// ErrNotFound says that there is no such NI, peer or connection.
var ErrNotFound = errors.New("not found")

// ownNI finds an NI for a control operation; 0 stands for all, and gives nil.
func (l *LND) ownNI(nid wire.NID) (*ni, error) {
	if nid == 0 {
		return nil, nil
	}
	if n := l.ni(nid); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("no NI %v: %w", nid, ErrNotFound)
}

// Query says when a peer was last alive. To one that is not known a connection is started, with nothing to
// send: the zero time means that the answer is still to come, or that it never said anything
// (kiblnd_query).
func (l *LND) Query(ctx context.Context, ni, nid wire.NID) (alive time.Time, err error) {
	n := l.ni(ni)
	if n == nil {
		return alive, fmt.Errorf("no NI %v: %w", ni, ErrNotFound)
	}
	var ms int64
	err = l.connd.call(ctx, func(done func(error)) {
		if p := l.peers.find(n, nid); p != nil {
			ms = p.lastAlive.Load()
		} else if !n.shutdown {
			l.connd.meet(n, nid, nil)
		}
		done(nil)
	})
	if err == nil && ms > 0 {
		alive = time.UnixMilli(ms)
	}
	return alive, err
}

// DelPeer deletes a peer, or all with wire.AnyNID, of an NI, or of all with 0: what waits fails, its
// connections close, and traffic makes it anew.
func (l *LND) DelPeer(ctx context.Context, ni, nid wire.NID) error {
	n, err := l.ownNI(ni)
	if err != nil {
		return err
	}
	return l.connd.call(ctx, func(done func(error)) {
		list := l.connd.peersOf(n, nid)
		for _, p := range list {
			l.connd.delPeer(p, orderly("an operator deleted the peer"))
		}
		if len(list) == 0 {
			done(fmt.Errorf("no peer %v: %w", nid, ErrNotFound))
			return
		}
		done(nil)
	})
}

// CloseConns closes the connections of a peer, or of all with wire.AnyNID, and says how many; traffic makes
// new ones. With wire.AnyNID there may be none.
func (l *LND) CloseConns(ctx context.Context, ni, nid wire.NID) (closed int, err error) {
	n, err := l.ownNI(ni)
	if err != nil {
		return 0, err
	}
	count := 0
	err = l.connd.call(ctx, func(done func(error)) {
		for _, p := range l.connd.peersOf(n, nid) {
			for _, c := range p.conns {
				count++
				c.sched.submit(op{kind: opClose, c: c, why: orderly("an operator closed the connection")})
			}
		}
		if count == 0 && nid != wire.AnyNID {
			done(fmt.Errorf("no connection to %v: %w", nid, ErrNotFound))
			return
		}
		done(nil)
	})
	if err != nil {
		return 0, err
	}
	return count, nil
}
