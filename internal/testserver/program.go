package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Program is the built program, running `holdfast serve`.
type Program struct {
	*process.Process
	Addr      string // host:port of MQTT over TCP; empty if it ended before it listened
	WebSocket string // host:port of MQTT over WebSocket, if it was asked for

	tb   testing.TB
	args []string // of the command
}

// Run runs `holdfast serve` with flags until the test ends, and waits until it listens:
// on any port of 127.0.0.1 and with new data, unless the flags say otherwise.
func Run(tb testing.TB, flags ...string) *Program {
	tb.Helper()
	p := Launch(tb, Command(tb, flags...)...)
	if p.Addr == "" {
		tb.Fatalf("the server ended before it listened; its output:\n%s", p.Output())
	}
	return p
}

// Command is the command line that [Run] runs.
func Command(tb testing.TB, flags ...string) []string {
	tb.Helper()
	args := []string{Binary(), "serve"}
	if !slices.Contains(flags, "--listen") {
		args = append(args, "--listen", "127.0.0.1:0")
	}
	if !slices.Contains(flags, "--data") {
		args = append(args, "--data", tb.TempDir())
	}
	return append(args, flags...)
}

// Launch runs a command line that runs the server until the test ends, and waits until
// the server listens or has ended.
func Launch(tb testing.TB, args ...string) *Program {
	tb.Helper()
	p := &Program{tb: tb, args: args}
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("output of the server on %s:\n%s", p.Addr, p.Output())
		}
	})
	p.StartAgain()
	return p
}

var (
	listens          = regexp.MustCompile(`holdfast listening on (\S+:\d+)`)
	listensWebSocket = regexp.MustCompile(`holdfast websocket on (\S+:\d+)`)
)

// StartAgain starts the server after its end, with the same command line.
func (p *Program) StartAgain() {
	p.tb.Helper()
	if err := p.start(); err != nil && p.Process == nil {
		p.tb.Fatal(err)
	}
}

func (p *Program) start() (err error) {
	if p.Process, err = process.Start(exec.Command(p.args[0], p.args[1:]...), listens); err != nil {
		return err
	}
	err = p.AwaitReady()
	p.Addr, p.WebSocket = submatch(listens, p.Output()), submatch(listensWebSocket, p.Output())
	return err
}

func submatch(re *regexp.Regexp, s string) string {
	if m := re.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return ""
}

// Restart kills the server and starts it again.
func (p *Program) Restart() {
	p.tb.Helper()
	p.Kill()
	p.StartAgain()
	if p.Addr == "" {
		p.tb.Fatalf("the server does not start again; its output:\n%s", p.Output())
	}
}

// Stop ends the server with SIGTERM, if it has not ended by itself, and returns its
// exit status.
func (p *Program) Stop() (status int) {
	p.tb.Helper()
	if !p.Process.Stop(process.Patience) {
		p.tb.Errorf("the server did not end within %v of SIGTERM", process.Patience)
	}
	return p.State().ExitCode()
}

// Port is the port of Addr.
func (p *Program) Port() string {
	_, port, _ := net.SplitHostPort(p.Addr)
	return port
}

// FreeAddress is an address for a server that is restarted on it: no other listener or
// connection gets its port meanwhile.
func FreeAddress() string {
	addr, err := process.UnusedAddress()
	check(err)
	return addr
}

// What the tests of a package share, and Main ends.
var (
	dir = sync.OnceValue(func() string {
		d, err := os.MkdirTemp("", "holdfast-test-")
		check(err)
		atEnd(func() error { return os.RemoveAll(d) })
		return d
	})
	atEndMu sync.Mutex
	atEnds  []func() error // guarded by atEndMu
)

func atEnd(f func() error) {
	atEndMu.Lock()
	defer atEndMu.Unlock()
	atEnds = append(atEnds, f)
}

func end() (err error) {
	for _, f := range slices.Backward(atEnds) {
		err = errors.Join(err, f())
	}
	return err
}

// check ends the tests of the package if they can't run.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(err, end()))
		os.Exit(1)
	}
}

// Main runs the tests of a package, and then ends and removes what they share, which must
// succeed. It does not return.
func Main(m *testing.M) {
	code := m.Run()
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// Binary is the path of the program, which is built on the first call.
func Binary() string { return binary() }

var binary = sync.OnceValue(func() string { return Build(process.Holdfast) })

// Build compiles a main package of this module for the tests of a package.
func Build(pkg string) (path string) {
	path, err := process.Build(dir(), pkg)
	check(err)
	return path
}

// Shared is a run of the program for all tests of a package that keep to keys and topics
// of their own. It must not be stopped.
func Shared() *Program { return shared() }

var shared = sync.OnceValue(func() *Program {
	data, err := os.MkdirTemp(dir(), "data-")
	check(err)
	p := &Program{args: []string{Binary(), "serve", "--listen", "127.0.0.1:0", "--data", data}}
	check(p.start())
	atEnd(func() error { p.Kill(); return nil })
	return p
})

// StartShared runs a server in this process until [Main] ends: for all tests of a package
// that keep to keys and topics of their own.
func StartShared(change ...func(*server.Config)) *server.Server {
	data, err := os.MkdirTemp(dir(), "data-")
	check(err)
	s, err := server.Start(config(data, change...))
	check(err)
	atEnd(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		defer cancel()
		return s.Shutdown(ctx)
	})
	return s
}

// ForExample is the address of a new server in this process, for an Example, which has
// no test that could end it.
func ForExample() (addr string) { return StartShared().Addrs()[0].String() }
