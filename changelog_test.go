package holdfast_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// directories has the packages that CHANGELOG.md names.
var directories = map[string]string{
	"client":         "client",
	"lease":          "client/lease",
	"consistent":     "consistent",
	"consistenttest": "consistent/consistenttest",
	"consistentprom": "consistent/consistentprom",
	"hlc":            "hlc",
}

// TestChangelogNames finds each new name that CHANGELOG.md gives for an old one in its
// package, and no old name there, unless the row says that it has another meaning now.
func TestChangelogNames(t *testing.T) {
	t.Parallel()
	exported := make(map[string]bool)
	for name, dir := range directories {
		maps.Copy(exported, exportedNames(t, name, dir))
	}
	name := regexp.MustCompile(`\b(?:` + strings.Join(slices.Sorted(maps.Keys(directories)), "|") + `)(?:\.[A-Z]\w*)+`)
	rows, names := 0, 0
	for i, line := range strings.Split(textOf(t, "CHANGELOG.md"), "\n") {
		columns := strings.Split(strings.Trim(line, "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			columns = []string{"", line} // prose: it only has names that exist
		case len(columns) != 2:
			t.Errorf("line %d: a row has two columns: %s", i+1, line)
			continue
		default:
			rows++
		}
		now := name.FindAllString(columns[1], -1)
		for _, n := range now {
			names++
			if !exported[n] {
				t.Errorf("line %d names %s, which does not exist", i+1, n)
			}
		}
		for _, n := range name.FindAllString(columns[0], -1) {
			if exported[n] && !slices.Contains(now, n) {
				t.Errorf("line %d calls %s an old name: it exists, and the row does not say what it is now", i+1, n)
			}
		}
	}
	if rows < 40 || names < 60 {
		t.Errorf("found %d rows with %d new names, there are more", rows, names)
	}
}

// exportedNames has "package.Name" of everything that a package exports, and
// "package.Type.Name" of methods and fields.
func exportedNames(t *testing.T, name, dir string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	note := func(words ...string) {
		for _, w := range words {
			if !ast.IsExported(w) {
				return
			}
		}
		found[name+"."+strings.Join(words, ".")] = true
	}
	files := filesOf(t, ".go")
	set := token.NewFileSet()
	for _, file := range files {
		if rest, ok := strings.CutPrefix(file, dir+"/"); !ok || strings.Contains(rest, "/") || strings.HasSuffix(rest, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					note(d.Name.Name)
				} else {
					note(typeName(d.Recv.List[0].Type), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							note(n.Name)
						}
					case *ast.TypeSpec:
						note(spec.Name.Name)
						for _, member := range members(spec.Type) {
							note(spec.Name.Name, member)
						}
					}
				}
			}
		}
	}
	return found
}

// members are the fields of a struct, or the methods of an interface.
func members(t ast.Expr) (names []string) {
	var list *ast.FieldList
	switch t := t.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return nil
	}
	for _, f := range list.List {
		for _, n := range f.Names {
			names = append(names, n.Name)
		}
		if len(f.Names) == 0 {
			names = append(names, typeName(f.Type)) // embedded
		}
	}
	return names
}

func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.SelectorExpr:
		return t.Sel.Name
	}
	return ""
}
