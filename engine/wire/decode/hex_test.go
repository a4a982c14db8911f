package decode_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"o2ibd/engine/wire"
	"o2ibd/engine/wire/decode"
)

const (
	noopHex = "911be90b1200d004300000000000000001004d0a000005007bd0f07a8c61060002004d0a00000500ad2f0f7b8c610600"
	rejHex  = "911be90b12000700ec5c53828c6106000800010100100000"
)

// types runs input and gives the type of every message that came out.
func types(input string) (string, error) {
	var out bytes.Buffer
	err := decode.Run(strings.NewReader(input), &out, "json")
	var got []string
	for line := range strings.Lines(out.String()) {
		typ, _, _ := strings.Cut(strings.TrimPrefix(line, `{"type":"`), `"`)
		got = append(got, typ)
	}
	return strings.Join(got, " "), err
}

func wrap(s string, n int) string {
	var b strings.Builder
	for len(s) > n {
		b.WriteString(s[:n] + "\n")
		s = s[n:]
	}
	return b.String() + s
}

func TestHex(t *testing.T) {
	getReq := vectorText(t, "kernel-GET_REQ-GET-1")
	for _, r := range []struct{ name, in, want string }{
		{"one line", noopHex + "\n", "NOOP"},
		{"no newline", noopHex, "NOOP"},
		{"upper case", strings.ToUpper(noopHex), "NOOP"},
		{"CRLF", noopHex + "\r\n" + rejHex + "\r\n", "NOOP REJ"},
		{"a message a line", noopHex + "\n" + rejHex + "\n" + getReq, "NOOP REJ GET_REQ"},
		{"comments and empty lines", "# a capture\n\n" + noopHex + " # the keepalive\n   \n\t# end\n", "NOOP"},
		{"blanks inside", "911be90b 1200\td0 04" + noopHex[16:], "NOOP"},
		{"colons", strings.Trim(wrap(noopHex, 2), "\n")[:2] + ":" + strings.ReplaceAll(wrap(noopHex[2:], 2), "\n", ":"), "NOOP"},
		{"one message over lines of 16 bytes", wrap(getReq, 32), "GET_REQ"},
		{"one message, a byte a line", wrap(noopHex, 2), "NOOP"},
		{"one message over lines with comments", "# GET_REQ\n" + wrap(getReq, 96) + "\n# end", "GET_REQ"},
		{"a reject over lines", wrap(rejHex, 16), "REJ"},
		{"a reject padded as InfiniBand gives it", rejHex + strings.Repeat("00", 148-24), "REJ"},
		{"the same over lines", wrap(rejHex+strings.Repeat("00", 148-24), 32), "REJ"},
		{"a short reject of version 1", "911be90b11000300", "REJ"},
		{"a reject with a reason from the future", rejHex[:12] + "7f" + rejHex[14:], "REJ"},
		{"a padded message over lines", wrap(vectorText(t, "kernel-CONNACK-1")+strings.Repeat("00", 196-56), 32), "CONNACK"},
		{"trailing bytes are not the message's", noopHex + "0000", "NOOP"},
		{"two short messages are not one", noopHex + "\n" + noopHex, "NOOP NOOP"},
		{"big-endian", "0be91b910012d0040000003000000000000500000a0000010005335ed0c3a000000500000a0000020005335ed0c3a111", "NOOP"},
		{"a big-endian reject", "0be91b91001205000005335ed0c3a1110008010000001000", "REJ"},
		{"a reject with the unified protocol's magic", "45726963" + "0012030000000000000000000000000000001000", "REJ"},
		{"a reject without parameters", "911be90b1100030000000000000000000000000000100000", "REJ"},
	} {
		t.Run(r.name, func(t *testing.T) {
			if got, err := types(r.in); got != r.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, r.want)
			}
		})
	}
}

