package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything may take before it counts as never happening.
const patience = 20 * time.Second

var (
	binary string // the program, built once
	port   string // of a server of it that all tests share
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "holdfast")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	stop, err := serveAll(filepath.Join(dir, "data"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	return m.Run()
}

var listening = regexp.MustCompile(`listening on 127\.0\.0\.1:(\d+)`)

// serveAll starts the server and sets port.
func serveAll(data string) (stop func(), err error) {
	cmd := exec.Command(binary, "serve", "--listen", "127.0.0.1:0", "--data", data)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait(); _ = w.Close() }()
	var said strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			port = m[1]
			go func() { _, _ = io.Copy(io.Discard, r) }()
			return func() { _ = cmd.Process.Signal(syscall.SIGTERM); <-ended }, nil
		}
	}
	return nil, fmt.Errorf("the server ended before it listened; it said:\n%s", said.String())
}

// result is what a command line came to.
type result struct {
	code     int
	out, err string
}

// holdfast runs a command line against the shared server.
func holdfast(t *testing.T, args ...string) result {
	t.Helper()
	return holdfastWith(t, nil, args...)
}

// holdfastWith runs it with standard input.
func holdfastWith(t *testing.T, in io.Reader, args ...string) result {
	t.Helper()
	return start(t, exec.Command(binary, append(args, "-p", port)...), in)
}

