package decode

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"o2ibd/engine/wire"
)

// maxText is the largest hex input, in bytes.
const maxText = 64 << 20

// hexLine is a line that has hex digits on it.
type hexLine struct {
	number int
	bytes  []byte
	err    error // why it is no hex
}

// hex decodes text: each line for itself, or all lines as one message.
func (d *decoder) hex(r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if len(text) > maxText {
		return fmt.Errorf("more than %d MiB of text: split it", maxText>>20)
	}
	d.unit = "line"
	lines := parseLines(text)
	if whole := joined(lines); whole != nil {
		d.at = lines[0].number
		d.bytes(whole)
		return nil
	}
	for _, l := range lines {
		d.at = l.number
		if l.err != nil {
			d.fail("", l.err)
			continue
		}
		d.bytes(l.bytes)
	}
	return nil
}

// bytes decodes what hex text held: a stream, a reject or a message.
func (d *decoder) bytes(b []byte) {
	switch {
	case isStartUp(b):
		s := stream{d: d, conn: new(connection), state: atStart}
		s.feed(b)
		s.end()
	case isReject(b):
		d.reject("", b)
	default:
		d.message("", b)
	}
}

// isReject tells a reject's private data from a message: where a message has its type, a reject says why. It may
// be shorter than it should be, as version 1 sent it, or padded, as InfiniBand hands it over.
func isReject(b []byte) bool {
	if len(b) < 7 || !isOurs(b) && !hasMagic(b, wire.LNetProtoMagic) {
		return false
	}
	why := wire.RejectReason(b[6])
	return why >= wire.RejectConnRace && why <= wire.RejectEarly || len(b) == wire.RejectSize && b[6] < byte(wire.MsgConnReq)
}

// parseLines reads text, which it overwrites.
func parseLines(text []byte) []hexLine {
	var lines []hexLine
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if i := bytes.IndexByte(line, '#'); i >= 0 {
			line = line[:i]
		}
		digits := slices.DeleteFunc(line, func(c byte) bool { return bytes.IndexByte([]byte(" \t\r\n\v\f:"), c) >= 0 })
		if len(digits) == 0 {
			continue
		}
		b := make([]byte, hex.DecodedLen(len(digits)))
		_, err := hex.Decode(b, digits)
		var invalid hex.InvalidByteError
		switch {
		case errors.As(err, &invalid):
			err = fmt.Errorf("not hex: %q", byte(invalid))
		case err != nil:
			err = fmt.Errorf("not hex: an odd number of digits, %d", len(digits))
		}
		lines = append(lines, hexLine{number, b, err})
	}
	return lines
}

// joined gives all lines as one piece when that is what they are, else nil: the first begins a message,
// reject or stream and is not all of it, the lines together are, with nothing but padding behind, and no other
// line begins one.
func joined(lines []hexLine) []byte {
	if len(lines) < 2 {
		return nil
	}
	var all []byte
	for i, l := range lines {
		if l.err != nil || i > 0 && (isOurs(l.bytes) && !isStartUp(all) || isStartUp(l.bytes)) {
			return nil
		}
		all = append(all, l.bytes...)
	}
	if isStartUp(all) {
		return all
	}
	n := wire.RejectSize
	if !isReject(all) {
		var m wire.Msg
		_ = m.Parse(all) // whatever else is wrong with it is told when it is decoded
		n = int(m.Nob)
	}
	if len(lines[0].bytes) < n && n <= len(all) && len(bytes.TrimRight(all[n:], "\x00")) == 0 {
		return all
	}
	return nil
}
