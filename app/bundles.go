package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"o2ibd/app/bundle"
	"o2ibd/app/lnetctl"
	"o2ibd/store"
)

// Bounds of what is kept in the state folder.
const (
	bundleFolder = "bundles"
	maxBundles   = 32
	halfWritten  = ".part" // ending of a bundle that is not whole
)

// bundleShop makes bundles, one at a time, and keeps them. What is stored is in the database; the progress
// of the one in the making is here.
type bundleShop struct {
	app *App
	dir string

	mu      sync.Mutex
	current *Bundle // in the making
	work    sync.WaitGroup
	stop    context.CancelFunc // of the one in the making
}

// openBundles finds what an earlier run left: finished bundles stay, half-written files go.
func openBundles(ctx context.Context, a *App) (*bundleShop, error) {
	b := &bundleShop{app: a, dir: filepath.Join(a.cfg.State, bundleFolder)}
	if err := os.MkdirAll(b.dir, 0o750); err != nil {
		return nil, fmt.Errorf("folder of the bundles: %w", err)
	}
	halves, err := filepath.Glob(filepath.Join(b.dir, "*"+halfWritten))
	if err != nil {
		return nil, err
	}
	for _, f := range halves {
		if err := os.Remove(f); err != nil {
			return nil, fmt.Errorf("remove a half-written bundle: %w", err)
		}
		a.events.say("bundle", SeverityWarning, "half-written bundle %s was removed: the appliance ended while it was made", strings.TrimSuffix(filepath.Base(f), halfWritten))
	}
	return b, a.db.FailRunningBundles(ctx, "the appliance ended while it was made")
}

// CreateBundle starts a bundle and returns at once; follow it with Bundle. One is made at a time.
func (a *App) CreateBundle(ctx context.Context, who Actor, redact bool) (Bundle, error) {
	b, err := a.bundles.create(ctx, who, redact)
	return b, a.audited(ctx, who, "bundle.create", b.ID, err)
}

