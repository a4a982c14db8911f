package web

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"o2ibd/app"
	"o2ibd/web/live"
)

// socket opens the live socket as a role, with more headers.
func (s *site) socket(c *http.Cookie, headers ...string) *websocket.Conn {
	s.t.Helper()
	h := http.Header{"Cookie": {c.String()}}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	ws, _, err := websocket.Dial(s.t.Context(), strings.Replace(s.srv.URL, "http", "ws", 1)+"/api/v1/live", &websocket.DialOptions{
		Subprotocols: []string{live.Subprotocol}, HTTPHeader: h,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ws.CloseNow() })
	return ws
}

type frameOf struct {
	Op, ID, Message string
	Seq             uint64
	Total           int
	Rows, Upsert    []map[string]any
}

func receive(t *testing.T, ws *websocket.Conn) (frameOf, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, b, err := ws.Read(ctx)
	var f frameOf
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	return f, err
}

func say(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func TestLiveSocket(t *testing.T) {
	s := newSite(t)
	c := s.cookie(app.RoleViewer)
	ws := s.socket(c)
	say(t, ws, `{"op":"subscribe","view":"peers","id":"p","filter":"state=connected","rate_hz":10}`)
	f, err := receive(t, ws)
	if err != nil || f.Op != "full" || f.ID != "p" || f.Seq != 1 || f.Total != 1 || len(f.Rows) != 1 || f.Rows[0]["nid"] != "10.0.0.2@o2ib" {
		t.Fatalf("%+v %v", f, err)
	}
	sent := f.Rows[0]["send_count"].(float64)
	f, err = receive(t, ws)
	if err != nil || f.Op != "patch" || f.Seq != 2 || len(f.Upsert) != 1 || f.Upsert[0]["key"] != "a" || f.Upsert[0]["send_count"].(float64) <= sent || f.Upsert[0]["nid"] != nil {
		t.Fatalf("%+v %v", f, err)
	}
	say(t, ws, `{"op":"unsubscribe","id":"p"}`)
	for _, bad := range []string{`{"op":"subscribe","view":"nonsense","id":"x"}`, `{"op":"subscribe","view":"peers","id":"x","filter":"nonsense=1"}`, `{"op":"fly","id":"x"}`, `garbage`, `{"op":"subscribe","view":"peers","id":""}`} {
		say(t, ws, bad)
		for {
			f, err = receive(t, ws)
			if err != nil || f.Op != "patch" {
				break
			}
		}
		if err != nil || f.Op != "error" || f.Message == "" {
			t.Fatalf("after %s: %+v %v", bad, f, err)
		}
	}
	for range 20 {
		if ws.Write(t.Context(), websocket.MessageText, []byte("garbage")) != nil {
			break
		}
	}
	for err == nil {
		f, err = receive(t, ws)
	}
	if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Fatalf("too much garbage ends with %v", err)
	}
	// The session ends: so does its socket, and not that of a token which came with the same cookie.
	key, _, err := s.app.NewToken(t.Context(), app.Actor{Name: "test", Role: app.RoleAdmin, How: app.HowSystem}, "the-viewer", "test", 0)
	if err != nil {
		t.Fatal(err)
	}
	program := s.socket(c, "Authorization", "Bearer "+key)
	ws = s.socket(c)
	say(t, ws, `{"op":"subscribe","view":"overview","id":"o"}`)
	if err := s.app.EndSession(t.Context(), c.Value); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for err = nil; err == nil; {
		_, err = receive(t, ws)
	}
	if websocket.CloseStatus(err) != websocket.StatusPolicyViolation || time.Since(start) > 5*time.Second {
		t.Fatalf("after the session's end: %v within %v", err, time.Since(start))
	}
	say(t, program, `{"op":"subscribe","view":"nets","id":"n"}`)
	if f, err := receive(t, program); err != nil || f.Op != "full" {
		t.Errorf("the token's socket after the session's end: %+v %v", f, err)
	}
	waitEvent(t, s, "live socket")
}

func waitEvent(t *testing.T, s *site, text string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		list, err := s.app.Events(t.Context(), app.EventFilter{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no event says %q", text)
		}
		news, cancel := s.app.WatchEvents()
		select {
		case <-news:
		case <-time.After(100 * time.Millisecond):
		}
		cancel()
	}
}

func TestLiveSocketRefusals(t *testing.T) {
	s := newSite(t)
	u := strings.Replace(s.srv.URL, "http", "ws", 1) + "/api/v1/live"
	if _, res, err := websocket.Dial(t.Context(), u, nil); err == nil || res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %v", err)
	}
	c := s.cookie(app.RoleViewer)
	if _, res, err := websocket.Dial(t.Context(), u, &websocket.DialOptions{Subprotocols: []string{live.Subprotocol}, HTTPHeader: http.Header{"Cookie": {c.String()}, "Origin": {"https://evil.example"}}}); err == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("from another origin: %v", err)
	}
	ws, _, err := websocket.Dial(t.Context(), u, &websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {c.String()}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("without the subprotocol: %v", err)
	}
	ws = s.socket(c)
	// The appliance may close before all of the frame is written.
	_ = ws.Write(t.Context(), websocket.MessageText, bytes.Repeat([]byte("x"), 40<<10))
	if _, _, err := ws.Read(t.Context()); err == nil {
		t.Error("a frame of 40 KiB was taken")
	}
	waitEvent(t, s, "a frame of more than")
}

// TestSlowViewer: who does not read has one patch on the way, not a queue of them, and then the latest.
func TestSlowViewer(t *testing.T) {
	s := newSite(t)
	ws := s.socket(s.cookie(app.RoleViewer))
	say(t, ws, `{"op":"subscribe","view":"peers","id":"p","filter":"state=connected","rate_hz":10}`)
	f, err := receive(t, ws)
	if err != nil || f.Op != "full" {
		t.Fatalf("%+v %v", f, err)
	}
	first := f.Rows[0]["send_count"].(float64)
	tick, _, cancel := s.app.Watch()
	defer cancel()
	for range 6 { // ticks go by unread
		<-tick
	}
	var sent []float64
	for range 3 {
		if f, err = receive(t, ws); err != nil || f.Op != "patch" {
			t.Fatalf("%+v %v", f, err)
		}
		if want := uint64(len(sent) + 2); f.Seq != want {
			t.Errorf("seq %d, wanted %d: frames are numbered as they are sent", f.Seq, want)
		}
		sent = append(sent, f.Upsert[0]["send_count"].(float64))
	}
	if sent[0] > first+2 || sent[1] < first+4 {
		t.Errorf("from %v the viewer saw %v: the second should be the latest", first, sent)
	}
}
