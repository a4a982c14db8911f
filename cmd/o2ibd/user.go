package main

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"o2ibd/app"
)

type userCmd struct {
	Add    userAddCmd    `cmd:"" help:"Add an account."`
	Passwd userPasswdCmd `cmd:"" help:"Set an account's password; it is read from the terminal or from stdin."`
	Role   userRoleCmd   `cmd:"" help:"Change what an account may do."`
	List   userListCmd   `cmd:"" help:"List the accounts."`
	Remove userRemoveCmd `cmd:"" help:"Remove an account with its sessions and tokens."`
	Link   userLinkCmd   `cmd:"" help:"Make a one-time sign-in link."`
	Token  userTokenCmd  `cmd:"" help:"Make a bearer token for a program."`
}

func userPath(name string) string { return "/api/v1/users/" + url.PathEscape(name) }

type userAddCmd struct {
	Name     string   `arg:""`
	Role     app.Role `default:"viewer" enum:"viewer,operator,admin" help:"viewer, operator or admin."`
	Password bool     `help:"Ask for a password; without one only a sign-in link opens the account."`
}

func (c *userAddCmd) Run(e *env) error {
	u := app.NewUser{Name: c.Name, Role: c.Role}
	if c.Password {
		var err error
		if u.Password, err = e.readPassword(c.Name); err != nil {
			return err
		}
	}
	if err := e.call("POST", "/api/v1/users", u, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "%s is added as %s\n", c.Name, c.Role)
	return err
}

type userPasswdCmd struct {
	Name string `arg:""`
}

func (c *userPasswdCmd) Run(e *env) error {
	p, err := e.readPassword(c.Name)
	if err != nil {
		return err
	}
	if err := e.call("PATCH", userPath(c.Name), app.UserChange{Password: &p}, nil); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "%s has a new password and is signed out everywhere\n", c.Name)
	return err
}

type userRoleCmd struct {
	Name string   `arg:""`
	Role app.Role `arg:"" enum:"viewer,operator,admin" help:"viewer, operator or admin."`
}

func (c *userRoleCmd) Run(e *env) error {
	if err := e.call("PATCH", userPath(c.Name), app.UserChange{Role: &c.Role}, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "%s is %s now\n", c.Name, c.Role)
	return err
}

type userListCmd struct{ format }

func (c *userListCmd) Run(e *env) error {
	var l app.UserList
	if err := e.call("GET", "/api/v1/users", nil, &l); err != nil {
		return err
	}
	return c.print(e, l, func() *table {
		t := &table{head: []string{"NAME", "ROLE", "PASSWORD", "CREATED", "LAST SIGN-IN"}}
		for _, u := range l.Users {
			password, last := "set", "never"
			if !u.HasPassword {
				password = "none"
			}
			if u.LastSignIn != nil {
				last = at(*u.LastSignIn)
			}
			t.add(u.Name, u.Role, password, at(u.CreatedAt), last)
		}
		return t
	})
}

type userRemoveCmd struct {
	Name string `arg:""`
}

func (c *userRemoveCmd) Run(e *env) error {
	if err := e.call("DELETE", userPath(c.Name), nil, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "%s is removed\n", c.Name)
	return err
}

type userLinkCmd struct {
	format
	Name string `arg:"" default:"admin" help:"Account that the link opens."`
}

func (c *userLinkCmd) Run(e *env) error {
	var l app.Link
	if err := e.call("POST", userPath(c.Name)+"/links", nil, &l); err != nil {
		return err
	}
	return c.print(e, l, func() *table {
		t := &table{}
		t.add(l.URL)
		return t
	})
}

type userTokenCmd struct {
	format
	Name  string        `arg:""`
	Label string        `help:"What it is for."`
	Role  app.Role      `default:"" enum:",viewer,operator,admin" help:"What it may do, at most what the account may; without it, the same."`
	TTL   time.Duration `name:"ttl" help:"How long it is good for; without it, until it is removed."`
}

// AfterApply checks what kong cannot.
func (c *userTokenCmd) AfterApply() error {
	if c.TTL < 0 || c.TTL > 0 && c.TTL < time.Second {
		return errors.New("--ttl must be a second or more")
	}
	return nil
}

func (c *userTokenCmd) Run(e *env) error {
	var s app.TokenSecret
	req := app.TokenRequest{Label: c.Label, TTLS: int64(c.TTL / time.Second), Role: c.Role}
	if err := e.call("POST", userPath(c.Name)+"/tokens", req, &s); err != nil {
		return err
	}
	return c.print(e, s, func() *table {
		t := &table{}
		t.add(s.Secret)
		return t
	})
}
