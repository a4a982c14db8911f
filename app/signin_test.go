package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/app/config"
	"o2ibd/store"
)

// tries counts how many of n attempts in a row pass.
func tries(g *signInGuard, n int, from, name func(i int) string, now time.Time) (passed int) {
	for i := range n {
		if g.allow(from(i), name(i), now) == nil {
			passed++
		}
	}
	return passed
}

func always(s string) func(int) string { return func(int) string { return s } }
func each(format string) func(int) string {
	return func(i int) string { return fmt.Sprintf(format, i/250, i%250) }
}

func TestSignInGuard(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	g := newSignInGuard()
	if n := tries(g, 50, always("10.0.0.1"), always("ada"), now); n != int(pairRate.burst) {
		t.Errorf("%d tries of one name from one address", n)
	}
	if err := g.allow("10.0.0.1", "ada", now); !errors.Is(err, ErrTooMany) || err.Error() != "too many attempts to sign in for this account from your address; wait 20s and try again" {
		t.Errorf("%v", err)
	}
	if g.allow("10.0.0.1", "bob", now) != nil || g.allow("10.0.0.2", "ada", now) != nil {
		t.Error("others are held up")
	}
	if g.allow("10.0.0.1", "ada", now.Add(pairRate.interval)) != nil {
		t.Error("nothing passes later")
	}
	if g.allow("10.0.0.1", "ada", now.Add(-time.Hour)) == nil {
		t.Error("a clock that is set back gives more")
	}

	// One address that tries all names, and one IPv6 host with all of its addresses.
	if n := tries(g, 500, always("10.9.9.9"), each("u%d.%d"), now); n != int(addrRate.burst) {
		t.Errorf("%d tries of many names from one address", n)
	}
	if n := tries(g, 500, each("2001:db8:1:2::%x:%x"), each("u%d.%d"), now); n != int(addrRate.burst) {
		t.Errorf("%d tries from one IPv6 host", n)
	}
	if g.allow("2001:db8:1:3::1", "ada", now) != nil {
		t.Error("its neighbour is held up")
	}

	// Everybody tries root. Who signed in as root before gets in, and so do others under other names.
	g = newSignInGuard()
	g.signedIn("10.1.1.1", "root")
	if n := tries(g, 1000, each("10.2.%d.%d"), always("root"), now); n != int(nameRate.burst) {
		t.Errorf("%d tries of one name from many addresses", n)
	}
	if g.allow("10.3.3.3", "root", now) == nil {
		t.Error("a stranger passes in the storm")
	}
	if g.allow("10.1.1.1", "root", now) != nil || g.allow("10.3.3.3", "eve", now) != nil || g.allow("10.3.3.3", "", now) != nil {
		t.Error("root at home, others, or a sign-in link are locked out")
	}

	// Memory is bounded, and where it is full the unknown pass.
	g = newSignInGuard()
	for i := range 3 * maxBuckets {
		if err := g.allow(fmt.Sprintf("10.%d.%d.%d", i/65536, i/256%256, i%256), fmt.Sprintf("u%d", i), now); err != nil {
			t.Fatal(err)
		}
	}
	for kind, m := range g.buckets {
		if len(m) > maxBuckets {
			t.Errorf("%d buckets of kind %d", len(m), kind)
		}
	}
	for i := range 100 {
		g.signedIn(fmt.Sprintf("10.0.0.%d", i), "ada")
	}
	if len(g.homes["ada"]) != maxHomes {
		t.Errorf("%d addresses are remembered", len(g.homes["ada"]))
	}
}

func TestOwnCertificate(t *testing.T) {
	dir := t.TempDir()
	c := config.Config{Listen: "127.0.0.1:0", State: dir, TLSSelfMade: true, AllowedHosts: []string{"mon.example.com"}}
	now := time.Now()
	made := func(c config.Config, now time.Time) string {
		t.Helper()
		cert, key, fingerprint, err := ownCertificate(c, "host", now)
		if err != nil || cert != filepath.Join(dir, certFile) || key != filepath.Join(dir, keyFile) || len(fingerprint) != len("SHA-256 ")+32*3-1 {
			t.Fatalf("%s, %s, %s, %v", cert, key, fingerprint, err)
		}
		return fingerprint
	}
	first := made(c, now)
	if made(c, now.Add(24*time.Hour)) != first {
		t.Error("made anew for no reason")
	}
	if made(c, now.Add(certLife-certRenew+time.Hour)) == first {
		t.Error("not made anew near its end")
	}
	second := made(c, now)
	c.AllowedHosts = append(c.AllowedHosts, "other.example.com")
	if made(c, now) == second {
		t.Error("not made anew for a new name")
	}
	if err := os.WriteFile(filepath.Join(dir, certFile), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	made(c, now)
	if info, err := os.Stat(filepath.Join(dir, keyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v, %v", info.Mode(), err)
	}

	// A client that trusts it gets the page, by address and by name.
	c.TLSCert, c.TLSKey = filepath.Join(dir, certFile), filepath.Join(dir, keyFile)
	l, err := listenPage(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.NotFoundHandler()}
	go s.Serve(l)
	defer s.Close()
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"127.0.0.1", "mon.example.com", "other.example.com", "host", "localhost"} {
		trust := x509.NewCertPool()
		trust.AddCert(pair.Leaf)
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: trust, ServerName: name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		conn.Close()
	}
	if _, _, _, err := ownCertificate(config.Config{Listen: "nonsense", State: dir}, "host", now); err == nil {
		t.Error("a strange listen address is taken")
	}
	if _, _, _, err := ownCertificate(config.Config{Listen: "0.0.0.0:0", State: filepath.Join(dir, "none")}, "host", now); err == nil {
		t.Error("a state folder that is not there is taken")
	}
}

// A session ends 12 hours after its last use, and 7 days after it began however much it is used; an open
// live socket, which only looks at it, is no use.
func TestSessionLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), t.TempDir(), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		a := &App{db: db}
		ctx := t.Context()
		if err := db.AddAccount(ctx, store.Account{Name: "otto", Role: string(RoleViewer)}); err != nil {
			t.Fatal(err)
		}
		begin := func() string {
			token, _, err := a.NewSession(ctx, "otto", "10.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		token := begin()
		time.Sleep(sessionIdle - time.Minute)
		if _, err := a.PeekSession(ctx, token); err != nil {
			t.Errorf("looked at within its time: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := a.Session(ctx, token); !errors.Is(err, ErrCredentials) {
			t.Errorf("idle for too long: %v", err)
		}
		token = begin()
		used := 0
		for start := time.Now(); time.Since(start) < sessionLife-time.Hour; time.Sleep(6 * time.Hour) {
			if _, err := a.Session(ctx, token); err != nil {
				t.Fatalf("used after %v: %v", time.Since(start), err)
			}
			used++
		}
		time.Sleep(2 * time.Hour)
		if _, err := a.Session(ctx, token); !errors.Is(err, ErrCredentials) || used < 20 {
			t.Errorf("used %d times, and still alive after its whole life: %v", used, err)
		}
	})
}
