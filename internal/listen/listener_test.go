package listen_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// patience bounds every wait of the tests; nothing is timed by it.
const patience = time.Minute

// listener is a listener of a test.
type listener struct {
	*listen.Listener
	t          *testing.T
	handshakes *sockets.Handshakes
	log        *lines
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func open(t *testing.T, url string, change ...func(*listen.Config, *listen.Options)) *listener {
	t.Helper()
	return openWith(t, url, listen.Open, change...)
}

func openWith(t *testing.T, url string, open func(listen.Config, listen.Options) (*listen.Listener, error), change ...func(*listen.Config, *listen.Options)) *listener {
	t.Helper()
	u, err := listen.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t: t, log: &lines{}}
	c := listen.Config{URL: u}
	o := listen.Options{
		Handshakes: sockets.NewHandshakes(100), Turns: transport.NewTurns(1), Timeout: patience,
		Logger: slog.New(slog.NewTextHandler(l.log, nil)),
	}
	for _, f := range change {
		f(&c, &o)
	}
	l.handshakes = o.Handshakes
	if l.Listener, err = open(c, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects to the port of the listener.
func (l *listener) dial() net.Conn {
	l.t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// accept waits for a connection that is ready.
func (l *listener) accept() net.Conn {
	l.t.Helper()
	c, err := l.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { sockets.Close(c) })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// wantPassed checks that what one end writes the other reads, both ways.
func wantPassed(t *testing.T, client, server net.Conn) {
	t.Helper()
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go way[0].Write([]byte("hello"))
		got := make([]byte, 5)
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "hello" {
			t.Fatalf("read %q, %v", got, err)
		}
	}
}

// wantEnded checks that the listener has ended a connection.
func wantEnded(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection was not ended: %v", err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

func TestPlainTCP(t *testing.T) {
	t.Parallel()
	l := open(t, "127.0.0.1:0", func(c *listen.Config, _ *listen.Options) { c.Anonymous = true })
	client := l.dial()
	server := l.accept()
	wantPassed(t, client, server)
	o := access.OriginOf(server)
	if o.Listener == nil || !o.Listener.Anonymous || o.Listener.Name != "mqtt://127.0.0.1:0" || o.TLS != nil || o.Remote.String() != client.LocalAddr().String() {
		t.Errorf("the origin is %+v", o)
	}
	if !sockets.IsLoopback(server.RemoteAddr()) {
		t.Error("a client on this machine is not on this machine")
	}
	if u := l.URL(); u.Scheme != listen.MQTT || u.Host != l.Addr().String() {
		t.Errorf("the URL is %s", u)
	}
}

func withTLS(files certs.Files) func(*listen.Config, *listen.Options) {
	return func(c *listen.Config, _ *listen.Options) { c.TLS = files }
}

func TestTLSSaysWhoTheClientIs(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	l := open(t, "mqtts://127.0.0.1:0", withTLS(a.Mutual("server")))
	client := tls.Client(l.dial(), a.Client("press-7"))
	go client.Handshake()
	server := l.accept()
	wantPassed(t, client, server)
	state := access.OriginOf(server).TLS
	if state == nil || !state.HandshakeComplete || len(state.VerifiedChains) != 1 || state.PeerCertificates[0].Subject.CommonName != "press-7" {
		t.Errorf("the state of TLS is %+v", state)
	}
	// As the broker uses it: on the path that doesn't wait.
	c := transport.NewConn(server, nil, transport.Options{})
	client.Write([]byte("again"))
	for len(c.Buffered()) < 5 {
		if err := c.Fill(0); err != nil {
			t.Fatal(err)
		}
	}
	c.Lock()
	c.Append(c.Buffered())
	c.Unlock()
	c.Shut(patience)
	if got, err := io.ReadAll(client); string(got) != "again" || err != nil { // io.EOF, because the server says goodbye
		t.Errorf("read %q, %v", got, err)
	}
}

func TestWebSocketOverTLS(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	l := open(t, "wss://127.0.0.1:0/mqtt", withTLS(a.Mutual("server")))
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: a.Client("panel-1")}}
	dial := func(path string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(context.Background(), "wss://"+l.Addr().String()+path, &websocket.DialOptions{HTTPClient: browser, Subprotocols: []string{"mqtt"}})
	}
	ws, _, err := dial("/mqtt")
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	server := l.accept()
	wantPassed(t, websocket.NetConn(context.Background(), ws, websocket.MessageBinary), server)
	o := access.OriginOf(server)
	if o.TLS == nil || o.TLS.PeerCertificates[0].Subject.CommonName != "panel-1" || o.Listener == nil {
		t.Errorf("the origin is %+v", o)
	}
	if _, r, err := dial("/other"); err == nil || r == nil || r.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %v", err)
	}
}

