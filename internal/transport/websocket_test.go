package transport

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// testCertificate is a key and a certificate that signs itself, made once.
var testCertificate = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "transport test"},
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
})

func testTLS(t testing.TB) *tls.Config {
	t.Helper()
	cert, err := testCertificate()
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

var quiet = slog.New(slog.DiscardHandler)

func listenWebSocket(t testing.TB, o WebSocketOptions) *WebSocketListener {
	t.Helper()
	o.Logger = quiet
	l, err := ListenWebSocket("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func webSocketPair(t testing.TB) (server, client net.Conn) {
	l := listenWebSocket(t, WebSocketOptions{})
	var socket net.Conn
	o := mqttDial(nil)
	o.HTTPClient = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var err error
			socket, err = new(net.Dialer).DialContext(ctx, network, addr)
			return socket, err
		},
	}}
	ws, _, err := websocket.Dial(context.Background(), "ws://"+l.Addr().String()+"/mqtt", o)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	nc := websocket.NetConn(context.Background(), ws, websocket.MessageBinary)
	client = webSocketClient{nc, socket}
	client.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { hardClose(server); kill(client) }) // no farewells in a test
	return server, client
}

// webSocketClient is the client's end, with the socket underneath.
type webSocketClient struct {
	net.Conn
	socket net.Conn
}

func mqttDial(header http.Header) *websocket.DialOptions {
	return &websocket.DialOptions{Subprotocols: []string{"mqtt"}, HTTPHeader: header}
}

func TestWebSocketHandshake(t *testing.T) {
	t.Parallel()
	loopback := listenWebSocket(t, WebSocketOptions{})
	strict := listenWebSocket(t, WebSocketOptions{AllowOrigins: []string{"app.example.com"}})
	schemed := listenWebSocket(t, WebSocketOptions{AllowOrigins: []string{"https://*.example.com"}})
	open := listenWebSocket(t, WebSocketOptions{AllowOrigins: []string{"*"}})
	origin := func(o string) http.Header { return http.Header{"Origin": {o}} }
	for _, c := range []struct {
		name   string
		l      *WebSocketListener
		path   string
		o      *websocket.DialOptions
		status int
	}{
		{"the root", loopback, "/", mqttDial(nil), 101},
		{"any path", loopback, "/some/where", mqttDial(nil), 101},
		{"one of several subprotocols", loopback, "/mqtt", &websocket.DialOptions{Subprotocols: []string{"mqttv3.1", "mqtt"}}, 101},
		{"no subprotocol", loopback, "/mqtt", nil, 400}, // [MQTT-6.0.0-3]
		{"another subprotocol", loopback, "/mqtt", &websocket.DialOptions{Subprotocols: []string{"chat"}}, 400},
		{"a page on loopback", loopback, "/", mqttDial(origin("http://localhost:3000")), 403},
		{"a page whose name leads to loopback", loopback, "/", mqttDial(origin("http://" + loopback.Addr().String())), 403},
		{"a page without a name", loopback, "/", mqttDial(origin("null")), 403},
		{"no page", strict, "/", mqttDial(nil), 101},
		{"an allowed page", strict, "/", mqttDial(origin("https://app.example.com")), 101},
		{"an allowed page with its scheme", schemed, "/", mqttDial(origin("https://app.example.com")), 101},
		{"the same page without TLS", schemed, "/", mqttDial(origin("http://app.example.com")), 403},
		{"a foreign page", strict, "/", mqttDial(origin("https://evil.example.com")), 403},
		{"any page when all are allowed", open, "/", mqttDial(origin("https://evil.example.com")), 101},
	} {
		ws, resp, err := websocket.Dial(context.Background(), "ws://"+c.l.Addr().String()+c.path, c.o)
		if resp == nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v, %v; want %d", c.name, resp, err, c.status)
		}
		if err != nil {
			continue
		}
		if ws.Subprotocol() != "mqtt" {
			t.Errorf("%s: subprotocol %q", c.name, ws.Subprotocol())
		}
		nc, err := c.l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		hardClose(nc)
		ws.CloseNow()
	}
}

