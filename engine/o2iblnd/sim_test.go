package o2iblnd

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"o2ibd/engine/arena"
	"o2ibd/engine/tunables"
	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/wire"
)

// The simulation: a few nodes on a stepped fabric, every step of schedulers, connd and fabric chosen by a
// seed, with traffic of all kinds and faults. A failing seed replays exactly:
//
//	go test ./engine/o2iblnd -run Simulation -sim.seed N
var (
	simSeed  = flag.Uint64("sim.seed", 0, "run the simulation with this seed alone")
	simSeeds = flag.Int("sim.seeds", 500, "how many seeds the simulation runs")
)

const (
	simSteps = 3000
	poison   = 0xEE
)

type sim struct {
	t      *testing.T
	rng    *rand.Rand
	f      *mem.Fabric
	now    time.Time
	nodes  []*simNode
	nextID uint64
	faults bool
	lied   bool

	liars    map[uint32]bool // queue pairs over which a lie went
	balanced int             // accounts that balance has held against everything else
}

type simNode struct {
	s     *sim
	addr  netip.Addr
	nid   wire.NID
	lnd   *LND
	arena *arena.Arena
	tun   tunables.NI

	out      map[*Message]bool // with the LND
	released []arena.Buffer    // of ended messages: nobody may write there any more
	held     []heldRx
	sent     int
	arrived  int

	lies     []arena.Buffer
	version1 bool // it speaks version 1 to whom it does not know
	lost     bool // its device is
	dark     bool // its port is
	away     bool // its NI is
}

type heldRx struct {
	rx  Rx
	hdr wire.LNetHeader
}

func (n *simNode) buffer(size int, fill byte) arena.Buffer {
	b, err := n.arena.Alloc(size)
	if err != nil {
		n.s.t.Fatal(err)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = fill
	}
	return b
}

// message makes one to send; its match bits are the byte that its payload consists of.
func (n *simNode) message(to *simNode) *Message {
	s := n.s
	s.nextID++
	typ := []wire.LNetType{wire.LNetPUT, wire.LNetPUT, wire.LNetGET, wire.LNetACK}[s.rng.IntN(4)]
	size := []int{0, 1, 500, 3976, 3977, 9000, 40000}[s.rng.IntN(7)]
	if typ == wire.LNetACK {
		size = 0
	}
	m := &Message{Peer: to.nid, Len: size, Owner: "send"}
	m.Hdr = wire.LNetHeader{DestNID: to.nid, SrcNID: n.nid, Type: typ, Handle: wire.NoHandle, MatchBits: s.nextID % 200}
	if typ == wire.LNetGET {
		m.Hdr.Length = uint32(size)
	} else {
		m.Hdr.PayloadLength = uint32(size)
	}
	if size > 0 {
		b := n.buffer(size+64, byte(m.Hdr.MatchBits))
		// Sometimes in two pieces that do not touch.
		if size > 100 && s.rng.IntN(3) == 0 {
			m.Segs = append(m.Segs, b.Slice(0, size/2), b.Slice(size/2+64, size-size/2))
		} else {
			m.Segs = append(m.Segs, b.Slice(0, size))
		}
		if typ == wire.LNetGET {
			for i := range b.Bytes() {
				b.Bytes()[i] = 0
			}
		}
	}
	n.out[m] = true
	n.sent++
	return m
}

func (n *simNode) Parse(snd Sender, ni, from wire.NID, hdr *wire.LNetHeader, rx Rx, rdma bool) error {
	n.arrived++
	if n.s.lied && (hdr.SrcNID != from || hdr.DestNID != n.nid || hdr.PayloadLength > 1<<20 || hdr.Length > 1<<20) {
		return eINVAL
	}
	if ni != n.nid || hdr.SrcNID != from || hdr.DestNID != n.nid {
		n.s.t.Fatalf("%v got a message from %v for %v on %v", n.nid, hdr.SrcNID, hdr.DestNID, ni)
	}
	switch n.s.rng.IntN(12) {
	case 0:
		rx.Receive(snd, nil)
	case 1:
		n.held = append(n.held, heldRx{rx, *hdr})
	default:
		rx.Receive(snd, n.wanted(hdr, rdma))
	}
	return nil
}

