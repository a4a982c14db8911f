// Package credits is the flow control of one connection as pure accounting: which message consumes what,
// what is announced to the peer and when a NOOP is needed (spec o2iblnd section 3), for both protocol
// versions. A Conn belongs to the scheduler that owns the connection; nothing here locks, waits or reads
// a clock.
package credits

import (
	"fmt"

	"o2ibd/engine/wire"
)

const (
	highWaterV1 = 7 // credits owed at which version 1 returns them, with its queue depth of 8
	oobMsgs     = 2 // receives that version 2 keeps for NOOPs
)

// Conn is the account of one connection. The fields are for reading.
type Conn struct {
	Credits     int // messages that we may still send
	Outstanding int // receives that we reposted and have not announced
	Reserved    int // requests that we may still promote: each has a receive for its answer
	SendsPosted int // sends posted and not completed
	NoopsPosted int // NOOPs among them

	Depth           int // negotiated queue depth
	HighWater       int // Outstanding at which a NOOP returns credits
	ConcurrentSends int // most SendsPosted
	Version         wire.Version
}

// New is the account of a connection that was just established.
func New(v wire.Version, depth, highWater, concurrentSends int) Conn {
	return Conn{Credits: depth, Reserved: depth, Depth: depth, HighWater: highWater, ConcurrentSends: concurrentSends, Version: v}
}

// HighWater is the mark for a negotiated depth: of version 2 the tunable's share of it, of version 1 all
// that a sender may use up; always in reach, so that a shallow connection cannot stall (spec o2iblnd 3.6).
// A NOOP of version 1 is owed itself: with a mark of 1 two nodes would trade NOOPs without end, so that
// version needs a depth of 3.
func HighWater(v wire.Version, depth, hiw, peerCredits int) int {
	if v == wire.Version1 {
		return min(highWaterV1, max(2, depth-1))
	}
	return max(1, depth*hiw/max(peerCredits, 1))
}

// ConcurrentSends is the tunable c as version v clamps it.
func ConcurrentSends(v wire.Version, c int) int {
	if v == wire.Version1 {
		return min(max(c, 4), 16)
	}
	return c
}

// RxMsgs is how many receives a connection posts: for the peer's messages, for answers to our requests,
// and for out-of-band NOOPs.
func RxMsgs(v wire.Version, depth int) int {
	if v == wire.Version1 {
		return 2 * depth
	}
	return 2*depth + oobMsgs
}

// TakeIn adds the credits of a received message. More than the queue depth is a violation.
func (c *Conn) TakeIn(credits uint8, noop bool) error {
	if credits == 0 {
		return nil
	}
	if c.Credits+int(credits) > c.Depth {
		return fmt.Errorf("the peer returned %d credits, but with %d of %d in hand only %d were owed", credits, c.Credits, c.Depth, c.Depth-c.Credits)
	}
	c.Credits += int(credits)
	if noop && c.Version == wire.Version1 {
		c.Outstanding++
	}
	return nil
}

// Post says how a receive goes back to work (spec o2iblnd 3.2).
type Post uint8

const (
	DontPost    Post = iota // LNet still has the buffer
	NoCredit                // repost, nothing more
	PeerCredit              // repost, and owe the peer a credit
	RsrvdCredit             // repost, and have a reserved credit again
)

// Reposted counts a receive that was reposted.
func (c *Conn) Reposted(p Post) {
	switch p {
	case PeerCredit:
		c.Outstanding++
	case RsrvdCredit:
		c.Reserved++
	}
}

// NoopPost is how the receive of a NOOP that carried these credits is reposted.
func (c *Conn) NoopPost(credits uint8) Post {
	if c.Version == wire.Version1 && credits == 0 {
		return PeerCredit
	}
	return NoCredit // version 1 counted it in TakeIn
}

// Reserve takes a reserved credit for a PUT_REQ or GET_REQ, if there is one.
func (c *Conn) Reserve() bool {
	if c.Reserved == 0 {
		return false
	}
	c.Reserved--
	return true
}

// Verdict says whether a message may go now.
type Verdict uint8

const (
	OK         Verdict = iota
	Throttled          // as many sends as allowed are posted
	NoCredits          // the peer has no receive for it
	LastCredit         // version 1 keeps the last one for a NOOP
)

// MaySend judges the message at the head of a queue.
func (c *Conn) MaySend(credited, noop bool) Verdict {
	switch {
	case c.SendsPosted >= c.ConcurrentSends:
		return Throttled
	case credited && c.Credits == 0:
		return NoCredits
	case credited && c.Credits == 1 && !noop && c.Version == wire.Version1:
		return LastCredit
	}
	return OK
}

// Send counts a message that is posted now, and gives the credits that it announces.
func (c *Conn) Send(credited, noop bool) (announce uint8) {
	if credited {
		c.Credits--
	}
	if noop {
		c.NoopsPosted++
	}
	c.SendsPosted++
	announce = uint8(c.Outstanding)
	c.Outstanding = 0
	return announce
}

// Undo takes Send back: the device refused the post.
func (c *Conn) Undo(credited, noop bool, announce uint8) {
	if credited {
		c.Credits++
	}
	c.Outstanding += int(announce)
	c.SendDone(noop)
}

// SendDone counts the completion of a send.
func (c *Conn) SendDone(noop bool) {
	c.SendsPosted--
	if noop {
		c.NoopsPosted--
	}
}

// Queues says which of a connection's queues hold something.
type Queues struct {
	Nocred bool // answers, and version 2's NOOPs
	Noops  bool // version 1's NOOPs
	Tx     bool // messages that cost a credit
}

// NeedNoop says whether a NOOP has to carry credits back, or life (spec o2iblnd 3.6).
func (c *Conn) NeedNoop(q Queues, keepaliveDue bool) bool {
	if c.Outstanding < c.HighWater && !keepaliveDue {
		return false
	}
	if c.Version != wire.Version1 {
		// What is queued will carry the credits, unless it cannot move.
		return !q.Nocred && (!q.Tx || c.Credits == 0)
	}
	if q.Noops || q.Nocred || c.Credits == 0 {
		return false
	}
	if c.Credits == 1 && c.Outstanding == 0 {
		return false
	}
	return !q.Tx || c.Credits == 1
}

// DropNoop says whether a NOOP that is about to be posted, and is off its queue, has become needless, or
// one too many for the receives that the peer keeps for them.
func (c *Conn) DropNoop(q Queues, keepaliveDue bool) bool {
	return !c.NeedNoop(q, keepaliveDue) || c.Version != wire.Version1 && c.NoopsPosted >= oobMsgs
}

// Check says which bound is broken, if one is (spec o2iblnd 3.1).
func (c *Conn) Check() error {
	noops := c.SendsPosted
	if c.Version != wire.Version1 {
		noops = min(noops, oobMsgs)
	}
	for _, b := range []struct {
		name    string
		n, most int
	}{
		{"credits", c.Credits, c.Depth}, {"outstanding credits", c.Outstanding, c.Depth}, {"reserved credits", c.Reserved, c.Depth},
		{"sends posted", c.SendsPosted, c.ConcurrentSends}, {"noops posted", c.NoopsPosted, noops},
	} {
		if b.n < 0 || b.n > b.most {
			return fmt.Errorf("%s %d: 0 to %d are possible", b.name, b.n, b.most)
		}
	}
	return nil
}
