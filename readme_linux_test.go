// Package holdfast_test checks the pages against the program: it runs their commands,
// and follows their links and the citations of them in the code.
package holdfast_test

import (
	"bufio"
	"debug/elf"
	"fmt"
	"go/parser"
	"go/token"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/terminal"
)

// TestREADME types the README's sessions into a shell, in one checkout of its
// own, and compares what comes out, line by line. One thing differs from a
// newcomer's machine: `go` and `./holdfast` are wrapped so that the server gets
// free ports instead of 1883 and 9090.
func TestREADME(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash here")
	}
	sessions := consoleBlocks(t, "README.md")
	if len(sessions) < 3 {
		t.Fatalf("found %d sessions in the README, there are more", len(sessions))
	}
	sh := startShell(t, "README.md")
	for _, session := range sessions {
		for _, step := range session {
			if strings.Contains(step.command, "mosquitto") && !haveMosquitto() {
				t.Logf("not run here: %s", step.command)
				continue
			}
			sh.run(step)
		}
	}
}

// TestQuickStart types the sessions of docs/quick-start.md into a shell, as TestREADME does
// with those of the README. The server that is killed is the real one.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash here")
	}
	const page = "docs/quick-start.md"
	sessions := consoleBlocks(t, page)
	if len(sessions) < 8 {
		t.Fatalf("found %d sessions in %s, there are more", len(sessions), page)
	}
	sh := startShell(t, page)
	for _, session := range sessions {
		for _, step := range session {
			sh.run(step)
		}
	}
}

// TestCONTRIBUTING runs the commands of CONTRIBUTING.md in a copy of the checkout, but
// for those that run tests. After the fork has changed the module's path every import
// must still resolve.
func TestCONTRIBUTING(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash here")
	}
	dir := t.TempDir()
	copyCheckout(t, dir)
	sessions := consoleBlocks(t, "CONTRIBUTING.md")
	if len(sessions) < 3 {
		t.Fatalf("found %d sessions in CONTRIBUTING.md, there are more", len(sessions))
	}
	for _, session := range sessions {
		for _, step := range session {
			if step.command == "go test ./..." || step.command == "go vet ./..." { // CI does
				continue
			}
			cmd := exec.Command("bash", "-c", step.command)
			cmd.Dir = dir
			if build, ok := strings.CutSuffix(step.command, " -o holdfast ./cmd/holdfast"); ok {
				// In the checkout, for which the compiler's cache is warm.
				cmd = exec.Command("bash", "-c", build+" -o "+filepath.Join(dir, "holdfast")+" ./cmd/holdfast")
			}
			cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("CONTRIBUTING.md line %d: %s: %v\n%s", step.line, step.command, err, out)
			}
			var want []string
			for _, line := range step.want {
				if line != "" {
					want = append(want, line)
				}
			}
			if got := strings.TrimSpace(string(out)); !matches(strings.Join(want, "\n"), got) {
				t.Errorf("CONTRIBUTING.md line %d: %s\nprinted %q\nwant    %q", step.line, step.command, got, want)
			}
		}
	}
	checkFork(t, dir)
	for _, module := range []string{".", "bench/compare"} { // the others may need a download
		list := exec.Command("go", "list", "-test", "-deps", "./...")
		list.Dir = filepath.Join(dir, module)
		out, err := list.CombinedOutput()
		if err != nil || strings.Contains(string(out), oldOwner) {
			t.Errorf("in a fork with another path, go list -deps in %s: %v\n%.2000s", module, err, out)
		}
	}
}

const oldOwner = "holdfast" + "-mqtt" // in two, so that it is not found in this file