// wanted makes the message that takes what hdr announces, or answers a GET by RDMA.
func (n *simNode) wanted(hdr *wire.LNetHeader, rdma bool) *Message {
	m := &Message{Hdr: *hdr, Peer: hdr.SrcNID, Owner: "receive"}
	switch {
	case hdr.Type == wire.LNetGET && !rdma:
		return nil // its REPLY is another message: not of this simulation
	case hdr.Type == wire.LNetGET:
		m.Len, m.Owner = int(hdr.Length), "reply"
		if n.s.rng.IntN(4) == 0 {
			m.Len /= 2
		}
		if m.Len > 0 {
			m.Segs = append(m.Segs, n.buffer(m.Len, byte(hdr.MatchBits)))
		}
	default:
		m.Len = int(hdr.PayloadLength)
		if n.s.rng.IntN(5) == 0 {
			m.Len /= 2
		}
		if m.Len > 0 {
			m.Segs = append(m.Segs, n.buffer(m.Len, 0))
		}
	}
	n.out[m] = true
	return m
}

func (n *simNode) Finalize(_ Sender, m *Message) {
	if !n.out[m] {
		n.s.t.Fatalf("a message of %v came back twice, or was never ours", n.nid)
	}
	delete(n.out, m)
	if m.Status == 0 {
		want, length := byte(m.Hdr.MatchBits), 0
		switch {
		case m.Owner == "receive":
			length = m.Len
		case m.Hdr.Type == wire.LNetGET && m.Owner == "send" && m.RDMALen > 0:
			length = m.RDMALen
		}
		for _, b := range m.Segs {
			for _, x := range b.Bytes()[:min(length, b.Len())] {
				if x != want {
					n.s.t.Fatalf("%v: a %v of %d bytes ended well, and its data is not in place", n.nid, m.Hdr.Type, m.Len)
				}
			}
			length -= min(length, b.Len())
		}
	}
	for _, b := range m.Segs {
		for i := range b.Bytes() {
			b.Bytes()[i] = poison
		}
		n.released = append(n.released, b)
	}
}

func (n *simNode) NIStatus(wire.NID, bool) {}

func (n *simNode) PeerDown(_, _ wire.NID, err error, _ time.Time) {
	if err == nil {
		n.s.t.Fatal("a peer is down without a reason")
	}
}

// call runs a control call of the node, stepping it until it is done.
func (n *simNode) call(f func(d *connd, done func(error))) {
	finished := false
	n.on(func(d *connd) {
		f(d, func(err error) {
			if err != nil {
				n.s.t.Fatal(err)
			}
			finished = true
		})
	})
	for i := 0; !finished; i++ {
		n.s.settle()
		if i%50 == 49 {
			n.s.now = n.s.now.Add(time.Second)
		}
		if i > 200000 {
			n.s.t.Fatalf("%v does not finish: %+v", n.nid, n.lnd.Snapshot().Conns)
		}
	}
}

// settle gives everybody a turn.
func (s *sim) settle() {
	for _, n := range s.nodes {
		n.lnd.connd.Step(s.now)
		for _, sc := range n.lnd.scheds {
			sc.Step(s.now)
		}
	}
	for i := 0; i < 50 && s.f.Step(); i++ {
	}
}

func newSim(t *testing.T, seed uint64, trace func(string)) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 77)), now: time.Unix(1_700_000_000, 0), faults: seed%4 != 0, liars: make(map[uint32]bool)}
	s.f = mem.NewFabric(mem.Options{Stepped: true, Rand: rand.New(rand.NewPCG(seed, 78)), PadPrivate: seed%2 == 0, NoWindows: seed%3 == 0, Trace: trace})
	for i := range 2 + s.rng.IntN(7) {
		n := &simNode{s: s, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), out: make(map[*Message]bool), arena: arena.New(1 << 30)}
		n.nid = wire.MakeNID(wire.NetO2IB, 0x0a000001+uint32(i))
		v := tunables.Values{}
		set := func(name string, value int) {
			v[tunables.Scoped{Scope: tunables.GlobalScope, Name: name}] = fmt.Sprint(value)
		}
		set("use_privileged_port", 0)
		set("peer_credits", []int{8, 8, 9, 16, 32}[s.rng.IntN(5)])
		set("timeout", []int{4, 10, 50}[s.rng.IntN(3)])
		set("keepalive", []int{0, 3, 100}[s.rng.IntN(3)])
		set("wrq_sge", 1+s.rng.IntN(4))
		set("cksum", s.rng.IntN(2))
		set("conns_per_peer", 1+s.rng.IntN(2))
		set("use_fastreg_gaps", s.rng.IntN(2))
		set("dev_failover", []int{0, 0, 0, 2}[s.rng.IntN(4)])
		v[tunables.Scoped{Scope: tunables.GlobalScope, Name: "exposure"}] = []string{"transfer", "transfer", "cached", "device"}[s.rng.IntN(4)]
		n.version1 = s.rng.IntN(5) == 0
		g, tun, _ := tunables.Derive(v, "o2ib")
		n.tun = tun
		var err error
		n.lnd, err = New(Config{Provider: s.f.Provider(n.addr), Upper: n, Payload: n.arena, Global: g, Scheds: 1 + s.rng.IntN(2),
			Rand: rand.New(rand.NewPCG(seed, uint64(100+i))), Now: func() time.Time { return s.now }, BigEndian: s.rng.IntN(4) == 0})
		if err != nil {
			t.Fatal(err)
		}
		s.nodes = append(s.nodes, n)
	}
	for _, n := range s.nodes {
		n.call(func(d *connd, done func(error)) { done(d.addNI(NIConfig{NID: n.nid, Addr: n.addr, Tunables: n.tun})) })
	}
	return s
}

