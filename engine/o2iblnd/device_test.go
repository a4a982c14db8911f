package o2iblnd_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"o2ibd/engine/arena"
	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// twins are two nodes on an in-memory fabric whose devices come and go.
type twins struct {
	t    *testing.T
	f    *mem.Fabric
	a, b *twin
}

type twin struct {
	w     *twins
	addr  netip.Addr
	nid   wire.NID
	lnd   *o2iblnd.LND
	upper *upper
	arena *arena.Arena
}

// runTwins runs f in a bubble. Messages that arrive are taken whole.
func runTwins(t *testing.T, opt mem.Options, f func(w *twins), set ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &twins{t: t, f: mem.NewFabric(opt)}
		v := tunables.Values{{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0"}
		for i := 0; i < len(set); i += 2 {
			v[tunables.Scoped{Scope: tunables.GlobalScope, Name: set[i]}] = set[i+1]
		}
		g, tun, _ := tunables.Derive(v, "o2ib")
		for _, at := range []netip.Addr{lowAddr, highAddr} {
			n := &twin{w: w, addr: at, nid: nidOf(at), arena: arena.New(64 << 20)}
			n.upper = &upper{t: t, arena: n.arena, on: func(h *wire.LNetHeader) int { return int(max(h.PayloadLength, h.Length)) }}
			var err error
			n.lnd, err = o2iblnd.New(o2iblnd.Config{Provider: w.f.Provider(at), Upper: n.upper, Payload: n.arena, Global: g,
				CPTs: [][]int{{0}, {0}}, Scheds: 1, OnEvent: n.upper.event})
			w.must(err)
			n.lnd.Start()
			w.must(n.lnd.AddNI(t.Context(), o2iblnd.NIConfig{NID: n.nid, Addr: at, Tunables: tun}))
			if w.a == nil {
				w.a = n
			} else {
				w.b = n
			}
		}
		defer func() { // also when f gave up: a bubble has to end
			for _, n := range []*twin{w.a, w.b} {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				if err := n.lnd.Stop(ctx); err != nil {
					t.Error(err)
				}
				cancel()
				n.upper.check()
				if err := n.arena.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		f(w)
	})
}

func (w *twins) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// send sends n bytes or asks for as many.
func (n *twin) send(to *twin, typ wire.LNetType, size int) *o2iblnd.Message {
	m := &o2iblnd.Message{Peer: to.nid, Len: size}
	m.Hdr = wire.LNetHeader{DestNID: to.nid, SrcNID: n.nid, Type: typ, Handle: wire.NoHandle}
	b, err := n.arena.Alloc(size)
	n.w.must(err)
	m.Segs = []arena.Buffer{b}
	if typ == wire.LNetGET {
		m.Hdr.Length = uint32(size)
	} else {
		m.Hdr.PayloadLength = uint32(size)
		copy(b.Bytes(), pattern(size, 1))
	}
	n.upper.sent(m)
	n.lnd.Send(m)
	return m
}

// works fails unless a PUT and a GET by RDMA pass from n to another.
func (n *twin) works(to *twin) {
	n.w.t.Helper()
	put, get := n.send(to, wire.LNetPUT, 50000), n.send(to, wire.LNetGET, 60000)
	synctest.Wait()
	for _, m := range []*o2iblnd.Message{put, get} {
		if !n.upper.done(m) || m.Status != 0 {
			n.w.t.Fatalf("a %v: back %v, %v; events %v", m.Hdr.Type, n.upper.done(m), m.Status, n.upper.events)
		}
	}
	if !bytes.Equal(get.Segs[0].Bytes(), pattern(60000, 2)) {
		n.w.t.Fatal("the data of a GET is not in place")
	}
}

func (n *twin) fails(m *o2iblnd.Message, status unix.Errno) {
	n.w.t.Helper()
	synctest.Wait()
	if !n.upper.done(m) || m.Status != -o2iblnd.Errno(status) {
		n.w.t.Fatalf("a message: back %v, %v, wanted %v", n.upper.done(m), m.Status, status)
	}
}

func (n *twin) told(want ...bool) {
	n.w.t.Helper()
	synctest.Wait()
	n.upper.mu.Lock()
	defer n.upper.mu.Unlock()
	if !slices.Equal(n.upper.status, want) {
		n.w.t.Fatalf("LNet was told that the NI is up: %v, wanted %v", n.upper.status, want)
	}
}

// upAs fails unless the snapshot has the NI up or down.
func (n *twin) upAs(up bool) {
	n.w.t.Helper()
	if got := n.lnd.Snapshot().NIs[0].Up; got != up {
		n.w.t.Fatalf("the snapshot has the NI up: %v", got)
	}
}

func TestT12_76Failover(t *testing.T) {
	for _, row := range []struct{ mode, wait string }{{"1", "11s"}, {"2", "11s"}} {
		t.Run("dev_failover="+row.mode, func(t *testing.T) {
			runTwins(t, mem.Options{Bonded: true}, func(w *twins) {
				w.a.works(w.b)
				w.f.SwitchDevice(w.a.addr)
				wait, err := time.ParseDuration(row.wait)
				w.must(err)
				time.Sleep(wait)
				synctest.Wait()
				if !w.a.upper.said("failover", "is now on mem0") {
					t.Fatalf("no failover: %v", w.a.upper.events)
				}
				w.a.fails(w.a.send(w.b, wire.LNetPUT, 100), unix.ENETDOWN)
				if !w.a.upper.said("conn_closed", "is on another HCA now") {
					t.Fatalf("the old connection was not closed: %v", w.a.upper.events)
				}
				w.a.works(w.b)
				w.b.works(w.a)
				w.a.told(true)
			}, "dev_failover", row.mode)
		})
	}
}

func TestNoFailoverUnlessAsked(t *testing.T) {
	runTwins(t, mem.Options{Bonded: true}, func(w *twins) {
		w.a.works(w.b)
		w.f.SwitchDevice(w.a.addr)
		time.Sleep(time.Minute)
		w.a.works(w.b)
		if w.a.upper.said("failover", "") {
			t.Fatal("dev_failover=0, and the device was switched")
		}
	})
	runTwins(t, mem.Options{}, func(w *twins) {
		w.f.SwitchDevice(w.a.addr)
		time.Sleep(time.Minute)
		if w.a.upper.said("failover", "") {
			t.Fatal("dev_failover=1 switched a device that is no bond's")
		}
	}, "dev_failover", "1")
}

// TestFailoverOnConnect: a connection that lands on another HCA than the device's is refused and says so.
func TestFailoverOnConnect(t *testing.T) {
	runTwins(t, mem.Options{Bonded: true}, func(w *twins) {
		time.Sleep(500 * time.Millisecond)
		w.f.SwitchDevice(w.a.addr)
		w.a.fails(w.a.send(w.b, wire.LNetPUT, 100), unix.ENOMEM)
		time.Sleep(3 * time.Second)
		w.a.works(w.b)
		if !w.a.upper.said("failover", "mem0") {
			t.Fatalf("no failover: %v", w.a.upper.events)
		}
	}, "dev_failover", "1")
}

func TestLostDevice(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		w.a.works(w.b)
		w.b.works(w.a)
		w.f.LoseDevice(w.a.addr)
		time.Sleep(2 * time.Second)
		w.a.told(true, false)
		w.a.upAs(false)
		w.a.fails(w.a.send(w.b, wire.LNetPUT, 100), unix.ENETDOWN)
		if len(w.a.lnd.Snapshot().Conns) != 0 {
			t.Fatalf("connections on a lost device: %+v", w.a.lnd.Snapshot().Conns)
		}
		if !w.a.upper.said("device", "is lost") || !w.a.upper.said("conn_closed", "is gone") {
			t.Fatalf("events: %v", w.a.upper.events)
		}
		time.Sleep(time.Minute)
		if n := len(w.a.upper.events); n > 12 {
			t.Fatalf("%d events for one loss: %v", n, w.a.upper.events)
		}
		w.f.ReturnDevice(w.a.addr)
		time.Sleep(11 * time.Second)
		w.a.told(true, false, true)
		w.a.upAs(true)
		w.a.works(w.b)
		// The other side finds out when it uses its old connection.
		w.b.fails(w.b.send(w.a, wire.LNetPUT, 100), unix.EIO)
		w.b.works(w.a)
		made := 0
		for _, p := range w.a.lnd.Snapshot().Pools {
			if p.Kind == "tx" {
				made += p.Pools
			}
			if p.Pools > 1 || p.FailedPools != 0 || p.Used != 0 {
				t.Errorf("pool %s: %+v", p.Kind, p)
			}
		}
		if made == 0 {
			t.Error("no pool of transmits was made again")
		}
	})
}

