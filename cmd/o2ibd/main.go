// Command o2ibd is the appliance and its command line in one binary. Each subcommand is a small file here
// that reads its arguments, asks the running appliance over its unix socket, and prints; what is done, is
// done in package app and below. Only serve, decode, version and the hidden demo-node need no appliance.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

type commands struct {
	Socket string `help:"Unix socket of the appliance; of serve: where to make it." placeholder:"PATH" env:"O2IBD_SOCKET"`

	Serve    serveCmd    `cmd:"" help:"Run the appliance."`
	Ping     pingCmd     `cmd:"" help:"Ping a NID with LNet."`
	Net      netCmd      `cmd:"" help:"Networks and NIs of this node."`
	Peer     peerCmd     `cmd:"" help:"Peers."`
	Conn     connCmd     `cmd:"" help:"Connections."`
	Pool     poolCmd     `cmd:"" help:"Pools of descriptors."`
	Stats    statsCmd    `cmd:"" help:"LNet's counters."`
	Device   deviceCmd   `cmd:"" help:"HCAs."`
	Tunables tunablesCmd `cmd:"" help:"Tunables and their history."`
	Bundle   bundleCmd   `cmd:"" help:"Diagnostic bundles."`
	Decode   decodeCmd   `cmd:"" help:"Decode o2iblnd messages from hex or pcap; needs no appliance."`
	User     userCmd     `cmd:"" help:"Accounts."`
	Version  versionCmd  `cmd:"" help:"Version and what is built in."`
	Healthz  healthzCmd  `cmd:"" help:"Ask whether the appliance is alive, for supervisors."`

	DemoNode demoNodeCmd `cmd:"" hidden:""`
}

// env is what a subcommand works with.
type env struct {
	ctx    context.Context
	in     io.Reader
	out    io.Writer
	err    io.Writer
	socket string // as given, "" to look in the usual places
}

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// exited carries the exit code that kong asks for after --help.
type exited int

func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) (code int) {
	var c commands
	k, err := kong.New(&c,
		kong.Name("o2ibd"),
		kong.Description("A Lustre o2iblnd node in userspace, with a page to watch and tune it."),
		kong.Writers(out, errw),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.WithHyphenPrefixedParameters(true), // --sort -credits
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		panic(err) // the commands above are wrong
	}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exited)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	parsed, err := k.Parse(args)
	if err != nil {
		fmt.Fprintf(errw, "o2ibd: %s; see %s --help\n", oneLine(err), commandOf(err))
		return exitUsage
	}
	err = parsed.Run(&env{ctx: ctx, in: in, out: out, err: errw, socket: c.Socket})
	var wrong usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &wrong):
		fmt.Fprintf(errw, "o2ibd: %s; see o2ibd %s --help\n", oneLine(err), parsed.Selected().Path())
		return exitUsage
	}
	fmt.Fprintf(errw, "o2ibd: %s\n", oneLine(err))
	return exitFailed
}

// usageError is a wrong use that only the subcommand can see.
type usageError struct{ error }

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// commandOf is the command whose arguments were wrong, as far as it was clear.
func commandOf(err error) string {
	var p *kong.ParseError
	if errors.As(err, &p) && p.Context != nil {
		if n := p.Context.Selected(); n != nil {
			return "o2ibd " + n.Path()
		}
	}
	return "o2ibd"
}
