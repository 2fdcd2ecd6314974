package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// How long anything in this module may take before it counts as never
// happening. Nothing waits this long when all is well.
const patience = time.Minute

// binary is the built server, set by TestMain.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)

	binary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", binary, "./cmd/holdfast")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil && os.Getenv("HOLDFAST_INTEROP_TCP") == "" {
		fmt.Fprintf(os.Stderr, "building the server (go build ./cmd/holdfast in the directory above): %v\n%s", err, out)
		return 1
	}

	if err := secure(dir, os.Getenv("HOLDFAST_INTEROP")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	code := m.Run()
	if err := endSharedCluster(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if started := sharedServer.running; started != nil {
		if err := started.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "the server that the tests shared did not shut down well: %v\n", err)
			code = 1
		}
		if code != 0 {
			fmt.Fprintf(os.Stderr, "last output of the server that the tests shared:\n%s\n", started.output.tail())
		}
	}
	return code
}

// How servers and clients of the tests prove who they are, as HOLDFAST_INTEROP says.
var (
	// site is a directory of certificates that `holdfast init` has made, if everything is
	// to run over mutual TLS: every server asks for certificates, and every client shows
	// one.
	site string
	// passwords is a password file that has user, if every client logs in as that user.
	passwords string
	// policy is a policy that allows what the tests need, if servers have one.
	policy string
)

// user logs in with userPassword where servers have passwords.
const (
	user         = "interop"
	userPassword = "secret of interop"
)

// secure prepares what the words of HOLDFAST_INTEROP ask for, in a directory.
func secure(dir, words string) error {
	environment := map[string]string{} // of our own client
	for word := range strings.SplitSeq(words, ",") {
		switch word {
		case "":
		case "tls":
			site = filepath.Join(dir, "site")
			if out, err := exec.Command(binary, "init", site).CombinedOutput(); err != nil {
				return fmt.Errorf("holdfast init: %w\n%s", err, out)
			}
			environment["CAFILE"], environment["CERTFILE"], environment["KEYFILE"] = siteFile("ca.crt"), siteFile("admin.crt"), siteFile("admin.key")
		case "password":
			passwords = filepath.Join(dir, "passwords")
			if out, err := exec.Command(binary, "passwd", passwords, user, "-b", userPassword).CombinedOutput(); err != nil {
				return fmt.Errorf("holdfast passwd: %w\n%s", err, out)
			}
			environment["USERNAME"], environment["PASSWORD"] = user, userPassword
		case "policy":
			var err error
			if policy, err = filepath.Abs(filepath.Join("testdata", "policy.yaml")); err != nil {
				return err
			}
		case "failovers":
			underFailovers = true
		default:
			return fmt.Errorf("HOLDFAST_INTEROP=%s: unknown word %q; want tls, password, policy, failovers, or several of them with commas", words, word)
		}
	}
	for variable, value := range environment {
		if err := os.Setenv("HOLDFAST_"+variable, value); err != nil {
			return err
		}
	}
	return nil
}

func siteFile(name string) string { return filepath.Join(site, name) }

// scheme is how URLs of a server begin.
func scheme(name string) string {
	if site != "" {
		return name + "s://"
	}
	return name + "://"
}

// server is one running holdfast process.
type server struct {
	tcp, ws string // host:port
	dir     string
	flags   []string
	logins  bool // clients log in with userPassword
	output  *output
	process *os.Process
	exited  chan struct{} // closed once waitErr is set
	waitErr error
	others  []*server // nodes of the same cluster
}

var (
	tcpLine = regexp.MustCompile(`(?m)listening on (?:mqtts://)?(127\.0\.0\.1:\d+)`)
	wsLine  = regexp.MustCompile(`(?m)websocket on (?:wss://)?(127\.0\.0\.1:\d+)`)
)

// tls says whether clients show certificates to the server: to ours, but not to a
// Mosquitto that is bridged to it.
func (s *server) tls() bool { return site != "" && s.process != nil }

// startServer runs `holdfast serve` on a data directory, with the passwords and the policy
// that HOLDFAST_INTEROP asks for, and returns when both of its listeners accept. listen is
// an address for TCP, port 0 for any; flags are more of its flags.
func startServer(dir, listen string, flags ...string) (*server, error) {
	var given []string
	if passwords != "" {
		given = append(given, "--password-file", passwords)
	}
	if policy != "" {
		given = append(given, "--policy", policy)
	}
	s, err := startServerWith(dir, listen, append(given, flags...)...)
	if err == nil {
		s.logins = passwords != ""
	}
	return s, err
}

