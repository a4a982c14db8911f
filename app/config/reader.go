package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"o2ibd/engine/tunables"
)

// Bounds of a file. The YAML parser calls itself once a level, so a bound on the depth is a bound on
// the stack.
const (
	maxFile  = 1 << 20 // bytes
	maxDepth = 32
)

// reader walks one file.
type reader struct {
	file    string
	cfg     Config
	lines   map[tunables.Scoped]int // where each tunable was set
	ignored []string                // keys of an export that we do not use
}

// keys maps each known key of a mapping to what reads its value.
type keys map[string]func(v ast.Node) error

// document gives the root of the only document, nil when the file holds nothing.
func (r *reader) document(src []byte) (ast.Node, error) {
	if len(src) > maxFile {
		return nil, fmt.Errorf("%s: %d bytes: a configuration has at most %d", r.file, len(src), maxFile)
	}
	tokens := lexer.Tokenize(string(src))
	if line := tooDeep(tokens); line > 0 {
		return nil, r.errorf(line, "nested deeper than %d levels", maxDepth)
	}
	f, err := parser.Parse(tokens, 0)
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return nil, r.errorf(at.GetToken().Position.Line, "not valid YAML: %s", at.GetMessage())
		}
		return nil, fmt.Errorf("%s: not valid YAML: %s", r.file, firstLine(err.Error()))
	}
	var root ast.Node
	for _, doc := range f.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType:
		case root != nil:
			return nil, r.errorf(line(doc.Body), "a second document: a configuration is one")
		default:
			root = doc.Body
		}
	}
	return root, nil
}

// tooDeep gives the line where the nesting passes the bound, 0 where it never does. Levels of block style
// are counted by their columns, levels of flow style by their brackets.
func tooDeep(tokens token.Tokens) int {
	var columns []int // of the open block levels
	flow := 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingValueType, token.MappingKeyType, token.TagType, token.AnchorType:
			if flow > 0 {
				continue
			}
			column := t.Position.Column
			if t.Type == token.MappingValueType && t.Prev != nil {
				column = t.Prev.Position.Column
			}
			for len(columns) > 0 && columns[len(columns)-1] >= column {
				columns = columns[:len(columns)-1]
			}
			columns = append(columns, column)
		}
		if flow+len(columns) > maxDepth {
			return t.Position.Line
		}
	}
	return 0
}

// mapping reads the keys of n in the file's order. what names n in errors.
func (r *reader) mapping(n ast.Node, what string, known keys) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		return r.errorf(line(n), "%s is %s: keys and values are wanted", what, kind(n))
	}
	seen := make(map[string]bool)
	for it := m.MapRange(); it.Next(); {
		name, at := it.Key().GetToken().Value, line(it.Key())
		read, ok := known[name]
		switch {
		case !ok:
			return r.errorf(at, "unknown key %q in %s%s", name, what, nearest(name, known))
		case seen[name]:
			return r.errorf(at, "key %q stands in %s twice", name, what)
		}
		seen[name] = true
		if err := read(it.Value()); err != nil {
			return err
		}
	}
	return nil
}

// sequence reads the elements of n.
func (r *reader) sequence(n ast.Node, what string, read func(ast.Node) error) error {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		return r.errorf(line(n), "%s is %s: a list is wanted", what, kind(n))
	}
	for _, v := range s.Values {
		if err := read(v); err != nil {
			return err
		}
	}
	return nil
}

// text reads a single value as it is written, without quotes.
func (r *reader) text(n ast.Node, what string) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	}
	return "", r.errorf(line(n), "%s is %s: a single value is wanted", what, kind(n))
}

func (r *reader) setText(to *string, what string) func(ast.Node) error {
	return func(n ast.Node) (err error) {
		*to, err = r.text(n, what)
		return err
	}
}

func (r *reader) setBool(to *bool, what string) func(ast.Node) error {
	return func(n ast.Node) error {
		b, ok := n.(*ast.BoolNode)
		if !ok {
			return r.errorf(line(n), "%s is %s: true or false is wanted", what, kind(n))
		}
		*to = b.Value
		return nil
	}
}

// ignore reads nothing and remembers the key, once.
func (r *reader) ignore(key string) func(ast.Node) error {
	return func(ast.Node) error {
		if !slices.Contains(r.ignored, key) {
			r.ignored = append(r.ignored, key)
		}
		return nil
	}
}

func (r *reader) notice(format string, args ...any) {
	r.cfg.Notices = append(r.cfg.Notices, fmt.Sprintf(format, args...))
}

func (r *reader) errorf(line int, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…" // what it quotes may be as long as the file
	}
	return fmt.Errorf("%s:%d: %s", r.file, line, text)
}

// longest is how many bytes of an error are shown.
const longest = 500

func line(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

// kind names a node for an error.
func kind(n ast.Node) string {
	switch n := n.(type) {
	case *ast.NullNode:
		return "empty"
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return "an anchor, alias or tag"
	default:
		return fmt.Sprintf("%q", firstLine(n.GetToken().Value))
	}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// nearest words the known key that is closest to name, or lists them where none is close.
func nearest(name string, known keys) string {
	best, distance := "", len(name)/2+1
	for _, k := range sorted(known) {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return "; known are " + strings.Join(sorted(known), ", ")
	}
	return fmt.Sprintf("; the nearest known key is %q", best)
}

func sorted(known keys) []string {
	list := make([]string, 0, len(known))
	for k := range known {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// editDistance is the number of bytes to insert, delete or change to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
