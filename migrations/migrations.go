// Package migrations holds the database's schema as numbered SQL files, embedded in the binary. Package
// store applies them at start; nothing else reads them.
//
// A file is NNNN_what.up.sql. It is applied in one transaction and must end with PRAGMA user_version set
// to its number, by which store knows after a crash whether it was applied. A file that has landed is
// never changed; there are no down files: an older binary refuses a newer database.
package migrations

import "embed"

// FS are the files.
//
//go:embed *.sql
var FS embed.FS
