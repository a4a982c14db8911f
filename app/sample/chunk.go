package sample

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"o2ibd/store"
)

// stats are what a step that covers several samples keeps of a metric: 3 blocks, or 1 where each sample
// is kept.
const (
	statAvg = iota
	statMin
	statMax
)

// table is what a chunk holds: blocks[metric][stat], each with a value a step.
type table [][]block

// version of the form of chunks and tails.
const version = 1

var errForm = errors.New("metric samples of an unknown form")

// encode writes: version, metrics, stats, 1 byte each; steps, 2 bytes; then, compressed, the values
// as float32, little-endian, each xor the one before it in its block.
func (e *encoder) encode(t table) []byte {
	var b bytes.Buffer
	b.Write([]byte{version, byte(len(t)), byte(len(t[0]))})
	b.Write(binary.LittleEndian.AppendUint16(nil, uint16(len(t[0][0]))))
	raw := e.raw[:0]
	for _, stats := range t {
		for _, blk := range stats {
			prev := uint32(0)
			for _, v := range blk {
				bits := math.Float32bits(v)
				raw = binary.LittleEndian.AppendUint32(raw, bits^prev)
				prev = bits
			}
		}
	}
	e.raw = raw
	e.w.Reset(&b)
	e.w.Write(raw) // into memory
	e.w.Close()
	return b.Bytes()
}

// encoder keeps what encoding needs from chunk to chunk.
type encoder struct {
	w   *flate.Writer
	raw []byte
}

func newEncoder() *encoder {
	w, _ := flate.NewWriter(io.Discard, flate.BestSpeed) // the level is right
	return &encoder{w: w}
}

func decodeChunk(data []byte) (table, error) {
	if len(data) < 5 || data[0] != version || data[2] != 1 && data[2] != 3 {
		return nil, errForm
	}
	count, stats, steps := int(data[1]), int(data[2]), int(binary.LittleEndian.Uint16(data[3:]))
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data[5:])), int64(count*stats*steps*4)+1))
	if err != nil || len(raw) != count*stats*steps*4 {
		return nil, fmt.Errorf("%w: %d bytes: %v", errForm, len(raw), err)
	}
	t := make(table, count)
	for i := range t {
		t[i] = make([]block, stats)
		for j := range t[i] {
			blk, prev := make(block, steps), uint32(0)
			for k := range blk {
				prev ^= binary.LittleEndian.Uint32(raw)
				blk[k], raw = math.Float32frombits(prev), raw[4:]
			}
			t[i][j] = blk
		}
	}
	return t, nil
}

// encodeTail writes: version; then for each point the length of its source's name in 2 bytes, the name, the
// number of its values in 1 byte, the values as float32.
func encodeTail(points []point) []byte {
	b := []byte{version}
	for _, p := range points {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(p.source)))
		b = append(b, p.source...)
		b = append(b, byte(len(p.values)))
		for _, v := range p.values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

func decodeTail(b []byte) ([]point, error) {
	if len(b) == 0 || b[0] != version {
		return nil, errForm
	}
	var points []point
	for b = b[1:]; len(b) > 0; {
		if len(b) < 2 {
			return nil, errForm
		}
		n := int(binary.LittleEndian.Uint16(b))
		if len(b) < 3+n {
			return nil, errForm
		}
		p := point{source: string(b[2 : 2+n]), values: make([]float32, b[2+n])}
		b = b[3+n:]
		if len(b) < 4*len(p.values) || metrics[kindOf(p.source)] == nil {
			return nil, errForm
		}
		for i := range p.values {
			p.values[i], b = math.Float32frombits(binary.LittleEndian.Uint32(b)), b[4:]
		}
		points = append(points, p)
	}
	return points, nil
}

