package o2iblnd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// spoiltCM is a connection manager that refuses source ports and turns events into others, and a device
// that posts in ways of its own.
type spoiltCM struct {
	verbs.Provider
	verbs.CM
	refuse  func(port uint16) error                       // nil: none
	spoil   func(ev *verbs.Event)                         // nil: none
	post    func(dev verbs.Device, batch []verbs.Posting) // nil: as ever
	ports   []uint16                                      // that were asked for
	devices map[verbs.Device]*spoiltDevice
}

func (s *spoiltCM) wrap(p verbs.Provider) verbs.Provider {
	s.Provider = p
	return spoiltProvider{p, s}
}

type spoiltProvider struct {
	verbs.Provider
	s *spoiltCM
}

func (p spoiltProvider) OpenCM(w verbs.Waiter) (verbs.CM, error) {
	cm, err := p.Provider.OpenCM(w)
	p.s.CM = cm
	return spoilt{cm, p.s}, err
}

type spoilt struct {
	verbs.CM
	s *spoiltCM
}

func (c spoilt) NewID(user any) (verbs.ID, error) {
	id, err := c.CM.NewID(user)
	if err != nil {
		return nil, err
	}
	return spoiltID{id, c.s}, nil
}

func (c spoilt) Poll(evs []verbs.Event) (int, error) {
	n, err := c.CM.Poll(evs)
	for i := range evs[:n] {
		if ev := &evs[i]; ev.Type == verbs.EventConnectRequest {
			ev.ID = spoiltID{ev.ID, c.s}
		}
		if c.s.spoil != nil {
			c.s.spoil(&evs[i])
		}
	}
	return n, err
}

type spoiltID struct {
	verbs.ID
	s *spoiltCM
}

// Device gives the same one for the same, as identity counts.
func (i spoiltID) Device() verbs.Device {
	dev := i.ID.Device()
	if i.s.post == nil || dev == nil {
		return dev
	}
	if i.s.devices[dev] == nil {
		if i.s.devices == nil {
			i.s.devices = make(map[verbs.Device]*spoiltDevice)
		}
		i.s.devices[dev] = &spoiltDevice{dev, i.s}
	}
	return i.s.devices[dev]
}

type spoiltDevice struct {
	verbs.Device
	s *spoiltCM
}

func (d *spoiltDevice) Post(batch []verbs.Posting) { d.s.post(d.Device, batch) }

func (i spoiltID) ResolveAddr(local, remote netip.AddrPort, reuse bool, timeout time.Duration) error {
	i.s.ports = append(i.s.ports, local.Port())
	if i.s.refuse != nil {
		if err := i.s.refuse(local.Port()); err != nil {
			return err
		}
	}
	return i.ID.ResolveAddr(local, remote, reuse, timeout)
}

// said finds the events of a kind with text in them.
func (x *twin) said(kind, text string) (n int) {
	for _, e := range x.events {
		if e.Kind == kind && strings.Contains(e.Text, text) {
			n++
		}
	}
	return n
}

// ended fails unless m ends with status.
func (w *twins) ended(m *Message, status Errno) {
	w.t.Helper()
	w.until("the end of a message", func() bool { return slices.Contains(w.nodes[0].ended, m) })
	if m.Status != status {
		w.t.Fatalf("the message ended with %v, wanted %v", m.Status, status)
	}
}

// TestT12_02NextPrivilegedPort: source ports go down from 1023 past those that are taken; without the right
// to use one, an ordinary port serves, and one event says so.
func TestT12_02NextPrivilegedPort(t *testing.T) {
	t.Run("taken", func(t *testing.T) {
		s := &spoiltCM{refuse: func(port uint16) error {
			if port > 1020 {
				return unix.EADDRINUSE
			}
			return nil
		}}
		w := newTwins(t, map[string]string{"use_privileged_port": "1"}, s.wrap)
		w.ended(w.put(10), 0)
		if !slices.Equal(s.ports, []uint16{1023, 1022, 1021, 1020}) {
			t.Fatalf("ports %v", s.ports)
		}
	})
	t.Run("all taken", func(t *testing.T) {
		s := &spoiltCM{refuse: func(uint16) error { return unix.EADDRINUSE }}
		w := newTwins(t, map[string]string{"use_privileged_port": "1"}, s.wrap)
		w.ended(w.put(10), eHOSTUNREACH)
		if n := len(s.ports); n != 1023 || s.ports[n-1] != 1 {
			t.Fatalf("%d ports, the last %d", n, s.ports[n-1])
		}
	})
	t.Run("not allowed", func(t *testing.T) {
		s := &spoiltCM{refuse: func(port uint16) error {
			if port > 0 && port < 1024 {
				return unix.EACCES
			}
			return nil
		}}
		w := newTwins(t, map[string]string{"use_privileged_port": "1", "conns_per_peer": "2"}, s.wrap)
		a := w.nodes[0]
		w.ended(w.put(10), 0)
		w.until("both connections", func() bool { return a.in(connEstablished) == 2 })
		if !slices.Equal(s.ports, []uint16{1023, 0, 1023, 0}) || a.said("privileged_port", "CAP_NET_BIND_SERVICE") != 1 {
			t.Fatalf("ports %v, events %+v", s.ports, a.events)
		}
	})
	t.Run("not allowed, said late", func(t *testing.T) {
		once := true
		s := &spoiltCM{spoil: func(ev *verbs.Event) {
			if ev.Type == verbs.EventAddrResolved && once {
				once = false
				ev.Type, ev.Err = verbs.EventAddrError, unix.EACCES
			}
		}}
		w := newTwins(t, map[string]string{"use_privileged_port": "1"}, s.wrap)
		w.ended(w.put(10), 0)
		if !slices.Equal(s.ports, []uint16{1023, 0}) {
			t.Fatalf("ports %v", s.ports)
		}
	})
}

