package store

import (
	"context"
	"database/sql"
	"strings"
)

// AuditEntry is one write by a person or program.
type AuditEntry struct {
	ID      int64
	At      int64
	Who     string
	Role    string
	How     string // page, token, socket, system
	From    string // address
	Action  string // "account.create"
	Target  string
	Outcome string // done, refused, failed
	Text    string
	Before  string
	After   string
}

// AuditFilter selects entries, newest first; zero fields select all.
type AuditFilter struct {
	Who      string
	Action   string // how it begins
	BeforeID int64
	Limit    int // 0: 100, at most 1000
}

// AddAudit stores an entry and gives its ID. Entries are never changed or removed.
func (s *Store) AddAudit(ctx context.Context, e AuditEntry) (id int64, err error) {
	err = s.write(ctx, "store audit entry", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO audit (at, who, role, how, from_addr, action, target, outcome, text, before_text, after_text)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, e.At, e.Who, e.Role, e.How, e.From, e.Action, e.Target, e.Outcome, e.Text, e.Before, e.After)
		if err == nil {
			id, err = res.LastInsertId()
		}
		return err
	})
	return id, err
}

// Audit lists entries.
func (s *Store) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	where, args := []string{`1`}, []any{}
	if f.Who != "" {
		where, args = append(where, `who = ?`), append(args, f.Who)
	}
	if f.Action != "" {
		where, args = append(where, `substr(action, 1, length(?)) = ?`), append(args, f.Action, f.Action)
	}
	if f.BeforeID > 0 {
		where, args = append(where, `id < ?`), append(args, f.BeforeID)
	}
	var entries []AuditEntry
	err := s.read(ctx, "read audit log", func(row scanner) error {
		var e AuditEntry
		if err := row.Scan(&e.ID, &e.At, &e.Who, &e.Role, &e.How, &e.From, &e.Action, &e.Target, &e.Outcome, &e.Text, &e.Before, &e.After); err != nil {
			return err
		}
		entries = append(entries, e)
		return nil
	}, `SELECT id, at, who, role, how, from_addr, action, target, outcome, text, before_text, after_text FROM audit WHERE `+
		strings.Join(where, ` AND `)+` ORDER BY id DESC LIMIT ?`, append(args, limit(f.Limit))...)
	return entries, err
}
