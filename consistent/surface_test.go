package consistent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A key function for another type than the handler's message does not compile.
func TestWrongKeyFunctionDoesNotCompile(t *testing.T) {
	t.Parallel()
	const program = `package keys

import "github.com/holdfast-mqtt/holdfast/consistent"

type order struct{ ID string }

func handle(_ *consistent.Context, s int, m order) (int, []consistent.Message, error) { return s, nil, nil }

func register(p *consistent.Processor) {
	_ = consistent.Handle(p, "a", func(o order) string { return o.ID }, handle)                   // right
	_ = consistent.Handle(p, "b", func(s string) string { return s }, handle)                     // wrong
	_ = consistent.Handle(p, "c", func(o order) int { return 1 }, handle)                         // wrong
	_ = consistent.Handle(p, "d", func(m *consistent.Message) string { return "" }, handle)       // wrong
	_ = consistent.HandleByMessage(p, "e", func(m *consistent.Message) string { return "" }, handle) // right
	_ = consistent.HandleByMessage(p, "f", func(o order) string { return "" }, handle)            // wrong
}
`
	// The program stands in a package of this module that only the compiler sees.
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	source, overlay := filepath.Join(t.TempDir(), "keys.go"), filepath.Join(t.TempDir(), "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "keys", "keys.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{source: []byte(program), overlay: replace} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _ := exec.Command("go", "build", "-overlay", overlay, "-gcflags=-e", "./keys").CombinedOutput()
	var got, want []string
	for _, m := range regexp.MustCompile(`keys\.go:(\d+):`).FindAllStringSubmatch(string(out), -1) {
		got = append(got, m[1])
	}
	for i, line := range strings.Split(program, "\n") {
		if strings.HasSuffix(line, "// wrong") {
			want = append(want, fmt.Sprint(i+1))
		}
	}
	if !slices.Equal(slices.Compact(got), want) {
		t.Errorf("errors in the lines %v, want %v; the compiler says:\n%s", got, want, out)
	}
}

// Programs that use the client, leases or processors depend on no metrics library and no
// storage engine.
func TestDependencies(t *testing.T) {
	t.Parallel()
	const module = "github.com/holdfast-mqtt/holdfast/"
	out, err := exec.Command("go", "list", "-deps", module+"client", module+"client/lease", module+"consistent", module+"consistent/consistenttest").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range strings.Fields(string(out)) {
		for _, unwanted := range []string{"prometheus", "pebble", "cobra"} {
			if strings.Contains(p, unwanted) {
				t.Errorf("they depend on %s", p)
			}
		}
	}
}