func (s *bundleShop) create(ctx context.Context, who Actor, redact bool) (Bundle, error) {
	if err := allowed(who, RoleOperator); err != nil {
		return Bundle{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return Bundle{}, fmt.Errorf("%w: bundle %s is being made; wait for it", ErrConflict, s.current.ID)
	}
	kept, err := s.app.db.Bundles(ctx)
	if err != nil {
		return Bundle{}, err
	}
	if len(kept) >= maxBundles {
		return Bundle{}, fmt.Errorf("%w: %d bundles are kept; delete one first", ErrConflict, len(kept))
	}
	now := time.Now()
	b := &Bundle{
		ID: newID(), CreatedAt: now.UnixMilli(), By: who.Name, State: BundleRunning,
		Redacted: redact, Demo: s.app.demo > 0,
	}
	b.Name = bundleName(s.app.hostname, now, b.ID, redact)
	if err := s.app.db.PutBundle(ctx, s.row(b)); err != nil {
		return Bundle{}, err
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.current, s.stop = b, stop
	s.work.Go(func() {
		defer stop()
		s.make(work, *b)
	})
	return *b, nil
}

// bundleName is what a bundle is saved as; that of a redacted one does not tell the host.
func bundleName(host string, at time.Time, id string, redact bool) string {
	if redact {
		host = "redacted"
	}
	return fmt.Sprintf("o2ibd-%s-%s-%s.zip", host, at.UTC().Format("20060102T150405Z"), id)
}

// make writes the bundle and records how it ended.
func (s *bundleShop) make(ctx context.Context, b Bundle) {
	size, sum, err := s.write(ctx, &b)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
	b.State, b.Size, b.SHA256 = BundleDone, size, sum
	if err != nil {
		b.State, b.Size, b.SHA256, b.Error = BundleFailed, 0, "", err.Error()
		s.app.events.say("bundle", SeverityError, "bundle %s failed: %v", b.ID, err)
	}
	if err := s.app.db.PutBundle(context.WithoutCancel(ctx), s.row(&b)); err != nil {
		s.app.log.Error("a bundle's end is not stored", "bundle", b.ID, "error", err)
	}
	if b.State == BundleDone {
		s.app.events.say("bundle", SeverityInfo, "bundle %s is made: %d bytes", b.ID, b.Size)
	}
}

// write makes the file: under a name of its own first, so that what has the right name is whole.
func (s *bundleShop) write(ctx context.Context, b *Bundle) (size int64, sum string, err error) {
	path := s.path(b.ID)
	f, err := os.OpenFile(path+halfWritten, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return 0, "", err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(path + halfWritten)
		}
	}()
	var redact *bundle.Redactor
	if b.Redacted {
		if redact, err = s.app.redactor(ctx); err != nil {
			return 0, "", err
		}
	}
	head := bundle.Manifest{Version: s.app.version, Host: s.app.hostname, CreatedAt: b.CreatedAt, Demo: b.Demo}
	hash := sha256.New()
	counter := &countingWriter{w: io.MultiWriter(f, hash)}
	if _, err = bundle.Write(ctx, counter, head, s.app.bundleParts(), redact, s.progress); err != nil {
		return 0, "", err
	}
	if err = errors.Join(f.Sync(), f.Close()); err != nil {
		return 0, "", err
	}
	if err = os.Rename(path+halfWritten, path); err != nil {
		return 0, "", err
	}
	return counter.n, hex.EncodeToString(hash.Sum(nil)), nil
}

func (s *bundleShop) progress(step string, done float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Step, s.current.Progress = step, done
}

// close stops the bundle in the making and waits for its end.
func (s *bundleShop) close() {
	s.mu.Lock()
	if s.stop != nil {
		s.stop()
	}
	s.mu.Unlock()
	s.work.Wait()
}

func (s *bundleShop) path(id string) string { return filepath.Join(s.dir, id+".zip") }

func (s *bundleShop) row(b *Bundle) store.Bundle {
	return store.Bundle{
		ID: b.ID, CreatedAt: b.CreatedAt, By: b.By, State: b.State, Size: b.Size, SHA256: b.SHA256,
		Path: s.path(b.ID), Name: b.Name, Error: b.Error, Redacted: b.Redacted, Demo: b.Demo,
	}
}

// bundle is a stored row, with the progress of the one in the making.
func (s *bundleShop) bundle(r store.Bundle) Bundle {
	b := Bundle{
		ID: r.ID, CreatedAt: r.CreatedAt, By: r.By, State: r.State, Size: r.Size, SHA256: r.SHA256,
		Error: r.Error, Redacted: r.Redacted, Demo: r.Demo, Name: r.Name,
	}
	if b.State == BundleDone {
		b.Progress = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.current.ID == b.ID {
		b.Step, b.Progress = s.current.Step, s.current.Progress
	}
	return b
}

// Bundles lists all bundles, newest first.
func (a *App) Bundles(ctx context.Context) ([]Bundle, error) {
	rows, err := a.db.Bundles(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Bundle, len(rows))
	for i, r := range rows {
		list[i] = a.bundles.bundle(r)
	}
	return list, nil
}

// Bundle is one bundle, with its progress while it is made.
func (a *App) Bundle(ctx context.Context, id string) (Bundle, error) {
	r, err := a.db.Bundle(ctx, id)
	if err != nil {
		return Bundle{}, mapError(err)
	}
	return a.bundles.bundle(r), nil
}

// OpenBundle opens a finished bundle's zip; close it after use.
func (a *App) OpenBundle(ctx context.Context, id string) (io.ReadSeekCloser, error) {
	b, err := a.Bundle(ctx, id)
	if err != nil {
		return nil, err
	}
	if b.State != BundleDone {
		return nil, fmt.Errorf("%w: bundle %s is %s", ErrConflict, id, b.State)
	}
	f, err := os.Open(a.bundles.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the file of bundle %s has gone from %s", ErrNotFound, id, a.bundles.dir)
	}
	return f, err
}

// DeleteBundle removes a bundle that is not in the making, with its file.
func (a *App) DeleteBundle(ctx context.Context, who Actor, id string) error {
	err := func() error {
		if err := allowed(who, RoleOperator); err != nil {
			return err
		}
		b, err := a.Bundle(ctx, id)
		if err != nil {
			return err
		}
		if b.State == BundleRunning {
			return fmt.Errorf("%w: bundle %s is being made; wait for it", ErrConflict, id)
		}
		if err := os.Remove(a.bundles.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return mapError(a.db.DeleteBundle(ctx, id))
	}()
	return a.audited(ctx, who, "bundle.delete", id, err)
}

// bundleParts is what a running appliance puts into a bundle.
func (a *App) bundleParts() []bundle.Part {
	s := a.Snapshot()
	parts := []bundle.Part{
		bundle.Value("info.json", a.Info()),
		bundle.Value("findings.json", a.Findings()),
		bundle.Value("snapshot.json", s),
		bundle.Text("net.yaml", lnetctl.Net(s, a.effective, true)),
		bundle.Text("peer.yaml", lnetctl.Peer(s, true)),
		bundle.Text("stats.yaml", lnetctl.Stats(s)),
		{Name: "tunables.json", Write: a.writeTunables},
		{Name: "tunables-history.json", Write: a.writeHistory},
		{Name: "events.jsonl", Write: a.writeEvents},
	}
	parts = append(parts, a.metricParts()...)
	return append(append(parts, bundle.HostParts(a.version)...), bundle.ProfileParts()...)
}

// pageSize is how many rows are read from the database at once.
const pageSize = 1000

// writeEvents writes all events, newest first.
func (a *App) writeEvents(ctx context.Context, w io.Writer) error {
	return bundle.JSONLines(w, func(yield func(any) error) error {
		f := EventFilter{Limit: pageSize}
		for {
			page, err := a.Events(ctx, f)
			if err != nil {
				return err
			}
			for _, e := range page {
				if err := yield(e); err != nil {
					return err
				}
			}
			if len(page) < pageSize {
				return nil
			}
			f.BeforeID = page[len(page)-1].ID
		}
	})
}

// redactor knows the names of this host and of everybody who has an account or did something here.
func (a *App) redactor(ctx context.Context) (*bundle.Redactor, error) {
	hosts, users := bundle.LocalNames()
	add := func(name string) {
		if name != "" && name != "?" && !strings.HasPrefix(name, "uid ") && !slices.Contains(users, name) {
			users = append(users, name)
		}
	}
	accounts, err := a.db.Accounts(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range accounts {
		add(r.Name)
	}
	f := store.AuditFilter{Limit: pageSize}
	for {
		page, err := a.db.Audit(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			add(e.Who)
		}
		if len(page) < pageSize {
			break
		}
		f.BeforeID = page[len(page)-1].ID
	}
	for _, h := range a.cfg.AllowedHosts {
		if !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	return bundle.NewRedactor(hosts, users), nil
}

// OfflineBundle writes what can be said of this host without an appliance; why says why there is none.
func OfflineBundle(ctx context.Context, w io.Writer, version string, redact bool, why string) (bundle.Manifest, error) {
	hosts, users := bundle.LocalNames()
	var r *bundle.Redactor
	if redact {
		r = bundle.NewRedactor(hosts, users)
	}
	head := bundle.Manifest{Version: version, CreatedAt: time.Now().UnixMilli()}
	head.Host, _ = os.Hostname()
	for _, name := range []string{
		"info.json", "findings.json", "snapshot.json", "net.yaml", "peer.yaml", "stats.yaml",
		"tunables.json", "tunables-history.json", "events.jsonl", "profiles/goroutine.txt", "profiles/heap.txt",
	} {
		head.Missing = append(head.Missing, bundle.Missing{Name: name, Why: why})
	}
	return bundle.Write(ctx, w, head, bundle.HostParts(version), r, nil)
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
