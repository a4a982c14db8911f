package mem_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/mem"
	"o2ibd/engine/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

func env(opt mem.Options) verbstest.Env {
	var f *mem.Fabric
	e := verbstest.Env{
		New: func(*testing.T) (c, s verbstest.Node) {
			f = mem.NewFabric(opt)
			return verbstest.Node{Provider: f.Provider(addrA), Addr: addrA}, verbstest.Node{Provider: f.Provider(addrB), Addr: addrB}
		},
		Vanish: func() { f.Vanish(addrB) },
	}
	if opt.Stepped {
		e.Pump = func() bool { return f.Step() }
	}
	return e
}

func TestConformanceImmediate(t *testing.T) { verbstest.Run(t, env(mem.Options{})) }

func TestConformanceStepped(t *testing.T) {
	t.Run("in order", func(t *testing.T) { verbstest.Run(t, env(mem.Options{Stepped: true})) })
	for seed := range uint64(5) {
		t.Run("random", func(t *testing.T) {
			t.Logf("seed %d", seed)
			verbstest.Run(t, env(mem.Options{Stepped: true, Rand: rand.New(rand.NewPCG(seed, 1)), PadPrivate: true}))
		})
	}
}

// TestReplay runs the suite twice with one seed and once with another: the traces of the first two are the
// same.
func TestReplay(t *testing.T) {
	run := func(seed uint64) []string {
		var trace []string
		e := env(mem.Options{Stepped: true, Rand: rand.New(rand.NewPCG(seed, 2)), Trace: func(what string) { trace = append(trace, what) }})
		verbstest.Run(t, e)
		return trace
	}
	a, b, c := run(7), run(7), run(8)
	if !slices.Equal(a, b) {
		t.Error("the same seed gave another run")
	}
	if slices.Equal(a, c) {
		t.Error("another seed gave the same run")
	}
}

// pair is a connection made by hand.
type pair struct {
	f        *mem.Fabric
	provs    [2]verbs.Provider
	cms      [2]verbs.CM
	ids      [2]verbs.ID
	qps      [2]verbs.QP
	cqs      [2]verbs.CQ
	listener verbs.ID
	mem      []byte
	mrs      [2]verbs.MR
	dev      [2]verbs.Device
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func connect(t testing.TB, f *mem.Fabric) *pair {
	t.Helper()
	p := &pair{f: f}
	var err error
	p.mem, err = unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(p.mem) })
	for i, a := range []netip.Addr{addrA, addrB} {
		p.provs[i] = f.Provider(a)
		w, err := p.provs[i].NewWaiter()
		must(t, err)
		p.cms[i], err = p.provs[i].OpenCM(w)
		must(t, err)
	}
	p.listener, err = p.cms[1].NewID("listener")
	must(t, err)
	must(t, p.listener.Bind(netip.AddrPortFrom(addrB, 987), false))
	must(t, p.listener.Listen(0))
	p.ids[0], err = p.cms[0].NewID("client")
	must(t, err)
	must(t, p.ids[0].ResolveAddr(netip.AddrPortFrom(addrA, 0), netip.AddrPortFrom(addrB, 987), false, 0))
	p.build(t, 0)
	must(t, p.ids[0].Connect(verbs.ConnParam{Private: []byte("hello"), RNRRetryCount: 7}))
	req := p.event(t, 1, verbs.EventConnectRequest)
	p.ids[1] = req.ID
	p.build(t, 1)
	must(t, p.ids[1].Accept(verbs.ConnParam{RNRRetryCount: 7}))
	return p
}

func (p *pair) build(t testing.TB, i int) {
	t.Helper()
	p.dev[i] = p.ids[i].Device()
	pd, err := p.dev[i].AllocPD()
	must(t, err)
	w, err := p.provs[i].NewWaiter()
	must(t, err)
	p.cqs[i], err = p.dev[i].CreateCQ(10, w)
	must(t, err)
	p.mrs[i], err = pd.RegMR(p.mem, verbs.LocalWrite|verbs.RemoteWrite)
	must(t, err)
	p.qps[i], err = p.ids[i].CreateQP(verbs.QPAttr{PD: pd, CQ: p.cqs[i], MaxSendWR: 100, MaxRecvWR: 100})
	must(t, err)
}

// event takes the next event of a type, passing others over; none fails.
func (p *pair) event(t testing.TB, i int, typ verbs.EventType) verbs.Event {
	t.Helper()
	for {
		var evs [1]verbs.Event
		if n, _ := p.cms[i].Poll(evs[:]); n == 0 {
			t.Fatalf("no %v", typ)
		}
		if evs[0].Type == typ {
			return evs[0]
		}
	}
}

func (p *pair) none(t testing.TB, i int, typ verbs.EventType) {
	t.Helper()
	var evs [16]verbs.Event
	n, _ := p.cms[i].Poll(evs[:])
	for _, ev := range evs[:n] {
		if ev.Type == typ {
			t.Fatalf("unexpected %v", typ)
		}
	}
}

