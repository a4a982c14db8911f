package tunables

import (
	"fmt"
	"slices"
	"strconv"
)

// Params2016 are the values from which a module of 2016 sets up an NI, and after Setup2016 what it would
// use. Zero means not set wherever that module takes it so.
type Params2016 struct {
	IBMTU           int
	Credits         int // module parameter
	PeerCredits     int
	PeerCreditsHiw  int
	MapOnDemand     int // 0 off, else the fragments from which on memory is mapped
	ConcurrentSends int
	NTX             int
	FMRPoolSize     int
}

// Setup2016 is what a module of 2016 makes of p (spec o2iblnd 9.3), for comparison with old nodes and for
// translating their configuration: our own rules are Derive's. It fails where such an NI would not start.
func Setup2016(p Params2016) (Params2016, error) {
	mtu, _ := Lookup("ib_mtu")
	if !slices.Contains(mtu.Allowed, strconv.Itoa(p.IBMTU)) {
		return p, fmt.Errorf("ib_mtu %d: a 2016 module does not start; allowed: %s", p.IBMTU, mtu.Range())
	}
	p.PeerCredits = min(max(p.PeerCredits, CreditsDefault), CreditsMax, p.Credits)
	p.PeerCreditsHiw = min(max(p.PeerCreditsHiw, p.PeerCredits/2), p.PeerCredits-1)
	switch {
	case p.MapOnDemand < 0 || p.MapOnDemand > MaxRDMAFrags:
		p.MapOnDemand = 0
	case p.MapOnDemand == 1:
		p.MapOnDemand = 2 // one fragment cannot describe a page that is not aligned
	}
	if p.ConcurrentSends == 0 {
		p.ConcurrentSends = p.PeerCredits
		if p.MapOnDemand > 0 && p.MapOnDemand <= MaxRDMAFrags/8 {
			p.ConcurrentSends = 2 * p.PeerCredits
		}
	}
	p.ConcurrentSends = min(max(p.ConcurrentSends, p.PeerCredits/2), 2*p.PeerCredits)
	if p.MapOnDemand != 0 && p.FMRPoolSize < p.NTX/4 {
		return p, fmt.Errorf("fmr_pool_size %d with ntx %d: a 2016 module does not start; allowed: at least %d", p.FMRPoolSize, p.NTX, p.NTX/4)
	}
	return p, nil
}
