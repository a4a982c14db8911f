package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Account is a local account.
type Account struct {
	Name         string
	PasswordHash string // as the caller encodes it; "" has no password, only a sign-in link opens it
	Role         string // viewer, operator, admin
	CreatedAt    int64
	LastSignInAt *int64
}

// AddAccount stores a new account; ErrExists if there is one of that name.
func (s *Store) AddAccount(ctx context.Context, a Account) error {
	return s.write(ctx, "store account "+clip(a.Name), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO accounts (name, password_hash, role, created_at) VALUES (?, ?, ?, ?)`,
			a.Name, null(a.PasswordHash), a.Role, a.CreatedAt)
		if isUnique(err) {
			return fmt.Errorf("account %s %w", a.Name, ErrExists)
		}
		return err
	})
}

// Account is the one of that name, or ErrNotFound.
func (s *Store) Account(ctx context.Context, name string) (Account, error) {
	a, err := scanAccount(s.r.QueryRowContext(ctx, `SELECT `+accountColumns+` FROM accounts WHERE name = ?`, name))
	return a, s.explain("read account "+clip(name), err)
}

// Accounts lists all by name.
func (s *Store) Accounts(ctx context.Context) ([]Account, error) {
	var accounts []Account
	err := s.read(ctx, "read accounts", func(row scanner) error {
		a, err := scanAccount(row)
		accounts = append(accounts, a)
		return err
	}, `SELECT `+accountColumns+` FROM accounts ORDER BY name`)
	return accounts, err
}

// SetPasswordHash replaces a password, ends the account's sessions and forgets its links; "" takes the
// password away.
func (s *Store) SetPasswordHash(ctx context.Context, name, hash string) error {
	return s.write(ctx, "store password of "+clip(name), func(tx *sql.Tx) error {
		if err := one(tx.ExecContext(ctx, `UPDATE accounts SET password_hash = ? WHERE name = ?`, null(hash), name)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE account = ?`, name); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM links WHERE account = ?`, name)
		return err
	})
}

// SetRole replaces an account's role; ErrLastAdmin if nobody would be left to administer.
func (s *Store) SetRole(ctx context.Context, name, role string) error {
	return s.write(ctx, "store role of "+clip(name), func(tx *sql.Tx) error {
		if err := one(tx.ExecContext(ctx, `UPDATE accounts SET role = ? WHERE name = ?`, role, name)); err != nil {
			return err
		}
		return keepAdmin(ctx, tx)
	})
}

// RemoveAccount removes an account with its sessions, tokens and links; ErrLastAdmin as for SetRole.
func (s *Store) RemoveAccount(ctx context.Context, name string) error {
	return s.write(ctx, "remove account "+clip(name), func(tx *sql.Tx) error {
		if err := one(tx.ExecContext(ctx, `DELETE FROM accounts WHERE name = ?`, name)); err != nil {
			return err
		}
		return keepAdmin(ctx, tx)
	})
}

// SignedIn notes when an account last signed in.
func (s *Store) SignedIn(ctx context.Context, name string, at int64) error {
	return orNotFound(s.exec(ctx, "store sign-in of "+clip(name), `UPDATE accounts SET last_sign_in_at = ? WHERE name = ?`, at, name))
}

const accountColumns = `name, coalesce(password_hash, ''), role, created_at, last_sign_in_at`

func scanAccount(row scanner) (a Account, err error) {
	err = row.Scan(&a.Name, &a.PasswordHash, &a.Role, &a.CreatedAt, &a.LastSignInAt)
	return a, err
}

func keepAdmin(ctx context.Context, tx *sql.Tx) error {
	var admins int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM accounts WHERE role = 'admin'`).Scan(&admins)
	if err == nil && admins == 0 {
		return ErrLastAdmin
	}
	return err
}

// one is ErrNotFound unless the statement concerned a row.
func one(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	return orNotFound(res.RowsAffected())
}

// null is NULL for "".
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}
