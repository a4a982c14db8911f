package o2iblnd

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"o2ibd/engine/verbs"
)

// Failover (spec o2iblnd 7.4): a bonded interface moves to another HCA, or an HCA is lost and comes back.
// The header's failover thread is a part of connd's step here: bringing an HCA up is what connd does for an
// NI too, and devices are connd's.
const (
	failoverScan  = 10 * time.Second // between two looks at every device that may move
	failoverPause = 3 * time.Second  // after one that went well
	failoverMost  = 10 * time.Second // between two attempts
)

// canFailover says whether v may be taken to another HCA (kiblnd_dev_can_failover).
func (d *connd) canFailover(v *device) bool {
	if v.failing {
		return false
	}
	if v.lost {
		return true
	}
	switch d.lnd.global.Load().DevFailover {
	case 0:
		return false
	case 1:
		h := v.hdev.Load()
		return h != nil && h.info.Bonded
	}
	return true
}

// mayFail puts v on the list of those to look at, if it can move at all.
func (d *connd) mayFail(v *device) {
	if d.canFailover(v) {
		v.failing = true
		d.failedDevs = append(d.failedDevs, v)
	}
}

// failover looks at the first device on the list whose time has come, and at all of them now and then.
func (d *connd) failover() {
	if !d.now.Before(d.nextFailoverScan) {
		d.nextFailoverScan = d.now.Add(failoverScan)
		for _, v := range d.devices {
			d.mayFail(v)
		}
	}
	for i, v := range d.failedDevs {
		if d.now.Before(v.nextFailover) {
			continue
		}
		d.failedDevs = append(d.failedDevs[:i], d.failedDevs[i+1:]...)
		v.failing = false
		moved, err := d.failOver(v)
		if err == nil {
			v.nextFailover = d.now.Add(failoverPause)
			v.failedFailover = 0
			if moved {
				d.moved(v)
			}
			return
		}
		v.failedFailover++
		v.nextFailover = d.now.Add(min(time.Duration(v.failedFailover)*time.Second, failoverMost))
		if v.failedFailover == 1 {
			d.lnd.event(Event{Kind: "device", Severity: slog.LevelError, Text: fmt.Sprintf("%v: no HCA could be brought up, trying on: %v", v.addr, err)})
		}
		d.mayFail(v)
		return
	}
}

// failOver brings up the HCA that is under v now, if it is not the one that we have (kiblnd_dev_failover).
func (d *connd) failOver(v *device) (moved bool, err error) {
	old := v.hdev.Load()
	if old != nil && old.listener != nil && !v.lost && d.lnd.global.Load().DevFailover < 2 {
		now, err := d.hcaAt(v.addr)
		if err != nil || now == old.hca {
			return false, err
		}
	}
	if old != nil {
		// Or the new one could not have its address. When that fails, the next attempt finds no listener.
		if err := old.deafen(); err != nil {
			d.lnd.fault(old, "close the listener", err)
		}
	}
	h, err := d.openHCA(v)
	if err != nil {
		return false, err
	}
	if old != nil {
		d.retire(old, d.buried(old))
	}
	v.lost = false
	v.portDown.Store(h.info.State == verbs.PortDown)
	v.hdev.Store(h)
	for _, n := range d.netsOf(v) {
		n.failPools(d.now)
	}
	return true, nil
}

// moved tells of a device that has another HCA.
func (d *connd) moved(v *device) {
	h := v.hdev.Load()
	d.lnd.event(Event{Kind: "failover", Severity: slog.LevelWarn,
		Text: fmt.Sprintf("%v is now on %s: new connections go there, old ones close when they are next used", v.addr, h.info.Name)})
	d.tellStatus(v, "")
}

// buried says what became of an HCA that was retired.
func (d *connd) buried(h *hcaDev) func(error) {
	return func(err error) {
		if err != nil {
			d.lnd.log.Warn("closing a device failed", "device", h.info.Name, "err", err)
		}
	}
}

