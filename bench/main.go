// Command bench compares the engine with peers, side by side in one run: bulk transfers with a plain TCP
// stream, and thousands of idle connections with plain Go connections.
//
//	go run ./bench [-only transfers|peers] [-seconds 3] [-inflight 8] [-peers 10000] [-tcp-peers 2000]
package main

import (
	"flag"
	"log"
	"os"
	"time"
)

func main() {
	log.SetFlags(0)
	only := flag.String("only", "", "transfers, peers or viewers; all when it is empty")
	seconds := flag.Float64("seconds", 3, "length of each transfer measurement")
	inflight := flag.Int("inflight", 8, "LNet operations at once, up to peer_credits")
	rounds := flag.Int("rounds", 3, "transfer measurements of each kind, in turn; the best counts")
	peers := flag.Int("peers", 10000, "idle peers on the in-memory provider")
	tcpPeers := flag.Int("tcp-peers", 2000, "idle peers over TCP, their end in a second process")
	far := flag.String("far", "", "for the second process: be the peers (o2ib or plain) of the node at -hub")
	hub := flag.String("hub", "", "address and port of the node, for -far")
	flag.Parse()
	if dir := os.Getenv(servesPage); dir != "" {
		servePage(dir)
		return
	}
	if *far != "" {
		farEnd(*far, *hub, *tcpPeers)
		return
	}
	d := time.Duration(*seconds * float64(time.Second))
	if *only == "" || *only == "transfers" {
		transfers(d, *inflight, *rounds)
	}
	if *only == "" || *only == "peers" {
		idlePeers(*peers, *tcpPeers)
	}
	if *only == "" || *only == "viewers" {
		viewers(d)
	}
}
