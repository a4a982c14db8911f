// Package config reads the appliance's one YAML file: a pure function from text to values, with the
// line in every error. The file is strict: an unknown key is an error that names the nearest known one.
// Only a pasted lnetctl export (its section net, and the sections that stand beside it) may hold keys
// that we do not use; they are listed once (spec lnet 5.8, 5.9).
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"o2ibd/engine/tunables"
)

// Defaults of the listen address and of the state folder of a system service.
const (
	DefaultListen   = "127.0.0.1:8470"
	DefaultStateDir = "/var/lib/o2ibd"
	SocketName      = "o2ibd.sock" // inside the state folder
	DemoFolder      = "demo"       // the demo's state folder, inside the usual one
)

// Config is the configuration in force: defaults, the file, and flags over it.
type Config struct {
	File           string   // where it came from, "" without a file
	Listen         string   // address of the page
	State          string   // state folder
	Socket         string   // path of the unix socket
	Provider       string   // "", iwarp, rdmacore
	CPTs           [][]int  // CPUs of each group of schedulers; nil: the host's NUMA nodes
	AllowedHosts   []string // Host headers that the page answers to, besides loopback and the listen address
	MetricsPublic  bool     // /metrics without a token
	TLSCert        string   // PEM files; both or none
	TLSKey         string
	TLSSelfMade    bool // a certificate that the appliance makes itself, in the state folder
	InsecureListen bool // listen beyond loopback without TLS

	Tunables tunables.Values // of section tunables and of the networks, in canonical form
	NIs      []NI
	Notices  []string // what of the file is not used or was translated, for the log
}

// NI is one interface that the file puts on an o2ib network.
type NI struct {
	Net       string // o2ib, o2ib7
	Interface string // empty: the one that the tunable ipif_name says
}

// TLS says whether the page has a certificate, given or self-made.
func (c *Config) TLS() bool { return c.TLSCert != "" || c.TLSSelfMade }

// Fill puts defaults where nothing is set. The demo has a state folder of its own inside the usual one,
// unless one was named.
func (c *Config) Fill(demo bool) {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.State == "" {
		c.State = StateDir()
		if demo {
			c.State = filepath.Join(c.State, DemoFolder)
		}
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(c.State, SocketName)
	}
}

// StateDir is the default state folder: the service's for root, else one of the user's own.
func StateDir() string {
	if os.Geteuid() == 0 {
		return DefaultStateDir
	}
	return userStateDir()
}

func userStateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "o2ibd")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return DefaultStateDir
	}
	return filepath.Join(home, ".local", "state", "o2ibd")
}

// Sockets lists where a command line without --socket looks for the appliance, in this order.
func Sockets() []string {
	var list []string
	for _, dir := range []string{StateDir(), filepath.Join(StateDir(), DemoFolder), DefaultStateDir} {
		path := filepath.Join(dir, SocketName)
		if len(list) == 0 || list[0] != path {
			list = append(list, path)
		}
	}
	return list
}

// Read reads a file; "" gives the empty configuration.
func Read(file string) (Config, error) {
	if file == "" {
		return Config{Tunables: tunables.Values{}}, nil
	}
	src, err := os.ReadFile(file)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(file, src)
}

// Parse reads the text of a file; name stands in the errors.
func Parse(name string, src []byte) (Config, error) {
	r := reader{file: name, cfg: Config{File: name, Tunables: tunables.Values{}}, lines: map[tunables.Scoped]int{}}
	root, err := r.document(src)
	if err != nil {
		return Config{}, err
	}
	if root != nil {
		if err := r.top(root); err != nil {
			return Config{}, err
		}
	}
	if len(r.ignored) > 0 {
		r.notice("%s: not used here and ignored: %s", name, strings.Join(r.ignored, ", "))
	}
	return r.cfg, nil
}
