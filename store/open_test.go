package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"o2ibd/migrations"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// raw opens the database file of a closed store behind its back.
func raw(t *testing.T, dir string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, DatabaseName))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func oneLine(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("not one line: %q", err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not say %q", err, p)
		}
	}
}

func TestOpenFromNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b#c?%41", "state") // characters that mean something in a URI
	s := open(t, dir)
	schema, sqlite, err := s.Versions(t.Context())
	if know, _ := newest(); err != nil || schema != know || sqlite == "" {
		t.Errorf("schema %d, SQLite %q, %v", schema, sqlite, err)
	}
	if err := s.SetSetting(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, DatabaseName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: the database is for its owner only", info, err)
	}
	s = open(t, dir)
	if v, ok, err := s.Setting(t.Context(), "k"); v != "v" || !ok || err != nil {
		t.Errorf("after reopening: %q %v %v", v, ok, err)
	}
	var mode string
	var sync int
	if err := s.w.QueryRow(`PRAGMA journal_mode`).Scan(&mode); err != nil || mode != "wal" {
		t.Errorf("journal mode %q, %v", mode, err)
	}
	if err := s.w.QueryRow(`PRAGMA synchronous`).Scan(&sync); err != nil || sync != 2 {
		t.Errorf("synchronous %d, %v, want 2 (FULL)", sync, err)
	}
	if _, err := s.r.Exec(`DELETE FROM settings`); err == nil {
		t.Error("a reader can write")
	}
}

func TestOpenRefusesFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), filepath.Join(file, "state"), Options{})
	oneLine(t, err, "state folder", file, "not a directory", "--state")
	_, err = Open(t.Context(), "/proc/self", Options{}) // nobody can make files there
	oneLine(t, err, "state folder /proc/", "not writable", "--state")
}

func TestOpenRefusesFolderInUse(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	_, err := Open(t.Context(), dir, Options{})
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Dir != dir {
		t.Fatalf("%v", err)
	}
	oneLine(t, err, "another o2ibd uses it", fmt.Sprintf("pid %d", os.Getpid()))
	s.Close()
	open(t, dir) // a lock file that nobody holds is no lock
}

func TestOpenLockedByOtherProgram(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Close()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, DatabaseName)+"?_locking_mode=EXCLUSIVE&_txlock=exclusive")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`INSERT INTO settings VALUES ('a', 'b')`); err != nil {
		t.Fatal(err)
	}
	defer func(d int) { busyTimeout = d }(busyTimeout)
	busyTimeout = 10
	_, err = Open(t.Context(), dir, Options{})
	oneLine(t, err, "locked by another program", "nothing was changed")
}

func TestOpenRefusesDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"no database": func(t *testing.T, dir string) {
			write(t, dir, bytes.Repeat([]byte("not a database\n"), 1000))
		},
		"short": func(t *testing.T, dir string) { write(t, dir, []byte("x")) },
		"page overwritten": func(t *testing.T, dir string) {
			open(t, dir).Close()
			b, err := os.ReadFile(filepath.Join(dir, DatabaseName))
			if err != nil {
				t.Fatal(err)
			}
			for i := 4096; i < 3*4096; i++ {
				b[i] = 0xa5
			}
			write(t, dir, b)
		},
		"cut off": func(t *testing.T, dir string) {
			open(t, dir).Close()
			if err := os.Truncate(filepath.Join(dir, DatabaseName), 3*4096); err != nil {
				t.Fatal(err)
			}
		},
		"of another program": func(t *testing.T, dir string) { raw(t, dir, `CREATE TABLE cats (name TEXT)`) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			damage(t, dir)
			before, err := os.ReadFile(filepath.Join(dir, DatabaseName))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), dir, Options{})
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("%v", err)
			}
			oneLine(t, err, filepath.Join(dir, DatabaseName), "nothing was changed", "put a good copy in its place")
			if after, err := os.ReadFile(filepath.Join(dir, DatabaseName)); err != nil || !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
		})
	}
}

