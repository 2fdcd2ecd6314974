// Package websocket makes streams of bytes of WebSocket connections with the subprotocol
// "mqtt". Package listen serves them, on a socket or on TLS.
package websocket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// DefaultHandshakeTimeout is that of [Options].
const DefaultHandshakeTimeout = 10 * time.Second

// subprotocol is the name that MQTT has among WebSocket's subprotocols
// [MQTT-6.0.0-3].
const subprotocol = "mqtt"

// Options of [Listen]. The zero value is usable.
type Options struct {
	// Path is the only one on which clients may connect. Empty: any.
	Path string
	// AllowOrigins are the web pages that may connect: host patterns as of
	// path.Match ("app.example.com", "*.example.com"), with a scheme if it
	// matters ("https://app.example.com"), or "*" for every page there is. No
	// other page may, wherever the listener is: whatever page a person looks at
	// could otherwise use a broker on their own machine. Clients that are no
	// browsers send no origin and are not asked.
	AllowOrigins []string
	// SameOrigin lets pages of the host and the scheme connect that the request itself
	// names. The caller sees to it that the host is one of the server's: the name of a
	// foreign page may be made to lead here.
	SameOrigin bool
	// Wrap gives the connection below each WebSocket of a listener of [Within] another form,
	// once the request r has been answered; nil: it stays as it is.
	Wrap func(nc net.Conn, r *http.Request) net.Conn
	// HandshakeTimeout bounds the time from accepting a socket to the end of its
	// HTTP request. 0 means DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// Handshakes bounds how many handshakes are under way at once. nil means
	// sockets.DefaultMaxHandshakes for this listener alone.
	Handshakes *sockets.Handshakes
	// Logger gets what goes wrong before a connection exists, at debug level.
	// nil means slog.Default().
	Logger *slog.Logger
}

// Listener accepts MQTT over WebSocket; each connection that Accept
// returns is a stream of the bytes in its binary frames [MQTT-6.0.0-1], and frame
// boundaries mean nothing [MQTT-6.0.0-2].
type Listener struct {
	addr      net.Addr
	options   Options
	accept    websocket.AcceptOptions
	server    *http.Server // nil: another one calls ServeHTTP
	conns     chan net.Conn
	closed    chan struct{}
	closeOnce sync.Once
	served    chan struct{}
}

var _ net.Listener = (*Listener)(nil)

// Listen listens on addr ("host:port") for WebSocket connections with
// the subprotocol "mqtt". Close it when done.
func Listen(addr string, o Options) (*Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for WebSocket connections on %s: %w", addr, err)
	}
	return Serve(ln, o), nil
}

// Serve is Listen on a listener that exists; it owns ln.
func Serve(ln net.Listener, o Options) *Listener {
	if o.Handshakes == nil {
		o.Handshakes = sockets.NewHandshakes(sockets.DefaultMaxHandshakes)
	}
	l := Within(ln.Addr(), o)
	o = l.options
	l.served = make(chan struct{})
	ln = &handshakeListener{ln, o.Handshakes}
	l.server = &http.Server{
		Handler:           l,
		ReadHeaderTimeout: o.HandshakeTimeout,
		ReadTimeout:       o.HandshakeTimeout,
		WriteTimeout:      2 * o.HandshakeTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		ConnContext:       rememberSocket,
		ConnState:         handshakeOver,
	}
	l.server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(l.served)
		err := l.server.Serve(ln)
		if !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("the WebSocket listener has stopped", "addr", l.addr.String(), "err", err)
		}
		l.closeOnce.Do(func() { close(l.closed) })
	}()
	return l
}

// Within is a listener without a socket: its connections are those of the requests that an
// HTTP server of the caller's passes to ServeHTTP. That server bounds handshakes, and listens
// on addr. Options.Handshakes is not used.
func Within(addr net.Addr, o Options) *Listener {
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Listener{
		addr:    addr,
		options: o,
		accept: websocket.AcceptOptions{
			Subprotocols:       []string{subprotocol},
			InsecureSkipVerify: true, // ServeHTTP has asked allowed
		},
		conns:  make(chan net.Conn),
		closed: make(chan struct{}),
	}
}

