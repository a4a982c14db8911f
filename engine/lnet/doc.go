// Package lnet is the LNet node above the o2ib LND: it owns the NIs, matches incoming PUTs and GETs to
// the memory that users posted, sends theirs, answers and asks pings, and remembers every peer. It is an
// end node: it never routes. The behaviour is that of spec lnet sections 1 to 5 and 7; selftest is a
// package of its own on top of this one.
//
// # How it fits
//
// A Node is the o2iblnd.Upper of an LND. Messages come up by Parse, on a scheduler; messages go down
// through an o2iblnd.Sender and come back by Finalize. Tick gives it the time about once a second.
// There is no goroutine in here: everything runs on the goroutine that calls. The memory that messages
// name lies in an arena, never in the Go heap.
//
//	users:  Attach, Bind, Unlink, Put, Get, Ping      events, by Handler
//	          |                                          ^
//	        Node: portals (MEs and MDs), handles, peers, credits, response tracking
//	          | Sender.Send, Rx.Receive                  ^ Parse, Finalize, PeerDown
//	        LND
//
// # Messages
//
// One msg structure carries a message both ways, its place in a credit queue, and its event to the
// handler. It comes from a pool and returns there after its last use, so a message costs no allocation.
// While it has no other owner it belongs to the LND (Send or Receive until Finalize), to the queue of a
// peer, to a portal's list of parked PUTs, or to the event queue of an MD.
//
// The events of one MD come one at a time and in order, and the one with Unlinked set is the last:
// whoever is calling the handler also delivers what others add meanwhile.
//
// # Locks
//
// All are short and none is held over a call of a Sender, an Rx, a Handler or the log. In this order:
//
//	pingTarget.mu    renewal of the ping answer; over it only our own handler runs, which frees memory
//	portal.mu        lists of MEs, parked PUTs
//	md.mu            state of one MD, its event queue
//	ni.peersMu       table of peers
//	peer.mu          credits and queues of one peer, what is remembered of it
//	ni.mu            credits of the NI and the peers that wait for one
//	leaves           handleTable.mu, tracker.mu, loopback.mu, asideMemory.mu
//
// Counters are atomics; a reader of Peers, NIs or Stats holds up no one for longer than a copy takes.
package lnet
