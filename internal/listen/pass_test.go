package listen_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// A connection that another node has accepted goes on like one of the listener's own, with
// the client's address.
func TestPass(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for _, test := range []struct {
		name, url string
		proxy     bool
	}{{"TCP", "mqtt://127.0.0.1:0", false}, {"behind a balancer", "mqtt://127.0.0.1:0", true}, {"TLS", "mqtts://127.0.0.1:0", false}, {"WebSocket", "ws://127.0.0.1:0", false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := openWith(t, test.url, func(c listen.Config, o listen.Options) (*listen.Listener, error) { return listen.OpenOn(tcp, c, o) }, func(c *listen.Config, _ *listen.Options) {
				c.Proxy = test.proxy
				if c.URL.IsTLS() {
					c.TLS = a.Server("server")
				}
			})
			other, err := net.Listen("tcp", "127.0.0.1:0") // stands for the other node
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			for _, passed := range []bool{false, true} {
				var client net.Conn
				want := "192.0.2.7:50000"
				if passed {
					client, err = net.Dial("tcp", other.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					defer client.Close()
					nc, err := other.Accept()
					if err != nil {
						t.Fatal(err)
					}
					go l.Pass(nc, netip.MustParseAddrPort(want))
				} else {
					client = l.dial()
					if want = client.LocalAddr().String(); test.proxy {
						want = "192.0.2.9:1"
						client.Write(header(want))
					}
				}
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
				if got := access.OriginOf(server).Remote.String(); got != want {
					t.Errorf("the client is %s, want %s", got, want)
				}
				if passed && sockets.IsLoopback(server.RemoteAddr()) {
					t.Error("a client that another node has passed on is on this machine")
				}
				if !l.URL().IsWebSocket() {
					wantPassed(t, client, server)
				}
			}
		})
	}
}
