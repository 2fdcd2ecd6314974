package client_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
)

// patience is how long anything may take before it counts as never happening.
const patience = 20 * time.Second

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-client-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "holdfast")
	if out, err := exec.Command("go", "build", "-o", binary, "holdfast/cmd/holdfast").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the server: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if shared.server != nil {
		shared.server.stop()
	}
	return code
}

// server is a running `holdfast serve`.
type server struct {
	addr string // host:port of MQTT over TCP
	ws   string // host:port of MQTT over WebSocket, if asked for
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and been waited for
}

var (
	listening   = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	listeningWS = regexp.MustCompile(`websocket on (127\.0\.0\.1:\d+)`)
)

// launch starts a server and waits until it listens.
func launch(args ...string) (*server, error) {
	s := &server{cmd: exec.Command(binary, append([]string{"serve"}, args...)...), done: make(chan struct{})}
	r, w := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr = w, w
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
		_ = w.Close()
	}()
	var said strings.Builder
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		if m := listeningWS.FindStringSubmatch(lines.Text()); m != nil {
			s.ws = m[1]
		}
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			s.addr = m[1]
			go func() { _, _ = io.Copy(io.Discard, r) }()
			return s, nil
		}
	}
	return nil, fmt.Errorf("the server ended before it listened; it said:\n%s", said.String())
}

// stop ends the server well.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.done
}

// kill ends it as a power failure would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// startServer gives a test a server of its own.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s, err := launch(append([]string{"--listen", "127.0.0.1:0", "--data", t.TempDir()}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

var shared struct {
	once   sync.Once
	server *server
	err    error
}

// sharedServer is for tests that keep to keys of their own.
func sharedServer(t *testing.T) *server {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp(filepath.Dir(binary), "data-")
		if err != nil {
			shared.err = err
			return
		}
		shared.server, shared.err = launch("--listen", "127.0.0.1:0", "--data", dir)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// dial connects a client that is closed with the test.
func dial(t *testing.T, address string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(within(t, patience), address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within is a context that ends with the test at the latest.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// key is a key that no other test uses, nor the same test when it runs again.
func key(t *testing.T, name string) string {
	run, _ := runs.LoadOrStore(t, runCount.Add(1))
	return fmt.Sprintf("%s#%d/%s", t.Name(), run, name)
}

var (
	runs     sync.Map // *testing.T → number
	runCount atomic.Int64
)

func mustSet(t *testing.T, c *client.Client, k, value string, opts ...client.SetOption) {
	t.Helper()
	_, applied, err := c.Set(within(t, patience), k, []byte(value), opts...)
	if err != nil || !applied {
		t.Fatalf("Set(%q, %q): applied %v, error %v", k, value, applied, err)
	}
}

func mustGet(t *testing.T, c *client.Client, k string) client.Value {
	t.Helper()
	v, found, err := c.Get(within(t, patience), k)
	if err != nil || !found {
		t.Fatalf("Get(%q): found %v, error %v", k, found, err)
	}
	return v
}

// next is the next event of a watch.
func next(t *testing.T, w *client.Watch) client.Event {
	t.Helper()
	select {
	case e, ok := <-w.Events():
		if !ok {
			t.Fatalf("the watch has ended: %v", w.Err())
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event came")
	}
	panic("unreachable")
}

// eventually waits for something that nobody announces.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// proxy stands between client and server, and can fail in the ways of a
// network. It passes everything on until it is told otherwise.
type proxy struct {
	addr   string
	target string

	mu       sync.Mutex
	open     []net.Conn    // both sides of every connection
	refusing bool          // new connections are closed at once
	gate     chan struct{} // not nil: what the server says waits for it to be closed
	upstream int           // bytes that came from clients
	accepted int           // connections that were passed on
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), target: target}
	t.Cleanup(func() {
		_ = l.Close()
		p.release()
		p.cut()
	})
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			p.pass(nc)
		}
	}()
	return p
}

func (p *proxy) pass(in net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusing {
		_ = in.Close()
		return
	}
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = in.Close()
		return
	}
	p.accepted++
	p.open = append(p.open, in, out)
	go p.copy(out, in, true)
	go p.copy(in, out, false)
}

func (p *proxy) copy(to, from net.Conn, up bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			p.mu.Lock()
			gate := p.gate
			p.mu.Unlock()
			if !up && gate != nil {
				<-gate
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
			if up {
				p.mu.Lock()
				p.upstream += n
				p.mu.Unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

// hold keeps back what the server says from now on.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// release lets it through again.
func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, nc := range p.open {
		_ = nc.(*net.TCPConn).SetLinger(0)
		_ = nc.Close()
	}
	p.open = nil
}

// refuse says whether new connections fail.
func (p *proxy) refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = yes
}

// sent is how many bytes clients have sent.
func (p *proxy) sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstream
}

// connections is how many have been made.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}
