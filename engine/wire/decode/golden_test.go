package decode_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/engine/wire/decode"
	"o2ibd/engine/wire/pcap"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, d)
	}
}

// run decodes input that has no fault.
func run(t *testing.T, input []byte, format string) string {
	t.Helper()
	var out bytes.Buffer
	if err := decode.Run(bytes.NewReader(input), &out, format); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// vectors is a file of all messages captured from the kernel, one a line, each behind its name.
func vectors(t testing.TB) []byte {
	t.Helper()
	files, err := filepath.Glob("../testdata/vectors/*.hex")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d vectors, %v", len(files), err)
	}
	var b bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "# %s\n%s", strings.TrimSuffix(filepath.Base(f), ".hex"), text)
	}
	return b.Bytes()
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readHex(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return unhex(t, string(text))
}

var (
	active  = netip.MustParseAddrPort("10.77.0.1:1020")
	passive = netip.MustParseAddrPort("10.77.0.2:987")
)

// said is a piece of a TCP stream.
type said struct {
	from, to netip.AddrPort
	data     []byte
}

// siw is the captured connection: both start-up frames, then what each side sent.
func siw(t testing.TB) []said {
	const startUp = 80
	a, p := readHex(t, "testdata/iwarp-siw-active-stream.hex"), readHex(t, "testdata/iwarp-siw-passive-stream.hex")
	return []said{
		{active, passive, a[:startUp]}, {passive, active, p[:startUp]},
		{active, passive, a[startUp:]}, {passive, active, p[startUp:]},
	}
}

// tcpCapture wraps streams in packets.
func tcpCapture(t testing.TB, streams ...said) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := pcap.NewWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	w.Now = func() time.Time { return time.Unix(1_796_105_970, 0) }
	for _, s := range streams {
		if err := w.Stream(s.from, s.to, s.data); err != nil {
			t.Fatal(err)
		}
	}
	return file.Bytes()
}

// packets are the records of a classic capture.
func packets(t testing.TB, file []byte) [][]byte {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for {
		p, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.Clone(p.Data))
	}
}

func TestGoldenVectors(t *testing.T) {
	for _, format := range []string{"table", "json", "yaml"} {
		t.Run(format, func(t *testing.T) { golden(t, "vectors."+format, run(t, vectors(t), format)) })
	}
}

func TestGoldenStreams(t *testing.T) {
	capture := tcpCapture(t, siw(t)...)
	for _, format := range []string{"table", "json", "yaml"} {
		t.Run(format, func(t *testing.T) { golden(t, "siw."+format, run(t, capture, format)) })
	}
	for _, side := range []string{"active", "passive"} {
		t.Run("hex of the "+side+" side", func(t *testing.T) {
			text, err := os.ReadFile("testdata/iwarp-siw-" + side + "-stream.hex")
			if err != nil {
				t.Fatal(err)
			}
			var want strings.Builder
			nid := map[string]string{"active": "10.77.0.1@o2ib", "passive": "10.77.0.2@o2ib"}[side]
			for line := range strings.Lines(run(t, capture, "json")) {
				if strings.Contains(line, `"srcnid":"`+nid) {
					want.WriteString(line)
				}
			}
			if got := run(t, text, "json"); got != want.String() {
				t.Errorf("got\n%s\nwant\n%s", got, want.String())
			}
		})
	}
}

// TestJSONKeys holds the order of keys that issue and decision 26 promise, and the kinds of their values.
func TestJSONKeys(t *testing.T) {
	head := "type version credits nob cksum cksum_ok srcnid srcstamp dstnid dststamp "
	lnet := "lnet payload_bytes"
	want := map[string]string{
		"CONNREQ":   head + "queue_depth max_frags max_msg_size",
		"CONNACK":   head + "queue_depth max_frags max_msg_size",
		"NOOP":      strings.TrimSpace(head),
		"IMMEDIATE": head + lnet,
		"PUT_REQ":   head + "lnet cookie",
		"PUT_ACK":   head + "src_cookie dst_cookie rkey nfrags frags",
		"PUT_DONE":  head + "cookie status",
		"GET_REQ":   head + "lnet cookie rkey nfrags frags",
		"GET_DONE":  head + "cookie status",
		"REJ":       "type version why why_name incarnation queue_depth max_frags max_msg_size",
	}
	common := "type dest_nid src_nid dest_pid src_pid payload_length handle"
	wantLNet := map[string]string{
		"PUT":   common + " match_bits hdr_data portal offset",
		"GET":   common + " match_bits portal offset length",
		"ACK":   common + " match_bits length",
		"REPLY": common,
	}
	seen := map[string]bool{}
	for line := range strings.Lines(run(t, vectors(t), "json")) {
		keys, values := object(t, line)
		typ := strings.Trim(values["type"], `"`)
		seen[typ] = true
		if got := strings.Join(keys, " "); got != want[typ] {
			t.Errorf("%s has keys\n%s\nwant\n%s", typ, got, want[typ])
		}
		for _, k := range strings.Fields("cksum srcstamp dststamp cookie src_cookie dst_cookie rkey incarnation") {
			if v, ok := values[k]; ok && !strings.HasPrefix(v, `"0x`) {
				t.Errorf("%s: %s is %s, want a 0x string", typ, k, v)
			}
		}
		for _, k := range strings.Fields("version credits nob status nfrags queue_depth payload_bytes why") {
			if v, ok := values[k]; ok && strings.ContainsAny(v, `"x.e`) {
				t.Errorf("%s: %s is %s, want an integer", typ, k, v)
			}
		}
		if h, ok := values["lnet"]; ok {
			keys, values := object(t, h)
			typ := strings.Trim(values["type"], `"`)
			seen["lnet "+typ] = true
			if got := strings.Join(keys, " "); got != wantLNet[typ] {
				t.Errorf("LNet %s has keys\n%s\nwant\n%s", typ, got, wantLNet[typ])
			}
		}
	}
	if len(seen) != len(want)+len(wantLNet) {
		t.Errorf("the vectors hold %d kinds, want %d: %v", len(seen), len(want)+len(wantLNet), seen)
	}
}

// object gives the keys of a JSON object in their order, and its values as they are written.
func object(t *testing.T, text string) (keys []string, values map[string]string) {
	t.Helper()
	values = map[string]string{}
	dec := json.NewDecoder(strings.NewReader(text))
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k.(string))
		values[k.(string)] = string(v)
	}
	return keys, values
}