func start(t *testing.T, cmd *exec.Cmd, in io.Reader) result {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// want compares; in errors, "" stands for none and other texts for a part.
func (r result) want(t *testing.T, what string, code int, out, errPart string) {
	t.Helper()
	if r.code != code || r.out != out || !strings.Contains(r.err, errPart) || errPart == "" && r.err != "" {
		t.Errorf("%s: status %d, output %q, errors %q; want %d, %q, %q", what, r.code, r.out, r.err, code, out, errPart)
	}
	if strings.Count(r.err, "\n") > 1 {
		t.Errorf("%s: errors of more than one line: %q", what, r.err)
	}
}

var names atomic.Int64

// key is one that no other test uses.
func key(t *testing.T) string { return fmt.Sprintf("%s/%d", t.Name(), names.Add(1)) }

func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestOneMinute(t *testing.T) {
	t.Parallel()
	k := key(t)
	holdfast(t, "get", k).want(t, "get before", 1, "", "no such key")
	holdfast(t, "set", k, "hello").want(t, "set", 0, "", "")
	holdfast(t, "get", k).want(t, "get", 0, "hello", "")
	holdfast(t, "vdel", k, "bye").want(t, "vdel with another value", 1, "", "another value")
	holdfast(t, "vdel", k, "hello").want(t, "vdel", 0, "", "")
	holdfast(t, "vdel", k, "hello").want(t, "vdel again", 1, "", "no such key")
	holdfast(t, "set", k, "").want(t, "set to nothing", 0, "", "")
	holdfast(t, "get", k).want(t, "get nothing", 0, "", "")
	holdfast(t, "del", k).want(t, "del", 0, "", "")
	holdfast(t, "del", k).want(t, "del again", 1, "", "no such key")
}

// The command lines of statestore-cli, with all that it can do.
func TestScriptsOfStatestoreCLI(t *testing.T) {
	t.Parallel()
	run := func(args ...string) result { return start(t, exec.Command(binary, args...), nil) }
	dir := t.TempDir()
	k1, k2, file := key(t), key(t), filepath.Join(dir, "value.txt")
	if err := os.WriteFile(file, []byte("12345\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("set", "-n", "localhost", "-p", port, "--notls", "-k", k1, "--valuefile", file).want(t, "set from a file", 0, "", "")
	run("get", "-n", "localhost", "-p", port, "--notls", "-k", k1, "-f", file+"2").want(t, "get to a file", 0, "", "")
	if got, err := os.ReadFile(file + "2"); string(got) != "12345\n" || err != nil {
		t.Errorf("the file says %q, %v", got, err)
	}
	run("set", "-n", "localhost", "-p", port, "-k", k2, "--notls", "--value", "no tls").want(t, "set a value", 0, "", "")
	run("get", "--hostname", "localhost", "--port", port, "--key", k2, "--notls").want(t, "get", 0, "no tls", "")
	run("-n", "localhost", "-p", port, "--notls", "get", "-k", k2).want(t, "flags before the command", 0, "no tls", "")
	run("delete", "-n", "localhost", "-p", port, "-k", k2, "--notls").want(t, "delete", 0, "", "")
	run("delete", "-n", "localhost", "-p", port, "-k", k2, "--notls").want(t, "delete again", 1, "", "no such key")
	run("get", "-n", "localhost", "-p", port, "-k", k2, "--notls").want(t, "get what is deleted", 1, "", "no such key")
	run("get", "-n", "localhost-invalid.invalid", "-p", port, "-k", k2, "--notls").want(t, "a wrong host", 2, "", "cannot reach localhost-invalid.invalid")
}

func TestValuesAreByteExact(t *testing.T) {
	t.Parallel()
	for name, value := range map[string][]byte{
		"every byte": everyByte(),
		"1 MB":       bytes.Repeat(everyByte(), 4000),
		"nothing":    {},
		"a newline":  []byte("\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, dir := key(t), t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			if err := os.WriteFile(from, value, 0o600); err != nil {
				t.Fatal(err)
			}
			holdfastWith(t, bytes.NewReader(value), "set", "-f", "-", k).want(t, "set from a pipe", 0, "", "")
			holdfast(t, "get", k).want(t, "get to a pipe", 0, string(value), "")
			holdfast(t, "get", "-f", "-", k).want(t, "get to -", 0, string(value), "")
			holdfast(t, "set", "-f", from, k).want(t, "set from a file", 0, "", "")
			holdfast(t, "get", "-f", to, k).want(t, "get to a file", 0, "", "")
			if got, err := os.ReadFile(to); !bytes.Equal(got, value) || err != nil {
				t.Errorf("the file has %d bytes, want the %d that were set; %v", len(got), len(value), err)
			}
			holdfast(t, "vdel", k, "-f", from).want(t, "vdel from a file", 0, "", "")
		})
	}
}

func TestSetConditions(t *testing.T) {
	t.Parallel()
	k := key(t)
	holdfast(t, "set", "--if-version", "-", k, "a").want(t, "absent, on nothing", 0, "", "")
	holdfast(t, "set", "--if-version", "-", k, "b").want(t, "absent, on a key", 1, "", "not applied")
	holdfast(t, "set", "--nx", k, "b").want(t, "nx", 1, "", "not applied")
	holdfast(t, "set", "--nex", k, "b").want(t, "nex, another value", 1, "", "not applied")
	holdfast(t, "set", "--nex", k, "a").want(t, "nex, the same value", 0, "", "")
	holdfast(t, "set", "--nex-value", "x", k, "b").want(t, "nex-value, another", 1, "", "not applied")
	holdfast(t, "set", "--nex-value", "a", k, "b").want(t, "nex-value", 0, "", "")

	version := strings.TrimSpace(holdfast(t, "set", "-o", "text", "--output", "json", k, "c").field(t, "version"))
	holdfast(t, "set", "--if-version", "1:1:other", k, "d").want(t, "another version", 1, "", "has version "+version)
	holdfast(t, "set", "--if-version", version, k, "d").want(t, "this version", 0, "", "")
	holdfast(t, "set", "--if-version", version, key(t), "d").want(t, "a version of nothing", 1, "", "no such key")

	holdfast(t, "set", "--fencing-token", version, k, "e").want(t, "a token", 0, "", "")
	holdfast(t, "set", k, "f").want(t, "no token", 2, "", "a fencing token is required")
	holdfast(t, "del", "--fencing-token", "1:1:x", k).want(t, "an old token", 2, "", "lower version")
	holdfast(t, "vdel", "--fencing-token", version, k, "e").want(t, "vdel with the token", 0, "", "")
}

// field reads one field of a single JSON object.
func (r result) field(t *testing.T, name string) string {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(r.out), &object); err != nil {
		t.Fatalf("%q is no JSON object: %v", r.out, err)
	}
	return fmt.Sprint(object[name])
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	k := key(t)
	w := startWatch(t, "--count", "2", k)
	holdfast(t, "set", "--px", "20", k, "v").want(t, "set", 0, "", "")
	if lines := w.finish(t); !strings.HasPrefix(lines[0], "set "+k+" v ") || !strings.HasPrefix(lines[1], "deleted "+k+" ") {
		t.Errorf("the watch said %q", lines)
	}
	holdfast(t, "get", k).want(t, "get after the deadline", 1, "", "no such key")
	holdfast(t, "set", "--px", "1h30m", k, "v").want(t, "a duration", 0, "", "")
}

