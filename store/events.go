package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
)

// Event is something that happened, in operators' words.
type Event struct {
	ID       int64 // grows, and is never given twice
	At       int64
	Kind     string
	Severity string // info, warning, error
	NI       string
	Peer     string // NID
	Conn     string
	Text     string
	Data     map[string]string
}

// EventFilter selects events; zero fields select all. Events come newest first, but oldest first with SinceID.
type EventFilter struct {
	Kind     string
	Severity string
	Peer     string
	Text     string // a part of the text
	SinceID  int64  // only younger ones
	BeforeID int64  // only older ones
	From, To int64  // happened at From or later, before To; 0: no bound
	Limit    int    // 0: 100, at most 1000
}

// AddEvents stores a batch in one transaction and fills in the IDs. The oldest events above
// Options.KeepEvents go.
func (s *Store) AddEvents(ctx context.Context, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	return s.write(ctx, "store events", func(tx *sql.Tx) error {
		insert, err := tx.PrepareContext(ctx, `INSERT INTO events (at, kind, severity, ni, peer, conn, text, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer insert.Close()
		for i := range events {
			e := &events[i]
			data := []byte("{}")
			if len(e.Data) > 0 {
				if data, err = json.Marshal(e.Data); err != nil {
					return err
				}
			}
			res, err := insert.ExecContext(ctx, e.At, e.Kind, e.Severity, e.NI, e.Peer, e.Conn, e.Text, string(data))
			if err != nil {
				return err
			}
			if e.ID, err = res.LastInsertId(); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM events WHERE id <= ?`, events[len(events)-1].ID-int64(s.keepEvents))
		return err
	})
}

// Events lists events.
func (s *Store) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	where, args := []string{`1`}, []any{}
	for _, c := range []struct {
		cond string
		arg  any
		on   bool
	}{
		{`kind = ?`, f.Kind, f.Kind != ""},
		{`severity = ?`, f.Severity, f.Severity != ""},
		{`peer = ?`, f.Peer, f.Peer != ""},
		{`instr(lower(text), lower(?)) > 0`, f.Text, f.Text != ""},
		{`id > ?`, f.SinceID, f.SinceID > 0},
		{`id < ?`, f.BeforeID, f.BeforeID > 0},
		{`at >= ?`, f.From, f.From != 0},
		{`at < ?`, f.To, f.To != 0},
	} {
		if c.on {
			where, args = append(where, c.cond), append(args, c.arg)
		}
	}
	order := `DESC`
	if f.SinceID > 0 {
		order = `ASC`
	}
	var events []Event
	err := s.read(ctx, "read events", func(row scanner) error {
		var e Event
		var data string
		if err := row.Scan(&e.ID, &e.At, &e.Kind, &e.Severity, &e.NI, &e.Peer, &e.Conn, &e.Text, &data); err != nil {
			return err
		}
		if data != "{}" {
			if err := json.Unmarshal([]byte(data), &e.Data); err != nil {
				return err
			}
		}
		events = append(events, e)
		return nil
	}, `SELECT id, at, kind, severity, ni, peer, conn, text, data FROM events WHERE `+strings.Join(where, ` AND `)+
		` ORDER BY id `+order+` LIMIT ?`, append(args, limit(f.Limit))...)
	return events, err
}