func (s *sim) pick() *simNode { return s.nodes[s.rng.IntN(len(s.nodes))] }

func (s *sim) step() {
	switch k := s.rng.IntN(1000); {
	case k < 450:
		s.f.Step()
	case k < 750:
		n := s.pick()
		n.lnd.scheds[s.rng.IntN(len(n.lnd.scheds))].Step(s.now)
	case k < 880:
		s.pick().lnd.connd.Step(s.now)
	case k < 960:
		a, b := s.pick(), s.pick()
		if a != b && len(a.out) < 200 {
			a.lnd.Send(a.message(b))
			if a.version1 {
				a.on(func(d *connd) {
					for _, p := range d.peersOf(nil, b.nid) {
						if p.version == 0 {
							p.version = wire.Version1
						}
					}
				})
			}
		}
	case k < 975:
		n := s.pick()
		if len(n.held) > 0 {
			h := n.held[0]
			n.held = n.held[1:]
			h.rx.ReceiveLater(n.wanted(&h.hdr, h.hdr.Type == wire.LNetGET))
		}
	case k < 990:
		s.now = s.now.Add(time.Duration(s.rng.IntN(1500)) * time.Millisecond)
	case s.faults:
		s.fault()
	}
	for _, n := range s.nodes {
		for _, sc := range n.lnd.scheds {
			for _, c := range sc.conns {
				if c != nil && c.state == connEstablished {
					if err := c.acct.Check(); err != nil {
						s.t.Fatalf("%v with %v: %v", n.nid, c.peer.nid, err)
					}
				}
			}
		}
	}
	s.balance()
}

func (s *sim) fault() {
	a, b := s.pick(), s.pick()
	switch s.rng.IntN(12) {
	case 0:
		s.f.Cut(a.addr, b.addr)
	case 1:
		s.f.FailNth(a.addr, mem.CallPost, 1+s.rng.IntN(20))
	case 2:
		s.f.DropRTU(1)
	case 3:
		s.f.FailNth(a.addr, []mem.Call{mem.CallCreateQP, mem.CallRegister, mem.CallAllocMW, mem.CallAllocPD}[s.rng.IntN(4)], 1)
	case 4:
		a.on(func(d *connd) {
			for _, p := range d.peersOf(nil, b.nid) {
				d.delPeer(p, orderly("the simulation deleted the peer"))
			}
		})
	case 5:
		a.on(func(d *connd) {
			for _, p := range d.peersOf(nil, b.nid) {
				for _, c := range p.conns {
					c.sched.submit(op{kind: opClose, c: c, why: orderly("the simulation closed the connection")})
				}
			}
		})
	case 6:
		if !a.lost {
			a.lost = true
			s.f.LoseDevice(a.addr)
		}
	case 7:
		a.mend()
	case 8:
		if !a.lost && !a.dark {
			a.dark = true
			s.f.PortDown(a.addr)
		}
	case 9:
		a.on(func(d *connd) {
			if d.lnd.ni(a.nid) != nil && !a.away {
				a.away = true
				d.delNI(a.nid, func(error) { a.restart(d) })
			}
		})
	default:
		a.lie()
	}
}

// on has connd of the node do something in its next step.
func (n *simNode) on(f func(d *connd)) {
	n.lnd.connd.submit(cop{kind: copCall, fn: func() { f(n.lnd.connd) }})
}

// restart brings the NI up with a new incarnation, if there is a device for it.
func (n *simNode) restart(d *connd) {
	n.away = d.addNI(NIConfig{NID: n.nid, Addr: n.addr, Tunables: n.tun}) != nil
}

