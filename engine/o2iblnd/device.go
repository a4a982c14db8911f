package o2iblnd

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/verbs"
)

// device is one of our addresses and what is there (spec o2iblnd 7.1). It belongs to connd, but for hdev and
// portDown.
type device struct {
	addr    netip.Addr
	service int
	nets    int // NIs on it

	hdev     atomic.Pointer[hcaDev] // nil while there is none
	portDown atomic.Bool
	lost     bool // the HCA is gone: take the next one whatever dev_failover says

	failing        bool // on connd.failedDevs
	nextFailover   time.Time
	failedFailover int // attempts in a row
}

// up says whether messages can pass.
func (v *device) up() bool { return v.hdev.Load() != nil && !v.portDown.Load() }

// info describes the HCA that is there, or that there is none.
func (v *device) info() verbs.DeviceInfo {
	if h := v.hdev.Load(); h != nil {
		return h.hca.Info()
	}
	return verbs.DeviceInfo{Addr: v.addr, State: verbs.PortDown}
}

// hcaDev is the HCA under a device: the listener, the protection domain, the regions over our slabs and one
// completion queue for each scheduler. It belongs to connd; region may be called by every scheduler. It lives
// until its last connection is gone, even when another has taken its place.
type hcaDev struct {
	lnd      *LND
	dev      *device
	info     verbs.DeviceInfo
	hca      verbs.Device
	listener verbs.ID
	pd       verbs.PD
	cqs      []verbs.CQ // by scheduler
	cqGone   []chan struct{}
	maxSGE   int
	conns    int
	retired  func(error) // it is not the device's any more: what to call when it is closed

	mu      sync.Mutex // regions are added under it
	regions atomic.Pointer[[]region]
}

// region is a slab as the HCA knows it.
type region struct {
	slab *arena.Slab
	mr   verbs.MR
}

// region gives the HCA's region over slab, and makes it at the first use.
func (h *hcaDev) region(slab *arena.Slab) (verbs.MR, error) {
	if p := h.regions.Load(); p != nil {
		for i := range *p {
			if (*p)[i].slab == slab {
				return (*p)[i].mr, nil
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var old []region
	if p := h.regions.Load(); p != nil {
		old = *p
	}
	for i := range old {
		if old[i].slab == slab {
			return old[i].mr, nil
		}
	}
	mr, err := h.pd.RegMR(slab.Mem(), verbs.LocalWrite|verbs.RemoteWrite|verbs.BindMW)
	if err != nil {
		return nil, fmt.Errorf("register a slab of %d bytes on %s: %w", len(slab.Mem()), h.info.Name, err)
	}
	all := append(append(make([]region, 0, len(old)+1), old...), region{slab, mr})
	h.regions.Store(&all)
	return mr, nil
}

// openHCA brings up the HCA under v: it binds a listener and makes what stands on it (spec o2iblnd 7.2).
func (d *connd) openHCA(v *device) (*hcaDev, error) {
	id, err := d.cm.NewID(nil)
	if err != nil {
		return nil, err
	}
	h := &hcaDev{lnd: d.lnd, dev: v, listener: id}
	if err := h.open(netip.AddrPortFrom(v.addr, uint16(v.service))); err != nil {
		return nil, errors.Join(err, h.unopen())
	}
	for i, s := range d.lnd.scheds {
		s.submit(op{kind: opAddCQ, dq: deviceCQ{h, h.cqs[i]}})
	}
	return h, nil
}

func (h *hcaDev) open(at netip.AddrPort) error {
	if err := h.listener.Bind(at, false); err != nil {
		return fmt.Errorf("bind the o2ib listener to %v: %w", at, err)
	}
	h.hca = h.listener.Device()
	if h.hca == nil {
		return fmt.Errorf("bind the o2ib listener to %v: %w", at, verbs.ErrNoDevice)
	}
	h.info = h.hca.Info()
	h.maxSGE = verbs.MaxSGE
	if m := h.info.Caps.MaxSGE; m > 0 {
		h.maxSGE = min(m, verbs.MaxSGE)
	}
	var err error
	if h.pd, err = h.hca.AllocPD(); err != nil {
		return fmt.Errorf("protection domain on %s: %w", h.info.Name, err)
	}
	for _, s := range h.lnd.scheds {
		cq, err := h.hca.CreateCQ(cqEntries(h.info.Caps), s.waiter)
		if err != nil {
			return fmt.Errorf("completion queue on %s: %w", h.info.Name, err)
		}
		h.cqs = append(h.cqs, cq)
		h.cqGone = append(h.cqGone, make(chan struct{}))
	}
	h.listener.SetUser(h)
	if err := h.listener.Listen(0); err != nil {
		return fmt.Errorf("listen for o2ib connections on %v: %w", at, err)
	}
	return nil
}

// unopen gives back what a failed open made.
func (h *hcaDev) unopen() error {
	var errs []error
	for _, cq := range h.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(append(errs, h.close())...)
}

// cqEntries is the capacity of a scheduler's completion queue: a limit, not an allocation, so as much as
// the device has.
func cqEntries(c verbs.Caps) int {
	if c.MaxCQE > 0 {
		return c.MaxCQE
	}
	return 1 << 20
}

// close gives everything back; the completion queues of an opened HCA were closed by their schedulers.
func (h *hcaDev) close() error {
	errs := []error{h.deafen()}
	if p := h.regions.Load(); p != nil {
		for _, r := range *p {
			errs = append(errs, r.mr.Close())
		}
		h.regions.Store(nil)
	}
	if h.pd != nil {
		errs = append(errs, h.pd.Close())
	}
	if h.hca != nil {
		errs = append(errs, h.hca.Close())
	}
	return errors.Join(errs...)
}

// deafen ends the listener: newcomers are refused from here, and its address is free.
func (h *hcaDev) deafen() error {
	if h.listener == nil {
		return nil
	}
	err := h.listener.Close()
	h.listener = nil
	return err
}

// retire takes h off its device. done is called when its last connection is gone and it is closed.
func (d *connd) retire(h *hcaDev, done func(error)) {
	h.dev.hdev.Store(nil)
	err := h.deafen()
	h.retired = func(e error) { done(errors.Join(err, e)) }
	d.dropHCA(h)
}

// dropHCA ends a retired HCA without connections, once every scheduler has let go of its completion queue.
func (d *connd) dropHCA(h *hcaDev) {
	if h.retired == nil || h.conns > 0 {
		return
	}
	for i, s := range d.lnd.scheds {
		s.submit(op{kind: opDropCQ, dq: deviceCQ{h, h.cqs[i]}})
	}
	d.closing = append(d.closing, h)
}

// reapHCAs closes the HCAs that no scheduler polls any more.
func (d *connd) reapHCAs() {
	kept := d.closing[:0]
	for _, h := range d.closing {
		if h.polled() {
			kept = append(kept, h)
			continue
		}
		h.retired(h.close())
	}
	clear(d.closing[len(kept):])
	d.closing = kept
}

// polled says whether a scheduler still polls h.
func (h *hcaDev) polled() bool {
	for _, gone := range h.cqGone {
		select {
		case <-gone:
		default:
			return true
		}
	}
	return false
}