// checkFork looks for the old path in the fork in dir, whose path is forkPath, in all of its
// modules, and for imports of packages that it doesn't have.
func checkFork(t *testing.T, dir string) {
	t.Helper()
	const forkPath = "example.com/you/holdfast"
	files := append(filesOf(t, ".go"), filesOf(t, "go.mod")...)
	for _, file := range files {
		text := textOf(t, filepath.Join(dir, file))
		if strings.Contains(text, oldOwner) {
			t.Errorf("in a fork with another path %s names the old one", file)
		}
		if !strings.HasSuffix(file, ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imported := range parsed.Imports {
			path := strings.Trim(imported.Path.Value, `"`)
			below, ok := strings.CutPrefix(path, forkPath)
			if !ok {
				continue
			}
			if found, err := filepath.Glob(filepath.Join(dir, below, "*.go")); err != nil || len(found) == 0 {
				t.Errorf("in a fork with another path %s imports %s, which the fork does not have", file, path)
			}
		}
	}
}

// TestFromGo builds the program of docs/go.md in a module of its own, made by the commands of
// that page. `go mod tidy` is left to the build, as it needs the network.
func TestFromGo(t *testing.T) {
	t.Parallel()
	page := textOf(t, "docs/go.md")
	commands, program := fenced(page, "sh"), fenced(page, "go")
	if commands == "" || program == "" {
		t.Fatal("docs/go.md lacks commands or a program")
	}
	checkout, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	commands = strings.ReplaceAll(commands, "=../holdfast", "="+checkout)
	commands = strings.ReplaceAll(commands, "go mod tidy", "go build -o hello .")
	cmd := exec.Command("bash", "-ec", commands)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s\n%v\n%s", commands, err, out)
	}
}

// fenced returns the first fenced block of this kind.
func fenced(text, kind string) string {
	_, after, _ := strings.Cut(text, "```"+kind+"\n")
	block, _, _ := strings.Cut(after, "```")
	return block
}

// copyCheckout copies the files of the checkout that make it a module.
func copyCheckout(t *testing.T, dir string) {
	t.Helper()
	for _, ending := range []string{".go", ".s", ".mod", ".sum", ".md", ".json", ".html", ".css", ".js", ".svg", ".txt", ".gz", "Makefile"} {
		for _, file := range filesOf(t, ending) {
			to := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, []byte(textOf(t, file)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestMakeTargetsOfThePages checks that each make command that a page names is there.
func TestMakeTargetsOfThePages(t *testing.T) {
	t.Parallel()
	makefile := textOf(t, "Makefile")
	command := regexp.MustCompile("(?m)(?:`|^    )make ([a-z-]+)")
	for _, page := range filesOf(t, ".md") {
		for _, m := range command.FindAllStringSubmatch(textOf(t, page), -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names make %s, which the Makefile does not have", page, m[1])
			}
		}
	}
}

// expectStatic checks that a program needs no interpreter, hence no libraries.
func expectStatic(t *testing.T, program string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s needs the machine's libraries", program)
		}
	}
}

func haveMosquitto() bool {
	_, err := exec.LookPath("mosquitto_sub")
	return err == nil
}

// step is one command of a session with the output that the page shows below it.
type step struct {
	line    int
	command string
	want    []string
}

func (s *step) background() bool { return strings.HasSuffix(s.command, "&") }

// consoleBlocks gives the fenced console blocks of a document.
func consoleBlocks(t *testing.T, file string) (blocks [][]step) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var block []step
	inside := false
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "```console":
			inside, block = true, nil
		case inside && line == "```":
			inside = false
			blocks = append(blocks, block)
		case inside && strings.HasPrefix(line, "$ "):
			block = append(block, step{line: i + 1, command: line[2:]})
		case inside && len(block) > 0:
			last := &block[len(block)-1]
			last.want = append(last.want, line)
		}
	}
	return blocks
}

// shell is a bash that runs the commands of a page, in a directory of its own.
type shell struct {
	t     *testing.T
	page  string
	in    *os.File
	lines chan string
}

// endOfStep is echoed after each command, to know where its output ends.
const endOfStep = "--- end of step ---"

