//go:build !nordma

package rdmacore

// #include "shim.h"
import "C"

import (
	"unsafe"

	"o2ibd/engine/verbs"
)

type layout struct {
	what        string
	here, there uintptr
}

// layouts are the places of what verbs and shim.h must agree on. It is here because tests cannot use cgo.
func layouts() []layout {
	var (
		wc   verbs.WC
		cwc  C.struct_hca_wc
		r    verbs.RecvWR
		cr   C.struct_hca_recv
		s    verbs.SGE
		cs   C.struct_hca_sge
		bind bindPart
		cw   C.struct_hca_send
	)
	return []layout{
		{"WC", unsafe.Sizeof(wc), unsafe.Sizeof(cwc)},
		{"WC.ID", unsafe.Offsetof(wc.ID), unsafe.Offsetof(cwc.id)},
		{"WC.Op", unsafe.Offsetof(wc.Op), unsafe.Offsetof(cwc.op)},
		{"WC.Status", unsafe.Offsetof(wc.Status), unsafe.Offsetof(cwc.status)},
		{"WC.ByteLen", unsafe.Offsetof(wc.ByteLen), unsafe.Offsetof(cwc.byte_len)},
		{"WC.QPNum", unsafe.Offsetof(wc.QPNum), unsafe.Offsetof(cwc.qp_num)},
		{"WC.InvKey", unsafe.Offsetof(wc.InvKey), unsafe.Offsetof(cwc.inv_key)},
		{"RecvWR", unsafe.Sizeof(r), unsafe.Sizeof(cr)},
		{"RecvWR.ID", unsafe.Offsetof(r.ID), unsafe.Offsetof(cr.id)},
		{"RecvWR.NSGE", unsafe.Offsetof(r.NSGE), unsafe.Offsetof(cr.nsge)},
		{"RecvWR.SGE", unsafe.Offsetof(r.SGE), unsafe.Offsetof(cr.sge)},
		{"SGE", unsafe.Sizeof(s), unsafe.Sizeof(cs)},
		{"SGE.Addr", unsafe.Offsetof(s.Addr), unsafe.Offsetof(cs.addr)},
		{"SGE.Length", unsafe.Offsetof(s.Length), unsafe.Offsetof(cs.length)},
		{"SGE.LKey", unsafe.Offsetof(s.LKey), unsafe.Offsetof(cs.lkey)},
		{"bind", unsafe.Sizeof(bind), 40},
		{"union", unsafe.Sizeof(r.SGE), unsafe.Sizeof(cw.anon0)},
	}
}
