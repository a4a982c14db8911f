package o2iblnd

import (
	"errors"
	"sync/atomic"

	"o2ibd/engine/wire"
)

// rejectCounts counts rejects by reason, as rejects travel (spec o2iblnd 1.5).
type rejectCounts [wire.RejectEarly + 1]atomic.Uint64

func (r *rejectCounts) count(why wire.RejectReason) {
	if int(why) < len(r) {
		r[why].Add(1)
	}
}

// read gives those that occurred, by name. EARLY is no refusal of what was asked for, but of when: it is not
// in the sum.
func (r *rejectCounts) read() (by map[string]uint64, sum uint64) {
	by = make(map[string]uint64)
	for why := range r {
		n := r[why].Load()
		if n == 0 {
			continue
		}
		by[wire.RejectReason(why).String()] = n
		if wire.RejectReason(why) != wire.RejectEarly {
			sum += n
		}
	}
	return by, sum
}

// unpackCauses are the reasons why a message is not understood, with the names that they have in counters.
var unpackCauses = [...]struct {
	err  error
	name string
}{
	{wire.ErrShort, "too short"}, {wire.ErrMagic, "magic"}, {wire.ErrVersion, "version"}, {wire.ErrNob, "length"}, {wire.ErrSrcNID, "source NID"},
	{wire.ErrType, "type"}, {wire.ErrSize, "size for type"}, {wire.ErrFrags, "fragment count"}, {wire.ErrDesc, "descriptor"},
}

// unpackCounts counts messages that were not understood, by cause; those of no cause that is known come last.
type unpackCounts [len(unpackCauses) + 1]atomic.Uint64

func (u *unpackCounts) count(err error) {
	for i, c := range unpackCauses {
		if errors.Is(err, c.err) {
			u[i].Add(1)
			return
		}
	}
	u[len(u)-1].Add(1)
}

func (u *unpackCounts) read() (by map[string]uint64, sum uint64) {
	by = make(map[string]uint64)
	for i := range u {
		n := u[i].Load()
		if n == 0 {
			continue
		}
		name := "other"
		if i < len(unpackCauses) {
			name = unpackCauses[i].name
		}
		by[name] = n
		sum += n
	}
	return by, sum
}