func TestOutput(t *testing.T) {
	t.Parallel()
	k := key(t)
	set := holdfast(t, "set", "-o", "json", k, "é")
	version := set.field(t, "version")
	text := func(format string, args ...any) string { return fmt.Sprintf(format, args...) + "\n" }
	set.want(t, "set", 0, text(`{"key":%q,"applied":true,"version":%q}`, k, version), "")
	holdfast(t, "set", "-o", "json", "--nx", k, "x").want(t, "set, not applied", 1,
		text(`{"key":%q,"applied":false,"version":%q}`, k, version), "not applied")
	holdfast(t, "get", "-o", "json", k).want(t, "get", 0,
		text(`{"key":%q,"found":true,"value":"é","version":%q}`, k, version), "")
	holdfast(t, "vdel", "-o", "json", k, "x").want(t, "vdel, another value", 1,
		text(`{"key":%q,"found":true,"deleted":false,"version":%q}`, k, version), "another value")
	holdfast(t, "del", "-o", "json", k).want(t, "del", 0,
		text(`{"key":%q,"found":true,"deleted":true,"version":%q}`, k, version), "")
	holdfast(t, "del", "-o", "json", k).want(t, "del again", 1, text(`{"key":%q,"found":false,"deleted":false}`, k), "no such key")
	holdfast(t, "get", "-o", "json", k).want(t, "get, missing", 1, text(`{"key":%q,"found":false}`, k), "no such key")
	holdfastWith(t, strings.NewReader("\xff<"), "set", k, "-f", "-").want(t, "set", 0, "", "")
	if got := holdfast(t, "get", "-o", "json", k).field(t, "value_base64"); got != "/zw=" {
		t.Errorf("value_base64 %q", got)
	}
	if r := holdfast(t, "set", "-v", k, "x"); r.code != 0 || !regexp.MustCompile(`^\d+:\d+:\S+\n$`).MatchString(r.out) {
		t.Errorf("set -v: status %d, output %q; want the version", r.code, r.out)
	}
	holdfast(t, "get", "-o", "yaml", k).want(t, "another format", 2, "", "text or json")
}

// watching is a `holdfast watch` that has begun to watch.
type watching struct {
	cmd    *exec.Cmd
	lines  chan string
	exited chan struct{}
}

func startWatch(t *testing.T, args ...string) *watching {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"watch", "-v", "-p", port}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errOut, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &watching{cmd: cmd, lines: make(chan string, 100), exited: make(chan struct{})}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-w.exited })
	said := bufio.NewScanner(errOut)
	for said.Scan() && !strings.Contains(said.Text(), "watching") {
	}
	go func() {
		defer close(w.exited)
		defer close(w.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
		_, _ = io.Copy(io.Discard, errOut)
		_ = cmd.Wait()
	}()
	return w
}

// finish returns what was printed, once the command has ended well.
func (w *watching) finish(t *testing.T) []string {
	t.Helper()
	select {
	case <-w.exited:
	case <-time.After(patience):
		t.Fatal("the watch goes on")
	}
	if code := w.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the watch ended with status %d", code)
	}
	var lines []string
	for l := range w.lines {
		lines = append(lines, l)
	}
	return lines
}

