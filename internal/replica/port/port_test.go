package port

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

const patience = time.Minute

// listen opens a port until the test ends, and gives what it logs.
func listen(t *testing.T) (p *Port, text *logs.Text) {
	t.Helper()
	text = &logs.Text{}
	p, err := Listen(Options{Address: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(text, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, text
}

// Each connection goes to the handler of what it begins with; another one is closed.
func TestConnectionsAreToldApart(t *testing.T) {
	t.Parallel()
	p, _ := listen(t)
	for _, name := range []string{"one", "two"} {
		p.Handle("holdfast test "+name[:2], func(c net.Conn) {
			defer c.Close()
			line, _ := bufio.NewReader(c).ReadString('\n')
			_, _ = io.WriteString(c, name+" has "+line)
		})
	}
	p.Serve()
	for magic, want := range map[string]string{"holdfast test on": "one has it\n", "holdfast test tw": "two has it\n", "something else..": ""} {
		c, err := p.Dial(context.Background(), p.Addr().String(), magic)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, "it\n")
		got, _ := io.ReadAll(c) // a connection that is closed may be reset
		if string(got) != want {
			t.Errorf("%q: got %q, want %q", magic, got, want)
		}
		_ = c.Close()
	}
}

// Connections that say nothing take a bounded number of places, and no node has to wait for one
// of them: the oldest ends.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	p, _ := listen(t)
	p.patience = time.Hour
	p.Handle("holdfast test on", func(c net.Conn) { _ = c.Close() })
	p.Serve()
	var strangers []net.Conn
	for range maxStrangers {
		c, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		strangers = append(strangers, c)
	}
	for end := time.Now().Add(patience); p.strangers.Under() < maxStrangers; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d places are taken of %d", p.strangers.Under(), maxStrangers)
		}
	}
	if ended := p.strangers.Ended(); ended != 0 {
		t.Fatalf("%d connections were ended, and there is a place for each", ended)
	}
	node, err := p.Dial(context.Background(), p.Addr().String(), "holdfast test on")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	_ = node.SetDeadline(time.Now().Add(patience))
	if _, err := node.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a node: %v, want that its handler has closed the connection", err)
	}
	if _, err := strangers[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection that has said nothing: %v, want that it was ended", err)
	}
	if ended := p.strangers.Ended(); ended != 1 {
		t.Errorf("%d connections were ended, want 1", ended)
	}
}

// full is a listener of a process that has no descriptor left for its first connections.
type full struct {
	net.Listener
	failures int
}

func (l *full) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

// When no descriptor is left the log says so, and the port goes on when there is one.
func TestConnectionsThatCannotBeAccepted(t *testing.T) {
	t.Parallel()
	p, text := listen(t)
	p.listener = &full{p.listener, 3}
	p.Handle("holdfast test on", func(c net.Conn) { _ = c.Close() })
	p.Serve()
	c, err := p.Dial(context.Background(), p.Addr().String(), "holdfast test on")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a node: %v, want that its handler has closed the connection", err)
	}
	if lines := text.Take(); len(lines) != 1 || !strings.Contains(lines[0], "cannot accept") || !strings.Contains(lines[0], "too many open files") {
		t.Errorf("the log: %q", lines)
	}
}

func TestAddressBeyondLoopbackNeedsTLS(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "node-a:7001"} {
		if _, err := Listen(Options{Address: address}); !errors.Is(err, ErrNeedsTLS) {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := NewDialer(nil, nil).Dial(context.Background(), address, "holdfast test on"); !errors.Is(err, ErrNeedsTLS) {
			t.Errorf("to %s: %v", address, err)
		}
	}
	for _, address := range []string{"127.0.0.1:7001", "127.9.9.9:7001", "[::1]:7001", "[::ffff:127.0.0.1]:7001", "localhost:7001"} {
		if !isLoopback(address) {
			t.Errorf("%s is not taken for a loopback address", address)
		}
	}
}

// While a node starts, others may know already what it does not take yet: that is no reason to
// warn of another program.
func TestOthersAreFasterWhileANodeStarts(t *testing.T) {
	t.Parallel()
	p, text := listen(t)
	p.Serve()
	connect := func(magic string) {
		t.Helper()
		c, err := p.Dial(context.Background(), p.Addr().String(), magic)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	const newer = "holdfast nodes 9"
	connect(newer)
	if lines := text.Take(); len(lines) > 0 {
		t.Errorf("while it starts: %q", lines)
	}
	p.Complete()
	connect(newer)
	if lines := text.Take(); len(lines) != 1 || !strings.Contains(lines[0], "which this program does not know") {
		t.Errorf("then: %q", lines)
	}
	connect("\x16\x03\x01\x05\xaa\x01\x00\x05\xa6\x03\x03\xed\xcd\x07\xca\xd0") // of a node with certificates
	if lines := text.Take(); len(lines) != 1 || !strings.Contains(lines[0], "the other node speaks TLS, and this one does not") {
		t.Errorf("to a node with TLS: %q", lines)
	}
}