// coarser makes steps of several each: average, least and most of what is not a gap.
func coarser(stats []block, factor int) []block {
	avg, least, most := stats[statAvg], stats[statAvg], stats[statAvg]
	if len(stats) == 3 {
		least, most = stats[statMin], stats[statMax]
	}
	n := (len(avg) + factor - 1) / factor
	out := []block{gaps(n), gaps(n), gaps(n)}
	for i := range n {
		sum, count := 0.0, 0
		for k := i * factor; k < min((i+1)*factor, len(avg)); k++ {
			if avg[k] != avg[k] {
				continue
			}
			if count == 0 || least[k] < out[statMin][i] {
				out[statMin][i] = least[k]
			}
			if count == 0 || most[k] > out[statMax][i] {
				out[statMax][i] = most[k]
			}
			sum, count = sum+float64(avg[k]), count+1
		}
		if count > 0 {
			out[statAvg][i] = float32(sum / float64(count))
		}
	}
	return out
}

// overlay writes what is no gap in from over to.
func overlay(to, from table) {
	for i := range min(len(to), len(from)) {
		for j := range min(len(to[i]), len(from[i])) {
			for k := range min(len(to[i][j]), len(from[i][j])) {
				if v := from[i][j][k]; v == v {
					to[i][j][k] = v
				}
			}
		}
	}
}

// openTable is the window of a source at a resolution.
func openTable(blocks []block, base, res int64) table {
	t := make(table, len(blocks))
	for i, b := range blocks {
		if t[i] = []block{b}; res != base {
			t[i] = coarser(t[i], int(res/base))
		}
	}
	return t
}

// fold writes the window into chunks and begins an empty one. Chunks of the same time, which a clock that
// was set back or a restart leaves, are filled up. What is to stay in the store's tail, the caller says.
func (s *Sampler) fold(ctx context.Context, tail ...store.MetricTail) error {
	if len(s.open) == 0 {
		return nil
	}
	type key struct {
		source string
		res    int64
	}
	tables := map[key]table{}
	for _, res := range []int64{second, tenSeconds, fiveMin} {
		start := floor(s.start, chunkSpan[res])
		err := s.store.MetricChunks(ctx, nil, res, start, start+1, func(c store.MetricChunk) error {
			if _, ok := s.open[c.Source]; ok {
				if t, err := decodeChunk(c.Data); err == nil { // what cannot be read is written anew
					tables[key{c.Source, res}] = t
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	var chunks []store.MetricChunk
	enc := newEncoder()
	for source, blocks := range s.open {
		base := baseOf(source)
		for _, res := range []int64{second, tenSeconds, fiveMin} {
			if res < base {
				continue
			}
			start := floor(s.start, chunkSpan[res])
			fresh := openTable(blocks, base, res)
			t := newTable(len(fresh), len(fresh[0]), int(chunkSpan[res]/res))
			overlay(t, tables[key{source, res}])
			overlay(t, shifted(fresh, int((s.start-start)/res), len(t[0][0])))
			chunks = append(chunks, store.MetricChunk{Source: source, Res: res, Start: start, Data: enc.encode(t)})
		}
	}
	var keep []store.MetricKeep
	for res, d := range keepFor {
		keep = append(keep, store.MetricKeep{Res: res, Oldest: s.start - d - chunkSpan[res]})
	}
	if err := s.store.FoldMetrics(ctx, chunks, tail, keep, MaxBytes); err != nil {
		return err
	}
	clear(s.open)
	names, _, err := s.store.MetricSources(ctx)
	if err != nil {
		return err
	}
	clear(s.known) // some may have aged out
	for _, n := range names {
		s.known[n] = true
	}
	return nil
}

func newTable(metrics, stats, steps int) table {
	t := make(table, metrics)
	for i := range t {
		t[i] = make([]block, stats)
		for j := range t[i] {
			t[i][j] = gaps(steps)
		}
	}
	return t
}

// shifted is t with its steps moved to a place in a chunk of more steps.
func shifted(t table, by, steps int) table {
	out := newTable(len(t), len(t[0]), steps)
	for i := range t {
		for j := range t[i] {
			copy(out[i][j][by:], t[i][j])
		}
	}
	return out
}
