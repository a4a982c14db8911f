package iwarp

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// linkEvery is how often the state of an interface is looked at.
const linkEvery = time.Second

// link watches the network interface under a device: its port is up when the interface is.
type link struct {
	name string
	up   func(name string) bool

	mu     sync.Mutex
	looked time.Time
	state  verbs.PortState
	news   []verbs.AsyncEvent
}

// interfaceUp says whether Linux has the interface up and running.
func interfaceUp(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // nothing is known against it
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return true
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return false // it is gone
	}
	return ifr.Uint16()&unix.IFF_UP != 0 && ifr.Uint16()&unix.IFF_RUNNING != 0
}

// look reads the state if that was long enough ago, and keeps a change as news.
func (l *link) look(now time.Time) verbs.PortState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up == nil || now.Sub(l.looked) < linkEvery {
		return l.state
	}
	l.looked = now
	state, event := verbs.PortDown, verbs.AsyncPortError
	if l.up(l.name) {
		state, event = verbs.PortActive, verbs.AsyncPortActive
	}
	if state != l.state {
		l.state = state
		l.news = append(l.news, verbs.AsyncEvent{Type: event, Port: 1})
	}
	return state
}

// take gives what happened since.
func (l *link) take(evs []verbs.AsyncEvent) int {
	l.look(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	n := copy(evs, l.news)
	l.news = append(l.news[:0], l.news[n:]...)
	return n
}
