package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
)

// jsonPrinter writes one object a line.
func jsonPrinter(w io.Writer) func(any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode
}

// yamlPrinter writes one document a message, with the keys and their order that JSON has.
func yamlPrinter(w io.Writer) func(any) error {
	var b bytes.Buffer
	toJSON := jsonPrinter(&b)
	return func(v any) error {
		b.Reset()
		if err := toJSON(v); err != nil {
			return err
		}
		y, err := yaml.JSONToYAML(b.Bytes())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "---\n%s", y)
		return err
	}
}

// table writes one line a message, without stamps and fragments, for which there are the other formats.
type table struct {
	w      io.Writer
	headed bool
}

const rowFormat = "%-9s  %-4s  %-3s  %-4s  %-8s  %-20s  %-20s  %s\n"

func (t *table) row(v any) error {
	if !t.headed {
		t.headed = true
		if _, err := fmt.Fprintf(t.w, rowFormat, "TYPE", "VER", "CR", "NOB", "CKSUM", "FROM", "TO", "BODY"); err != nil {
			return err
		}
	}
	var cells [7]any
	var body []string
	switch r := v.(type) {
	case *message:
		cells = [7]any{r.Type, opaque(r.Version), fmt.Sprint(r.Credits), fmt.Sprint(r.Nob), r.CksumOK, r.SrcNID, r.DstNID}
		body = r.body()
	case *reject:
		cells = [7]any{r.Type, opaque(r.Version), "-", "-", "-", "-", "-"}
		body = append(body, fmt.Sprintf("why %d (%s)", r.Why, r.WhyName))
		if r.Incarnation != nil {
			body = append(body, "incarnation "+r.Incarnation.String(), r.params.String())
		}
	}
	_, err := fmt.Fprintf(t.w, rowFormat, append(cells[:], orDash(strings.Join(body, ", ")))...)
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (p *params) String() string {
	return fmt.Sprintf("depth %d, frags %d, size %d", p.QueueDepth, p.MaxFrags, p.MaxMsgSize)
}

// body says in words what stands behind the header.
func (r *message) body() []string {
	var b []string
	add := func(format string, args ...any) { b = append(b, fmt.Sprintf(format, args...)) }
	if r.params != nil {
		b = append(b, r.params.String())
	}
	if h := r.LNet; h != nil {
		add("%s", h.Type)
		if h.Portal != nil {
			add("portal %d", *h.Portal)
		}
		if h.MatchBits != nil {
			add("match %v", *h.MatchBits)
		}
		if h.Offset != nil && *h.Offset != 0 {
			add("offset %d", *h.Offset)
		}
		if h.Length != nil {
			add("length %d", *h.Length)
		}
		if h.PayloadLength != 0 {
			add("payload %d", h.PayloadLength)
		}
		if r.DstNID != h.DestNID || r.SrcNID != h.SrcNID {
			add("routed from %v to %v", h.SrcNID, h.DestNID)
		}
	}
	if r.Cookie != nil {
		add("cookie %v", *r.Cookie)
	}
	if r.SrcCookie != nil {
		add("cookies %v %v", *r.SrcCookie, *r.DstCookie)
	}
	if r.Status != nil {
		add("status %d", *r.Status)
	}
	if d := r.descriptor; d != nil {
		total := uint64(0)
		for _, f := range d.Frags {
			total += uint64(f.Nob)
		}
		add("key %v, %d bytes in %d fragment%s", d.RKey, total, d.NFrags, plural(d.NFrags))
	}
	return b
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
