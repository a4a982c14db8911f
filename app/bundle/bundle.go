// Package bundle writes a diagnostic bundle: a zip, made as a stream, with a manifest that lists every
// file with its size and SHA-256 and says what is missing and why. On request the names and addresses in
// it are replaced by pseudonyms, the same ones throughout (Redactor).
//
// It knows how to write and how to look at the host; what goes into a bundle besides, the caller hands
// over as Parts. One goroutine writes one bundle.
package bundle

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"
	"time"
)

// Bounds of a bundle, in bytes before compression.
const (
	MaxPart  = 64 << 20
	MaxTotal = 256 << 20
)

// ManifestName is the manifest's name in the zip, where it stands last.
const ManifestName = "manifest.json"

// Part is one file of a bundle.
type Part struct {
	Name  string // path in the zip; its ending says how it is redacted (.json, .jsonl, .yaml, other text)
	Write func(ctx context.Context, w io.Writer) error
}

// Manifest lists what is in a bundle.
type Manifest struct {
	Version   string    `json:"version"` // of o2ibd
	Host      string    `json:"host"`
	CreatedAt int64     `json:"created_at"` // milliseconds since the epoch
	Demo      bool      `json:"demo"`
	Redacted  bool      `json:"redacted"`
	Files     []File    `json:"files"`
	Missing   []Missing `json:"missing"`
}

// File is one file of a bundle.
type File struct {
	Name      string `json:"name"`
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256"`
	Truncated bool   `json:"truncated,omitempty"` // it was larger than a bundle takes
}

// Missing is a file that is not there, or not whole, and why.
type Missing struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// errTruncated ends a part that has reached its bound.
var errTruncated = errors.New("cut off at the size that a bundle takes")

// Write writes the parts and the manifest to w. head gives the manifest's first fields; a nil redact
// leaves everything as it is. progress, which may be nil, is called before each part. A part that fails
// is listed as missing and the bundle goes on; the error is one of writing to w or of ctx.
func Write(ctx context.Context, w io.Writer, head Manifest, parts []Part, redact *Redactor, progress func(step string, done float64)) (Manifest, error) {
	head.Files, head.Missing, head.Redacted = []File{}, append([]Missing{}, head.Missing...), redact != nil
	left := int64(MaxTotal)
	sink := &failing{w: w}
	z := zip.NewWriter(sink)
	at := time.UnixMilli(head.CreatedAt).UTC()
	for i, p := range parts {
		if err := ctx.Err(); err != nil {
			return head, err
		}
		if progress != nil {
			progress(p.Name, float64(i)/float64(len(parts)))
		}
		file, err := writePart(ctx, z, p, at, redact, min(left, MaxPart))
		if sink.err != nil {
			return head, sink.err
		}
		if file.Truncated = errors.Is(err, errTruncated); err != nil {
			head.Missing = append(head.Missing, Missing{p.Name, oneLine(err)})
		}
		left -= file.Size
		head.Files = append(head.Files, file)
	}
	if err := ctx.Err(); err != nil {
		return head, err
	}
	manifest := Part{ManifestName, func(_ context.Context, w io.Writer) error { return JSON(w, head) }}
	if _, err := writePart(ctx, z, manifest, at, redact, MaxPart); err != nil {
		return head, err
	}
	if err := z.Close(); err != nil {
		return head, err
	}
	return head, nil
}

func writePart(ctx context.Context, z *zip.Writer, p Part, at time.Time, redact *Redactor, limit int64) (File, error) {
	entry, err := z.CreateHeader(&zip.FileHeader{Name: p.Name, Method: zip.Deflate, Modified: at})
	if err != nil {
		return File{Name: p.Name}, err
	}
	m := &measured{w: entry, sum: sha256.New(), left: limit}
	out, flush := redact.writer(m, path.Ext(p.Name))
	err = p.Write(ctx, out)
	if ferr := flush(); err == nil {
		err = ferr
	}
	return File{Name: p.Name, Size: m.n, SHA256: hex.EncodeToString(m.sum.Sum(nil))}, err
}

// JSON writes v indented, one value a line, so that lines stay short.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONLines writes each value that each yields on a line of its own.
func JSONLines(w io.Writer, each func(yield func(v any) error) error) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return each(func(v any) error { return e.Encode(v) })
}

// Text makes a part of a text that is known already.
func Text(name string, text []byte) Part {
	return Part{name, func(_ context.Context, w io.Writer) error {
		_, err := w.Write(text)
		return err
	}}
}

// Value makes a part of a value that is known already, as JSON.
func Value(name string, v any) Part {
	return Part{name, func(_ context.Context, w io.Writer) error { return JSON(w, v) }}
}

// measured counts, sums and bounds what goes through.
type measured struct {
	w    io.Writer
	sum  hash.Hash
	n    int64
	left int64
}

func (m *measured) Write(b []byte) (int, error) {
	cut := int64(len(b)) > m.left
	if cut {
		b = b[:m.left]
	}
	n, err := m.w.Write(b)
	m.sum.Write(b[:n])
	m.n += int64(n)
	m.left -= int64(n)
	if err == nil && cut {
		err = fmt.Errorf("%w (%d bytes)", errTruncated, m.n)
	}
	return n, err
}

// failing remembers that the bundle's own file could not be written, which is not a part's fault.
type failing struct {
	w   io.Writer
	err error
}

func (f *failing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		f.err = err
	}
	return n, err
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
