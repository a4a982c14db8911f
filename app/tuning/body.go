package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// Scalar is the value of a tunable. In JSON a number is a number and all else a string; both are read,
// and true and false as 1 and 0. A nil *Scalar is "not set", null in JSON.
type Scalar string

// NewScalar is a value that is set.
func NewScalar(s string) *Scalar {
	v := Scalar(s)
	return &v
}

var plainNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,15})$`)

// MarshalJSON writes a number or a string.
func (s Scalar) MarshalJSON() ([]byte, error) {
	if plainNumber.MatchString(string(s)) {
		return []byte(s), nil
	}
	return json.Marshal(string(s))
}

// UnmarshalJSON reads a string, number, true or false.
func (s *Scalar) UnmarshalJSON(b []byte) error {
	switch b = bytes.TrimSpace(b); {
	case len(b) > 0 && b[0] == '"':
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		*s = Scalar(text)
	case string(b) == "true":
		*s = "1"
	case string(b) == "false":
		*s = "0"
	case len(b) > 0 && (b[0] == '-' || b[0] >= '0' && b[0] <= '9'):
		*s = Scalar(b)
	default:
		return errors.New("a tunable's value is a number, a string or null")
	}
	return nil
}

func (s *Scalar) words() string {
	if s == nil {
		return "not set"
	}
	return strconv.Quote(string(*s))
}

// Change is one setting to change; a nil Value unsets it, so that the file's value or the default counts.
type Change struct {
	Scope string  `json:"scope"` // "" is global
	Name  string  `json:"name"`
	Value *Scalar `json:"value"`
}

// Changes are read from a list of changes or, in short, from {"NAME": VALUE, "NET/NAME": VALUE}.
type Changes []Change

// UnmarshalJSON reads both forms. A change without a value is an error: unsetting is done by null.
func (c *Changes) UnmarshalJSON(b []byte) error {
	*c = nil
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	tok, err := dec.Token()
	if err != nil {
		return err
	}
	switch tok {
	case json.Delim('{'):
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return err
			}
			text, _ := name.(string) // a key is a string
			ch := Change{Scope: tunables.GlobalScope, Name: text}
			if scope, rest, found := strings.Cut(text, "/"); found {
				ch.Scope, ch.Name = scope, rest
			}
			if err := dec.Decode(&ch.Value); err != nil {
				return fmt.Errorf("changes: %q: %w", text, err)
			}
			*c = append(*c, ch)
		}
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			ch, err := readChange(dec)
			if err != nil {
				return fmt.Errorf("changes[%d]: %w", i, err)
			}
			*c = append(*c, ch)
		}
	case nil:
		return nil
	default:
		return errors.New(`changes: a list of {"scope", "name", "value"}, or {NAME: VALUE}, is wanted`)
	}
	return nil
}

func readChange(dec *json.Decoder) (Change, error) {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return Change{}, err
	}
	var in struct {
		Scope string          `json:"scope"`
		Name  string          `json:"name"`
		Value json.RawMessage `json:"value"`
	}
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&in); err != nil {
		return Change{}, err
	}
	if in.Value == nil {
		return Change{}, errors.New("no value: give one, or null to unset")
	}
	ch := Change{Scope: in.Scope, Name: in.Name}
	return ch, json.Unmarshal(in.Value, &ch.Value)
}

// Patch is the body of PATCH /api/v1/tunables; a Result answers it.
type Patch struct {
	Changes        Changes `json:"changes"`
	Reason         string  `json:"reason"`
	ConfirmWithinS float64 `json:"confirm_within_s"`
	DryRun         bool    `json:"dry_run"`
	ClockIsRight   bool    `json:"clock_is_right,omitempty"`
}

// Request is what p asks for; who and how are the caller's to fill in.
func (p Patch) Request() Request {
	return Request{Changes: p.Changes, Reason: p.Reason, DryRun: p.DryRun, ConfirmWithin: seconds(p.ConfirmWithinS), ClockIsRight: p.ClockIsRight}
}

// seconds reads a number of seconds; what is no duration at all becomes one that is refused.
func seconds(s float64) time.Duration {
	if d := s * float64(time.Second); d >= -float64(MaxConfirm) && d <= 2*float64(MaxConfirm) {
		return time.Duration(d)
	}
	return 2 * MaxConfirm
}

// Request is a change to make.
type Request struct {
	Changes       []Change
	Reason        string
	Who           string        // account name
	How           string        // page, token, socket, system
	From          string        // address, or "uid 1000" over the socket
	IfMatch       string        // the tag of what the caller saw; "" or "*": whatever stands
	DryRun        bool          // only say what would happen
	ConfirmWithin time.Duration // rolled back unless confirmed within; 0: it stays
	ClockIsRight  bool          // change although the last record is of a later time

	reverts  string // the change that this one undoes
	since    bool   // and all after it
	imported bool
	notes    []tunables.Note
}

// how is what the history says: the door, and what for.
func (r *Request) how() string {
	switch {
	case r.reverts != "" && r.since:
		return r.How + ", revert of all since " + r.reverts
	case r.reverts != "":
		return r.How + ", revert of " + r.reverts
	case r.imported:
		return r.How + ", import"
	}
	return r.How
}

// Result is what a change did, or in a dry run would do.
type Result struct {
	ChangeID string            `json:"change_id"` // "" in a dry run, or if everything stands already
	DryRun   bool              `json:"dry_run"`
	Tag      string            `json:"tag"`      // the entity tag afterwards
	Changed  []Changed         `json:"changed"`  // settings that differ from before
	Derived  []Changed         `json:"derived"`  // values that the engine uses and that differ from before
	Effects  []tunables.Effect `json:"effects"`  // from when on, each once
	Notes    []tunables.Note   `json:"notes"`    // what becomes of the values that were named, and why
	Findings []tunables.Note   `json:"findings"` // prices to pay and values not used as they were set
	Restarts []Restart         `json:"restarts"` // NIs that this takes down and up again
	Costs    []Cost            `json:"costs"`    // what changes in memory, work requests and with the peers, by net
	Pending  *Pending          `json:"pending"`  // set where the change must be confirmed
	Reverts  string            `json:"reverts"`  // the change that this one undoes
}

// Changed is one value before and after; null is "not set".
type Changed struct {
	Scope  string          `json:"scope"`
	Name   string          `json:"name"`
	Old    *Scalar         `json:"old"`
	New    *Scalar         `json:"new"`
	Unit   string          `json:"unit"`
	Effect tunables.Effect `json:"effect"`
}

// Table is the answer of GET /api/v1/tunables; Tag goes into the ETag header as well.
type Table struct {
	Tag      string   `json:"tag"`
	Pending  *Pending `json:"pending"` // the change that waits to be confirmed
	Tunables []Row    `json:"tunables"`
}

// Where the value that counts comes from.
const (
	SourceDefault = "default"
	SourceFile    = "file"
	SourceChanged = "changed"
)

// Row is one tunable in one scope.
type Row struct {
	Name            string          `json:"name"`
	Scope           string          `json:"scope"`
	Value           *Scalar         `json:"value"`      // as set in this scope, here or in the file; null: not set
	Effective       Scalar          `json:"effective"`  // what the engine uses
	Default         Scalar          `json:"default"`    // as set by nobody
	Source          string          `json:"source"`     // of the value that counts: default, file, changed
	FromScope       string          `json:"from_scope"` // where that is set: this scope, or global for a net that inherits
	FileValue       *Scalar         `json:"file_value"`
	DiffersFromFile bool            `json:"differs_from_file"`
	ChangeID        string          `json:"change_id"` // that set it, where the source is changed
	Kind            tunables.Kind   `json:"kind"`
	Unit            string          `json:"unit"`
	Min             *int64          `json:"min"` // of a whole number
	Max             *int64          `json:"max"`
	Allowed         []string        `json:"allowed"` // of an enum
	Range           string          `json:"range"`   // all that in words
	Flag            bool            `json:"flag"`
	PerNet          bool            `json:"per_net"`
	Group           tunables.Group  `json:"group"`
	Effect          tunables.Effect `json:"effect"`
	Derivation      string          `json:"derivation"`
	Help            string          `json:"help"`
	Notes           []string        `json:"notes"` // what becomes of the value, and why
}

// HistoryFilter selects changes, newest first; zero fields select all. An alias of a name will do.
type HistoryFilter struct {
	ChangeID  string
	Name      string
	Scope     string
	Who       string
	How       string     // a part of it
	Outcome   store.Kind // what stands about the change now
	Text      string     // a part of the reason
	From, To  int64      // proposed at From or later, before To
	BeforeSeq int64
	Limit     int // changes, of which each has one row a setting; 0: 100, at most 1000
}

// History is the answer of GET /api/v1/tunables/history.
type History struct {
	Changes []HistoryRow `json:"changes"`
}

// HistoryRow is one setting of one change.
type HistoryRow struct {
	Seq       int64      `json:"seq"` // of the proposal; give the last one as BeforeSeq to page back
	ChangeID  string     `json:"change_id"`
	At        int64      `json:"at"`
	Who       string     `json:"who"`
	How       string     `json:"how"` // "page", "socket, import", "token, revert of 2k5j"
	From      string     `json:"from"`
	Reason    string     `json:"reason"`
	Scope     string     `json:"scope"`
	Name      string     `json:"name"`
	Old       *Scalar    `json:"old"`
	New       *Scalar    `json:"new"`
	Notes     []string   `json:"notes"`
	Derived   []Moved    `json:"derived"` // values that the engine uses and that came out differently, of the whole change
	Reverts   string     `json:"reverts"` // the change that this one undid
	Since     bool       `json:"since"`   // and all after it
	Outcome   store.Kind `json:"outcome"` // proposed while it runs
	OutcomeAt *int64     `json:"outcome_at"`
	OutcomeBy string     `json:"outcome_by"` // who confirmed it or rolled it back
	ConfirmBy *int64     `json:"confirm_by"` // while it waits
	Error     string     `json:"error"`
}

// Moved is a value before and after; null is "not set".
type Moved struct {
	Scope string  `json:"scope"`
	Name  string  `json:"name"`
	Old   *Scalar `json:"old"`
	New   *Scalar `json:"new"`
}
