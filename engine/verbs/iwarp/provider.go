// Package iwarp is a userspace iWARP RNIC over TCP: MPA (RFC 5044, and the enhanced set-up of RFC 6581),
// DDP (RFC 5041) and RDMAP (RFC 5040). It is a verbs.Provider for hosts without an HCA and speaks with
// the kernel's siw.
//
// A connection has two goroutines: the reader places what the peer sends in registered memory and posted
// receives, and answers reads; the writer writes what a poster could not hand to the socket at
// once. Posts never block: they write as much as the stream takes, one vectored write for many FPDUs,
// without a copy of the payload, or leave it to whoever is writing. A send completes when its bytes are
// with the stream (Caps.RemoteAck is false), but not before a read that was posted earlier.
//
// Set-up and end are bounded in time, and so is what strangers can hold: see Options.
//
// Memory: a reader stops touching memory before its receives complete as flushed, and QP.Close waits for
// that. Without CRC payload goes straight from the stream to its place. With CRC, the default, it is laid
// aside until its CRC is known to be right: the memory may be written by others at the same time.
//
// Where no receive is posted for a send the reader waits, and TCP pushes back, for a time that follows
// from the RNR retry count; then it ends the connection with a Terminate.
package iwarp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// Interface is one address that the provider serves: a device of its own.
type Interface struct {
	Name string // of the network interface, "lo"
	Addr netip.Addr
	MTU  int
}

// Options of a provider.
type Options struct {
	Interfaces []Interface
	Transport  Transport // nil: TCP
	NoCRC      bool      // do not ask for CRC where we connect; a peer that asks for it gets it
	Revision   uint8     // of MPA, where we connect: 2 (and 0) asks for the enhanced set-up and falls back to 1
	Log        *slog.Logger

	// Timeouts; 0 means the value behind it.
	ConnectTimeout time.Duration // for a stream to the peer, and then for its answer: 30 s
	StartTimeout   time.Duration // for the request of an accepted stream: 10 s
	CloseTimeout   time.Duration // from Disconnect to the end of the connection: 10 s

	// OnProtocolError hears of peers that do not speak MPA or break a rule before there is a connection.
	OnProtocolError func(local, remote netip.AddrPort, err error)
	// Record sees all bytes of every connection as they are read and written, for captures in tests. It is
	// called by the connection's goroutines.
	Record func(from, to netip.AddrPort, b []byte)
}

// Bounds of set-up and end of connections.
const (
	maxHalfOpen = 256             // accepted streams of a listener that have not asked for a connection yet
	lingerFor   = 2 * time.Second // for the peer's end of a stream that we have ended
)

type provider struct {
	opt     Options
	keys    *soft.Table
	devices []*device
	running sync.WaitGroup // goroutines of all ids
	lastQP  atomic.Uint32  // number of the queue pair made last; peers do not see it
}

// New makes a provider.
func New(opt Options) verbs.Provider {
	if opt.Transport == nil {
		opt.Transport = TCP{}
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.OnProtocolError == nil {
		opt.OnProtocolError = func(_, _ netip.AddrPort, _ error) {}
	}
	if opt.Revision == 0 {
		opt.Revision = 2
	}
	for _, t := range []struct {
		set *time.Duration
		to  time.Duration
	}{{&opt.ConnectTimeout, 30 * time.Second}, {&opt.StartTimeout, 10 * time.Second}, {&opt.CloseTimeout, 10 * time.Second}} {
		if *t.set == 0 {
			*t.set = t.to
		}
	}
	p := &provider{opt: opt, keys: soft.NewTable(nil)}
	for i, f := range opt.Interfaces {
		d := &device{prov: p, link: link{name: f.Name, state: verbs.PortActive}, info: verbs.DeviceInfo{
			Name: fmt.Sprintf("iwarp%d", i), Interface: f.Name, LinkLayer: "iWARP", Addr: f.Addr, Port: 1, State: verbs.PortActive, MTU: f.MTU,
			Caps: verbs.Caps{MaxSGE: verbs.MaxSGE, MemoryWindow: true, SendInv: true, Read: true, RNRRetry: true},
		}}
		if _, tcp := opt.Transport.(TCP); tcp && f.Name != "" {
			d.link.up, d.info.Bonded = interfaceUp, verbs.IsBond(f.Name)
		}
		p.devices = append(p.devices, d)
	}
	return p
}

func (p *provider) Name() string { return "iwarp" }

func (p *provider) Devices() ([]verbs.DeviceInfo, error) {
	var infos []verbs.DeviceInfo
	for _, d := range p.devices {
		infos = append(infos, d.Info())
	}
	return infos, nil
}

func (p *provider) NewWaiter() (verbs.Waiter, error) { return verbs.NewChanWaiter(), nil }

// Close waits until the goroutines of closed ids have ended: a connection lingers for its peer's last word.
func (p *provider) Close() error {
	p.running.Wait()
	return nil
}

// device finds the one with this address.
func (p *provider) device(a netip.Addr) (*device, error) {
	for _, d := range p.devices {
		if d.info.Addr == a.Unmap() {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%v: %w", a, verbs.ErrNoDevice)
}

// device implements verbs.Device.
type device struct {
	prov *provider
	info verbs.DeviceInfo
	link link
}

func (d *device) Info() verbs.DeviceInfo {
	info := d.info
	info.State = d.link.look(time.Now())
	return info
}

func (d *device) AllocPD() (verbs.PD, error) { return &pd{d}, nil }

func (d *device) CreateCQ(_ int, w verbs.Waiter) (verbs.CQ, error) { return soft.NewCQ(w), nil }

// Post implements verbs.Device.
func (d *device) Post(batch []verbs.Posting) {
	for i := range batch {
		b := &batch[i]
		q := b.QP.(*qp)
		b.NRecvs, b.NSends, b.Err = 0, 0, nil
		if len(b.Recvs) > 0 {
			b.NRecvs, b.Err = q.postRecvs(b.Recvs)
		}
		if b.Err == nil {
			b.NSends, b.Err = q.postSends(b.Sends)
		}
	}
}

func (d *device) PollAsync(evs []verbs.AsyncEvent) (int, error) { return d.link.take(evs), nil }

func (d *device) Close() error { return nil }
