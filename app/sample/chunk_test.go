package sample

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// same says that two tables hold the same values, gaps included.
func same(a, b table) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if len(a[i]) != len(b[i]) {
			return false
		}
		for j := range a[i] {
			if len(a[i][j]) != len(b[i][j]) {
				return false
			}
			for k := range a[i][j] {
				if math.Float32bits(a[i][j][k]) != math.Float32bits(b[i][j][k]) {
					return false
				}
			}
		}
	}
	return true
}

func TestChunksReadBack(t *testing.T) {
	enc := newEncoder()
	rapid.Check(t, func(t *rapid.T) {
		stats := rapid.SampledFrom([]int{1, 3}).Draw(t, "stats")
		in := newTable(rapid.IntRange(1, 12).Draw(t, "metrics"), stats, rapid.IntRange(1, 300).Draw(t, "steps"))
		for i := range in {
			for j := range in[i] {
				for k := range in[i][j] {
					if rapid.Bool().Draw(t, "sampled") {
						in[i][j][k] = rapid.Float32().Draw(t, "value")
					}
				}
			}
		}
		out, err := decodeChunk(enc.encode(in))
		if err != nil || !same(in, out) {
			t.Fatalf("%v: %v, want %v", err, out, in)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(newEncoder().encode(newTable(3, 3, 48)))
	f.Add(encodeTail([]point{{"total", []float32{1, 2}}, {"ni/1.2.3.4@o2ib", []float32{nan}}}))
	f.Add([]byte{1, 255, 3, 255, 255, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if tb, err := decodeChunk(b); err == nil && len(tb) > 0 && len(tb[0][0]) > 0 {
			if back, err := decodeChunk(newEncoder().encode(tb)); err != nil || !same(tb, back) {
				t.Fatalf("%v does not read back: %v", tb, err)
			}
		}
		if points, err := decodeTail(b); err == nil {
			if string(encodeTail(points)) != string(b) {
				t.Fatalf("%q reads as %v", b, points)
			}
		}
	})
}
