package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	lib "github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
	"github.com/holdfast-mqtt/holdfast/internal/transport/websocket"
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

func listenWebSocket(t testing.TB, o websocket.Options) *websocket.Listener {
	t.Helper()
	o.Logger = quiet
	l, err := websocket.Listen("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func webSocketPair(t testing.TB) (server, client net.Conn) {
	l := listenWebSocket(t, websocket.Options{})
	var socket net.Conn
	o := mqttDial(nil)
	o.HTTPClient = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var err error
			socket, err = new(net.Dialer).DialContext(ctx, network, addr)
			return socket, err
		},
	}}
	ws, _, err := lib.Dial(context.Background(), "ws://"+l.Addr().String()+"/mqtt", o)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	nc := lib.NetConn(context.Background(), ws, lib.MessageBinary)
	client = webSocketClient{nc, socket}
	client.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { sockets.Close(server); kill(client) }) // no farewells in a test
	return server, client
}

// webSocketClient is the client's end, with the socket underneath.
type webSocketClient struct {
	net.Conn
	socket net.Conn
}

func mqttDial(header http.Header) *lib.DialOptions {
	return &lib.DialOptions{Subprotocols: []string{"mqtt"}, HTTPHeader: header}
}

// Frame boundaries mean nothing [MQTT-6.0.0-2]; empty frames and pings are not
// bytes; frames may be larger than any buffer.
func TestWebSocketFramesAreAStream(t *testing.T) {
	t.Parallel()
	l := listenWebSocket(t, websocket.Options{})
	ctx := context.Background()
	ws, _, err := lib.Dial(ctx, "ws://"+l.Addr().String(), mqttDial(nil))
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
		ws.Write(ctx, lib.MessageBinary, want[:1])
		ws.Write(ctx, lib.MessageBinary, nil)
		ws.Write(ctx, lib.MessageBinary, want[1:10])
		go ws.Reader(ctx) // for the pong
		ws.Ping(ctx)
		ws.Write(ctx, lib.MessageBinary, want[10:])
	}()
	mustEqual(t, receive(t, c, len(want)), want)
}

// tlsListener has its connections do their handshake when they are read.
type tlsListener struct {
	net.Listener
	config *tls.Config
}

func (l tlsListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewTLSConn(nc, l.config), nil
}

func TestWebSocketOverTLS(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := websocket.Serve(tlsListener{tcp, testTLS(t)}, websocket.Options{Handshakes: sockets.NewHandshakes(2), Logger: quiet})
	t.Cleanup(func() { l.Close() })
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for range 4 { // each handshake gives its slot back
		o := mqttDial(nil)
		o.HTTPClient = client
		ws, _, err := lib.Dial(context.Background(), "wss://"+l.Addr().String(), o)
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
