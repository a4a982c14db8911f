//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// contexts are the device contexts of librdmacm, of which there is one for each device in a process.
var contexts = struct {
	sync.Mutex
	all map[*C.struct_ibv_context]*hcaContext
}{all: make(map[*C.struct_ibv_context]*hcaContext)}

// hcaContext is a device context with the goroutine that takes its asynchronous events, for all devices on
// it. An id of its own keeps librdmacm from closing the context while a device uses it.
type hcaContext struct {
	c      *C.struct_ibv_context
	keeper *C.struct_rdma_cm_id
	events *os.File // a duplicate of its event descriptor
	done   chan struct{}

	mu      sync.Mutex
	devices map[*device]struct{}
	qps     map[uint32]*qp
}

// join finds or makes the context of a device.
func join(d *device) (*hcaContext, error) {
	contexts.Lock()
	defer contexts.Unlock()
	x := contexts.all[d.verbs]
	if x == nil {
		x = &hcaContext{c: d.verbs, done: make(chan struct{}), devices: make(map[*device]struct{}), qps: make(map[uint32]*qp)}
		if err := x.start(d.info.Addr); err != nil {
			return nil, err
		}
		contexts.all[d.verbs] = x
	}
	x.mu.Lock()
	x.devices[d] = struct{}{}
	x.mu.Unlock()
	return x, nil
}

func (x *hcaContext) start(addr netip.Addr) error {
	if r, err := C.rdma_create_id(nil, &x.keeper, nil, C.RDMA_PS_TCP); r != 0 {
		return failed(errnoOf(err), "", "rdma_create_id")
	}
	at := toC(netip.AddrPortFrom(addr, 0))
	if e := C.hca_bind(x.keeper, &at, 0); e != 0 {
		C.rdma_destroy_id(x.keeper)
		return failed(unix.Errno(e), bindHint(unix.Errno(e), 0), "rdma_bind_addr to %v", addr)
	}
	f, err := pollable(int(x.c.async_fd), "async events")
	if err != nil {
		C.rdma_destroy_id(x.keeper)
		return err
	}
	x.events = f
	go func() {
		defer close(x.done)
		readable(f, x.take)
	}()
	return nil
}

// leave takes a device off its context, and ends the context with the last.
func (x *hcaContext) leave(d *device) {
	contexts.Lock()
	defer contexts.Unlock()
	x.mu.Lock()
	delete(x.devices, d)
	last := len(x.devices) == 0
	x.mu.Unlock()
	if last && contexts.all[x.c] == x {
		delete(contexts.all, x.c)
		x.events.Close()
		<-x.done
		C.rdma_destroy_id(x.keeper)
	}
}

// pollable makes a file of a duplicate of fd that the runtime polls.
func pollable(fd int, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(own, true)
	}
	if err != nil {
		return nil, failed(errnoOf(err), accessHint(errnoOf(err), "", ""), "duplicating the descriptor of %s", name)
	}
	return os.NewFile(uintptr(own), name), nil
}

// readable calls take whenever there is something to take, until the file is closed.
func readable(f *os.File, take func()) {
	c, err := f.SyscallConn()
	if err != nil {
		return
	}
	// The function never says that it is done: only closing the file ends this.
	_ = c.Read(func(uintptr) bool { take(); return false })
}

// take takes the asynchronous events that are there.
func (x *hcaContext) take() {
	for {
		var ev C.struct_hca_async
		if C.hca_async_next(x.c, &ev) != 0 {
			return
		}
		out := verbs.AsyncEvent{Port: int(ev.port), QP: uint32(ev.qp)}
		switch ev._type {
		case C.IBV_EVENT_COMM_EST:
			if q := x.qp(out.QP); q != nil {
				q.id.established()
			}
			continue
		case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR, C.IBV_EVENT_PATH_MIG_ERR:
			out.Type = verbs.AsyncQPError
			if q := x.qp(out.QP); q != nil {
				q.fail(fmt.Errorf("the device reports an error of queue pair %d: %s", out.QP, C.GoString(C.ibv_event_type_str(uint32(ev._type)))))
			}
		case C.IBV_EVENT_CQ_ERR:
			out.Type = verbs.AsyncCQError
		case C.IBV_EVENT_DEVICE_FATAL:
			out.Type = verbs.AsyncDeviceFatal
		case C.IBV_EVENT_PORT_ACTIVE:
			out.Type = verbs.AsyncPortActive
		case C.IBV_EVENT_PORT_ERR:
			out.Type = verbs.AsyncPortError
		case C.IBV_EVENT_GID_CHANGE:
			out.Type = verbs.AsyncGIDChange
		case C.IBV_EVENT_LID_CHANGE:
			out.Type = verbs.AsyncLIDChange
		default:
			continue
		}
		x.mu.Lock()
		for d := range x.devices {
			d.async(out)
		}
		x.mu.Unlock()
	}
}

