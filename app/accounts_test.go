package app_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app"
)

const good = "correct horse"

func TestAccounts(t *testing.T) {
	r := start(t, options(t), nil) // with the account admin, made for its first link
	ctx := t.Context()
	steps := []struct {
		name string
		do   func() error
		want error
	}{
		{"create", func() error { return r.CreateAccount(ctx, root, "vera", good, app.RoleViewer) }, nil},
		{"create twice", func() error { return r.CreateAccount(ctx, root, "vera", good, app.RoleViewer) }, app.ErrExists},
		{"create without password", func() error { return r.CreateAccount(ctx, root, "otto", "", app.RoleOperator) }, nil},
		{"create by an operator", func() error { return r.CreateAccount(ctx, operator, "x", good, app.RoleViewer) }, app.ErrForbidden},
		{"bad name", func() error { return r.CreateAccount(ctx, root, "Vera", good, app.RoleViewer) }, app.ErrInvalid},
		{"no name", func() error { return r.CreateAccount(ctx, root, "", good, app.RoleViewer) }, app.ErrInvalid},
		{"long name", func() error {
			return r.CreateAccount(ctx, root, strings.Repeat("x", 33), good, app.RoleViewer)
		}, app.ErrInvalid},
		{"bad role", func() error { return r.CreateAccount(ctx, root, "x", good, "king") }, app.ErrInvalid},
		{"short password", func() error { return r.CreateAccount(ctx, root, "x", "123456789", app.RoleViewer) }, app.ErrInvalid},
		{"long password", func() error {
			return r.CreateAccount(ctx, root, "x", strings.Repeat("x", 257), app.RoleViewer)
		}, app.ErrInvalid},
		{"sign in", func() error { _, err := r.CheckPassword(ctx, "vera", good, "f"); return err }, nil},
		{"wrong password", func() error { _, err := r.CheckPassword(ctx, "vera", good+"!", "f"); return err }, app.ErrCredentials},
		{"no such account", func() error { _, err := r.CheckPassword(ctx, "nobody", good, "f"); return err }, app.ErrCredentials},
		{"no password set", func() error { _, err := r.CheckPassword(ctx, "otto", "", "f"); return err }, app.ErrCredentials},
		{"the decoy", func() error { _, err := r.CheckPassword(ctx, "otto", "decoy", "f"); return err }, app.ErrCredentials},
		{"endless password", func() error {
			_, err := r.CheckPassword(ctx, "vera", strings.Repeat("x", 1<<20), "f")
			return err
		}, app.ErrCredentials},
		{"own password", func() error { return r.SetPassword(ctx, viewer, "vera", good+"2") }, nil},
		{"old password", func() error { _, err := r.CheckPassword(ctx, "vera", good, "f"); return err }, app.ErrCredentials},
		{"new password", func() error { _, err := r.CheckPassword(ctx, "vera", good+"2", "f"); return err }, nil},
		{"another's password", func() error { return r.SetPassword(ctx, viewer, "otto", good) }, app.ErrForbidden},
		{"password of nobody", func() error { return r.SetPassword(ctx, root, "nobody", good) }, app.ErrNotFound},
		{"role", func() error { return r.SetRole(ctx, root, "vera", app.RoleAdmin) }, nil},
		{"role by an operator", func() error { return r.SetRole(ctx, operator, "vera", app.RoleAdmin) }, app.ErrForbidden},
		{"role that is none", func() error { return r.SetRole(ctx, root, "vera", "") }, app.ErrInvalid},
		{"remove", func() error { return r.RemoveAccount(ctx, root, "admin") }, nil},
		{"remove the last admin", func() error { return r.RemoveAccount(ctx, root, "vera") }, app.ErrConflict},
		{"demote the last admin", func() error { return r.SetRole(ctx, root, "vera", app.RoleViewer) }, app.ErrConflict},
		{"remove nobody", func() error { return r.RemoveAccount(ctx, root, "nobody") }, app.ErrNotFound},
	}
	for _, s := range steps {
		if err := s.do(); !errors.Is(err, s.want) || s.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", s.name, err, s.want)
		}
	}
	list, err := r.Accounts(ctx)
	if err != nil || len(list) != 2 || list[0].Name != "otto" || list[0].HasPassword || list[1].Role != app.RoleAdmin || !list[1].HasPassword {
		t.Errorf("accounts are %+v, %v", list, err)
	}
	for action, want := range map[string]int{"account.create": 10, "session.create": 6, "account.password": 3, "account.role": 4, "account.remove": 3} {
		entries, err := r.Audit(ctx, app.AuditFilter{Action: action})
		if err != nil || len(entries) != want {
			t.Errorf("%d audit entries of %s, %v; want %d", len(entries), action, err, want)
		}
		for _, e := range entries {
			if e.Outcome != app.OutcomeDone && e.Outcome != app.OutcomeRefused || (e.Text == "") != (e.Outcome == app.OutcomeDone) {
				t.Errorf("audit entry %+v", e)
			}
			if strings.Contains(e.Text+e.Target, good) {
				t.Errorf("a password is in the audit log: %+v", e)
			}
		}
	}
}

