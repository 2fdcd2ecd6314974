package lockrank

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// checked are the packages of the server, whose locks all have a place.
var checked = []string{"audit", "auth/throttle", "bridge", "broker", "broker/acks", "broker/delayed", "broker/message", "broker/peer", "broker/principals", "broker/queue", "broker/registry", "broker/relief", "broker/retained", "broker/routing", "broker/session", "broker/share", "broker/timers", "datadir", "engine", "engine/unapplied", "fronts", "journal", "memory", "mux", "protocol", "replica/clients", "replica/node", "replica/raftlog", "replica/relay", "replica/transport", "server", "service", "slab", "statestore", "topic", "transport", "transport/sockets", "wal", "webhook"}

// The order names each lock by its package, type and field, and there are no others.
func TestTheOrderNamesTheLocksOfTheServer(t *testing.T) {
	t.Parallel()
	listed := map[string]string{} // by place, the name in the order
	for _, e := range order {
		place := reflect.TypeOf(e.place).Name()
		if other, twice := listed[place]; twice {
			t.Errorf("%s and %s have the same place", e.name, other)
		}
		listed[place] = e.name
	}
	used := map[string]bool{}
	for _, pkg := range checked {
		for name, place := range locksIn(t, pkg) {
			if place == "" {
				t.Errorf("%s is a mutex of package sync: give it a place in internal/lockrank/order.go", name)
			} else if listed[place] != name {
				t.Errorf("%s has the place %s, which the order calls %q", name, place, listed[place])
			}
			used[place] = true
		}
	}
	for place, name := range listed {
		if !used[place] {
			t.Errorf("there is no lock %s, which the order has as %s", name, place)
		}
	}
}

// locksIn gives the fields of a package's structs that are mutexes, by package, type
// and field, with their places; "" for those of package sync.
func locksIn(t *testing.T, pkg string) map[string]string {
	files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	locks := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, isType := n.(*ast.TypeSpec)
			if !isType {
				return true
			}
			ast.Inspect(spec, func(n ast.Node) bool {
				if field, isField := n.(*ast.Field); isField {
					if place, is := placeIn(field.Type); is {
						for _, name := range field.Names {
							locks[path.Base(pkg)+"."+spec.Name.Name+"."+name.Name] = place
						}
					}
				}
				return true
			})
			return false
		})
	}
	return locks
}

// placeIn gives the place of a mutex, or of an array of them.
func placeIn(x ast.Expr) (place string, is bool) {
	switch x := x.(type) {
	case *ast.ArrayType:
		return placeIn(x.Elt)
	case *ast.IndexExpr: // lockrank.Mutex[lockrank.P]
		if p, named := x.Index.(*ast.SelectorExpr); named && isMutex(x.X, "lockrank") {
			return p.Sel.Name, true
		}
	case *ast.SelectorExpr:
		return "", isMutex(x, "sync")
	}
	return "", false
}

func isMutex(x ast.Expr, pkg string) bool {
	s, ok := x.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Mutex" && s.Sel.Name != "RWMutex" {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == pkg
}

func TestPlacesOfSeveralLocksAreInTheOrder(t *testing.T) {
	t.Parallel()
	for _, place := range several {
		if !slices.ContainsFunc(order, func(e entry) bool { return e.place == place }) {
			t.Errorf("%T is not in the order", place)
		}
	}
}
