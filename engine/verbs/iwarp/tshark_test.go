package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"o2ibd/engine/verbs"
	"o2ibd/engine/verbs/iwarp"
	"o2ibd/engine/wire/pcap"
)

// TestWireshark has tshark judge captures of two of our nodes, and of the kernel's streams: nothing of
// warning or above from its MPA and DDP/RDMAP dissectors, but for what the one says of every start-up of
// revision 2, as it knows revision 1 only.
func TestWireshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Fatal("tshark is not here: make deps-test installs it")
	}
	for _, row := range []struct {
		name    string
		capture func(t *testing.T, w *pcap.Writer)
		want    []string // that tshark has to see
	}{
		{"ours", func(t *testing.T, w *pcap.Writer) { converse(t, w, iwarp.Options{}) },
			[]string{"Send", "Write", "Read Request", "Read Response", "Terminate", "Request frame header", "Reply frame header"}},
		{"ours without CRC", func(t *testing.T, w *pcap.Writer) { converse(t, w, iwarp.Options{NoCRC: true}) }, []string{"Send", "Write", "Terminate"}},
		{"ours of revision 1", func(t *testing.T, w *pcap.Writer) { converse(t, w, iwarp.Options{Revision: 1}) }, []string{"Send", "Write", "Terminate"}},
		{"the kernel's", kernelCapture, []string{"Send", "Request frame header", "Reply frame header"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "capture.pcap")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			w, err := pcap.NewWriter(f)
			if err != nil {
				t.Fatal(err)
			}
			row.capture(t, w)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			judge(t, path, row.want, strings.HasSuffix(row.name, "revision 1"))
		})
	}
}

// converse records what two nodes do: they connect, send, write, read, and one breaks a rule.
func converse(t *testing.T, w *pcap.Writer, opt iwarp.Options) {
	passive := newNodeAt(t, "127.0.0.65", opt)
	opt.Record = func(from, to netip.AddrPort, b []byte) {
		if err := w.Stream(from, to, b); err != nil {
			t.Error(err)
		}
	}
	active := newNodeAt(t, "127.0.0.64", opt)
	active.resolve(passive.at, 4)
	active.must(active.id.Connect(verbs.ConnParam{Private: []byte("private"), RetryCount: 1}))
	passive.accept(passive.event(verbs.EventConnectRequest), 4, []byte("answer"))
	active.event(verbs.EventEstablished)
	passive.event(verbs.EventEstablished)
	mr, err := passive.pd.RegMR(passive.mem, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	passive.must(err)

	write := active.wr(verbs.OpWrite, 1, 1<<20, 300_001)
	write.RemoteAddr, write.RKey = passive.addr(1<<20), mr.RKey()
	read := active.wr(verbs.OpRead, 2, 2<<20, 100_002)
	read.RemoteAddr, read.RKey = passive.addr(1<<20), mr.RKey()
	active.post(write, active.wr(verbs.OpSend, 3, 0, 61), active.wr(verbs.OpSend, 4, 0, 0), read)
	passive.completions(2)
	for _, wc := range active.completions(4) {
		if wc.Status != verbs.WCSuccess {
			t.Fatalf("%+v", wc)
		}
	}
	passive.post(passive.wr(verbs.OpSend, 5, 0, 4096))
	active.completions(1)
	wrong := write
	wrong.RKey ^= 0xff00
	wrong.SGE[0].Length = 7
	active.post(wrong)
	active.event(verbs.EventDisconnected)
	passive.event(verbs.EventDisconnected)
}

// kernelCapture is the connection of which vectors hold both streams.
func kernelCapture(t *testing.T, w *pcap.Writer) {
	a, p := stream(t, "active"), stream(t, "passive")
	ends := [2]netip.AddrPort{netip.MustParseAddrPort("10.77.0.1:1020"), netip.MustParseAddrPort("10.77.0.2:987")}
	ha, hp := 20+int(binary.BigEndian.Uint16(a[18:])), 20+int(binary.BigEndian.Uint16(p[18:]))
	for _, part := range []struct {
		from, to int
		b        []byte
	}{{0, 1, a[:ha]}, {1, 0, p[:hp]}, {0, 1, a[ha:]}, {1, 0, p[hp:]}} {
		if err := w.Stream(ends[part.from], ends[part.to], part.b); err != nil {
			t.Fatal(err)
		}
	}
}

// judge has tshark read a capture. What it says of higher protocols, which it guesses, is left out.
func judge(t *testing.T, path string, want []string, revision1 bool) {
	t.Helper()
	tshark := func(args ...string) string {
		t.Helper()
		var stderr bytes.Buffer
		cmd := exec.Command("tshark", append([]string{"-r", path, "--disable-protocol", "rpcordma"}, args...)...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tshark: %v\n%s%s", err, out, stderr.String())
		}
		return string(out)
	}
	tree := tshark("-V")
	for _, text := range want {
		if !strings.Contains(tree, text) {
			t.Errorf("tshark does not see %q", text)
		}
	}
	if n, good := strings.Count(tree, "CRC check:"), strings.Count(tree, "(Good CRC32)"); n != good {
		t.Errorf("tshark agrees with %d CRCs of %d", good, n)
	}
	const warning = 6291456
	out := tshark("-T", "fields", "-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.expert.severity", "-e", "_ws.expert.message", "-E", "occurrence=a", "-E", "separator=|", "-E", "aggregator=;")
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		fields := strings.SplitN(line, "|", 4)
		if len(fields) != 4 || fields[2] == "" {
			continue
		}
		severities, messages := strings.Split(fields[2], ";"), strings.Split(fields[3], ";")
		if len(severities) != len(messages) {
			t.Fatalf("tshark's line %q", line)
		}
		for i, text := range messages {
			var severity int
			if _, err := fmt.Sscan(severities[i], &severity); err != nil {
				t.Fatalf("tshark's line %q: %v", line, err)
			}
			switch {
			case severity < warning:
			case !revision1 && (strings.Contains(text, "Rev field is NOT set to one") || strings.Contains(text, "Res field is NOT set to zero")):
			default:
				t.Errorf("packet %s, %s: %s", fields[0], fields[1], text)
			}
		}
	}
}
