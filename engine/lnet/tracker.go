package lnet

import (
	"fmt"
	"sync"
	"time"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// tracker lists the active MDs that wait for an ACK or REPLY, soonest deadline first: all wait equally
// long, so the newest belongs at the end (spec lnet 3.4, response tracking). Its lock is a leaf.
type tracker struct {
	mu         sync.Mutex
	head, tail *md
	n          uint64
}

// tracking is an MD's place in the tracker and belongs to the tracker's lock.
type tracking struct {
	on         bool
	prev, next *md
	handle     Handle
	peer       *peer // that owes the last answer; nil inside the node
	deadline   time.Time
}

// add puts d at the end, from wherever it is. d.mu is held.
func (t *tracker) add(d *md, p *peer, deadline time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unlink(d)
	d.track = tracking{on: true, prev: t.tail, handle: d.handle, peer: p, deadline: deadline}
	if t.tail != nil {
		t.tail.track.next = d
	} else {
		t.head = d
	}
	t.tail = d
	t.n++
}

func (t *tracker) remove(d *md) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unlink(d)
}

func (t *tracker) unlink(d *md) {
	k := &d.track
	if !k.on {
		return
	}
	if k.prev != nil {
		k.prev.track.next = k.next
	} else {
		t.head = k.next
	}
	if k.next != nil {
		k.next.track.prev = k.prev
	} else {
		t.tail = k.prev
	}
	*k = tracking{}
	t.n--
}

// expired takes out the first MD whose deadline has passed; 0: none has.
func (t *tracker) expired(now time.Time) (Handle, *peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.head
	if d == nil || !now.After(d.track.deadline) {
		return 0, nil
	}
	h, p := d.track.handle, d.track.peer
	t.unlink(d)
	return h, p
}

func (t *tracker) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// responseTimedOut gives up on the answers that an MD waits for.
func (n *Node) responseTimedOut(h Handle, p *peer) {
	n.stats.responseTimeouts.Add(1)
	if p != nil {
		n.stats.remote.note(o2iblnd.HealthRemoteTimeout)
		p.remote.note(o2iblnd.HealthRemoteTimeout)
		p.health.lower()
		text := fmt.Sprintf("no answer within %v", n.cfg.TransactionTimeout)
		p.mu.Lock()
		p.lastError, p.errorAt = text, n.cfg.Now()
		p.mu.Unlock()
		n.cfg.Log(Notice{Kind: "response_timeout", Severity: Warning, NI: p.ni.nid, Peer: p.nid, Text: text})
	}
	// A stale handle means that the answer came just now.
	_ = n.Unlink(h)
}

// wireHandle is h as headers carry it.
func (n *Node) wireHandle(h Handle) wire.Handle {
	return wire.Handle{Iface: n.cookie, Object: uint64(h)}
}
