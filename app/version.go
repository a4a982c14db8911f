package app

import "o2ibd/engine/verbs/rdmacore"

// RDMACoreVersion is that of the libibverbs in use; "" where rdma-core is left out of this binary.
func RDMACoreVersion() string { return rdmacore.Version() }