// allowed reports whether a page of this origin may connect. An empty one is that of
// a client that is no browser.
//
// Without SameOrigin the page's own host says nothing: a listener of Serve has no pages, and
// the name of a foreign page may be made to lead to a loopback address after it was loaded.
func (l *Listener) allowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || l.options.SameOrigin && SameOrigin(r) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	for _, pattern := range l.options.AllowOrigins {
		name := strings.ToLower(u.Host)
		if strings.Contains(pattern, "://") {
			name = strings.ToLower(u.Scheme) + "://" + name
		}
		if ok, err := path.Match(strings.ToLower(pattern), name); ok && err == nil || pattern == "*" {
			return true
		}
	}
	return false
}

// SameOrigin reports whether a request is of a page of the host and the scheme that the
// request itself names.
func SameOrigin(r *http.Request) bool {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return strings.EqualFold(r.Header.Get("Origin"), scheme+"://"+r.Host)
}

// Accept waits for the next connection. It returns net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops listening and ends handshakes that are under way. Connections that
// were accepted live on.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	if l.server == nil {
		return nil
	}
	err := l.server.Close()
	<-l.served
	return err
}

// Addr is the address that is listened on.
func (l *Listener) Addr() net.Addr { return l.addr }

// ServeHTTP makes a connection of a request for one.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() { // or the HTTP server would, at debug level; see package failstop
		if p := recover(); p != nil {
			l.options.Logger.Error("closing a connection because the server has a defect in the WebSocket handshake; please report this", "remote", r.RemoteAddr, "panic", p, "stack", string(debug.Stack()))
			panic(http.ErrAbortHandler)
		}
	}()
	if l.options.Path != "" && r.URL.Path != l.options.Path {
		http.NotFound(w, r)
		return
	}
	if isUpgrade(r) && !offersMQTT(r) {
		http.Error(w, `this is an MQTT broker: ask for the WebSocket subprotocol "mqtt"`, http.StatusBadRequest)
		return
	}
	c := &conn{}
	accept := l.accept
	accept.OnPingReceived = func(context.Context, []byte) bool {
		c.idle.add()
		return true
	}
	accept.OnPongReceived = func(context.Context, []byte) { c.idle.add() }
	if isUpgrade(r) && !l.allowed(r) {
		l.options.Logger.Debug("WebSocket handshake refused: the page's origin is not allowed", "remote", r.RemoteAddr, "origin", r.Header.Get("Origin"))
		http.Error(w, "pages of this origin may not connect: start the server with --ws-origin for it", http.StatusForbidden)
		return
	}
	socket, own := r.Context().Value(socketKey{}).(*handshakeConn)
	if !own {
		socket = &handshakeConn{}
		w = &takenOver{ResponseWriter: w, r: r, wrap: l.options.Wrap, socket: socket}
	}
	ws, err := websocket.Accept(w, r, &accept)
	if err != nil {
		l.options.Logger.Debug("WebSocket handshake refused", "remote", r.RemoteAddr, "err", err)
		return
	}
	ws.SetReadLimit(-1) // the broker bounds packets; a frame is not held in memory
	// What Accept hijacked may still have the handshake's deadlines.
	_ = socket.SetDeadline(time.Time{})
	c.ws, c.socket = ws, socket
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.CloseNow()
	case <-time.After(l.options.HandshakeTimeout): // no goroutine accepts
		_ = c.CloseNow()
	}
}

func isUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

func offersMQTT(r *http.Request) bool {
	for _, offered := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(offered, ",") {
			if strings.EqualFold(strings.TrimSpace(name), subprotocol) {
				return true
			}
		}
	}
	return false
}

type socketKey struct{}

// rememberSocket lets the handler find the socket below the HTTP server.
func rememberSocket(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, socketKey{}, c)
}

// handshakeListener has its connections count as handshakes.
type handshakeListener struct {
	net.Listener
	handshakes *sockets.Handshakes
}

func (l *handshakeListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	h := &handshakeConn{Conn: c}
	h.handshake = l.handshakes.Begin(c)
	return h, nil
}

// handshakeConn is the connection below a WebSocket.
type handshakeConn struct {
	net.Conn
	handshake *sockets.Handshake
	silent    atomic.Int64 // bytes read beyond those that data came in, by the reader or by Close, which awaits the peer's close frame
}

// noteData notes that n bytes of data have come: as many bytes as they may have needed at most are
// not silent.
func (c *handshakeConn) noteData(n int) {
	c.silent.Store(max(0, c.silent.Load()-int64(n)*bytesPerData))
}

// NetConn is the connection below.
func (c *handshakeConn) NetConn() net.Conn { return c.Conn }

