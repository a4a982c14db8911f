package store

import (
	"context"
	"database/sql"
	"errors"
)

// Setting is the value of a setting of the appliance itself; ok is false if it was never set.
func (s *Store) Setting(ctx context.Context, key string) (value string, ok bool, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT value FROM settings WHERE key = ?`, key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return value, err == nil, s.explain("read setting "+key, err)
}

// SetSetting sets it.
func (s *Store) SetSetting(ctx context.Context, key, value string) error {
	_, err := s.exec(ctx, "store setting "+key, `INSERT INTO settings (key, value) VALUES (?, ?)
		ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
	return err
}

// SettingOnce sets it unless it is set, and gives what stands then: for what is made once and kept, such
// as an instance's id.
func (s *Store) SettingOnce(ctx context.Context, key, value string) (string, error) {
	err := s.write(ctx, "store setting "+key, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING`, key, value); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `SELECT value FROM settings WHERE key = ?`, key).Scan(&value)
	})
	return value, err
}

// limit is how many rows a listing gives.
func limit(asked int) int {
	switch {
	case asked <= 0:
		return 100
	default:
		return min(asked, 1000)
	}
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