// TestAttemptsThatFail: each event that ends an attempt ends its messages with the reason, once
// (spec o2iblnd 2.3).
func TestAttemptsThatFail(t *testing.T) {
	for _, row := range []struct {
		name   string
		at, as verbs.EventType
		status Errno
		text   string
	}{
		{"address error", verbs.EventAddrResolved, verbs.EventAddrError, eHOSTUNREACH, "was not found: network is unreachable"},
		{"route error", verbs.EventRouteResolved, verbs.EventRouteError, eHOSTUNREACH, "no route to"},
		{"device gone before the route", verbs.EventAddrResolved, verbs.EventDeviceRemoval, eNETDOWN, "the device was removed"},
		{"unreachable", verbs.EventEstablished, verbs.EventUnreachable, eNETDOWN, "cannot be reached"},
		{"connect error", verbs.EventEstablished, verbs.EventConnectError, eNOTCONN, "could not be made"},
		{"closed before it was ready", verbs.EventEstablished, verbs.EventDisconnected, eCONNRESET, "before it was ready"},
	} {
		t.Run(row.name, func(t *testing.T) {
			spoil := true
			s := &spoiltCM{spoil: func(ev *verbs.Event) {
				if ev.Type == row.at && spoil {
					*ev = verbs.Event{Type: row.as, ID: ev.ID, Err: unix.ENETUNREACH}
				}
			}}
			w := newTwins(t, nil, s.wrap)
			w.ended(w.put(10), row.status)
			a := w.nodes[0]
			if a.said("connect_failed", row.text) != 1 {
				t.Fatalf("events %+v", a.events)
			}
			if a.down != 1 {
				t.Fatalf("LNet was told %d times", a.down)
			}
			spoil = false
			w.ended(w.put(10), 0) // the next message tries again
		})
	}
}

// TestReceivesComeBackAtOnce: a device that is lost while a connection is built gives its receives back before
// connd is done with it, and the connection still ends (seen once in 10,000 stops of a fabric in the middle
// of its faults).
func TestReceivesComeBackAtOnce(t *testing.T) {
	var w *twins
	addr := netip.AddrFrom4([4]byte{10, 0, 0, 1})
	lose := true
	s := &spoiltCM{post: func(dev verbs.Device, batch []verbs.Posting) {
		dev.Post(batch)
		if lose && len(batch[0].Recvs) > 1 {
			lose = false
			w.f.LoseDevice(addr)
			w.deliver()
			w.nodes[0].lnd.scheds[0].Step(w.now)
		}
	}}
	w = newTwins(t, nil, s.wrap)
	m := w.put(10)
	w.until("the end of the message", func() bool { return slices.Contains(w.nodes[0].ended, m) })
	if lose || m.Status == 0 {
		t.Fatalf("the message ended with %v, and the device was not lost: %v", m.Status, lose)
	}
	w.until("the end of the connection", func() bool { return len(w.nodes[0].lnd.connd.conns) == 0 })
	if n := w.nodes[0].lnd.scheds[0].stale.Load(); n != 0 {
		t.Fatalf("%d completions were nobody's", n)
	}
	w.f.ReturnDevice(addr)
}

