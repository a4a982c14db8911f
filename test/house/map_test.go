package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tree is what the module's Go files declare.
type tree struct {
	symbols map[string]bool // package.Name, package.Type.Field, package.Type.Method
	tests   map[string]bool // Test… and Fuzz… functions
}

func readTree(t *testing.T, root string) tree {
	t.Helper()
	d := tree{make(map[string]bool), make(map[string]bool)}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name := e.Name(); path != root && (name == "node_modules" || name == "testdata" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		d.add(f, strings.HasSuffix(path, "_test.go"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *tree) add(f *ast.File, test bool) {
	if test {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
				d.tests[fn.Name.Name] = true
			}
		}
		return
	}
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				name = receiver(decl.Recv.List[0].Type) + "." + name
			}
			d.symbols[f.Name.Name+"."+name] = true
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				d.spec(f.Name.Name, spec)
			}
		}
	}
}

func (d *tree) spec(pkg string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			d.symbols[pkg+"."+n.Name] = true
		}
	case *ast.TypeSpec:
		name := pkg + "." + spec.Name.Name
		d.symbols[name] = true
		var members *ast.FieldList
		switch typ := spec.Type.(type) {
		case *ast.StructType:
			members = typ.Fields
		case *ast.InterfaceType:
			members = typ.Methods
		default:
			return
		}
		for _, m := range members.List {
			for _, n := range m.Names {
				d.symbols[name+"."+n.Name] = true
			}
		}
	}
}

// receiver is the name of a method's type, without pointer and type parameters.
func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}

var quoted = regexp.MustCompile("`([^`]+)`")

func names(cell string) []string {
	var list []string
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		list = append(list, m[1])
	}
	return list
}

// TestMap: docs/o2iblnd-map.md has a row for every identifier of the kernel's header, and what a row says
// is there.
func TestMap(t *testing.T) {
	text, err := os.ReadFile("testdata/identifiers.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(text))
	page, err := os.ReadFile("../../docs/o2iblnd-map.md")
	if err != nil {
		t.Fatal(err)
	}
	have := readTree(t, "../..")
	var got []string
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 {
			t.Errorf("not three columns: %s", line)
			continue
		}
		id := strings.Trim(cells[1], " `")
		got = append(got, id)
		symbols, shown := names(cells[2]), names(cells[3])
		switch here := strings.TrimSpace(cells[2]); {
		case here == "none":
			if why := strings.TrimSpace(cells[3]); len(strings.Fields(why)) < 4 {
				t.Errorf("%s: %q is no reason", id, why)
			}
		case len(symbols) == 0 || len(shown) == 0:
			t.Errorf("%s has %d symbols and %d tests", id, len(symbols), len(shown))
		default:
			for _, s := range symbols {
				if !have.symbols[s] {
					t.Errorf("%s: there is no %s", id, s)
				}
			}
			for _, s := range shown {
				if !have.tests[s] {
					t.Errorf("%s: there is no test %s", id, s)
				}
			}
		}
	}
	slices.Sort(got)
	for i, id := range got {
		if i > 0 && got[i-1] == id {
			t.Errorf("%s has two rows", id)
		}
		if !slices.Contains(want, id) {
			t.Errorf("%s is no identifier of the header", id)
		}
	}
	for _, id := range want {
		if !slices.Contains(got, id) {
			t.Errorf("%s has no row", id)
		}
	}
	t.Logf("%d identifiers", len(got))
}