func TestWatch(t *testing.T) {
	t.Parallel()
	k := key(t)
	text, asJSON := startWatch(t, "--count", "4", k), startWatch(t, "--count", "4", "--output", "json", k)
	holdfast(t, "set", k, "word")
	holdfast(t, "set", k, "two words\n")
	holdfastWith(t, strings.NewReader("\xff"), "set", k, "-f", "-")
	holdfast(t, "del", k)

	want := []string{`set ` + k + ` word V`, `set ` + k + ` "two words\n" V`, `set ` + k + ` "\xff" V`, `deleted ` + k + ` V`}
	version := regexp.MustCompile(`\d+:\d+:[^\s"]+`)
	for i, line := range text.finish(t) {
		if got := version.ReplaceAllString(line, "V"); got != want[i] {
			t.Errorf("line %d: %q, want %q", i, got, want[i])
		}
	}
	want = []string{
		`{"event":"set","key":"K","value":"word","version":"V"}`,
		`{"event":"set","key":"K","value":"two words\n","version":"V"}`,
		`{"event":"set","key":"K","value_base64":"/w==","version":"V"}`,
		`{"event":"deleted","key":"K","version":"V"}`,
	}
	for i, line := range asJSON.finish(t) {
		if got := strings.ReplaceAll(version.ReplaceAllString(line, "V"), k, "K"); got != want[i] {
			t.Errorf("line %d: %q, want %q", i, got, want[i])
		}
	}
}

// An interrupted watch has done what it was asked for.
func TestWatchInterrupted(t *testing.T) {
	t.Parallel()
	w := startWatch(t, key(t))
	if err := w.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if lines := w.finish(t); len(lines) != 0 {
		t.Errorf("it printed %q", lines)
	}
}

func TestScan(t *testing.T) {
	t.Parallel()
	prefix := key(t)
	for _, k := range []string{"a", "b", "with\nnewline"} {
		holdfast(t, "set", prefix+k, "v").want(t, "set", 0, "", "")
	}
	lines := func(s string) string { return strings.ReplaceAll(s, "P", prefix) }
	holdfast(t, "scan", prefix+"[ab]").want(t, "lines", 0, lines("Pa\nPb\n"), "")
	holdfast(t, "scan", "--null", prefix+"*").want(t, "NUL", 0, lines("Pa\x00Pb\x00Pwith\nnewline\x00"), "")
	holdfast(t, "scan", "-o", "json", prefix+"[!b]*").want(t, "JSON", 0, lines(`{"key":"Pa"}`+"\n"+`{"key":"Pwith\nnewline"}`+"\n"), "")
	holdfast(t, "scan", prefix+"nobody*").want(t, "no keys", 0, "", "")
	holdfast(t, "scan", "[").want(t, "a malformed pattern", 2, "", "syntax error")
	if r := holdfast(t, "scan"); r.code != 0 || !strings.Contains(r.out, prefix+"a\n") {
		t.Errorf("scan without a pattern: status %d, output %q", r.code, r.out)
	}
}

