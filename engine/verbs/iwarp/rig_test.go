package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

const (
	nodeAddr = "127.0.0.61"
	slabSize = 4 << 20
)

// node is one provider with a listener, a slab and room for one connection.
type node struct {
	t        testing.TB
	prov     verbs.Provider
	w        verbs.Waiter
	cm       verbs.CM
	listener verbs.ID
	cq       verbs.CQ
	pd       verbs.PD
	mr       verbs.MR
	mem      []byte
	id       verbs.ID
	qp       verbs.QP
	mu       sync.Mutex
	errs     []error // protocol errors before a connection
	at       netip.AddrPort
	rnr      uint8

	wcs   [16]verbs.WC
	recvs [1]verbs.RecvWR
	sends [1]verbs.SendWR
	batch [1]verbs.Posting
}

func newNode(t testing.TB, opt iwarp.Options) *node { return newNodeAt(t, nodeAddr, opt) }

func newNodeAt(t testing.TB, addr string, opt iwarp.Options) *node {
	t.Helper()
	n := &node{t: t, rnr: 1}
	opt.OnProtocolError = func(_, _ netip.AddrPort, err error) {
		n.mu.Lock()
		n.errs = append(n.errs, err)
		n.mu.Unlock()
		n.w.Wake()
	}
	n.prov = provider(addr, opt)
	var err error
	n.w, err = n.prov.NewWaiter()
	n.must(err)
	n.cm, err = n.prov.OpenCM(n.w)
	n.must(err)
	n.listener, err = n.cm.NewID(nil)
	n.must(err)
	n.must(n.listener.Bind(netip.AddrPortFrom(netip.MustParseAddr(addr), 0), false))
	n.must(n.listener.Listen(0))
	n.at = n.listener.Local()
	dev := n.listener.Device()
	n.pd, err = dev.AllocPD()
	n.must(err)
	n.cq, err = dev.CreateCQ(100, n.w)
	n.must(err)
	n.mem, err = unix.Mmap(-1, 0, slabSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	n.must(err)
	n.mr, err = n.pd.RegMR(n.mem, verbs.LocalWrite|verbs.RemoteWrite|verbs.BindMW)
	n.must(err)
	t.Cleanup(n.close)
	return n
}

func (n *node) close() {
	if n.qp != nil {
		n.must(n.qp.Close())
	}
	if n.id != nil {
		n.must(n.id.Close())
	}
	n.must(n.listener.Close())
	n.must(n.cm.Close())
	n.must(n.prov.Close())
	n.must(unix.Munmap(n.mem))
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) addr(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&n.mem[off]))) }

// event waits for the next event.
func (n *node) event(types ...verbs.EventType) verbs.Event {
	n.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		var evs [1]verbs.Event
		if k, err := n.cm.Poll(evs[:]); err != nil {
			n.t.Fatal(err)
		} else if k == 1 {
			ev := evs[0]
			ev.Private = bytes.Clone(ev.Private)
			for _, typ := range types {
				if ev.Type == typ {
					return ev
				}
			}
			n.t.Fatalf("event %v (%v), wanted %v", ev.Type, ev.Err, types)
		}
		n.w.Wait(deadline)
	}
	n.t.Fatalf("no event of %v", types)
	return verbs.Event{}
}

// protocolError waits for what the listener has to say about a stranger.
func (n *node) protocolError() error {
	n.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		n.mu.Lock()
		var err error
		if len(n.errs) > 0 {
			err = n.errs[0]
		}
		n.mu.Unlock()
		if err != nil {
			return err
		}
		n.w.Wait(deadline)
	}
	n.t.Fatal("the listener complained about nothing")
	return nil
}

// newQP builds the queue pair of the node's connection.
func (n *node) newQP(id verbs.ID) {
	n.t.Helper()
	n.id = id
	var err error
	n.qp, err = id.CreateQP(verbs.QPAttr{PD: n.pd, CQ: n.cq, MaxSendWR: 256, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 1})
	n.must(err)
}

// accept builds a queue pair with posted receives on the child of a request, and accepts.
func (n *node) accept(ev verbs.Event, receives int, private []byte) {
	n.t.Helper()
	n.newQP(ev.ID)
	for i := range receives {
		n.postRecv(i, i*4096)
	}
	n.must(n.id.Accept(verbs.ConnParam{Private: private, RetryCount: 1, RNRRetryCount: n.rnr}))
}

// resolve makes the node's connection an active one, with posted receives.
func (n *node) resolve(to netip.AddrPort, receives int) {
	n.t.Helper()
	id, err := n.cm.NewID(nil)
	n.must(err)
	n.must(id.ResolveAddr(netip.AddrPortFrom(n.at.Addr(), 0), to, false, time.Second))
	n.event(verbs.EventAddrResolved)
	n.must(id.ResolveRoute(time.Second))
	n.event(verbs.EventRouteResolved)
	n.newQP(id)
	for i := range receives {
		n.postRecv(i, i*4096)
	}
}

// newPair connects two nodes.
func newPair(t testing.TB, opt iwarp.Options) (active, passive *node) {
	t.Helper()
	passive = newNodeAt(t, "127.0.0.65", opt)
	active = newNodeAt(t, "127.0.0.64", opt)
	active.resolve(passive.at, 0)
	active.must(active.id.Connect(verbs.ConnParam{RetryCount: 1, RNRRetryCount: 1}))
	passive.accept(passive.event(verbs.EventConnectRequest), 0, nil)
	active.event(verbs.EventEstablished)
	passive.event(verbs.EventEstablished)
	return active, passive
}

