package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// maxProgramBytes, 23.5 MiB, bounds the program as releases for amd64 have it: without symbols, without
// HTTP/2, and with functions aligned to 4 bytes.
// The console is half a MiB of it. A type of a struct that slices.SortFunc sorts costs 20 KB;
// sort.Slice costs none.
const maxProgramBytes = 47 << 19

// The linker removes methods that are not called, unless a function of the program calls
// methods by names that it only knows when it runs; text/template is one that does. Then
// the linker keeps every exported method of every type that becomes an interface, 4 MB.
func TestProgramIsSmall(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "holdfast")
	build := exec.Command("go", "build", "-trimpath", "-tags", "nethttpomithttp2", "-ldflags", "-s -w -funcalign=4 -dumpdep", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := build.Start(); err != nil {
		t.Fatal(err)
	}
	var lines, callers int
	for scan := bufio.NewScanner(out); scan.Scan(); lines++ {
		// FROM -> TO <WHY>, where calls of reflect.Value.Method are a WHY.
		if from, _, by := strings.Cut(scan.Text(), " <ReflectMethod>"); by && callers < 10 {
			callers++
			t.Errorf("the linker keeps all methods, because of %s", from)
		}
	}
	if err := build.Wait(); err != nil {
		t.Fatal(err)
	}
	if lines < 10_000 {
		t.Errorf("the linker has told %d dependencies: does -dumpdep do what it did?", lines)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s/%s: %d bytes", runtime.GOOS, runtime.GOARCH, info.Size())
	if runtime.GOOS+"/"+runtime.GOARCH == "linux/amd64" && info.Size() > maxProgramBytes {
		t.Errorf("the program has %d bytes, want at most %d", info.Size(), maxProgramBytes)
	}
}
