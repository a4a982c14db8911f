// Package store keeps what outlives a run of the appliance, in one SQLite database: tunables with their
// history, accounts, sessions, tokens, sign-in links, events, audit log, bundles and settings. It is the
// only package that knows SQL; callers see typed methods.
//
// A Store may be used by any goroutine. Writes are serialised on one connection that commits with
// synchronous=FULL: a write method that returned nil is on disk. Reads use connections of their own and
// see the last commit. Rows are plain values; times are milliseconds since the epoch.
//
// A Store never deletes or replaces a database by itself: what it cannot use, Open refuses with one line
// that says how to mend it.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	sqlite3 "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"
)

// Names of the files in the state folder; SQLite adds "-wal" and "-shm" beside the database.
const (
	DatabaseName = "o2ibd.db"
	LockName     = "o2ibd.lock"
)

// DefaultKeepEvents is how many events are kept where Options do not say.
const DefaultKeepEvents = 20000

const readers = 4

// busyTimeout is how many ms a statement waits for another program, such as a backup; tests shorten it.
var busyTimeout = 5000

// Options of a Store.
type Options struct {
	KeepEvents int // newest events that are kept; 0: DefaultKeepEvents
}

// Store is an open database. Close it when done.
type Store struct {
	path       string
	keepEvents int
	lock       *os.File
	w          *sql.DB // one connection
	r          *sql.DB
}

// Open opens the database in the state folder dir, makes both if there are none, and brings the schema up
// to date. One process at a time may have a state folder open.
func Open(ctx context.Context, dir string, o Options) (_ *Store, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("state folder %s: %w", dir, err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{path: filepath.Join(dir, DatabaseName), keepEvents: o.KeepEvents, lock: lock}
	if s.keepEvents <= 0 {
		s.keepEvents = DefaultKeepEvents
	}
	defer func() {
		if err != nil {
			_ = s.Close() // err says more
		}
	}()
	if err := s.inspect(ctx); err != nil {
		return nil, s.explain("open", err)
	}
	if err := s.create(); err != nil {
		return nil, err
	}
	if s.w, err = sql.Open("sqlite3", s.dsn("_journal_mode=WAL&_synchronous=FULL&_foreign_keys=1&_txlock=immediate")); err != nil {
		return nil, s.explain("open", err)
	}
	s.w.SetMaxOpenConns(1)
	if err := s.migrate(ctx); err != nil {
		return nil, s.explain("set up", err)
	}
	if s.r, err = sql.Open("sqlite3", s.dsn("mode=ro")); err != nil {
		return nil, s.explain("open", err)
	}
	s.r.SetMaxOpenConns(readers)
	s.r.SetMaxIdleConns(readers)
	if err := s.r.PingContext(ctx); err != nil {
		return nil, s.explain("open", err)
	}
	return s, nil
}

// Close waits for what is under way and closes the database. Only the first call does anything.
func (s *Store) Close() error {
	var errs []error
	if s.r != nil {
		errs = append(errs, s.r.Close())
	}
	if s.w != nil {
		errs = append(errs, s.w.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	s.r, s.w, s.lock = nil, nil, nil
	return errors.Join(errs...)
}

// Path of the database file.
func (s *Store) Path() string { return s.path }

// Versions are the number of the last migration and SQLite's own version.
func (s *Store) Versions(ctx context.Context) (schema int, sqlite string, err error) {
	sqlite, _, _ = sqlite3.Version()
	err = s.r.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&schema)
	return schema, sqlite, s.explain("read", err)
}

// create makes an empty file where there is none, which SQLite takes for an empty database: SQLite's own
// would be readable by everybody.
func (s *Store) create() error {
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("database %s is not writable: %w; change its owner or permissions", s.path, errors.Unwrap(err))
	}
	return f.Close()
}

func (s *Store) dsn(params string) string {
	return "file:" + (&url.URL{Path: s.path}).EscapedPath() + "?_busy_timeout=" + strconv.Itoa(busyTimeout) + "&" + params
}

// lockFolder makes sure that dir is there, can be written, and is ours alone as long as the file is open.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("state folder %s cannot be made: %w; give another one with --state", dir, errors.Unwrap(err))
	}
	f, err := os.OpenFile(filepath.Join(dir, LockName), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("state folder %s is not writable: %w; give another one with --state, or change its owner", dir, errors.Unwrap(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("state folder %s cannot be locked: %w", dir, err)
		}
		holder := make([]byte, 20)
		n, _ := f.Read(holder) // a holder that has not yet written its pid is as good a holder
		who := "another o2ibd uses it"
		if pid, err := strconv.Atoi(strings.TrimSpace(string(holder[:n]))); err == nil {
			who += ", pid " + strconv.Itoa(pid)
		}
		return nil, &LockedError{Dir: dir, text: fmt.Sprintf("state folder %s: %s; stop that one, or give another folder with --state", dir, who)}
	}
	if err := writePid(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("state folder %s is not writable: %w", dir, err)
	}
	return f, nil
}

func writePid(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// write runs f in a transaction on the writer. what goes into errors: "store the change".
func (s *Store) write(ctx context.Context, what string, f func(tx *sql.Tx) error) error {
	tx, err := s.w.BeginTx(ctx, nil)
	if err != nil {
		return s.explain(what, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // err says more
		return s.explain(what, err)
	}
	return s.explain(what, tx.Commit())
}

// exec is write for a single statement; it says how many rows that concerned.
func (s *Store) exec(ctx context.Context, what, query string, args ...any) (n int64, err error) {
	err = s.write(ctx, what, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, query, args...)
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	})
	return n, err
}

// read runs a query on the readers and hands each row to scan.
func (s *Store) read(ctx context.Context, what string, scan func(row scanner) error, query string, args ...any) error {
	rows, err := s.r.QueryContext(ctx, query, args...)
	if err != nil {
		return s.explain(what, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return s.explain(what, err)
		}
	}
	return s.explain(what, rows.Err())
}

// scanner is a row under the cursor, of sql.Row or sql.Rows.
type scanner interface{ Scan(dest ...any) error }
