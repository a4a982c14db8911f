package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/store"
)

// Lives of what lets somebody in.
const (
	sessionIdle  = 12 * time.Hour
	sessionLife  = 7 * 24 * time.Hour
	sessionTouch = time.Minute // how often the use of a session or token is written down
	linkLife     = time.Hour
	firstLink    = 24 * time.Hour // of the link that serve prints
)

// FirstAdmin is the account that the first sign-in link opens.
const FirstAdmin = "admin"

const (
	minPassword = 10  // characters
	maxPassword = 256 // bytes
)

var accountName = regexp.MustCompile(`^[a-z][a-z0-9._-]{0,31}$`)

// Accounts lists the accounts by name.
func (a *App) Accounts(ctx context.Context) ([]Account, error) {
	rows, err := a.db.Accounts(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Account, len(rows))
	for i, r := range rows {
		list[i] = account(r)
	}
	return list, nil
}

func account(r store.Account) Account {
	return Account{Name: r.Name, Role: Role(r.Role), CreatedAt: r.CreatedAt, HasPassword: r.PasswordHash != "", LastSignIn: r.LastSignInAt}
}

// CheckPassword signs in by password; ErrCredentials does not tell an unknown name from a wrong password,
// neither in words nor in time. A refusal is in the audit log. ErrTooMany refuses who tries too often.
func (a *App) CheckPassword(ctx context.Context, name, password, from string) (Account, error) {
	if err := a.signIns.allow(from, name, time.Now()); err != nil {
		a.Protest("sign-in", from, "too many attempts to sign in were refused")
		return Account{}, err
	}
	row, err := a.db.Account(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Account{}, err
	}
	ok, err := a.passwords.check(ctx, row.PasswordHash, password)
	if err != nil {
		return Account{}, err
	}
	who := Actor{Name: name, How: HowPage, From: from}
	if !ok {
		if !accountName.MatchString(name) {
			who.Name = "?"
		}
		return Account{}, a.audited(ctx, who, "session.create", "", fmt.Errorf("%w: name or password is wrong", ErrCredentials))
	}
	a.signIns.signedIn(from, name)
	return account(row), nil
}

// CreateAccount adds an account. Without a password only a sign-in link opens it.
func (a *App) CreateAccount(ctx context.Context, who Actor, name, password string, role Role) error {
	err := a.createAccount(ctx, who, name, password, role)
	return a.auditedAs(ctx, AuditEntry{Actor: who, Action: "account.create", Target: name, After: "role " + string(role)}, err)
}

func (a *App) createAccount(ctx context.Context, who Actor, name, password string, role Role) error {
	if err := admin(who); err != nil {
		return err
	}
	if !accountName.MatchString(name) {
		return fmt.Errorf("%w: account name %q: a small letter first, then small letters, digits, dot, minus or underscore, 32 characters at most", ErrInvalid, name)
	}
	if err := checkRole(role); err != nil {
		return err
	}
	hash := ""
	if password != "" {
		var err error
		if hash, err = a.hashPassword(ctx, password); err != nil {
			return err
		}
	}
	return mapError(a.db.AddAccount(ctx, store.Account{Name: name, PasswordHash: hash, Role: string(role), CreatedAt: time.Now().UnixMilli()}))
}

// SetPassword replaces a password, ends the account's sessions and makes its sign-in links worthless. An
// account may change its own.
func (a *App) SetPassword(ctx context.Context, who Actor, name, password string) error {
	err := func() error {
		if who.Name != name || who.How != HowPage {
			if err := admin(who); err != nil {
				return err
			}
		}
		hash, err := a.hashPassword(ctx, password)
		if err != nil {
			return err
		}
		return mapError(a.db.SetPasswordHash(ctx, name, hash))
	}()
	return a.audited(ctx, who, "account.password", name, err)
}

// SetRole changes what an account may do. The last administrator stays one.
func (a *App) SetRole(ctx context.Context, who Actor, name string, role Role) error {
	var before store.Account
	err := admin(who)
	if err == nil {
		err = checkRole(role)
	}
	if err == nil {
		before, err = a.db.Account(ctx, name)
		err = mapError(err)
	}
	if err == nil {
		err = mapError(a.db.SetRole(ctx, name, string(role)))
	}
	return a.auditedAs(ctx, AuditEntry{Actor: who, Action: "account.role", Target: name, Before: "role " + before.Role, After: "role " + string(role)}, err)
}

