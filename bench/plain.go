package main

import (
	"log"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"o2ibd/engine/wire"
)

// The peers of idle o2ib connections: what a Go program would do at once, a goroutine a connection that
// waits in Read with a buffer of one message, and a deadline on each that is set anew now and then.

// plainPipes are pairs of net.Pipe, with both ends in this process.
func plainPipes(n int) idle {
	return plain("net.Pipe, a goroutine and 4 KiB each", n, func() ([]net.Conn, func()) {
		near, far := make([]net.Conn, n), make([]net.Conn, n)
		for i := range near {
			near[i], far[i] = net.Pipe()
		}
		return near, func() { closeAll(far) }
	})
}

// plainTCP are TCP connections to a second process.
func plainTCP(n int) idle {
	return plain("TCP, a goroutine and 4 KiB each", n, func() ([]net.Conn, func()) {
		l, err := net.Listen("tcp", netip.AddrPortFrom(hubAddr, 0).String())
		if err != nil {
			log.Fatal(err)
		}
		near := make([]net.Conn, n)
		accepted := make(chan error, 1)
		go func() {
			for i := range near {
				c, err := l.Accept()
				if err != nil {
					accepted <- err
					return
				}
				near[i] = c
			}
			accepted <- nil
		}()
		end := secondProcess("plain", l.Addr().String(), n)
		if err := <-accepted; err != nil {
			log.Fatal(err)
		}
		l.Close()
		return near, end
	})
}

func plain(what string, n int, connect func() (near []net.Conn, end func())) idle {
	before := footprint()
	near, end := connect()
	var wg sync.WaitGroup
	for _, c := range near {
		wg.Go(func() {
			if k, _ := c.Read(make([]byte, wire.MsgSize)); k > 0 {
				log.Fatal("an idle peer spoke")
			}
		})
	}
	setAll(near) // the timers are there as well
	after := footprint()
	var passes []time.Duration
	for range 9 {
		passes = append(passes, setAll(near))
	}
	slices.Sort(passes)
	end()
	closeAll(near)
	wg.Wait()
	return idle{what, n, (after.heap-before.heap)/n - wire.MsgSize, (after.resident - before.resident) / n, passes[len(passes)/2], passes[len(passes)-1],
		"SetReadDeadline on each; heap beside the 4 KiB"}
}

// setAll sets every deadline anew and says how long it took.
func setAll(conns []net.Conn) time.Duration {
	start := time.Now()
	at := start.Add(time.Hour)
	for _, c := range conns {
		if err := c.SetReadDeadline(at); err != nil {
			log.Fatal(err)
		}
	}
	return time.Since(start)
}

func dialPlain(hub netip.AddrPort, n int) (end func()) {
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", hub.String())
		if err != nil {
			log.Fatal(err)
		}
		conns[i] = c
	}
	return func() { closeAll(conns) }
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}
