package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/verbs/rdmacore"
	"o2ibd/engine/wire"
)

// providers are the HCA providers built into this binary, by name.
var providers = map[string]func(EngineConfig) (verbs.Provider, error){"iwarp": openIWARP}

// RDMACore is the version of the libibverbs in use, "" where it is left out of this binary.
func RDMACore() string { return rdmacore.Version() }

// openIWARP makes each interface that an NI is on a device of its own.
func openIWARP(c EngineConfig) (verbs.Provider, error) {
	o := iwarp.Options{Log: c.Log, OnProtocolError: func(local, remote netip.AddrPort, err error) {
		c.Protest("o2ib", remote.String(), fmt.Sprintf("connection to %v closed: %v", local, err))
	}}
	for _, ni := range c.NIs {
		i, err := net.InterfaceByName(ni.Interface)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", ni.Interface, err)
		}
		o.Interfaces = append(o.Interfaces, iwarp.Interface{Name: ni.Interface, Addr: ni.Addr, MTU: i.MTU})
	}
	return iwarp.New(o), nil
}

// live is the real engine.
type live struct {
	*engine.Engine
	nids []wire.NID // of the NIs, the primary one first
}

var _ Engine = live{}

func newEngine(c EngineConfig) (Engine, error) {
	open := providers[c.Provider]
	if open == nil {
		return nil, fmt.Errorf("provider %s is not built into this binary; built in: %v", c.Provider, Providers())
	}
	cfg := engine.Config{Tunables: c.Tunables, CPTs: c.CPTs, OnEvent: c.OnEvent, Log: c.Log}
	var nids []wire.NID
	for _, ni := range c.NIs {
		n, err := wire.ParseNet(ni.Net)
		if err != nil {
			return nil, err
		}
		spec := engine.NISpec{Net: n, Addr: ni.Addr}
		cfg.NIs, nids = append(cfg.NIs, spec), append(nids, spec.NID())
	}
	var err error
	if cfg.Provider, err = open(c); err != nil {
		return nil, fmt.Errorf("provider %s: %w", c.Provider, err)
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, errors.Join(err, cfg.Provider.Close())
	}
	return live{e, nids}, nil
}

// DemoNode posts the memory for the demo's load.
func (l live) DemoNode() (demo.Node, error) { return newDemoNode(l.Engine, l.nids[0]) }

// Ping asks nid.
func (l live) Ping(ctx context.Context, nid wire.NID, timeout time.Duration) (PingResult, error) {
	info, err := l.LNet().Ping(ctx, nid, timeout)
	if err != nil {
		return PingResult{}, err
	}
	r := PingResult{NID: nid, PID: info.PID, Features: uint32(info.Features), FeatureNames: []string{}, RTT: info.RTT, NIDs: []PingNI{}}
	if info.Features != 0 {
		r.FeatureNames = strings.Split(info.Features.String(), ",")
	}
	for _, own := range l.nids {
		if own.Net() == nid.Net() {
			r.From = own
			break
		}
	}
	for _, ni := range info.NIs {
		r.NIDs = append(r.NIDs, PingNI{NID: ni.NID.String(), Status: ni.Status.String()})
	}
	return r, nil
}