func write(t *testing.T, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, DatabaseName), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesNewer(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Close()
	raw(t, dir, `UPDATE schema_migrations SET version = 9000`)
	_, err := Open(t.Context(), dir, Options{})
	var newer *NewerError
	if know, _ := newest(); !errors.As(err, &newer) || newer.Have != 9000 || newer.Know != know {
		t.Fatalf("%v", err)
	}
	oneLine(t, err, "newer o2ibd", "schema version 9000", "nothing was changed")
}

// A crash between a migration and its mark leaves the mark "dirty"; what the database says of itself settles it.
func TestOpenAfterCrashInMigration(t *testing.T) {
	t.Run("before it was applied", func(t *testing.T) {
		dir := t.TempDir()
		raw(t, dir, `CREATE TABLE schema_migrations (version uint64, dirty bool)`, `CREATE UNIQUE INDEX version_unique ON schema_migrations (version)`,
			`INSERT INTO schema_migrations VALUES (1, 1)`)
		if err := open(t, dir).SetSetting(t.Context(), "k", "v"); err != nil {
			t.Error(err)
		}
	})
	t.Run("after it was applied", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		if err := s.SetSetting(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		s.Close()
		raw(t, dir, `UPDATE schema_migrations SET dirty = 1`)
		if v, _, err := open(t, dir).Setting(t.Context(), "k"); v != "v" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
	})
}

func TestMigrationsSetTheirNumber(t *testing.T) {
	files, err := fs.Glob(migrations.FS, "*.up.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for i, f := range files {
		b, err := fs.ReadFile(migrations.FS, f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(f, fmt.Sprintf("%04d_", i+1)) || !strings.HasSuffix(strings.TrimSpace(string(b)), fmt.Sprintf("PRAGMA user_version = %d;", i+1)) {
			t.Errorf("%s does not end by setting its number", f)
		}
	}
}

// Writes that were acknowledged are there after a kill -9, and the leftovers of the dead do no harm.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("STORE_TEST_KILLED"); dir != "" {
		s, err := Open(context.Background(), dir, Options{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for i := 0; ; i++ {
			if err := s.SetSetting(context.Background(), "i", fmt.Sprint(i)); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println(i)
		}
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "STORE_TEST_KILLED="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acked int
	for acked < 50 {
		if _, err := fmt.Fscan(out, &acked); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := readAll(out)
	_ = cmd.Wait() // it was killed
	if f := strings.Fields(rest); len(f) > 1 {
		fmt.Sscan(f[len(f)-2], &acked) // the last line may be half a line
	}
	v, ok, err := open(t, dir).Setting(t.Context(), "i")
	var stored int
	fmt.Sscan(v, &stored)
	if !ok || err != nil || stored < acked {
		t.Errorf("stored %q, acknowledged %d, %v", v, acked, err)
	}
}

func readAll(r interface{ Read([]byte) (int, error) }) (string, error) {
	var b bytes.Buffer
	_, err := b.ReadFrom(r)
	return b.String(), err
}

func TestDiskFull(t *testing.T) {
	s := open(t, t.TempDir())
	var pages int
	if err := s.w.QueryRow(`PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if _, err := s.w.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages)); err != nil {
		t.Fatal(err)
	}
	err := s.SetSetting(t.Context(), "big", strings.Repeat("x", 100_000))
	if !errors.Is(err, ErrDiskFull) {
		t.Fatalf("%v", err)
	}
	oneLine(t, err, "store setting big", "disk full", "nothing of this was stored")
	if _, ok, err := s.Setting(t.Context(), "big"); ok || err != nil {
		t.Errorf("something was stored, %v", err)
	}
	if err := s.SetSetting(t.Context(), "small", "x"); err != nil {
		t.Errorf("a small write after a full disk: %v", err)
	}
}

func TestCancelled(t *testing.T) {
	s := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.SetSetting(ctx, "k", "v"); !errors.Is(err, context.Canceled) {
		t.Errorf("write: %v", err)
	}
	if _, _, err := s.Setting(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}
