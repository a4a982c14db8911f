package iwarp_test

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
)

const (
	benchMessage = 1 << 20
	benchFrame   = 64 << 10
	benchDepth   = 8 // messages under way
)

// BenchmarkMiB moves 1 MiB over loopback: by RDMA write with a send behind it, and, for comparison in the
// same run, by a plain TCP stream of 64 KiB frames with CRC32c.
func BenchmarkMiB(b *testing.B) {
	b.Run("TCP", benchTCP)
	b.Run("write and send", func(b *testing.B) { benchWrites(b, iwarp.Options{}) })
	b.Run("write and send, no CRC", func(b *testing.B) { benchWrites(b, iwarp.Options{NoCRC: true}) })
}

func benchTCP(b *testing.B) {
	at, accept := listen(b)
	table := crc32.MakeTable(crc32.Castagnoli)
	frames := b.N * (benchMessage / benchFrame)
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	far := accept()
	far.SetDeadline(time.Time{})
	done := make(chan error, 1)
	go func() {
		buf := make([]byte, benchFrame+4)
		for range frames {
			if _, err := io.ReadFull(far, buf); err != nil {
				done <- err
				return
			}
			if crc32.Checksum(buf[:benchFrame], table) != binary.LittleEndian.Uint32(buf[benchFrame:]) {
				done <- io.ErrUnexpectedEOF
				return
			}
		}
		done <- nil
	}()
	buf := make([]byte, benchFrame+4)
	b.SetBytes(benchMessage)
	b.ResetTimer()
	for range frames {
		binary.LittleEndian.PutUint32(buf[benchFrame:], crc32.Checksum(buf[:benchFrame], table))
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// allocations starts to count what the whole process allocates, both ends together, and reports it for
// each round.
func allocations(b *testing.B) (stop func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	return func() {
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "process-allocs/op")
	}
}

func benchWrites(b *testing.B, opt iwarp.Options) {
	from, to := newPair(b, opt)
	recv := func(id int) { to.postRecv(id, 2*benchMessage+id*4096) }
	for i := range 2 * benchDepth {
		recv(i)
	}
	write := from.wr(verbs.OpWrite, 0, 0, benchMessage)
	write.Signaled, write.RemoteAddr, write.RKey = false, to.addr(0), to.mr.RKey()
	batch := []verbs.Posting{{QP: from.qp, Sends: []verbs.SendWR{write, from.wr(verbs.OpSend, 1, benchMessage, 100)}}}
	dev := from.id.Device()
	done := make(chan struct{})
	b.SetBytes(benchMessage)
	b.ResetTimer()
	stop := allocations(b)
	go func() {
		defer close(done)
		for i := range b.N {
			to.reap(1, verbs.OpRecv)
			recv(i % (2 * benchDepth))
		}
	}()
	for i := range b.N {
		if i >= benchDepth {
			from.reap(1, verbs.OpSend)
		}
		dev.Post(batch)
		if batch[0].Err != nil {
			b.Fatal(batch[0].Err)
		}
	}
	from.reap(min(b.N, benchDepth), verbs.OpSend)
	<-done
	stop()
}

// BenchmarkPingPong answers a small send with a small send.
func BenchmarkPingPong(b *testing.B) {
	from, to := newPair(b, iwarp.Options{})
	for i := range 4 {
		from.postRecv(i, i*4096)
		to.postRecv(i, i*4096)
	}
	send := func(n *node) {
		n.sends[0] = n.wr(verbs.OpSend, 0, 1<<16, 128)
		n.sends[0].Signaled = false
		n.batch[0] = verbs.Posting{QP: n.qp, Sends: n.sends[:]}
		n.id.Device().Post(n.batch[:])
	}
	done := make(chan struct{})
	b.ResetTimer()
	stop := allocations(b)
	go func() {
		defer close(done)
		for i := range b.N {
			to.reap(1, verbs.OpRecv)
			to.postRecv(i%4, i%4*4096)
			send(to)
		}
	}()
	for i := range b.N {
		send(from)
		from.reap(1, verbs.OpRecv)
		from.postRecv(i%4, i%4*4096)
	}
	<-done
	stop()
}

// reap takes k completions of one kind, without allocation.
func (n *node) reap(k int, op verbs.Opcode) {
	for k > 0 {
		c, err := n.cq.Poll(n.wcs[:min(k, len(n.wcs))])
		if err != nil {
			n.t.Error(err)
			return
		}
		for _, wc := range n.wcs[:c] {
			if wc.Status != verbs.WCSuccess || wc.Op != op {
				n.t.Errorf("completion %+v", wc)
				return
			}
		}
		k -= c
		if c > 0 {
			continue
		}
		n.cq.Arm()
		if c, _ = n.cq.Poll(n.wcs[:1]); c == 0 {
			n.w.Wait(time.Time{})
		}
		k -= c
	}
}
