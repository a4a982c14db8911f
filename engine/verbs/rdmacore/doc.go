// Package rdmacore is the verbs.Provider for real HCAs: libibverbs and librdmacm through cgo. The build tag
// nordma leaves it out; Version then says so.
//
// What crosses the border to C. A batch of postings, of completions or of connection manager events is one
// call with flat arrays, and C keeps no pointer of Go's. Work requests go to the device under tokens (see
// queues.c), because a completion with an error does not say what it is of.
//
// Who does what. A Waiter is an epoll set with the completion channels of its queues and one eventfd, which
// is written only while somebody sleeps. Each CM has a goroutine that takes events from librdmacm, parked in
// the runtime's poller while there are none, and does at once what a kernel user's handler would do: it
// answers a peer's disconnect, and lets sends be posted to what is established. Each opened device context
// has one that takes its asynchronous events. Slow calls, which free queue pairs and ids, run on a few
// goroutines of the provider; what depends on them waits.
//
// What rdma_cm leaves to its user and the seam does not. A queue pair that fails, or is moved to error, is
// disconnected here, so that the peer learns of it. A peer that does not confirm the end of a connection
// within disconnectGrace is taken for gone. An id that is closed soon after its disconnect lives on until
// the peer has confirmed it, or for lingerFor, out of sight.
//
// librdmacm opens each device once in a process: contexts, and nothing else, are shared by all providers.
package rdmacore
