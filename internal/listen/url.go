package listen

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/secrets"
)

// The schemes of listeners.
const (
	MQTT  = "mqtt"
	MQTTS = "mqtts"
	WS    = "ws"
	WSS   = "wss"
)

// URL is where a listener listens, and what it speaks there.
type URL struct {
	Scheme string // MQTT, MQTTS, WS or WSS
	Host   string // HOST:PORT
	Path   string // of WebSocket: the only one that is served; empty: any
}

// ParseURL reads the URL of a listener. HOST:PORT alone means mqtt://HOST:PORT.
func ParseURL(text string) (URL, error) {
	fail := func(what string) (URL, error) {
		return URL{}, fmt.Errorf("cannot listen on %q: %s; want HOST:PORT, or a URL like mqtts://0.0.0.0:8883 or wss://0.0.0.0:443/mqtt", secrets.URL(text), what)
	}
	whole := text
	if !strings.Contains(text, "://") {
		whole = MQTT + "://" + text
	}
	if strings.ContainsAny(whole, "@?#") { // an error of Parse may quote a part of a password
		return fail("a listener has no user, query or fragment")
	}
	u, err := url.Parse(whole)
	if err != nil {
		var syntax *url.Error
		if errors.As(err, &syntax) {
			err = syntax.Err
		}
		return fail(err.Error())
	}
	switch u.Scheme {
	case MQTT, MQTTS, WS, WSS:
	default:
		return fail("the scheme must be mqtt, mqtts, ws or wss")
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || u.Port() != strconv.FormatUint(port, 10) {
		return fail("it names no port from 0 to 65535")
	}
	out := URL{Scheme: u.Scheme, Host: net.JoinHostPort(u.Hostname(), u.Port())}
	if u.Path != "" && u.Path != "/" {
		if !out.IsWebSocket() {
			return fail("only WebSocket has a path")
		}
		out.Path = u.Path
	}
	return out, nil
}

func (u URL) String() string { return u.Scheme + "://" + u.Host + u.Path }

// IsWebSocket says whether MQTT is spoken over WebSocket.
func (u URL) IsWebSocket() bool { return u.Scheme == WS || u.Scheme == WSS }

// IsTLS says whether the connections are encrypted.
func (u URL) IsTLS() bool { return u.Scheme == MQTTS || u.Scheme == WSS }

// IsLoopback says whether only clients on this machine reach the listener.
func (u URL) IsLoopback() bool {
	host, _, _ := net.SplitHostPort(u.Host)
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
