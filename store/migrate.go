package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratesqlite "github.com/golang-migrate/migrate/v4/database/sqlite3"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"o2ibd/migrations"
)

// inspect looks at an existing database without changing it, and refuses what cannot be used.
func (s *Store) inspect(ctx context.Context) error {
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &CorruptError{s.path, "it is not a file"}
	}
	if err := s.checkHeader(); err != nil { // SQLite itself takes a file that is too short for an empty one
		return err
	}
	db, err := sql.Open("sqlite3", s.dsn("mode=ro"))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)

	var check string
	err = db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&check)
	if isDamage(err) {
		return &CorruptError{s.path, "it is damaged or no database (" + err.Error() + ")"}
	}
	if err != nil {
		return err
	}
	if check != "ok" {
		return &CorruptError{s.path, "it is damaged (" + strings.Join(strings.Fields(check), " ") + ")"}
	}
	var tables, ours int
	if err := db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(name = 'schema_migrations'), 0) FROM sqlite_schema WHERE type = 'table'`).Scan(&tables, &ours); err != nil {
		return err
	}
	if tables == 0 {
		return nil
	}
	if ours == 0 {
		return &CorruptError{s.path, "another program made it"}
	}
	have, know := 0, 0
	if err := db.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM schema_migrations`).Scan(&have); err != nil {
		return err
	}
	if know, err = newest(); err != nil {
		return err
	}
	if have > know {
		return &NewerError{s.path, have, know}
	}
	return nil
}

func (s *Store) checkHeader() error {
	const magic = "SQLite format 3\x00"
	f, err := os.Open(s.path)
	if err != nil {
		return fmt.Errorf("not readable: %w", errors.Unwrap(err))
	}
	defer f.Close()
	b := make([]byte, len(magic))
	if n, _ := f.Read(b); string(b[:n]) != magic {
		return &CorruptError{s.path, "it is no database"}
	}
	return nil
}

// migrate brings the schema up to date.
func (s *Store) migrate(ctx context.Context) error {
	if err := s.w.PingContext(ctx); err != nil {
		return err
	}
	src, err := iofs.New(migrations.FS, ".")
	if err != nil {
		return err
	}
	defer src.Close()
	drv, err := migratesqlite.WithInstance(s.w, &migratesqlite.Config{})
	if err != nil {
		return err
	}
	// Closing m would close the writer with it, so only the source is closed.
	m, err := migrate.NewWithInstance("iofs", src, "sqlite3", drv)
	if err != nil {
		return err
	}
	if err := s.settle(ctx, m, drv); err != nil {
		return err
	}
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		var dbErr database.Error
		if errors.As(err, &dbErr) && dbErr.OrigErr != nil {
			err = dbErr.OrigErr // without the text of the whole migration
		}
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// settle clears the mark of a migration that a crash interrupted. Each is one transaction that ends by
// setting user_version, so that tells whether it took place.
func (s *Store) settle(ctx context.Context, m *migrate.Migrate, drv database.Driver) error {
	version, dirty, err := drv.Version()
	if err != nil || !dirty {
		return err
	}
	var done int
	if err := s.w.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&done); err != nil {
		return err
	}
	if done == 0 {
		return m.Force(database.NilVersion)
	}
	if done > version {
		return &CorruptError{s.path, fmt.Sprintf("its schema versions %d and %d contradict each other", version, done)}
	}
	return m.Force(done)
}

// newest is the number of the last migration in the binary.
func newest() (int, error) {
	files, err := fs.Glob(migrations.FS, "*.up.sql")
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("no migrations in the binary: %w", err)
	}
	number, _, _ := strings.Cut(files[len(files)-1], "_")
	return strconv.Atoi(number)
}
