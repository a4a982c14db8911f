package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/app/demo"
	"o2ibd/engine"
	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/wire"
)

// The demo's portal, which no Lustre service has, and the match bits of its two MEs. What PUTs write and
// what GETs read is not the same memory: a frame that changes under way would have a wrong checksum.
const (
	demoPortal  = 61
	demoPutBits = 0x6f32696264_01
	demoGetBits = 0x6f32696264_02
)

// demoNode is an engine as the demo's load sees it.
type demoNode struct {
	e   *engine.Engine
	nid wire.NID
}

var _ demo.Node = (*demoNode)(nil)

// newDemoNode posts the memory that other nodes' load goes to and comes from. It goes with the engine.
func newDemoNode(e *engine.Engine, nid wire.NID) (*demoNode, error) {
	n := &demoNode{e: e, nid: nid}
	for _, me := range []struct {
		bits    uint64
		options lnet.Options
	}{
		{demoPutBits, lnet.OptPut | lnet.OptManageRemote | lnet.OptTruncate},
		{demoGetBits, lnet.OptGet | lnet.OptManageRemote | lnet.OptTruncate},
	} {
		buf, err := e.Alloc(wire.MaxPayload)
		if err != nil {
			return nil, fmt.Errorf("memory for the demo's load: %w", err)
		}
		if _, err := e.LNet().Attach(
			lnet.ME{Portal: demoPortal, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: me.bits},
			lnet.MD{Segs: []arena.Buffer{buf}, Threshold: lnet.Unlimited, Options: me.options, Retain: true},
		); err != nil {
			return nil, fmt.Errorf("memory for the demo's load: %w", err)
		}
	}
	return n, nil
}

func (n *demoNode) NID() wire.NID { return n.nid }

func (n *demoNode) Ping(ctx context.Context, to wire.NID) error {
	timeout := time.Duration(0)
	if end, ok := ctx.Deadline(); ok {
		timeout = time.Until(end)
	}
	_, err := n.e.LNet().Ping(ctx, to, timeout)
	return err
}

func (n *demoNode) Put(ctx context.Context, to wire.NID, size int) error {
	return n.operate(ctx, size, lnet.EventAck, func(h lnet.Handle) error {
		return n.e.LNet().Put(h, operation(to, demoPutBits), true)
	})
}

func (n *demoNode) Send(ctx context.Context, to wire.NID, size int) error {
	return n.operate(ctx, size, lnet.EventSend, func(h lnet.Handle) error {
		return n.e.LNet().Put(h, operation(to, demoPutBits), false)
	})
}

func (n *demoNode) Get(ctx context.Context, to wire.NID, size int) error {
	return n.operate(ctx, size, lnet.EventReply, func(h lnet.Handle) error {
		return n.e.LNet().Get(h, operation(to, demoGetBits))
	})
}

func operation(to wire.NID, bits uint64) lnet.Operation {
	return lnet.Operation{Target: lnet.ProcessID{NID: to, PID: wire.LustrePID}, Portal: demoPortal, MatchBits: bits}
}

// operate runs one PUT or GET with memory of its own and waits for the event that says that it is
// through. The memory goes back when LNet lets go of it, which may be later than ctx's end.
func (n *demoNode) operate(ctx context.Context, size int, through lnet.EventType, start func(lnet.Handle) error) error {
	buf, err := n.e.Alloc(size)
	if err != nil {
		return err
	}
	events := 2 // SEND, and ACK or REPLY
	if through == lnet.EventSend {
		events = 1
	}
	done := make(chan error, 1)
	result := errors.New("ended without an answer")
	h, err := n.e.LNet().Bind(lnet.MD{
		Segs: []arena.Buffer{buf}, Threshold: events,
		Handler: func(ev lnet.Event) {
			switch {
			case ev.Status != 0:
				result = unix.Errno(-ev.Status)
			case ev.Type == through:
				result = nil
			}
			switch {
			case ev.Unlinked:
				n.e.Free(buf)
				done <- result
			case ev.Status != 0:
				// No answer will come, and the MD would wait for it.
				_ = n.e.LNet().Unlink(ev.MD) // stale: it has gone by itself
			}
		},
	})
	if err != nil {
		n.e.Free(buf)
		return err
	}
	if err := start(h); err != nil {
		// Nothing is under way: the MD is idle and goes at once.
		return errors.Join(err, n.e.LNet().Unlink(h))
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		// It may have ended in between: then there is nothing left to unlink.
		if err := n.e.LNet().Unlink(h); err != nil && !errors.Is(err, lnet.ErrStaleHandle) {
			return err
		}
		return ctx.Err()
	}
}