func (p *pair) post(i int, recvs []verbs.RecvWR, sends []verbs.SendWR) error {
	b := []verbs.Posting{{QP: p.qps[i], Recvs: recvs, Sends: sends}}
	p.dev[i].Post(b)
	return b[0].Err
}

func (p *pair) message(i int) ([]verbs.RecvWR, []verbs.SendWR) {
	r := verbs.RecvWR{ID: 1, NSGE: 1}
	r.SGE[0] = verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(&p.mem[4096]))), Length: 4096, LKey: p.mrs[1-i].LKey()}
	s := verbs.SendWR{ID: 2, Op: verbs.OpSend, Signaled: true, NSGE: 1}
	s.SGE[0] = verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(&p.mem[0]))), Length: 64, LKey: p.mrs[i].LKey()}
	return []verbs.RecvWR{r}, []verbs.SendWR{s}
}

func TestDropRTU(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	f.DropRTU(1)
	p := connect(t, f)
	p.event(t, 0, verbs.EventEstablished)
	p.none(t, 1, verbs.EventEstablished)
	r, s := p.message(0)
	must(t, p.post(1, r, nil))
	must(t, p.post(0, nil, s))
	p.event(t, 1, verbs.EventCommEst)
}

func TestHold(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	p := connect(t, f)
	f.Hold(p.ids[1], true)
	must(t, p.ids[0].Disconnect())
	p.event(t, 0, verbs.EventDisconnected)
	p.none(t, 1, verbs.EventDisconnected)
	f.Hold(p.ids[1], false)
	p.event(t, 1, verbs.EventDisconnected)
}

func TestFailNth(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	p := connect(t, f)
	r, s := p.message(0)
	must(t, p.post(1, append(r, r...), nil))
	f.FailNth(addrA, mem.CallPost, 2)
	must(t, p.post(0, nil, s))
	if err := p.post(0, nil, s); err == nil {
		t.Error("the second post did not fail")
	}
	must(t, p.post(0, nil, s))
	for _, c := range []mem.Call{mem.CallRegister, mem.CallCreateCQ, mem.CallCreateQP} {
		f.FailNth(addrA, c, 1)
	}
	pd, _ := p.dev[0].AllocPD()
	if _, err := pd.RegMR(p.mem, 0); err == nil {
		t.Error("registration did not fail")
	}
	if _, err := p.dev[0].CreateCQ(1, nil); err == nil {
		t.Error("the completion queue did not fail")
	}
	if _, err := p.ids[0].CreateQP(verbs.QPAttr{}); err == nil {
		t.Error("the queue pair did not fail")
	}
}

func TestCutAndDevice(t *testing.T) {
	f := mem.NewFabric(mem.Options{})
	p := connect(t, f)
	f.Cut(addrA, addrB)
	for i := range 2 {
		if ev := p.event(t, i, verbs.EventDisconnected); ev.Err == nil {
			t.Error("a cut link is an orderly end")
		}
	}
	_, s := p.message(0)
	must(t, p.post(0, nil, s))
	var wcs [2]verbs.WC
	if n, _ := p.cqs[0].Poll(wcs[:]); n != 1 || wcs[0].Status != verbs.WCFlushed {
		t.Errorf("%+v", wcs[:n])
	}
	f.LoseDevice(addrB)
	p.event(t, 1, verbs.EventDeviceRemoval)
	var evs [4]verbs.AsyncEvent
	if n, _ := p.dev[1].PollAsync(evs[:]); n != 2 || evs[0].Type != verbs.AsyncPortError || evs[1].Type != verbs.AsyncDeviceFatal || p.dev[1].Info().State != verbs.PortDown {
		t.Errorf("%+v", evs[:n])
	}
	f.ReturnDevice(addrB)
	if n, _ := p.dev[1].PollAsync(evs[:]); n != 1 || evs[0].Type != verbs.AsyncPortActive || p.dev[1].Info().State != verbs.PortActive {
		t.Errorf("%+v", evs[:n])
	}
}

func TestPadding(t *testing.T) {
	f := mem.NewFabric(mem.Options{PadPrivate: true})
	p := connect(t, f)
	if ev := p.event(t, 0, verbs.EventEstablished); len(ev.Private) != 196 {
		t.Errorf("%d bytes with the answer", len(ev.Private))
	}
}

func BenchmarkSend(b *testing.B) {
	p := connect(b, mem.NewFabric(mem.Options{}))
	r, s := p.message(0)
	recv, send := []verbs.Posting{{QP: p.qps[1], Recvs: r}}, []verbs.Posting{{QP: p.qps[0], Sends: s}}
	var wcs [4]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		p.dev[1].Post(recv)
		p.dev[0].Post(send)
		for i := range 2 {
			if n, _ := p.cqs[i].Poll(wcs[:]); n != 1 || wcs[0].Status != verbs.WCSuccess {
				b.Fatalf("%+v", wcs[:n])
			}
		}
	}
}