func TestSessions(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "otto", good, app.RoleOperator); err != nil {
		t.Fatal(err)
	}
	open := func() string {
		token, s, err := r.NewSession(ctx, "otto", "127.0.0.1:1")
		if err != nil || s.Account != "otto" || s.Role != app.RoleOperator || token == "" {
			t.Fatalf("session %+v, %v", s, err)
		}
		return token
	}
	alive := func(token string) bool {
		s, err := r.Session(ctx, token)
		if err != nil && !errors.Is(err, app.ErrCredentials) {
			t.Fatal(err)
		}
		return err == nil && s.Account == "otto"
	}
	one, two := open(), open()
	if !alive(one) || !alive(two) || alive("") || alive(one+"x") {
		t.Error("sessions are not told apart")
	}
	if err := r.SetRole(ctx, root, "otto", app.RoleViewer); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Session(ctx, one); err != nil || s.Role != app.RoleViewer {
		t.Errorf("after the role was changed: %+v, %v", s, err)
	}
	if err := r.EndSession(ctx, one); err != nil || alive(one) || !alive(two) {
		t.Errorf("sign out: %v, %v %v", err, alive(one), alive(two))
	}
	if err := r.EndSessionsOf(ctx, viewer, "otto"); !errors.Is(err, app.ErrForbidden) || !alive(two) {
		t.Errorf("end of another's sessions: %v", err)
	}
	three := open2(t, r)
	if err := r.EndSessionsOf(ctx, root, "otto"); err != nil || alive(two) || alive(three) {
		t.Errorf("end of all: %v", err)
	}
	four := open2(t, r)
	if err := r.SetPassword(ctx, root, "otto", good+"2"); err != nil || alive(four) {
		t.Errorf("a new password: %v, alive %v", err, alive(four))
	}
	if _, _, err := r.NewSession(ctx, "nobody", "f"); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("session of nobody: %v", err)
	}
}

func open2(t *testing.T, r *running) string {
	t.Helper()
	token, _, err := r.NewSession(t.Context(), "otto", "f")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokens(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "otto", "", app.RoleOperator); err != nil {
		t.Fatal(err)
	}
	key, tok, err := r.NewToken(ctx, operator, "otto", "prometheus", 0)
	if err != nil || !strings.HasPrefix(key, "o2ibd_") || tok.ExpiresAt != nil {
		t.Fatalf("own token: %+v, %v", tok, err)
	}
	if got, err := r.CheckToken(ctx, key); err != nil || got.Account != "otto" || got.Role != app.RoleOperator || got.LastUsedAt == nil {
		t.Errorf("token is %+v, %v", got, err)
	}
	if err := r.SetRole(ctx, root, "otto", app.RoleViewer); err != nil {
		t.Fatal(err)
	}
	if got, err := r.CheckToken(ctx, key); err != nil || got.Role != app.RoleViewer {
		t.Errorf("after the account lost its role: %+v, %v", got, err)
	}
	if err := r.SetRole(ctx, root, "otto", app.RoleAdmin); err != nil {
		t.Fatal(err)
	}
	if got, err := r.CheckToken(ctx, key); err != nil || got.Role != app.RoleOperator {
		t.Errorf("a token grows with its account: %+v, %v", got, err)
	}
	short, _, err := r.NewToken(ctx, root, "otto", "", time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]string{"expired": short, "unknown": "o2ibd_x", "empty": ""} {
		if _, err := r.CheckToken(ctx, k); !errors.Is(err, app.ErrCredentials) {
			t.Errorf("%s token: %v", name, err)
		}
	}
	for name, want := range map[string]error{"vera": app.ErrForbidden} {
		if _, _, err := r.NewToken(ctx, operator, name, "", 0); !errors.Is(err, want) {
			t.Errorf("token of another: %v", err)
		}
	}
	if _, _, err := r.NewToken(ctx, root, "nobody", "", 0); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("token of nobody: %v", err)
	}
	if _, _, err := r.NewToken(ctx, root, "otto", "", -1); !errors.Is(err, app.ErrInvalid) {
		t.Errorf("token with a life below 0: %v", err)
	}
	if list, err := r.Tokens(ctx); err != nil || len(list) != 2 {
		t.Errorf("tokens are %+v, %v", list, err)
	}
	if err := r.RemoveToken(ctx, root, tok.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CheckToken(ctx, key); !errors.Is(err, app.ErrCredentials) {
		t.Errorf("removed token: %v", err)
	}
	if err := r.RemoveToken(ctx, root, tok.ID); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

func TestSignInLinks(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "vera", "", app.RoleViewer); err != nil {
		t.Fatal(err)
	}
	link, err := r.SignInLink(ctx, root, "vera")
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ := strings.Cut(link, "?token=")
	token, s, err := r.UseSignInLink(ctx, key, "f")
	if err != nil || s.Account != "vera" || s.Role != app.RoleViewer {
		t.Fatalf("session %+v, %v", s, err)
	}
	if _, err := r.Session(ctx, token); err != nil {
		t.Error(err)
	}
	if _, err := r.SignInLink(ctx, operator, "vera"); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("link by an operator: %v", err)
	}
	if _, err := r.SignInLink(ctx, root, "nobody"); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("link for nobody: %v", err)
	}
	if link, err := r.SignInLink(ctx, root, ""); err != nil || link == "" {
		t.Errorf("link for the first administrator: %q, %v", link, err)
	}
}

