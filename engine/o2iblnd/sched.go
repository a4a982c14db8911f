package o2iblnd

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/arena"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

const (
	// reschedule is how many completions a scheduler takes in one turn before it looks at its inbox and
	// posts what came of them (IBLND_RESCHED).
	reschedule = 100
	// publishEvery bounds how old a conn's published counters are while it is busy.
	publishEvery = 100 * time.Millisecond
	// scanEvery is the pace of the timeout scan (spec o2iblnd 5.2).
	scanEvery = time.Second
)

// scheduler owns the conns that were attached to it: only its Step touches their credits, queues, rx and
// tx. Others hand it work by submit. Step is the whole of its logic; run is a loop around it.
type scheduler struct {
	lnd    *LND
	id     int // threadID
	cpt    int
	cpus   []int // that its thread is pinned to; nil: it is not
	waiter verbs.Waiter

	mu    sync.Mutex
	inbox []op
	spare []op // the slice that drain worked through last

	now       time.Time
	nowMS     int64
	idx       int // place in LND.scheds
	cqs       []deviceCQ
	conns     []*conn // by slot; nil where free
	nconns    int
	dirty     []*conn
	unsettled []*conn // posted to or changed since the last publish
	in, out   wire.Msg
	frags     [wire.MaxFragsOffer]wire.Frag
	one       [1]arena.Buffer
	wcs       [reschedule]verbs.WC
	batch     []verbs.Posting
	sendWRs   []verbs.SendWR
	recvWRs   []verbs.RecvWR
	nextScan  time.Time
	scanAt    int
	published time.Time
	cookies   uint64

	completions, rearms, wakeups, stale atomic.Uint64
	npub                                atomic.Int32
}

// deviceCQ is the completion queue of this scheduler on one device.
type deviceCQ struct {
	hdev *hcaDev
	cq   verbs.CQ
}

// op is one piece of work in a scheduler's inbox.
type op struct {
	kind opKind
	c    *conn
	m    *Message
	why  *reason
	rx   *rx
	est  *establishment
	dq   deviceCQ
	n    int
	fn   func()
}

type opKind uint8

const (
	opAttach    opKind = iota // c gets its slot, before its receives are posted
	opUnposted                // n receives of c could not be posted
	opEstablish               // c is connected
	opSend                    // send m on c
	opReceive                 // LNet takes a message that it had set aside
	opClose                   // close c
	opFinalise                // c is off the peer's list and disconnected: flush it
	opCall                    // fn
	opAddCQ                   // poll dq from now on
	opDropCQ
)

// establishment is what connd knows when a conn is connected.
type establishment struct {
	version     wire.Version
	incarnation uint64
	depth       int
	maxFrags    int
	msgs        []*Message // waited for the connection
}

// submit hands o to the scheduler, from any goroutine. LNet's credits and the number of conns bound the
// inbox.
func (s *scheduler) submit(o op) {
	s.mu.Lock()
	s.inbox = append(s.inbox, o)
	first := len(s.inbox) == 1
	s.mu.Unlock()
	if first {
		s.waiter.Wake()
	}
}

// threadID names the i-th scheduler of a CPT (KIB_THREAD_ID, spec o2iblnd 8.2).
func threadID(cpt, i int) int { return cpt<<16 | i }

// pin keeps the scheduler on the CPUs of its CPT. That it cannot be is no reason not to run.
func (s *scheduler) pin() {
	if s.cpus == nil {
		return
	}
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	var set unix.CPUSet
	for _, c := range s.cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		s.lnd.log.Warn("a scheduler is not pinned to its CPT", "cpt", s.cpt, "err", err)
	}
}

// run steps until the LND stops.
func (s *scheduler) run() {
	defer s.lnd.threads.Done()
	s.pin()
	for {
		more, deadline := s.Step(time.Now())
		select {
		case <-s.lnd.stopped:
			return
		default:
		}
		if !more {
			s.waiter.Wait(deadline)
			s.wakeups.Add(1)
		}
	}
}

// Step does one turn: inbox, completions, timeouts, then posts in one batch all that came of it. It says
// whether there is more to do at once, and else until when it may sleep.
func (s *scheduler) Step(now time.Time) (more bool, deadline time.Time) {
	s.now, s.nowMS = now, now.UnixMilli()
	s.drain()
	n := s.poll(reschedule)
	s.drain()
	if !now.Before(s.nextScan) {
		s.scan()
		s.nextScan = now.Add(scanEvery)
	}
	s.flush()
	if n < reschedule && n >= 0 {
		// Arm, then look once more: a completion may have come in between (spec o2iblnd 4.9).
		for _, q := range s.cqs {
			if err := q.cq.Arm(); err != nil {
				s.lnd.fault(q.hdev, "arm completion queue", err)
			}
		}
		s.rearms.Add(1)
		if n = s.poll(reschedule); n > 0 {
			s.flush()
			more = true
		}
	} else {
		more = true
	}
	more = more || s.waits()
	if !more || now.Sub(s.published) >= publishEvery {
		s.publish()
	}
	return more, s.nextScan
}

