//go:build nordma

package rdmacore

// Built says whether rdma-core is part of this binary.
const Built = false

// Version is that of the libibverbs in use, "" without.
func Version() string { return "" }
