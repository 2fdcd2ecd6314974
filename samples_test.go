package holdfast_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGoBlocksOfThePages compiles the Go code of the pages. A block that is not a program
// is the body of a function, with what the page takes for granted around it.
func TestGoBlocksOfThePages(t *testing.T) {
	t.Parallel()
	const imports = `package samples

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

var (
	_ = time.Second
	_ = fmt.Errorf
	_ lease.Option
	_ txn.Write
	_ consistent.Option
	_ client.Option
)

`
	frames := map[string][2]string{
		"docs/locks.md":                {"func locks(ctx context.Context, c *client.Client, job []byte) error {\n", "\n\treturn err\n}\n"},
		"docs/transactions.md":         {"func transactions(ctx context.Context, c *client.Client, s *client.Session) error {\n", "\n\treturn err\n}\n"},
		"docs/consistent-messaging.md": {"type (\n\tRange  struct{}\n\tFireAt struct{ GameID string }\n)\n\nfunc messaging(ctx context.Context) error {\n", "}\n"},
	}
	// programs are pages whose first block is a whole program, which another test builds:
	// TestFromGo, and TestAzureSDKsPage in interop.
	programs := map[string]bool{"docs/go.md": true, "docs/azure-sdks.md": true}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace, temp := make(map[string]string), t.TempDir()
	for _, page := range filesOf(t, ".md") {
		for i, block := range strings.Split("\n"+textOf(t, page), "\n```go\n")[1:] {
			code, _, _ := strings.Cut(block, "\n```")
			if strings.HasPrefix(code, "package main") && programs[page] {
				continue
			}
			frame, known := frames[page]
			if !known || i > 0 {
				t.Errorf("%s has Go code that this test does not know: add what stands around it", page)
				continue
			}
			file := filepath.Join(temp, strings.ReplaceAll(page, "/", "_")+".go")
			if err := os.WriteFile(file, []byte(imports+frame[0]+code+frame[1]), 0o600); err != nil {
				t.Fatal(err)
			}
			replace[filepath.Join(dir, "samples", filepath.Base(file))] = file
		}
	}
	if len(replace) != len(frames) {
		t.Errorf("found the code of %d pages, want %d", len(replace), len(frames))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(temp, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-overlay", filepath.Join(temp, "overlay.json"), "./samples").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoDocDropsTwoResults keeps a call that drops two results out of the documentation:
// one of them would be worth looking at.
func TestNoDocDropsTwoResults(t *testing.T) {
	t.Parallel()
	files := filesOf(t, ".md")
	for _, file := range filesOf(t, ".go") {
		if name := filepath.Base(file); name == "doc.go" || name == "example_test.go" {
			files = append(files, file)
		}
	}
	for _, file := range files {
		for _, code := range []string{"_, _, err =", "_, _, err :="} {
			if strings.Contains(textOf(t, file), code) {
				t.Errorf("%s has %q", file, code)
			}
		}
	}
}
