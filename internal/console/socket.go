package console

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
	"github.com/holdfast-mqtt/holdfast/internal/transport/websocket"
)

// MaxConnections is how many pages may be connected at once. It is below the bound of the
// admin listener, so that health checks always find a place there.
const MaxConnections = 16

// SocketPath is where the page connects.
const SocketPath = "/mqtt"

// Options of Listen.
type Options struct {
	Addr net.Addr // of the admin listener
	// Anonymous says that a client without credentials may connect, where the server asks
	// clients who they are.
	Anonymous bool
	Vouches   func(*tls.ConnectionState) bool // as access.Listener has it
	Timeout   time.Duration                   // until the broker takes the connection; 0: that of package websocket
	Log       *slog.Logger                    // needed
}

// Listener accepts the MQTT connections of pages: those that the admin listener passes to
// ServeHTTP. A page's origin has to be the admin listener itself. It is safe for concurrent
// use.
type Listener struct {
	*websocket.Listener
	log     *slog.Logger
	rules   *access.Listener
	open    atomic.Int64
	refused atomic.Int64
}

// Listen makes a Listener. Close it when done.
func Listen(o Options) *Listener {
	l := &Listener{log: o.Log, rules: &access.Listener{Name: "console", Anonymous: o.Anonymous, Vouches: o.Vouches}}
	l.Listener = websocket.Within(o.Addr, websocket.Options{
		Path: SocketPath, SameOrigin: true, Wrap: l.wrap, HandshakeTimeout: o.Timeout, Logger: o.Log,
	})
	return l
}

// Open is how many pages are connected.
func (l *Listener) Open() int64 { return l.open.Load() }

// Refused is how many connections were refused because of MaxConnections.
func (l *Listener) Refused() int64 { return l.refused.Load() }

// ServeHTTP makes an MQTT connection of a request.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.open.Add(1) > MaxConnections {
		l.open.Add(-1)
		l.refused.Add(1)
		l.log.Warn("refusing to connect a console: as many are connected as may be", "remote", r.RemoteAddr, "maximum", MaxConnections)
		http.Error(w, "as many consoles are connected as may be at once: close one", http.StatusServiceUnavailable)
		return
	}
	var taken bool // by a connection, whose end gives the place back
	l.Listener.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), takenKey{}, &taken)))
	if !taken {
		l.open.Add(-1)
	}
}

type takenKey struct{}

// wrap notes where a connection came in, and gives it the request's place.
func (l *Listener) wrap(nc net.Conn, r *http.Request) net.Conn {
	*r.Context().Value(takenKey{}).(*bool) = true
	return &conn{Conn: nc, listener: l, origin: access.Origin{Listener: l.rules, Remote: nc.RemoteAddr(), TLS: r.TLS}}
}

// conn is the connection below a page's WebSocket.
type conn struct {
	net.Conn
	listener *Listener
	origin   access.Origin
	gone     atomic.Bool
}

// Origin says where the connection came in.
func (c *conn) Origin() *access.Origin { return &c.origin }

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection.
func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// CloseNow closes the socket.
func (c *conn) CloseNow() error {
	c.leave()
	return sockets.Close(c.Conn)
}

// leave stops counting the connection.
func (c *conn) leave() {
	if !c.gone.Swap(true) {
		c.listener.open.Add(-1)
	}
}
