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
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// patience is how long anything may take before it counts as never happening.
const patience = time.Minute

var (
	binary string // the program
	port   string // of a server of it that all tests share
)

func TestMain(m *testing.M) {
	binary, port = testserver.Binary(), testserver.Shared().Port()
	testserver.Main(m)
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
	said   *bufio.Scanner // standard error
	exited chan struct{}
}

func startWatch(t *testing.T, args ...string) *watching {
	t.Helper()
	return startUntil(t, "watching", exec.Command(binary, append([]string{"watch", "-v", "-p", port}, args...)...))
}

// startUntil starts a command and returns when it has said a text on standard error.
func startUntil(t *testing.T, text string, cmd *exec.Cmd) *watching {
	t.Helper()
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
	w := &watching{cmd: cmd, lines: make(chan string, 10_000), said: bufio.NewScanner(errOut), exited: make(chan struct{})}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-w.exited })
	w.await(text)
	go func() {
		defer close(w.exited)
		defer close(w.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
		_ = cmd.Wait()
	}()
	return w
}

// await returns when the command has said a text on standard error, or has ended.
func (w *watching) await(text string) (found bool) {
	for w.said.Scan() {
		if strings.Contains(w.said.Text(), text) {
			return true
		}
	}
	return false
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
	d := serveIn(t, t.TempDir())
	odd := "caf\xe9 1"
	d.run("set", odd, "v").want(t, "set", 0, "", "")
	d.run("set", "text", "\xff").want(t, "set", 0, "", "")
	d.run("set", "-f", "-", "--key-encoding", "base64", "AA==", "--value", "nul").want(t, "two values", 2, "", "--value and --valuefile exclude each other")
	d.run("set", "--key-encoding", "base64", "AA==", "nul").want(t, "set a key of NUL", 0, "", "")

	d.run("scan").want(t, "an ordinary scan", 0, "\x00\ntext\n", "")
	d.run("scan", "--key-encoding", "quoted").want(t, "an ordinary scan, quoted", 0, `"\x00"`+"\ntext\n", "")
	d.run("scan", "--binary").want(t, "quoted", 0, `"\x00"`+"\n"+`"caf\xe9 1"`+"\ntext\n", "")
	d.run("scan", "--binary", "--null", "caf*").want(t, "as they are", 0, odd+"\x00", "")
	d.run("scan", "--binary", "--key-encoding", "plain", "caf\xe9*").want(t, "a pattern of bytes", 0, odd+"\n", "")
	d.run("scan", "--binary", "--key-encoding", "base64", "caf? ?").want(t, "base 64", 0, "Y2Fm6SAx\n", "")
	d.run("scan", "--binary", "-o", "json", "caf*").want(t, "JSON", 0, `{"key_base64":"Y2Fm6SAx"}`+"\n", "")
	d.run("scan", "-o", "json", "--null").want(t, "JSON and NUL", 2, "", "--output json has an encoding and an end of line of its own")
	d.run("scan", "caf\xe9*").want(t, "a pattern of bytes without --binary", 2, "", "syntax error")

	d.run("get", "--key-encoding", "quoted", `"caf\xe9 1"`).want(t, "get a quoted key", 0, "v", "")
	d.run("get", "--key-encoding", "base64", "Y2Fm6SAx").want(t, "get a key in base 64", 0, "v", "")
	d.run("get", "--key-encoding", "quoted", "-k", `"\x00"`).want(t, "get the key of NUL", 0, "nul", "")
	d.run("get", "--key-encoding", "quoted", "text").want(t, "get a word", 0, "\xff", "")
	all := d.run("scan", "--binary").out
	d.runWith(strings.NewReader(all), "del", "--stdin", "--key-encoding", "quoted").want(t, "del what scan printed", 0, "", "")
	d.run("scan", "--binary").want(t, "none left", 0, "", "")

	d.run("get", "--key-encoding", "quoted", `"caf`).want(t, "a quote without its end", 2, "", `key "caf is not quoted rightly: want for example "caf\xe9 1"`)
	d.run("get", "--key-encoding", "base64", "Y2").want(t, "no base 64", 2, "", `key "Y2" is not base64: want for example Y2Fm6Q==`)
	d.run("get", "--key-encoding", "hex", "k").want(t, "another encoding", 2, "", `--key-encoding "hex": want plain, quoted or base64`)
}

