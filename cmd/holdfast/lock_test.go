//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// holding is a `holdfast lock` under way.
type holding struct {
	cmd    *exec.Cmd
	lines  chan string // what its command prints; closed when every process that could print has ended
	errOut *bytes.Buffer
	exited chan struct{}
}

// startLock runs `holdfast lock` with the arguments, against the server at port.
func startLock(t *testing.T, port string, args ...string) *holding {
	t.Helper()
	h := &holding{
		cmd:    exec.Command(binary, append([]string{"lock", "-p", port}, args...)...),
		lines:  make(chan string, 100),
		errOut: &bytes.Buffer{},
		exited: make(chan struct{}),
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.cmd.Stdout, h.cmd.Stderr = w, h.errOut
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() { _ = h.cmd.Process.Kill(); <-h.exited; _ = r.Close() })
	go func() {
		defer close(h.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	go func() { defer close(h.exited); _ = h.cmd.Wait() }()
	return h
}

// says waits for a line of the command.
func (h *holding) says(t *testing.T, want string) {
	t.Helper()
	select {
	case line, open := <-h.lines:
		if line != want || !open {
			t.Fatalf("it printed %q (open: %v), want %q", line, open, want)
		}
	case <-time.After(patience):
		t.Fatalf("it never printed %q", want)
	}
}

// ends waits until the lock and everything that it ran have ended.
func (h *holding) ends(t *testing.T, code int, errPart string) {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case line, open := <-h.lines:
			if open {
				t.Errorf("it also printed %q", line)
				continue
			}
			<-h.exited
			if got := h.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(h.errOut.String(), errPart) {
				t.Errorf("status %d, errors %q; want %d, %q", got, h.errOut, code, errPart)
			}
			return
		case <-end:
			t.Fatal("something goes on")
		}
	}
}

// until is a command that says ready, and goes on until what is trapped happens.
func until(trap string) []string {
	return []string{"--", "sh", "-c", trap + "; echo ready; while :; do sleep 0.02; done"}
}

func TestLockRunsACommand(t *testing.T) {
	t.Parallel()
	name := key(t)
	r := holdfast(t, "lock", name, "--holder", "me", "-p", port, "--", "sh", "-c",
		`echo "$HOLDFAST_LOCK_NAME"; "$1" get "$HOLDFAST_LOCK_NAME" -p "$2"; echo
		 "$1" set -p "$2" --fencing-token "$HOLDFAST_LOCK_TOKEN" "$HOLDFAST_LOCK_NAME/guarded" v && echo written`, "sh", binary, port)
	r.want(t, "lock", 0, name+"\nme\nwritten\n", "")
	holdfast(t, "get", name).want(t, "afterwards", 1, "", "no such key")
	holdfast(t, "set", name+"/guarded", "w").want(t, "without the token", 2, "", "a fencing token is required")
	// The token of the next holder is higher, so the first one's is refused now.
	holdfast(t, "lock", name, "-p", port, "--", "sh", "-c",
		`"$1" set -p "$2" --fencing-token "$HOLDFAST_LOCK_TOKEN" "$HOLDFAST_LOCK_NAME/guarded" w`, "sh", binary, port).want(t, "the next", 0, "", "")
	// Standard input is the command's.
	start(t, exec.Command(binary, "lock", "-p", port, name, "--", "cat"), strings.NewReader("in\n")).want(t, "a pipe", 0, "in\n", "")
}

func TestLockExitStatus(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		command []string
		code    int
		errPart string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"false"}, 1, ""},
		{[]string{"sh", "-c", "exit 42"}, 42, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"no-such-command"}, 127, "holdfast lock: cannot run no-such-command: executable file not found in $PATH\n"},
		{[]string{"/no/such/command"}, 127, "cannot run /no/such/command"},
		{[]string{text}, 126, "permission denied"},
	} {
		name := key(t)
		r := start(t, exec.Command(binary, append([]string{"lock", "-p", port, name, "--"}, test.command...)...), nil)
		r.want(t, fmt.Sprint(test.command), test.code, "", test.errPart)
		holdfast(t, "get", name).want(t, "afterwards", 1, "", "no such key")
	}
}

func TestLockWaits(t *testing.T) {
	t.Parallel()
	name := key(t)
	first := startLock(t, port, append([]string{name, "--holder", "first"}, until(`trap "exit 0" USR1`)...)...)
	first.says(t, "ready")
	holdfast(t, "get", name).want(t, "meanwhile", 0, "first", "")

	lock := func(args ...string) result {
		return start(t, exec.Command(binary, append(append([]string{"lock", "-p", port, name}, args...), "--", "echo", "second")...), nil)
	}
	lock("--wait", "0").want(t, "not at all", 1, "", "is held by first")
	lock("-w", "50ms").want(t, "a while", 1, "", "not acquired within 50ms")

	second := startLock(t, port, name, "-v", "--", "echo", "second")
	third := startLock(t, port, name, "--wait", "1h", "--", "echo", "third")
	if err := first.cmd.Process.Signal(syscall.SIGUSR1); err != nil { // forwarded
		t.Fatal(err)
	}
	first.ends(t, 0, "")
	second.says(t, "second")
	second.ends(t, 0, "with token")
	third.says(t, "third")
	third.ends(t, 0, "")
}

func TestLockInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	name := key(t)
	holdfast(t, "set", name, "another client").want(t, "set", 0, "", "")
	r, w := io.Pipe()
	cmd := exec.Command(binary, "lock", "-v", "-p", port, name, "--", "echo", "never")
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); _ = w.Close(); close(ended) }()
	said := bufio.NewScanner(r)
	for said.Scan() && !strings.Contains(said.Text(), "waiting") {
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	for said.Scan() {
	}
	<-ended
	if code := cmd.ProcessState.ExitCode(); code != exit.Failed {
		t.Errorf("status %d, want %d", code, exit.Failed)
	}
	holdfast(t, "get", name).want(t, "afterwards", 0, "another client", "")
}

func TestLockForwardsSignals(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR2} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			name := key(t)
			h := startLock(t, port, append([]string{name}, until(fmt.Sprintf(`trap "echo got; exit 7" %d`, s))...)...)
			h.says(t, "ready")
			if err := h.cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			h.says(t, "got")
			h.ends(t, 7, "")
			holdfast(t, "get", name).want(t, "afterwards", 1, "", "no such key")
		})
	}
}

// A client that deletes the key ends the command, with all processes that it has started.
func TestLockBroken(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"ends when it is asked to":  until(`trap "exit 0" TERM`),
		"must be killed":            until(`trap "" TERM`),
		"has started others":        {"--", "sh", "-c", "echo ready; sleep 1000 | sleep 1000; true"},
		"is stopped":                {"--", "sh", "-c", "echo ready; kill -STOP $$"},
		"has left something behind": {"--", "sh", "-c", "(trap '' TERM; sleep 1000)& echo ready; sleep 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := key(t)
			h := startLock(t, port, append([]string{k, "--grace", "100ms"}, command...)...)
			h.says(t, "ready")
			holdfast(t, "del", k).want(t, "del", 0, "", "")
			h.ends(t, exit.Failed, "the lock was lost")
		})
	}
}

// Without the server, the command ends before the lock can.
func TestLockWithoutItsServer(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir())
	k := key(t)
	const ttl, grace = 8 * time.Second, 3 * time.Second // in which a busy machine ends the command, and tells the test
	h := startLock(t, d.Port(), append([]string{k, "--ttl", ttl.String(), "--grace", grace.String()}, until(`trap "exit 0" TERM`)...)...)
	h.says(t, "ready")
	d.Kill()
	killed := time.Now()
	h.ends(t, exit.Failed, "could not be renewed in time")
	if took := time.Since(killed); took > ttl {
		t.Errorf("the command went on for %v, the lock lasts %v", took, ttl)
	}
}

func TestLockErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "no lock is named; usage: holdfast lock [flags] NAME -- COMMAND [ARGUMENT]..."},
		{[]string{"--", "true"}, "no lock is named"},
		{[]string{"l"}, "no command is given"},
		{[]string{"l", "--"}, "no command is given"},
		{[]string{"l", "true"}, "put -- before the command"},
		{[]string{"l", "m", "--", "true"}, `unexpected argument "m"`},
		{[]string{"--ttl", "10ms", "l", "--", "true"}, "--ttl 10ms: it must be at least 100ms"},
		{[]string{"--wait", "-1s", "l", "--", "true"}, "--wait -1s: it must not be negative"},
		{[]string{"--ttl", "10s", "--grace", "5s", "l", "--", "true"}, "--grace 5s: it must be from 0 to 0.45 of --ttl 10s"},
		{[]string{"-p", "1", "l", "--", "true"}, "cannot reach localhost:1: connection refused"},
		{[]string{"-p", port, "", "--", "true"}, `"": the key length is zero`},
	} {
		r := start(t, exec.Command(binary, append([]string{"lock"}, test.args...)...), nil)
		r.want(t, fmt.Sprint(test.args), exit.Failed, "", test.want)
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"locks", "command-line", "configuration", "transactions"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkDocument(t, "../../docs/"+name+".md")
		})
	}
}

// checkDocument types the sessions of a document into a shell, and compares what
// comes out; … stands for anything on a line. The server is the document's own, since its
// keys are.
func checkDocument(t *testing.T, file string) {
	t.Helper()
	document, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// A timer may be set for a year ahead.
	nextMonth := time.Now().UTC().AddDate(0, 1, 0).Format("2006-01-02T")
	document = []byte(strings.ReplaceAll(string(document), "2027-01-31T", nextMonth))
	var script, want strings.Builder
	fmt.Fprintf(&script, "PATH=%q:$PATH HOLDFAST_PORT=%s\nexport PATH HOLDFAST_PORT\nexec 2>&1\n", filepath.Dir(binary), testserver.Run(t).Port())
	inside := false
	for line := range strings.Lines(string(document)) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console\n"
		case inside && strings.HasPrefix(line, "$ "):
			script.WriteString(line[2:])
		case inside && strings.HasPrefix(line, "> "): // the command goes on
			script.WriteString(line[2:])
		case inside:
			want.WriteString(line)
		}
	}
	cmd := exec.Command("sh", "-c", script.String())
	cmd.Dir = t.TempDir() // for what the commands write
	got, err := cmd.Output()
	if err != nil {
		t.Errorf("the last command of the document: %v", err)
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want.String()), "…", ".+")
	if want.Len() == 0 || !regexp.MustCompile("^"+pattern+"$").Match(got) {
		t.Errorf("printed\n%s\nthe document shows\n%s", got, want.String())
	}
}
