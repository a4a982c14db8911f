package lnet

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// Options of an MD (spec lnet 3.1).
type Options uint16

const (
	OptPut          Options = 0x01 // passive: PUTs may write into it
	OptGet          Options = 0x02 // passive: GETs may read from it
	OptManageRemote Options = 0x04 // the requester's offset counts, not the MD's running one
	OptTruncate     Options = 0x10 // take what fits of a message that is too long
	OptAckDisable   Options = 0x20 // never send an ACK
)

const (
	// Unlimited is the Threshold of an MD that serves any number of operations.
	Unlimited = -1
	// AnyPID in an ME matches every pid.
	AnyPID uint32 = ^uint32(0)

	maxFrags = 256 // pieces of memory in one MD
)

// MD describes memory of the user, its life and who hears of it.
type MD struct {
	Segs      []arena.Buffer // at most 256, all of one slab; the slice itself is copied
	Threshold int            // operations left, or Unlimited
	Options   Options
	MaxSize   int  // with it, longest message that is taken; the MD is used up when less room is left
	Retain    bool // stay when used up, until Unlink; else the last operation's event has Unlinked set
	Handler   Handler
	User      any // comes back in events
}

// ME says which messages may use the MD that is attached with it.
type ME struct {
	Portal     uint32
	NID        wire.NID // or wire.AnyNID
	PID        uint32   // or AnyPID
	MatchBits  uint64
	IgnoreBits uint64 // bits of MatchBits that do not count; MEs that have such are searched first
	Head       bool   // before its equals instead of behind
}

// md is the live form of an MD. Fields of the ME and the links belong to its portal's lock, all else to
// mu. It is pooled: whoever found it by handle checks the handle again under mu.
type md struct {
	me         ME
	attached   bool
	prev, next *md
	portal     *portal // nil: active. Set under both locks

	mu        sync.Mutex
	handle    Handle // 0 once retired
	segs      []arena.Buffer
	length    int
	options   Options
	maxSize   int
	threshold int
	retain    bool
	offset    int  // running local offset
	refs      int  // operations in flight
	aborted   bool // Unlink was called
	handler   Handler
	user      any
	push      bool // one of our push targets

	events     msgQueue
	delivering bool

	expected int // operations that wait for an ACK or REPLY
	track    tracking
}

// Attach posts d for messages that match e. PUTs that are parked on a lazy portal are offered to it
// first. The handler may run before Attach returns.
func (n *Node) Attach(e ME, d MD) (Handle, error) {
	switch {
	case e.Portal >= numPortals:
		return 0, fmt.Errorf("attach to portal %d: 0 to %d exist", e.Portal, numPortals-1)
	case e.Portal == reservedPortal:
		return 0, fmt.Errorf("attach to portal %d: it is LNet's own", e.Portal)
	}
	return n.attach(e, d, false)
}

func (n *Node) attach(e ME, spec MD, push bool) (Handle, error) {
	length, err := spec.check()
	if err != nil {
		return 0, fmt.Errorf("attach to portal %d: %w", e.Portal, err)
	}
	if spec.Options&(OptPut|OptGet) == 0 {
		return 0, fmt.Errorf("attach to portal %d: neither PUT nor GET is allowed", e.Portal)
	}
	if e.NID == 0 {
		return 0, fmt.Errorf("attach to portal %d: no NID, and not any NID", e.Portal)
	}
	pt := &n.portals[e.Portal]
	pt.mu.Lock()
	d, h, err := n.newMD(spec, length, pt)
	if err != nil {
		pt.mu.Unlock()
		return 0, fmt.Errorf("attach to portal %d: %w", e.Portal, err)
	}
	d.me, d.push = e, push
	pt.insert(d)
	matched, refused := pt.offerParked(d)
	pt.mu.Unlock()

	for m := refused.pop(); m != nil; m = refused.pop() {
		n.dropParked(m)
	}
	for m := matched.pop(); m != nil; m = matched.pop() {
		n.resumeParked(m)
	}
	return h, nil
}

// Bind makes an active MD: the source of PUTs or the sink of GETs.
func (n *Node) Bind(spec MD) (Handle, error) {
	length, err := spec.check()
	if err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	if spec.Options&(OptPut|OptGet) != 0 {
		return 0, fmt.Errorf("bind: PUT and GET permissions are for attached MDs")
	}
	if length > wire.MaxPayload {
		return 0, fmt.Errorf("bind: %d bytes: at most %d are possible", length, wire.MaxPayload)
	}
	_, h, err := n.newMD(spec, length, nil)
	if err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	return h, nil
}