// mend puts back what the node's HCA has lost.
func (n *simNode) mend() {
	switch {
	case n.lost:
		n.s.f.ReturnDevice(n.addr)
	case n.dark:
		n.s.f.PortUp(n.addr)
	}
	n.lost, n.dark = false, false
	n.on(func(d *connd) {
		if n.away && d.lnd.ni(n.nid) == nil && len(d.dying)+len(d.closing) == 0 {
			n.restart(d)
		}
	})
}

// lie sends what no honest node would over one of the node's connections: its peer must take it as it comes.
func (n *simNode) lie() {
	s := n.s
	for _, sc := range n.lnd.scheds {
		for _, c := range sc.conns {
			if c == nil || c.state != connEstablished || s.rng.IntN(3) > 0 {
				continue
			}
			b, err := n.lnd.slots.Alloc(wire.MsgSize)
			if err != nil {
				s.t.Fatal(err)
			}
			n.lies, s.lied = append(n.lies, b), true
			m := wire.Msg{Cookie: uint64(s.rng.IntN(200)), SrcCookie: uint64(s.rng.IntN(200)), Status: int32(s.rng.IntN(1<<20)) - 1000}
			m.Header = wire.Header{Version: c.version, Type: wire.MsgNoop + wire.MsgType(s.rng.IntN(8)), Credits: uint8(s.rng.IntN(4)),
				SrcNID: n.nid, SrcStamp: c.ni.incarnation, DstNID: c.peer.nid, DstStamp: c.incarnation}
			m.RD = wire.Desc{Key: s.rng.Uint32(), Frags: []wire.Frag{{Nob: uint32(1 + s.rng.IntN(5000)), Addr: s.rng.Uint64()}}}
			m.LNet = wire.LNetHeader{DestNID: c.peer.nid, SrcNID: n.nid, Type: wire.LNetPUT, PayloadLength: uint32(s.rng.IntN(10000))}
			nob, err := m.Encode(b.Bytes(), wire.CksumNone)
			if err != nil {
				s.t.Fatal(err)
			}
			if s.rng.IntN(2) == 0 {
				b.Bytes()[s.rng.IntN(nob)] ^= byte(1 << s.rng.IntN(8))
			}
			mr, err := c.hdev.region(b.Slab())
			if err != nil {
				return
			}
			wr := verbs.SendWR{Op: verbs.OpSend, NSGE: 1, RemoteAddr: s.rng.Uint64(), RKey: s.rng.Uint32()}
			wr.SGE[0] = verbs.SGE{Addr: b.Addr(), Length: uint32(nob), LKey: mr.LKey()}
			if s.rng.IntN(6) == 0 {
				wr.Op = verbs.OpWrite
			}
			s.liars[c.qp.Num()] = true
			c.hdev.hca.Post([]verbs.Posting{{QP: c.qp, Sends: []verbs.SendWR{wr}}})
			return
		}
	}
}

// calm lets everything end that can: what LNet holds is taken, time passes until no message is out.
func (s *sim) calm() {
	for i := 0; ; i++ {
		busy := 0
		for _, n := range s.nodes {
			if n.lost || n.dark || n.away {
				n.mend()
				busy++
			}
			for _, h := range n.held {
				h.rx.ReceiveLater(n.wanted(&h.hdr, h.hdr.Type == wire.LNetGET))
			}
			n.held = nil
			busy += len(n.out)
		}
		s.settle()
		if busy == 0 && i%40 == 39 {
			return
		}
		if i%40 == 39 {
			s.now = s.now.Add(time.Second)
		}
		if i > 40*400 {
			for _, n := range s.nodes {
				for m := range n.out {
					s.t.Errorf("%v: a %v (%v) of %d bytes to %v does not end", n.nid, m.Hdr.Type, m.Owner, m.Len, m.Peer)
				}
				s.t.Logf("%v: %+v", n.nid, n.lnd.Snapshot().Conns)
				if d := n.lnd.connd; n.away {
					s.t.Logf("%v: its NI does not come back: %d NIs go, %d HCAs go, %d conns, waiting %d and %d", n.nid, len(d.dying), len(d.closing), len(d.conns), len(d.reconn), len(d.reconnWait))
					for _, x := range d.dying {
						s.t.Logf("NI with %d peers", x.ni.peers)
					}
				}
			}
			s.t.FailNow()
		}
	}
}