func TestScanValues(t *testing.T) {
	t.Parallel()
	k := key(t)
	holdfast(t, "set", k+"a", "two words").want(t, "set", 0, "", "")
	holdfastWith(t, strings.NewReader("\xff"), "set", k+"b", "-f", "-").want(t, "set", 0, "", "")
	version := func(key string) string { return holdfast(t, "get", "-o", "json", key).field(t, "version") }
	a, b := version(k+"a"), version(k+"b")
	holdfast(t, "scan", "--values", k+"*").want(t, "text", 0,
		fmt.Sprintf("%sa \"two words\" %s\n%sb \"\\xff\" %s\n", k, a, k, b), "")
	holdfast(t, "scan", "--values", "-o", "json", k+"*").want(t, "JSON", 0,
		fmt.Sprintf(`{"key":"%sa","value":"two words","version":"%s"}`+"\n"+`{"key":"%sb","value_base64":"/w==","version":"%s"}`+"\n", k, a, k, b), "")
	holdfast(t, "scan", "--values", "--null").want(t, "with NUL", 2, "", "null values")
}

// del of several keys: named, by standard input, by a pattern.
func TestDelSeveral(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/"
	set := func(keys ...string) {
		t.Helper()
		for _, k := range keys {
			holdfast(t, "set", prefix+k, "v").want(t, "set", 0, "", "")
		}
	}
	in := func(lines string, args ...string) result {
		t.Helper()
		return holdfastWith(t, strings.NewReader(strings.ReplaceAll(lines, "P", prefix)), append([]string{"del"}, args...)...)
	}
	left := func(want string) {
		t.Helper()
		holdfast(t, "scan", "--key-encoding", "quoted", prefix+"*").want(t, "what is left", 0, strings.ReplaceAll(want, "P", prefix), "")
	}
	set("a", "b", "c", "d", "e", "f\ng", "h")
	holdfast(t, "del", prefix+"a", prefix+"b").want(t, "named", 0, "", "")
	holdfast(t, "del", prefix+"a", prefix+"c", prefix+"b", prefix+"x").want(t, "some are missing", 1, "", `no such key: "`+prefix+`a" and 2 more`)
	left("Pd\nPe\n\"Pf\\ng\"\nPh\n")
	in("Pd\n\nPe", "--stdin", "--dry-run").want(t, "dry run", 0, strings.ReplaceAll("Pd\nPe\n", "P", prefix), "")
	in("Pd\n\nPe", "--stdin").want(t, "lines", 0, "", "")
	in("Pf\ng\x00Px\x00", "--stdin", "-0").want(t, "NUL, one is missing", 1, "", `no such key: "`+prefix+`x"`)
	left("Ph\n")
	in("", "--stdin").want(t, "nothing", 0, "", "")
	in(strings.Repeat("k", 2<<20), "--stdin").want(t, "a line without an end", 2, "", "standard input: more than 1048576 bytes without a line feed; 0 keys were deleted before")

	set("i", "\xff")
	r := holdfast(t, "del", "-v", prefix+"h", prefix+"i")
	if r.code != 0 || !regexp.MustCompile(`^`+prefix+`h \d+:\d+:\S+\n`+prefix+`i \d+:\d+:\S+\n$`).MatchString(r.out) {
		t.Errorf("del -v: status %d, output %q; want keys and versions", r.code, r.out)
	}
	holdfast(t, "del", "-o", "json", prefix+"x", prefix+"y").want(t, "JSON", 1,
		strings.ReplaceAll(`{"key":"Px","found":false,"deleted":false}`+"\n"+`{"key":"Py","found":false,"deleted":false}`+"\n", "P", prefix), "and 1 more")

	set("j", "k")
	holdfast(t, "del", "--pattern", prefix+"*", "--dry-run").want(t, "pattern, dry run", 0, strings.ReplaceAll("Pj\nPk\n", "P", prefix), "")
	holdfast(t, "del", "--pattern", prefix+"*", "--binary", "--dry-run").want(t, "pattern of bytes, dry run", 0,
		strings.ReplaceAll("Pj\nPk\n\"P\\xff\"\n", "P", prefix), "")
	holdfastWith(t, strings.NewReader("y\n"), "del", "--pattern", prefix+"*").want(t, "pattern, no terminal", 2, "", "--pattern deletes without asking only with --yes")
	holdfast(t, "del", "--pattern", prefix+"*", "--yes").want(t, "pattern", 0, "", "")
	holdfast(t, "del", "--pattern", prefix+"*", "--yes").want(t, "pattern without a match", 1, "", "no key matches")
	holdfast(t, "del", "--pattern", prefix+"?", "--binary", "-y").want(t, "pattern of bytes", 0, "", "")
	holdfast(t, "del", "--pattern", "[", "--yes").want(t, "a malformed pattern", 2, "", "syntax error")
}