// waits says whether something is in the inbox.
func (s *scheduler) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inbox) > 0
}

func (s *scheduler) drain() {
	s.mu.Lock()
	ops := s.inbox
	s.inbox, s.spare = s.spare[:0], ops
	s.mu.Unlock()
	for i := range ops {
		s.do(&ops[i])
		ops[i] = op{}
	}
}

func (s *scheduler) do(o *op) {
	switch o.kind {
	case opAttach:
		for int(o.c.slot) >= len(s.conns) {
			s.conns = append(s.conns, nil)
		}
		s.conns[o.c.slot] = o.c
		s.nconns++
		s.npub.Store(int32(s.nconns))
	case opUnposted:
		o.c.nrx -= o.n
	case opEstablish:
		s.establish(o.c, o.est, o.why)
	case opSend:
		s.launch(o.c, o.m)
	case opReceive:
		s.receiveLater(o.rx, o.m)
	case opClose:
		s.close(o.c, o.why)
	case opFinalise:
		s.finalise(o.c, o.why)
	case opCall:
		o.fn()
	case opAddCQ:
		s.cqs = append(s.cqs, o.dq)
	case opDropCQ:
		for i, q := range s.cqs {
			if q.hdev == o.dq.hdev {
				s.cqs = append(s.cqs[:i], s.cqs[i+1:]...)
				if err := q.cq.Close(); err != nil {
					s.lnd.fault(q.hdev, "close completion queue", err)
				}
				break
			}
		}
		close(o.dq.hdev.cqGone[s.idx])
		s.lnd.connd.waiter.Wake()
	}
}

// poll handles up to limit completions and says how many there were.
func (s *scheduler) poll(limit int) int {
	total := 0
	for _, q := range s.cqs {
		n, err := q.cq.Poll(s.wcs[:limit])
		if err != nil {
			s.lnd.fault(q.hdev, "poll completion queue", err)
			continue
		}
		for i := range s.wcs[:n] {
			s.complete(&s.wcs[i])
		}
		total += n
	}
	s.completions.Add(uint64(total))
	return total
}

// complete dispatches one completion by its work request id (spec o2iblnd 4.8).
func (s *scheduler) complete(wc *verbs.WC) {
	kind, idx, gen := splitWRID(wc.ID)
	switch kind {
	case wrRx:
		c := s.conn(idx>>rxNumBits, gen)
		if c == nil {
			// A first receive can overtake the attach that waits in the inbox.
			s.drain()
			c = s.conn(idx>>rxNumBits, gen)
		}
		if c == nil {
			s.stale.Add(1)
			return
		}
		s.rxComplete(c, &c.rxs[idx&(1<<rxNumBits-1)], wc)
	case wrTx:
		if t := s.lnd.txs.get(idx); t != nil && t.gen.Load() == gen && t.conn != nil && t.conn.sched == s {
			s.txComplete(t, wc)
		} else {
			s.stale.Add(1)
		}
	case wrRDMA:
		// Only failures come here; the chained SEND fails too and closes the conn. Its reason is better
		// with this one's status.
		if t := s.lnd.txs.get(idx); t != nil && t.gen.Load() == gen && t.conn != nil && t.conn.sched == s && wc.Status != verbs.WCFlushed {
			s.close(t.conn, because(eIO, "RDMA write to the peer failed: %v", wc.Status))
		}
	case wrBind:
		// As with writes: only failures, and the SEND behind it fails too.
		if t := s.lnd.txs.get(idx); t != nil && t.gen.Load() == gen && t.conn != nil && t.conn.sched == s && wc.Status != verbs.WCFlushed {
			s.close(t.conn, because(eIO, "a memory window could not be bound: %v", wc.Status))
		}
	case wrMR:
		if t := s.lnd.txs.get(idx); t != nil && t.gen.Load() == gen && t.conn != nil && t.conn.sched == s && t.revoking {
			s.revoked(t, wc)
		} else {
			s.stale.Add(1)
		}
	case wrDrain:
		if c := s.conn(idx>>rxNumBits, gen); c != nil {
			s.drained(c)
		}
	default:
		s.stale.Add(1)
	}
}

