// Package decode is `o2ibd decode`: o2iblnd messages out of hex text and packet captures, as a table, as JSON
// lines or as YAML documents. It serves people with a dump in hand and no appliance; it keeps no state
// between runs, and all of a run belongs to the goroutine that called Run.
//
// # Input
//
// Hex: one message a line, or one message as the whole file over several lines. White space and colons inside
// a line, empty lines and what follows a # are ignored. Bytes with a reason in the place of
// a message's type are the private data of a reject, whole, cut or padded; bytes that begin with an MPA start-up
// frame are one direction of an iWARP stream.
//
// Captures, pcap and pcapng (package pcap says which link types):
//   - iWARP: MPA start-up of both revisions with its private data (CONNREQ, CONNACK, reject) and FPDUs without
//     markers, whose sends on queue 0 are put together; the CRC is checked where the start-up asked for it.
//     A stream whose start is not in the capture is joined at its first segment that begins with a message.
//   - RoCEv2: RC sends, put together from their packets, and the connection manager's REQ, REP and REJ.
//
// Not decoded: RDMA writes and reads and what they carry, MPA markers, RoCEv1 and InfiniBand link headers,
// the RoCE invariant CRC, IP fragments, and streams and queue pairs that carry something else than o2iblnd.
//
// A message with a wrong checksum is shown and marked (cksum_ok: bad), since the kernel sends such ones. What
// does not decode is left out of the output and named, by line or frame, in the error.
package decode

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"o2ibd/engine/wire"
	"o2ibd/engine/wire/pcap"
)

// ErrNothing means that the input was read and holds no o2iblnd message.
var ErrNothing = errors.New("no o2iblnd message in the input")

// maxNamed is how many failures an error names; the rest it counts.
const maxNamed = 20

// Failures is Run's error when something in the input did not decode and the rest went on.
type Failures struct {
	Decoded int     // messages that did
	Failed  int     // and what did not
	Named   []error // the first of these, each with its line or frame
}

// Error is one line.
func (f *Failures) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d messages failed to decode: ", f.Failed, f.Failed+f.Decoded)
	for i, err := range f.Named {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	if n := f.Failed - len(f.Named); n > 0 {
		fmt.Fprintf(&b, "; and %d more", n)
	}
	return b.String()
}

// Unwrap gives the causes, so that errors.Is finds the sentinels of packages wire and pcap.
func (f *Failures) Unwrap() []error { return f.Named }

// Run decodes r into w; format is table, json or yaml. What does not decode is skipped, and named in an
// error of type *Failures at the end; other errors are ErrNothing, an unknown format, and those of r and w.
func Run(r io.Reader, w io.Writer, format string) error {
	out := bufio.NewWriter(w)
	d := &decoder{}
	switch format {
	case "table":
		d.print = (&table{w: out}).row
	case "json":
		d.print = jsonPrinter(out)
	case "yaml":
		d.print = yamlPrinter(out)
	default:
		return fmt.Errorf("unknown format %q: table, json or yaml is allowed", format)
	}
	in := bufio.NewReader(r)
	head, err := in.Peek(4)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read: %w", err)
	case pcap.IsCapture(head):
		err = d.capture(in)
	default:
		err = d.hex(in)
	}
	if err == nil {
		err = d.writeErr
	}
	if flush := out.Flush(); err == nil && flush != nil {
		err = fmt.Errorf("write: %w", flush)
	}
	switch {
	case err != nil:
		return err
	case d.failures.Failed > 0:
		return &d.failures
	case d.failures.Decoded == 0:
		return ErrNothing
	}
	return nil
}

// decoder is one run.
type decoder struct {
	print    func(any) error // a *message or a *reject
	msg      wire.Msg
	failures Failures
	writeErr error
	unit     string // what at counts: line or frame
	at       int
}

// fail notes what did not decode where the input stands now; of says in which flow, if in any.
func (d *decoder) fail(of string, err error) {
	d.failures.Failed++
	if len(d.failures.Named) == maxNamed {
		return
	}
	if of != "" {
		err = fmt.Errorf("%s: %w", of, err)
	}
	d.failures.Named = append(d.failures.Named, fmt.Errorf("%s %d: %w", d.unit, d.at, err))
}

func (d *decoder) emit(v any) {
	if err := d.print(v); err != nil && d.writeErr == nil {
		d.writeErr = fmt.Errorf("write: %w", err)
	}
	d.failures.Decoded++
}

// message decodes and prints one message.
func (d *decoder) message(of string, b []byte) {
	if err := d.msg.Parse(b); err != nil {
		d.fail(of, err)
		return
	}
	d.emit(newMessage(&d.msg, wire.Verify(b)))
}

// reject decodes and prints the private data of a refused connection.
func (d *decoder) reject(of string, b []byte) {
	r, err := wire.ParseReject(b)
	if err != nil {
		d.fail(of, err)
		return
	}
	d.emit(newReject(&r))
}

// isOurs tells whether bytes begin with the magic of o2iblnd, in either order.
func isOurs(b []byte) bool { return hasMagic(b, wire.Magic) }

func hasMagic(b []byte, magic uint32) bool {
	return len(b) >= 4 && (binary.LittleEndian.Uint32(b) == magic || binary.BigEndian.Uint32(b) == magic)
}
