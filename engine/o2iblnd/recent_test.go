package o2iblnd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"o2ibd/engine/wire"
)

// recent asks a node for the messages with the other, told in short, and the connections that they were on.
func (w *twins) recent(i int) (told [][]string, conns []ConnHeads) {
	w.t.Helper()
	x := w.nodes[i]
	w.call(func(ctx context.Context) (err error) {
		conns, err = x.lnd.Recent(ctx, x.nid, w.nodes[1-i].nid)
		return err
	})
	for _, c := range conns {
		if c.NI != x.nid || c.NID != w.nodes[1-i].nid {
			w.t.Fatalf("asked for %v and got %v with %v", w.nodes[1-i].nid, c.NI, c.NID)
		}
		var list []string
		for _, h := range c.Messages {
			if now := w.now.UnixMilli(); h.At > now || h.At < now-time.Hour.Milliseconds() {
				w.t.Fatalf("%+v is not of this hour", h)
			}
			way := "<"
			if h.Sent {
				way = ">"
			}
			list = append(list, fmt.Sprintf("%s%v %d %d", way, h.Type, h.Length, h.Bytes))
		}
		told = append(told, list)
	}
	return told, conns
}

// TestRecentMessages: both ends tell the same story of a connection, while it lives and after.
func TestRecentMessages(t *testing.T) {
	w := newTwins(t, map[string]string{"keepalive": "0"})
	w.ended(w.put(10), 0)
	w.ended(w.put(100_000), 0)
	w.settle()
	want := []string{">IMMEDIATE 10 0", ">PUT_REQ 100000 0", "<PUT_ACK 0 100000", ">PUT_DONE 0 0"}
	told, conns := w.recent(0)
	if len(told) != 1 || !slices.Equal(told[0], want) || !conns[0].Ended.IsZero() {
		t.Fatalf("the sender tells %q", told)
	}
	req, ack, done := conns[0].Messages[1], conns[0].Messages[2], conns[0].Messages[3]
	if req.Cookie == 0 || req.LNet != wire.LNetPUT || ack.Cookie != req.Cookie || ack.DstCookie != done.Cookie || done.Status != 100_000 || ack.Frags != 1 {
		t.Fatalf("%+v, %+v, %+v do not belong together", req, ack, done)
	}
	if req.Nob != 128 || ack.Credits != 1 {
		t.Fatalf("%+v and %+v: lengths and credits are those of the wire", req, ack)
	}
	other, _ := w.recent(1)
	if len(other) != 1 || !slices.Equal(other[0], []string{"<IMMEDIATE 10 0", "<PUT_REQ 100000 0", ">PUT_ACK 0 100000", "<PUT_DONE 0 0"}) {
		t.Fatalf("the receiver tells %q", other)
	}

	for range 2 * keepHeads {
		w.ended(w.put(10), 0)
	}
	if told, _ := w.recent(0); len(told) != 1 || len(told[0]) != keepHeads {
		t.Fatalf("%d messages are remembered of one connection", len(told[0]))
	}

	w.call(func(ctx context.Context) error {
		_, err := w.nodes[0].lnd.CloseConns(ctx, 0, w.nodes[1].nid)
		return err
	})
	w.until("the end of the connection", func() bool { return len(w.nodes[0].conns()) == 0 })
	w.settle()
	w.ended(w.put(7), 0)
	told, conns = w.recent(0)
	if len(told) != 2 || len(told[0]) != keepHeads || !slices.Equal(told[1], []string{">IMMEDIATE 7 0"}) {
		t.Fatalf("told %q", told)
	}
	if conns[0].Ended.IsZero() || conns[0].Why != "an operator closed the connection" || conns[0].Conn >= conns[1].Conn {
		t.Fatalf("the first: %+v", conns[0])
	}

	for range keepEnded + 5 {
		w.call(func(ctx context.Context) error {
			_, err := w.nodes[0].lnd.CloseConns(ctx, 0, w.nodes[1].nid)
			return err
		})
		w.until("the end of the connection", func() bool { return len(w.nodes[0].conns()) == 0 })
		w.ended(w.put(7), 0)
	}
	if _, conns := w.recent(0); len(conns) != keepEnded+1 {
		t.Fatalf("%d connections are remembered", len(conns))
	}
}

// TestRecentOfWhom: nothing of others, an error for an NI that is not ours, and no waiting without end.
func TestRecentOfWhom(t *testing.T) {
	w := newTwins(t, nil)
	a := w.nodes[0]
	w.ended(w.put(10), 0)
	w.call(func(ctx context.Context) error {
		if list, err := a.lnd.Recent(ctx, a.nid, a.nid); err != nil || len(list) != 0 {
			return fmt.Errorf("of a stranger: %v, %v", list, err)
		}
		if _, err := a.lnd.Recent(ctx, w.nodes[1].nid, a.nid); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("of an NI that is not ours: %v", err)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := a.lnd.Recent(ctx, a.nid, w.nodes[1].nid); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("nobody runs, and Recent says %v", err)
	}
}