// More keys than are under way at a time, in the order of standard input; the first
// error ends it.
func TestDelManyKeys(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/"
	var lines, want strings.Builder
	for i := range 522 { // twice as many as are under way at a time, and some more
		fmt.Fprintf(&lines, "%s%d\n", prefix, i)
		fmt.Fprintf(&want, `{"key":"%s%d","found":false,"deleted":false}`+"\n", prefix, i)
	}
	holdfastWith(t, strings.NewReader(lines.String()), "del", "--stdin", "-o", "json").want(t, "many", 1, want.String(), "more")

	version := holdfast(t, "set", "-o", "json", prefix+"fenced", "v").field(t, "version")
	holdfast(t, "set", "--fencing-token", version, prefix+"fenced", "w").want(t, "set", 0, "", "")
	holdfast(t, "set", prefix+"1", "v").want(t, "set", 0, "", "")
	in := prefix + "1\n" + prefix + "fenced\n" + strings.Repeat(lines.String(), 100)
	holdfastWith(t, strings.NewReader(in), "del", "--stdin").want(t, "with an error", 2, "", `a fencing token is required for this request; 1 key was deleted before`)
	holdfast(t, "del", "--fencing-token", version, prefix+"fenced", prefix+"1").want(t, "with the token", 1, "", "no such key")
}

