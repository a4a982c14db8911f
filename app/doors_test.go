package app_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"o2ibd/app"
)

var (
	viewer   = app.Actor{Name: "vera", Role: app.RoleViewer, How: app.HowPage, From: "127.0.0.1:1"}
	operator = app.Actor{Name: "otto", Role: app.RoleOperator, How: app.HowPage, From: "127.0.0.1:1"}
	root     = app.Actor{Name: "adam", Role: app.RoleAdmin, How: app.HowSocket, From: "uid 0"}
)

// events waits for an event of that kind whose text has part, and gives its text.
func (r *running) event(t *testing.T, kind, part string) string {
	t.Helper()
	var text string
	r.wait(t, fmt.Sprintf("an event %s with %q", kind, part), func() bool {
		list, err := r.Events(t.Context(), app.EventFilter{Kind: kind, Text: part})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			text = list[0].Text
		}
		return len(list) > 0
	})
	return text
}

func TestGarbageAtTheDoors(t *testing.T) {
	r := start(t, options(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "fine") }))
	tests := []struct{ name, send, want string }{
		{"garbage", "\x00\x01\x02\x03garbage\r\n\r\n", "not a request: 400 Bad Request"},
		{"o2ib frame", "\x91\x1b\xe9\x0b\x12\x00\xc0\x00\r\n\r\n", "not a request: 400 Bad Request"},
		{"cut off", "GET / HTTP/1.1\r\nHost: 127", "not a request: 400 Bad Request"},
		{"header too large", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n", "431 Request Header Fields Too Large"},
		{"after a good request", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\x00\x00\r\n\r\n", "not a request: 400 Bad Request"},
	}
	page := strings.TrimPrefix(r.out.line("page"), "http://")
	for _, door := range []struct{ kind, network, addr string }{{"http", "tcp", page}, {"socket", "unix", r.Config().Socket}} {
		for _, tt := range tests {
			t.Run(door.kind+" "+tt.name, func(t *testing.T) {
				last := lastEvent(t, r)
				c, err := net.Dial(door.network, door.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				// The server may close before all is written: that is right too.
				_, _ = c.Write([]byte(tt.send))
				if tt.name == "cut off" {
					c.Close()
				}
				r.protested(t, last, door.kind, tt.want)
			})
		}
	}
	if body := get(t, http.DefaultClient, r.out.line("page")); body != "fine" {
		t.Errorf("afterwards the page says %q", body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// protested waits for the next protocol event after last and checks it.
func (r *running) protested(t *testing.T, last int64, kind, want string) {
	t.Helper()
	var got app.Event
	r.wait(t, "the event", func() bool {
		list, err := r.Events(t.Context(), app.EventFilter{Kind: "protocol", SinceID: last})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			got = list[0]
		}
		return len(list) > 0
	})
	if !strings.HasPrefix(got.Text, kind+": ") || !strings.Contains(got.Text, want) || got.Severity != app.SeverityWarning {
		t.Errorf("event is %+v, want %q in it", got, want)
	}
}

func lastEvent(t *testing.T, r *running) int64 {
	t.Helper()
	list, err := r.Events(t.Context(), app.EventFilter{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return 0
	}
	return list[0].ID
}

func TestKnockingIsNoEvent(t *testing.T) {
	r := start(t, options(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusBadRequest) }))
	r.event(t, "appliance", "has started")
	c, err := net.Dial("tcp", strings.TrimPrefix(r.out.line("page"), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	get(t, http.DefaultClient, r.out.line("page")) // a handler's own 400
	http.DefaultClient.CloseIdleConnections()
	r.Protest("http", "here", "the last of all")
	r.event(t, "protocol", "the last of all")
	list, err := r.Events(t.Context(), app.EventFilter{Kind: "protocol"})
	if err != nil || len(list) != 1 {
		t.Errorf("events: %v, %v", list, err)
	}
}

func TestProtestStorm(t *testing.T) {
	r := start(t, options(t), nil)
	news, cancel := r.WatchEvents()
	defer cancel()
	for i := range 1000 {
		r.Protest("socket", "10.0.0.9:1", fmt.Sprintf("frame %d", i))
	}
	r.event(t, "protocol", "frame 49")
	select {
	case <-news:
	default:
		t.Error("no news of the events")
	}
	list, err := r.Events(t.Context(), app.EventFilter{Kind: "protocol", Limit: 1000})
	if err != nil || len(list) != 50 {
		t.Errorf("%d events of 1000 frames, %v; want 50", len(list), err)
	}
}
