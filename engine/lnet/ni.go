package lnet

import (
	"fmt"
	"sync"
	"sync/atomic"

	"o2ibd/engine/wire"
)

// ni is a network interface of ours.
type ni struct {
	nid wire.NID
	up  atomic.Bool

	peersMu     sync.RWMutex
	peers       map[wire.NID]*peer
	peersClosed bool

	peerCredits atomic.Int64 // for peers to come

	mu      sync.Mutex
	credits creditCount
	waiting peerRing // peers that wait for a credit of the NI, once a message

	counts traffic
	health health
	local  localFailures
}

// creditCount is a number of credits of which some are in use. Fewer than 0 are available when more are
// wanted than there are.
type creditCount struct {
	max, used, least int
}

func newCreditCount(most int) creditCount { return creditCount{max: most, least: most} }

// note keeps the low-water mark, given how many wait.
func (c *creditCount) note(waiting int) { c.least = min(c.least, c.available(waiting)) }

func (c *creditCount) available(waiting int) int { return c.max - c.used - waiting }

func newNI(c NIConfig) (*ni, error) {
	if c.NID == 0 || c.NID == wire.AnyNID || c.NID.Net() == wire.LoopbackNID.Net() {
		return nil, fmt.Errorf("NI with the NID %v: not an address", c.NID)
	}
	if err := checkCredits(c.Credits, c.PeerCredits); err != nil {
		return nil, fmt.Errorf("NI %v: %w", c.NID, err)
	}
	i := &ni{nid: c.NID, peers: make(map[wire.NID]*peer), credits: newCreditCount(c.Credits)}
	i.peerCredits.Store(int64(c.PeerCredits))
	i.up.Store(true)
	i.health.reset()
	return i, nil
}

func checkCredits(credits, peerCredits int) error {
	if peerCredits < 1 || credits < peerCredits {
		return fmt.Errorf("credits %d and peer_credits %d: at least 1, and credits not below peer_credits", credits, peerCredits)
	}
	return nil
}

// Retune changes the send credits of an NI and of its peers at once.
func (n *Node) Retune(nid wire.NID, credits, peerCredits int) error {
	i := n.ni(nid)
	if i == nil {
		return fmt.Errorf("retune %v: no such NI", nid)
	}
	if err := checkCredits(credits, peerCredits); err != nil {
		return fmt.Errorf("retune %v: %w", nid, err)
	}
	i.mu.Lock()
	i.credits.max = credits
	i.mu.Unlock()
	i.peerCredits.Store(int64(peerCredits))
	for _, p := range i.allPeers() {
		p.mu.Lock()
		p.credits.max = peerCredits
		p.grant()
		p.mu.Unlock()
		n.pump(n.sender, p)
	}
	for p := i.nextWaiting(); p != nil; p = i.nextWaiting() {
		n.granted(n.sender, p)
	}
	return nil
}

// NIStatus implements o2iblnd.Upper: pings report it, and sends choose another NI of the net if there is one.
func (n *Node) NIStatus(nid wire.NID, up bool) {
	i := n.ni(nid)
	if i == nil || i.up.Swap(up) == up {
		return
	}
	if err := n.renewPingTarget(); err != nil {
		n.cfg.Log(Notice{Kind: "ping", Severity: Warning, NI: nid, Text: "what pings are told could not be renewed: " + err.Error()})
	}
}

// take gives p a credit for its next message, or false: p then waits for one.
func (i *ni) take(p *peer) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	ok := i.waiting.n == 0 && i.credits.used < i.credits.max
	if ok {
		i.credits.used++
	} else {
		i.waiting.push(p)
	}
	i.credits.note(i.waiting.n)
	return ok
}

// release gives a credit back and returns the peer that has it now, or nil.
func (i *ni) release() *peer {
	i.mu.Lock()
	i.credits.used--
	i.mu.Unlock()
	return i.nextWaiting()
}

// nextWaiting gives a free credit to the peer that has waited longest.
func (i *ni) nextWaiting() *peer {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.waiting.n == 0 || i.credits.used >= i.credits.max {
		return nil
	}
	i.credits.used++
	return i.waiting.pop()
}

// cancel takes back the oldest wish of p; false when it has been fulfilled.
func (i *ni) cancel(p *peer) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.waiting.remove(p)
}

// peerRing is a FIFO of peers that keeps its memory.
type peerRing struct {
	buf  []*peer
	head int
	n    int
}

func (r *peerRing) push(p *peer) {
	if r.n == len(r.buf) {
		grown := make([]*peer, max(16, 2*r.n))
		for k := range r.n {
			grown[k] = r.buf[(r.head+k)%r.n]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.n)%len(r.buf)] = p
	r.n++
}

func (r *peerRing) pop() *peer {
	p := r.buf[r.head]
	r.buf[r.head] = nil
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return p
}

// remove takes out the first entry of p.
func (r *peerRing) remove(p *peer) bool {
	for k := range r.n {
		if r.buf[(r.head+k)%len(r.buf)] != p {
			continue
		}
		for ; k > 0; k-- {
			r.buf[(r.head+k)%len(r.buf)] = r.buf[(r.head+k-1)%len(r.buf)]
		}
		r.pop()
		return true
	}
	return false
}