// hcaAt is the HCA that an address is on at this moment.
func (d *connd) hcaAt(a netip.Addr) (verbs.Device, error) {
	id, err := d.cm.NewID(nil)
	if err != nil {
		return nil, err
	}
	defer id.Close()
	if err := id.Bind(netip.AddrPortFrom(a, 0), true); err != nil {
		return nil, fmt.Errorf("find the HCA of %v: %w", a, err)
	}
	return id.Device(), nil
}

// loseHCA takes in that h is gone: its connections end, and its device waits for another.
func (d *connd) loseHCA(h *hcaDev, why string) {
	v := h.dev
	if h.retired != nil {
		return
	}
	v.lost = true
	d.lnd.event(Event{Kind: "device", Severity: slog.LevelError,
		Text: fmt.Sprintf("%s at %v is lost (%s): its connections are closed, it is taken up again when it comes back", h.info.Name, v.addr, why)})
	gone := because(eNETDOWN, "the device %s is gone: %s", h.info.Name, why)
	d.lnd.peers.each(func(p *peer) {
		for _, a := range append([]*attempt(nil), p.attempts...) {
			if p.ni.dev == v && a.conn == nil {
				d.attemptFailed(a, gone)
			}
		}
	})
	for _, c := range d.byAge() {
		switch {
		case c.hdev != h:
		case c.setup < connEstablished:
			c.disconnected = true
			d.connFailed(c, gone)
		default:
			c.disconnected = true // nobody is left to say so
			c.sched.submit(op{kind: opClose, c: c, why: gone})
		}
	}
	d.retire(h, d.buried(h))
	for _, n := range d.netsOf(v) {
		n.failPools(d.now)
	}
	d.tellStatus(v, why)
	d.mayFail(v)
}

// pollAsync takes in what the HCAs report beside connections (spec o2iblnd 2.3).
func (d *connd) pollAsync() {
	var evs [16]verbs.AsyncEvent
	for _, v := range d.devices {
		h := v.hdev.Load()
		if h == nil {
			continue
		}
		n, err := h.hca.PollAsync(evs[:])
		if err != nil {
			d.lnd.fault(h, "read its events", err)
		}
		for _, ev := range evs[:n] {
			d.async(h, ev)
		}
	}
}

func (d *connd) async(h *hcaDev, ev verbs.AsyncEvent) {
	v := h.dev
	switch ev.Type {
	case verbs.AsyncDeviceFatal:
		d.loseHCA(h, "the HCA reports a fatal error")
	case verbs.AsyncPortError, verbs.AsyncPortActive:
		down := ev.Type == verbs.AsyncPortError
		if h.retired == nil && v.portDown.Swap(down) != down {
			d.tellStatus(v, "the port is down")
		}
		d.mayFail(v)
	case verbs.AsyncGIDChange, verbs.AsyncLIDChange:
		d.lnd.event(Event{Kind: "device", Severity: slog.LevelInfo, Text: fmt.Sprintf("%s port %d: the address of the port changed (%v)", h.info.Name, ev.Port, ev.Type)})
		d.mayFail(v)
	default:
		d.lnd.event(Event{Kind: "device", Severity: slog.LevelWarn, Text: fmt.Sprintf("%s reports: %v", h.info.Name, ev.Type)})
	}
}

// tellStatus tells LNet and operators whether the NIs of v can be used.
func (d *connd) tellStatus(v *device, why string) {
	up := v.up()
	for _, n := range d.netsOf(v) {
		if n.down == !up {
			continue
		}
		n.down = !up
		e := Event{Kind: "ni_status", Severity: slog.LevelInfo, NI: n.nid, Text: fmt.Sprintf("%v is up again", n.nid)}
		if !up {
			e.Severity, e.Text = slog.LevelError, fmt.Sprintf("%v is down: %s", n.nid, why)
		}
		d.lnd.event(e)
		d.lnd.upper.NIStatus(n.nid, up)
	}
}

// netsOf lists the NIs on v.
func (d *connd) netsOf(v *device) []*ni {
	var list []*ni
	for _, n := range *d.lnd.nis.Load() {
		if n.dev == v {
			list = append(list, n)
		}
	}
	return list
}
