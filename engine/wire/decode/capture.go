package decode

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"

	"o2ibd/engine/wire/pcap"
)

const (
	maxFlows   = 1 << 16 // TCP directions, and queue pairs, that are followed at once
	maxPending = 1 << 20 // bytes that wait for a missing TCP segment before it counts as lost
	maxChunks  = 4096    // and the pieces they came in
)

// endpoints is one direction: source and destination.
type endpoints [2]netip.AddrPort

func (e endpoints) String() string { return fmt.Sprintf("%v > %v", e[0], e[1]) }

// capture is the state of one capture: TCP directions and RoCE queue pairs.
type capture struct {
	d     *decoder
	flows map[endpoints]*flow
	born  int // flows so far
	pairs map[queuePair]*roceFlow
	full  bool // no further flow is followed, and that was said
}

// capture decodes every packet of a pcap or pcapng file.
func (d *decoder) capture(r io.Reader) error {
	d.unit = "frame"
	packets, err := pcap.NewReader(r)
	if err != nil {
		return err
	}
	c := capture{d: d, flows: make(map[endpoints]*flow), pairs: make(map[queuePair]*roceFlow)}
	for {
		p, err := packets.Next()
		if err != nil && !errors.Is(err, io.EOF) {
			d.at++
			d.fail("", err) // what came before stands
		}
		if err != nil {
			c.end()
			return nil
		}
		d.at++
		s, ok := p.Segment()
		switch {
		case !ok:
		case s.Proto == pcap.TCP:
			c.tcp(s)
		case s.Dst.Port() == rocePort:
			c.roce(s)
		}
	}
}

// room tells whether one more flow may be followed. Streams of other protocols make way for it.
func (c *capture) room() bool {
	if c.full {
		return false
	}
	if len(c.flows)+len(c.pairs) < maxFlows {
		return true
	}
	maps.DeleteFunc(c.flows, func(_ endpoints, f *flow) bool { return f.stream.conn.over })
	if len(c.flows)+len(c.pairs) > maxFlows*3/4 { // to sweep again soon would cost more than it gives
		c.full = true
		c.d.fail("", fmt.Errorf("more than %d streams and queue pairs at once: further ones are left out", maxFlows*3/4))
	}
	return !c.full
}

// end looks at what is still waiting when the capture is over.
func (c *capture) end() {
	inOrder := slices.SortedFunc(maps.Values(c.flows), func(a, b *flow) int { return cmp.Compare(a.born, b.born) })
	for _, f := range inOrder {
		for len(f.pending) > 0 {
			f.skip()
		}
		f.stream.end()
	}
}

// flow is one direction of a TCP connection.
type flow struct {
	born    int // which flow of the capture this is, so that its end is shown in order
	stream  stream
	next    uint32 // sequence number of the next byte
	pending []chunk
	waiting int // bytes in pending
}

// chunk is payload that came before what it follows.
type chunk struct {
	seq  uint32
	data []byte
}

func (c *capture) tcp(s pcap.Segment) {
	here, back := endpoints{s.Src, s.Dst}, endpoints{s.Dst, s.Src}
	f := c.flows[here]
	syn := s.Flags&pcap.SYN != 0
	switch {
	case syn && (f == nil || f.next != s.Seq+1):
		if s.Flags&pcap.ACK == 0 {
			c.forget(back)
		}
		c.forget(here)
		f = c.follow(here, back, s.Seq+1, atStart)
	case f == nil && (isStartUp(s.Payload) || beginsMessage(s.Payload)):
		f = c.follow(here, back, s.Seq, searching)
	}
	if f == nil {
		return
	}
	if syn {
		s.Seq++
	}
	f.push(s.Seq, s.Payload)
}

// forget ends the direction of a connection whose addresses are used again.
func (c *capture) forget(e endpoints) {
	f := c.flows[e]
	if f == nil {
		return
	}
	for len(f.pending) > 0 {
		f.skip()
	}
	f.stream.end()
	delete(c.flows, e)
}

func (c *capture) follow(here, back endpoints, next uint32, state streamState) *flow {
	if !c.room() {
		return nil
	}
	c.born++
	f := &flow{born: c.born, next: next, stream: stream{d: c.d, of: here.String(), state: state, conn: new(connection)}}
	if other := c.flows[back]; other != nil {
		f.stream.conn = other.stream.conn
	}
	c.flows[here] = f
	return f
}

// push takes a segment: what is new of it goes to the stream, or waits for what is missing before it.
func (f *flow) push(seq uint32, data []byte) {
	ahead := int32(seq - f.next)
	if ahead > 0 {
		if f.stream.state == notOurs || len(data) == 0 {
			return
		}
		i, _ := slices.BinarySearchFunc(f.pending, seq, func(c chunk, seq uint32) int { return int(int32(c.seq - seq)) })
		f.pending = slices.Insert(f.pending, i, chunk{seq, slices.Clone(data)})
		f.waiting += len(data)
		for f.waiting > maxPending || len(f.pending) > maxChunks {
			f.skip()
		}
		return
	}
	f.take(seq, data)
	f.drain()
}

// take feeds data that begins at or before the next byte.
func (f *flow) take(seq uint32, data []byte) {
	old := int64(f.next - seq)
	if old >= int64(len(data)) {
		return
	}
	data = data[old:]
	f.next += uint32(len(data))
	f.stream.feed(data)
}

// drain feeds what waited and is due.
func (f *flow) drain() {
	for len(f.pending) > 0 && int32(f.pending[0].seq-f.next) <= 0 {
		c := f.pending[0]
		f.pending = f.pending[1:]
		f.waiting -= len(c.data)
		f.take(c.seq, c.data)
	}
}

// skip gives up the bytes before the first chunk that waits.
func (f *flow) skip() {
	f.stream.gap(f.pending[0].seq - f.next)
	f.next = f.pending[0].seq
	f.drain()
}
