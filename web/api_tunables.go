package web

import (
	"io"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"o2ibd/app/tuning"
)

func ifMatch(r *http.Request) string {
	return strings.Trim(strings.TrimPrefix(r.Header.Get("If-Match"), "W/"), `"`)
}

func (s *server) tunablesResult(w http.ResponseWriter, res tuning.Result, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("ETag", `"`+res.Tag+`"`)
	return s.json(w, http.StatusOK, res)
}

func (s *server) apiConfirm(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	done, err := s.app.ConfirmChange(r.Context(), who, chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, done)
}

func (s *server) apiRevert(w http.ResponseWriter, r *http.Request) error {
	var b tuning.RevertBody
	if r.ContentLength != 0 {
		if err := body(r, &b); err != nil {
			return err
		}
	}
	who, _ := actor(r)
	req := b.Request(chi.URLParam(r, "id"))
	req.IfMatch = ifMatch(r)
	res, err := s.app.RevertChange(r.Context(), who, req)
	return s.tunablesResult(w, res, err)
}

func (s *server) apiImport(w http.ResponseWriter, r *http.Request) error {
	var b tuning.ImportBody
	if err := body(r, &b); err != nil {
		return err
	}
	who, _ := actor(r)
	req := b.Request()
	req.IfMatch = ifMatch(r)
	res, err := s.app.ImportTunables(r.Context(), who, req)
	return s.tunablesResult(w, res, err)
}

func (s *server) apiExport(w http.ResponseWriter, r *http.Request) error {
	text, err := s.app.Tuning().Export(r.FormValue("format"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err = io.WriteString(w, text)
	return err
}

func (s *server) apiDiff(w http.ResponseWriter, r *http.Request) error {
	d, err := s.app.Tuning().Diff(r.Context(), r.FormValue("from"), r.FormValue("to"))
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, d)
}

func (s *server) apiVerify(w http.ResponseWriter, r *http.Request) error {
	v, err := s.app.VerifyTunables(r.Context())
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, v)
}

func (s *server) apiProgress(w http.ResponseWriter, _ *http.Request) error {
	return s.json(w, http.StatusOK, s.app.TuningProgress())
}