// A handshake that doesn't go on holds up no other connection, and ends at its deadline.
func TestHandshakesDelayNoOtherClient(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	l := open(t, "mqtts://127.0.0.1:0", withTLS(a.Server("server")))
	for _, beginning := range []string{"", "\x16", "\x16\x03\x01\x40\x00"} {
		l.dial().Write([]byte(beginning))
	}
	client := tls.Client(l.dial(), a.Trust())
	go client.Handshake()
	wantPassed(t, client, l.accept())
}

func TestHandshakeHasADeadline(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for name, proxy := range map[string]bool{"TLS": false, "a PROXY header": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t, "mqtts://127.0.0.1:0", withTLS(a.Server(strings.ReplaceAll(name, " ", "-"))), func(c *listen.Config, o *listen.Options) {
				c.Proxy = proxy
				o.Timeout = 20 * time.Millisecond
			})
			silent := l.dial()
			wantEnded(t, silent)
			eventually(t, "no handshake is under way", func() bool { return l.handshakes.Under() == 0 })
		})
	}
}

// At the bound of handshakes one more ends the oldest, and is done itself.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	const most = 5
	l := open(t, "mqtts://127.0.0.1:0", withTLS(a.Server("server")), func(_ *listen.Config, o *listen.Options) { o.Handshakes = sockets.NewHandshakes(most) })
	var silent []net.Conn
	for i := range most {
		silent = append(silent, l.dial())
		eventually(t, "the handshake is under way", func() bool { return l.handshakes.Under() == i+1 })
	}
	if n := l.handshakes.Ended(); n != 0 {
		t.Errorf("%d handshakes were ended at the bound", n)
	}
	client := tls.Client(l.dial(), a.Trust())
	if err := client.Handshake(); err != nil {
		t.Fatalf("one more: %v", err)
	}
	wantEnded(t, silent[0])
	if n := l.handshakes.Ended(); n != 1 {
		t.Errorf("%d handshakes were ended, want 1", n)
	}
	wantPassed(t, client, l.accept())
}

// A client that goes on and on in its handshake is ended.
func TestHandshakeIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	l := open(t, "mqtts://127.0.0.1:0", withTLS(a.Server("server")))
	c := l.dial()
	// A ClientHello of 64 KiB, in records of 1 KiB.
	fragment := make([]byte, 1<<10)
	for i := range 64 {
		record := binary.BigEndian.AppendUint16([]byte{22, 3, 1}, uint16(len(fragment)))
		if i == 0 {
			copy(fragment, []byte{1, 0, 0xFC, 0})
		}
		if _, err := c.Write(append(record, fragment...)); err != nil {
			break
		}
		clear(fragment)
	}
	wantEnded(t, c)
	eventually(t, "the log says why", func() bool { return strings.Contains(l.log.String(), "too many bytes in its TLS handshake") })
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for _, url := range []string{"mqtt://127.0.0.1:0", "mqtts://127.0.0.1:0"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			l := open(t, url, func(c *listen.Config, _ *listen.Options) {
				c.MaxConnections = 2
				if c.URL.IsTLS() {
					c.TLS = a.Server("server")
				}
			})
			connect := func() net.Conn {
				c := l.dial()
				if !l.URL().IsTLS() {
					return c
				}
				client := tls.Client(c, a.Trust())
				go client.Handshake()
				return client
			}
			first, firstServer := connect(), l.accept()
			second, secondServer := connect(), l.accept()
			wantPassed(t, first, firstServer)
			// One more than that is closed, until one has gone.
			next := make(chan net.Conn, 1)
			go func() {
				c, _ := l.Accept()
				next <- c
			}()
			wantEnded(t, connect())
			if n := l.Refused(); n != 1 {
				t.Errorf("%d were refused, want 1", n)
			}
			firstServer.Close()
			firstServer.Close() // counts once
			third := connect()
			thirdServer := <-next
			t.Cleanup(func() { sockets.Close(thirdServer) })
			wantPassed(t, third, thirdServer)
			wantPassed(t, second, secondServer)
		})
	}
}

