package o2iblnd

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

const (
	// reconnHighRace is how many new attempts in a row are immediate (spec o2iblnd 2.11).
	reconnHighRace = 10
	// reconnBreak is how many reconnects connd does before it looks at other work.
	reconnBreak = 100
	// reapAfter is how long a flushed conn waits for the connection manager's DISCONNECTED.
	reapAfter = 5 * time.Second
)

// connd owns devices, NIs, the peer table, and connections until they are handed to a scheduler and after
// they come back. Its Step is all its logic. mu is held during a step, for Snapshot; schedulers never
// take it.
type connd struct {
	lnd    *LND
	waiter verbs.Waiter
	cm     verbs.CM
	rng    *rand.Rand

	inMu  sync.Mutex
	inbox []cop
	spare []cop

	mu               sync.Mutex
	now              time.Time
	devices          []*device
	dying            []dyingNI
	closing          []*hcaDev        // retired, waiting for the schedulers
	failedDevs       []*device        // to be looked at: their HCA may be another
	conns            map[uint64]*conn // every conn that is not reaped
	reap             []*conn          // drained, waiting for the connection manager
	ended            []ConnHeads      // of the conns that drained last
	slots            []slots          // by scheduler
	reconn           []*peer          // to be connected again now
	reconnWait       []delayed        // later
	nextTick         time.Time
	nextFailoverScan time.Time
	lastIncarnation  uint64
	evs              [64]verbs.Event
	in               wire.Msg
	out              wire.Msg
	portRefused      bool // an ephemeral source port was taken for lack of privilege, and said
}

// delayed is a peer whose next attempt has to wait.
type delayed struct {
	peer *peer
	at   time.Time
}

// slots gives out the places of conns in a scheduler's table.
type slots struct {
	free []uint32
	next uint32
	gen  uint32
	used int
}

// cop is one piece of work in connd's inbox.
type cop struct {
	kind copKind
	c    *conn
	m    *Message
	why  *reason
	text string
	fn   func()
}

type copKind uint8

const (
	copSend    copKind = iota // m has no established conn
	copClosing                // c's scheduler closed it
	copDrained                // nothing of c is left
	copCall
)

func newConnd(l *LND, w verbs.Waiter, cm verbs.CM, rng *rand.Rand) *connd {
	return &connd{lnd: l, waiter: w, cm: cm, rng: rng, conns: make(map[uint64]*conn), slots: make([]slots, len(l.scheds))}
}

func (d *connd) submit(o cop) {
	d.inMu.Lock()
	d.inbox = append(d.inbox, o)
	first := len(d.inbox) == 1
	d.inMu.Unlock()
	if first {
		d.waiter.Wake()
	}
}

// call runs fn on connd and waits until it calls done, or ctx ends.
func (d *connd) call(ctx context.Context, fn func(done func(error))) error {
	res := make(chan error, 1)
	d.submit(cop{kind: copCall, fn: func() { fn(func(err error) { res <- err }) }})
	select {
	case err := <-res:
		return err
	case <-ctx.Done():
		return fmt.Errorf("gave up waiting for connd: %w", ctx.Err())
	}
}

func (d *connd) run() {
	defer d.lnd.threads.Done()
	for {
		more, deadline := d.Step(time.Now())
		select {
		case <-d.lnd.stopped:
			return
		default:
		}
		if !more {
			d.waiter.Wait(deadline)
		}
	}
}

// Send implements Sender for LNet's callbacks on connd.
func (d *connd) Send(m *Message) { d.lnd.Send(m) }

func (d *connd) finalize(m *Message, status Errno, health Health) {
	m.RDMALen, m.Status, m.Health = -1, status, health
	d.lnd.upper.Finalize(d, m)
}

// Step does one turn: inbox, connection manager events, reconnects, and once a second the timers.
func (d *connd) Step(now time.Time) (more bool, deadline time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = now
	d.inMu.Lock()
	ops := d.inbox
	d.inbox, d.spare = d.spare[:0], ops
	d.inMu.Unlock()
	for i := range ops {
		d.do(&ops[i])
		ops[i] = cop{}
	}
	n, err := d.cm.Poll(d.evs[:])
	if err != nil {
		d.lnd.event(Event{Kind: "device", Severity: slog.LevelError, Text: "connection manager: " + err.Error()})
	}
	for i := range d.evs[:n] {
		d.event(&d.evs[i])
		d.evs[i] = verbs.Event{}
	}
	kept := d.reconnWait[:0]
	for _, w := range d.reconnWait {
		if w.at.After(d.now) {
			kept = append(kept, w)
		} else {
			d.reconn = append(d.reconn, w.peer)
		}
	}
	d.reconnWait = kept
	for i := 0; len(d.reconn) > 0 && i < reconnBreak; i++ {
		p := d.reconn[0]
		d.reconn = d.reconn[1:]
		d.reconnectPeer(p)
	}
	d.pollAsync()
	d.failover()
	if !now.Before(d.nextTick) {
		d.tick()
		d.nextTick = now.Add(time.Second)
	}
	d.reapConns()
	d.reapNIs()
	d.reapHCAs()
	deadline = d.nextTick
	for _, w := range d.reconnWait {
		if w.at.Before(deadline) {
			deadline = w.at
		}
	}
	return n == len(d.evs) || len(d.reconn) > 0 || d.waits(), deadline
}

