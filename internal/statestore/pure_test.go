package statestore

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The rules, those of TXN included, do no I/O, read no clock, lock nothing and start nothing: they
// import no package that can, and have no statement that does.
func TestTheRulesArePure(t *testing.T) {
	t.Parallel()
	const module = "github.com/holdfast-mqtt/holdfast/"
	pure := []string{
		"bytes", "cmp", "encoding/base64", "encoding/binary", "errors", "hash/crc64", "hash/maphash", "math", "slices", "strings", "unicode/utf8",
		module + "hlc", module + "internal/statestore", module + "internal/statestore/glob",
	}
	for _, dir := range []string{".", "glob", "txn"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range parsed.Imports {
				if name, _ := strconv.Unquote(i.Path.Value); !slices.Contains(pure, name) {
					t.Errorf("%s imports %s", file, name)
				}
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
					t.Errorf("%s has a %T", file, n)
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "hlc" && strings.Contains(n.Sel.Name, "Clock") {
						t.Errorf("%s has hlc.%s", file, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}