func TestWebSocketPlainRequestIsToldWhatThisIs(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, WebSocketOptions{})
	resp, err := http.Get("http://" + l.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// Frame boundaries mean nothing [MQTT-6.0.0-2]; empty frames and pings are not
// bytes; frames may be larger than any buffer.
func TestWebSocketFramesAreAStream(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, WebSocketOptions{})
	ctx := context.Background()
	ws, _, err := websocket.Dial(ctx, "ws://"+l.Addr().String(), mqttDial(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(t, nc, nil, Options{})
	want := noise(200_000)
	go func() {
		ws.Write(ctx, websocket.MessageBinary, want[:1])
		ws.Write(ctx, websocket.MessageBinary, nil)
		ws.Write(ctx, websocket.MessageBinary, want[1:10])
		go ws.Reader(ctx) // for the pong
		ws.Ping(ctx)
		ws.Write(ctx, websocket.MessageBinary, want[10:])
	}()
	mustEqual(t, receive(t, c, len(want)), want)
}

func TestWebSocketTextFrameCloses(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, WebSocketOptions{})
	ctx := context.Background()
	ws, _, err := websocket.Dial(ctx, "ws://"+l.Addr().String(), mqttDial(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(t, nc, nil, Options{})
	ws.Write(ctx, websocket.MessageText, []byte("hello"))
	if err := c.Fill(0); !errors.Is(err, errTextFrame) { // [MQTT-6.0.0-1]
		t.Errorf("Fill = %v", err)
	}
	if _, _, err := ws.Reader(ctx); websocket.CloseStatus(err) != websocket.StatusUnsupportedData {
		t.Errorf("the peer got %v", err)
	}
}

func TestWebSocketOverTLS(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, WebSocketOptions{TLS: testTLS(t), MaxHandshakes: 2})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for range 4 { // each handshake gives its slot back
		o := mqttDial(nil)
		o.HTTPClient = client
		ws, _, err := websocket.Dial(context.Background(), "wss://"+l.Addr().String(), o)
		if err != nil {
			t.Fatal(err)
		}
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(t, nc, nil, Options{})
		send(c, []byte("over TLS"))
		if _, p, err := ws.Read(context.Background()); string(p) != "over TLS" {
			t.Errorf("read %q, %v", p, err)
		}
		c.Close()
		ws.CloseNow()
	}
}

// A client that says nothing is cut off, and does not keep others out for ever.
func TestWebSocketHandshakeIsBounded(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, WebSocketOptions{HandshakeTimeout: 20 * time.Millisecond, MaxHandshakes: 1})
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.SetDeadline(time.Now().Add(patience))
	silent.Write([]byte("GET / HTTP/1.1\r\n"))
	if _, err := io.ReadAll(bufio.NewReader(silent)); err != nil && !isReset(err) {
		t.Fatalf("the silent client was not cut off: %v", err)
	}
	eventually(t, "the slot is free again", func() bool {
		ws, _, err := websocket.Dial(context.Background(), "ws://"+l.Addr().String(), mqttDial(nil))
		if err == nil {
			ws.CloseNow()
		}
		return err == nil
	})
}

// Handshakes that don't end keep nobody out: the oldest goes.
func TestUnfinishedWebSocketHandshakesKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const most = 20
	l := listenWebSocket(t, WebSocketOptions{HandshakeTimeout: patience, MaxHandshakes: most})
	var silent []net.Conn
	for range 3 * most {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte("GET / HTTP/1.1\r\n"))
		silent = append(silent, c)
	}
	ws, _, err := websocket.Dial(context.Background(), "ws://"+l.Addr().String(), mqttDial(nil))
	if err != nil {
		t.Fatalf("%d unfinished handshakes keep another client out: %v", len(silent), err)
	}
	ws.CloseNow()
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest handshake was not ended: %v", err)
	}
}

func isReset(err error) bool { return strings.Contains(err.Error(), "reset") }

func TestWebSocketListenerClose(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, WebSocketOptions{})
	accepted := make(chan error, 1)
	go func() { _, err := l.Accept(); accepted <- err }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "Accept", func() {
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept = %v", err)
		}
	})
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listening")
	}
}