func (c *handshakeConn) Read(p []byte) (int, error) {
	if c.silent.Load() > idleBytes {
		time.Sleep(idleInterval)
	}
	n, err := c.Conn.Read(p)
	c.silent.Add(int64(n))
	return n, err
}

// takenOver has the connection that a server of the caller's gives away be read through
// socket.
type takenOver struct {
	http.ResponseWriter
	r      *http.Request
	wrap   func(net.Conn, *http.Request) net.Conn
	socket *handshakeConn
}

// Hijack takes the connection over from the HTTP server.
func (t *takenOver) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, buffered, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if t.wrap != nil {
		nc = t.wrap(nc, t.r)
	}
	t.socket.Conn = nc
	return t.socket, buffered, nil
}

// handshakeOver ends a handshake once its connection was upgraded or has ended.
func handshakeOver(c net.Conn, state http.ConnState) {
	if state == http.StateHijacked || state == http.StateClosed {
		c.(*handshakeConn).handshake.End()
	}
}

// conn is a WebSocket as a stream of bytes. The library closes the whole
// connection when a context ends; deadlines are therefore set on the socket
// underneath, where a read that times out leaves the writing side alone.
type conn struct {
	ws      *websocket.Conn
	socket  *handshakeConn
	message io.Reader // the reader's: the rest of the current message
	idle    idleFrames
}

// ErrTextFrame is the error of a read from a client that has sent a text frame.
var ErrTextFrame = errors.New("websocket: MQTT over WebSocket is sent in binary frames [MQTT-6.0.0-1]")

func (c *conn) Read(p []byte) (int, error) {
	for {
		if c.message == nil {
			kind, message, err := c.ws.Reader(context.Background())
			if err != nil {
				return 0, endOfStream(err)
			}
			if kind != websocket.MessageBinary {
				go c.ws.Close(websocket.StatusUnsupportedData, "binary frames only")
				return 0, ErrTextFrame
			}
			c.message = message
		}
		n, err := c.message.Read(p)
		if err == io.EOF {
			c.message, err = nil, nil
		}
		if n > 0 {
			c.socket.noteData(n)
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// A peer may send frames without data for ever: pings, pongs, empty messages and
// fragments. They cost the reader work, for a ping even a write, and never end its
// wait for bytes, where it would take turns with other readers (transport.Gate). So it is
// slowed: a burst of pings and pongs is free, and one more for each idleInterval;
// of other bytes idleBytes, as many more for each of the socket's reads, and bytesPerData for
// each byte of data, which may come in a frame of its own.
const (
	idleBurst    = 64
	idleBytes    = 8 << 10
	bytesPerData = 16
	idleInterval = 10 * time.Millisecond
)

// idleFrames counts pings and pongs. It belongs to the reader.
type idleFrames struct {
	owed int
	at   time.Time // when owed was lowered last
}

// add counts one, and sleeps if they come faster than they may.
func (p *idleFrames) add() {
	if p.tooFast(time.Now()) {
		time.Sleep(idleInterval)
	}
}

// tooFast counts one that came at now, and reports whether its peer is to be slowed.
func (p *idleFrames) tooFast(now time.Time) bool {
	if p.at.IsZero() {
		p.at = now
	}
	if p.owed++; p.owed <= idleBurst {
		return false
	}
	p.owed = max(0, p.owed-int(min(now.Sub(p.at)/idleInterval, idleBurst)))
	p.at = now
	return p.owed > idleBurst
}

// endOfStream is io.EOF for a peer that has sent a close frame, otherwise err.
func endOfStream(err error) error {
	switch websocket.CloseStatus(err) {
	case websocket.StatusNormalClosure, websocket.StatusGoingAway, websocket.StatusNoStatusRcvd:
		return io.EOF
	}
	return err
}

func (c *conn) Write(p []byte) (int, error) {
	if err := c.ws.Write(context.Background(), websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close sends a close frame and closes; the library bounds this to a few seconds.
func (c *conn) Close() error { return c.ws.Close(websocket.StatusNormalClosure, "") }

// CloseNow closes the socket. The library must be told as well, on a goroutine because it
// waits for the reader: its connection has a finalizer until then and refers to itself, and
// Go's collector frees no such object.
func (c *conn) CloseNow() error {
	err := sockets.Close(c.socket)
	go c.ws.CloseNow()
	return err
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.socket }

func (c *conn) LocalAddr() net.Addr  { return c.socket.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.socket.RemoteAddr() }

func (c *conn) SetDeadline(t time.Time) error      { return c.socket.SetDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.socket.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.socket.SetWriteDeadline(t) }
