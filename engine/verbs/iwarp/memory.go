package iwarp

import (
	"errors"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/soft"
)

// pd implements verbs.PD.
type pd struct{ dev *device }

func (p *pd) Close() error { return nil }

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	return p.dev.prov.keys.Register(p, mem, access)
}

func (p *pd) AllocMW() (verbs.MW, error) { return p.dev.prov.keys.Window(p), nil }

// remote resolves what a segment of the peer asks for on q, for its reader, until placer.Done; what it may
// not have is a Terminate. Placing is
// a matter of DDP (RFC 5041 section 7), rights and the source of a read are one of RDMAP (RFC 5040 section 7).
func (q *qp) remote(key uint32, addr uint64, n int, need verbs.Access) ([]byte, *terminate) {
	mem, err := q.pd.dev.prov.keys.Remote(q.placer, q.pd, q, key, addr, n, need)
	placing, source := uint8(0), uint8(0)
	switch {
	case err == nil:
		return mem, nil
	case errors.Is(err, soft.ErrAccess):
		return nil, protection(2, "%v", err)
	case errors.Is(err, soft.ErrBounds) && addr+uint64(n) < addr:
		placing, source = 3, 4
	case errors.Is(err, soft.ErrBounds):
		placing, source = 1, 1
	case errors.Is(err, soft.ErrOwner):
		placing, source = 2, 3
	}
	if need == verbs.RemoteRead {
		return nil, protection(source, "%v", err)
	}
	return nil, taggedError(placing, "%v", err)
}
