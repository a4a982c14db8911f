//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// pd implements verbs.PD.
type pd struct {
	dev *device
	c   *C.struct_ibv_pd
}

func (p *pd) Close() error {
	p.dev.jobs.Wait()
	if e := C.ibv_dealloc_pd(p.c); e != 0 {
		return failed(unix.Errno(e), "", "ibv_dealloc_pd on %s", p.dev.info.Name)
	}
	return nil
}

// rights translates access; the device wants local write wherever a peer may write.
func rights(a verbs.Access) C.int {
	var c C.int
	for _, r := range []struct {
		a verbs.Access
		c C.int
	}{
		{verbs.LocalWrite, C.IBV_ACCESS_LOCAL_WRITE},
		{verbs.RemoteWrite, C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE},
		{verbs.RemoteRead, C.IBV_ACCESS_REMOTE_READ},
		{verbs.BindMW, C.IBV_ACCESS_MW_BIND},
	} {
		if a&r.a != 0 {
			c |= r.c
		}
	}
	return c
}

// RegMR implements verbs.PD.
func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	caps := &p.dev.info.Caps
	if m := caps.MaxMRSize; m > 0 && uint64(len(mem)) > m {
		return nil, fmt.Errorf("registering %d bytes on %s: one region has at most %d there: %w", len(mem), p.dev.info.Name, m, verbs.ErrUnsupported)
	}
	if !caps.MemoryWindow {
		access &^= verbs.BindMW
	}
	r, err := C.ibv_reg_mr(p.c, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), rights(access))
	if r == nil {
		errno := errnoOf(err)
		hint := ""
		switch errno {
		case unix.ENOMEM, unix.EAGAIN, unix.EPERM:
			hint = memlock(uint64(len(mem)))
		case unix.EFAULT, unix.EINVAL:
			hint = "the memory or its rights are not what the device takes"
		}
		return nil, failed(errno, hint, "ibv_reg_mr of %d bytes on %s", len(mem), p.dev.info.Name)
	}
	return &mr{dev: p.dev, c: r, lkey: uint32(r.lkey), rkey: uint32(r.rkey)}, nil
}

// mr implements verbs.MR.
type mr struct {
	dev        *device
	c          *C.struct_ibv_mr
	lkey, rkey uint32
}

func (r *mr) LKey() uint32 { return r.lkey }
func (r *mr) RKey() uint32 { return r.rkey }

func (r *mr) Close() error {
	e := C.ibv_dereg_mr(r.c)
	if e != 0 {
		// A queue pair that is on its way out may hold a window on it.
		r.dev.jobs.Wait()
		e = C.ibv_dereg_mr(r.c)
	}
	if e != 0 {
		return failed(unix.Errno(e), "a memory window may still be bound to the region", "ibv_dereg_mr on %s", r.dev.info.Name)
	}
	return nil
}

// AllocMW implements verbs.PD.
func (p *pd) AllocMW() (verbs.MW, error) {
	if !p.dev.info.Caps.MemoryWindow {
		return nil, fmt.Errorf("memory windows of type 2 on %s: %w", p.dev.info.Name, verbs.ErrUnsupported)
	}
	w, err := C.ibv_alloc_mw(p.c, C.IBV_MW_TYPE_2)
	if w == nil {
		return nil, failed(errnoOf(err), "", "ibv_alloc_mw on %s", p.dev.info.Name)
	}
	m := &mw{dev: p.dev, c: w}
	m.next.Store(uint32(C.ibv_inc_rkey(w.rkey)))
	return m, nil
}

// mw implements verbs.MW. A window of type 2 gets its key from who binds it: the low byte changes each time.
type mw struct {
	dev  *device
	c    *C.struct_ibv_mw
	next atomic.Uint32
}

func (m *mw) RKey() uint32 { return m.next.Load() }

// bound is called when a bind was posted: the next one names the key of this one.
func (m *mw) bound() {
	m.c.rkey = C.uint32_t(m.next.Load())
	m.next.Store(uint32(C.ibv_inc_rkey(m.c.rkey)))
}

func (m *mw) Close() error {
	e := C.ibv_dealloc_mw(m.c)
	if e != 0 {
		m.dev.jobs.Wait()
		e = C.ibv_dealloc_mw(m.c)
	}
	if e != 0 {
		return failed(unix.Errno(e), "", "ibv_dealloc_mw on %s", m.dev.info.Name)
	}
	return nil
}

// bindPart is the part of hca_send that a bind uses; cgo does not see into its union.
type bindPart struct {
	mw, mr, addr, length uint64
	access               uint32
}

func flatBind(w *verbs.SendWR, o *C.struct_hca_send) {
	m := w.Bind.MW.(*mw)
	o.rkey = C.uint32_t(m.next.Load())
	*(*bindPart)(unsafe.Pointer(&o.anon0)) = bindPart{
		mw: uint64(uintptr(unsafe.Pointer(m.c))), mr: uint64(uintptr(unsafe.Pointer(w.Bind.MR.(*mr).c))),
		addr: w.Bind.Addr, length: w.Bind.Length, access: uint32(rights(w.Bind.Access) &^ C.IBV_ACCESS_LOCAL_WRITE),
	}
}
