//go:build nordma

package rdmacore

// Version is that of the libibverbs in use, "" without.
func Version() string { return "" }
