package mem

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// node implements verbs.Provider; fabric.mu guards it.
type node struct {
	f        *Fabric
	keys     *soft.Table
	placer   *soft.Placer // for all of its queue pairs: fabric.mu lets one in at a time
	devices  []*device
	vanished bool
	failIn   [calls]atomic.Int32 // 0: never; n: the n-th call from now
}

// errInjected is what a call gives that FailNth chose.
var errInjected = errors.New("failed as the test asked")

// fails says whether this call is the one to fail.
func (n *node) fails(c Call) error {
	if left := &n.failIn[c]; left.Load() > 0 && left.Add(-1) == 0 {
		return errInjected
	}
	return nil
}

func (n *node) Name() string { return "mem" }

func (n *node) Devices() ([]verbs.DeviceInfo, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	var list []verbs.DeviceInfo
	for _, d := range n.devices {
		if !d.lost {
			list = append(list, d.info)
		}
	}
	return list, nil
}

func (n *node) NewWaiter() (verbs.Waiter, error) { return verbs.NewChanWaiter(), nil }

func (n *node) OpenCM(w verbs.Waiter) (verbs.CM, error) { return &cm{n: n, w: w}, nil }

func (n *node) Close() error { return nil }

// device implements verbs.Device; fabric.mu guards it.
type device struct {
	n     *node
	index int
	info  verbs.DeviceInfo
	lost  bool // for good: what comes back is another device
	async []verbs.AsyncEvent
}

func newDevice(n *node, index int, a netip.Addr) *device {
	name := fmt.Sprintf("mem%d", index)
	windows := !n.f.opt.NoWindows
	return &device{n: n, index: index, info: verbs.DeviceInfo{
		Name: name, Interface: name, LinkLayer: "memory", Addr: a, Port: 1, State: verbs.PortActive, MTU: 4096,
		Bonded: n.f.opt.Bonded, Caps: verbs.Caps{MaxSGE: verbs.MaxSGE, MemoryWindow: windows, SendInv: windows, Read: true, RNRRetry: true, RemoteAck: true},
	}}
}

// dark says that nothing passes this device.
func (d *device) dark() bool { return d.n.vanished || d.lost || d.info.State != verbs.PortActive }

func (d *device) report(types ...verbs.AsyncType) {
	for _, t := range types {
		d.async = append(d.async, verbs.AsyncEvent{Type: t, Port: d.info.Port})
	}
}

// usable is asked by what makes an object on d; fabric.mu is held.
func (d *device) usable(c Call) error {
	if d.lost {
		return fmt.Errorf("device %s at %v is lost: %w", d.info.Name, d.info.Addr, verbs.ErrNoDevice)
	}
	return d.n.fails(c)
}

func (d *device) Info() verbs.DeviceInfo {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	return d.info
}

func (d *device) AllocPD() (verbs.PD, error) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	if err := d.usable(CallAllocPD); err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	return &pd{d}, nil
}

func (d *device) CreateCQ(_ int, w verbs.Waiter) (verbs.CQ, error) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	if err := d.usable(CallCreateCQ); err != nil {
		return nil, fmt.Errorf("completion queue: %w", err)
	}
	return &cq{CQ: soft.NewCQ(w), d: d}, nil
}

// Post implements verbs.Device.
func (d *device) Post(batch []verbs.Posting) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	for i := range batch {
		b := &batch[i]
		b.NRecvs, b.NSends, b.Err = 0, 0, d.n.fails(CallPost)
		q := b.QP.(*qp)
		if b.Err == nil {
			b.NRecvs, b.Err = q.postRecvs(b.Recvs)
		}
		if b.Err == nil {
			b.NSends, b.Err = q.postSends(b.Sends)
		}
	}
}

func (d *device) PollAsync(evs []verbs.AsyncEvent) (int, error) {
	d.n.f.mu.Lock()
	defer d.n.f.mu.Unlock()
	k := copy(evs, d.async)
	d.async = d.async[k:]
	return k, nil
}

func (d *device) Close() error { return nil }

// cq implements verbs.CQ.
type cq struct {
	*soft.CQ
	d *device
}

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if err := c.d.n.fails(CallPoll); err != nil {
		return 0, fmt.Errorf("poll: %w", err)
	}
	return c.CQ.Poll(wcs)
}

// pd implements verbs.PD.
type pd struct{ d *device }

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	p.d.n.f.mu.Lock()
	err := p.d.usable(CallRegister)
	p.d.n.f.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(mem), err)
	}
	return p.d.n.keys.Register(p, mem, access)
}

func (p *pd) AllocMW() (verbs.MW, error) {
	p.d.n.f.mu.Lock()
	err := p.d.usable(CallAllocMW)
	p.d.n.f.mu.Unlock()
	if err == nil && !p.d.info.Caps.MemoryWindow {
		err = verbs.ErrUnsupported
	}
	if err != nil {
		return nil, fmt.Errorf("memory window: %w", err)
	}
	return p.d.n.keys.Window(p), nil
}

func (p *pd) Close() error { return nil }
