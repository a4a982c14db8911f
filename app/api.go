package app

import (
	"errors"
	"slices"
	"time"

	"o2ibd/engine/wire"
)

// Errors that callers decide on. What the App returns wraps one of them where it applies; its text is
// for people.
var (
	ErrNotFound    = errors.New("not found")           // no such account, bundle, token, demo node
	ErrExists      = errors.New("exists already")      // an account of that name
	ErrInvalid     = errors.New("not valid")           // what was asked for can never be done
	ErrConflict    = errors.New("not possible now")    // the last admin, no bundle slot, no demo
	ErrCredentials = errors.New("sign-in refused")     // wrong name or password, dead session, used link
	ErrUnreachable = errors.New("no answer")           // a ping that nobody answered
	ErrNoEngine    = errors.New("no network is up")    // nothing to ping from
	ErrForbidden   = errors.New("role does not allow") // the actor's role is too low
	ErrTooMany     = errors.New("too many attempts")   // to sign in; how long to wait is in the text
)

// Role is what an account may do. Each role may do what the ones before it may.
type Role string

const (
	RoleViewer   Role = "viewer"   // look
	RoleOperator Role = "operator" // change tunables, ping, make bundles
	RoleAdmin    Role = "admin"    // accounts, tokens, audit
)

// Roles lists the roles from the least to the most.
var Roles = []Role{RoleViewer, RoleOperator, RoleAdmin}

// Allows says whether r may do what needs the role min.
func (r Role) Allows(min Role) bool {
	have, need := slices.Index(Roles, r), slices.Index(Roles, min)
	return need >= 0 && have >= need
}

// How an actor came in.
const (
	HowPage   = "page"   // a browser session
	HowToken  = "token"  // a bearer token
	HowSocket = "socket" // the unix socket
	HowSystem = "system" // the appliance itself
)

// Actor is who asks for something: it goes into the audit log and the tunables history.
type Actor struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
	How  string `json:"how"`  // page, token, socket, system
	From string `json:"from"` // address of the browser or program; "uid 1000" over the socket
}

// Info is what does not change from tick to tick.
type Info struct {
	Version   string     `json:"version"`
	Hostname  string     `json:"hostname"`
	Demo      bool       `json:"demo"`
	DemoNodes []DemoNode `json:"demo_nodes"`
	StateDir  string     `json:"state_dir"`
	Listen    string     `json:"listen"` // as bound
	URL       string     `json:"url"`    // of the page
	StartedAt int64      `json:"started_at"`
	Provider  string     `json:"provider"` // in use, "" without a network
	// CertFingerprint is "SHA-256 AB:CD:…" of a certificate that the appliance made itself, else "".
	CertFingerprint string   `json:"cert_fingerprint"`
	Providers       []string `json:"providers"` // built in
}

// States of a demo node.
const (
	DemoRunning = "running"
	DemoStopped = "stopped" // by an operator, or it ended by itself
	DemoFailed  = "failed"  // it did not come up
)

// DemoNode is one further engine node of the demo fabric: a process of its own.
type DemoNode struct {
	Index int      `json:"index"` // from 1
	NID   wire.NID `json:"nid"`
	PID   int      `json:"pid"`   // 0 unless running
	State string   `json:"state"` // running, stopped, failed
	Since int64    `json:"since"` // milliseconds since the epoch
	Error string   `json:"error"` // why it is stopped or failed, in operators' words
}

// PingResult is what a peer said to an LNet ping.
type PingResult struct {
	NID          wire.NID      `json:"nid"`  // whom we asked
	From         wire.NID      `json:"from"` // our NID that asked
	PID          uint32        `json:"pid"`
	NIDs         []PingNI      `json:"nids"`
	Features     uint32        `json:"features"`
	FeatureNames []string      `json:"feature_names"`
	RTT          time.Duration `json:"rtt_ns"`
}

// PingNI is one NI in a peer's answer.
type PingNI struct {
	NID    string `json:"nid"` // text: it may be of a network that we do not speak
	Status string `json:"status"`
}