// Unlink ends an MD. Where it is idle its UNLINK event comes before Unlink returns, unless another of
// its events is being handled; else the last operation in flight ends it. Answers that come later are
// dropped.
func (n *Node) Unlink(h Handle) error {
	d := n.handles.get(h)
	if d == nil {
		return ErrStaleHandle
	}
	d.mu.Lock()
	pt := d.portal
	current := d.handle == h
	d.mu.Unlock()
	if !current {
		return ErrStaleHandle
	}
	if pt != nil {
		pt.mu.Lock()
	}
	d.mu.Lock()
	if d.handle != h {
		d.mu.Unlock()
		if pt != nil {
			pt.mu.Unlock()
		}
		return ErrStaleHandle
	}
	if pt != nil {
		pt.remove(d)
		pt.mu.Unlock()
	}
	d.aborted = true
	if d.refs > 0 {
		d.mu.Unlock()
		return nil
	}
	m := n.newCarrier()
	m.ev = Event{Type: EventUnlink, Unlinked: true, MD: h, User: d.user}
	n.retire(d)
	d.events.push(m)
	n.deliver(nil, d)
	return nil
}

func (s *MD) check() (length int, err error) {
	if len(s.Segs) > maxFrags {
		return 0, fmt.Errorf("%d pieces of memory: at most %d are possible", len(s.Segs), maxFrags)
	}
	for _, b := range s.Segs {
		if b.Len() == 0 || b.Slab() != s.Segs[0].Slab() {
			return 0, fmt.Errorf("memory in %d pieces: none may be empty and all must lie in one slab", len(s.Segs))
		}
		length += b.Len()
	}
	if s.Threshold == 0 || s.Threshold < Unlimited {
		return 0, fmt.Errorf("threshold %d: 1 or more, or -1 for no limit", s.Threshold)
	}
	if s.MaxSize < 0 || s.MaxSize > length {
		return 0, fmt.Errorf("max_size %d: 0 to the length of %d bytes", s.MaxSize, length)
	}
	return length, nil
}

// newMD makes the live form, with pt's lock held where there is one.
func (n *Node) newMD(spec MD, length int, pt *portal) (*md, Handle, error) {
	d := n.mds.Get().(*md)
	d.mu.Lock()
	defer d.mu.Unlock()
	h, err := n.handles.add(d)
	if err != nil {
		n.mds.Put(d)
		return nil, 0, err
	}
	d.handle = h
	d.portal = pt
	d.segs = append(d.segs[:0], spec.Segs...)
	d.length = length
	d.options, d.maxSize = spec.Options, spec.MaxSize
	d.threshold, d.retain = spec.Threshold, spec.Retain
	d.offset, d.refs, d.expected, d.aborted = 0, 0, 0, false
	d.handler, d.user = spec.Handler, spec.User
	return d, h, nil
}

// retire takes the MD out of the handle table, with d.mu held. Nothing finds it any more.
func (n *Node) retire(d *md) {
	n.tracker.remove(d)
	n.handles.remove(d.handle)
	d.handle = 0
}

// exhausted says that no further operation fits, with d.mu held.
func (d *md) exhausted() bool {
	return d.threshold == 0 || d.maxSize > 0 && d.offset+d.maxSize > d.length
}

// consume takes one unit of the threshold, with d.mu held.
func (d *md) consume() {
	if d.threshold > 0 {
		d.threshold--
	}
}

// answered says that one expected ACK or REPLY came or will never come, with d.mu held.
func (n *Node) answered(d *md) {
	if d.expected--; d.expected == 0 {
		n.tracker.remove(d)
	}
}

// expect says that an ACK or REPLY has to come from p before the deadline, with d.mu held.
func (n *Node) expect(d *md, p *peer, deadline time.Time) {
	d.expected++
	n.tracker.add(d, p, deadline)
}

// complete ends the operation of m on its MD and delivers m's event; m is used up.
func (n *Node) complete(s o2iblnd.Sender, m *msg) {
	d := m.md
	d.mu.Lock()
	d.refs--
	if d.aborted && m.ev.Status == 0 {
		m.ev.Status = -o2iblnd.Errno(unix.ETIMEDOUT)
	}
	m.ev.MD, m.ev.User = d.handle, d.user
	if d.refs == 0 && (d.aborted || !d.retain && d.exhausted()) {
		m.ev.Unlinked = true
		n.retire(d)
	}
	d.events.push(m)
	n.deliver(s, d)
}

// deliver hands queued events to the handler, unless that is under way; called with d.mu held, returns
// without. The MD returns to the pool behind its last event.
func (n *Node) deliver(s o2iblnd.Sender, d *md) {
	if d.delivering {
		d.mu.Unlock()
		return
	}
	d.delivering = true
	for m := d.events.pop(); m != nil; m = d.events.pop() {
		handler := d.handler
		d.mu.Unlock()
		if handler != nil {
			m.ev.Via = s
			handler(m.ev)
		}
		n.freeMsg(m)
		d.mu.Lock()
	}
	d.delivering = false
	gone := d.handle == 0
	if gone {
		clear(d.segs)
		d.segs = d.segs[:0]
		d.portal, d.handler, d.user = nil, nil, nil
	}
	d.mu.Unlock()
	if gone {
		n.mds.Put(d)
	}
}
