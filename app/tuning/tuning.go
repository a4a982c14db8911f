// Package tuning changes tunables: it checks a change as a whole, says what the engine will make of it,
// applies it and records it, all or nothing.
//
// What is in force is laid in three: defaults (package tunables), the configuration file, and what was
// changed here, each before the one it follows. Only the last is stored; a Service owns it in memory,
// under its mutex, as a copy of what the store has. One change runs at a time: proposed is recorded, the
// engine is tuned, applied is recorded together with the values in one transaction. Whatever fails on the
// way leaves the old values in force, in the engine as in the store; a change that was cut off by the end
// of the process is closed as interrupted at the next start. Nothing is applied that is not recorded, and
// nothing is recorded as applied that the engine refused.
//
// A change may have to be confirmed within a time, or else it is rolled back, by Run or by the next New.
// While it waits no other change is made, so that rolling it back cannot undo somebody else's.
//
// The types with JSON tags are the bodies of the HTTP API.
package tuning

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Errors that callers decide on, besides *InvalidError and *ConflictError.
var (
	ErrNothing    = errors.New("no changes: name at least one tunable and its value")
	ErrInvalid    = errors.New("not valid")             // a reason, time, file or point in time that cannot be; what is allowed is in the text
	ErrEngine     = errors.New("the engine refused it") // why is in the text
	ErrNoChange   = errors.New("no such change")
	ErrNotApplied = errors.New("it is not in force")                      // what was to be confirmed or reverted
	ErrClock      = errors.New("the clock stands before the last record") // *store.ClockError says where
)

// Store is what the service needs of package store.
type Store interface {
	TunableValues(ctx context.Context) ([]store.TunableValue, int64, error)
	Propose(ctx context.Context, r store.HistoryRecord) error
	Outcome(ctx context.Context, r store.HistoryRecord) (seq int64, err error)
	InterruptOpen(ctx context.Context, at int64) ([]store.HistoryRecord, error)
	LastRecord(ctx context.Context, changeID string) (store.HistoryRecord, error)
	Record(ctx context.Context, changeID string, k store.Kind) (store.HistoryRecord, error)
	Waiting(ctx context.Context) (r store.HistoryRecord, ok bool, err error)
	ValuesAt(ctx context.Context, seq int64) ([]store.TunableValue, error)
	SeqAt(ctx context.Context, at int64) (int64, error)
	VerifyHistory(ctx context.Context) (records int64, err error)
	History(ctx context.Context, f store.HistoryFilter) ([]store.HistoryEntry, error)
}

// Applier makes the engine use next instead of prev, or fails and leaves it as it was. It is called by one
// goroutine at a time, and after a failure once more to put prev back for certain.
type Applier interface {
	Apply(ctx context.Context, prev, next tunables.Values) error
}

// ApplierFunc is a function as an Applier.
type ApplierFunc func(ctx context.Context, prev, next tunables.Values) error

// Apply calls f.
func (f ApplierFunc) Apply(ctx context.Context, prev, next tunables.Values) error {
	return f(ctx, prev, next)
}

// Options of a Service.
type Options struct {
	Store   Store
	Applier Applier
	File    tunables.Values // of the configuration file, in canonical form
	Now     func() time.Time
	IDs     io.Reader // random bytes for change IDs; crypto/rand.Reader

	Facts      func() Facts                              // what costs depend on besides; nil: nothing is known
	RolledBack func(r store.HistoryRecord, failed error) // told what Run did, or could not do; may be nil
}

// Service changes tunables. Its methods may be called by any goroutine.
type Service struct {
	opts        Options
	interrupted []store.HistoryRecord
	late        *store.HistoryRecord // what New rolled back

	turn chan struct{}        // held by the change that runs
	owed *store.HistoryRecord // outcome that the store did not take yet; of who holds turn
	wake chan struct{}        // something waits to be confirmed from now on, or no longer

	mu       sync.RWMutex
	changed  tunables.Values // what was changed here
	setBy    map[tunables.Scoped]string
	revision int64 // the record that made them so
	waiting  *waiting
	running  *Running
}

