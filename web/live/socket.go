package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"o2ibd/engine"
)

// Subprotocol of the live socket.
const Subprotocol = "o2ibd.live.v1"

const (
	readLimit   = 16 << 10              // bytes in one frame of a client
	maxSubs     = 16                    // subscriptions of one socket
	maxMistakes = 10                    // wrong frames until the socket is closed
	writeWithin = 60 * time.Second      // the slowest viewer that is kept
	aliveEvery  = 4 * time.Second       // how often the session is looked at
	slack       = 50 * time.Millisecond // a tick may be that early
	maxRate     = 10                    // frames a second for one subscription
	quiet       = 3 * time.Second       // a subscription is told so often that nothing changed
)

// Source is what a socket shows.
type Source struct {
	// Watch gives a wake-up a tick and the latest snapshot.
	Watch func() (tick <-chan struct{}, latest func() *engine.Snapshot, cancel func())
	// Frames shares what all sockets look at.
	Frames *Frames
	// Events gives the page of events for a query, and a wake-up for new ones.
	Events      func(ctx context.Context, q Query) (Page, error)
	WatchEvents func() (news <-chan struct{}, cancel func())
	// Alive says whether the session may still look.
	Alive func(ctx context.Context) bool
	// Protest records a client that breaks the protocol.
	Protest func(text string)
	// Stop ends the socket when the appliance stops.
	Stop <-chan struct{}
}

// request is a frame of the client.
type request struct {
	Op     string  `json:"op"`
	View   string  `json:"view"`
	ID     string  `json:"id"`
	Filter string  `json:"filter"`
	Sort   string  `json:"sort"`
	Offset int     `json:"offset"`
	Limit  int     `json:"limit"`
	RateHz float64 `json:"rate_hz"`
}

type reply struct {
	Op      string `json:"op"`
	ID      string `json:"id"`
	Message string `json:"message,omitempty"`
}

// subscription is one view of one viewer. It is sent when it is due and something changed, always the
// latest: a slow viewer gets fewer frames, never a longer queue. Where nothing changes it is told that now
// and then, so that a viewer can tell a quiet fabric from a lost appliance.
type subscription struct {
	q     Query
	every time.Duration
	next  time.Time // when it is due
	sent  time.Time
	seq   uint64
	shown Page
}

// Serve runs the protocol on an upgraded request until either side ends it.
func Serve(w http.ResponseWriter, r *http.Request, src Source) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}, CompressionMode: websocket.CompressionNoContextTakeover})
	if err != nil {
		src.Protest("the live socket was not opened: " + err.Error())
		return
	}
	defer c.CloseNow()
	if c.Subprotocol() != Subprotocol {
		src.Protest("the live socket was asked for without the subprotocol " + Subprotocol)
		c.Close(websocket.StatusPolicyViolation, "the subprotocol is "+Subprotocol)
		return
	}
	c.SetReadLimit(readLimit)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	s := &session{c: c, src: src, subs: make(map[string]*subscription), arrived: make(chan error, 1)}
	frames := make(chan []byte)
	ended := make(chan error, 1)
	go func() { ended <- read(ctx, c, frames) }()
	// Cancelling a read would break the connection before the reason is sent: close first.
	if code, why := s.run(ctx, frames, ended); code != 0 {
		c.Close(code, why)
	}
}

