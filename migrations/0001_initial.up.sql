-- Times are milliseconds since the epoch.

PRAGMA application_id = 0x6f326962;

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What happened to tunables. The form that the hash covers is stated in package store.
CREATE TABLE tunable_history (
    seq       INTEGER PRIMARY KEY CHECK (seq > 0),
    change_id TEXT    NOT NULL,
    kind      TEXT    NOT NULL CHECK (kind IN ('proposed', 'applied', 'failed', 'interrupted', 'confirmed', 'rolled_back')),
    at        INTEGER NOT NULL,
    who       TEXT    NOT NULL,
    how       TEXT    NOT NULL,
    from_addr TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    body      TEXT    NOT NULL CHECK (json_valid(body)),
    prev_hash TEXT    NOT NULL CHECK (length(prev_hash) = 64),
    hash      TEXT    NOT NULL CHECK (length(hash) = 64),
    UNIQUE (change_id, kind)
) STRICT;

CREATE TRIGGER tunable_history_no_update BEFORE UPDATE ON tunable_history
BEGIN SELECT RAISE(ABORT, 'the history of tunables is append-only'); END;

CREATE TRIGGER tunable_history_no_delete BEFORE DELETE ON tunable_history
BEGIN SELECT RAISE(ABORT, 'the history of tunables is append-only'); END;

CREATE TRIGGER tunable_history_in_order BEFORE INSERT ON tunable_history
WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM tunable_history)
BEGIN SELECT RAISE(ABORT, 'the history of tunables is append-only'); END;

-- The last record, so that a history that was cut short does not pass for a whole one.
CREATE TABLE tunable_history_head (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    seq  INTEGER NOT NULL,
    hash TEXT    NOT NULL
) STRICT;

-- What is in force because it was changed here. Absent is not set.
CREATE TABLE tunable_values (
    scope     TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    change_id TEXT NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE accounts (
    name            TEXT PRIMARY KEY,
    password_hash   TEXT,
    role            TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    created_at      INTEGER NOT NULL,
    last_sign_in_at INTEGER
) STRICT, WITHOUT ROWID;

-- Of secrets only SHA-256 sums are kept.
CREATE TABLE sessions (
    hash            TEXT PRIMARY KEY,
    id              TEXT    NOT NULL UNIQUE,
    account         TEXT    NOT NULL REFERENCES accounts (name) ON DELETE CASCADE,
    from_addr       TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    idle_expires_at INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_account ON sessions (account);

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    hash         TEXT    NOT NULL UNIQUE,
    account      TEXT    NOT NULL REFERENCES accounts (name) ON DELETE CASCADE,
    role         TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    label        TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE links (
    hash       TEXT PRIMARY KEY,
    account    TEXT    NOT NULL REFERENCES accounts (name) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    severity TEXT    NOT NULL CHECK (severity IN ('info', 'warning', 'error')),
    ni       TEXT    NOT NULL,
    peer     TEXT    NOT NULL,
    conn     TEXT    NOT NULL,
    text     TEXT    NOT NULL,
    data     TEXT    NOT NULL CHECK (json_valid(data))
) STRICT;

CREATE INDEX events_peer ON events (peer, id);
CREATE INDEX events_kind ON events (kind, id);

CREATE TABLE audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    who         TEXT    NOT NULL,
    role        TEXT    NOT NULL,
    how         TEXT    NOT NULL,
    from_addr   TEXT    NOT NULL,
    action      TEXT    NOT NULL,
    target      TEXT    NOT NULL,
    outcome     TEXT    NOT NULL,
    text        TEXT    NOT NULL,
    before_text TEXT    NOT NULL,
    after_text  TEXT    NOT NULL
) STRICT;

CREATE INDEX audit_who ON audit (who, id);

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

CREATE TABLE bundles (
    id         TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL,
    made_by    TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('running', 'done', 'failed')),
    size       INTEGER NOT NULL,
    sha256     TEXT    NOT NULL,
    path       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    error      TEXT    NOT NULL,
    redacted   INTEGER NOT NULL CHECK (redacted IN (0, 1)),
    demo       INTEGER NOT NULL CHECK (demo IN (0, 1))
) STRICT, WITHOUT ROWID;

PRAGMA user_version = 1;
