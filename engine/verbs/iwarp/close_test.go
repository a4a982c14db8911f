package iwarp_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// TestRegionClosedInMidSegment closes a region, or takes a window away, while the peer is in the middle of a
// segment that goes there: the connection ends with that, and what else the peer sends goes nowhere.
func TestRegionClosedInMidSegment(t *testing.T) {
	const at, size, half = 1 << 16, 4000, 1500
	for _, row := range []struct {
		name string
		open func(n *node) (key uint32, close func())
		text string
	}{
		{"region", func(n *node) (uint32, func()) {
			mr, err := n.pd.RegMR(n.mem[at:at+size], verbs.LocalWrite|verbs.RemoteWrite)
			n.must(err)
			return mr.RKey(), func() { n.must(mr.Close()) }
		}, "region was closed"},
		{"window", func(n *node) (uint32, func()) {
			mw, err := n.pd.AllocMW()
			n.must(err)
			mr, err := n.pd.RegMR(n.mem[at:at+size], verbs.LocalWrite|verbs.RemoteWrite|verbs.BindMW)
			n.must(err)
			key := mw.RKey()
			n.post(verbs.SendWR{ID: 1, Op: verbs.OpBindMW, Signaled: true,
				Bind: verbs.BindMWAttr{MW: mw, MR: mr, Addr: n.addr(at), Length: size, Access: verbs.RemoteWrite}})
			n.completions(1)
			return key, func() {
				n.post(verbs.SendWR{ID: 2, Op: verbs.OpLocalInv, Signaled: true, RKey: key})
				if wc := n.completions(1)[0]; wc.Status != verbs.WCBindError {
					t.Errorf("the window went away under the peer's write: %+v", wc)
				}
			}
		}, "still writes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t, iwarp.Options{})
			c := serve(t, n, 0, 1)
			key, shut := row.open(n)
			frame := fpdu(tagged(0xc1, 0, key, n.addr(at), bytes.Repeat([]byte{'x'}, size)), false)
			send(t, c, frame[:half])
			for late := time.Now().Add(10 * time.Second); n.mem[at] != 'x'; runtime.Gosched() {
				if time.Now().After(late) {
					t.Fatal("the first part of the segment is not placed")
				}
			}
			shut()
			n.completions(1) // the receive: from here on nothing is placed
			clear(n.mem[at : at+size])
			send(t, c, frame[half:])
			if ev := n.event(verbs.EventDisconnected); ev.Err == nil || !bytes.Contains([]byte(ev.Err.Error()), []byte(row.text)) {
				t.Errorf("the connection ended with: %v", ev.Err)
			}
			if i := bytes.IndexByte(n.mem[at:at+size], 'x'); i >= 0 {
				t.Errorf("byte %d was written afterwards", i)
			}
			c.Close()
		})
	}
}
