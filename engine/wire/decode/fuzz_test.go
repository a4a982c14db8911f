package decode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"o2ibd/engine/wire/decode"
)

// FuzzRun: no input panics; every line of output is an object; the error says how it went.
func FuzzRun(f *testing.F) {
	f.Fuzz(func(t *testing.T, input []byte) {
		var out, text bytes.Buffer
		err := decode.Run(bytes.NewReader(input), &out, "json")
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error of more than a line: %q", err)
		}
		n := 0
		for line := range bytes.Lines(out.Bytes()) {
			n++
			if !json.Valid(line) || line[0] != '{' {
				t.Fatalf("line %d is %q", n, line)
			}
		}
		var failures *decode.Failures
		if errors.As(err, &failures) && failures.Decoded != n {
			t.Fatalf("%d lines, the error says %d", n, failures.Decoded)
		}
		if n == 0 && err == nil || n > 0 && errors.Is(err, decode.ErrNothing) {
			t.Fatalf("%d lines and %v", n, err)
		}
		again := decode.Run(bytes.NewReader(input), &text, "table")
		if (err == nil) != (again == nil) {
			t.Fatalf("json says %v, table %v", err, again)
		}
	})
}