// TestLostUnderTraffic loses a device with messages in all states: each comes back once, and once the device
// has returned all is well again.
func TestLostUnderTraffic(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		w.a.works(w.b)
		var all []*o2iblnd.Message
		for i := range 200 {
			all = append(all, w.a.send(w.b, []wire.LNetType{wire.LNetPUT, wire.LNetGET}[i%2], []int{100, 40000}[i/2%2]))
			if i == 100 {
				w.f.LoseDevice(w.a.addr)
			}
		}
		time.Sleep(5 * time.Second)
		w.f.ReturnDevice(w.a.addr)
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, m := range all {
			if !w.a.upper.done(m) {
				t.Fatalf("a %v of %d bytes did not come back", m.Hdr.Type, m.Len)
			}
		}
		w.a.works(w.b)
		w.b.send(w.a, wire.LNetPUT, 100) // finds out about its old connection, if it has not yet
		synctest.Wait()
		w.b.works(w.a)
	})
}

func TestPortDown(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		w.a.works(w.b)
		w.f.PortDown(w.a.addr)
		time.Sleep(2 * time.Second)
		w.a.told(true, false)
		w.a.upAs(false)
		w.b.told(true)
		w.f.PortUp(w.a.addr)
		time.Sleep(2 * time.Second)
		w.a.told(true, false, true)
		if !w.a.upper.said("ni_status", "is down: the port is down") || !w.a.upper.said("ni_status", "up again") {
			t.Fatalf("events: %v", w.a.upper.events)
		}
		w.a.works(w.b)
	})
}

