package app_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"o2ibd/app"
	"o2ibd/app/bundle"
	"o2ibd/app/tuning"
)

// made makes a bundle and waits for its end.
func (r *running) made(t *testing.T, redact bool) app.Bundle {
	t.Helper()
	b, err := r.CreateBundle(t.Context(), operator, redact)
	if err != nil {
		t.Fatal(err)
	}
	if b.State != app.BundleRunning || b.By != "otto" || b.Redacted != redact {
		t.Errorf("new bundle is %+v", b)
	}
	r.wait(t, "the bundle", func() bool {
		if b, err = r.Bundle(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		return b.State != app.BundleRunning
	})
	return b
}

// unzip reads a bundle whole and checks it against its row and its manifest.
func (r *running) unzip(t *testing.T, b app.Bundle) (bundle.Manifest, map[string][]byte) {
	t.Helper()
	f, err := r.OpenBundle(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(raw); b.SHA256 != hex.EncodeToString(sum[:]) || b.Size != int64(len(raw)) {
		t.Errorf("row says %d bytes, %s; the file has %d, %x", b.Size, b.SHA256, len(raw), sum)
	}
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, f := range z.File {
		rc, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(rc); err != nil {
			t.Fatal(err)
		}
	}
	var m bundle.Manifest
	if err := json.Unmarshal(files["manifest.json"], &m); err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		if sum := sha256.Sum256(files[f.Name]); f.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s has another sum than the manifest says", f.Name)
		}
	}
	return m, files
}

