package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire"
)

const (
	size    = 1 << 20
	frame   = 64 << 10
	service = 19890
)

// transfers measures LNet PUT and GET of 1 MiB between two nodes over iWARP on loopback beside a plain TCP
// stream of 64 KiB frames with CRC32c.
func transfers(d time.Duration, inflight, rounds int) {
	target, source := node("127.0.0.41"), node("127.0.0.42")
	var tcp, put, get result
	for range rounds {
		tcp = best(tcp, stream(d))
		put = best(put, lnetOps(source, target, d, inflight, true))
		get = best(get, lnetOps(source, target, d, inflight, false))
	}
	stop(source, target)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "what\tMiB/s\tof TCP\tallocations an operation\n")
	for _, r := range []struct {
		name string
		r    result
	}{{"TCP, 64 KiB frames with CRC32c", tcp}, {"LNet PUT of 1 MiB with ACK", put}, {"LNet GET of 1 MiB", get}} {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.2f\n", r.name, r.r.rate/(1<<20), r.r.rate/tcp.rate, r.r.allocs)
	}
	w.Flush()
}

func stop(engines ...*engine.Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, e := range engines {
		if err := e.Stop(ctx); err != nil {
			log.Fatal(err)
		}
	}
}

type result struct {
	rate   float64 // bytes a second
	allocs float64 // of the whole process, for each MiB
}

func best(a, b result) result {
	if b.rate > a.rate {
		return b
	}
	return a
}

func node(addr string) *engine.Engine {
	a := netip.MustParseAddr(addr)
	e, err := engine.New(engine.Config{
		Provider: iwarp.New(iwarp.Options{Interfaces: []iwarp.Interface{{Name: "lo", Addr: a}}}),
		NIs:      []engine.NISpec{{Net: wire.NetO2IB, Addr: a}},
		Tunables: tunables.Values{
			{Scope: tunables.GlobalScope, Name: "service"}: fmt.Sprint(service), {Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
		},
	})
	if err == nil {
		err = e.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	return e
}

// measure runs f and takes the bytes that it moved.
func measure(d time.Duration, f func(until time.Time) int) result {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	n := f(start.Add(d))
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return result{float64(n) / took.Seconds(), float64(after.Mallocs-before.Mallocs) / (float64(n) / size)}
}

// lnetOps keeps inflight operations of 1 MiB under way.
func lnetOps(from, to *engine.Engine, d time.Duration, inflight int, put bool) result {
	there := alloc(to)
	defer to.Free(there)
	opt := lnet.OptGet
	if put {
		opt = lnet.OptPut
	}
	sink, err := to.LNet().Attach(lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 1},
		lnet.MD{Segs: []arena.Buffer{there}, Threshold: lnet.Unlimited, Options: opt | lnet.OptManageRemote, Handler: func(lnet.Event) {}})
	if err != nil {
		log.Fatal(err)
	}
	defer to.LNet().Unlink(sink)
	op := lnet.Operation{Target: lnet.ProcessID{NID: engine.NISpec{Net: wire.NetO2IB, Addr: netip.MustParseAddr("127.0.0.41")}.NID(), PID: wire.LustrePID}, Portal: 40, MatchBits: 1}
	done := make(chan int, inflight)
	var events sync.WaitGroup // of operations: SEND may come behind the answer
	mds := make([]lnet.Handle, inflight)
	for i := range mds {
		here := alloc(from)
		defer from.Free(here)
		want := lnet.EventReply
		if put {
			want = lnet.EventAck
		}
		mds[i], err = from.LNet().Bind(lnet.MD{Segs: []arena.Buffer{here}, Threshold: lnet.Unlimited, Retain: true, Handler: func(ev lnet.Event) {
			if ev.Status != 0 {
				log.Fatalf("operation failed: %v", ev.Status)
			}
			if ev.Type == want {
				done <- i
			}
			if ev.Type == want || ev.Type == lnet.EventSend {
				events.Done()
			}
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer from.LNet().Unlink(mds[i])
	}
	defer events.Wait() // before the memory goes
	start := func(i int) {
		events.Add(2)
		var err error
		if put {
			err = from.LNet().Put(mds[i], op, true)
		} else {
			err = from.LNet().Get(mds[i], op)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	return measure(d, func(until time.Time) int {
		for i := range mds {
			start(i)
		}
		n, left := 0, inflight
		for left > 0 {
			i := <-done
			n += size
			if time.Now().Before(until) {
				start(i)
			} else {
				left--
			}
		}
		return n
	})
}

func alloc(e *engine.Engine) arena.Buffer {
	b, err := e.Alloc(size)
	if err != nil {
		log.Fatal(err)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i * 7)
	}
	return b
}

// stream sends frames of 64 KiB, each with its CRC32c, over one TCP connection; the receiver checks them.
func stream(d time.Duration) result {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	table := crc32.MakeTable(crc32.Castagnoli)
	received := make(chan int)
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, frame+4)
		n := 0
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				received <- n
				return
			}
			if crc32.Checksum(buf[:frame], table) != binary.LittleEndian.Uint32(buf[frame:]) {
				log.Fatal("TCP stream: wrong CRC")
			}
			n += frame
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7)
	}
	tail := make([]byte, 4)
	return measure(d, func(until time.Time) int {
		for off := 0; time.Now().Before(until); off = (off + frame) % size {
			p := data[off : off+frame]
			binary.LittleEndian.PutUint32(tail, crc32.Checksum(p, table))
			bufs := net.Buffers{p, tail}
			if _, err := bufs.WriteTo(c); err != nil {
				log.Fatal(err)
			}
		}
		c.Close()
		return <-received
	})
}
