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
// its Changes.
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
	Notes    []string        `json:"notes"`     // what the engine makes of the values
	Error    string          `json:"error"`     // why it failed
	Prev     string          `json:"prev_hash"` // hash of the record before, 64 zeros for the first
	Hash     string          `json:"hash"`
}

// body is the part of a record that is stored as JSON.
type body struct {
	Changes []TunableChange `json:"changes"`
	Notes   []string        `json:"notes,omitempty"`
	Error   string          `json:"error,omitempty"`
}

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
		err = tx.QueryRowContext(ctx, `SELECT coalesce(max(seq), 0) FROM tunable_history WHERE kind IN (?, ?)`, Applied, RolledBack).Scan(&revision)
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
// setting is what is in force and no other change is between its proposal and its outcome.
func (s *Store) Propose(ctx context.Context, r HistoryRecord) error {
	r.Kind = Proposed
	return s.write(ctx, "record the change", func(tx *sql.Tx) error {
		open, err := openChanges(ctx, tx)
		if err != nil {
			return err
		}
		if len(open) > 0 {
			return fmt.Errorf("change %s is not finished: %w", open[0].ChangeID, ErrStale)
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

// Outcome records what became of a change: applied, failed or interrupted after its proposal, confirmed or
// rolled back after it was applied. Applied stores the new values in the same transaction, rolled back the
// old ones. Of r only ChangeID, Kind, At, Who, How, From, Reason, Notes and Error count. It returns the number
// of the record. Where there is no such change in such a state it fails with ErrNotFound.
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

// InterruptOpen closes every change that has no outcome: the appliance ended in the middle of it. It
// returns the records that it added.
func (s *Store) InterruptOpen(ctx context.Context, at int64) (closed []HistoryRecord, err error) {
	err = s.write(ctx, "close interrupted changes", func(tx *sql.Tx) error {
		open, err := openChanges(ctx, tx)
		if err != nil {
			return err
		}
		for _, r := range open {
			end := HistoryRecord{
				ChangeID: r.ChangeID, Kind: Interrupted, At: at, Who: "o2ibd", How: "system", Reason: r.Reason,
				Changes: r.Changes, Error: "o2ibd ended before the outcome was known; the old values are in force",
			}
			if err := outcome(ctx, tx, &end); err != nil {
				return err
			}
			closed = append(closed, end)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return closed, nil
}

func openChanges(ctx context.Context, tx *sql.Tx) ([]HistoryRecord, error) {
	rows, err := tx.QueryContext(ctx, `SELECT `+recordColumns+` FROM tunable_history h WHERE kind = ?
		AND NOT EXISTS (SELECT 1 FROM tunable_history o WHERE o.change_id = h.change_id AND o.seq > h.seq) ORDER BY seq`, Proposed)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var open []HistoryRecord
	for rows.Next() {
		r, err := scanRecord(rows)
		if err != nil {
			return nil, err
		}
		open = append(open, r)
	}
	return open, rows.Err()
}

// LastRecord is the newest record of a change, which says what became of it.
func (s *Store) LastRecord(ctx context.Context, changeID string) (HistoryRecord, error) {
	r, err := scanRecord(s.r.QueryRowContext(ctx, `SELECT `+recordColumns+` FROM tunable_history WHERE change_id = ? ORDER BY seq DESC LIMIT 1`, changeID))
	return r, s.explain("read change "+clip(changeID), err)
}

// HistoryFilter selects records, newest first; zero fields select all.
type HistoryFilter struct {
	ChangeID  string
	Name      string // of a tunable that the change sets
	Scope     string // of a setting that the change makes
	Who       string
	BeforeSeq int64 // only older records, for paging back
	Limit     int   // 0: 100, at most 1000
}

// History gives for each change that the filter selects its newest record and the proposal that began it,
// newest proposal first.
func (s *Store) History(ctx context.Context, f HistoryFilter) ([]HistoryEntry, error) {
	where, args := []string{`p.kind = ?`}, []any{Proposed}
	add := func(cond string, arg any) {
		where, args = append(where, cond), append(args, arg)
	}
	if f.ChangeID != "" {
		add(`p.change_id = ?`, f.ChangeID)
	}
	if f.Name != "" {
		add(`EXISTS (SELECT 1 FROM json_each(p.body, '$.changes') c WHERE c.value ->> 'name' = ?)`, f.Name)
	}
	if f.Scope != "" {
		add(`EXISTS (SELECT 1 FROM json_each(p.body, '$.changes') c WHERE c.value ->> 'scope' = ?)`, f.Scope)
	}
	if f.Who != "" {
		add(`p.who = ?`, f.Who)
	}
	if f.BeforeSeq > 0 {
		add(`p.seq < ?`, f.BeforeSeq)
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

// VerifyHistory checks the whole history: hashes, order, that no record is missing at the end, and that
// the values in force are those that it leads to. What is wrong comes as a *ChainError.
func (s *Store) VerifyHistory(ctx context.Context) error {
	tx, err := s.r.BeginTx(ctx, nil)
	if err != nil {
		return s.explain("verify history", err)
	}
	defer tx.Rollback()
	err = verify(ctx, tx)
	var chain *ChainError
	if errors.As(err, &chain) {
		return chain
	}
	return s.explain("verify history", err)
}

func verify(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, `SELECT `+recordColumns+` FROM tunable_history ORDER BY seq`)
	if err != nil {
		return err
	}
	defer rows.Close()
	prev, seq := noHash, int64(0)
	replayed, last := map[key]string{}, map[string]Kind{}
	for rows.Next() {
		var r HistoryRecord
		var raw string
		if err := rows.Scan(recordFields(&r, &raw)...); err != nil {
			return err
		}
		seq++
		switch {
		case r.Seq != seq:
			return &ChainError{seq, "it is missing"}
		case r.Prev != prev:
			return &ChainError{seq, "it does not follow the one before"}
		case r.Hash != hashRecord(&r, raw):
			return &ChainError{seq, "it was altered"}
		case r.Kind != Proposed && last[r.ChangeID] != follows[r.Kind], r.Kind == Proposed && last[r.ChangeID] != "":
			return &ChainError{seq, fmt.Sprintf("%s cannot follow %q", r.Kind, last[r.ChangeID])}
		}
		if err := parseBody(&r, raw); err != nil {
			return &ChainError{seq, err.Error()}
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
		return err
	}
	head, err := readHead(ctx, tx)
	if err != nil {
		return err
	}
	if head.Seq != seq || head.Hash != prev {
		return &ChainError{seq + 1, fmt.Sprintf("it is missing, there should be %d records", head.Seq)}
	}
	current, err := currentValues(ctx, tx)
	if err != nil {
		return err
	}
	if !maps.Equal(current, replayed) {
		return &ChainError{seq, "the values in force are not those that the history leads to"}
	}
	return nil
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
	raw, err := json.Marshal(body{r.Changes, r.Notes, r.Error})
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
	err := tx.QueryRowContext(ctx, `SELECT seq, hash FROM tunable_history_head`).Scan(&head.Seq, &head.Hash)
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
	r.Changes, r.Notes, r.Error = b.Changes, b.Notes, b.Error
	return nil
}
