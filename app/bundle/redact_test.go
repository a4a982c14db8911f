package bundle_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/bundle"
)

func newRedactor() *bundle.Redactor {
	return bundle.NewRedactor([]string{"oss1.example.com", "localhost"}, []string{"alice", "admin", "peer", "Bob"})
}

func TestRedactText(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"NID", "connected to 10.1.2.3@o2ib1", "connected to 198.18.0.1@o2ib1"},
		{"peer id", "10.1.2.3@o2ib>10.1.2.4@o2ib", "198.18.0.1@o2ib>198.18.0.2@o2ib"},
		{"process id", "12345-10.1.2.3@o2ib", "12345-198.18.0.1@o2ib"},
		{"same again", "10.1.2.3 10.1.2.4 10.1.2.3", "198.18.0.1 198.18.0.2 198.18.0.1"},
		{"loopback", "127.0.0.2:987", "198.18.0.1:987"},
		{"any address", "0.0.0.0:8470 [::]:8470", "0.0.0.0:8470 [::]:8470"},
		{"prefix", "10.1.2.3/24", "198.18.0.1/24"},
		{"not an address", "v1.2.3.4 1.2.3 999.1.1.1 1.2.3.4x", "v1.2.3.4 1.2.3 999.1.1.1 1.2.3.4x"},
		{"IPv6", "[fd00::1]:22 fe80::1%eth0", "[2001:db8::0:1]:22 2001:db8::0:2"},
		{"IPv4 in IPv6", "::ffff:10.1.2.3", "2001:db8::0:1"},
		{"time of day", "10:33:12 std::vector", "10:33:12 std::vector"},
		{"hardware address", "link aa:bb:cc:dd:ee:ff", "link 02:00:00:00:00:01"},
		{"host", "OSS1.example.com oss1 oss12 localhost", "host-1 host-1 oss12 localhost"},
		{"people", "alice,bob alices /home/alice/x admin", "user-1,user-4 alices /home/user-1/x admin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := newRedactor().Text(tt.in); got != tt.want {
				t.Errorf("%q\ngot  %q\nwant %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestRedactedBundle(t *testing.T) {
	var out bytes.Buffer
	head := bundle.Manifest{Host: "oss1.example.com"}
	_, err := bundle.Write(t.Context(), &out, head, []bundle.Part{
		bundle.Value("snapshot.json", map[string]any{"peer": "alice", "10.0.0.9@o2ib": "line\n10.0.0.9@o2ib", "html": "a>b"}),
		bundle.Text("net.yaml", []byte("peer: 10.0.0.8@o2ib\n  - alice: alice\n")),
		{"log.txt", func(_ context.Context, w io.Writer) error {
			// In pieces that cut an address and a name.
			for _, s := range []string{"from 10.0.", "0.8 by al", "ice\nlast on oss1"} {
				if _, err := io.WriteString(w, s); err != nil {
					return err
				}
			}
			return nil
		}},
		bundle.Text("long.txt", []byte(strings.Repeat("10.0.0.8 ", 1<<20)+"\nnext 10.0.0.8\n")),
	}, newRedactor(), nil)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := open(t, out.Bytes())
	for name, want := range map[string]string{
		"snapshot.json": "{\n  \"198.18.0.1@o2ib\": \"line\\n198.18.0.1@o2ib\",\n  \"html\": \"a>b\",\n  \"peer\": \"user-1\"\n}\n",
		"net.yaml":      "peer: 198.18.0.2@o2ib\n  - alice: user-1\n",
		"log.txt":       "from 198.18.0.2 by user-1\nlast on host-1",
		"long.txt":      "(a line too long to redact was left out)\nnext 198.18.0.2\n",
	} {
		if diff := cmp.Diff(want, string(files[name])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	manifest := string(files["manifest.json"])
	if !strings.Contains(manifest, `"host": "host-1"`) || !strings.Contains(manifest, `"redacted": true`) {
		t.Errorf("manifest:\n%s", manifest)
	}
}

func TestRedactManyAddresses(t *testing.T) {
	r := newRedactor()
	seen := make(map[string]bool)
	for i := range 70_000 {
		p := r.Text(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff))
		if seen[p] {
			t.Fatalf("address %d shares the pseudonym %s", i, p)
		}
		seen[p] = true
	}
}
