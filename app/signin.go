package app

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Rates of sign-in attempts: so many at once, then one each interval.
var (
	pairRate = rate{8, 20 * time.Second}   // of one name from one address
	addrRate = rate{30, 5 * time.Second}   // of one address, whatever the names: an IPv6 host has its whole /64
	nameRate = rate{100, 10 * time.Second} // of one name, from all addresses that it never signed in from
)

const (
	maxBuckets = 10000 // of each kind
	maxHomes   = 16    // addresses that are remembered of each name
)

type rate struct {
	burst    float64
	interval time.Duration
}

// signInGuard slows guessing down without a way to lock anybody out: a storm on one name from everywhere
// does not hold up the addresses that the name has signed in from, nor a storm from one address the others.
// Its memory is bounded. Where it is full, what is unknown passes, and the few passwords that are hashed at
// once are the brake. The unix socket makes sign-in links whatever happens here.
type signInGuard struct {
	mu      sync.Mutex
	buckets [3]map[string]bucket // by what follows
	swept   [3]time.Time
	homes   map[string][]string // addresses from which a name signed in, newest last
}

const (
	byPair = iota
	byAddr
	byName
)

type bucket struct {
	left float64
	at   time.Time
}

func newSignInGuard() *signInGuard {
	g := &signInGuard{homes: map[string][]string{}}
	for i := range g.buckets {
		g.buckets[i] = map[string]bucket{}
	}
	return g
}

// allow counts an attempt, and refuses it with ErrTooMany. name is "" for a sign-in link.
func (g *signInGuard) allow(from, name string, now time.Time) error {
	addr := hostKey(from)
	name = name[:min(len(name), 64)]
	g.mu.Lock()
	defer g.mu.Unlock()
	type check struct {
		kind int
		key  string
		rate rate
		of   string
	}
	var checks []check // what one refuses does not count for the next
	if name != "" {
		checks = append(checks, check{byPair, addr + " " + name, pairRate, "for this account from your address"})
	}
	checks = append(checks, check{byAddr, addr, addrRate, "from your address"})
	if name != "" && !g.home(name, addr) {
		checks = append(checks, check{byName, name, nameRate, "for this account from addresses that it never signed in from"})
	}
	for _, c := range checks {
		if !g.take(c.kind, c.key, c.rate, now) {
			return fmt.Errorf("%w to sign in %s; wait %v and try again", ErrTooMany, c.of, c.rate.interval)
		}
	}
	return nil
}

// take counts one attempt in a bucket; false if it is empty.
func (g *signInGuard) take(kind int, key string, r rate, now time.Time) bool {
	m := g.buckets[kind]
	b, ok := m[key]
	if !ok {
		if len(m) >= maxBuckets && now.Sub(g.swept[kind]).Abs() > time.Second {
			g.swept[kind] = now
			for k, old := range m { // those that are full again say nothing
				if now.Sub(old.at) > time.Duration(r.burst)*r.interval {
					delete(m, k)
				}
			}
		}
		if len(m) >= maxBuckets {
			return true
		}
		b = bucket{r.burst, now}
	}
	b.left = min(r.burst, b.left+max(now.Sub(b.at), 0).Seconds()/r.interval.Seconds())
	b.at = now
	ok = b.left >= 1
	if ok {
		b.left--
	}
	m[key] = b
	return ok
}

func (g *signInGuard) home(name, addr string) bool {
	return slices.Contains(g.homes[name], addr)
}

// signedIn forgets the failed attempts of a name from an address, which is at home there from now on.
func (g *signInGuard) signedIn(from, name string) {
	addr := hostKey(from)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.buckets[byPair], addr+" "+name)
	if g.home(name, addr) {
		return
	}
	if g.homes[name] = append(g.homes[name], addr); len(g.homes[name]) > maxHomes {
		g.homes[name] = g.homes[name][1:]
	}
}

// hostKey is what counts as one host.
func hostKey(from string) string {
	addr, err := netip.ParseAddr(from)
	if err != nil {
		return from[:min(len(from), 64)]
	}
	if addr = addr.Unmap(); addr.Is6() {
		p, _ := addr.WithZone("").Prefix(64) // 64 is possible
		return p.String()
	}
	return addr.String()
}