// header is a PROXY header of a client with an IPv4 address.
func header(client string) []byte {
	a := netip.MustParseAddrPort(client)
	h := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), a.Addr().AsSlice()...)
	h = append(h, 10, 0, 0, 1)
	h = binary.BigEndian.AppendUint16(h, a.Port())
	return binary.BigEndian.AppendUint16(h, 1883)
}

func TestProxy(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for _, test := range []struct{ name, url string }{{"TCP", "mqtt://127.0.0.1:0"}, {"TLS", "mqtts://127.0.0.1:0"}, {"WebSocket", "ws://127.0.0.1:0"}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := open(t, test.url, func(c *listen.Config, _ *listen.Options) {
				c.Proxy = true
				if c.URL.IsTLS() {
					c.TLS = a.Server("server")
				}
			})
			for _, from := range []struct {
				header []byte
				want   string
			}{
				{header("192.0.2.7:50000"), "192.0.2.7:50000"},
				{header("127.0.0.1:50000"), "127.0.0.1:50000"}, // of the balancer's machine, not of ours
				{[]byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"), ""},
			} {
				var client net.Conn = l.dial()
				client.Write(from.header)
				own := client.LocalAddr().String()
				switch {
				case l.URL().IsTLS():
					client = tls.Client(client, a.Trust())
					go client.(*tls.Conn).Handshake()
				case l.URL().IsWebSocket():
					io.WriteString(client, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n")
					if r, err := http.ReadResponse(bufio.NewReader(client), nil); err != nil || r.StatusCode != http.StatusSwitchingProtocols {
						t.Fatalf("%+v, %v", r, err)
					}
				}
				server := l.accept()
				want := from.want
				if want == "" {
					want = own
				}
				if got := server.RemoteAddr().String(); got != want || access.OriginOf(server).Remote.String() != want {
					t.Errorf("the client is %s, want %s", got, want)
				}
				if sockets.IsLoopback(server.RemoteAddr()) {
					t.Error("a client behind a balancer is on this machine")
				}
				if !l.URL().IsWebSocket() {
					wantPassed(t, client, server)
				}
			}
			// Without a header nothing is served.
			c := l.dial()
			c.Write([]byte("\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc"))
			wantEnded(t, c)
			eventually(t, "the log says why", func() bool { return strings.Contains(l.log.String(), "does not begin with a header") })
		})
	}
}

func TestContradictions(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	other := certstest.New(t)
	for name, test := range map[string]struct {
		config listen.Config
		want   string
	}{
		"TLS without a certificate": {listen.Config{URL: listen.URL{Scheme: "mqtts", Host: "127.0.0.1:0"}}, "mqtts://127.0.0.1:0: TLS needs a certificate and its private key (--tls-cert, --tls-key); holdfast init DIR makes them"},
		"a key of another":          {listen.Config{URL: listen.URL{Scheme: "wss", Host: "127.0.0.1:0"}, TLS: certs.Files{Cert: a.Server("s").Cert, Key: other.Server("s").Key}}, "are no pair"},
		"origins without WebSocket": {listen.Config{URL: listen.URL{Scheme: "mqtt", Host: "127.0.0.1:0"}, AllowOrigins: []string{"*"}}, "web pages connect by WebSocket"},
		"no connections":            {listen.Config{URL: listen.URL{Scheme: "mqtt", Host: "127.0.0.1:0"}, MaxConnections: -1}, "want a number above 0"},
		"an address of others":      {listen.Config{URL: listen.URL{Scheme: "mqtt", Host: "192.0.2.1:1"}}, "cannot listen on mqtt://192.0.2.1:1"},
	} {
		l, err := listen.Open(test.config, listen.Options{Handshakes: sockets.NewHandshakes(1), Turns: transport.NewTurns(1), Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestCloseEndsAccept(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for _, url := range []string{"mqtt://127.0.0.1:0", "mqtts://127.0.0.1:0", "ws://127.0.0.1:0", "wss://127.0.0.1:0"} {
		l := open(t, url, func(c *listen.Config, _ *listen.Options) {
			if c.URL.IsTLS() {
				c.TLS = a.Server(c.URL.Scheme)
			}
		})
		ended := make(chan error, 1)
		go func() { _, err := l.Accept(); ended <- err }()
		l.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: Accept = %v", url, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: Accept goes on", url)
		}
	}
}