func vectorText(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("../testdata/vectors/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestBadLines: a bad line is named with its number and cause, and the others are decoded.
func TestBadLines(t *testing.T) {
	for _, r := range []struct {
		name, line string
		cause      error // nil: only the text counts
		text       string
	}{
		{"no hex", "hello", nil, `line 2: not hex: 'h'`},
		{"odd digits", "911", nil, "line 2: not hex: an odd number of digits, 3"},
		{"control character", "91\x1b1be90b", nil, `line 2: not hex: '\x1b'`},
		{"short", "911be90b", wire.ErrShort, "line 2: too short"},
		{"cut", noopHex[:94], wire.ErrShort, "line 2: too short: 47 bytes"},
		{"cut to a reject's size", noopHex[:48], wire.ErrShort, "line 2: too short: 24 bytes"},
		{"zeros", "00000000", wire.ErrShort, "line 2: too short"},
		{"magic", "00" + noopHex[2:], wire.ErrMagic, "line 2: wrong magic"},
		{"version", "911be90b1300" + noopHex[12:], wire.ErrVersion, "line 2: unknown protocol version: 0x13"},
		{"nob", noopHex[:16] + "31" + noopHex[18:], wire.ErrNob, "line 2: wrong length field"},
		{"type", noopHex[:12] + "ee" + noopHex[14:], wire.ErrType, "line 2: unknown message type: 0xee"},
		{"size", noopHex[:12] + "d4" + noopHex[14:], wire.ErrSize, "line 2: too small for its type"},
		{"source", noopHex[:32] + "ffffffffffffffff" + noopHex[48:], wire.ErrSrcNID, "line 2: source NID is the wildcard"},
		{"reject of version 0x13", "911be90b1300" + rejHex[12:], wire.ErrVersion, "line 2: reject: unknown protocol version"},
	} {
		t.Run(r.name, func(t *testing.T) {
			got, err := types(noopHex + "\n" + r.line + "\n" + rejHex)
			var f *decode.Failures
			if got != "NOOP REJ" || !errors.As(err, &f) || f.Failed != 1 || f.Decoded != 2 {
				t.Fatalf("got %q, %#v", got, err)
			}
			if !strings.HasPrefix(err.Error(), "1 of 3 messages failed to decode: "+r.text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want %q", err, r.text)
			}
			if r.cause != nil && !errors.Is(err, r.cause) {
				t.Errorf("error %v does not wrap %v", err, r.cause)
			}
		})
	}
}

// TestWholeMessageAndMore: padding is taken for a part of a message over lines, not of one that was whole before.
func TestWholeMessageAndMore(t *testing.T) {
	for _, r := range []struct{ name, in, want string }{
		{"message", noopHex + "\n0000", "NOOP"},
		{"reject", rejHex + "\n0000", "REJ"},
		{"message over lines, and no padding", wrap(noopHex, 32) + "\n0001", ""},
	} {
		var f *decode.Failures
		if got, err := types(r.in); got != r.want || !errors.As(err, &f) {
			t.Errorf("%s: %q, %v, want %q and a failure", r.name, got, err, r.want)
		}
	}
}

func TestManyBadLines(t *testing.T) {
	_, err := types(strings.Repeat("zz\n", 1000) + noopHex)
	var f *decode.Failures
	if !errors.As(err, &f) || f.Failed != 1000 || f.Decoded != 1 || len(f.Named) != 20 {
		t.Fatalf("%v", err)
	}
	if text := err.Error(); !strings.HasSuffix(text, "line 20: not hex: 'z'; and 980 more") {
		t.Errorf("error %q", text)
	}
}

func TestNothing(t *testing.T) {
	for name, in := range map[string]string{
		"empty": "", "blank": "\n \n", "comments": "# nothing\n", "another protocol's stream": "4d504120494420526571204672616d651002000400000000",
	} {
		if got, err := types(in); got != "" || !errors.Is(err, decode.ErrNothing) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	var out bytes.Buffer
	err := decode.Run(strings.NewReader(noopHex), &out, "xml")
	if err == nil || !strings.Contains(err.Error(), `"xml"`) || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}

type fault struct{ err error }

func (f fault) Read([]byte) (int, error)  { return 0, f.err }
func (f fault) Write([]byte) (int, error) { return 0, f.err }

func TestFaultsOfTheFilesThemselves(t *testing.T) {
	gone := fault{errors.New("disk gone")}
	capture := tcpCapture(t, siw(t)...)
	for name, in := range map[string]io.Reader{
		"at once":          gone,
		"in the text":      io.MultiReader(strings.NewReader(noopHex), gone),
		"writing text":     strings.NewReader(strings.Repeat(noopHex+"\n", 1000)),
		"writing capture":  bytes.NewReader(capture),
		"writing one line": strings.NewReader(noopHex),
	} {
		t.Run(name, func(t *testing.T) {
			var out io.Writer = io.Discard
			if strings.HasPrefix(name, "writing") {
				out = gone
			}
			if err := decode.Run(in, out, "table"); !errors.Is(err, gone.err) {
				t.Errorf("%v, want the file's own error", err)
			}
		})
	}
}

func TestTableOfOddMessages(t *testing.T) {
	routed := vectorText(t, "kernel-IMMEDIATE-PUT-1")
	routed = routed[:96+16] + fmt.Sprintf("%016x", 0x01004d0a00000200) + routed[96+32:] // from a tcp network
	golden(t, "odd.table", run(t, []byte(routed+"\n911be90b1100030000000000000000000000000000100000\n"+
		"911be90b1100d3013c0000000000000001004d0a000005007bd0f07a8c61060002004d0a00000500ad2f0f7b8c6106000700000000000000f4ffffff"), "table"))
}