// Severities of events and findings.
const (
	SeverityInfo    = "info"
	SeverityWarning = "warning"
	SeverityError   = "error"
)

// Event is something that happened, in operators' words.
type Event struct {
	ID       int64             `json:"id"` // grows
	At       int64             `json:"at"` // milliseconds since the epoch
	Kind     string            `json:"kind"`
	Severity string            `json:"severity"`
	NI       string            `json:"ni,omitempty"`
	Peer     string            `json:"peer,omitempty"` // NID
	Conn     string            `json:"conn,omitempty"`
	Text     string            `json:"text"`
	Data     map[string]string `json:"data,omitempty"`
}

// EventFilter selects events; zero fields select all. Events come newest first, or oldest first with
// SinceID.
type EventFilter struct {
	Kind     string // exact
	Severity string // exact
	Peer     string // exact NID
	Text     string // part of the text
	SinceID  int64  // only events with a greater ID
	BeforeID int64  // only events with a smaller ID, for paging back
	From, To int64  // happened at From or later, before To, ms since the epoch; 0: no bound
	Limit    int    // 0: 100; at most 1000
}

// AuditEntry is one write by a person or program.
type AuditEntry struct {
	ID      int64  `json:"id"`
	At      int64  `json:"at"`
	Actor   Actor  `json:"actor"`
	Action  string `json:"action"`  // "account.create", "bundle.delete", "tunables.change" …
	Target  string `json:"target"`  // what it was done to
	Outcome string `json:"outcome"` // done, refused, failed
	Text    string `json:"text"`
	Before  string `json:"before"` // what it was, "" where there was nothing or it is a secret
	After   string `json:"after"`
}

// AuditFilter selects audit entries, newest first.
type AuditFilter struct {
	Name     string // of the actor, exact
	Action   string // prefix
	BeforeID int64
	Limit    int // 0: 100; at most 1000
}

// States of a bundle.
const (
	BundleRunning = "running"
	BundleDone    = "done"
	BundleFailed  = "failed"
)

// Bundle is a diagnostic bundle: a zip in the state folder, or one in the making.
type Bundle struct {
	ID        string  `json:"id"`
	CreatedAt int64   `json:"created_at"`
	By        string  `json:"by"`
	State     string  `json:"state"`    // running, done, failed
	Progress  float64 `json:"progress"` // 0 to 1
	Step      string  `json:"step"`     // the file being written
	Size      int64   `json:"size"`     // bytes, once done
	SHA256    string  `json:"sha256"`   // of the zip, once done
	Error     string  `json:"error"`
	Redacted  bool    `json:"redacted"`
	Demo      bool    `json:"demo"`
	Name      string  `json:"name"` // file name to download under
}

// Account is a local account.
type Account struct {
	Name        string `json:"name"`
	Role        Role   `json:"role"`
	CreatedAt   int64  `json:"created_at"`
	HasPassword bool   `json:"has_password"` // without one, only a sign-in link opens it
	LastSignIn  *int64 `json:"last_sign_in_at"`
}

// Session is a browser's session.
type Session struct {
	ID        string `json:"id"` // names the session, does not open it
	Account   string `json:"account"`
	Role      Role   `json:"role"` // the account's role now
	CreatedAt int64  `json:"created_at"`
	ExpiresAt int64  `json:"expires_at"`
	From      string `json:"from"`
}

// Token is a bearer token for programs.
type Token struct {
	ID         string `json:"id"`
	Account    string `json:"account"`
	Role       Role   `json:"role"`
	Label      string `json:"label"`
	CreatedAt  int64  `json:"created_at"`
	ExpiresAt  *int64 `json:"expires_at"`
	LastUsedAt *int64 `json:"last_used_at"`
}

// Finding is something that an operator should know or mend.
type Finding struct {
	Code     string `json:"code"` // stable: "no-device", "demo", "events-dropped" …
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Mend     string `json:"mend"` // what to do, "" where nothing needs doing
}
