// Package config reads the appliance's one YAML file.
package config

// Config is the configuration in force: defaults, the file, and flags over it.
type Config struct {
	Listen         string   // address of the page
	State          string   // state folder
	Socket         string   // path of the unix socket
	Provider       string   // "", iwarp, rdmacore
	AllowedHosts   []string // Host headers that the page answers to, besides loopback and the listen address
	MetricsPublic  bool     // /metrics without a token
	TLSCert        string   // PEM files; both or none
	TLSKey         string
	InsecureListen bool // listen beyond loopback without TLS
}
