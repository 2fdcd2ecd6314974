package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

const patience = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// node accepts connections.
func node(t *testing.T) (address string, accepted <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	conns := make(chan net.Conn, 16)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			conns <- nc
		}
	}()
	return l.Addr().String(), conns
}

// deadNode is an address at which connections are refused.
func deadNode(t *testing.T) string {
	t.Helper()
	address, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// servers are those of addresses, with TLS if it is not nil.
func servers(t *testing.T, addresses string, config *tls.Config) *Servers {
	t.Helper()
	s, err := To(addresses, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each connection of a client that comes again is to the next node, and dead nodes are left out.
func TestNodesInTurn(t *testing.T) {
	t.Parallel()
	a, _ := node(t)
	b := deadNode(t)
	c, _ := node(t)
	s := servers(t, a+", mqtt://"+b+","+c, nil)
	if s.Len() != 3 || s.Reached() != a+", mqtt://"+b+","+c {
		t.Errorf("%d addresses, %q before the first connection", s.Len(), s.Reached())
	}
	for i, want := range []string{a, c, a, c} {
		nc, err := s.Dial(within(t))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if got := nc.RemoteAddr().String(); got != want || s.Reached() != want {
			t.Errorf("connection %d is to %s, and said to be to %s; want %s", i, got, s.Reached(), want)
		}
	}
}

// A caller that makes Servers anew for each attempt says where to begin.
func TestStartAt(t *testing.T) {
	t.Parallel()
	a, _ := node(t)
	b, _ := node(t)
	for n, want := range []string{a, b, a} {
		s := servers(t, a+","+b, nil)
		s.StartAt(n)
		nc, err := s.Dial(within(t))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if got := nc.RemoteAddr().String(); got != want {
			t.Errorf("attempt %d reached %s, want %s", n, got, want)
		}
	}
}

// A node that does not answer, as one that is paused or has no power, does not hold the client up. The
// connection to it ends when another node has answered.
func TestNodeThatIsSilent(t *testing.T) {
	t.Parallel()
	silent, accepted := node(t) // says nothing to a TLS handshake
	good, _ := node(t)
	s := servers(t, "mqtts://"+silent+",mqtt://"+good, &tls.Config{})
	nc, err := s.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := nc.RemoteAddr().String(); got != good {
		t.Errorf("reached %s, want %s", got, good)
	}
	if _, err := io.Copy(io.Discard, <-accepted); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection to the silent node: %v", err)
	}
}

// If no node answers, the error says for each of them why.
func TestNoNodeAnswers(t *testing.T) {
	t.Parallel()
	dead, gone := deadNode(t), deadNode(t)
	s := servers(t, dead+","+gone, nil)
	_, err := s.Dial(within(t))
	var failures *Failures
	if !errors.As(err, &failures) || len(failures.Errs) != 2 || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("%v", err)
	}
	if text := err.Error(); !strings.Contains(text, dead+": ") || !strings.Contains(text, gone+": ") || s.Reached() != dead+","+gone {
		t.Errorf("%s; reached %s", text, s.Reached())
	}
}

// The end of the context ends the attempts at all nodes.
func TestSilentNodesAndTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	a, accepted := node(t)
	b, _ := node(t)
	s := servers(t, "mqtts://"+a+",mqtts://"+b, &tls.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-accepted; cancel() }()
	if nc, err := s.Dial(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", nc, err)
	}
}
