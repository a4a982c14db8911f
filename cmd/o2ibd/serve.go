package main

import (
	"context"
	"errors"
	"log/slog"
	"os/signal"
	"strconv"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"o2ibd/app"
)

type serveCmd struct {
	Config string     `help:"Configuration file." type:"existingfile" placeholder:"FILE"`
	Listen string     `help:"Address of the page (default: 127.0.0.1:8470)." placeholder:"ADDR"`
	State  string     `help:"State folder (default: /var/lib/o2ibd, or one of your own)." placeholder:"DIR"`
	Demo   demoCount  `help:"With further engine nodes on loopback and traffic among them: 4, or as many as N." placeholder:"N"`
	Log    slog.Level `help:"Least severity of what is logged: debug, info, warn, error." default:"info"`
}

// demoCount is the value of --demo[=N].
type demoCount int

const defaultDemo = 4

// IsBool lets the flag stand without a value.
func (*demoCount) IsBool() bool { return true }

// Decode reads the value, where there is one.
func (n *demoCount) Decode(ctx *kong.DecodeContext) error {
	*n = defaultDemo
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	t, err := ctx.Scan.PopValue("N")
	if err != nil {
		return err
	}
	v, err := strconv.Atoi(t.String())
	if err != nil || v < 1 || v > app.MaxDemo {
		return errors.New("a number from 1 to " + strconv.Itoa(app.MaxDemo) + " is wanted")
	}
	*n = demoCount(v)
	return nil
}

func (c *serveCmd) Run(e *env) error {
	log := slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: c.Log}))
	ctx, stop := signal.NotifyContext(e.ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	a, err := app.Open(ctx, app.Options{
		ConfigFile: c.Config, StateDir: c.State, Listen: c.Listen, Socket: e.socket, Demo: int(c.Demo),
		DemoArgs: []string{"demo-node"}, Version: versionName(), Out: e.out, Log: log,
	})
	if err != nil {
		return err
	}
	h, err := handlers(a, log)
	if err != nil {
		return errors.Join(err, a.Close())
	}
	return errors.Join(a.Run(ctx, h), a.Close())
}

// demoNodeCmd is a node of the demo; only serve --demo starts it.
type demoNodeCmd struct{}

func (*demoNodeCmd) Run(e *env) error {
	ctx, stop := signal.NotifyContext(e.ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return app.RunDemoNode(ctx, e.in, e.out, e.err)
}
