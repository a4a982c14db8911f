package web

import (
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

func (s *server) asset(w http.ResponseWriter, r *http.Request) error {
	name := chi.URLParam(r, "file")
	b, err := dist.ReadFile(path.Join("assets/dist", path.Base(name)))
	if err != nil || strings.HasPrefix(name, ".") {
		return &statusError{http.StatusNotFound, "no such file"}
	}
	switch path.Ext(name) {
	case ".js":
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
	case ".css":
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
	case ".txt":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	case ".svg":
		w.Header().Set("Content-Type", "image/svg+xml")
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, err = w.Write(b)
	return err
}

// built are the files of dist with a version in their address; a file that was not built is "".
var built = func() map[string]string {
	m := make(map[string]string)
	for _, name := range []string{"app.js", "app.css", "icon.svg", "uplot-licence.txt"} {
		if b, err := dist.ReadFile("assets/dist/" + name); err == nil {
			sum := sha256.Sum256(b)
			m[name] = "/assets/" + name + "?v=" + hex.EncodeToString(sum[:6])
		}
	}
	return m
}()
