package o2iblnd

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"o2ibd/engine/arena"
	"o2ibd/engine/verbs"
)

// device is the HCA under one of our addresses: the listener, the protection domain, the regions over our
// slabs and one completion queue for each scheduler. It belongs to connd; region may be called by every
// scheduler.
type device struct {
	lnd      *LND
	info     verbs.DeviceInfo
	hca      verbs.Device
	listener verbs.ID
	pd       verbs.PD
	cqs      []verbs.CQ // by scheduler
	cqGone   []chan struct{}
	maxSGE   int
	nets     int
	service  int

	mu      sync.Mutex // regions are added under it
	regions atomic.Pointer[[]region]
}

// region is a slab as the device knows it.
type region struct {
	slab *arena.Slab
	mr   verbs.MR
}

// region gives the device's region over slab, and makes it at the first use.
func (d *device) region(slab *arena.Slab) (verbs.MR, error) {
	if p := d.regions.Load(); p != nil {
		for i := range *p {
			if (*p)[i].slab == slab {
				return (*p)[i].mr, nil
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var old []region
	if p := d.regions.Load(); p != nil {
		old = *p
	}
	for i := range old {
		if old[i].slab == slab {
			return old[i].mr, nil
		}
	}
	mr, err := d.pd.RegMR(slab.Mem(), verbs.LocalWrite|verbs.RemoteWrite|verbs.BindMW)
	if err != nil {
		return nil, fmt.Errorf("register a slab of %d bytes on %s: %w", len(slab.Mem()), d.info.Name, err)
	}
	all := append(append(make([]region, 0, len(old)+1), old...), region{slab, mr})
	d.regions.Store(&all)
	return mr, nil
}

// openDevice binds a listener to addr and brings up what stands on the device there
// (spec o2iblnd 7.2).
func (d *connd) openDevice(addr netip.Addr, service int) (*device, error) {
	id, err := d.cm.NewID(nil)
	if err != nil {
		return nil, err
	}
	dev := &device{lnd: d.lnd, listener: id, service: service}
	if err := dev.open(netip.AddrPortFrom(addr, uint16(service))); err != nil {
		dev.close()
		return nil, err
	}
	return dev, nil
}

func (d *device) open(at netip.AddrPort) error {
	if err := d.listener.Bind(at, false); err != nil {
		return fmt.Errorf("bind the o2ib listener to %v: %w", at, err)
	}
	d.hca = d.listener.Device()
	if d.hca == nil {
		return fmt.Errorf("bind the o2ib listener to %v: %w", at, verbs.ErrNoDevice)
	}
	d.info = d.hca.Info()
	d.maxSGE = verbs.MaxSGE
	if m := d.info.Caps.MaxSGE; m > 0 {
		d.maxSGE = min(m, verbs.MaxSGE)
	}
	var err error
	if d.pd, err = d.hca.AllocPD(); err != nil {
		return fmt.Errorf("protection domain on %s: %w", d.info.Name, err)
	}
	for _, s := range d.lnd.scheds {
		cq, err := d.hca.CreateCQ(cqEntries(d.info.Caps), s.waiter)
		if err != nil {
			return fmt.Errorf("completion queue on %s: %w", d.info.Name, err)
		}
		d.cqs = append(d.cqs, cq)
		d.cqGone = append(d.cqGone, make(chan struct{}))
	}
	d.listener.SetUser(d)
	if err := d.listener.Listen(0); err != nil {
		return fmt.Errorf("listen for o2ib connections on %v: %w", at, err)
	}
	for i, s := range d.lnd.scheds {
		s.submit(op{kind: opAddCQ, dq: deviceCQ{d, d.cqs[i]}})
	}
	return nil
}

// cqEntries is the capacity of a scheduler's completion queue: a limit, not an allocation, so as much as
// the device has.
func cqEntries(c verbs.Caps) int {
	if c.MaxCQE > 0 {
		return c.MaxCQE
	}
	return 1 << 20
}

// close gives everything back; the completion queues of an opened device were closed by their schedulers.
func (d *device) close() error {
	var errs []error
	if d.listener != nil {
		errs = append(errs, d.listener.Close())
		d.listener = nil
	}
	if p := d.regions.Load(); p != nil {
		for _, r := range *p {
			errs = append(errs, r.mr.Close())
		}
		d.regions.Store(nil)
	}
	if d.pd != nil {
		errs = append(errs, d.pd.Close())
	}
	if d.hca != nil {
		errs = append(errs, d.hca.Close())
	}
	return errors.Join(errs...)
}
