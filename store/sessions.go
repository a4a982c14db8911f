package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
)

// Hash is the SHA-256 sum of a secret, in hexadecimal. Secrets themselves are never stored; they are
// random and long, so a plain sum is enough.
type Hash string

// HashSecret is the hash of a session's, token's or link's secret.
func HashSecret(secret string) Hash {
	sum := sha256.Sum256([]byte(secret))
	return Hash(hex.EncodeToString(sum[:]))
}

// Session is a browser's session.
type Session struct {
	Hash          Hash
	ID            string // names the session, does not open it
	Account       string
	Role          string // the account's role now; not stored with the session
	From          string
	CreatedAt     int64
	IdleExpiresAt int64 // moved on by use
	ExpiresAt     int64
}

// AddSession stores a session and forgets those that have expired at its CreatedAt. ErrNotFound if there
// is no such account.
func (s *Store) AddSession(ctx context.Context, n Session) error {
	return s.write(ctx, "store session", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE expires_at <= ?1 OR idle_expires_at <= ?1`, n.CreatedAt); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sessions (hash, id, account, from_addr, created_at, idle_expires_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			n.Hash, n.ID, n.Account, n.From, n.CreatedAt, n.IdleExpiresAt, n.ExpiresAt)
		return ofAccount(n.Account, err)
	})
}

// Session is the one with that secret that is alive at a time, or ErrNotFound.
func (s *Store) Session(ctx context.Context, h Hash, now int64) (Session, error) {
	var n Session
	err := s.r.QueryRowContext(ctx, `SELECT s.hash, s.id, s.account, a.role, s.from_addr, s.created_at, s.idle_expires_at, s.expires_at
		FROM sessions s JOIN accounts a ON a.name = s.account WHERE s.hash = ?1 AND s.expires_at > ?2 AND s.idle_expires_at > ?2`, h, now).
		Scan(&n.Hash, &n.ID, &n.Account, &n.Role, &n.From, &n.CreatedAt, &n.IdleExpiresAt, &n.ExpiresAt)
	return n, s.explain("read session", err)
}

// TouchSession moves a session's idle expiry on.
func (s *Store) TouchSession(ctx context.Context, h Hash, idleExpiresAt int64) error {
	return orNotFound(s.exec(ctx, "store session", `UPDATE sessions SET idle_expires_at = ? WHERE hash = ?`, idleExpiresAt, h))
}

// EndSession ends a session, if there is such a one.
func (s *Store) EndSession(ctx context.Context, h Hash) error {
	_, err := s.exec(ctx, "end session", `DELETE FROM sessions WHERE hash = ?`, h)
	return err
}

// EndSessionsOf ends all sessions of an account.
func (s *Store) EndSessionsOf(ctx context.Context, account string) error {
	_, err := s.exec(ctx, "end sessions of "+clip(account), `DELETE FROM sessions WHERE account = ?`, account)
	return err
}

// Token is a bearer token for programs.
type Token struct {
	ID         string
	Hash       Hash
	Account    string
	Role       string // the token's own, which may be less than the account's
	Label      string
	CreatedAt  int64
	ExpiresAt  *int64
	LastUsedAt *int64
}

const tokenColumns = `id, hash, account, role, label, created_at, expires_at, last_used_at`

// AddToken stores a token. ErrNotFound if there is no such account.
func (s *Store) AddToken(ctx context.Context, t Token) error {
	return s.write(ctx, "store token", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tokens (`+tokenColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			t.ID, t.Hash, t.Account, t.Role, t.Label, t.CreatedAt, t.ExpiresAt, t.LastUsedAt)
		return ofAccount(t.Account, err)
	})
}

// Token is the one with that secret that is valid at a time, or ErrNotFound.
func (s *Store) Token(ctx context.Context, h Hash, now int64) (Token, error) {
	t, err := scanToken(s.r.QueryRowContext(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE hash = ? AND (expires_at IS NULL OR expires_at > ?)`, h, now))
	return t, s.explain("read token", err)
}

// Tokens lists all, expired ones too, newest first.
func (s *Store) Tokens(ctx context.Context) ([]Token, error) {
	var tokens []Token
	err := s.read(ctx, "read tokens", func(row scanner) error {
		t, err := scanToken(row)
		tokens = append(tokens, t)
		return err
	}, `SELECT `+tokenColumns+` FROM tokens ORDER BY created_at DESC, id`)
	return tokens, err
}

// TouchToken notes when a token was last used.
func (s *Store) TouchToken(ctx context.Context, id string, at int64) error {
	return orNotFound(s.exec(ctx, "store use of token", `UPDATE tokens SET last_used_at = ? WHERE id = ?`, at, id))
}

// RemoveToken removes a token.
func (s *Store) RemoveToken(ctx context.Context, id string) error {
	return orNotFound(s.exec(ctx, "remove token", `DELETE FROM tokens WHERE id = ?`, id))
}

func scanToken(row scanner) (t Token, err error) {
	err = row.Scan(&t.ID, &t.Hash, &t.Account, &t.Role, &t.Label, &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt)
	return t, err
}

// Link is a one-time sign-in link.
type Link struct {
	Hash      Hash
	Account   string
	CreatedAt int64
	ExpiresAt int64
}

// AddLink stores a link and forgets those that have expired at its CreatedAt. ErrNotFound if there is no
// such account.
func (s *Store) AddLink(ctx context.Context, l Link) error {
	return s.write(ctx, "store sign-in link", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM links WHERE expires_at <= ?`, l.CreatedAt); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO links (hash, account, created_at, expires_at) VALUES (?, ?, ?, ?)`, l.Hash, l.Account, l.CreatedAt, l.ExpiresAt)
		return ofAccount(l.Account, err)
	})
}

// UseLink spends a link and says whom it signs in. A link that is unknown, spent or expired is ErrNotFound;
// of two who use it at once one gets it.
func (s *Store) UseLink(ctx context.Context, h Hash, now int64) (account string, err error) {
	err = s.write(ctx, "use sign-in link", func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `UPDATE links SET used_at = ?1 WHERE hash = ?2 AND used_at IS NULL AND expires_at > ?1 RETURNING account`, now, h).Scan(&account)
	})
	return account, err
}

// ofAccount is ErrNotFound for a row of an account that is not there.
func ofAccount(account string, err error) error {
	if isForeign(err) {
		return fmt.Errorf("account %s %w", clip(account), ErrNotFound)
	}
	return err
}