func startShell(t *testing.T, page string) *shell {
	t.Helper()
	dir := t.TempDir()
	_, port, err := net.SplitHostPort(testserver.FreeAddress())
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	// What a newcomer has is a checkout: here a directory with links to it, so
	// that nothing is written into the real one.
	for _, name := range []string{"cmd", "client", "hlc", "internal", "go.mod", "go.sum"} {
		if err := os.Symlink(filepath.Join(checkout, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "real"), "./cmd/holdfast")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the README has it
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	expectStatic(t, filepath.Join(dir, "real"))
	// `go build` puts a wrapper where it would put the program: it runs what was built,
	// on free ports. mosquitto_sub is killed at the end: its handler of SIGTERM takes a lock that the
	// code which the signal interrupts may hold, and then it never ends (2.0.11).
	script := fmt.Sprintf(`
cd %[1]q
wrapper='#!/bin/sh
case "$1" in
serve) exec %[1]s/real $(echo "$@" | sed s/127.0.0.1:9090/%[3]s/) --listen 127.0.0.1:%[2]s ;;
*) HOLDFAST_PORT=%[2]s exec %[1]s/real "$@" ;;
esac'
go() {
	case "$*" in
	"build -o holdfast ./cmd/holdfast")
		[ "$CGO_ENABLED" = 0 ] || echo "this builds a program that needs the machine's libraries"
		echo "$wrapper" >holdfast && chmod +x holdfast ;;
	*) echo "go $*: not part of a session"; return 1 ;;
	esac
}
mosquitto_pub() { command mosquitto_pub -p %[2]s "$@"; }
mosquitto_sub() (
	trap 'kill -KILL $sub' TERM
	command mosquitto_sub -p %[2]s "$@" & sub=$!
	wait $sub
)
`, dir, port, testserver.FreeAddress())

	cmd := exec.Command("bash", "--norc", "-s")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outRead, outWrite := terminal.Open(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, outWrite
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inRead.Close()
	outWrite.Close()
	sh := &shell{t: t, page: page, in: inWrite, lines: make(chan string, 100)}
	go func() {
		defer close(sh.lines)
		for scan := bufio.NewScanner(outRead); scan.Scan(); {
			line := strings.TrimRight(scan.Text(), "\r")
			sh.lines <- strings.ReplaceAll(line, ":"+port, ":1883")
		}
	}()
	t.Cleanup(func() {
		inWrite.Close()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // the shell and what it started
		cmd.Wait()
		sh.awaitEnd()
	})
	fmt.Fprintln(inWrite, script)
	return sh
}

// awaitEnd waits until the programs that the shell has started have ended as well: until then
// a server may write to its data directory, which the test removes. The terminal ends with the
// last of them.
func (sh *shell) awaitEnd() {
	sh.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case _, open := <-sh.lines:
			if !open {
				return
			}
		case <-deadline:
			sh.t.Error("a program that the shell has started runs on after SIGTERM")
			return
		}
	}
}

// run types one command. What a command in the background prints may come with
// a later step; the page shows it where it appears.
func (sh *shell) run(s step) {
	sh.t.Helper()
	fmt.Fprintln(sh.in, s.command)
	if !s.background() {
		fmt.Fprintf(sh.in, "echo '%s'\n", endOfStep)
	}
	ended := s.background()
	var got []string
	deadline := time.After(time.Minute)
	for !ended || len(got) < len(s.want) {
		select {
		case line, open := <-sh.lines:
			switch {
			case !open:
				sh.t.Fatalf("%s line %d: %s\nthe shell has gone", sh.page, s.line, s.command)
			case line == endOfStep:
				ended = true
			default:
				got = append(got, line)
			}
		case <-deadline:
			sh.t.Fatalf("%s line %d: %s\nprinted %q, then nothing more; want %q", sh.page, s.line, s.command, got, s.want)
		}
	}
	// Two programs print at once where one is in the background.
	slices.Sort(got)
	slices.Sort(s.want)
	if !matches(strings.Join(s.want, "\n"), strings.Join(got, "\n")) {
		sh.t.Errorf("%s line %d: %s\nprinted %q\nwant    %q", sh.page, s.line, s.command, got, s.want)
	}
}

// matches compares output with what a page shows, in which … stands for
// anything on a line.
func matches(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".+")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}
