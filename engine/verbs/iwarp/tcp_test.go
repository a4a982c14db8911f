package iwarp_test

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"o2ibd/engine/verbs/iwarp"
)

// TestWriteBesideWaiter: a connection whose peer reads nothing can still be ended by others while its
// writer waits for room.
func TestWriteBesideWaiter(t *testing.T) {
	l, err := iwarp.TCP{}.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := iwarp.TCP{}.Bind(netip.MustParseAddrPort("127.0.0.1:0"), false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Dial(t.Context(), l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()

	chunk := make([]byte, 1<<20)
	fill := func() error {
		for {
			if _, err := s.TryWritev([][]byte{chunk}); err != nil {
				return err
			}
		}
	}
	if err := fill(); !errors.Is(err, iwarp.ErrWouldBlock) {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		var err error
		for err == nil { // as long as the kernel finds a little room after all
			err = s.WaitWritable()
		}
		waited <- err
	}()
	tried := make(chan error, 1)
	go func() {
		for range 1000 { // the waiter comes in between
			if err := fill(); !errors.Is(err, iwarp.ErrWouldBlock) {
				tried <- err
				return
			}
			runtime.Gosched()
		}
		tried <- nil
	}()
	select {
	case err := <-tried:
		if err != nil {
			t.Error(err)
		}
		s.Close()
	case <-time.After(20 * time.Second):
		t.Error("TryWritev waits for the one in WaitWritable")
		s.Close()
		<-tried
	}
	if err := <-waited; err == nil {
		t.Error("closing the stream did not end the wait")
	}
}
