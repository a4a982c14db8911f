package web

import (
	"encoding/json"
	"errors"
	"net/http"

	"o2ibd/app"
	"o2ibd/app/sample"
	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
	"o2ibd/web/live"
)

// statusError is an error whose status and words are known.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// problem is an RFC 9457 document, with the fields that were wrong where there are such.
type problem struct {
	app.Problem
	Errors   []tunables.FieldError `json:"errors,omitempty"`
	Conflict *tuning.ConflictError `json:"conflict,omitempty"`
}

// statusOf says which status an error stands for.
func statusOf(err error) int {
	var st *statusError
	var invalid *tuning.InvalidError
	var conflict *tuning.ConflictError
	var pending *tuning.PendingError
	var filter *live.Error
	var history *sample.QueryError
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &st):
		return st.status
	case errors.As(err, &big):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &conflict):
		return http.StatusPreconditionFailed
	case errors.As(err, &invalid), errors.Is(err, tuning.ErrNothing), errors.Is(err, tuning.ErrInvalid), errors.As(err, &filter), errors.As(err, &history), errors.Is(err, app.ErrInvalid):
		return http.StatusUnprocessableEntity
	case errors.Is(err, app.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, app.ErrExists), errors.Is(err, app.ErrConflict), errors.As(err, &pending), errors.Is(err, tuning.ErrNotApplied), errors.Is(err, tuning.ErrClock):
		return http.StatusConflict
	case errors.Is(err, app.ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, app.ErrTooMany):
		return http.StatusTooManyRequests
	case errors.Is(err, app.ErrCredentials):
		return http.StatusUnauthorized
	case errors.Is(err, app.ErrUnreachable):
		return http.StatusGatewayTimeout
	case errors.Is(err, app.ErrNoEngine), errors.Is(err, tuning.ErrEngine), errors.Is(err, store.ErrDiskFull), errors.Is(err, store.ErrUnwritable):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// fail answers with an error: a problem document for programs, a page for people.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	text := err.Error()
	if status == http.StatusInternalServerError {
		s.log.Error("a request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	if wantsPage(r) && r.Header.Get("Accept") != "application/json" {
		s.render(w, r, status, errorPage(s.frame(r, http.StatusText(status)), status, text))
		return
	}
	p := problem{Problem: app.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: text}}
	var invalid *tuning.InvalidError
	if errors.As(err, &invalid) {
		p.Errors = invalid.Fields
	}
	errors.As(err, &p.Conflict)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	// The asker may be gone: there is nobody to tell.
	_ = json.NewEncoder(w).Encode(p)
}

func (s *server) json(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
	return nil
}

// body reads a JSON body and takes nothing else with it.
func body(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return &statusError{http.StatusRequestEntityTooLarge, "the body is larger than 1 MiB"}
		}
		return &statusError{http.StatusBadRequest, "the body is not what is expected here: " + err.Error()}
	}
	if dec.More() {
		return &statusError{http.StatusBadRequest, "the body holds more than one JSON value"}
	}
	return nil
}