// postRecv posts a receive of 4096 bytes of the slab.
func (n *node) postRecv(id, off int) {
	n.recvs[0] = verbs.RecvWR{ID: uint64(id), NSGE: 1}
	n.recvs[0].SGE[0] = verbs.SGE{Addr: n.addr(off), Length: 4096, LKey: n.mr.LKey()}
	n.batch[0] = verbs.Posting{QP: n.qp, Recvs: n.recvs[:]}
	n.id.Device().Post(n.batch[:])
	if n.batch[0].Err != nil {
		n.t.Error(n.batch[0].Err)
	}
}

// post posts sends.
func (n *node) post(wrs ...verbs.SendWR) {
	n.t.Helper()
	batch := []verbs.Posting{{QP: n.qp, Sends: wrs}}
	n.id.Device().Post(batch)
	n.must(batch[0].Err)
}

// wr is a signalled request about size bytes at off of the slab.
func (n *node) wr(op verbs.Opcode, id uint64, off, size int) verbs.SendWR {
	wr := verbs.SendWR{ID: id, Op: op, Signaled: true, NSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: n.addr(off), Length: uint32(size), LKey: n.mr.LKey()}
	return wr
}

func (n *node) completions(k int) []verbs.WC {
	n.t.Helper()
	var got []verbs.WC
	deadline := time.Now().Add(15 * time.Second)
	for len(got) < k && time.Now().Before(deadline) {
		c, err := n.cq.Poll(n.wcs[:])
		n.must(err)
		got = append(got, n.wcs[:c]...)
		if c == 0 {
			n.must(n.cq.Arm())
			if c, _ = n.cq.Poll(n.wcs[:]); c > 0 {
				got = append(got, n.wcs[:c]...)
				continue
			}
			n.w.Wait(deadline)
		}
	}
	if len(got) < k {
		n.t.Fatalf("%d completions of %d: %+v", len(got), k, got)
	}
	return got
}

func dial(t testing.TB, n *node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(15 * time.Second))
	return c
}

// listen gives a plain TCP listener, and accepts from it with a deadline.
func listen(t testing.TB) (at netip.AddrPort, accept func() net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.62:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.(*net.TCPListener).SetDeadline(time.Now().Add(15 * time.Second))
	return netip.MustParseAddrPort(l.Addr().String()), func() net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(15 * time.Second))
		return c
	}
}

func send(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

// start is an MPA request or reply.
func start(key string, flags, rev byte, private []byte) []byte {
	b := append([]byte(key), flags, rev)
	b = binary.BigEndian.AppendUint16(b, uint16(len(private)))
	return append(b, private...)
}

func request(flags, rev byte, private []byte) []byte { return start(requestKey, flags, rev, private) }

// readStart reads an MPA request or reply: its flags, revision, private data.
func readStart(t testing.TB, c net.Conn, key string) (flags, rev byte, private []byte) {
	t.Helper()
	h := make([]byte, 20)
	if _, err := io.ReadFull(c, h); err != nil {
		t.Fatalf("no %s: %v", key, err)
	}
	if string(h[:16]) != key {
		t.Fatalf("%x is no %s", h, key)
	}
	p := make([]byte, binary.BigEndian.Uint16(h[18:]))
	if _, err := io.ReadFull(c, p); err != nil {
		t.Fatal(err)
	}
	return h[16], h[17], p
}

func reply(t testing.TB, c net.Conn) (flags, rev byte, private []byte) {
	t.Helper()
	return readStart(t, c, replyKey)
}

// fpdu frames a ULPDU, with CRC or with a zero field.
func fpdu(ulpdu []byte, crc bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if !crc {
		return append(b, 0, 0, 0, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// untagged is a ULPDU of RDMAP opcode op.
func untagged(ctrl, op byte, queue, msn, mo uint32, payload []byte) []byte {
	b := []byte{ctrl, 0x40 | op, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, queue)
	b = binary.BigEndian.AppendUint32(b, msn)
	b = binary.BigEndian.AppendUint32(b, mo)
	return append(b, payload...)
}

func tagged(ctrl, op byte, stag uint32, to uint64, payload []byte) []byte {
	b := []byte{ctrl, 0x40 | op}
	b = binary.BigEndian.AppendUint32(b, stag)
	b = binary.BigEndian.AppendUint64(b, to)
	return append(b, payload...)
}

// readRequest is the content of an RDMA Read Request.
func readRequest(sink uint32, sinkTo uint64, size, src uint32, srcTo uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, sink)
	b = binary.BigEndian.AppendUint64(b, sinkTo)
	b = binary.BigEndian.AppendUint32(b, size)
	b = binary.BigEndian.AppendUint32(b, src)
	return binary.BigEndian.AppendUint64(b, srcTo)
}

// readFPDU reads one and gives its ULPDU.
func readFPDU(c net.Conn) ([]byte, error) {
	var l [2]byte
	if _, err := io.ReadFull(c, l[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(l[:]))
	b := make([]byte, n+(-(2+n)&3)+4)
	_, err := io.ReadFull(c, b)
	return b[:n], err
}
