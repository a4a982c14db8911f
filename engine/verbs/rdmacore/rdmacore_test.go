//go:build !nordma

package rdmacore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// TestLayout compares the structs that cross the border without translation.
func TestLayout(t *testing.T) {
	for _, l := range layouts() {
		if l.here != l.there {
			t.Errorf("%s: %d in Go, %d in C", l.what, l.here, l.there)
		}
	}
}

func TestWaiter(t *testing.T) {
	w, err := newWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// A wake before the wait is remembered, and counts once.
	w.Wake()
	w.Wake()
	start := time.Now()
	w.Wait(start.Add(time.Hour))
	w.Wait(time.Now().Add(time.Millisecond))
	w.Wait(time.Now().Add(-time.Hour))
	if time.Since(start) > time.Minute {
		t.Fatal("a wake was forgotten")
	}
	// The descriptor is written only while somebody sleeps.
	var b [8]byte
	if _, err := unix.Read(w.event, b[:]); err != unix.EAGAIN {
		t.Fatalf("reading the eventfd gives %v", err)
	}
	// Wakes from elsewhere end every wait.
	const n = 1000
	round := make(chan struct{})
	go func() {
		for range n {
			<-round
			w.Wake()
		}
	}()
	for range n {
		round <- struct{}{}
		w.Wait(time.Time{})
	}
}

func TestErrors(t *testing.T) {
	e := failed(unix.EACCES, bindHint(unix.EACCES, 987), "rdma_bind_addr to %s", "10.0.0.1:987")
	if !errors.Is(e, unix.EACCES) || errors.Is(e, verbs.ErrNoDevice) || !strings.Contains(e.Error(), "CAP_NET_BIND_SERVICE") {
		t.Fatal(e)
	}
	e = failed(unix.ENODEV, "", "rdma_bind_addr")
	e.also = noDevice(unix.ENODEV)
	if !errors.Is(e, verbs.ErrNoDevice) || !errors.Is(e, unix.ENODEV) {
		t.Fatal(e)
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		t.Fatal(err)
	}
	if s := memlock(4096); lim.Cur != unix.RLIM_INFINITY && !strings.Contains(s, "at least") {
		t.Fatalf("memlock of %d: %q", lim.Cur, s)
	}
	for code, want := range map[int]error{resultFull: verbs.ErrQueueFull, resultState: verbs.ErrState, int(unix.ENOMEM): verbs.ErrQueueFull, int(unix.EINVAL): unix.EINVAL} {
		if err := postError(code, true, "rxe0"); !errors.Is(err, want) {
			t.Errorf("code %d gives %v, want %v", code, err, want)
		}
	}
	if err := postError(0, true, "rxe0"); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	if _, err := New(Options{ACKTimeout: 32}); err == nil {
		t.Fatal("an ACK timeout of 32 is taken")
	}
}