func TestDelRefusesContradictions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"del":                            "no key is given: give KEY, --stdin or --pattern",
		"del k --stdin":                  "KEY, --stdin and --pattern exclude each other",
		"del --pattern a* --stdin":       "KEY, --stdin and --pattern exclude each other",
		"del --pattern a* k":             "KEY, --stdin and --pattern exclude each other",
		"del -k k l":                     `unexpected argument "l": --key names the only key`,
		"del k --binary":                 "--binary is for --pattern only",
		"del k --yes":                    "--yes is for --pattern only",
		"del k --null":                   "--null is for --stdin and --dry-run only",
		"del k --fencing-token x":        `--fencing-token "x": malformed timestamp`,
		"del k --stdin --key-encoding x": `--key-encoding "x": want plain, quoted or base64`,
		"del --key-encoding":             "--key-encoding needs a value: want plain, quoted or base64",
	} {
		start(t, exec.Command(binary, strings.Fields(args)...), nil).want(t, args, 2, "", want)
	}
	start(t, exec.Command(binary, "del", "--dry-run", "--null", "a", "b"), nil).want(t, "a dry run needs no server", 0, "a\x00b\x00", "")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	run := func(args ...string) result { return start(t, exec.Command(binary, args...), nil) }
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "-p", "1", "k"}, "holdfast get: cannot reach localhost:1: connection refused; is a server running? start one with: holdfast serve\n"},
		{[]string{"get"}, "holdfast get: no key is given; usage: holdfast get [flags] KEY\n"},
		{[]string{"set", "k"}, "holdfast set: no value is given"},
		{[]string{"set", "k", "v", "w"}, `holdfast set: unexpected argument "w"`},
		{[]string{"set", "-k", "k", "--value", "v", "w"}, `holdfast set: unexpected argument "w"`},
		{[]string{"set", "k", "--value", "v", "-f", "x"}, "--value and --valuefile exclude each other"},
		{[]string{"set", "k", "-f", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"set", "k", "v", "--px", "soon"}, "--px soon: want a positive number of milliseconds"},
		{[]string{"set", "k", "v", "--if-version", "1:2"}, `--if-version "1:2": malformed timestamp`},
		{[]string{"set", "k", "v", "--fencing-token", "x"}, `--fencing-token "x": malformed timestamp`},
		{[]string{"set", "-p", port, "--nx", "--nex", "k", "v"}, "--nx, --nex and --nex-value exclude each other: give one of them"},
		{[]string{"get", "-p", port, ""}, `holdfast get: "": the key length is zero: a key has at least one byte`},
		{[]string{"scan", "-p", port, "a["}, `holdfast scan: pattern "a[": syntax error: every [ needs its ]`},
		{[]string{"scan", "a", "b"}, `holdfast scan: unexpected argument "b"`},
		{[]string{"passwd"}, "holdfast passwd: no file is given; usage: holdfast passwd FILE USER"},
		{[]string{"passwd", "users"}, "holdfast passwd: no user is given"},
		{[]string{"restore"}, "holdfast restore: no backup is given"},
		{[]string{"backup", "a", "b"}, `holdfast backup: unexpected argument "b"`},
		{[]string{"cert", "client"}, "holdfast cert client: no name is given"},
		{[]string{"policy", "check"}, "holdfast policy check: no policy file is given"},
		{[]string{"txn"}, "holdfast txn: no file is given"},
		{[]string{"txn", "/dev/null"}, "is not the JSON that it should be: EOF; see holdfast txn --help"},
		{[]string{"check", "x"}, `holdfast check: unexpected argument "x"`},
		{[]string{"get", "-p", port, "-i", "a/b", "k"}, `--clientid "a/b": want UTF-8 without /, +, # and NUL`},
		{[]string{"get", "-T", "/does/not/exist", "k"}, "--cafile: open /does/not/exist"},
		{[]string{"get", "-C", "cert.pem", "k"}, "--certfile and --keyfile go together"},
		{[]string{"get", "-P", "secret", "k"}, "--keypassword is for an encrypted --keyfile, and there is none; the password of a user is --password"},
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

// holdfastIn runs a command line with variables in its environment.
func holdfastIn(t *testing.T, variables string, args ...string) result {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), strings.Fields(variables)...)
	return start(t, cmd, nil)
}