// New reads what was changed before, closing what was interrupted and rolling back what was not confirmed in
// time. It applies nothing: start the engine with Values. It fails with one line where file and stored
// values together are not valid.
func New(ctx context.Context, o Options) (*Service, error) {
	if o.File == nil {
		o.File = tunables.Values{}
	}
	if bad := tunables.Validate(o.File); len(bad) > 0 {
		return nil, fmt.Errorf("configuration file: %w", &InvalidError{bad})
	}
	s := &Service{opts: o, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	var err error
	if s.interrupted, err = o.Store.InterruptOpen(ctx, o.Now().UnixMilli()); err != nil {
		return nil, err
	}
	if err := s.resume(ctx); err != nil {
		return nil, err
	}
	if err := s.load(ctx); err != nil {
		return nil, err
	}
	if bad := tunables.Validate(s.Values()); len(bad) > 0 {
		return nil, fmt.Errorf("the configuration file and the values that were changed here do not go together: %w; change the file", &InvalidError{bad})
	}
	return s, nil
}

// load reads what the store has.
func (s *Service) load(ctx context.Context) error {
	stored, revision, err := s.opts.Store.TunableValues(ctx)
	if err != nil {
		return err
	}
	changed, setBy := tunables.Values{}, map[tunables.Scoped]string{}
	for _, v := range stored {
		k := tunables.Scoped{Scope: v.Scope, Name: v.Name}
		changed[k], setBy[k] = v.Value, v.ChangeID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed, s.setBy, s.revision = changed, setBy, revision
	return nil
}

// Values are those in force: what was changed here over what the file says.
func (s *Service) Values() tunables.Values {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.changed.Over(s.opts.File)
}

// Interrupted are the changes that New found without an outcome and closed.
func (s *Service) Interrupted() []store.HistoryRecord { return slices.Clone(s.interrupted) }

// Tag is the entity tag of what Show shows: it is another one after every change, and with another file.
func (s *Service) Tag() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tag()
}

func (s *Service) tag() string { return fmt.Sprintf("%d-%s", s.revision, s.fileSum()) }

// fileSum tells one configuration file from another.
func (s *Service) fileSum() string {
	h := sha256.New()
	for _, k := range s.opts.File.Sorted() {
		fmt.Fprintf(h, "%s=%s\n", k, s.opts.File[k])
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// InvalidError says what is wrong with a change; nothing of it was done.
type InvalidError struct{ Fields []tunables.FieldError }

// Error is one line, with the first few of the fields.
func (e *InvalidError) Error() string {
	const most = 3
	var parts []string
	for i := range e.Fields[:min(most, len(e.Fields))] {
		parts = append(parts, e.Fields[i].Error())
	}
	if more := len(e.Fields) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, "; also ")
}

// effective gives derived values, by scope, for everything that is set in v and for the global scope.
func effective(v tunables.Values, scopes []string) map[tunables.Scoped]string {
	m := map[tunables.Scoped]string{}
	for _, scope := range scopes {
		g, n, _ := tunables.Derive(v, scope)
		for _, t := range tunables.All {
			if scope == tunables.GlobalScope || t.PerNet {
				m[tunables.Scoped{Scope: scope, Name: t.Name}], _ = tunables.Effective(g, n, t.Name)
			}
		}
	}
	return m
}

// notes are those of all scopes; what a net merely inherits is said once.
func notes(v tunables.Values, scopes []string) []tunables.Note {
	var all []tunables.Note
	for _, scope := range scopes {
		_, _, ns := tunables.Derive(v, scope)
		for _, n := range ns {
			_, own := v[tunables.Scoped{Scope: scope, Name: n.Name}]
			same := func(g tunables.Note) bool { return g.Name == n.Name && g.Text == n.Text }
			if own || !slices.ContainsFunc(all, same) {
				all = append(all, n)
			}
		}
	}
	return all
}

// scopesOf are the global scope and every net that one of the sets has values for.
func scopesOf(sets ...tunables.Values) []string {
	all := tunables.Values{}
	for _, v := range sets {
		maps.Copy(all, v)
	}
	return append([]string{tunables.GlobalScope}, all.Nets()...)
}
