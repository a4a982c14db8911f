package mem

import (
	"errors"
	"fmt"
	"net/netip"

	"o2ibd/engine/verbs"
)

// Call that can be made to fail.
type Call int

const (
	CallPost Call = iota // a share of a Post
	CallPoll
	CallRegister
	CallAllocPD
	CallAllocMW
	CallCreateCQ
	CallCreateQP
	calls
)

var (
	errNoAnswer  = errors.New("the peer does not answer")
	errNoReceive = errors.New("the peer posts no receive")
	errRemoved   = errors.New("the device is gone")
	errNotOurs   = errors.New("made on another device")
)

// FailNth makes the n-th call of a kind from now fail at the node with this address.
func (f *Fabric) FailNth(a netip.Addr, c Call, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node(a).failIn[c].Store(int32(n))
}

// DropRTU loses the ready-to-use of the next n connections: the passive side is not told that it is
// established, but gets EventCommEst with the first message.
func (f *Fabric) DropRTU(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropRTU = n
}

// RefuseStale has the next n connection requests refused as if the other side still knew an older
// connection.
func (f *Fabric) RefuseStale(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale = n
}

// Hold keeps the events of an id back, until it is called with false.
func (f *Fabric) Hold(i verbs.ID, hold bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := i.(*id)
	x.held = hold
	f.kick(x)
}

// Cut breaks the connections between two addresses, as if the cable had been out for longer than the
// retries: on both sides the request at the head fails for want of an answer. New connections can be made.
func (f *Fabric) Cut(a, b netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.each() {
		x, y := i.local.Addr(), i.remote.Addr()
		if q := i.qp; q != nil && q.state == qpReady && (x == a && y == b || x == b && y == a) {
			q.end(verbs.WCRetryExceeded, errNoAnswer)
		}
	}
}

// Vanish takes a node away without a word. Its peers find out when they send to it.
func (f *Fabric) Vanish(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node(a).vanished = true
	f.strand()
}

// PortDown takes the port at an address down: it is reported, and nothing passes it until PortUp. A
// connection over it fails when one side sends.
func (f *Fabric) PortDown(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.device(a)
	d.info.State = verbs.PortDown
	d.report(verbs.AsyncPortError)
	f.strand()
}

// PortUp takes it up again.
func (f *Fabric) PortUp(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.device(a)
	d.info.State = verbs.PortActive
	d.report(verbs.AsyncPortActive)
}

// LoseDevice takes away the device at an address, as when it is pulled out: it is reported as failed, its
// ids get EventDeviceRemoval, what was posted is flushed, and every object on it is dead for good. Its
// peers find out when they send.
func (f *Fabric) LoseDevice(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.device(a)
	d.lost, d.info.State = true, verbs.PortDown
	d.report(verbs.AsyncPortError, verbs.AsyncDeviceFatal)
	for _, i := range f.each() {
		if i.dev != d {
			continue
		}
		i.event(verbs.Event{Type: verbs.EventDeviceRemoval, Err: errRemoved})
		if f.listeners[i.local] == i {
			delete(f.listeners, i.local)
		}
		if i.qp != nil {
			i.qp.end(verbs.WCFlushed, errRemoved)
		}
	}
	f.strand()
}

// ReturnDevice puts a new device where one was lost: ids that are bound from now on find it.
func (f *Fabric) ReturnDevice(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.device(a)
	d := newDevice(old.n, old.index, a)
	old.n.devices[old.index] = d
	d.report(verbs.AsyncPortActive)
}

// SwitchDevice moves an address to another device, as a bond does: ids that are bound from now on find the
// new one, those on the old one are told, and their connections still work.
func (f *Fabric) SwitchDevice(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.device(a)
	old.n.devices[old.index] = newDevice(old.n, old.index, a)
	for _, i := range f.each() {
		if i.dev == old {
			i.event(verbs.Event{Type: verbs.EventAddrChange})
		}
	}
}

// strand tells those who wait for an answer that none will come.
func (f *Fabric) strand() {
	for _, i := range f.each() {
		if i.asking && (i.dark() || i.other.dark()) {
			i.answer(verbs.Event{Type: verbs.EventUnreachable, Err: errNoAnswer})
		}
	}
}

// each gives the ids as they are now: what is done to one may close or make others.
func (f *Fabric) each() []*id { return append([]*id(nil), f.ids...) }

func (f *Fabric) node(a netip.Addr) *node {
	n := f.nodes[a]
	if n == nil {
		panic(fmt.Sprintf("mem: no node at %v", a))
	}
	return n
}

func (f *Fabric) device(a netip.Addr) *device {
	for _, d := range f.node(a).devices {
		if d.info.Addr == a {
			return d
		}
	}
	panic(fmt.Sprintf("mem: no device at %v", a))
}