// TestReceivesNotPosted: a device that takes half of the receives gets no connection, on either side, and
// nothing is left of it.
func TestReceivesNotPosted(t *testing.T) {
	for _, row := range []struct {
		name     string
		from, to int
		text     string
	}{{"active", 0, 1, "could not connect to"}, {"passive", 1, 0, "could not take the connection of"}} {
		t.Run(row.name, func(t *testing.T) {
			half := true
			s := &spoiltCM{post: func(dev verbs.Device, batch []verbs.Posting) {
				all := batch[0].Recvs
				if half && len(all) > 1 {
					batch[0].Recvs = all[:len(all)/2]
				}
				dev.Post(batch)
				if half && len(all) > 1 {
					batch[0].Recvs, batch[0].Err = all, unix.ENOMEM
				}
			}}
			w := newTwins(t, nil, s.wrap)
			m := w.putFrom(row.from, 10)
			w.until("the end of the message", func() bool { return slices.Contains(w.nodes[row.from].ended, m) })
			if m.Status == 0 {
				t.Fatal("the message arrived")
			}
			a := w.nodes[0]
			if a.said("connect_failed", row.text) != 1 || a.said("connect_failed", unix.ENOMEM.Error()) != 1 {
				t.Fatalf("events %+v", a.events)
			}
			w.until("the end of the connection", func() bool { return len(a.lnd.connd.conns) == 0 })
			half = false
			again := w.putFrom(row.from, 10)
			w.until("the end of the next", func() bool { return slices.Contains(w.nodes[row.from].ended, again) })
			if again.Status != 0 {
				t.Fatalf("the next ended with %v", again.Status)
			}
		})
	}
}

// TestStopEndsWhatCameLast: what LNet sends while the last NI goes down ends, though nobody runs any more.
func TestStopEndsWhatCameLast(t *testing.T) {
	w := newTwins(t, nil)
	a := w.nodes[0]
	w.ended(w.put(10), 0)
	w.call(func(ctx context.Context) error { return a.lnd.DelNI(ctx, a.nid) })
	m := w.put(10)
	w.nodes[0] = nil
	if err := errors.Join(a.lnd.Stop(t.Context()), a.arena.Close()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(a.ended, m) || m.Status != eHOSTUNREACH {
		t.Fatalf("the message has status %v, ended: %v", m.Status, slices.Contains(a.ended, m))
	}
}

// TestControl: connections are closed and tunables put in force while the node runs (spec o2iblnd 10.3).
func TestControl(t *testing.T) {
	w := newTwins(t, nil)
	a, b := w.nodes[0], w.nodes[1]
	fails := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		w.call(func(ctx context.Context) error {
			if f(ctx) == nil {
				t.Errorf("%s: no error", what)
			}
			return nil
		})
	}
	shut := func(n int, err error) error {
		if err == nil && n != 1 {
			t.Errorf("%d connections were closed", n)
		}
		return err
	}
	fails("close what is not there", func(ctx context.Context) error { return shut(a.lnd.CloseConns(ctx, a.nid, b.nid)) })
	fails("delete what is not there", func(ctx context.Context) error { return a.lnd.DelPeer(ctx, a.nid, b.nid) })
	fails("delete an NI that is not there", func(ctx context.Context) error { return a.lnd.DelNI(ctx, b.nid) })
	w.ended(w.put(10), 0)
	w.call(func(ctx context.Context) error { return shut(a.lnd.CloseConns(ctx, a.nid, b.nid)) })
	w.until("the end of the connection", func() bool { return len(a.lnd.connd.conns) == 0 })
	if a.said("conn_closed", "an operator closed the connection") != 1 {
		t.Errorf("events %+v", a.events)
	}

	n := *a.lnd.ni(a.nid).tun.Load()
	n.PeerCredits = 5
	if err := a.lnd.SetNI(a.nid, n); err != nil {
		t.Fatal(err)
	}
	if err := a.lnd.SetNI(b.nid, n); err == nil {
		t.Error("tunables of an NI that is not there")
	}
	w.ended(w.put(10), 0)
	c := a.conns()[0]
	if c.acct.Depth != 5 {
		t.Errorf("a new connection has depth %d", c.acct.Depth)
	}
	g := *a.lnd.global.Load()
	g.Keepalive = 3 * time.Second
	a.lnd.SetGlobal(g)
	sent := c.count.noopsSent
	w.now = w.now.Add(5 * time.Second)
	w.settle()
	if c.count.noopsSent != sent+1 {
		t.Errorf("%d NOOPs 5 s after the keepalive was set to 3 s", c.count.noopsSent-sent)
	}
}

// TestErrnos: an operator reads words and the name, LNet finds the number.
func TestErrnos(t *testing.T) {
	for e, want := range map[Errno]string{
		0: "success", eTIMEDOUT: "connection timed out (ETIMEDOUT)", eSTALE: "stale file handle (ESTALE)", -9999: "status -9999", 7: "status 7",
	} {
		if got := e.Error(); got != want {
			t.Errorf("%d is %q, wanted %q", int32(e), got, want)
		}
	}
}