// startServerWith is startServer with no passwords and no policy but those in flags.
func startServerWith(dir, listen string, flags ...string) (*server, error) {
	args := []string{"serve", "--listen", scheme("mqtt") + listen, "--listen", scheme("ws") + "127.0.0.1:0", "--data", dir}
	if site != "" {
		args = append(args, "--tls-cert", siteFile("server.crt"), "--tls-key", siteFile("server.key"), "--tls-client-ca", siteFile("ca.crt"), "--tls-crl", siteFile("ca.crl"))
	}
	cmd := exec.Command(binary, append(args, flags...)...)
	s := &server{dir: dir, flags: flags, output: &output{changed: make(chan struct{}, 1)}, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the server: %w", err)
	}
	s.process = cmd.Process
	go func() {
		s.waitErr = cmd.Wait()
		close(s.exited)
	}()

	deadline := time.After(patience)
	for {
		text := s.output.String()
		tcp, ws := tcpLine.FindStringSubmatch(text), wsLine.FindStringSubmatch(text)
		if tcp != nil && ws != nil {
			s.tcp, s.ws = tcp[1], ws[1]
			return s, nil
		}
		select {
		case <-s.output.changed:
		case <-s.exited:
			return nil, fmt.Errorf("the server exited (%w) before it listened:\n%s", s.waitErr, s.output.tail())
		case <-deadline:
			s.kill()
			return nil, fmt.Errorf("the server did not say where it listens within %v:\n%s", patience, s.output.tail())
		}
	}
}

// kill is kill -9: the process gets no chance to write anything more.
func (s *server) kill() {
	_ = s.process.Kill()
	<-s.exited
}

// stop asks the server to shut down and returns an error unless it exits with
// status 0 in time.
func (s *server) stop() error {
	select {
	case <-s.exited:
		return fmt.Errorf("the server had already exited: %v", s.waitErr)
	default:
	}
	if err := s.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.exited:
		return s.waitErr
	case <-time.After(patience):
		s.kill()
		return errors.New("still running long after SIGTERM")
	}
}

// ownServer starts a server that only this test uses, on a port that a restart
// can take again.
func ownServer(t *testing.T, flags ...string) *server {
	t.Helper()
	s, err := startServer(t.TempDir(), steadyAddress(t), flags...)
	return s.own(t, err)
}

// ownServerWith is ownServer with no passwords and no policy but those in flags.
func ownServerWith(t *testing.T, flags ...string) *server {
	t.Helper()
	s, err := startServerWith(t.TempDir(), steadyAddress(t), flags...)
	return s.own(t, err)
}

// own ends a server with the test, which fails if it could not be started.
func (s *server) own(t *testing.T, err error) *server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("last output of this test's server:\n%s", s.output.tail())
		}
	})
	return s
}

// restart starts a server of ownServer that is gone again, on the same directory and address.
func (s *server) restart(t *testing.T) {
	t.Helper()
	next, err := startServerWith(s.dir, s.tcp, s.flags...)
	if err != nil {
		t.Fatalf("restarting: %v", err)
	}
	next.logins = s.logins
	*s = *next
}

// steadyAddress is a free address that neither another test nor an outgoing connection takes while no server
// listens there.
func steadyAddress(t *testing.T) string {
	t.Helper()
	address, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// sharedServer is the one that every test uses that doesn't need its own.
var sharedServer struct {
	sync.Mutex
	running *server
	err     error
}

// shared returns the server that tests share, starting it for the first of them.
// With HOLDFAST_INTEROP_TCP it is another broker, which isn't ours to stop.
func shared(t *testing.T) *server {
	t.Helper()
	if tcp := os.Getenv("HOLDFAST_INTEROP_TCP"); tcp != "" {
		return &server{tcp: tcp, ws: os.Getenv("HOLDFAST_INTEROP_WS")}
	}
	if underFailovers {
		nodes := sharedNodes(t)
		return &server{tcp: nodes[0].tcp, logins: nodes[0].logins, others: nodes[1:]}
	}
	sharedServer.Lock()
	defer sharedServer.Unlock()
	if sharedServer.running == nil && sharedServer.err == nil {
		sharedServer.running, sharedServer.err = startServer(
			filepath.Join(filepath.Dir(binary), "data"), "127.0.0.1:0")
	}
	if sharedServer.err != nil {
		t.Fatal(sharedServer.err)
	}
	return sharedServer.running
}

// output keeps what a process printed. Safe for concurrent use.
type output struct {
	changed chan struct{} // of capacity 1: something was written since it was last empty
	mu      sync.Mutex
	text    bytes.Buffer // mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	select {
	case o.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// tail is what a person wants to see of a failure: the last 4 KB.
func (o *output) tail() string {
	text := o.String()
	return text[max(0, len(text)-4096):]
}

// deadline is a context for one test: it ends before the test's cleanups run and
// never later than patience allows.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// receive takes one value that must come.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v, ok := <-from:
		if !ok {
			t.Fatalf("closed instead of %s", what)
		}
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}