// read hands frames over, one at a time.
func read(ctx context.Context, c *websocket.Conn, frames chan<- []byte) error {
	for {
		typ, b, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if typ != websocket.MessageText {
			b = nil
		}
		select {
		case frames <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// session is one viewer; run's goroutine owns it.
type session struct {
	c        *websocket.Conn
	src      Source
	subs     map[string]*subscription
	mistakes int
	news     bool // events came that not every subscription has seen
	buf      []byte

	// What was shown is followed by a ping, and nothing more is until its pong has come: buffers on the
	// way would else fill with frames that are old before they arrive.
	arrived chan error // of a ping
	waiting bool       // for a pong
	due     bool       // a tick passed meanwhile
}

func (s *session) run(ctx context.Context, frames <-chan []byte, ended <-chan error) (websocket.StatusCode, string) {
	tick, latest, cancelTick := s.src.Watch()
	defer cancelTick()
	news, cancelNews := s.src.WatchEvents()
	defer cancelNews()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		var err error
		select {
		case b := <-frames:
			err = s.take(ctx, b, latest)
		case <-tick:
			err = s.show(ctx, latest())
		case <-news:
			s.news = true
			err = s.show(ctx, latest())
		case err = <-s.arrived:
			s.waiting = false
			if err == nil && s.due {
				err = s.show(ctx, latest())
			}
		case <-alive.C:
			if !s.src.Alive(ctx) {
				return websocket.StatusPolicyViolation, "the session has ended"
			}
		case <-s.src.Stop:
			return websocket.StatusGoingAway, "the appliance is stopping"
		case err := <-ended:
			if websocket.CloseStatus(err) == -1 && errors.Is(err, websocket.ErrMessageTooBig) {
				s.src.Protest(fmt.Sprintf("live socket: a frame of more than %d bytes", readLimit))
			}
			return 0, ""
		}
		var tooMany *policyError
		if errors.As(err, &tooMany) {
			s.src.Protest("live socket: " + tooMany.text)
			return websocket.StatusPolicyViolation, tooMany.text
		}
		if err != nil {
			return 0, ""
		}
	}
}

// policyError ends a socket whose client does not keep to the protocol.
type policyError struct{ text string }

func (e *policyError) Error() string { return e.text }

// take acts on a frame of the client.
func (s *session) take(ctx context.Context, b []byte, latest func() *engine.Snapshot) error {
	var r request
	if b == nil || json.Unmarshal(b, &r) != nil {
		return s.mistake(ctx, "", "the frame is not a JSON object as text")
	}
	switch r.Op {
	case "unsubscribe":
		delete(s.subs, r.ID)
		return nil
	case "subscribe":
	default:
		return s.mistake(ctx, r.ID, fmt.Sprintf("unknown op %q; known: subscribe, unsubscribe", r.Op))
	}
	if r.ID == "" || len(r.ID) > 64 {
		return s.mistake(ctx, "", "a subscription needs an id of 1 to 64 bytes")
	}
	if _, ok := s.subs[r.ID]; !ok && len(s.subs) >= maxSubs {
		return s.mistake(ctx, r.ID, fmt.Sprintf("%d subscriptions are the limit", maxSubs))
	}
	rate := r.RateHz
	if rate <= 0 {
		rate = 2
	}
	sub := &subscription{q: Query{View: r.View, Filter: r.Filter, Sort: r.Sort, Offset: r.Offset, Limit: r.Limit},
		every: time.Duration(float64(time.Second) / min(rate, maxRate))}
	page, err := s.page(ctx, sub, latest())
	if err != nil {
		return s.mistake(ctx, r.ID, err.Error())
	}
	s.subs[r.ID] = sub
	now := time.Now()
	sub.shown, sub.seq, sub.next, sub.sent = page, 1, now.Add(sub.every), now
	s.buf = appendFull(s.buf[:0], r.ID, sub.seq, page)
	return s.send(ctx, s.buf)
}

func (s *session) mistake(ctx context.Context, id, text string) error {
	s.mistakes++
	if s.mistakes > maxMistakes {
		return &policyError{fmt.Sprintf("more than %d wrong frames, the last: %s", maxMistakes, text)}
	}
	return s.write(ctx, reply{Op: "error", ID: id, Message: text})
}

func (s *session) page(ctx context.Context, sub *subscription, snap *engine.Snapshot) (Page, error) {
	if sub.q.View == "events" {
		return s.src.Events(ctx, sub.q)
	}
	return s.src.Frames.Of(snap).Select(sub.q)
}

// show sends each subscription that is due what changed in it.
func (s *session) show(ctx context.Context, snap *engine.Snapshot) error {
	if s.due = s.waiting; s.waiting {
		return nil
	}
	now := time.Now().Add(slack)
	newsLeft, sent := false, false
	for id, sub := range s.subs {
		events, silent := sub.q.View == "events", now.Sub(sub.sent) >= quiet
		if now.Before(sub.next) {
			newsLeft = newsLeft || events && s.news
			continue
		}
		page := sub.shown
		if !events || s.news {
			var err error
			if page, err = s.page(ctx, sub, snap); err != nil {
				return s.write(ctx, reply{Op: "error", ID: id, Message: err.Error()})
			}
		}
		var changed bool
		if s.buf, changed = appendPatch(s.buf[:0], id, sub.seq+1, sub.shown, page); !changed && !silent {
			continue
		}
		sub.seq++
		sub.shown, sub.next, sub.sent = page, now.Add(sub.every), now
		if err := s.send(ctx, s.buf); err != nil {
			return err
		}
		sent = true
	}
	s.news = newsLeft
	if sent {
		s.waiting = true
		go func() {
			ctx, cancel := context.WithTimeout(ctx, writeWithin)
			defer cancel()
			s.arrived <- s.c.Ping(ctx)
		}()
	}
	return nil
}

func (s *session) write(ctx context.Context, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.send(ctx, b)
}

func (s *session) send(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	return s.c.Write(ctx, websocket.MessageText, b)
}