// Variables of the environment take the place of flags; flags win.
func TestVariables(t *testing.T) {
	t.Parallel()
	k := key(t)
	here := "HOLDFAST_PORT=" + port
	holdfastIn(t, here+" HOLDFAST_HOST=127.0.0.1", "set", k, "v").want(t, "host and port", 0, "", "")
	holdfastIn(t, "HOLDFAST_HOST=mqtt://127.0.0.1:"+port, "get", k).want(t, "an address", 0, "v", "")
	holdfastIn(t, "HOLDFAST_HOST=nowhere.invalid HOLDFAST_PORT=1", "get", "-n", "localhost", "-p", port, k).want(t, "flags win", 0, "v", "")
	holdfastIn(t, "HOLDFAST_HOST=nowhere.invalid HOLDFAST_PORT=1", "-n", "localhost", "-p", port, "get", k).want(t, "flags before the command win", 0, "v", "")
	holdfastIn(t, "HOLDFAST_PORT=1", "get", "-n", "mqtt://127.0.0.1:"+port, k).want(t, "an address given as a flag wins", 0, "v", "")
	holdfastIn(t, "HOLDFAST_PORT=nonsense", "get", "-p", port, k).want(t, "what a flag replaces is not looked at", 0, "v", "")
	holdfastIn(t, here+" HOLDFAST_HOST= HOLDFAST_TIMEOUT= HOLDFAST_CAFILE=", "get", k).want(t, "empty ones don't count", 0, "v", "")
	holdfastIn(t, here+" HOLDFAST_TLS=true", "get", "--notls", k).want(t, "a flag that excludes a variable", 0, "v", "")
	holdfastIn(t, here+" HOLDFAST_USERNAME=olga HOLDFAST_PASSWORD=secret", "get", k).want(t, "credentials", 0, "v", "")
	holdfastIn(t, here+" HOLDFAST_USERNAME=some:body HOLDFAST_PASSWORD=", "get", k).want(t, "an empty password counts", 0, "v", "")
	for variables, want := range map[string]string{
		"HOLDFAST_PORT=99999":                              `HOLDFAST_PORT "99999": want a whole number from 0 to 65535`,
		"HOLDFAST_PORT=mqtt":                               `HOLDFAST_PORT "mqtt": want a whole number from 0 to 65535`,
		"HOLDFAST_TIMEOUT=5":                               `HOLDFAST_TIMEOUT "5": want a duration, for example 500ms, 10s or 2h`,
		"HOLDFAST_TIMEOUT=-5s":                             "HOLDFAST_TIMEOUT -5s: it must be positive",
		"HOLDFAST_TLS=maybe":                               `HOLDFAST_TLS "maybe": want true or false`,
		"HOLDFAST_CAFILE=/does/not/exist":                  "HOLDFAST_CAFILE: open /does/not/exist",
		"HOLDFAST_CERTFILE=cert.pem":                       "HOLDFAST_CERTFILE and --keyfile go together",
		"HOLDFAST_KEYPASSWORD=x HOLDFAST_TLS=1":            "HOLDFAST_KEYPASSWORD is for an encrypted --keyfile, and there is none",
		"HOLDFAST_USERNAME=a:b":                            `HOLDFAST_USERNAME holds "a" and a colon`,
		"HOLDFAST_HOST=ws://h HOLDFAST_PORT=1":             "HOLDFAST_PORT and an address with a scheme in HOLDFAST_HOST exclude each other",
		"HOLDFAST_HOST=http://h":                           "HOLDFAST_HOST",
		"HOLDFAST_HOST=nowhere.invalid":                    "cannot reach nowhere.invalid:1883: no such host",
		"HOLDFAST_HOST=127.0.0.1 HOLDFAST_PORT=1":          "cannot reach 127.0.0.1:1: connection refused",
		"HOLDFAST_TLS=true HOLDFAST_PORT=1 HOLDFAST_HOST=": "cannot reach localhost:1",
	} {
		holdfastIn(t, variables, "get", k).want(t, variables, 2, "", want)
	}
	for _, command := range []string{"get", "scan", "lock", "del"} {
		r := start(t, exec.Command(binary, command, "--help"), nil)
		for _, variable := range connect.Variables {
			if !strings.Contains(r.out, "["+variable+"]") {
				t.Errorf("the help of %s does not name %s", command, variable)
			}
		}
	}
}

// A password behind the user name, as other programs take it, would go to the
// server as a part of the name.
func TestPasswordBehindTheUserName(t *testing.T) {
	t.Parallel()
	k := key(t)
	holdfast(t, "set", "-u", "olga:secret", k, "v").want(t, "a password in -u", 2, "", `--username holds "olga" and a colon: give a password in HOLDFAST_PASSWORD`)
	if r := holdfast(t, "set", "-u", "olga:secret", k, "v"); strings.Contains(r.err, "secret") {
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
	for args, want := range map[string]string{
		"scan --key-encoding": "plain\nquoted\nbase64\n",
		"sub --qos":           "0\n1\n2\n",
	} {
		if r := run(append(append([]string{"__complete"}, strings.Fields(args)...), "")...); !strings.HasPrefix(r.out, want) {
			t.Errorf("%s completes to %q, want %q", args, r.out, want)
		}
	}
	if r := run("__complete", "get", ""); !strings.HasPrefix(r.out, ":4\n") { // no files, please
		t.Errorf("a key completes to %q", r.out)
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
