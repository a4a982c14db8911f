//go:build !nordma

// Command hca compares the engine on an RDMA device with perftest on the same one, in the same run: goodput
// of LNet PUT with ib_write_bw, latency of small messages with ib_send_lat in event mode; and it counts the
// calls into C. Two addresses of one device are wanted. make test-hca runs it in the guest.
//
//	hca -device rxe0 -from 10.0.0.1 -to 10.0.0.2 [-seconds 3] [-rounds 3]
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"o2ibd/engine"
	"o2ibd/engine/arena"
	"o2ibd/engine/lnet"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/rdmacore"
	"o2ibd/engine/wire"
)

const (
	large    = 1 << 20
	small    = 256
	inflight = 8 // the default of peer_credits
)

func main() {
	device := flag.String("device", "rxe0", "device for perftest")
	from := flag.String("from", "10.0.0.1", "address of the node that sends")
	to := flag.String("to", "10.0.0.2", "address of the node that is sent to")
	seconds := flag.Float64("seconds", 3, "length of each measurement")
	rounds := flag.Int("rounds", 3, "measurements of each kind, in turn; the best counts")
	flag.Parse()
	d := time.Duration(*seconds * float64(time.Second))

	a, b := start(*from), start(*to)
	var put, get, writeBW, putLat, sendLat, perMsg float64
	for range *rounds {
		writeBW = max(writeBW, perftest(*to, 3, "ib_write_bw", "-d", *device, "-s", fmt.Sprint(large), "-n", "200", "-F"))
		n, took, _ := a.run(b, large, inflight, d, true)
		put = max(put, float64(n)*large/(1<<20)/took.Seconds())
		n, took, _ = a.run(b, large, inflight, d, false)
		get = max(get, float64(n)*large/(1<<20)/took.Seconds())
		sendLat = least(sendLat, perftest(*to, 4, "ib_send_lat", "-d", *device, "-s", fmt.Sprint(small), "-n", "1000", "-e", "-F"))
		n, took, _ = a.run(b, small, 1, d, true)
		putLat = least(putLat, float64(took.Microseconds())/float64(n)/2) // a PUT and its ACK
		n, _, crossings := a.run(b, small, inflight, d, true)
		perMsg = least(perMsg, float64(crossings)/float64(2*n)) // a PUT sent and an ACK received
	}
	stop(a, b)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "what\tfigure\tpeer\tratio\n")
	fmt.Fprintf(w, "LNet PUT of 1 MiB with ACK, MiB/s\t%.1f\tib_write_bw %.1f\t%.2f\n", put, writeBW, put/writeBW)
	fmt.Fprintf(w, "LNet GET of 1 MiB, MiB/s\t%.1f\tib_write_bw %.1f\t%.2f\n", get, writeBW, get/writeBW)
	fmt.Fprintf(w, "LNet PUT of 256 bytes, one way, µs\t%.1f\tib_send_lat -e %.1f\t%.2f\n", putLat, sendLat, putLat/sendLat)
	fmt.Fprintf(w, "calls into C for each message, %d at once\t%.2f\t\t\n", inflight, perMsg)
	w.Flush()
}

func least(a, b float64) float64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// node is an engine on one address, and its provider.
type node struct {
	*engine.Engine
	hca verbs.Provider
	nid wire.NID
}

func start(addr string) *node {
	spec := engine.NISpec{Net: wire.NetO2IB, Addr: netip.MustParseAddr(addr)}
	p, err := rdmacore.New(rdmacore.Options{})
	check(err)
	e, err := engine.New(engine.Config{Provider: p, NIs: []engine.NISpec{spec}, Tunables: tunables.Values{
		{Scope: tunables.GlobalScope, Name: "service"}: "19888", {Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0",
	}})
	check(err)
	check(e.Start())
	return &node{e, p, spec.NID()}
}

func stop(nodes ...*node) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, n := range nodes {
		check(n.Stop(ctx))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// run keeps operations of size bytes under way, and says how many ended in which time, and how often the
// sending node called into C meanwhile.
func (n *node) run(to *node, size, atOnce int, d time.Duration, put bool) (ops int, took time.Duration, crossings uint64) {
	there, err := to.Alloc(size)
	check(err)
	defer to.Free(there)
	opt, want := lnet.OptGet, lnet.EventReply
	if put {
		opt, want = lnet.OptPut, lnet.EventAck
	}
	sink, err := to.LNet().Attach(lnet.ME{Portal: 40, NID: wire.AnyNID, PID: lnet.AnyPID, MatchBits: 1},
		lnet.MD{Segs: []arena.Buffer{there}, Threshold: lnet.Unlimited, Options: opt | lnet.OptManageRemote, Handler: func(lnet.Event) {}})
	check(err)
	defer to.LNet().Unlink(sink)
	done := make(chan int, atOnce)
	mds := make([]lnet.Handle, atOnce)
	for i := range mds {
		here, err := n.Alloc(size)
		check(err)
		defer n.Free(here)
		mds[i], err = n.LNet().Bind(lnet.MD{Segs: []arena.Buffer{here}, Threshold: lnet.Unlimited, Retain: true, Handler: func(ev lnet.Event) {
			if ev.Status != 0 {
				log.Fatalf("operation failed: %v", ev.Status)
			}
			if ev.Type == want {
				done <- i
			}
		}})
		check(err)
		defer n.LNet().Unlink(mds[i])
	}
	op := lnet.Operation{Target: lnet.ProcessID{NID: to.nid, PID: wire.LustrePID}, Portal: 40, MatchBits: 1}
	post := func(i int) {
		if put {
			check(n.LNet().Put(mds[i], op, true))
		} else {
			check(n.LNet().Get(mds[i], op))
		}
	}
	post(0) // connects
	<-done
	before, begun := rdmacore.Crossings(n.hca), time.Now()
	for i := range mds {
		post(i)
	}
	for left := atOnce; left > 0; {
		i := <-done
		ops++
		if time.Since(begun) < d {
			post(i)
		} else {
			left--
		}
	}
	return ops, time.Since(begun), rdmacore.Crossings(n.hca) - before
}

// perftest runs a tool of perftest as server and client on this host, and gives a column of its result.
func perftest(at string, column int, tool string, args ...string) float64 {
	server := exec.Command(tool, args...)
	check(server.Start())
	var out []byte
	var err error
	for range 50 {
		// The server needs a moment to listen.
		time.Sleep(100 * time.Millisecond)
		if out, err = exec.Command(tool, append(slices.Clone(args), at)...).CombinedOutput(); err == nil {
			break
		}
	}
	if err != nil {
		server.Process.Kill()
		log.Fatalf("%s: %v: %s", tool, err, out)
	}
	check(server.Wait())
	size := args[slices.Index(args, "-s")+1]
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > column && f[0] == size {
			v, err := strconv.ParseFloat(f[column], 64)
			check(err)
			return v
		}
	}
	log.Fatalf("%s printed no result: %s", tool, out)
	return 0
}
