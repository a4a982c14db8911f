package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Kind is what a record of the tunables history says about its change.
type Kind string

const (
	Proposed    Kind = "proposed"    // about to be applied
	Applied     Kind = "applied"     // in force from here on
	Failed      Kind = "failed"      // the engine did not take it; nothing changed
	Interrupted Kind = "interrupted" // the appliance ended before the outcome; nothing changed
	Confirmed   Kind = "confirmed"   // an applied change that stays
	RolledBack  Kind = "rolled_back" // an applied change that was taken back
)

// follows says after which kind a record may stand.
var follows = map[Kind]Kind{Applied: Proposed, Failed: Proposed, Interrupted: Proposed, Confirmed: Applied, RolledBack: Applied}

// TunableValue is a value that is in force because it was changed here.
type TunableValue struct {
	Scope    string
	Name     string
	Value    string
	ChangeID string // the change that set it
}

// TunableChange is one setting within a change; nil is "not set".
type TunableChange struct {
	Scope string  `json:"scope"`
	Name  string  `json:"name"`
	Old   *string `json:"old"`
	New   *string `json:"new"`
}

// HistoryRecord is one record. Seq, Prev and Hash are the store's; a record after the proposal repeats
// its Changes. Times do not run backwards from record to record, unless ClockIsRight says so.
type HistoryRecord struct {
	Seq      int64           `json:"seq"`
	ChangeID string          `json:"change_id"`
	Kind     Kind            `json:"kind"`
	At       int64           `json:"at"`
	Who      string          `json:"who"`
	How      string          `json:"how"`  // page, token, cli, socket, import, system
	From     string          `json:"from"` // address
	Reason   string          `json:"reason"`
	Changes  []TunableChange `json:"changes"`
	Notes    []string        `json:"notes"`   // what the engine makes of the values
	Derived  []TunableChange `json:"derived"` // values that the engine uses and that come out differently
	Error    string          `json:"error"`   // why it failed
	Reverts  string          `json:"reverts"` // the change that this one undoes
	Since    bool            `json:"since"`   // and all that came after it
	// Time that there is to confirm the change once it is applied, and when that is over: 0 where it needs no
	// confirmation. ConfirmBy stands in the applied record alone.
	ConfirmWithin int64 `json:"confirm_within_ms"`
	ConfirmBy     int64 `json:"confirm_by"`
	// ClockIsRight lets a proposal be of an earlier time than the record before it.
	ClockIsRight bool   `json:"clock_is_right"`
	Prev         string `json:"prev_hash"` // hash of the record before, 64 zeros for the first
	Hash         string `json:"hash"`
}

// body is the part of a record that is stored as JSON.
type body struct {
	Changes       []TunableChange `json:"changes"`
	Notes         []string        `json:"notes,omitempty"`
	Derived       []TunableChange `json:"derived,omitempty"`
	Error         string          `json:"error,omitempty"`
	Reverts       string          `json:"reverts,omitempty"`
	Since         bool            `json:"since,omitempty"`
	ConfirmWithin int64           `json:"confirm_within_ms,omitempty"`
	ConfirmBy     int64           `json:"confirm_by,omitempty"`
	ClockIsRight  bool            `json:"clock_is_right,omitempty"`
}

// clockSlack is how far, in ms, a clock that is being corrected may fall behind the last record: the record
// takes that one's time then.
const clockSlack = 2000

var noHash = strings.Repeat("0", 2*sha256.Size)