// RemoveAccount removes an account with its sessions, tokens and links, but not the last administrator.
func (a *App) RemoveAccount(ctx context.Context, who Actor, name string) error {
	var before store.Account
	err := admin(who)
	if err == nil {
		before, err = a.db.Account(ctx, name)
		err = mapError(err)
	}
	if err == nil {
		err = mapError(a.db.RemoveAccount(ctx, name))
	}
	return a.auditedAs(ctx, AuditEntry{Actor: who, Action: "account.remove", Target: name, Before: "role " + before.Role}, err)
}

// NewSession opens a session after CheckPassword. The token goes into the cookie; only its hash is stored.
func (a *App) NewSession(ctx context.Context, name, from string) (token string, s Session, err error) {
	row, err := a.db.Account(ctx, name)
	if err != nil {
		return "", Session{}, mapError(err)
	}
	now := time.Now()
	token = secret("")
	n := store.Session{
		Hash: store.HashSecret(token), ID: newID(), Account: name, Role: row.Role, From: from, CreatedAt: now.UnixMilli(),
		IdleExpiresAt: now.Add(sessionIdle).UnixMilli(), ExpiresAt: now.Add(sessionLife).UnixMilli(),
	}
	if err := a.db.AddSession(ctx, n); err != nil {
		return "", Session{}, mapError(err)
	}
	if err := a.db.SignedIn(ctx, name, n.CreatedAt); err != nil {
		return "", Session{}, mapError(err)
	}
	who := Actor{Name: name, Role: Role(row.Role), How: HowPage, From: from}
	return token, session(n), a.audited(ctx, who, "session.create", n.ID, nil)
}

func session(n store.Session) Session {
	return Session{ID: n.ID, Account: n.Account, Role: Role(n.Role), CreatedAt: n.CreatedAt, ExpiresAt: n.ExpiresAt, From: n.From}
}

// Session looks a cookie's token up; ErrCredentials when it is unknown, ended or expired. It is cheap
// enough for every request, and its role is the account's of this moment.
func (a *App) Session(ctx context.Context, token string) (Session, error) {
	hash, now := store.HashSecret(token), time.Now()
	n, err := a.lookSession(ctx, hash, now)
	if err != nil {
		return Session{}, err
	}
	if until := now.Add(sessionIdle).UnixMilli(); until-n.IdleExpiresAt > sessionTouch.Milliseconds() {
		// Ended in between: the next request will say so.
		if err := a.db.TouchSession(ctx, hash, until); err != nil && !errors.Is(err, store.ErrNotFound) {
			return Session{}, err
		}
	}
	return session(n), nil
}

// PeekSession is Session without counting as use: a live socket that stays open does not keep an idle session
// alive.
func (a *App) PeekSession(ctx context.Context, token string) (Session, error) {
	n, err := a.lookSession(ctx, store.HashSecret(token), time.Now())
	return session(n), err
}

func (a *App) lookSession(ctx context.Context, hash store.Hash, now time.Time) (store.Session, error) {
	n, err := a.db.Session(ctx, hash, now.UnixMilli())
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("%w: the session has ended", ErrCredentials)
	}
	return n, err
}

// EndSession signs out. Who has no session any more is signed out already.
func (a *App) EndSession(ctx context.Context, token string) error {
	hash := store.HashSecret(token)
	n, err := a.lookSession(ctx, hash, time.Now())
	if errors.Is(err, ErrCredentials) {
		return nil
	}
	if err == nil {
		err = a.db.EndSession(ctx, hash)
	}
	return a.audited(ctx, Actor{Name: n.Account, Role: Role(n.Role), How: HowPage, From: n.From}, "session.end", n.ID, err)
}

// EndSessionsOf ends all sessions of an account. An account may end its own.
func (a *App) EndSessionsOf(ctx context.Context, who Actor, name string) error {
	var err error
	if who.Name != name || who.How != HowPage {
		err = admin(who)
	}
	if err == nil {
		err = a.db.EndSessionsOf(ctx, name)
	}
	return a.audited(ctx, who, "session.end_all", name, err)
}

// NewToken makes a bearer token with the account's role; a ttl of 0 has no end. The secret is shown this
// once. An account may make its own.
func (a *App) NewToken(ctx context.Context, who Actor, name, label string, ttl time.Duration) (string, Token, error) {
	return a.NewRoleToken(ctx, who, name, label, "", ttl)
}

