package transport

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// patience bounds every wait of the tests; nothing is timed by it.
const patience = time.Minute

// kind is one way to be connected.
type kind struct {
	name string
	pair func(t testing.TB) (server, client net.Conn)
}

// kinds are the raw path and the plain ones.
var kinds = []kind{
	{"tcp", tcpPair},
	{"unix", unixPair},
	{"pipe", pipePair},
	{"tls", tlsPair},
	{"tls of another kind", otherTLSPair},
	{"websocket", webSocketPair},
}

// overKinds runs a test on every kind of connection.
func overKinds(t *testing.T, f func(t *testing.T, k kind)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			f(t, k)
		})
	}
}

func tcpPair(t testing.TB) (server, client net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	return pairOf(t, ln, err)
}

func unixPair(t testing.TB) (server, client net.Conn) {
	dir, err := os.MkdirTemp("", "transport") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	return pairOf(t, ln, err)
}

func pairOf(t testing.TB, ln net.Listener, err error) (server, client net.Conn) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err = net.Dial(ln.Addr().Network(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return bounded(t, server, client)
}

// bounded makes a test that hangs fail, and closes both ends after it.
func bounded(t testing.TB, server, client net.Conn) (net.Conn, net.Conn) {
	t.Cleanup(func() { server.Close(); client.Close() })
	client.SetDeadline(time.Now().Add(patience))
	return server, client
}

func pipePair(t testing.TB) (server, client net.Conn) {
	server, client = net.Pipe()
	return bounded(t, server, client)
}

func tlsPair(t testing.TB) (server, client net.Conn) {
	s, c := tcpPair(t)
	ours := NewTLSConn(s, testTLS(t))
	theirs := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	go theirs.Handshake()
	if err := ours.Handshake(); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// otherTLSPair takes the plain path.
func otherTLSPair(t testing.TB) (server, client net.Conn) {
	ours, theirs := tlsPair(t)
	return otherConn{ours}, theirs
}

type otherConn struct{ net.Conn }

func (c otherConn) NetConn() net.Conn { return c.Conn }

// kill ends the client's side without a word.
func kill(client net.Conn) {
	if c, ok := client.(webSocketClient); ok {
		client = c.socket
	}
	sockets.Close(client)
}

// newConn is a Conn that ends with the test.
func newConn(t testing.TB, nc net.Conn, f *Flushers, o Options) *Conn {
	c := NewConn(nc, f, o)
	t.Cleanup(func() { c.Close() })
	return c
}

func newFlushers(t testing.TB) *Flushers {
	f := NewFlushers(2, NewGate())
	t.Cleanup(f.Close)
	return f
}

// send appends p and flushes.
func send(c *Conn, p []byte) {
	c.Lock()
	c.Append(p)
	c.Unlock()
	c.Flush()
}

// receive reads n bytes with Fill.
func receive(t testing.TB, c *Conn, n int) []byte {
	t.Helper()
	var got []byte
	for len(got) < n {
		if err := c.Fill(0); err != nil {
			t.Fatalf("Fill after %d of %d bytes: %v", len(got), n, err)
		}
		got = append(got, c.Buffered()...)
		c.Discard(len(c.Buffered()))
	}
	return got
}

// noise is n bytes that repeat nowhere.
func noise(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(p)
	return p
}

// within fails the test if f has not returned in time.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: still waiting after %v", what, patience)
	}
}

// eventually polls for a state that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// stall writes more than the system can hold for a peer that does not read, so
// that at least 1 MiB stays here until it does. It returns what was sent.
func stall(t testing.TB, c *Conn) []byte {
	t.Helper()
	limitSendBuffer(c.nc)
	sent := noise(2 << 20)
	for rest := sent; len(rest) > 0; {
		n := min(len(rest), 50_000)
		send(c, rest[:n])
		rest = rest[n:]
	}
	return sent
}

// limitSendBuffer keeps the system from taking megabytes for a peer. What the
// peer's side holds only grows with what the peer reads.
func limitSendBuffer(nc net.Conn) {
	switch nc := nc.(type) {
	case interface{ NetConn() net.Conn }:
		limitSendBuffer(nc.NetConn())
	case interface{ SetWriteBuffer(int) error }:
		nc.SetWriteBuffer(64 << 10)
	}
}

func mustEqual(t testing.TB, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	t.Fatalf("got %d bytes, want %d; they differ from byte %d on", len(got), len(want), i)
}

func TestEcho(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		want := noise(300_000)
		go client.Write(want)
		within(t, "echo", func() {
			go func() {
				for c.Fill(0) == nil {
					send(c, c.Buffered())
					c.Discard(len(c.Buffered()))
				}
			}()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(client, got); err != nil {
				t.Error(err)
			}
			mustEqual(t, got, want)
		})
	})
}

func TestFillReportsTheEndOfTheStream(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		go func() { client.Write([]byte("last words")); client.Close() }()
		if got := receive(t, c, 10); string(got) != "last words" {
			t.Errorf("got %q", got)
		}
		if err := c.Fill(0); !errors.Is(err, io.EOF) {
			t.Errorf("Fill = %v, want EOF", err)
		}
		if len(c.Buffered()) != 0 {
			t.Errorf("%q is buffered after an error", c.Buffered())
		}
	})
}
