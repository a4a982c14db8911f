package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxLine is the longest line that is redacted as a whole, in bytes. A longer one is dropped: half of it
// could end inside a name.
const maxLine = 4 << 20

// plain are words that are names of accounts or hosts everywhere, tell nothing, and stand for other things
// in the files.
var plain = []string{"admin", "root", "viewer", "operator", "system", "localhost", "demo", "o2ibd", "nobody", "cli"}

// Redactor replaces addresses and the names it was told by pseudonyms. The same thing gets the same
// pseudonym throughout one bundle, addresses in the order in which they first appear, so that NIDs stay
// NIDs and what belongs together stays together. It belongs to one goroutine.
type Redactor struct {
	names   map[string]string
	pattern *regexp.Regexp // of all names, nil without one
	v4, v6  map[netip.Addr]string
	macs    map[string]string
}

var (
	v4Pattern  = regexp.MustCompile(`\d{1,3}(?:\.\d{1,3}){3}`)
	v6Pattern  = regexp.MustCompile(`(?i)[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:\d{0,3}(?:\.\d{1,3}){3})?(?:%[0-9a-z._-]+)?`)
	macPattern = regexp.MustCompile(`(?i)\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?:(?::[0-9a-f]{2}){14})?\b`)
)

// NewRedactor makes a redactor for these names of hosts and people. A host's short name counts too.
func NewRedactor(hosts, users []string) *Redactor {
	r := &Redactor{
		names: make(map[string]string),
		v4:    make(map[netip.Addr]string), v6: make(map[netip.Addr]string), macs: make(map[string]string),
	}
	add := func(name, pseudonym string) {
		name = strings.ToLower(name)
		if _, known := r.names[name]; name != "" && !known && !slices.Contains(plain, name) {
			r.names[name] = pseudonym
		}
	}
	for i, h := range hosts {
		pseudonym := fmt.Sprintf("host-%d", i+1)
		add(h, pseudonym)
		if short, _, ok := strings.Cut(h, "."); ok {
			add(short, pseudonym)
		}
	}
	for i, u := range users {
		add(u, fmt.Sprintf("user-%d", i+1))
	}
	if len(r.names) > 0 {
		var quoted []string
		for name := range r.names {
			quoted = append(quoted, regexp.QuoteMeta(name))
		}
		// The longest first: node1.example.com before node1.
		slices.SortFunc(quoted, func(a, b string) int { return len(b) - len(a) })
		r.pattern = regexp.MustCompile(`(?i)(?:` + strings.Join(quoted, "|") + `)`)
	}
	return r
}

// Text replaces addresses and names in s.
func (r *Redactor) Text(s string) string { return r.words(r.Addresses(s)) }

// Addresses replaces addresses only.
func (r *Redactor) Addresses(s string) string {
	s = replaceWords(s, macPattern, func(m string) string {
		return pseudonym(r.macs, strings.ToLower(m), func(n int) string { return fmt.Sprintf("02:00:00:00:%02x:%02x", n>>8&0xff, n&0xff) })
	})
	s = replaceWords(s, v6Pattern, func(m string) string {
		addr, err := netip.ParseAddr(m)
		if err != nil || addr.IsUnspecified() {
			return m
		}
		return pseudonym(r.v6, addr, func(n int) string { return fmt.Sprintf("2001:db8::%x:%x", n>>16, n&0xffff) })
	})
	return replaceWords(s, v4Pattern, func(m string) string {
		addr, err := netip.ParseAddr(m)
		if err != nil || addr.IsUnspecified() {
			return m
		}
		// The range that RFC 2544 keeps for tests, and on into the next one after 65534 addresses.
		return pseudonym(r.v4, addr, func(n int) string {
			return netip.AddrFrom4([4]byte{198, 18 + byte(n>>16), byte(n >> 8), byte(n)}).String()
		})
	})
}

func (r *Redactor) words(s string) string {
	if r.pattern == nil {
		return s
	}
	return replaceWords(s, r.pattern, func(m string) string { return r.names[strings.ToLower(m)] })
}

func pseudonym[K comparable](known map[K]string, key K, make func(n int) string) string {
	p, ok := known[key]
	if !ok {
		p = make(len(known) + 1)
		known[key] = p
	}
	return p
}

// replaceWords replaces the matches that are not parts of longer words.
func replaceWords(s string, pattern *regexp.Regexp, replace func(string) string) string {
	var b strings.Builder
	last := 0
	for _, m := range pattern.FindAllStringIndex(s, -1) {
		if inWord(s, m[0], m[1]) {
			continue
		}
		b.WriteString(s[last:m[0]])
		b.WriteString(replace(s[m[0]:m[1]]))
		last = m[1]
	}
	if last == 0 {
		return s
	}
	b.WriteString(s[last:])
	return b.String()
}

func inWord(s string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:start])
	after, _ := utf8.DecodeRuneInString(s[end:])
	return wordRune(before) || wordRune(after)
}

func wordRune(r rune) bool {
	return r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r >= 0x80 && r != utf8.RuneError
}

// writer redacts what goes to w, line by line in the manner of the file's ending. Without a redactor it
// is w itself.
func (r *Redactor) writer(w io.Writer, ext string) (io.Writer, func() error) {
	if r == nil {
		return w, func() error { return nil }
	}
	line := r.Text
	switch ext {
	case ".json", ".jsonl":
		line = r.jsonLine
	case ".yaml":
		line = r.yamlLine
	}
	l := &lineWriter{w: w, line: line}
	return l, l.flush
}

// jsonLine keeps names in keys, so that a person called "peer" does not change the shape. A line of JSON
// never ends inside a string.
func (r *Redactor) jsonLine(s string) string {
	var b strings.Builder
	for s != "" {
		start := strings.IndexByte(s, '"')
		if start < 0 {
			b.WriteString(s)
			break
		}
		end := start + 1
		for end < len(s) && s[end] != '"' {
			if s[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(s))
		b.WriteString(s[:start])
		redact := r.Text
		if strings.HasPrefix(strings.TrimLeft(s[end:], " "), ":") {
			redact = r.Addresses
		}
		b.WriteString(jsonString(s[start:end], redact))
		s = s[end:]
	}
	return b.String()
}

// jsonString redacts what a string literal means: escapes such as \n would hide where a word begins.
func jsonString(literal string, redact func(string) string) string {
	var text string
	if err := json.Unmarshal([]byte(literal), &text); err != nil {
		return redact(literal)
	}
	redacted := redact(text)
	if redacted == text {
		return literal
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(redacted); err != nil {
		return redact(literal)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (r *Redactor) yamlLine(s string) string {
	if key, value, ok := strings.Cut(s, ": "); ok {
		return r.Addresses(key) + ": " + r.Text(value)
	}
	return r.Text(s)
}

type lineWriter struct {
	w    io.Writer
	line func(string) string
	rest []byte
	skip bool // inside a line that is too long
}

func (l *lineWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		whole := i >= 0
		piece := b
		if whole {
			piece = b[:i+1]
		}
		b = b[len(piece):]
		if !l.skip {
			l.rest = append(l.rest, piece...)
		}
		if len(l.rest) > maxLine {
			l.rest, l.skip = append(l.rest[:0], "(a line too long to redact was left out)\n"...), true
		}
		if whole {
			l.skip = false
			if err := l.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (l *lineWriter) flush() error {
	if len(l.rest) == 0 {
		return nil
	}
	_, err := io.WriteString(l.w, l.line(string(l.rest)))
	l.rest = l.rest[:0]
	return err
}
