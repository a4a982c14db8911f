package store

import (
	"testing"
)

func benchStore(b *testing.B) *Store {
	s, err := Open(b.Context(), b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// Every request of a browser looks its session up.
func BenchmarkSession(b *testing.B) {
	s := benchStore(b)
	n := Session{Hash: HashSecret("x"), ID: "1", Account: "ada", IdleExpiresAt: 10, ExpiresAt: 10}
	if err := s.AddAccount(b.Context(), Account{Name: "ada", Role: "admin"}); err != nil {
		b.Fatal(err)
	}
	if err := s.AddSession(b.Context(), n); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Session(b.Context(), n.Hash, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// A hundred events in one commit that reaches the disk.
func BenchmarkAddEvents(b *testing.B) {
	s := benchStore(b)
	events := make([]Event, 100)
	for i := range events {
		events[i] = Event{Kind: "conn_closed", Severity: "info", Peer: "10.0.0.2@o2ib", Text: "closed", Data: map[string]string{"credits": "8"}}
	}
	for b.Loop() {
		if err := s.AddEvents(b.Context(), events); err != nil {
			b.Fatal(err)
		}
	}
}
