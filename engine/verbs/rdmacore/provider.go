//go:build !nordma

package rdmacore

// #cgo LDFLAGS: -lrdmacm -libverbs
// #include "shim.h"
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"o2ibd/engine/verbs"
)

const (
	// workers bounds the slow calls that run at once.
	workers = 4
	// disconnectGrace is how long a peer may take to confirm the end of a connection.
	disconnectGrace = 3 * time.Second
	// lingerFor is how much longer an id lives on after that, for its peer to be told again.
	lingerFor = 20 * time.Second
)

// Options of a provider.
type Options struct {
	// ACKTimeout is the local ACK timeout of queue pairs as the HCA counts it: 4.096 µs * 2^n, 1 to 31. 0
	// leaves it to rdma_cm.
	ACKTimeout uint8
	// LooseWindows offers memory windows even where the device lets a peer reach outside of them, in the
	// region that they are on. The kernel's rxe does.
	LooseWindows bool
}

// provider implements verbs.Provider.
type provider struct {
	opt     Options
	slots   chan struct{} // of the workers
	running sync.WaitGroup

	mu      sync.Mutex
	devices map[deviceKey]*device
}

// New makes a provider. Devices are looked for when they are asked for, so this needs none.
func New(opt Options) (verbs.Provider, error) {
	if opt.ACKTimeout > 31 {
		return nil, fmt.Errorf("an ACK timeout of %d: 0 to 31 are possible", opt.ACKTimeout)
	}
	return &provider{opt: opt, slots: make(chan struct{}, workers), devices: make(map[deviceKey]*device)}, nil
}

func (p *provider) Name() string { return "rdmacore" }

// later runs a slow call on a worker.
func (p *provider) later(f func()) {
	p.after(nil, f)
}

// after waits for something, without a worker, and then runs a slow call on one.
func (p *provider) after(ready *sync.WaitGroup, f func()) {
	p.running.Go(func() {
		if ready != nil {
			ready.Wait()
		}
		p.slots <- struct{}{}
		defer func() { <-p.slots }()
		f()
	})
}

func (p *provider) NewWaiter() (verbs.Waiter, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Close waits for what still runs and lets go of the devices.
func (p *provider) Close() error {
	p.running.Wait()
	p.mu.Lock()
	devices := p.devices
	p.devices = make(map[deviceKey]*device)
	p.mu.Unlock()
	for _, d := range devices {
		d.ctx.leave(d)
	}
	return nil
}

// Devices lists the device under each address of this host's interfaces, and then those that no address
// leads to. It binds an id to each address for that, and closes it.
func (p *provider) Devices() ([]verbs.DeviceInfo, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		errno := errnoOf(err)
		return nil, failed(errno, accessHint(errno, "/dev/infiniband/uverbs*", "ib_uverbs"), "ibv_get_device_list")
	}
	C.ibv_free_device_list(list)
	if n == 0 {
		return nil, nil
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var infos []verbs.DeviceInfo
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		for _, a := range addrs {
			ipn, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if addr, ok := netip.AddrFromSlice(ipn.IP); ok && !addr.IsLinkLocalUnicast() {
				if info, err := p.probe(addr.Unmap()); err == nil {
					info.Interface = i.Name
					infos = append(infos, info)
				}
			}
		}
	}
	return append(infos, unreached(infos)...), nil
}

// probe asks the device under an address for its attributes.
func (p *provider) probe(addr netip.Addr) (verbs.DeviceInfo, error) {
	ch, err := C.rdma_create_event_channel()
	if ch == nil {
		return verbs.DeviceInfo{}, err
	}
	defer C.rdma_destroy_event_channel(ch)
	var handle C.uint64_t
	id, err := C.hca_id_open(ch, &handle)
	if id == nil {
		return verbs.DeviceInfo{}, err
	}
	defer C.rdma_destroy_id(id)
	at := toC(netip.AddrPortFrom(addr, 0))
	if e := C.hca_bind(id, &at, 0); e != 0 || id.verbs == nil {
		return verbs.DeviceInfo{}, verbs.ErrNoDevice
	}
	return p.deviceInfo(id.verbs, int(id.port_num), addr)
}

// unreached lists the devices in /sys that are not in infos.
func unreached(infos []verbs.DeviceInfo) []verbs.DeviceInfo {
	var rest []verbs.DeviceInfo
	ports, _ := filepath.Glob("/sys/class/infiniband/*/ports/*")
	for _, dir := range ports {
		name := filepath.Base(filepath.Dir(filepath.Dir(dir)))
		if slices.ContainsFunc(infos, func(i verbs.DeviceInfo) bool { return i.Name == name && fmt.Sprint(i.Port) == filepath.Base(dir) }) {
			continue
		}
		info := verbs.DeviceInfo{Name: name, LinkLayer: line(dir, "link_layer"), Firmware: line(filepath.Dir(filepath.Dir(dir)), "fw_ver"), State: verbs.PortDown}
		fmt.Sscan(filepath.Base(dir), &info.Port)
		if strings.Contains(line(dir, "state"), "ACTIVE") {
			info.State = verbs.PortActive
		}
		rest = append(rest, info)
	}
	return rest
}

// line is the content of a file of one line, "" where it is not there.
func line(dir, file string) string {
	b, _ := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(b))
}

// Version is that of the libibverbs in use, as its file is named.
func Version() string {
	b, _ := os.ReadFile("/proc/self/maps")
	for l := range strings.Lines(string(b)) {
		if _, v, ok := strings.Cut(strings.TrimSpace(l), "libibverbs.so."); ok {
			return v
		}
	}
	return "linked"
}
