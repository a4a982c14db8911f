package demo_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/app/demo"
	"o2ibd/engine/wire"
)

// fakeNode answers after a while, or not at all for the peers that are down.
type fakeNode struct {
	mu       sync.Mutex
	took     time.Duration
	down     map[wire.NID]bool
	calls    map[wire.NID]int
	kinds    map[string]int
	bytes    int
	largest  int
	inFlight int
	most     int
}

func (n *fakeNode) NID() wire.NID { return 1 }
func (n *fakeNode) Ping(ctx context.Context, to wire.NID) error {
	return n.call(ctx, "ping", to, 0)
}
func (n *fakeNode) Put(ctx context.Context, to wire.NID, size int) error {
	return n.call(ctx, "put", to, size)
}
func (n *fakeNode) Send(ctx context.Context, to wire.NID, size int) error {
	return n.call(ctx, "send", to, size)
}
func (n *fakeNode) Get(ctx context.Context, to wire.NID, size int) error {
	return n.call(ctx, "get", to, size)
}

func (n *fakeNode) call(ctx context.Context, kind string, to wire.NID, size int) error {
	n.mu.Lock()
	n.calls[to]++
	n.kinds[kind]++
	n.bytes += size
	n.largest = max(n.largest, size)
	n.inFlight++
	n.most = max(n.most, n.inFlight)
	down := n.down[to]
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.inFlight--
		n.mu.Unlock()
	}()
	if down {
		return errors.New("no answer")
	}
	select {
	case <-time.After(n.took):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func run(t *testing.T, n *fakeNode, peers []wire.NID, load demo.Load, d time.Duration) {
	t.Helper()
	n.calls, n.kinds = map[wire.NID]int{}, map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		demo.Run(ctx, n, peers, load)
		if n.inFlight != 0 {
			t.Errorf("%d operations still wait after the end", n.inFlight)
		}
	})
}

func TestLoadIsMixedAndBounded(t *testing.T) {
	n := &fakeNode{took: time.Millisecond}
	run(t, n, []wire.NID{2, 3, 4, 5}, demo.DefaultLoad, 10*time.Minute)
	total := n.kinds["ping"] + n.kinds["put"] + n.kinds["get"] + n.kinds["send"]
	if perSecond := float64(total) / 600; perSecond < 8 || perSecond > 16 {
		t.Errorf("%.1f operations a second from one node", perSecond)
	}
	if rate := n.bytes / 600; rate < 200<<10 || rate > 2<<20 {
		t.Errorf("%d bytes a second from one node", rate)
	}
	for _, kind := range []string{"ping", "put", "get", "send"} {
		if n.kinds[kind] < total/50 {
			t.Errorf("%d of %d operations are %ss", n.kinds[kind], total, kind)
		}
	}
	if n.largest > wire.MaxPayload || n.largest < wire.MaxPayload/2 {
		t.Errorf("largest payload is %d", n.largest)
	}
	for _, nid := range []wire.NID{2, 3, 4, 5} {
		if n.calls[nid] < total/8 {
			t.Errorf("peer %d got %d of %d operations", nid, n.calls[nid], total)
		}
	}
	if n.most < demo.DefaultLoad.Burst {
		t.Errorf("at most %d operations waited at once: no burst", n.most)
	}
}

func TestLoadStopsAtItsSlots(t *testing.T) {
	n := &fakeNode{took: time.Hour}
	run(t, n, []wire.NID{2}, demo.DefaultLoad, time.Minute)
	if n.most != demo.DefaultLoad.InFlight {
		t.Errorf("%d operations waited at once, want %d", n.most, demo.DefaultLoad.InFlight)
	}
}

func TestLoadLeavesADeadPeerAlone(t *testing.T) {
	n := &fakeNode{took: time.Millisecond, down: map[wire.NID]bool{3: true}}
	run(t, n, []wire.NID{2, 3}, demo.DefaultLoad, 10*time.Minute)
	// One try every 15 s at most, and a burst that was under way.
	if most := 5 + (1+demo.DefaultLoad.Burst)*600/15; n.calls[3] > most || n.calls[3] < 20 {
		t.Errorf("the dead peer was tried %d times, want 20 to %d", n.calls[3], most)
	}
	if n.calls[2] < 10*n.calls[3]/4 {
		t.Errorf("the live peer got %d operations, the dead one %d", n.calls[2], n.calls[3])
	}
}

func TestLoadWithoutPeersReturns(t *testing.T) {
	demo.Run(t.Context(), &fakeNode{}, nil, demo.DefaultLoad)
}