func TestNoDevice(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		nowhere := netip.MustParseAddr("10.9.9.9")
		err := w.a.lnd.AddNI(w.t.Context(), o2iblnd.NIConfig{NID: nidOf(nowhere), Addr: nowhere})
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte("10.9.9.9")) {
			t.Fatalf("an NI without a device: %v", err)
		}
		w.a.works(w.b)
	})
}

// TestPoolsThatFail has the parts of an NI fail one by one: nothing of it stays, and it can be had later.
func TestPoolsThatFail(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		w.must(w.a.lnd.DelNI(w.t.Context(), w.a.nid))
		_, tun, _ := tunables.Derive(nil, "o2ib")
		cfg := o2iblnd.NIConfig{NID: w.a.nid, Addr: w.a.addr, Tunables: tun}
		for _, c := range []mem.Call{mem.CallAllocPD, mem.CallCreateCQ, mem.CallAllocMW, mem.CallRegister} {
			w.f.FailNth(w.a.addr, c, 1)
			if err := w.a.lnd.AddNI(w.t.Context(), cfg); err == nil {
				t.Fatalf("an NI came up although call %d failed", c)
			}
		}
		w.must(w.a.lnd.AddNI(w.t.Context(), cfg))
		w.a.works(w.b)
	})
}

// TestEarly asks for an NI that is coming up: it is told to try later, not refused for good.
func TestEarly(t *testing.T) {
	runTwins(t, mem.Options{}, func(w *twins) {
		third := netip.MustParseAddr("10.0.0.3")
		// Another network on the same device, which is to come.
		later := wire.MakeNID(wire.NetO2IB|1, 0x0a000002)
		other := wire.MakeNID(wire.NetO2IB|2, 0x0a000002)
		w.b.lnd.Expect(later)
		u := &upper{t: t, arena: w.a.arena}
		_, tun, _ := tunables.Derive(nil, "o2ib1")
		g, _, _ := tunables.Derive(tunables.Values{{Scope: tunables.GlobalScope, Name: "use_privileged_port"}: "0"}, tunables.GlobalScope)
		l, err := o2iblnd.New(o2iblnd.Config{Provider: w.f.Provider(third), Upper: u, Payload: w.a.arena, Global: g, Scheds: 1, OnEvent: u.event})
		w.must(err)
		l.Start()
		for _, net := range []wire.Net{wire.NetO2IB | 1, wire.NetO2IB | 2} {
			nid := wire.MakeNID(net, 0x0a000003)
			w.must(l.AddNI(w.t.Context(), o2iblnd.NIConfig{NID: nid, Addr: third, Tunables: tun}))
			_, err := l.Query(w.t.Context(), nid, map[wire.Net]wire.NID{later.Net(): later, other.Net(): other}[net])
			w.must(err)
		}
		synctest.Wait()
		if !u.said("reject_received", "it is still starting") || !u.said("reject_received", "refused for good") {
			t.Errorf("events: %v", u.events)
		}
		for _, e := range w.b.upper.events {
			if e.Kind == "reject_sent" && bytes.Contains([]byte(e.Text), []byte("still starting")) != (e.Severity < slog.LevelWarn) {
				t.Errorf("%v: %s", e.Severity, e.Text)
			}
		}
		st := l.Snapshot()
		if st.NIs[0].RejectsReceived != 0 || st.NIs[0].RejectsReceivedBy["not ready yet"] != 1 || st.NIs[1].RejectsReceived != 1 {
			t.Errorf("counted: %+v", st.NIs)
		}
		if r := w.b.lnd.Snapshot().Refused; r["not ready yet"] != 1 || r["fatal"] != 1 {
			t.Errorf("counted as sent: %v", r)
		}
		w.must(w.b.lnd.AddNI(w.t.Context(), o2iblnd.NIConfig{NID: later, Addr: w.b.addr, Tunables: tun}))
		_, err = l.Query(w.t.Context(), wire.MakeNID(wire.NetO2IB|1, 0x0a000003), later)
		w.must(err)
		synctest.Wait()
		if !u.said("conn_established", "") {
			t.Errorf("no connection to an NI that is up: %v", u.events)
		}
		w.must(l.Stop(w.t.Context()))
	})
}