func (x *hcaContext) qp(num uint32) *qp {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.qps[num]
}

// deviceKey tells devices of a provider apart: one for each address of ours.
type deviceKey struct {
	verbs *C.struct_ibv_context
	addr  netip.Addr
}

// device implements verbs.Device.
type device struct {
	prov  *provider
	verbs *C.struct_ibv_context
	ctx   *hcaContext
	jobs  sync.WaitGroup // slow calls that free what stands on the device

	crossings atomic.Uint64 // into C for work

	mu     sync.Mutex
	info   verbs.DeviceInfo
	events []verbs.AsyncEvent
}

// maxAsync bounds the asynchronous events that nobody takes; the oldest go first.
const maxAsync = 256

// device finds or makes the device of an id that is bound.
func (p *provider) device(c *C.struct_rdma_cm_id, local netip.Addr) (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := deviceKey{c.verbs, local}
	if d := p.devices[key]; d != nil {
		return d, nil
	}
	info, err := p.deviceInfo(c.verbs, int(c.port_num), local)
	if err != nil {
		return nil, err
	}
	info.Interface = interfaceOf(local)
	info.Bonded = verbs.IsBond(info.Interface)
	d := &device{prov: p, verbs: c.verbs, info: info}
	if d.ctx, err = join(d); err != nil {
		return nil, err
	}
	p.devices[key] = d
	return d, nil
}

func interfaceOf(addr netip.Addr) string {
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if b, ok := netip.AddrFromSlice(n.IP); ok && b.Unmap() == addr.WithZone("") {
					return i.Name
				}
			}
		}
	}
	return ""
}

func (p *provider) deviceInfo(ctx *C.struct_ibv_context, port int, addr netip.Addr) (verbs.DeviceInfo, error) {
	var a C.struct_hca_device
	if e := C.hca_device_info(ctx, C.int(port), &a); e != 0 {
		return verbs.DeviceInfo{}, failed(unix.Errno(e), "", "querying %s, port %d", C.GoString(C.ibv_get_device_name(ctx.device)), port)
	}
	d := verbs.DeviceInfo{
		Name: C.GoString(&a.name[0]), LinkLayer: "InfiniBand", Addr: addr, Port: port, State: verbs.PortDown, MTU: int(a.mtu), Firmware: C.GoString(&a.firmware[0]),
		Caps: verbs.Caps{
			MaxQPWR: int(a.max_qp_wr), MaxSGE: min(int(a.max_sge), verbs.MaxSGE), MaxCQE: int(a.max_cqe), MaxMRSize: uint64(a.max_mr),
			MemoryWindow: a.windows != 0, SendInv: a.invalidates != 0, Read: a.reads != 0, RNRRetry: a.iwarp == 0, RemoteAck: a.iwarp == 0,
		},
	}
	if a.loose != 0 && !p.opt.LooseWindows {
		d.Caps.MemoryWindow, d.Caps.SendInv = false, false
	}
	switch {
	case a.iwarp != 0:
		d.LinkLayer, d.MTU = "iWARP", 0
	case a.ethernet != 0:
		d.LinkLayer = "Ethernet"
	}
	if a.active != 0 {
		d.State = verbs.PortActive
	}
	if d.Caps.MaxMRSize == ^uint64(0) {
		d.Caps.MaxMRSize = 0
	}
	return d, nil
}

// Info gives the device as it was opened, with its port's state of now.
func (d *device) Info() verbs.DeviceInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// iwarp says whether connections are TCP's and not those of an InfiniBand connection manager.
func (d *device) iwarp() bool { return !d.info.Caps.RemoteAck }