// A token has a role of its own, at most its account's, and the audit log says what was made.
func TestTokenRoles(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "otto", "", app.RoleOperator); err != nil {
		t.Fatal(err)
	}
	key, tok, err := r.NewRoleToken(ctx, operator, "otto", "prometheus", app.RoleViewer, time.Hour)
	if err != nil || tok.Role != app.RoleViewer || tok.ExpiresAt == nil {
		t.Fatalf("%+v, %v", tok, err)
	}
	if got, err := r.CheckToken(ctx, key); err != nil || got.Role != app.RoleViewer {
		t.Errorf("%+v, %v", got, err)
	}
	for role, want := range map[app.Role]string{app.RoleAdmin: "otto is operator, and a token may be that at most", "king": "viewer, operator and admin are possible"} {
		if _, _, err := r.NewRoleToken(ctx, operator, "otto", "", role, 0); !errors.Is(err, app.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", role, err)
		}
	}
	entries, err := r.Audit(ctx, app.AuditFilter{Action: "token."})
	if err != nil || len(entries) != 3 || !strings.HasPrefix(entries[2].After, "token "+tok.ID+", role viewer, until 20") || entries[0].After != "" {
		t.Errorf("%+v, %v", entries, err)
	}
}

// With a new password everything that the old one let in ends at once, links that nobody used too.
func TestNewPasswordEndsAll(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "otto", "the old password", app.RoleOperator); err != nil {
		t.Fatal(err)
	}
	session, _, err := r.NewSession(ctx, "otto", "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	link, err := r.SignInLink(ctx, root, "otto")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.PeekSession(ctx, session); err != nil {
		t.Error(err)
	}
	if err := r.SetPassword(ctx, root, "otto", "the new password"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Session(ctx, session); !errors.Is(err, app.ErrCredentials) {
		t.Errorf("session: %v", err)
	}
	if _, err := r.PeekSession(ctx, session); !errors.Is(err, app.ErrCredentials) {
		t.Errorf("session, looked at: %v", err)
	}
	_, key, _ := strings.Cut(link, "token=")
	if _, _, err := r.UseSignInLink(ctx, key, "10.0.0.1"); !errors.Is(err, app.ErrCredentials) {
		t.Errorf("link: %v", err)
	}
}

func TestAuditOfAccounts(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "otto", "", app.RoleOperator); err != nil {
		t.Fatal(err)
	}
	if err := r.SetRole(ctx, root, "otto", app.RoleViewer); err != nil {
		t.Fatal(err)
	}
	token, s, err := r.NewSession(ctx, "otto", "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // signed out twice is signed out
		if err := r.EndSession(ctx, token); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.RemoveAccount(ctx, root, "otto"); err != nil {
		t.Fatal(err)
	}
	entries, err := r.Audit(ctx, app.AuditFilter{Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, strings.Join([]string{e.Actor.Name, e.Action, e.Target, e.Before, "→", e.After}, " "))
	}
	want := []string{
		root.Name + " account.remove otto role viewer → ",
		"otto session.end " + s.ID + "  → ",
		"otto session.create " + s.ID + "  → ",
		root.Name + " account.role otto role operator → role viewer",
		root.Name + " account.create otto  → role operator",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
}

// A wrong password too often is refused, and the right one with it; another address is not held up.
func TestTooManySignIns(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if err := r.CreateAccount(ctx, root, "otto", "the password", app.RoleOperator); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 9 {
		_, err = r.CheckPassword(ctx, "otto", "wrong", "10.0.0.1")
	}
	if !errors.Is(err, app.ErrTooMany) {
		t.Errorf("%v", err)
	}
	if _, err := r.CheckPassword(ctx, "otto", "the password", "10.0.0.1"); !errors.Is(err, app.ErrTooMany) {
		t.Errorf("%v", err)
	}
	if _, err := r.CheckPassword(ctx, "otto", "the password", "10.0.0.2"); err != nil {
		t.Errorf("%v", err)
	}
	r.event(t, "protocol", "too many attempts to sign in")
}