// hashRecord is the hash of a record: SHA-256, in hexadecimal, over the strings below, each written as its
// length in bytes in decimal, a colon, and itself. The body is the JSON text exactly as stored.
//
//	"o2ibd history 1", seq, prev, change id, kind, at, who, how, from, reason, body
func hashRecord(r *HistoryRecord, body string) string {
	h := sha256.New()
	for _, s := range []string{
		"o2ibd history 1", strconv.FormatInt(r.Seq, 10), r.Prev, r.ChangeID, string(r.Kind), strconv.FormatInt(r.At, 10),
		r.Who, r.How, r.From, r.Reason, body,
	} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TunableValues are the values in force because they were changed here, and the number of the record that
// made them so, 0 if there is none: it grows with every change of values.
func (s *Store) TunableValues(ctx context.Context) (values []TunableValue, revision int64, err error) {
	tx, err := s.r.BeginTx(ctx, nil) // values and revision of the same moment
	if err != nil {
		return nil, 0, s.explain("read tunables", err)
	}
	defer tx.Rollback()
	values, err = tunableValues(ctx, tx)
	if err == nil {
		err = tx.QueryRowContext(ctx, `SELECT max(coalesce((SELECT max(seq) FROM tunable_history WHERE kind = ?), 0),
			coalesce((SELECT max(seq) FROM tunable_history WHERE kind = ?), 0))`, Applied, RolledBack).Scan(&revision)
	}
	return values, revision, s.explain("read tunables", err)
}

func tunableValues(ctx context.Context, tx *sql.Tx) ([]TunableValue, error) {
	rows, err := tx.QueryContext(ctx, `SELECT scope, name, value, change_id FROM tunable_values ORDER BY scope, name`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var values []TunableValue
	for rows.Next() {
		var v TunableValue
		if err := rows.Scan(&v.Scope, &v.Name, &v.Value, &v.ChangeID); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, rows.Err()
}

// Propose records that a change is about to be applied. It fails with ErrStale unless the Old of every
// setting is what is in force and no other change waits for its outcome or for confirmation, and with
// *ClockError where the clock stands before the last record.
func (s *Store) Propose(ctx context.Context, r HistoryRecord) error {
	r.Kind = Proposed
	return s.write(ctx, "record the change", func(tx *sql.Tx) error {
		last, err := lastChange(ctx, tx)
		switch {
		case err != nil:
			return err
		case last.Kind == Proposed:
			return fmt.Errorf("change %s is not finished: %w", last.ChangeID, ErrStale)
		case last.waits():
			return fmt.Errorf("change %s waits to be confirmed: %w", last.ChangeID, ErrStale)
		}
		current, err := currentValues(ctx, tx)
		if err != nil {
			return err
		}
		for _, c := range r.Changes {
			if now, set := current[key{c.Scope, c.Name}]; set != (c.Old != nil) || set && now != *c.Old {
				return fmt.Errorf("%s/%s: %w", c.Scope, c.Name, ErrStale)
			}
		}
		return appendRecord(ctx, tx, &r)
	})
}

// waits says that r is the applied record of a change that has yet to be confirmed, if r is its last.
func (r *HistoryRecord) waits() bool { return r.Kind == Applied && r.ConfirmBy != 0 }

// lastChange is the newest record of the newest change: no other can be without an outcome, or wait for
// confirmation. It is empty where there is no change.
func lastChange(ctx context.Context, q querier) (HistoryRecord, error) {
	r, err := scanRecord(q.QueryRowContext(ctx, `SELECT `+recordColumns+` FROM tunable_history WHERE change_id =
		(SELECT change_id FROM tunable_history WHERE kind = ? ORDER BY seq DESC LIMIT 1) ORDER BY seq DESC LIMIT 1`, Proposed))
	if errors.Is(err, sql.ErrNoRows) {
		return HistoryRecord{}, nil
	}
	return r, err
}

// querier is a transaction or the readers.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Waiting is the applied record of the change that waits to be confirmed; ok is false where none does.
func (s *Store) Waiting(ctx context.Context) (r HistoryRecord, ok bool, err error) {
	r, err = lastChange(ctx, s.r)
	return r, err == nil && r.waits(), s.explain("read history", err)
}

// Outcome records what became of a change: applied, failed or interrupted after its proposal, confirmed or
// rolled back after it was applied. Applied stores the new values in the same transaction, rolled back the
// old ones. Of r all counts but Changes. It returns the number of the record. Where there is no such change
// in such a state it fails with ErrNotFound.
func (s *Store) Outcome(ctx context.Context, r HistoryRecord) (seq int64, err error) {
	err = s.write(ctx, "record the outcome of change "+r.ChangeID, func(tx *sql.Tx) error {
		return outcome(ctx, tx, &r)
	})
	return r.Seq, err
}

func outcome(ctx context.Context, tx *sql.Tx, r *HistoryRecord) error {
	before, known := follows[r.Kind]
	if !known {
		return fmt.Errorf("%q is not an outcome", r.Kind)
	}
	last, err := scanRecord(tx.QueryRowContext(ctx, `SELECT `+recordColumns+` FROM tunable_history WHERE change_id = ? ORDER BY seq DESC LIMIT 1`, r.ChangeID))
	if errors.Is(err, sql.ErrNoRows) || err == nil && last.Kind != before {
		return fmt.Errorf("change %s without outcome: %w", r.ChangeID, ErrNotFound)
	}
	if err != nil {
		return err
	}
	r.Changes = last.Changes
	if err := appendRecord(ctx, tx, r); err != nil {
		return err
	}
	for _, c := range r.Changes {
		value, changed := r.leaves(c)
		if !changed {
			continue
		}
		if value == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM tunable_values WHERE scope = ? AND name = ?`, c.Scope, c.Name)
		} else {
			_, err = tx.ExecContext(ctx, `INSERT INTO tunable_values (scope, name, value, change_id) VALUES (?, ?, ?, ?)
				ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, change_id = excluded.change_id`, c.Scope, c.Name, *value, r.ChangeID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaves is the value that a setting has after r, if r changes it at all.
func (r *HistoryRecord) leaves(c TunableChange) (value *string, changed bool) {
	switch r.Kind {
	case Applied:
		return c.New, true
	case RolledBack:
		return c.Old, true
	}
	return nil, false
}

// InterruptOpen closes the change that has no outcome: the appliance ended in the middle of it. It returns
// the records that it added.
func (s *Store) InterruptOpen(ctx context.Context, at int64) (closed []HistoryRecord, err error) {
	err = s.write(ctx, "close interrupted changes", func(tx *sql.Tx) error {
		r, err := lastChange(ctx, tx)
		if err != nil || r.Kind != Proposed {
			return err
		}
		end := HistoryRecord{
			ChangeID: r.ChangeID, Kind: Interrupted, At: at, Who: "o2ibd", How: "system", Reason: r.Reason,
			Changes: r.Changes, Error: "o2ibd ended before the outcome was known; the old values are in force",
		}
		if err := outcome(ctx, tx, &end); err != nil {
			return err
		}
		closed = append(closed, end)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return closed, nil
}

// LastRecord is the newest record of a change, which says what became of it.
func (s *Store) LastRecord(ctx context.Context, changeID string) (HistoryRecord, error) {
	r, err := scanRecord(s.r.QueryRowContext(ctx, `SELECT `+recordColumns+` FROM tunable_history WHERE change_id = ? ORDER BY seq DESC LIMIT 1`, changeID))
	return r, s.explain("read change "+clip(changeID), err)
}

// HistoryFilter selects changes, newest first; zero fields select all.
type HistoryFilter struct {
	ChangeID  string
	Name      string // of a tunable that the change sets
	Scope     string // of a setting that the change makes
	Who       string
	How       string // a part of it
	Outcome   Kind   // what stands about the change now
	Text      string // a part of the reason
	From, To  int64  // proposed at From or later, before To; 0: no bound
	BeforeSeq int64  // only older records, for paging back
	Limit     int    // 0: 100, at most 1000
}

// History gives for each change that the filter selects its newest record and the proposal that began it,
// newest proposal first.
func (s *Store) History(ctx context.Context, f HistoryFilter) ([]HistoryEntry, error) {
	where, args := []string{`p.kind = ?`}, []any{Proposed}
	for _, c := range []struct {
		on   bool
		cond string
		args []any
	}{
		{f.ChangeID != "", `p.change_id = ?`, []any{f.ChangeID}},
		{f.Name != "", `p.seq IN (SELECT seq FROM tunable_history_settings WHERE name = ?)`, []any{f.Name}},
		{f.Scope != "", `p.seq IN (SELECT seq FROM tunable_history_settings WHERE scope = ?)`, []any{f.Scope}},
		{f.Who != "", `p.who = ?`, []any{f.Who}},
		{f.How != "", `instr(p.how, ?) > 0`, []any{f.How}},
		{f.Outcome != "", `l.kind = ?`, []any{f.Outcome}},
		// Most changes are applied; the others are few, and only the newest can be without an outcome.
		{f.Outcome == Proposed, `p.seq = (SELECT max(seq) FROM tunable_history WHERE kind = ?)`, []any{Proposed}},
		{f.Outcome != "" && f.Outcome != Applied && f.Outcome != Proposed, `p.change_id IN (SELECT change_id FROM tunable_history WHERE kind = ?)`, []any{f.Outcome}},
		{f.Text != "", `instr(lower(p.reason), lower(?)) > 0`, []any{f.Text}},
		{f.From != 0, `p.at >= ?`, []any{f.From}},
		{f.To != 0, `p.at < ?`, []any{f.To}},
		{f.BeforeSeq > 0, `p.seq < ?`, []any{f.BeforeSeq}},
	} {
		if c.on {
			where, args = append(where, c.cond), append(args, c.args...)
		}
	}
	if f.Name != "" && f.Scope != "" {
		where, args = append(where, `p.seq IN (SELECT seq FROM tunable_history_settings WHERE name = ? AND scope = ?)`), append(args, f.Name, f.Scope)
	}
	args = append(args, limit(f.Limit))
	var entries []HistoryEntry
	err := s.read(ctx, "read history", func(row scanner) error {
		var e HistoryEntry
		var raw [2]string
		if err := row.Scan(append(recordFields(&e.Proposal, &raw[0]), recordFields(&e.Last, &raw[1])...)...); err != nil {
			return err
		}
		entries = append(entries, e)
		return errors.Join(parseBody(&entries[len(entries)-1].Proposal, raw[0]), parseBody(&entries[len(entries)-1].Last, raw[1]))
	}, `SELECT `+prefixed("p")+`, `+prefixed("l")+` FROM tunable_history p
		JOIN tunable_history l ON l.seq = (SELECT max(seq) FROM tunable_history x WHERE x.change_id = p.change_id)
		WHERE `+strings.Join(where, ` AND `)+` ORDER BY p.seq DESC LIMIT ?`, args...)
	return entries, err
}

// ValuesAt are the values that were in force, because they were changed here, right after the record seq.
func (s *Store) ValuesAt(ctx context.Context, seq int64) ([]TunableValue, error) {
	var values []TunableValue
	err := s.read(ctx, "read tunables", func(row scanner) error {
		var v TunableValue
		var set *string
		var last int64
		if err := row.Scan(&v.Scope, &v.Name, &set, &last); err != nil {
			return err
		}
		if set != nil {
			v.Value = *set
			values = append(values, v)
		}
		return nil
	}, `SELECT scope, name, value, max(seq) FROM tunable_history_settings WHERE seq <= ? AND kind IN (?, ?) GROUP BY name, scope`,
		seq, Applied, RolledBack)
	return values, err
}

// SeqAt is the number of the last record made at a time or before it, 0 if there was none yet.
func (s *Store) SeqAt(ctx context.Context, at int64) (seq int64, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT coalesce(max(seq), 0) FROM tunable_history WHERE at <= ?`, at).Scan(&seq)
	return seq, s.explain("read history", err)
}

// Record is the record of a change of a kind, or ErrNotFound.
func (s *Store) Record(ctx context.Context, changeID string, k Kind) (HistoryRecord, error) {
	r, err := scanRecord(s.r.QueryRowContext(ctx, `SELECT `+recordColumns+` FROM tunable_history WHERE change_id = ? AND kind = ?`, changeID, k))
	return r, s.explain("read change "+clip(changeID), err)
}

// HistoryEntry is one change: how it was proposed, and what stands about it now.
type HistoryEntry struct {
	Proposal HistoryRecord `json:"proposal"`
	Last     HistoryRecord `json:"last"` // the proposal itself while there is no outcome
}

// ChainError says that the history is not what was written.
type ChainError struct {
	Seq     int64 // the first record that is wrong
	Problem string
}

func (e *ChainError) Error() string {
	return fmt.Sprintf("history of tunables is not as it was written: record %d: %s", e.Seq, e.Problem)
}

// VerifyHistory checks the whole history: hashes, order, that no record is missing at the end, that the
// values in force are those that it leads to, and what is derived from it. It gives the number of records;
// what is wrong comes as a *ChainError.
func (s *Store) VerifyHistory(ctx context.Context) (records int64, err error) {
	tx, err := s.r.BeginTx(ctx, nil)
	if err != nil {
		return 0, s.explain("verify history", err)
	}
	defer tx.Rollback()
	records, err = verify(ctx, tx)
	if err == nil {
		err = verifyDerived(ctx, tx)
	}
	var chain *ChainError
	if errors.As(err, &chain) {
		return records, chain
	}
	return records, s.explain("verify history", err)
}

func verifyDerived(ctx context.Context, tx *sql.Tx) error {
	for _, q := range []string{
		`SELECT seq FROM (SELECT * FROM tunable_history_settings_wanted EXCEPT SELECT * FROM tunable_history_settings) LIMIT 1`,
		`SELECT seq FROM (SELECT * FROM tunable_history_settings EXCEPT SELECT * FROM tunable_history_settings_wanted) LIMIT 1`,
	} {
		var seq int64
		switch err := tx.QueryRowContext(ctx, q).Scan(&seq); {
		case err == nil:
			return &ChainError{seq, "the table of its settings says something else"}
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
	}
	return nil
}

func verify(ctx context.Context, tx *sql.Tx) (seq int64, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT `+recordColumns+` FROM tunable_history ORDER BY seq`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	prev := noHash
	replayed, last := map[key]string{}, map[string]Kind{}
	for rows.Next() {
		var r HistoryRecord
		var raw string
		if err := rows.Scan(recordFields(&r, &raw)...); err != nil {
			return seq, err
		}
		seq++
		switch {
		case r.Seq != seq:
			return seq, &ChainError{seq, "it is missing"}
		case r.Prev != prev:
			return seq, &ChainError{seq, "it does not follow the one before"}
		case r.Hash != hashRecord(&r, raw):
			return seq, &ChainError{seq, "it was altered"}
		case r.Kind != Proposed && last[r.ChangeID] != follows[r.Kind], r.Kind == Proposed && last[r.ChangeID] != "":
			return seq, &ChainError{seq, fmt.Sprintf("%s cannot follow %q", r.Kind, last[r.ChangeID])}
		}
		if err := parseBody(&r, raw); err != nil {
			return seq, &ChainError{seq, err.Error()}
		}
		prev, last[r.ChangeID] = r.Hash, r.Kind
		for _, c := range r.Changes {
			if value, changed := r.leaves(c); changed && value == nil {
				delete(replayed, key{c.Scope, c.Name})
			} else if changed {
				replayed[key{c.Scope, c.Name}] = *value
			}
		}
	}
	if err := rows.Err(); err != nil {
		return seq, err
	}
	head, err := readHead(ctx, tx)
	if err != nil {
		return seq, err
	}
	if head.Seq != seq || head.Hash != prev {
		return seq, &ChainError{seq + 1, fmt.Sprintf("it is missing, there should be %d records", head.Seq)}
	}
	current, err := currentValues(ctx, tx)
	if err != nil {
		return seq, err
	}
	if !maps.Equal(current, replayed) {
		return seq, &ChainError{seq, "the values in force are not those that the history leads to"}
	}
	return seq, nil
}

// key names one setting.
type key struct{ scope, name string }

func currentValues(ctx context.Context, tx *sql.Tx) (map[key]string, error) {
	values, err := tunableValues(ctx, tx)
	if err != nil {
		return nil, err
	}
	m := make(map[key]string, len(values))
	for _, v := range values {
		m[key{v.Scope, v.Name}] = v.Value
	}
	return m, nil
}

// appendRecord chains r to the last record and stores it.
func appendRecord(ctx context.Context, tx *sql.Tx, r *HistoryRecord) error {
	head, err := readHead(ctx, tx)
	if err != nil {
		return err
	}
	if r.Changes == nil {
		r.Changes = []TunableChange{}
	}
	if r.At < head.At {
		if r.Kind == Proposed && !r.ClockIsRight && head.At-r.At > clockSlack {
			return &ClockError{Now: r.At, Last: head.At}
		}
		if !r.ClockIsRight {
			r.At = head.At
		}
	}
	raw, err := json.Marshal(body{r.Changes, r.Notes, r.Derived, r.Error, r.Reverts, r.Since, r.ConfirmWithin, r.ConfirmBy, r.ClockIsRight})
	if err != nil {
		return err
	}
	r.Seq, r.Prev = head.Seq+1, head.Hash
	r.Hash = hashRecord(r, string(raw))
	_, err = tx.ExecContext(ctx, `INSERT INTO tunable_history (`+recordColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Seq, r.ChangeID, r.Kind, r.At, r.Who, r.How, r.From, r.Reason, string(raw), r.Prev, r.Hash)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO tunable_history_head (one, seq, hash) VALUES (1, ?, ?)
		ON CONFLICT (one) DO UPDATE SET seq = excluded.seq, hash = excluded.hash`, r.Seq, r.Hash)
	return err
}

func readHead(ctx context.Context, tx *sql.Tx) (HistoryRecord, error) {
	head := HistoryRecord{Hash: noHash}
	err := tx.QueryRowContext(ctx, `SELECT d.seq, d.hash, coalesce((SELECT at FROM tunable_history h WHERE h.seq = d.seq), 0) FROM tunable_history_head d`).
		Scan(&head.Seq, &head.Hash, &head.At)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return head, err
}

const recordColumns = `seq, change_id, kind, at, who, how, from_addr, reason, body, prev_hash, hash`

func prefixed(table string) string {
	return table + "." + strings.ReplaceAll(recordColumns, ", ", ", "+table+".")
}

// recordFields are where the columns of a record go.
func recordFields(r *HistoryRecord, raw *string) []any {
	return []any{&r.Seq, &r.ChangeID, &r.Kind, &r.At, &r.Who, &r.How, &r.From, &r.Reason, raw, &r.Prev, &r.Hash}
}

func scanRecord(row scanner) (HistoryRecord, error) {
	var r HistoryRecord
	var raw string
	if err := row.Scan(recordFields(&r, &raw)...); err != nil {
		return r, err
	}
	return r, parseBody(&r, raw)
}

func parseBody(r *HistoryRecord, raw string) error {
	var b body
	if err := json.Unmarshal([]byte(raw), &b); err != nil {
		return fmt.Errorf("record %d: its body cannot be read: %w", r.Seq, err)
	}
	r.Changes, r.Notes, r.Derived, r.Error = b.Changes, b.Notes, b.Derived, b.Error
	r.Reverts, r.Since, r.ConfirmWithin, r.ConfirmBy, r.ClockIsRight = b.Reverts, b.Since, b.ConfirmWithin, b.ConfirmBy, b.ClockIsRight
	return nil
}