// quiescent checks spec o2iblnd 3.1: with nothing on the way, all credits are somewhere they belong.
func (s *sim) quiescent() {
	for range 200 {
		s.settle()
	}
	type end struct {
		c *conn
		n *simNode
	}
	for _, n := range s.nodes {
		for _, sc := range n.lnd.scheds {
			for _, c := range sc.conns {
				if c == nil || c.state != connEstablished {
					continue
				}
				if c.acct.Reserved != c.acct.Depth || c.txQueue.n+c.txNocred.n+c.txRsrvd.n+c.txNoops.n+c.activeTxs.n > 0 {
					s.t.Fatalf("%v with %v at rest: %+v, active %d", n.nid, c.peer.nid, c.acct, c.activeTxs.n)
				}
				if c.nrx != len(c.rxs) {
					s.t.Fatalf("%v with %v at rest has %d of %d receives", n.nid, c.peer.nid, c.nrx, len(c.rxs))
				}
				// Its counterpart is the conn of the other side whose incarnation and queue pair fit: with several conns
				// to a peer the sums over all of them must agree.
			}
		}
	}
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			if a == b {
				continue
			}
			have, depth, conns := 0, 0, 0
			for _, x := range []struct {
				n, other *simNode
				owed     bool
			}{{a, b, false}, {b, a, true}} {
				for _, sc := range x.n.lnd.scheds {
					for _, c := range sc.conns {
						if c == nil || c.state != connEstablished || c.peer.nid != x.other.nid {
							continue
						}
						if x.owed {
							have += c.acct.Outstanding
							conns--
						} else {
							have += c.acct.Credits
							depth += c.acct.Depth
							conns++
						}
					}
				}
			}
			// Who lost his device is still thought to be there, until somebody sends to him.
			if conns == 0 && have != depth && !s.lied { // who lied gave credits that he had not
				s.t.Fatalf("%v towards %v: %d credits of %d are accounted for", a.nid, b.nid, have, depth)
			}
		}
	}
}

func (s *sim) stop() {
	for _, n := range s.nodes {
		n.call(func(d *connd, done func(error)) { d.delNI(n.nid, done) })
		for _, b := range n.lies {
			n.lnd.slots.Free(b)
		}
	}
	for _, n := range s.nodes {
		if st := n.lnd.Snapshot(); len(st.Conns) > 0 || len(st.Peers) > 0 {
			s.t.Fatalf("%v: left over: %+v %+v", n.nid, st.Conns, st.Peers)
		}
		if len(n.out) > 0 {
			s.t.Fatalf("%v: %d messages never came back", n.nid, len(n.out))
		}
		if used, _ := n.lnd.slots.Used(); used != 0 {
			s.t.Fatalf("%v: %d bytes of message slots are still in use", n.nid, used)
		}
		for _, b := range n.released {
			for _, x := range b.Bytes() {
				if x != poison {
					s.t.Fatalf("%v: memory was written after its message had ended", n.nid)
				}
			}
		}
		if err := errors.Join(n.lnd.slots.Close(), n.arena.Close()); err != nil {
			s.t.Fatal(err)
		}
	}
}

func simulate(t *testing.T, seed uint64, trace func(string)) (messages, balanced int) {
	s := newSim(t, seed, trace)
	for range simSteps {
		s.step()
	}
	s.calm()
	s.quiescent()
	for _, n := range s.nodes {
		messages += n.sent
	}
	s.stop()
	return messages, s.balanced
}

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		simulate(t, *simSeed, nil)
		return
	}
	base := uint64(1)
	messages, balanced := 0, 0
	for seed := base; seed < base+uint64(*simSeeds); seed++ {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m, b := simulate(t, seed, nil)
			messages, balanced = messages+m, balanced+b
		})
		if !ok {
			t.Fatalf("replay it with: go test ./engine/o2iblnd -run Simulation -sim.seed %d", seed)
		}
	}
	if balanced == 0 {
		t.Error("no account was ever balanced")
	}
	t.Logf("%d seeds, %d messages, %d balanced accounts", *simSeeds, messages, balanced)
}

// TestSimulationReplays runs a seed twice: everything must happen in the same order, or a seed would not
// find its fault again.
func TestSimulationReplays(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		var runs [2][]string
		for i := range runs {
			simulate(t, seed, func(what string) { runs[i] = append(runs[i], what) })
		}
		for k := range runs[0] {
			if k >= len(runs[1]) || runs[0][k] != runs[1][k] {
				t.Fatalf("seed %d, step %d of %d: %q, and the second time something else", seed, k, len(runs[0]), runs[0][k])
			}
		}
	}
}