func TestBundle(t *testing.T) {
	o := options(t)
	o.Demo = 1
	r := start(t, o, nil)
	r.wait(t, "the engine's snapshot", func() bool { return len(r.Snapshot().Nets) == 1 })
	if _, err := r.Tuning().Change(t.Context(), tuning.Request{
		Changes: []tuning.Change{{Name: "timeout", Value: tuning.NewScalar("60")}}, Who: "alice", How: "page", Reason: "slow disks of alice",
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.CreateAccount(t.Context(), root, "alice", "", app.RoleViewer); err != nil {
		t.Fatal(err)
	}
	r.Protest("http", "10.9.8.7:5", "garbage from alice")
	r.event(t, "protocol", "garbage")

	b := r.made(t, false)
	if b.State != app.BundleDone || b.Progress != 1 || b.Error != "" || !b.Demo || !strings.HasSuffix(b.Name, b.ID+".zip") {
		t.Fatalf("bundle is %+v", b)
	}
	m, files := r.unzip(t, b)
	if m.Version != "1.2.3" || !m.Demo || m.Redacted || m.CreatedAt != b.CreatedAt || len(m.Missing) > 0 {
		t.Errorf("manifest is %+v", m)
	}
	for name, part := range map[string]string{
		"info.json": `"demo": true`, "findings.json": `"demo"`, "snapshot.json": `"127.0.0.1@o2ib"`,
		"net.yaml": "- net type: o2ib", "peer.yaml": "peer:", "stats.yaml": "msgs_alloc",
		"tunables.json": `"effective": 60`, "tunables-history.json": `"whole": true`, "events.jsonl": "garbage from alice",
		"versions.json": `"o2ibd": "1.2.3"`, "host.json": `"memlock"`, "kernel.json": `"modules"`,
		"profiles/goroutine.txt": "goroutine profile", "profiles/heap.txt": "heap profile",
	} {
		if !slices.ContainsFunc(m.Files, func(f bundle.File) bool { return f.Name == name }) {
			t.Errorf("%s is not in the manifest", name)
		}
		if !bytes.Contains(files[name], []byte(part)) {
			t.Errorf("%s does not say %s:\n%.400s", name, part, files[name])
		}
	}
	if h := files["tunables-history.json"]; !bytes.Contains(h, []byte("alice")) || !bytes.Contains(h, []byte(strings.Repeat("0", 64))) {
		t.Errorf("history without who or chain:\n%s", h)
	}

	red := r.made(t, true)
	m, files = r.unzip(t, red)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if !m.Redacted || m.Host == host || strings.Contains(red.Name, host) {
		t.Errorf("redacted bundle %s of host %s", red.Name, m.Host)
	}
	for name, text := range files {
		for _, told := range []string{"alice", host, "10.9.8.7", "127.0.0.1"} {
			// As a word: an id that is random may have a short host name in it.
			if regexp.MustCompile(`\b` + regexp.QuoteMeta(told) + `\b`).Match(text) {
				t.Errorf("%s still tells %s", name, told)
			}
		}
	}
	ni := string(bytes.TrimSpace(bytes.Split(bytes.SplitAfter(files["net.yaml"], []byte("net type: o2ib\n"))[1], []byte("nid: "))[1]))
	ni, _, _ = strings.Cut(ni, "\n")
	if !strings.HasSuffix(ni, "@o2ib") || !bytes.Contains(files["snapshot.json"], []byte(`"`+ni+`"`)) {
		t.Errorf("our NI is %q in net.yaml and another in the snapshot", ni)
	}

	r.stop()
	r = start(t, o, nil)
	list, err := r.Bundles(t.Context())
	if err != nil || len(list) != 2 || !slices.Contains(list, b) || !slices.Contains(list, red) {
		t.Errorf("after a restart the bundles are %+v, %v", list, err)
	}
	if err := r.DeleteBundle(t.Context(), operator, b.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.OpenBundle(t.Context(), b.ID); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("open of a deleted bundle: %v", err)
	}
	if files, err := filepath.Glob(filepath.Join(o.StateDir, "bundles", "*")); err != nil || len(files) != 1 {
		t.Errorf("files left: %v, %v", files, err)
	}
}

func TestBundleRefusals(t *testing.T) {
	r := start(t, options(t), nil)
	ctx := t.Context()
	if _, err := r.CreateBundle(ctx, viewer, false); !errors.Is(err, app.ErrForbidden) {
		t.Errorf("by a viewer: %v", err)
	}
	if _, err := r.Bundle(ctx, "../../etc/passwd"); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("no such bundle: %v", err)
	}
	if err := r.DeleteBundle(ctx, operator, "none"); !errors.Is(err, app.ErrNotFound) {
		t.Errorf("delete of none: %v", err)
	}
	b := r.made(t, false)
	if err := os.Remove(filepath.Join(r.Config().State, "bundles", b.ID+".zip")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.OpenBundle(ctx, b.ID); !errors.Is(err, app.ErrNotFound) || !strings.Contains(err.Error(), "has gone") {
		t.Errorf("open of a bundle without its file: %v", err)
	}
	if err := r.DeleteBundle(ctx, operator, b.ID); err != nil {
		t.Errorf("delete of a bundle without its file: %v", err)
	}
	dir := filepath.Join(r.Config().State, "bundles")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if b := r.made(t, false); b.State != app.BundleFailed || b.Error == "" || b.Size != 0 {
		t.Errorf("bundle without a folder: %+v", b)
	}
	r.event(t, "bundle", "failed")
}

func TestHalfWrittenBundleIsRemoved(t *testing.T) {
	o := options(t)
	dir := filepath.Join(o.StateDir, "bundles")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "abc.zip.part")
	if err := os.WriteFile(half, []byte("PK"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, o, nil)
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	r.event(t, "bundle", "half-written bundle abc.zip was removed")
}

func TestOfflineBundle(t *testing.T) {
	var out bytes.Buffer
	m, err := app.OfflineBundle(t.Context(), &out, "1.2.3", false, "the appliance is down")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Files) != 3 || len(m.Missing) != 11 || !slices.Contains(m.Missing, bundle.Missing{Name: "snapshot.json", Why: "the appliance is down"}) {
		t.Errorf("manifest is %+v", m)
	}
}
