package bundle_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"o2ibd/app/bundle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open reads a zip whole.
func open(t *testing.T, b []byte) (files map[string][]byte, order []string) {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	files = make(map[string][]byte)
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		order = append(order, f.Name)
	}
	return files, order
}

func TestWrite(t *testing.T) {
	var out bytes.Buffer
	var steps []string
	big := bytes.Repeat([]byte("0123456789abcde\n"), bundle.MaxPart/16+1)
	head := bundle.Manifest{Version: "1.2", Host: "n1", CreatedAt: 1700000000000, Demo: true, Missing: []bundle.Missing{{"events.jsonl", "no appliance"}}}
	m, err := bundle.Write(t.Context(), &out, head, []bundle.Part{
		bundle.Value("snapshot.json", map[string]int{"a": 1}),
		{"events.jsonl", func(_ context.Context, w io.Writer) error {
			return bundle.JSONLines(w, func(yield func(any) error) error {
				return errors.Join(yield("<one>"), yield(2))
			})
		}},
		{"half.txt", func(_ context.Context, w io.Writer) error {
			io.WriteString(w, "half")
			return errors.New("the other half\nis lost")
		}},
		bundle.Text("big.txt", big),
		bundle.Text("after.txt", []byte("still here")),
	}, nil, func(step string, done float64) { steps = append(steps, step) })
	if err != nil {
		t.Fatal(err)
	}
	files, order := open(t, out.Bytes())
	want := []string{"snapshot.json", "events.jsonl", "half.txt", "big.txt", "after.txt", "manifest.json"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[:5], steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	var inside bundle.Manifest
	if err := json.Unmarshal(files["manifest.json"], &inside); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, inside); diff != "" {
		t.Errorf("manifest returned and written (-returned +written):\n%s", diff)
	}
	if inside.Version != "1.2" || inside.Host != "n1" || !inside.Demo || inside.Redacted || inside.CreatedAt != head.CreatedAt {
		t.Errorf("head of the manifest: %+v", inside)
	}
	for _, f := range inside.Files {
		sum := sha256.Sum256(files[f.Name])
		if f.Size != int64(len(files[f.Name])) || f.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: manifest says %d bytes, %s; it has %d, %x", f.Name, f.Size, f.SHA256, len(files[f.Name]), sum)
		}
		if f.Truncated != (f.Name == "big.txt") {
			t.Errorf("%s: truncated is %v", f.Name, f.Truncated)
		}
	}
	if len(inside.Files) != 5 {
		t.Errorf("%d files in the manifest, want 5", len(inside.Files))
	}
	missing := []bundle.Missing{
		{"events.jsonl", "no appliance"},
		{"half.txt", "the other half; is lost"},
		{"big.txt", "cut off at the size that a bundle takes (67108864 bytes)"},
	}
	if diff := cmp.Diff(missing, inside.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if got := string(files["events.jsonl"]); got != "\"<one>\"\n2\n" {
		t.Errorf("events.jsonl is %q", got)
	}
}

type fullDisk struct{ left int }

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.left -= len(b); d.left < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(b), nil
}

func TestWriteFails(t *testing.T) {
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(i * i >> 3 * 131)
	}
	for _, left := range []int{0, 100, 2000} {
		_, err := bundle.Write(t.Context(), &fullDisk{left}, bundle.Manifest{}, []bundle.Part{bundle.Text("a", random)}, nil, nil)
		if err == nil || err.Error() != "no space left on device" {
			t.Errorf("with room for %d bytes: %v", left, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	parts := []bundle.Part{{"a", func(context.Context, io.Writer) error { cancel(); return nil }}, bundle.Text("b", nil)}
	if _, err := bundle.Write(ctx, io.Discard, bundle.Manifest{}, parts, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestHostParts(t *testing.T) {
	var out bytes.Buffer
	m, err := bundle.Write(t.Context(), &out, bundle.Manifest{}, append(bundle.HostParts("9.9"), bundle.ProfileParts()...), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Missing) > 0 {
		t.Errorf("missing: %v", m.Missing)
	}
	files, _ := open(t, out.Bytes())
	var v bundle.Versions
	if err := json.Unmarshal(files["versions.json"], &v); err != nil {
		t.Fatal(err)
	}
	if v.O2ibd != "9.9" || v.Go == "" || v.Kernel == "" {
		t.Errorf("versions are %+v", v)
	}
	var h bundle.Host
	if err := json.Unmarshal(files["host.json"], &h); err != nil {
		t.Fatal(err)
	}
	loopback := false
	for _, i := range h.Interfaces {
		loopback = loopback || i.Name == "lo" && i.MTU > 0
	}
	if h.CPUs < 1 || h.Memlock.Hard == 0 || !loopback {
		t.Errorf("host is %+v", h)
	}
	if p := files["profiles/goroutine.txt"]; !bytes.Contains(p, []byte("TestHostParts")) {
		t.Errorf("goroutine profile does not show this test:\n%s", p)
	}
	if p := files["profiles/heap.txt"]; !bytes.Contains(p, []byte("heap profile")) {
		t.Errorf("heap profile:\n%.200s", p)
	}
}

func TestReadKernel(t *testing.T) {
	want := bundle.Kernel{Modules: []bundle.Module{
		{Name: "lnet", Version: "2.15.5", State: "live", Parameters: map[string]string{"networks": ""}},
		{Name: "ko2iblnd", State: "live", Parameters: map[string]string{"peer_credits": "8"}},
	}}
	if diff := cmp.Diff(want, bundle.ReadKernel("testdata/module")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if k := bundle.ReadKernel("testdata/none"); len(k.Modules) != 0 {
		t.Errorf("modules of no kernel: %v", k)
	}
}
