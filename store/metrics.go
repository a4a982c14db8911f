package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
)

// MetricChunk is a stretch of samples of one source; what Data holds, package app/sample says.
type MetricChunk struct {
	Source string
	Res    int64 // ms between two samples
	Start  int64
	Data   []byte
}

// MetricTail is what was sampled at one moment and is in no chunk yet.
type MetricTail struct {
	At, Res int64
	Data    []byte
}

// MetricKeep says how old the chunks of a resolution may become.
type MetricKeep struct{ Res, Oldest int64 }

// AddMetricTail appends samples. It survives the end of the process, but not that of the host: samples
// are not worth waiting for the disk each second.
func (s *Store) AddMetricTail(ctx context.Context, rows ...MetricTail) (err error) {
	const what = "store metric samples"
	conn, err := s.w.Conn(ctx)
	if err != nil {
		return s.explain(what, err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `PRAGMA synchronous = NORMAL`); err != nil {
		return s.explain(what, err)
	}
	defer func() {
		if _, ferr := conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA synchronous = FULL`); ferr != nil {
			// Whoever comes next relies on it: the pool opens a new connection instead.
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return s.explain(what, err)
	}
	if err := addTail(ctx, tx, rows); err != nil {
		_ = tx.Rollback() // err says more
		return s.explain(what, err)
	}
	return s.explain(what, tx.Commit())
}

func addTail(ctx context.Context, tx *sql.Tx, rows []MetricTail) error {
	for _, r := range rows {
		if _, err := tx.ExecContext(ctx, `INSERT INTO metric_tail (at, res, data) VALUES (?, ?, ?)`, r.At, r.Res, r.Data); err != nil {
			return err
		}
	}
	return nil
}

// MetricTail gives what is in no chunk yet, oldest first.
func (s *Store) MetricTail(ctx context.Context) ([]MetricTail, error) {
	var list []MetricTail
	err := s.read(ctx, "read metric samples", func(row scanner) error {
		var r MetricTail
		err := row.Scan(&r.At, &r.Res, &r.Data)
		list = append(list, r)
		return err
	}, `SELECT at, res, data FROM metric_tail ORDER BY rowid`)
	return list, err
}

// FoldMetrics stores chunks, each in the place of one of the same source, resolution and start, makes tail the
// tail, and forgets the chunks that are too old and, while all of them take more than most bytes, the oldest
// of the coarsest. All of it or nothing happens.
func (s *Store) FoldMetrics(ctx context.Context, chunks []MetricChunk, tail []MetricTail, keep []MetricKeep, most int64) error {
	return s.write(ctx, "store metric history", func(tx *sql.Tx) error {
		put, err := tx.PrepareContext(ctx, `INSERT INTO metric_chunks (source, res, start, data)
			VALUES ((SELECT id FROM metric_sources WHERE name = ?), ?, ?, ?)
			ON CONFLICT (source, res, start) DO UPDATE SET data = excluded.data`)
		if err != nil {
			return err
		}
		defer put.Close()
		last := ""
		for _, c := range chunks {
			if c.Source != last {
				if _, err := tx.ExecContext(ctx, `INSERT INTO metric_sources (name) VALUES (?) ON CONFLICT DO NOTHING`, c.Source); err != nil {
					return err
				}
				last = c.Source
			}
			if _, err := put.ExecContext(ctx, c.Source, c.Res, c.Start, c.Data); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM metric_tail`); err != nil {
			return err
		}
		if err := addTail(ctx, tx, tail); err != nil {
			return err
		}
		for _, k := range keep {
			if _, err := tx.ExecContext(ctx, `DELETE FROM metric_chunks WHERE res = ? AND start < ?`, k.Res, k.Oldest); err != nil {
				return err
			}
		}
		if err := boundMetrics(ctx, tx, most); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM metric_sources WHERE NOT EXISTS (SELECT 1 FROM metric_chunks WHERE source = id)`)
		return err
	})
}

// boundMetrics takes the oldest chunks away, of the coarsest resolution first, until the rest fits.
func boundMetrics(ctx context.Context, tx *sql.Tx, most int64) error {
	for {
		var bytes int64
		if err := tx.QueryRowContext(ctx, `SELECT bytes FROM metric_size`).Scan(&bytes); err != nil {
			return err
		}
		if bytes <= most {
			return nil
		}
		res, err := tx.ExecContext(ctx, `DELETE FROM metric_chunks WHERE (res, start) = (SELECT res, start FROM metric_chunks ORDER BY res DESC, start LIMIT 1)`)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fmt.Errorf("metric history of %d bytes does not get smaller: %w", bytes, err)
		}
	}
}

// MetricChunks reads the chunks of a resolution that start at from or later and before to, oldest first for
// each source; no sources: all.
func (s *Store) MetricChunks(ctx context.Context, sources []string, res, from, to int64, each func(MetricChunk) error) error {
	in, args := ``, []any{res, from, to}
	if len(sources) > 0 {
		in = ` AND s.name IN (?` + strings.Repeat(`, ?`, len(sources)-1) + `)`
		for _, n := range sources {
			args = append(args, n)
		}
	}
	return s.read(ctx, "read metric history", func(row scanner) error {
		c := MetricChunk{Res: res}
		if err := row.Scan(&c.Source, &c.Start, &c.Data); err != nil {
			return err
		}
		return each(c)
	}, `SELECT s.name, c.start, c.data FROM metric_sources s JOIN metric_chunks c ON c.source = s.id
		WHERE c.res = ? AND c.start >= ? AND c.start < ?`+in+` ORDER BY s.name, c.start`, args...)
}

// MetricSources lists the sources that have chunks, and the bytes that all chunks take.
func (s *Store) MetricSources(ctx context.Context) (names []string, bytes int64, err error) {
	err = s.read(ctx, "read metric history", func(row scanner) error {
		var n string
		err := row.Scan(&n)
		names = append(names, n)
		return err
	}, `SELECT name FROM metric_sources ORDER BY name`)
	if err == nil {
		err = s.explain("read metric history", s.r.QueryRowContext(ctx, `SELECT bytes FROM metric_size`).Scan(&bytes))
	}
	return names, bytes, err
}