// async enters an asynchronous event of the context. Those of another port are not for this device.
func (d *device) async(ev verbs.AsyncEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ev.Port != 0 && ev.Port != d.info.Port {
		return
	}
	switch ev.Type {
	case verbs.AsyncPortActive:
		d.info.State = verbs.PortActive
	case verbs.AsyncPortError, verbs.AsyncDeviceFatal:
		d.info.State = verbs.PortDown
	}
	if len(d.events) == maxAsync {
		d.events = append(d.events[:0], d.events[1:]...)
	}
	d.events = append(d.events, ev)
}

// PollAsync implements verbs.Device.
func (d *device) PollAsync(evs []verbs.AsyncEvent) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := copy(evs, d.events)
	d.events = append(d.events[:0], d.events[n:]...)
	return n, nil
}

// AllocPD implements verbs.Device.
func (d *device) AllocPD() (verbs.PD, error) {
	p, err := C.ibv_alloc_pd(d.verbs)
	if p == nil {
		errno := errnoOf(err)
		return nil, failed(errno, accessHint(errno, "/dev/infiniband/uverbs*", "ib_uverbs"), "ibv_alloc_pd on %s", d.info.Name)
	}
	return &pd{dev: d, c: p}, nil
}

// Close implements verbs.Device. The provider keeps the device for the next id that is bound to it.
func (d *device) Close() error {
	d.jobs.Wait()
	return nil
}

// Crossings counts the calls into C for work on the devices of p, a provider of this package: posts, polls
// and arms.
func Crossings(p verbs.Provider) uint64 {
	own := p.(*provider)
	own.mu.Lock()
	defer own.mu.Unlock()
	var n uint64
	for _, d := range own.devices {
		n += d.crossings.Load()
	}
	return n
}

// scratch is where a batch is laid out for C.
type scratch struct {
	shares []C.struct_hca_share
	recvs  []C.struct_hca_recv
	sends  []C.struct_hca_send
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Post implements verbs.Device: one crossing for the batch.
func (d *device) Post(batch []verbs.Posting) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.shares, s.recvs, s.sends = s.shares[:0], s.recvs[:0], s.sends[:0]
	for i := range batch {
		b := &batch[i]
		q := b.QP.(*qp)
		b.NRecvs, b.NSends, b.Err = 0, 0, nil
		share := C.struct_hca_share{qp: q.c}
		if q.closed.Load() {
			b.Err = fmt.Errorf("posting to queue pair %d: %w", q.num, verbs.ErrClosed)
		} else {
			share.nrecv, share.nsend = C.uint32_t(len(b.Recvs)), C.uint32_t(len(b.Sends))
			s.recvs = append(s.recvs, unsafe.Slice((*C.struct_hca_recv)(unsafe.Pointer(unsafe.SliceData(b.Recvs))), len(b.Recvs))...)
			for k := range b.Sends {
				s.sends = append(s.sends, flat(&b.Sends[k]))
			}
		}
		s.shares = append(s.shares, share)
	}
	if len(s.shares) == 0 {
		return
	}
	d.crossings.Add(1)
	C.hca_post(unsafe.SliceData(s.shares), C.int(len(s.shares)), unsafe.SliceData(s.recvs), unsafe.SliceData(s.sends))
	for i := range batch {
		b, share := &batch[i], &s.shares[i]
		q := b.QP.(*qp)
		if b.Err != nil {
			continue
		}
		b.NRecvs, b.NSends = int(share.recvs), int(share.sends)
		b.Err = postError(int(share.err), share.in_send != 0, d.info.Name)
		for k := range b.Sends[:b.NSends] {
			if b.Sends[k].Op == verbs.OpBindMW {
				b.Sends[k].Bind.MW.(*mw).bound()
			}
		}
		if share.wake != 0 {
			q.cq.waiter.Wake()
		}
	}
}

// flat lays a send out for C.
func flat(w *verbs.SendWR) C.struct_hca_send {
	o := C.struct_hca_send{id: C.uint64_t(w.ID), remote_addr: C.uint64_t(w.RemoteAddr), rkey: C.uint32_t(w.RKey), op: C.uint8_t(w.Op)}
	if w.Signaled {
		o.signaled = 1
	}
	if w.Fence {
		o.fence = 1
	}
	if w.Op == verbs.OpBindMW {
		flatBind(w, &o)
		return o
	}
	o.nsge = C.uint8_t(w.NSGE)
	*(*[verbs.MaxSGE]verbs.SGE)(unsafe.Pointer(&o.anon0)) = w.SGE
	return o
}
