package iwarp

import "net/netip"

// recorded is a Stream whose bytes somebody watches.
type recorded struct {
	Stream
	rec func(from, to netip.AddrPort, b []byte)
}

func (r *recorded) TryWritev(bufs [][]byte) (int, error) {
	n, err := r.Stream.TryWritev(bufs)
	r.tell(r.Local(), r.Remote(), bufs, n)
	return n, err
}

func (r *recorded) Readv(bufs [][]byte) (int, error) {
	n, err := r.Stream.Readv(bufs)
	r.tell(r.Remote(), r.Local(), bufs, n)
	return n, err
}

func (r *recorded) tell(from, to netip.AddrPort, bufs [][]byte, n int) {
	for _, b := range bufs {
		k := min(n, len(b))
		if k > 0 {
			r.rec(from, to, b[:k])
		}
		n -= k
	}
}

// watched is the stream as somebody watches it, if anybody does.
func (p *provider) watched(s Stream) Stream {
	if p.opt.Record == nil {
		return s
	}
	return &recorded{Stream: s, rec: p.opt.Record}
}
