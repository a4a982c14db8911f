-- What each record of the history says of each setting, for filters and for the state at any time: derived
-- from the records, by the trigger alone. A null value is not set.
CREATE TABLE tunable_history_settings (
    name  TEXT    NOT NULL,
    scope TEXT    NOT NULL,
    seq   INTEGER NOT NULL REFERENCES tunable_history (seq),
    kind  TEXT    NOT NULL,
    value TEXT,
    PRIMARY KEY (name, scope, seq)
) STRICT, WITHOUT ROWID;

CREATE VIEW tunable_history_settings_wanted (name, scope, seq, kind, value) AS
SELECT c.value ->> 'name', c.value ->> 'scope', h.seq, h.kind, c.value ->> iif(h.kind = 'rolled_back', 'old', 'new')
FROM tunable_history h, json_each(h.body, '$.changes') c
WHERE h.kind IN ('proposed', 'applied', 'rolled_back');

INSERT INTO tunable_history_settings SELECT * FROM tunable_history_settings_wanted;

CREATE TRIGGER tunable_history_settings_follow AFTER INSERT ON tunable_history
BEGIN INSERT INTO tunable_history_settings SELECT * FROM tunable_history_settings_wanted WHERE seq = NEW.seq; END;

CREATE INDEX tunable_history_settings_scope ON tunable_history_settings (scope, seq);

-- With how and reason in it, so that looking for a part of them does not read every record.
CREATE INDEX tunable_history_kind ON tunable_history (kind, seq, how, reason);
CREATE INDEX tunable_history_at ON tunable_history (kind, at);
CREATE INDEX tunable_history_who ON tunable_history (who, seq);
CREATE INDEX events_at ON events (at);

-- Metric samples. What data holds, package app/sample says; times here are milliseconds, res is the length
-- of a step.
CREATE TABLE metric_sources (
    id   INTEGER PRIMARY KEY,
    name TEXT    NOT NULL UNIQUE
) STRICT;

CREATE TABLE metric_chunks (
    source INTEGER NOT NULL REFERENCES metric_sources (id),
    res    INTEGER NOT NULL,
    start  INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (source, res, start)
) STRICT, WITHOUT ROWID;

CREATE INDEX metric_chunks_age ON metric_chunks (res, start);

-- Samples that are in no chunk yet.
CREATE TABLE metric_tail (
    at   INTEGER NOT NULL,
    res  INTEGER NOT NULL,
    data BLOB    NOT NULL
) STRICT;

-- What the chunks take, with 64 bytes for what a row costs besides.
CREATE TABLE metric_size (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    bytes INTEGER NOT NULL
) STRICT;

INSERT INTO metric_size VALUES (1, 0);

CREATE TRIGGER metric_size_insert AFTER INSERT ON metric_chunks
BEGIN UPDATE metric_size SET bytes = bytes + length(NEW.data) + 64; END;

CREATE TRIGGER metric_size_update AFTER UPDATE ON metric_chunks
BEGIN UPDATE metric_size SET bytes = bytes + length(NEW.data) - length(OLD.data); END;

CREATE TRIGGER metric_size_delete AFTER DELETE ON metric_chunks
BEGIN UPDATE metric_size SET bytes = bytes - length(OLD.data) - 64; END;

PRAGMA user_version = 2;
