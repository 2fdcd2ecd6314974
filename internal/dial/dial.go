// Package dial makes the network connections on which MQTT is spoken: TCP, TLS and
// WebSocket. The client and the program's commands for messages call it.
package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// to gives the function that connects to one address; see [To].
func to(address string, t *tls.Config) (func(context.Context) (net.Conn, error), error) {
	if !strings.Contains(address, "://") {
		scheme := "mqtt://"
		if t != nil {
			scheme = "mqtts://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	if u.Hostname() == "" {
		return nil, fmt.Errorf("address %q names no host", address)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || !units.IsDecimal(port) || n < 1 || n > 65535 {
			return nil, fmt.Errorf("address %q: port %s: want a number from 1 to 65535", address, port)
		}
	}
	switch u.Scheme {
	case "mqtt", "tcp":
		return dialTCP(hostPort(u, "1883")), nil
	case "mqtts", "ssl", "tls":
		return dialTLS(hostPort(u, "8883"), t), nil
	case "ws", "wss":
		return dialWebSocket(u.String(), t), nil
	}
	return nil, fmt.Errorf("address %q: the scheme must be mqtt, mqtts, ws or wss", address)
}

func hostPort(u *url.URL, port string) string {
	if u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func dialTCP(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
}

func dialTLS(address string, t *tls.Config) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		d := tls.Dialer{Config: t}
		return d.DialContext(ctx, "tcp", address)
	}
}

// dialWebSocket speaks MQTT in binary frames under the subprotocol "mqtt"
// [MQTT-6.0.0-3].
func dialWebSocket(address string, t *tls.Config) func(context.Context) (net.Conn, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = t.Clone() // package http writes to it
	transport.DisableKeepAlives = true    // nothing is left behind after a refusal
	options := &websocket.DialOptions{
		HTTPClient:   &http.Client{Transport: transport},
		Subprotocols: []string{"mqtt"},
	}
	return func(ctx context.Context) (net.Conn, error) {
		ws, _, err := websocket.Dial(ctx, address, options)
		if err != nil {
			return nil, err
		}
		if ws.Subprotocol() != "mqtt" {
			_ = ws.Close(websocket.StatusProtocolError, "subprotocol mqtt wanted")
			return nil, errors.New("the server at this WebSocket address does not speak MQTT")
		}
		// The context that bounds the attempt must not end the connection.
		return websocket.NetConn(context.Background(), ws, websocket.MessageBinary), nil
	}
}