// Keys that are not UTF-8 are found, and can be used as they are printed.
func TestScanBinary(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	odd := "caf\xe9 1"
	d.run("set", odd, "v").want(t, "set", 0, "", "")
	d.run("set", "text", "v").want(t, "set", 0, "", "")
	binaryKeys := func(args ...string) result {
		return holdfastAlone(t, append([]string{"scan", "--binary", "--data", data}, args...)...)
	}
	d.run("scan").want(t, "an ordinary scan", 0, "text\n", "")
	binaryKeys().want(t, "quoted", 0, `"caf\xe9 1"`+"\n", "")
	binaryKeys("--null").want(t, "as they are", 0, odd+"\x00", "")
	binaryKeys("-o", "json").want(t, "JSON", 0, `{"key_base64":"Y2Fm6SAx"}`+"\n", "")
	binaryKeys("a*").want(t, "a pattern", 2, "", "--binary takes no PATTERN")
	d.run("scan", "--data", data).want(t, "a directory without --binary", 2, "", "--data is for --binary only")
	d.run("del", odd).want(t, "del", 0, "", "")
	binaryKeys().want(t, "none left", 0, "", "")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	run := func(args ...string) result { return start(t, exec.Command(binary, args...), nil) }
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "-p", "1", "k"}, "holdfast get: cannot reach localhost:1: connection refused; is a server running? start one with: holdfast serve\n"},
		{[]string{"get"}, "holdfast get: which key? usage: holdfast get [flags] KEY\n"},
		{[]string{"set", "k"}, "holdfast set: which value?"},
		{[]string{"set", "k", "v", "w"}, `holdfast set: what is "w" for?`},
		{[]string{"set", "-k", "k", "--value", "v", "w"}, `holdfast set: what is "w" for?`},
		{[]string{"set", "k", "--value", "v", "-f", "x"}, "--value and --valuefile exclude each other"},
		{[]string{"set", "k", "-f", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"set", "k", "v", "--px", "soon"}, "--px soon: want a positive number of milliseconds"},
		{[]string{"set", "k", "v", "--if-version", "1:2"}, `--if-version "1:2": malformed timestamp`},
		{[]string{"set", "k", "v", "--fencing-token", "x"}, `--fencing-token "x": malformed timestamp`},
		{[]string{"set", "-p", port, "--nx", "--nex", "k", "v"}, "NX and NEX exclude each other"},
		{[]string{"get", "-p", port, ""}, `holdfast get: "": the key length is zero`},
		{[]string{"get", "-p", port, "-i", "a/b", "k"}, "client ID"},
		{[]string{"get", "-T", "/does/not/exist", "k"}, "--cafile: open /does/not/exist"},
		{[]string{"get", "-C", "cert.pem", "k"}, "--certfile and --keyfile go together"},
		{[]string{"get", "--tls", "-p", port, "k"}, "cannot reach localhost:" + port},
		{[]string{"get", "--timeout", "0s", "k"}, "--timeout 0s: it must be positive"},
		{[]string{"get", "--frob"}, "holdfast get: unknown flag --frob"},
		{[]string{"frob"}, `holdfast: unknown command "frob"`},
		{[]string{"-p", "1884", "serve"}, "holdfast serve: --port before the command has no meaning for it"},
	} {
		r := run(test.args...)
		r.want(t, strings.Join(test.args, " "), 2, "", test.want)
	}
}

func TestPasswordFromTheEnvironment(t *testing.T) {
	t.Parallel()
	k := key(t)
	cmd := exec.Command(binary, "set", "-p", port, "-u", "somebody", k, "v")
	cmd.Env = append(os.Environ(), "HOLDFAST_PASSWORD=secret")
	start(t, cmd, nil).want(t, "set", 0, "", "")
}

// A password behind the user name, as other programs take it, would go to the
// server as a part of the name.
func TestPasswordBehindTheUserName(t *testing.T) {
	t.Parallel()
	k := key(t)
	holdfast(t, "set", "-u", "somebody:secret", k, "v").want(t, "a password in -u", 2, "", `--username holds "somebody" and a colon: give a password in HOLDFAST_PASSWORD`)
	if r := holdfast(t, "set", "-u", "somebody:secret", k, "v"); strings.Contains(r.err, "secret") {
		t.Errorf("the error shows the password: %q", r.err)
	}
	holdfast(t, "set", "-u", "a:b", "--password", "", k, "v").want(t, "a name with a colon", 0, "", "")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}, {"-V"}} {
		if r := start(t, exec.Command(binary, args...), nil); r.code != 0 || !strings.HasPrefix(r.out, "holdfast ") || r.err != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	run := func(args ...string) result { return start(t, exec.Command(binary, args...), nil) }
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := run("completion", shell); r.code != 0 || !strings.Contains(r.out, "holdfast") || r.err != "" {
			t.Errorf("completion %s: status %d, %d bytes, errors %q", shell, r.code, len(r.out), r.err)
		}
	}
	if r := run("__complete", "get", "--output", ""); !strings.Contains(r.out, "json\n") {
		t.Errorf("--output completes to %q", r.out)
	}
	if r := run("__complete", ""); !strings.Contains(r.out, "get\t") || !strings.Contains(r.out, "serve\t") {
		t.Errorf("commands complete to %q", r.out)
	}
}

// A key that is too long is not printed whole, and the error says what may be.
func TestKeyThatIsTooLong(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("k", 64<<10+1)
	holdfast(t, "set", key, "v").want(t, "set", 2, "",
		`holdfast set: "`+key[:100]+`"… (65537 bytes): syntax error: a key has at most 65536 bytes, unless the server's --max-key-size says otherwise`+"\n")
}
