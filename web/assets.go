package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"

	"github.com/go-chi/chi/v5"
)

// What npm built: the script and the style. Without it pages are plain, and work.
//
//go:embed all:assets/dist
var dist embed.FS

// file is one built file, ready to send.
type file struct {
	media       string
	plain, gzip []byte
}

var mediaTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}

// files are those of dist, and built their addresses, with a version; a file that was not built is in
// neither.
var files, built = func() (map[string]file, map[string]string) {
	files, built := make(map[string]file), make(map[string]string)
	for _, name := range []string{"app.js", "app.css", "icon.svg", "uplot-licence.txt"} {
		if b, err := dist.ReadFile("assets/dist/" + name); err == nil {
			sum := sha256.Sum256(b)
			files[name] = file{media: mediaTypes[path.Ext(name)], plain: b, gzip: compress(b, gzip.BestCompression)}
			built[name] = "/assets/" + name + "?v=" + hex.EncodeToString(sum[:6])
		}
	}
	return files, built
}()

func (s *server) asset(w http.ResponseWriter, r *http.Request) error {
	f, ok := files[chi.URLParam(r, "file")]
	if !ok {
		return &statusError{http.StatusNotFound, "no such file"}
	}
	w.Header().Set("Content-Type", f.media)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Vary", "Accept-Encoding")
	if takesGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		f.plain = f.gzip
	}
	_, err := w.Write(f.plain)
	return err
}

// takesGzip says whether a browser reads gzip.
func takesGzip(r *http.Request) bool {
	for enc := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(enc), ";")
		if name == "gzip" {
			return strings.TrimSpace(q) != "q=0"
		}
	}
	return false
}

func compress(b []byte, level int) []byte {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // no such level
	}
	z.Write(b) // a buffer takes everything
	z.Close()
	return out.Bytes()
}
