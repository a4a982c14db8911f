package lnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

const (
	pushTargets = 8 // pushes that may arrive at the same moment; more are parked
	pushRoom    = 4096
)

// pingTarget is the MD that answers pings. mu makes renewals one after the other.
type pingTarget struct {
	mu     sync.Mutex
	handle Handle
}

// Ping asks a node about itself and waits for the answer, at most timeout (0: the transaction timeout).
func (n *Node) Ping(ctx context.Context, nid wire.NID, timeout time.Duration) (PingInfo, error) {
	if timeout <= 0 {
		timeout = n.cfg.TransactionTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type result struct {
		info PingInfo
		err  error
	}
	done := make(chan result, 1)
	h, err := n.startPing(0, ProcessID{nid, wire.LustrePID}, func(info PingInfo, err error) { done <- result{info, err} })
	if err != nil {
		return PingInfo{}, fmt.Errorf("ping %v: %w", nid, err)
	}
	select {
	case r := <-done:
		if r.err != nil {
			return PingInfo{}, fmt.Errorf("ping %v: %w", nid, r.err)
		}
		return r.info, nil
	case <-ctx.Done():
	}
	// A stale handle means that the answer came just now: it is too late either way.
	_ = n.Unlink(h)
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return PingInfo{}, fmt.Errorf("ping %v: %w", nid, err)
	}
	return PingInfo{}, fmt.Errorf("ping %v: no answer within %v: %w", nid, timeout, context.DeadlineExceeded)
}

// startPing sends a ping from source (0: any); done hears once how it ended, and must not block.
func (n *Node) startPing(source wire.NID, target ProcessID, done func(PingInfo, error)) (Handle, error) {
	buf, err := n.cfg.Arena.Alloc(PingSink)
	if err != nil {
		return 0, err
	}
	a := &pinger{n: n, buf: buf, at: n.cfg.Now(), done: done}
	h, err := n.Bind(MD{Segs: []arena.Buffer{buf}, Threshold: 2, Options: OptTruncate, Handler: a.event})
	if err != nil {
		n.cfg.Arena.Free(buf)
		return 0, err
	}
	err = n.Get(h, Operation{Source: source, Target: target, Portal: reservedPortal, MatchBits: PingMatchBits})
	if err != nil {
		a.done = nil
		_ = n.Unlink(h) // the UNLINK event frees the memory; stale means that Close was first
		return 0, err
	}
	return h, nil
}

// pinger is a ping of ours on its way. Its fields belong to the events of its MD, which come in turn.
type pinger struct {
	n    *Node
	buf  arena.Buffer
	at   time.Time
	done func(PingInfo, error)
}

func (a *pinger) event(ev Event) {
	switch {
	case ev.Status != 0:
		a.end(PingInfo{}, a.failure(ev.Status))
		if !ev.Unlinked {
			_ = a.n.Unlink(ev.MD) // stale: somebody else did
		}
	case ev.Type == EventReply:
		info, err := ParsePingInfo(a.buf.Bytes()[:ev.MLength], PingSink)
		info.RTT = a.n.cfg.Now().Sub(a.at)
		if err == nil {
			a.n.remember(ev.Target.NID, ev.Sender, &info)
		}
		a.end(info, err)
	case ev.Type == EventUnlink:
		a.end(PingInfo{}, a.failure(eTimedOut))
	}
	if ev.Unlinked {
		a.n.cfg.Arena.Free(a.buf)
	}
}

func (a *pinger) failure(e o2iblnd.Errno) error {
	if a.n.closed.Load() {
		return ErrClosed
	}
	return unixErrno(e)
}

func (a *pinger) end(info PingInfo, err error) {
	if a.done != nil {
		a.done(info, err)
		a.done = nil
	}
}

// answerPings posts what pings and pushes need.
func (n *Node) answerPings() error {
	if err := n.renewPingTarget(); err != nil {
		return err
	}
	pt := &n.portals[reservedPortal]
	pt.mu.Lock()
	pt.lazy = true
	pt.mu.Unlock()
	for range pushTargets {
		buf, err := n.cfg.Arena.Alloc(pushRoom)
		if err != nil {
			return fmt.Errorf("memory for pushes: %w", err)
		}
		if err := n.postPushTarget(buf); err != nil {
			return err
		}
	}
	return nil
}

