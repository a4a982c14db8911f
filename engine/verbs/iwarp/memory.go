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

// remote resolves what a peer asks for on q; what it may not have is a Terminate.
func (q *qp) remote(key uint32, addr uint64, n int, need verbs.Access) ([]byte, *terminate) {
	mem, err := q.pd.dev.prov.keys.Remote(q.pd, q, key, addr, n, need)
	switch {
	case err == nil:
		return mem, nil
	case errors.Is(err, soft.ErrAccess):
		return nil, protection(2, "%v", err)
	case errors.Is(err, soft.ErrBounds):
		return nil, taggedError(1, "%v", err)
	case errors.Is(err, soft.ErrOwner):
		return nil, taggedError(2, "%v", err)
	}
	return nil, taggedError(0, "%v", err)
}
