package store

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSettings(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	if _, ok, err := s.Setting(ctx, "id"); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	for i, want := range []string{"a", "a"} {
		if got, err := s.SettingOnce(ctx, "id", []string{"a", "b"}[i]); got != want || err != nil {
			t.Errorf("once: %q, %v", got, err)
		}
	}
	for _, v := range []string{"c", ""} {
		if err := s.SetSetting(ctx, "id", v); err != nil {
			t.Fatal(err)
		}
		if got, ok, err := s.Setting(ctx, "id"); got != v || !ok || err != nil {
			t.Errorf("%q %v %v", got, ok, err)
		}
	}
}

func TestAccounts(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	ada := Account{Name: "ada", Role: "admin", CreatedAt: 1}
	bob := Account{Name: "bob", Role: "viewer", CreatedAt: 2, PasswordHash: "$argon2id$x"}
	for _, a := range []Account{bob, ada} {
		if err := s.AddAccount(ctx, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddAccount(ctx, bob); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "bob") {
		t.Errorf("twice: %v", err)
	}
	if err := s.AddAccount(ctx, Account{Name: "eve", Role: "god"}); err == nil {
		t.Error("a role that does not exist was taken")
	}
	got, err := s.Accounts(ctx)
	if d := cmp.Diff([]Account{ada, bob}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	for what, err := range map[string]error{
		"account":  func() error { _, err := s.Account(ctx, "eve"); return err }(),
		"password": s.SetPasswordHash(ctx, "eve", "x"),
		"role":     s.SetRole(ctx, "eve", "admin"),
		"remove":   s.RemoveAccount(ctx, "eve"),
		"sign in":  s.SignedIn(ctx, "eve", 1),
		"session":  s.AddSession(ctx, Session{Hash: "h", ID: "i", Account: "eve"}),
		"token":    s.AddToken(ctx, Token{ID: "i", Hash: "h", Account: "eve", Role: "viewer"}),
		"link":     s.AddLink(ctx, Link{Hash: "h", Account: "eve"}),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of nobody: %v", what, err)
		}
	}
	for what, err := range map[string]error{"demote": s.SetRole(ctx, "ada", "operator"), "remove": s.RemoveAccount(ctx, "ada")} {
		if !errors.Is(err, ErrLastAdmin) {
			t.Errorf("%s the last admin: %v", what, err)
		}
	}
	if a, err := s.Account(ctx, "ada"); err != nil || a.Role != "admin" {
		t.Errorf("the last admin is %+v, %v", a, err)
	}
	for _, err := range []error{
		s.SetRole(ctx, "bob", "admin"), s.SetPasswordHash(ctx, "bob", ""), s.SignedIn(ctx, "bob", 77), s.RemoveAccount(ctx, "ada"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if a, err := s.Account(ctx, "bob"); err != nil || a.Role != "admin" || a.PasswordHash != "" || *a.LastSignInAt != 77 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestSessions(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	for _, name := range []string{"ada", "bob"} {
		if err := s.AddAccount(ctx, Account{Name: name, Role: "admin"}); err != nil {
			t.Fatal(err)
		}
	}
	add := func(secret, account string, created int64) Session {
		n := Session{Hash: HashSecret(secret), ID: "id-" + secret, Account: account, From: "::1", CreatedAt: created, IdleExpiresAt: created + 10, ExpiresAt: created + 100}
		if err := s.AddSession(ctx, n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	one := add("one", "ada", 0)
	one.Role = "admin"
	alive := func(secret string, now int64) bool {
		t.Helper()
		_, err := s.Session(ctx, HashSecret(secret), now)
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		return err == nil
	}
	if got, err := s.Session(ctx, HashSecret("one"), 9); cmp.Diff(one, got) != "" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if alive("two", 9) || alive("one", 10) {
		t.Error("unknown or idle session is alive")
	}
	if err := s.TouchSession(ctx, one.Hash, 200); err != nil {
		t.Error(err)
	}
	if !alive("one", 99) || alive("one", 100) {
		t.Error("a touched session lives until its absolute expiry")
	}
	add("late", "ada", 1000) // sweeps
	if alive("one", 50) || !alive("late", 1001) {
		t.Error("expired sessions stay")
	}
	add("b", "bob", 1000)
	if err := s.SetRole(ctx, "bob", "viewer"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Session(ctx, HashSecret("b"), 1001); err != nil || n.Role != "viewer" {
		t.Errorf("role of a session is the account's now: %+v, %v", n, err)
	}
	for _, end := range []struct {
		how  string
		f    func() error
		dead string
	}{
		{"end", func() error { return s.EndSession(ctx, HashSecret("b")) }, "b"},
		{"end again", func() error { return s.EndSession(ctx, HashSecret("b")) }, "b"},
		{"end all", func() error { add("c", "bob", 1000); return s.EndSessionsOf(ctx, "bob") }, "c"},
		{"new password", func() error { add("d", "bob", 1000); return s.SetPasswordHash(ctx, "bob", "x") }, "d"},
		{"account gone", func() error { add("e", "bob", 1000); return s.RemoveAccount(ctx, "bob") }, "e"},
	} {
		if err := end.f(); err != nil || alive(end.dead, 1001) {
			t.Errorf("%s: %v, or the session lives on", end.how, err)
		}
	}
	if !alive("late", 1001) {
		t.Error("another account's session ended")
	}
	if err := s.TouchSession(ctx, HashSecret("b"), 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("touch of an ended session: %v", err)
	}
}

func TestTokens(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	if err := s.AddAccount(ctx, Account{Name: "ada", Role: "admin"}); err != nil {
		t.Fatal(err)
	}
	ever := Token{ID: "1", Hash: HashSecret("a"), Account: "ada", Role: "viewer", Label: "grafana", CreatedAt: 1}
	soon := Token{ID: "2", Hash: HashSecret("b"), Account: "ada", Role: "admin", CreatedAt: 2, ExpiresAt: ptr(int64(50))}
	if err := errors.Join(s.AddToken(ctx, ever), s.AddToken(ctx, soon)); err != nil {
		t.Fatal(err)
	}
	got, err := s.Tokens(ctx)
	if d := cmp.Diff([]Token{soon, ever}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	for secret, want := range map[string][2]bool{"a": {true, true}, "b": {true, false}, "c": {false, false}} {
		for i, now := range []int64{49, 50} {
			if _, err := s.Token(ctx, HashSecret(secret), now); (err == nil) != want[i] || err != nil && !errors.Is(err, ErrNotFound) {
				t.Errorf("%s at %d: %v", secret, now, err)
			}
		}
	}
	if err := s.TouchToken(ctx, "1", 99); err != nil {
		t.Error(err)
	}
	if tok, err := s.Token(ctx, HashSecret("a"), 1); err != nil || *tok.LastUsedAt != 99 {
		t.Errorf("%+v, %v", tok, err)
	}
	if err := s.RemoveToken(ctx, "1"); err != nil {
		t.Error(err)
	}
	for _, err := range []error{s.RemoveToken(ctx, "1"), s.TouchToken(ctx, "1", 1)} {
		if !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	}
}

func TestLinkWorksOnce(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	if err := s.AddAccount(ctx, Account{Name: "ada", Role: "admin"}); err != nil {
		t.Fatal(err)
	}
	for _, l := range []Link{{HashSecret("a"), "ada", 0, 100}, {HashSecret("old"), "ada", 0, 10}} {
		if err := s.AddLink(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range []string{"old", "unknown"} {
		if _, err := s.UseLink(ctx, HashSecret(secret), 10); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", secret, err)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			account, err := s.UseLink(ctx, HashSecret("a"), 99)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && account == "ada" {
				won++
			} else if !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("the link worked %d times", won)
	}
}

func TestHashSecret(t *testing.T) {
	if got := HashSecret("abc"); got != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Error(got)
	}
}

func TestEvents(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), Options{KeepEvents: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	if err := s.AddEvents(ctx, nil); err != nil {
		t.Error(err)
	}
	first := []Event{
		{At: 1, Kind: "conn_established", Severity: "info", NI: "ni", Peer: "10.0.0.2@o2ib", Conn: "7", Text: "up", Data: map[string]string{"depth": "8"}},
		{At: 2, Kind: "reject_sent", Severity: "warning", Peer: "10.0.0.3@o2ib", Text: "Peer asked 16, we allow 8 %_"},
		{At: 3, Kind: "conn_closed", Severity: "error", Peer: "10.0.0.2@o2ib", Text: "down"},
	}
	if err := s.AddEvents(ctx, first); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		f    EventFilter
		want []int64
	}{
		{"all", EventFilter{}, []int64{3, 2, 1}},
		{"kind", EventFilter{Kind: "conn_closed"}, []int64{3}},
		{"severity", EventFilter{Severity: "warning"}, []int64{2}},
		{"peer", EventFilter{Peer: "10.0.0.2@o2ib"}, []int64{3, 1}},
		{"text", EventFilter{Text: "peer ASKED"}, []int64{2}},
		{"no wildcards", EventFilter{Text: "%_"}, []int64{2}},
		{"since", EventFilter{SinceID: 1}, []int64{2, 3}},
		{"before", EventFilter{BeforeID: 3}, []int64{2, 1}},
		{"limit", EventFilter{Limit: 1}, []int64{3}},
		{"together", EventFilter{Peer: "10.0.0.2@o2ib", BeforeID: 3}, []int64{1}},
	} {
		got, err := s.Events(ctx, tc.f)
		var ids []int64
		for _, e := range got {
			ids = append(ids, e.ID)
		}
		if err != nil || !slices.Equal(ids, tc.want) {
			t.Errorf("%s: %v, %v, want %v", tc.name, ids, err, tc.want)
		}
	}
	if got, _ := s.Events(ctx, EventFilter{BeforeID: 2}); len(got) != 1 || cmp.Diff(first[0], got[0]) != "" {
		t.Errorf("%+v", got)
	}
	more := make([]Event, 4)
	for i := range more {
		more[i] = Event{Kind: "k", Severity: "info"}
	}
	if err := s.AddEvents(ctx, more); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Events(ctx, EventFilter{}); err != nil || len(got) != 5 || got[0].ID != 7 || got[4].ID != 3 {
		t.Errorf("kept %d, %v", len(got), err)
	}
	if err := s.AddEvents(ctx, []Event{{Kind: "good", Severity: "info"}, {Kind: "bad", Severity: "awful"}}); err == nil {
		t.Error("a severity that does not exist was taken")
	}
	if got, err := s.Events(ctx, EventFilter{Kind: "good"}); err != nil || len(got) != 0 {
		t.Error("half a batch was stored")
	}
}

func TestAudit(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	entries := []AuditEntry{
		{At: 1, Who: "ada", Role: "admin", How: "page", From: "::1", Action: "account.create", Target: "bob", Outcome: "done", Text: "t", Before: "", After: "viewer"},
		{At: 2, Who: "ada", Role: "admin", How: "token", From: "::1", Action: "bundle.create", Outcome: "failed"},
		{At: 3, Who: "bob", Role: "viewer", How: "page", From: "::1", Action: "account.role", Outcome: "refused"},
	}
	for i := range entries {
		var err error
		if entries[i].ID, err = s.AddAudit(ctx, entries[i]); err != nil || entries[i].ID != int64(i+1) {
			t.Fatal(entries[i].ID, err)
		}
	}
	for _, tc := range []struct {
		f    AuditFilter
		want []AuditEntry
	}{
		{AuditFilter{}, []AuditEntry{entries[2], entries[1], entries[0]}},
		{AuditFilter{Who: "ada"}, []AuditEntry{entries[1], entries[0]}},
		{AuditFilter{Action: "account."}, []AuditEntry{entries[2], entries[0]}},
		{AuditFilter{BeforeID: 3, Limit: 1}, []AuditEntry{entries[1]}},
	} {
		got, err := s.Audit(ctx, tc.f)
		if d := cmp.Diff(tc.want, got); d != "" || err != nil {
			t.Errorf("%+v: %s %v", tc.f, d, err)
		}
	}
}

func TestBundles(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	one := Bundle{ID: "b1", CreatedAt: 1, By: "ada", State: "running", Redacted: true}
	two := Bundle{ID: "b2", CreatedAt: 2, By: "ada", State: "running", Demo: true}
	if err := errors.Join(s.PutBundle(ctx, one), s.PutBundle(ctx, two)); err != nil {
		t.Fatal(err)
	}
	one.State, one.Size, one.SHA256, one.Path, one.Name = "done", 9, "ab", "/x", "x.zip"
	if err := errors.Join(s.PutBundle(ctx, one), s.FailRunningBundles(ctx, "o2ibd ended")); err != nil {
		t.Fatal(err)
	}
	two.State, two.Error = "failed", "o2ibd ended"
	got, err := s.Bundles(ctx)
	if d := cmp.Diff([]Bundle{two, one}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if b, err := s.Bundle(ctx, "b1"); err != nil || cmp.Diff(one, b) != "" {
		t.Errorf("%+v, %v", b, err)
	}
	if err := s.DeleteBundle(ctx, "b1"); err != nil {
		t.Error(err)
	}
	for _, err := range []error{s.DeleteBundle(ctx, "b1"), func() error { _, err := s.Bundle(ctx, "b1"); return err }()} {
		if !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	}
}