func (s *scheduler) conn(slot, gen uint32) *conn {
	if int(slot) < len(s.conns) {
		if c := s.conns[slot]; c != nil && c.gen == gen {
			return c
		}
	}
	return nil
}

// touch puts c on the list of conns to post and to publish.
func (s *scheduler) touch(c *conn) {
	if !c.dirty {
		c.dirty = true
		s.dirty = append(s.dirty, c)
	}
}

// flush posts what the turn gathered: for each conn its receives, then its sends as one chain.
func (s *scheduler) flush() {
	for len(s.dirty) > 0 {
		s.batch, s.sendWRs, s.recvWRs = s.batch[:0], s.sendWRs[:0], s.recvWRs[:0]
		conns := s.dirty
		var hdev *hcaDev
		n := 0
		for _, c := range conns {
			if hdev == nil {
				hdev = c.hdev
			}
			if c.hdev != hdev {
				break
			}
			s.batch = append(s.batch, s.posting(c))
			n++
		}
		if hdev != nil {
			hdev.hca.Post(s.batch)
		}
		for i := range s.batch {
			s.posted(conns[i], &s.batch[i])
		}
		// posted may have put more conns at the end.
		s.dirty = append(s.dirty[:0], s.dirty[n:]...)
	}
}

// posting builds c's share of a batch.
func (s *scheduler) posting(c *conn) verbs.Posting {
	r0, w0 := len(s.recvWRs), len(s.sendWRs)
	for _, num := range c.toRecv {
		s.recvWRs = append(s.recvWRs, recvWR(c, num))
	}
	for _, t := range c.toRevoke {
		s.sendWRs = append(s.sendWRs, verbs.SendWR{ID: t.wrID(wrMR), Op: verbs.OpLocalInv, Signaled: true, RKey: t.rkey})
	}
	for _, t := range c.toPost {
		s.sendWRs = append(s.sendWRs, t.wrs...)
		wr := verbs.SendWR{ID: t.wrID(wrTx), Op: verbs.OpSend, Signaled: true, NSGE: 1}
		wr.SGE[0] = verbs.SGE{Addr: t.slot.Addr(), Length: t.nob, LKey: t.key}
		s.sendWRs = append(s.sendWRs, wr)
	}
	return verbs.Posting{QP: c.qp, Recvs: s.recvWRs[r0:len(s.recvWRs):len(s.recvWRs)], Sends: s.sendWRs[w0:len(s.sendWRs):len(s.sendWRs)]}
}

// posted takes in what the provider did with c's share. What it refused ends the conn.
func (s *scheduler) posted(c *conn, p *verbs.Posting) {
	c.dirty = false
	if !c.unsettled {
		c.unsettled = true
		s.unsettled = append(s.unsettled, c)
	}
	if p.Err == nil {
		c.toRecv, c.toPost, c.toRevoke = c.toRecv[:0], c.toPost[:0], c.toRevoke[:0]
		return
	}
	c.nrx -= len(c.toRecv) - p.NRecvs
	txs := slices.Clone(c.toPost) // finishing one may queue others
	left := p.NSends
	for _, t := range c.toRevoke {
		if left--; left < 0 {
			t.revoking, t.draining = false, !c.flushed
		}
	}
	left = max(left, 0)
	c.toRecv, c.toPost, c.toRevoke = c.toRecv[:0], c.toPost[:0], c.toRevoke[:0]
	for _, t := range txs {
		need := len(t.wrs) + 1
		if left >= need {
			left -= need
			continue
		}
		left = 0
		t.sending--
		c.acct.SendDone(t.typ == wire.MsgNoop)
		t.status, t.waiting = eIO, false
		t.exposed = false // the message that says where never left
		if t.idle() {
			t.unlink()
			s.txDone(t)
		}
	}
	s.close(c, because(eIO, "the device refused a work request: %v", p.Err))
	s.maybeDrained(c)
}

func (s *scheduler) publish() {
	s.published = s.now
	for i, c := range s.unsettled {
		c.publish()
		c.unsettled = false
		s.unsettled[i] = nil
	}
	s.unsettled = s.unsettled[:0]
}

// Send implements Sender for LNet's callbacks: a conn of this scheduler is served at once.
func (s *scheduler) Send(m *Message) {
	c := s.lnd.route(m)
	if c == nil {
		s.lnd.connd.submit(cop{kind: copSend, m: m})
		return
	}
	if c.sched != s {
		c.sched.submit(op{kind: opSend, c: c, m: m})
		return
	}
	s.launch(c, m)
}