// NewRoleToken is NewToken with a role of the token's own, at most the account's; "" is the account's.
func (a *App) NewRoleToken(ctx context.Context, who Actor, name, label string, role Role, ttl time.Duration) (string, Token, error) {
	key, t, err := a.newToken(ctx, who, name, label, role, ttl)
	after := fmt.Sprintf("token %s, role %s, no end", t.ID, t.Role)
	if t.ExpiresAt != nil {
		after = fmt.Sprintf("token %s, role %s, until %s", t.ID, t.Role, time.UnixMilli(*t.ExpiresAt).UTC().Format(time.RFC3339))
	}
	return key, t, a.auditedAs(ctx, AuditEntry{Actor: who, Action: "token.create", Target: name, After: after}, err)
}

func (a *App) newToken(ctx context.Context, who Actor, name, label string, role Role, ttl time.Duration) (string, Token, error) {
	if who.Name != name || who.How != HowPage {
		if err := admin(who); err != nil {
			return "", Token{}, err
		}
	}
	if ttl < 0 || len(label) > 64 {
		return "", Token{}, fmt.Errorf("%w: a token has a life of 0 (no end) or more and a label of 64 bytes at most", ErrInvalid)
	}
	row, err := a.db.Account(ctx, name)
	if err != nil {
		return "", Token{}, mapError(err)
	}
	if role == "" {
		role = Role(row.Role)
	}
	if err := checkRole(role); err != nil {
		return "", Token{}, err
	}
	if !Role(row.Role).Allows(role) {
		return "", Token{}, fmt.Errorf("%w: a token of role %s: %s is %s, and a token may be that at most", ErrInvalid, role, name, row.Role)
	}
	now := time.Now()
	key := secret("o2ibd_")
	t := store.Token{ID: newID(), Hash: store.HashSecret(key), Account: name, Role: string(role), Label: label, CreatedAt: now.UnixMilli()}
	if ttl > 0 {
		end := now.Add(ttl).UnixMilli()
		t.ExpiresAt = &end
	}
	if err := a.db.AddToken(ctx, t); err != nil {
		return "", Token{}, mapError(err)
	}
	return key, token(t), nil
}

func token(t store.Token) Token {
	return Token{
		ID: t.ID, Account: t.Account, Role: Role(t.Role), Label: t.Label,
		CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt, LastUsedAt: t.LastUsedAt,
	}
}

// Tokens lists all tokens, expired ones too, newest first.
func (a *App) Tokens(ctx context.Context) ([]Token, error) {
	rows, err := a.db.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Token, len(rows))
	for i, t := range rows {
		list[i] = token(t)
	}
	return list, nil
}

// CheckToken looks a bearer token up; ErrCredentials when it is unknown or expired. Its role is the lesser
// of its own and its account's of this moment.
func (a *App) CheckToken(ctx context.Context, key string) (Token, error) {
	now := time.Now().UnixMilli()
	t, err := a.db.Token(ctx, store.HashSecret(key), now)
	if errors.Is(err, store.ErrNotFound) {
		return Token{}, fmt.Errorf("%w: no such token", ErrCredentials)
	}
	if err != nil {
		return Token{}, err
	}
	row, err := a.db.Account(ctx, t.Account)
	if err != nil {
		return Token{}, mapError(err)
	}
	if !Role(row.Role).Allows(Role(t.Role)) {
		t.Role = row.Role
	}
	if t.LastUsedAt == nil || now-*t.LastUsedAt > sessionTouch.Milliseconds() {
		if err := a.db.TouchToken(ctx, t.ID, now); err != nil && !errors.Is(err, store.ErrNotFound) {
			return Token{}, err
		}
		t.LastUsedAt = &now
	}
	return token(t), nil
}

// RemoveToken makes a token worthless.
func (a *App) RemoveToken(ctx context.Context, who Actor, id string) error {
	err := admin(who)
	if err == nil {
		err = mapError(a.db.RemoveToken(ctx, id))
	}
	return a.audited(ctx, who, "token.remove", id, err)
}

// SignInLink makes a one-time link that signs in as account; "" is the first administrator. The page
// behind it, /sign-in/link?token=…, has a button that posts the token.
func (a *App) SignInLink(ctx context.Context, who Actor, name string) (string, error) {
	if name == "" {
		name = FirstAdmin
	}
	link, err := "", admin(who)
	if err == nil {
		link, err = a.link(ctx, name, linkLife)
	}
	return link, a.audited(ctx, who, "link.create", name, err)
}

