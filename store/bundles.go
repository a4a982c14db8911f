package store

import (
	"context"
)

// Bundle is a diagnostic bundle or one in the making.
type Bundle struct {
	ID        string
	CreatedAt int64
	By        string
	State     string // running, done, failed
	Size      int64
	SHA256    string
	Path      string // of the zip
	Name      string // to download it under
	Error     string
	Redacted  bool
	Demo      bool
}

const bundleColumns = `id, created_at, made_by, state, size, sha256, path, name, error, redacted, demo`

// PutBundle stores a bundle, new or known.
func (s *Store) PutBundle(ctx context.Context, b Bundle) error {
	_, err := s.exec(ctx, "store bundle "+clip(b.ID), `INSERT INTO bundles (`+bundleColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, size = excluded.size, sha256 = excluded.sha256, path = excluded.path,
			name = excluded.name, error = excluded.error`,
		b.ID, b.CreatedAt, b.By, b.State, b.Size, b.SHA256, b.Path, b.Name, b.Error, b.Redacted, b.Demo)
	return err
}

// Bundle is the one with that id, or ErrNotFound.
func (s *Store) Bundle(ctx context.Context, id string) (Bundle, error) {
	b, err := scanBundle(s.r.QueryRowContext(ctx, `SELECT `+bundleColumns+` FROM bundles WHERE id = ?`, id))
	return b, s.explain("read bundle "+clip(id), err)
}

// Bundles lists all, newest first.
func (s *Store) Bundles(ctx context.Context) ([]Bundle, error) {
	var bundles []Bundle
	err := s.read(ctx, "read bundles", func(row scanner) error {
		b, err := scanBundle(row)
		bundles = append(bundles, b)
		return err
	}, `SELECT `+bundleColumns+` FROM bundles ORDER BY created_at DESC, id`)
	return bundles, err
}

// DeleteBundle forgets a bundle; its file is the caller's. ErrNotFound if there is none.
func (s *Store) DeleteBundle(ctx context.Context, id string) error {
	n, err := s.exec(ctx, "delete bundle "+clip(id), `DELETE FROM bundles WHERE id = ?`, id)
	return orNotFound(n, err)
}

// FailRunningBundles marks those failed that a previous run of the appliance left unfinished.
func (s *Store) FailRunningBundles(ctx context.Context, why string) error {
	_, err := s.exec(ctx, "close unfinished bundles", `UPDATE bundles SET state = 'failed', error = ? WHERE state = 'running'`, why)
	return err
}

func scanBundle(row scanner) (b Bundle, err error) {
	err = row.Scan(&b.ID, &b.CreatedAt, &b.By, &b.State, &b.Size, &b.SHA256, &b.Path, &b.Name, &b.Error, &b.Redacted, &b.Demo)
	return b, err
}

// orNotFound is ErrNotFound where a statement concerned no row.
func orNotFound(n int64, err error) error {
	if err == nil && n == 0 {
		return ErrNotFound
	}
	return err
}