// waits says whether something is in the inbox.
func (d *connd) waits() bool {
	d.inMu.Lock()
	defer d.inMu.Unlock()
	return len(d.inbox) > 0
}

func (d *connd) do(o *cop) {
	switch o.kind {
	case copSend:
		d.send(o.m)
	case copClosing:
		d.connClosing(o.c, o.why, o.text)
	case copDrained:
		o.c.drained = true
		d.remember(o.c)
		o.c.reapBy = d.now.Add(reapAfter)
		d.reap = append(d.reap, o.c)
	case copCall:
		o.fn()
	}
}

// tick runs once a second: attempts and waiting messages that took too long
// (spec o2iblnd 5.1, 5.2).
func (d *connd) tick() {
	var late []*attempt
	d.lnd.peers.each(func(p *peer) {
		limit := connectTimeout(d.lnd.timeout())
		for _, a := range p.attempts {
			if d.now.Sub(a.started) >= limit {
				late = append(late, a)
			}
		}
		d.expireQueue(p)
	})
	for _, a := range late {
		d.abortAttempt(a)
	}
	for _, c := range d.stuckPassive() {
		d.connFailed(c, because(eTIMEDOUT, "the peer asked for a connection and never confirmed it"))
	}
}

// connectTimeout bounds one active attempt.
func connectTimeout(timeout time.Duration) time.Duration { return max(5*time.Second, timeout/4) }

// expireQueue ends messages that waited too long for a connection.
func (d *connd) expireQueue(p *peer) {
	var late []*Message
	kept := p.txq[:0]
	for _, m := range p.txq {
		if m.deadline.After(d.now) {
			kept = append(kept, m)
		} else {
			late = append(late, m)
		}
	}
	p.setQueue(kept)
	for _, m := range late {
		d.finalize(m, eTIMEDOUT, HealthNetworkTimeout)
	}
}

func (p *peer) setQueue(q []*Message) {
	p.txq = q
	p.txQueued.Store(int32(len(q)))
}

// send takes a message that found no established conn (spec o2iblnd 2.2).
func (d *connd) send(m *Message) {
	n := d.lnd.ni(m.Hdr.SrcNID)
	if n == nil {
		d.finalize(m, eHOSTUNREACH, HealthLocalError)
		return
	}
	p := d.lnd.peers.find(n, m.Peer)
	if p == nil {
		d.meet(n, m.Peer, m)
		return
	}
	if len(p.conns) > 0 {
		c := p.conns[0]
		c.sched.submit(op{kind: opSend, c: c, m: m})
		return
	}
	d.enqueue(p, m)
}

// meet makes the peer and starts connecting; m, if there is one, waits for that.
func (d *connd) meet(n *ni, nid wire.NID, m *Message) {
	p := d.newPeer(n, nid)
	p.connecting = max(1, n.tun.Load().ConnsPerPeer)
	d.lnd.peers.add(p)
	if m != nil {
		d.enqueue(p, m)
	}
	for range p.connecting {
		d.connectPeer(p)
	}
}

func (d *connd) enqueue(p *peer, m *Message) {
	m.deadline = d.now.Add(connectTimeout(d.lnd.timeout()) + 10*time.Second)
	p.setQueue(append(p.txq, m))
}

func (d *connd) newPeer(n *ni, nid wire.NID) *peer {
	n.peers++
	n.npeers.Add(1)
	return &peer{nid: nid, ni: n, maxFrags: wire.MaxFragsOffer, queueDepth: n.tun.Load().PeerCredits}
}

// unlink takes p out of the table; new messages make a new peer. It lives on while something of it does.
func (d *connd) unlink(p *peer) {
	if p.linked {
		d.lnd.peers.remove(p)
		d.release(p)
	}
}

// hold and release count what keeps p alive besides the table.
func (d *connd) hold(p *peer) { p.all++ }

func (d *connd) letGo(p *peer) {
	p.all--
	d.release(p)
}

func (d *connd) release(p *peer) {
	if !p.linked && p.all == 0 && !p.dead {
		p.dead = true
		p.ni.peers--
		p.ni.npeers.Add(-1)
	}
}

// peersOf lists the peers of an NI, or the one with that NID.
func (d *connd) peersOf(n *ni, nid wire.NID) []*peer {
	var list []*peer
	d.lnd.peers.each(func(p *peer) {
		if (n == nil || p.ni == n) && (nid == wire.AnyNID || p.nid == nid) {
			list = append(list, p)
		}
	})
	return list
}

// delPeer forgets p: what waits fails, its conns close, an attempt that is under way will find it gone
// (spec o2iblnd 10.2).
func (d *connd) delPeer(p *peer, why *reason) {
	waiting := p.txq
	p.setQueue(nil)
	// At once, not with its last connection: one that is being accepted would keep it.
	d.unlink(p)
	for _, c := range p.conns {
		c.sched.submit(op{kind: opClose, c: c, why: why})
	}
	for _, a := range append([]*attempt(nil), p.attempts...) {
		if p.ni.shutdown {
			d.abortAttempt(a)
		}
	}
	for _, m := range waiting {
		d.finalize(m, eIO, HealthLocalError)
	}
}

// notify tells LNet once that a peer is gone for a reason (spec o2iblnd 5.5).
func (d *connd) notify(p *peer) {
	if p.idle() && p.err != nil {
		why := p.err
		p.err = nil
		d.lnd.upper.PeerDown(p.ni.nid, p.nid, why, time.UnixMilli(p.lastAlive.Load()))
	}
}