// renewPingTarget puts an answer with the present state of the NIs before the old one, which lives on
// until what is being sent of it is out.
func (n *Node) renewPingTarget() error {
	n.ping.mu.Lock()
	defer n.ping.mu.Unlock()
	nis := make([]PingNI, len(n.nis))
	for k, i := range n.nis {
		nis[k] = PingNI{i.nid, NIUp}
		if !i.up.Load() {
			nis[k].Status = NIDown
		}
	}
	info := appendPingInfo(nil, n.cfg.PID, nis)
	buf, err := n.cfg.Arena.Alloc(len(info))
	if err != nil {
		return fmt.Errorf("memory for the ping answer: %w", err)
	}
	copy(buf.Bytes(), info)
	h, err := n.attach(
		ME{Portal: reservedPortal, NID: wire.AnyNID, PID: AnyPID, MatchBits: PingMatchBits, Head: true},
		MD{
			Segs: []arena.Buffer{buf}, Threshold: Unlimited, Options: OptGet | OptManageRemote | OptTruncate,
			Handler: func(ev Event) {
				if ev.Unlinked {
					n.cfg.Arena.Free(buf)
				}
			},
		}, false)
	if err != nil {
		n.cfg.Arena.Free(buf)
		return err
	}
	old := n.ping.handle
	n.ping.handle = h
	if old != 0 {
		_ = n.Unlink(old) // stale: Close was first
	}
	return nil
}

// postPushTarget takes one push into buf, again and again.
func (n *Node) postPushTarget(buf arena.Buffer) error {
	_, err := n.attach(
		ME{Portal: reservedPortal, NID: wire.AnyNID, PID: AnyPID, MatchBits: PingMatchBits},
		MD{
			Segs: []arena.Buffer{buf}, Threshold: 1, Options: OptPut | OptTruncate,
			Handler: func(ev Event) {
				if !ev.Unlinked {
					return
				}
				if err := n.postPushTarget(buf); err != nil && !errors.Is(err, ErrClosed) {
					n.cfg.Log(Notice{Kind: "push", Severity: Warning, NI: ev.Target.NID, Text: "pushes are taken with less memory: " + err.Error()})
				}
			},
		}, true)
	if err != nil {
		n.cfg.Arena.Free(buf)
	}
	return err
}

// takePush reads a push that has arrived and says whether its sender has to be asked, since what it
// pushed cannot be used (spec lnet 4.6).
func (n *Node) takePush(m *msg) bool {
	n.stats.pushes.Add(1)
	if m.peer == nil || m.Hdr.SrcNID != m.peer.nid {
		return false
	}
	if int(m.Hdr.PayloadLength) > m.Len {
		return true
	}
	var data []byte
	if m.Len > 0 {
		data = m.Segs[0].Bytes()
	}
	info, err := ParsePingInfo(data, len(data))
	switch {
	case err != nil:
		n.cfg.Log(Notice{Kind: "push", Severity: Warning, NI: m.ni.nid, Peer: m.peer.nid, Text: "pushed what is no ping info: " + err.Error()})
		return true
	case info.Truncated:
		return true
	case info.Features&FeatMultiRail == 0:
		n.cfg.Log(Notice{Kind: "push", Severity: Warning, NI: m.ni.nid, Peer: m.peer.nid, Text: "pushed without the multi-rail feature: ignored"})
		return false
	}
	n.remember(m.ni.nid, m.peer.nid, &info)
	return false
}

// askPusher pings a node whose push was of no use, unless such a ping is under way.
func (n *Node) askPusher(i *ni, p *peer, target ProcessID) {
	p.mu.Lock()
	busy := p.asking
	p.asking = true
	p.mu.Unlock()
	if busy {
		return
	}
	done := func(PingInfo, error) {
		p.mu.Lock()
		p.asking = false
		p.mu.Unlock()
	}
	if _, err := n.startPing(i.nid, target, done); err != nil {
		done(PingInfo{}, err)
	}
}

// remember keeps what a peer told of itself.
func (n *Node) remember(nid, peerNID wire.NID, info *PingInfo) {
	i := n.ni(nid)
	if i == nil {
		return
	}
	i.peersMu.RLock()
	p := i.peers[peerNID]
	i.peersMu.RUnlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	p.pinged = info
	p.mu.Unlock()
}