func (a *App) link(ctx context.Context, name string, life time.Duration) (string, error) {
	now := time.Now()
	key := secret("")
	l := store.Link{Hash: store.HashSecret(key), Account: name, CreatedAt: now.UnixMilli(), ExpiresAt: now.Add(life).UnixMilli()}
	if err := a.db.AddLink(ctx, l); err != nil {
		return "", mapError(err)
	}
	return a.url + "/sign-in/link?token=" + url.QueryEscape(key), nil
}

// UseSignInLink spends the token of a link and opens a session for its account. ErrTooMany refuses who tries
// too often.
func (a *App) UseSignInLink(ctx context.Context, key, from string) (token string, s Session, err error) {
	if err := a.signIns.allow(from, "", time.Now()); err != nil {
		a.Protest("sign-in", from, "too many attempts with sign-in links were refused")
		return "", Session{}, err
	}
	name, err := a.db.UseLink(ctx, store.HashSecret(key), time.Now().UnixMilli())
	if errors.Is(err, store.ErrNotFound) {
		who := Actor{Name: "?", How: HowPage, From: from}
		err = fmt.Errorf("%w: the link was used or has expired; o2ibd user link makes a new one", ErrCredentials)
		return "", Session{}, a.audited(ctx, who, "link.use", "", err)
	}
	if err != nil {
		return "", Session{}, err
	}
	return a.NewSession(ctx, name, from)
}

// startLink is the link that serve prints: a fresh one with the demo, and as long as nobody can sign in
// otherwise; else "".
func (a *App) startLink(ctx context.Context) (string, error) {
	accounts, err := a.db.Accounts(ctx)
	if err != nil {
		return "", err
	}
	isAdmin := func(r store.Account) bool { return Role(r.Role) == RoleAdmin }
	usable := slices.ContainsFunc(accounts, func(r store.Account) bool {
		return isAdmin(r) && (r.PasswordHash != "" || r.LastSignInAt != nil)
	})
	if usable && a.demo == 0 {
		return "", nil
	}
	i := slices.IndexFunc(accounts, isAdmin)
	if i < 0 {
		first := store.Account{Name: FirstAdmin, Role: string(RoleAdmin), CreatedAt: time.Now().UnixMilli()}
		if err := a.db.AddAccount(ctx, first); err != nil {
			return "", err
		}
		return a.link(ctx, FirstAdmin, firstLink)
	}
	return a.link(ctx, accounts[i].Name, firstLink)
}

func (a *App) hashPassword(ctx context.Context, password string) (string, error) {
	if n := len([]rune(password)); n < minPassword || len(password) > maxPassword {
		return "", fmt.Errorf("%w: a password has %d characters or more, and %d bytes at most", ErrInvalid, minPassword, maxPassword)
	}
	return a.passwords.hash(ctx, password)
}

func admin(who Actor) error { return allowed(who, RoleAdmin) }

// allowed refuses what needs a higher role than the actor has.
func allowed(who Actor, min Role) error {
	if who.Role.Allows(min) {
		return nil
	}
	return fmt.Errorf("%w this: %s is %s, it takes %s", ErrForbidden, who.Name, who.Role, min)
}

func checkRole(r Role) error {
	if slices.Contains(Roles, r) {
		return nil
	}
	return fmt.Errorf("%w: role %q: viewer, operator and admin are possible", ErrInvalid, string(r))
}

// mapError gives the store's errors that callers decide on as ours.
func mapError(err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, store.ErrExists):
		return fmt.Errorf("%w: %w", ErrExists, err)
	case errors.Is(err, store.ErrLastAdmin):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return err
}

// outcome sorts an error for the audit log.
func outcome(err error) string {
	for _, refused := range []error{ErrNotFound, ErrExists, ErrInvalid, ErrConflict, ErrCredentials, ErrForbidden, ErrTooMany,
		tuning.ErrNothing, tuning.ErrInvalid, tuning.ErrNoChange, tuning.ErrNotApplied, tuning.ErrClock} {
		if errors.Is(err, refused) {
			return OutcomeRefused
		}
	}
	var invalid *tuning.InvalidError
	var conflict *tuning.ConflictError
	var pending *tuning.PendingError
	if errors.As(err, &invalid) || errors.As(err, &conflict) || errors.As(err, &pending) {
		return OutcomeRefused
	}
	return OutcomeFailed
}

// secret is 256 random bits that nobody can guess, after a prefix that says what they are.
func secret(prefix string) string { return prefix + random(32) }

// newID names something and opens nothing.
func newID() string { return random(6) }

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
