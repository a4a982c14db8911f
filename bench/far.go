package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire"
)

// window is how many connections are being made at once.
const window = 64

// peersEnd is the far end of many connections, by raw verbs: one address that speaks for many NIDs.
type peersEnd struct {
	prov verbs.Provider
	cm   verbs.CM
	ids  []verbs.ID
}

// dial makes n connections to the node at hub, each as a peer of its own.
func dial(p verbs.Provider, hub netip.AddrPort, n int) *peersEnd {
	w, err := p.NewWaiter()
	if err != nil {
		log.Fatal(err)
	}
	e := &peersEnd{prov: p}
	if e.cm, err = p.OpenCM(w); err != nil {
		log.Fatal(err)
	}
	var pd verbs.PD
	var cq verbs.CQ
	var evs [64]verbs.Event
	deadline := time.Now().Add(time.Minute)
	for made := 0; made < n; {
		if time.Now().After(deadline) {
			log.Fatalf("%d of %d connections are made after a minute", made, n)
		}
		for len(e.ids) < n && len(e.ids)-made < window {
			id, err := e.cm.NewID(len(e.ids))
			if err == nil {
				err = id.ResolveAddr(netip.AddrPortFrom(farAddr, 0), hub, false, 5*time.Second)
			}
			if err != nil {
				log.Fatal(err)
			}
			e.ids = append(e.ids, id)
		}
		k, err := e.cm.Poll(evs[:])
		if err != nil {
			log.Fatal(err)
		}
		for i := range evs[:k] {
			ev := &evs[i]
			switch ev.Type {
			case verbs.EventAddrResolved:
				err = ev.ID.ResolveRoute(5 * time.Second)
			case verbs.EventRouteResolved:
				if pd == nil {
					if pd, err = ev.ID.Device().AllocPD(); err != nil {
						log.Fatal(err)
					}
					if cq, err = ev.ID.Device().CreateCQ(1<<20, w); err != nil {
						log.Fatal(err)
					}
				}
				if _, err = ev.ID.CreateQP(verbs.QPAttr{PD: pd, CQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}); err == nil {
					err = ev.ID.Connect(verbs.ConnParam{Private: request(ev.ID.User().(int)), RetryCount: 5, RNRRetryCount: 6})
				}
			case verbs.EventEstablished:
				made++
			default:
				err = fmt.Errorf("%v while connecting: %v", ev.Type, ev.Err)
			}
			if err != nil {
				log.Fatal(err)
			}
		}
		if k == 0 {
			w.Wait(time.Now().Add(time.Second))
		}
	}
	return e
}

// request is the CONNREQ of peer i.
func request(i int) []byte {
	m := wire.Msg{Params: wire.ConnParams{QueueDepth: queueDepth, MaxFrags: wire.MaxFragsOffer, MaxMsgSize: wire.MsgSize}}
	m.Header = wire.Header{Version: wire.Version2, Type: wire.MsgConnReq, SrcNID: wire.MakeNID(wire.NetO2IB, 0x0a000001+uint32(i)), SrcStamp: 1000, DstNID: hubNID}
	b := make([]byte, wire.ConnMsgSize)
	if _, err := m.Encode(b, wire.CksumNone); err != nil {
		log.Fatal(err)
	}
	return b
}

// close leaves without a word of parting but the provider's own.
func (e *peersEnd) close() {
	for _, id := range e.ids {
		if err := id.QP().Close(); err != nil {
			log.Fatal(err)
		}
		if err := id.Close(); err != nil {
			log.Fatal(err)
		}
	}
	if err := e.prov.Close(); err != nil {
		log.Fatal(err)
	}
}

// secondProcess runs the far end of n connections of a kind, and returns when they are made.
func secondProcess(kind, hub string, n int) (end func()) {
	exe, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command(exe, "-far", kind, "-hub", hub, "-tcp-peers", fmt.Sprint(n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		log.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		log.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
		log.Fatalf("the second process said %q: %v", line, err)
	}
	return func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			log.Fatalf("the second process: %v", err)
		}
	}
}

// farEnd is the second process: it connects, says so, and leaves when its input ends.
func farEnd(kind, hub string, n int) {
	at, err := netip.ParseAddrPort(hub)
	if err != nil {
		log.Fatal(err)
	}
	var end func()
	switch kind {
	case "o2ib":
		end = dial(iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "lo", Addr: farAddr}}}), at, n).close
	case "plain":
		end = dialPlain(at, n)
	default:
		log.Fatalf("-far %q: o2ib and plain exist", kind)
	}
	fmt.Println("connected")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		log.Fatal(err)
	}
	end()
}
