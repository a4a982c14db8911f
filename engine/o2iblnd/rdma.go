package o2iblnd

import (
	"errors"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd/pool"
	"o2ibd/engine/verbs"
	"o2ibd/engine/wire"
)

// piece is a run of segs that is contiguous in memory.
type piece struct {
	addr uint64
	n    int
	slab *arena.Slab
}

// eachPiece calls f for the contiguous runs of the first n bytes of segs, until f says stop.
func eachPiece(segs []arena.Buffer, n int, f func(piece) bool) {
	var p piece
	for _, b := range segs {
		if n == 0 {
			break
		}
		k := min(n, b.Len())
		if k == 0 {
			continue
		}
		n -= k
		if p.n > 0 && p.slab == b.Slab() && p.addr+uint64(p.n) == b.Addr() {
			p.n += k
			continue
		}
		if p.n > 0 && !f(p) {
			return
		}
		p = piece{b.Addr(), k, b.Slab()}
	}
	if p.n > 0 {
		f(p)
	}
}

// describe fills rd with n bytes of segs as an RDMA sink of t: one remote key over at most as many
// fragments as the conn takes. Pieces that do not fit that go through a contiguous stand-in
// (spec o2iblnd 6.3), and so do pieces with gaps between them, which the peer would reach too, unless
// use_fastreg_gaps allows that.
func (s *scheduler) describe(c *conn, t *tx, segs []arena.Buffer, n int, rd *wire.Desc) Errno {
	limit := min(c.maxFrags, wire.MaxFragsOffer)
	regs := c.ni.regs[s.cpt]
	if regs.expose != exposeDevice && !s.lnd.global.Load().UseFastRegGaps {
		limit = 1
	}
	rd.Frags = s.frags[:0]
	var slab *arena.Slab
	fits := true
	eachPiece(segs, n, func(p piece) bool {
		fits = (slab == nil || slab == p.slab) && len(rd.Frags) < limit
		if fits {
			slab = p.slab
			rd.Frags = append(rd.Frags, wire.Frag{Nob: uint32(p.n), Addr: p.addr})
		}
		return fits
	})
	if !fits {
		b, err := s.lnd.payload.Alloc(n)
		if err != nil {
			return eNOMEM
		}
		t.bounce, t.copyOut, slab = b, true, b.Slab()
		rd.Frags = append(s.frags[:0], wire.Frag{Nob: uint32(n), Addr: b.Addr()})
	}
	if rd.Size() != n {
		return eINVAL
	}
	mr, err := c.hdev.region(slab)
	if err != nil {
		s.lnd.fault(c.hdev, "register memory", err)
		return eNOMEM
	}
	rd.Key = mr.RKey()
	if regs.expose == exposeDevice {
		return 0
	}
	sp := hull(slab, rd.Frags)
	if t.reg, err = regs.take(s.now, c.hdev, sp); err != nil {
		switch {
		case errors.Is(err, errOtherHCA):
			s.otherHCA(c)
			return eNETDOWN
		case !errors.Is(err, pool.ErrRetry): // which was said when growing failed
			s.lnd.fault(c.hdev, "register memory", err)
		}
		return eNOMEM
	}
	t.rkey = t.reg.key()
	rd.Key = t.rkey
	if t.reg.win != nil {
		bind := verbs.SendWR{ID: t.wrID(wrBind), Op: verbs.OpBindMW}
		bind.Bind = verbs.BindMWAttr{MW: t.reg.win, MR: mr, Addr: sp.addr, Length: uint64(sp.n), Access: verbs.RemoteWrite}
		t.wrs = append(t.wrs[:0], bind)
	}
	return 0
}

// hull is the least piece of memory that covers the fragments.
func hull(slab *arena.Slab, frags []wire.Frag) span {
	lo, hi := frags[0].Addr, frags[0].Addr
	for _, f := range frags {
		lo, hi = min(lo, f.Addr), max(hi, f.Addr+uint64(f.Nob))
	}
	return span{slab, lo, int(hi - lo)}
}

// write builds t's RDMA writes: n bytes of segs into the peer's fragments, several local pieces in one
// write where they end up in one fragment (spec o2iblnd 4.6). On an error there are none.
func (s *scheduler) write(c *conn, t *tx, segs []arena.Buffer, n int, remote *wire.Desc) Errno {
	t.wrs = t.wrs[:0]
	if n > remote.Size() {
		return ePROTO
	}
	maxSGE := min(s.lnd.global.Load().WRQSGE, c.hdev.maxSGE)
	frag, used := 0, 0 // where we are in the remote fragments
	left := n
	var status Errno
	open := false // the last write has room and its fragment goes on
	eachPiece(segs, n, func(p piece) bool {
		mr, err := c.hdev.region(p.slab)
		if err != nil {
			s.lnd.fault(c.hdev, "register memory", err)
			status = eNOMEM
			return false
		}
		for p.n > 0 {
			f := remote.Frags[frag]
			if used == int(f.Nob) {
				frag, used, open = frag+1, 0, false
				continue
			}
			k := min(p.n, int(f.Nob)-used)
			if open {
				w := &t.wrs[len(t.wrs)-1]
				w.SGE[w.NSGE] = verbs.SGE{Addr: p.addr, Length: uint32(k), LKey: mr.LKey()}
				w.NSGE++
				open = int(w.NSGE) < maxSGE
			} else {
				if len(t.wrs) >= c.maxFrags {
					status = eMSGSIZE
					return false
				}
				w := verbs.SendWR{ID: t.wrID(wrRDMA), Op: verbs.OpWrite, NSGE: 1, RemoteAddr: f.Addr + uint64(used), RKey: remote.Key}
				w.SGE[0] = verbs.SGE{Addr: p.addr, Length: uint32(k), LKey: mr.LKey()}
				t.wrs = append(t.wrs, w)
				open = maxSGE > 1
			}
			p.addr += uint64(k)
			p.n -= k
			used += k
			left -= k
		}
		return true
	})
	if status == 0 && left != 0 {
		status = ePROTO // the source is shorter than what it announced
	}
	if status == eMSGSIZE && t.bounce.Slab() == nil {
		// Our own side is too crumbled: make it one piece, and try once more.
		if b, err := s.lnd.payload.Alloc(n); err == nil {
			gather(b.Bytes(), segs, n)
			t.bounce = b
			s.one[0] = b
			return s.write(c, t, s.one[:], n, remote)
		}
	}
	if status != 0 {
		t.wrs = t.wrs[:0]
	}
	return status
}
