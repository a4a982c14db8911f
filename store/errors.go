package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	sqlite3 "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"
)

// Errors that callers decide on; what methods return wraps them.
var (
	ErrNotFound  = errors.New("not found")
	ErrExists    = errors.New("exists already")
	ErrLastAdmin = errors.New("it is the last admin")
	ErrStale     = errors.New("the values have changed meanwhile")
	ErrDiskFull  = errors.New("disk full")

	ErrUnwritable = errors.New("database not writable") // locked by another program, or read-only
)

// CorruptError says that the database file is damaged or not ours. The file was not changed.
type CorruptError struct {
	Path    string
	Problem string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("database %s cannot be used: %s; nothing was changed; put a good copy in its place, or move it away to start with an empty one", e.Path, e.Problem)
}

// NewerError says that a newer o2ibd made the database. The file was not changed.
type NewerError struct {
	Path       string
	Have, Know int // schema versions: of the file, and the newest that this binary knows
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("database %s is from a newer o2ibd: schema version %d, this one knows up to %d; nothing was changed; use the newer o2ibd, or another state folder", e.Path, e.Have, e.Know)
}

// ClockError says that the clock stands before the last record of the history. Nothing was changed.
type ClockError struct{ Now, Last int64 } // milliseconds since the epoch

func (e *ClockError) Error() string {
	text := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
	return fmt.Sprintf("the clock stands at %s, before the last record of the tunables' history of %s; set the clock, or say that it is right now", text(e.Now), text(e.Last))
}

// LockedError says that another process has the state folder.
type LockedError struct {
	Dir  string
	text string
}

func (e *LockedError) Error() string { return e.text }

// explain gives an error of the database in words of its reader; nil stays nil, and so do our own.
func (s *Store) explain(what string, err error) error {
	var corrupt *CorruptError
	var newer *NewerError
	var clock *ClockError
	var sq sqlite3.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &corrupt), errors.As(err, &newer), errors.As(err, &clock), errors.Is(err, ErrNotFound), errors.Is(err, ErrExists),
		errors.Is(err, ErrLastAdmin), errors.Is(err, ErrStale):
		return err
	case errors.Is(err, sql.ErrNoRows):
		return ErrNotFound
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	}
	if errors.As(err, &sq) {
		switch {
		case sq.Code == sqlite3.ErrFull, sq.SystemErrno == unix.ENOSPC, sq.SystemErrno == unix.EDQUOT:
			return fmt.Errorf("%s: %w: database %s cannot grow, nothing of this was stored; make room there", what, ErrDiskFull, s.path)
		case sq.Code == sqlite3.ErrCorrupt, sq.Code == sqlite3.ErrNotADB:
			return &CorruptError{s.path, "it is damaged (" + sq.Error() + ")"}
		case sq.Code == sqlite3.ErrBusy, sq.Code == sqlite3.ErrLocked:
			return fmt.Errorf("%s: %w: %s is locked by another program, nothing was changed; end that program", what, ErrUnwritable, s.path)
		case sq.Code == sqlite3.ErrReadonly, sq.Code == sqlite3.ErrCantOpen, sq.Code == sqlite3.ErrPerm:
			return fmt.Errorf("%s: %w: %s (%w); change its owner or permissions", what, ErrUnwritable, s.path, err)
		case sq.Code == sqlite3.ErrInterrupt:
			return fmt.Errorf("%s: %w", what, context.Canceled)
		}
	}
	return fmt.Errorf("%s: database %s: %w", what, s.path, err)
}

// isUnique says that a row of the same key is there already.
func isUnique(err error) bool {
	var sq sqlite3.Error
	return errors.As(err, &sq) && (sq.ExtendedCode == sqlite3.ErrConstraintUnique || sq.ExtendedCode == sqlite3.ErrConstraintPrimaryKey)
}

// isForeign says that a row refers to one that is not there.
func isForeign(err error) bool {
	var sq sqlite3.Error
	return errors.As(err, &sq) && sq.ExtendedCode == sqlite3.ErrConstraintForeignKey
}

// isDamage says that SQLite cannot make sense of the file.
func isDamage(err error) bool {
	var sq sqlite3.Error
	return errors.As(err, &sq) && (sq.Code == sqlite3.ErrCorrupt || sq.Code == sqlite3.ErrNotADB) ||
		err != nil && strings.Contains(err.Error(), "malformed")
}
