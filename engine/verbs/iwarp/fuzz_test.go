package iwarp_test

import (
	"testing"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

// FuzzStream writes arbitrary bytes to a live connection. It ends, whatever they are.
func FuzzStream(f *testing.F) {
	f.Add(fpdu(untagged(0x41, 3, 0, 1, 0, []byte("hello")), false))
	f.Add(append(fpdu(untagged(0x01, 3, 0, 1, 0, []byte("hel")), false), fpdu(untagged(0x41, 3, 0, 1, 3, []byte("lo")), false)...))
	f.Add(fpdu(untagged(0x41, 4, 0, 1, 0, []byte("hello")), false))
	f.Add(fpdu(tagged(0xc1, 0, 1, 2, []byte("x")), false))
	f.Add(fpdu(tagged(0xc1, 2, 1, 2, []byte("x")), false))
	f.Add(stream(f, "active")[80:])
	f.Add(stream(f, "passive")[80:])
	f.Add(fpdu(untagged(0x41, 7, 2, 1, 0, []byte{0x12, 2, 0, 0}), false))
	f.Add(fpdu(untagged(0x41, 1, 1, 1, 0, make([]byte, 28)), false))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		inBubble(t, iwarp.Options{}, func(t *testing.T, n *node, w *bubble) {
			s := w.dial(n, request(0x10, 2, make([]byte, 4)))
			n.accept(n.event(verbs.EventConnectRequest), 4, nil)
			n.event(verbs.EventEstablished)
			if _, err := s.TryWritev([][]byte{b}); err == nil {
				s.CloseWrite()
			}
			n.event(verbs.EventDisconnected)
			n.completions(4)
		})
	})
}

// FuzzStart writes arbitrary bytes to the listener: they are a request that can be answered, or a reason to
// complain.
func FuzzStart(f *testing.F) {
	f.Add(request(0x10, 2, make([]byte, 60)))
	f.Add(request(0x10, 2, []byte{0x80, 0, 0x80, 0}))
	f.Add(request(0x80, 1, nil))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add(stream(f, "active")[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 1<<16 {
			return
		}
		inBubble(t, iwarp.Options{}, func(t *testing.T, n *node, w *bubble) {
			s := w.dial(n, b)
			s.CloseWrite()
			n.w.Wait(time.Time{}) // for a request or a complaint
			var evs [1]verbs.Event
			k, err := n.cm.Poll(evs[:])
			n.must(err)
			if k == 0 {
				n.protocolError()
				return
			}
			n.must(evs[0].ID.Reject([]byte("because")))
			n.must(evs[0].ID.Close())
			buf := make([]byte, 100)
			if k, err := s.Readv([][]byte{buf}); err != nil || string(buf[:16]) != replyKey || buf[16]&0x20 == 0 {
				t.Errorf("the reject is %x, %v", buf[:k], err)
			}
		})
	})
}
