package web

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"o2ibd/app"
)

func (s *server) signInPage(w http.ResponseWriter, r *http.Request) error {
	if _, ok := actor(r); ok {
		http.Redirect(w, r, safeNext(r.FormValue("next")), http.StatusSeeOther)
		return nil
	}
	s.render(w, r, http.StatusOK, signInForm(s.frame(r, "Sign in"), r.FormValue("next"), "", ""))
	return nil
}

func (s *server) signIn(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return &statusError{http.StatusBadRequest, "the form is malformed"}
	}
	name, next := r.PostForm.Get("name"), r.PostForm.Get("next")
	again := func(status int, text string) error {
		s.render(w, r, status, signInForm(s.frame(r, "Sign in"), next, name, text))
		return nil
	}
	a, err := s.app.CheckPassword(r.Context(), name, r.PostForm.Get("password"), from(r))
	if errors.Is(err, app.ErrCredentials) {
		return again(http.StatusUnauthorized, "Name or password is wrong.")
	}
	if errors.Is(err, app.ErrTooMany) {
		return again(http.StatusTooManyRequests, sentence(err))
	}
	if err != nil {
		return err
	}
	token, _, err := s.app.NewSession(r.Context(), a.Name, from(r))
	if err != nil {
		return err
	}
	http.SetCookie(w, s.cookie(token, int((7*24*time.Hour).Seconds())))
	http.Redirect(w, r, safeNext(next), http.StatusSeeOther)
	return nil
}

// linkPage shows the button: a link alone must not sign in, since mail and chat programs open links.
func (s *server) linkPage(w http.ResponseWriter, r *http.Request) error {
	s.render(w, r, http.StatusOK, linkForm(s.frame(r, "Sign in"), r.FormValue("token")))
	return nil
}

func (s *server) useLink(w http.ResponseWriter, r *http.Request) error {
	token, _, err := s.app.UseSignInLink(r.Context(), r.PostFormValue("token"), from(r))
	if errors.Is(err, app.ErrCredentials) || errors.Is(err, app.ErrNotFound) {
		return &statusError{http.StatusUnauthorized, "this link was used already, or is too old: `o2ibd user link NAME` makes a new one"}
	}
	if err != nil {
		return err
	}
	http.SetCookie(w, s.cookie(token, int((7*24*time.Hour).Seconds())))
	http.Redirect(w, r, "/account?first=1", http.StatusSeeOther)
	return nil
}

func (s *server) signOut(w http.ResponseWriter, r *http.Request) error {
	if c, err := r.Cookie(cookieName); err == nil {
		if err := s.app.EndSession(r.Context(), c.Value); err != nil && !errors.Is(err, app.ErrNotFound) {
			return err
		}
	}
	http.SetCookie(w, s.cookie("", -1))
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
	return nil
}

func (s *server) accountPage(w http.ResponseWriter, r *http.Request) error {
	s.render(w, r, http.StatusOK, accountForm(s.frame(r, "Your account"), r.FormValue("first") == "1", ""))
	return nil
}

func (s *server) changeOwnPassword(w http.ResponseWriter, r *http.Request) error {
	who, _ := actor(r)
	if who.How != app.HowPage {
		return &statusError{http.StatusForbidden, "a password is changed in a browser session, or by `o2ibd user passwd`"}
	}
	pw := r.PostFormValue("password")
	if pw != r.PostFormValue("again") {
		s.render(w, r, http.StatusUnprocessableEntity, accountForm(s.frame(r, "Your account"), false, "The two passwords differ. The old one stands."))
		return nil
	}
	err := s.app.SetPassword(r.Context(), who, who.Name, pw)
	if errors.Is(err, app.ErrInvalid) {
		s.render(w, r, http.StatusUnprocessableEntity, accountForm(s.frame(r, "Your account"), false, err.Error()))
		return nil
	}
	if err != nil {
		return err
	}
	// Every session ended with the old password: this browser gets a new one.
	token, _, err := s.app.NewSession(r.Context(), who.Name, from(r))
	if err != nil {
		return err
	}
	http.SetCookie(w, s.cookie(token, int((7*24*time.Hour).Seconds())))
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}

// sentence makes an error's text one.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
