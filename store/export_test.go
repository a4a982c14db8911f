package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"testing"
)

// Pragma changes the writer's connection, as a full disk or a read-only one would.
func (s *Store) Pragma(ctx context.Context, pragma string) error {
	_, err := s.w.ExecContext(ctx, "PRAGMA "+pragma)
	return err
}

// Pages is how many pages the database has.
func (s *Store) Pages(ctx context.Context) (n int, err error) {
	err = s.w.QueryRowContext(ctx, `PRAGMA page_count`).Scan(&n)
	return n, err
}

// ShortenBusyTimeout makes stores that are opened from now on give up soon on a lock.
func ShortenBusyTimeout(t *testing.T) {
	old := busyTimeout
	busyTimeout = 50
	t.Cleanup(func() { busyTimeout = old })
}

// Synchronous is the writer's level.
func (s *Store) Synchronous(t *testing.T) (n int) {
	if err := s.w.QueryRowContext(t.Context(), `PRAGMA synchronous`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// FillHistory adds so many changes of the tunables named, in turn, each applied, in one transaction.
func (s *Store) FillHistory(ctx context.Context, n int, names []string) error {
	return s.write(ctx, "fill", func(tx *sql.Tx) error {
		old := map[string]*string{}
		for i := range n {
			name, value := names[i%len(names)], strconv.Itoa(1000+i%97)
			r := HistoryRecord{
				ChangeID: fmt.Sprintf("c%06d", i), Kind: Proposed, At: int64(1000 * i), Who: []string{"ada", "bob", "eve"}[i%3], How: "page",
				From: "10.0.0.1", Reason: "a reason of the usual length", Changes: []TunableChange{{Scope: "global", Name: name, Old: old[name], New: &value}},
			}
			if err := appendRecord(ctx, tx, &r); err != nil {
				return err
			}
			end := HistoryRecord{ChangeID: r.ChangeID, Kind: Applied, At: r.At + 1, Who: r.Who, How: r.How}
			if i%1000 == 999 {
				end.Kind, end.Error = Failed, "the engine refused it"
			} else {
				old[name] = &value
			}
			if err := outcome(ctx, tx, &end); err != nil {
				return err
			}
		}
		return nil
	})
}
