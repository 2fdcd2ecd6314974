package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
	"github.com/holdfast-mqtt/holdfast/internal/transport/websocket"
)

// Config says what a listener is.
type Config struct {
	URL            URL
	Anonymous      bool          // a client without credentials may connect
	TLS            certs.Files   // of mqtts and wss
	Certs          *certs.Server // what was read of TLS; nil: the listener reads it
	Proxy          bool          // every connection begins with a PROXY header, of version 2
	AllowOrigins   []string      // of ws and wss: web pages that may connect, as websocket.Options has them
	MaxConnections int           // 0: no bound of its own
}

// ClientsShowCertificates says whether every client must show a certificate.
func (c *Config) ClientsShowCertificates() bool {
	return c.URL.IsTLS() && c.TLS.ClientCA != "" && c.TLS.ClientAuth != certs.Optional
}

// Options are what all listeners of a server share.
type Options struct {
	// Bound wraps the TCP listener; loopback says whether it may give clients on this
	// machine what is reserved for them. nil: it stays as it is.
	Bound      func(l net.Listener, loopback bool) net.Listener
	Handshakes *sockets.Handshakes // bounds handshakes of all listeners together; needed
	Turns      transport.Turns     // bounds how many of them compute at a time; needed
	Timeout    time.Duration       // of everything before the first byte of MQTT; needed
	Logger     *slog.Logger        // needed
	// Refused is told of each client that was refused for its certificate. It is called on
	// the goroutine of the handshake, several of them at once. nil: the log alone has it.
	Refused func(Refusal)
}

// Refusal says which client was refused in its handshake for its certificate.
type Refusal struct {
	Listener string   // its URL
	Remote   net.Addr // the client's address; behind a balancer what that says it is
	Subject  string   // of the certificate, which nothing has verified; of any length; empty: the client has shown none
	Reason   string   // may have texts of the certificate's in it
}

// maxHandshake is how many bytes a client may send in its TLS handshake, its
// certificates included.
const maxHandshake = 32 << 10

// HandshakeBytes is about what a handshake takes of memory that is under way: its
// goroutine, crypto/tls and the largest record that it has to read.
const HandshakeBytes = 32 << 10

// Listener accepts connections that are ready for MQTT. Each has a method Origin.
type Listener struct {
	config  Config
	options Options
	rules   *access.Listener
	certs   *certs.Server // nil: no TLS

	tcp    net.Listener
	above  net.Listener // WebSocket; nil: none
	ready  chan net.Conn
	failed chan error // of tcp
	closed chan struct{}
	close  sync.Once
	passes bool // connections come by Pass as well

	open    atomic.Int64 // connections
	refused atomic.Int64 // beyond MaxConnections
}

// Open listens. Close it when done.
func Open(c Config, o Options) (*Listener, error) {
	return open(c, o, false, func() (net.Listener, error) {
		tcp, err := sockets.Listen(c.URL.Host)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: %w", c.URL, err)
		}
		if o.Bound != nil {
			tcp = o.Bound(tcp, !c.Proxy)
		}
		return tcp, nil
	})
}

// OpenOn is Open for a node of a cluster: it takes connections from tcp, which it owns from
// then on, also if it fails, and from Pass. Options.Bound is not used.
func OpenOn(tcp net.Listener, c Config, o Options) (*Listener, error) {
	l, err := open(c, o, true, func() (net.Listener, error) { return tcp, nil })
	if err != nil {
		_ = tcp.Close()
	}
	return l, err
}

func open(c Config, o Options, passes bool, listen func() (net.Listener, error)) (*Listener, error) {
	l := &Listener{config: c, options: o, ready: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}), passes: passes}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.URL, err)
	}
	tcp, err := listen()
	if err != nil {
		return nil, err
	}
	l.rules = &access.Listener{Name: c.URL.String(), Anonymous: c.Anonymous}
	if l.certs != nil {
		l.rules.Vouches = l.certs.Vouches
	}
	l.tcp = tcp
	if l.negotiates() || l.passes {
		go l.accept()
	}
	if c.URL.IsWebSocket() {
		l.above = websocket.Serve((*below)(l), websocket.Options{
			Path: c.URL.Path, AllowOrigins: c.AllowOrigins, HandshakeTimeout: o.Timeout, Handshakes: o.Handshakes, Logger: o.Logger,
		})
	}
	return l, nil
}

// check looks at what contradicts itself, and reads the certificates.
func (l *Listener) check() (err error) {
	c := &l.config
	if c.MaxConnections < 0 {
		return fmt.Errorf("%d connections at the most: want a number above 0", c.MaxConnections)
	}
	if len(c.AllowOrigins) > 0 && !c.URL.IsWebSocket() {
		return errors.New("web pages connect by WebSocket, and this is none: listen on ws:// or wss://, or leave their origins out")
	}
	if !c.URL.IsTLS() {
		return nil
	}
	l.certs, err = c.certificates()
	return err
}

// certificates reads what clients are shown, unless that was done.
func (c *Config) certificates() (*certs.Server, error) {
	switch {
	case c.Certs != nil:
		return c.Certs, nil
	case c.TLS.Cert == "" || c.TLS.Key == "":
		return nil, errors.New("TLS needs a certificate and its private key (--tls-cert, --tls-key); holdfast init DIR makes them")
	}
	return certs.NewServer(c.TLS, c.URL.IsWebSocket())
}

// ReadCertificates reads what clients are shown, before the listener is opened, into c.Certs.
// Without TLS that stays nil.
func (c *Config) ReadCertificates() (err error) {
	if !c.URL.IsTLS() {
		return nil
	}
	if c.Certs, err = c.certificates(); err != nil {
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	return nil
}

// negotiates says whether something happens before a connection's first byte of HTTP or
// MQTT.
func (l *Listener) negotiates() bool { return l.certs != nil || l.config.Proxy }

// URL is the listener's, with the port that it listens on.
func (l *Listener) URL() URL {
	u := l.config.URL
	u.Host = l.tcp.Addr().String()
	return u
}

// Certs are what is shown to clients and asked of them; nil without TLS.
func (l *Listener) Certs() *certs.Server { return l.certs }

// Refused is how many connections were closed because of MaxConnections.
func (l *Listener) Refused() int64 { return l.refused.Load() }

// Addr is the address that is listened on.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Accept waits for the next connection that is ready for MQTT.
func (l *Listener) Accept() (net.Conn, error) {
	if l.above != nil {
		return l.above.Accept()
	}
	return (*below)(l).Accept()
}

// Close stops listening and ends handshakes that are under way. Connections that were
// accepted live on.
func (l *Listener) Close() error {
	defer l.close.Do(func() { close(l.closed) })
	if l.above != nil {
		return l.above.Close() // and so tcp
	}
	return l.tcp.Close()
}

// below is the listener below WebSocket.
type below Listener

func (b *below) Addr() net.Addr { return b.tcp.Addr() }
func (b *below) Close() error   { return b.tcp.Close() }

func (b *below) Accept() (net.Conn, error) {
	l := (*Listener)(b)
	if !l.negotiates() && !l.passes {
		for {
			nc, err := l.tcp.Accept()
			if err != nil {
				return nil, err
			}
			if c := l.admit(nc); c != nil {
				return c, nil
			}
		}
	}
	select {
	case c := <-l.ready:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// accept accepts connections, and has a goroutine make each ready.
func (l *Listener) accept() {
	defer failstop.End(l.options.Logger, "a listener")
	for {
		nc, err := l.tcp.Accept()
		if err != nil {
			select {
			case l.failed <- err:
				continue // the caller of Accept decides whether to go on
			case <-l.closed:
				return
			}
		}
		if c := l.admit(nc); c != nil {
			l.makeReady(c)
		}
	}
}

// Pass continues with a connection that another node of the cluster has accepted for a client
// with this address, as if the listener had accepted it. The listener must be of OpenOn. Pass
// may wait for Accept.
func (l *Listener) Pass(nc net.Conn, client netip.AddrPort) {
	if c := l.admit(nc); c != nil {
		c.origin.Remote, c.passed = proxied{client}, true
		l.makeReady(c)
	}
}

// Front makes a connection for a client that a front of the cluster has accepted, as the listener
// would have: the front has done the handshakes, and chain is what the client has shown in that of
// TLS, if anything, which is verified here. The caller hands the connection to the broker. If there
// is an error, nc is as it was.
func (l *Listener) Front(nc net.Conn, scheme string, client netip.AddrPort, chain []*x509.Certificate) (*Conn, error) {
	if scheme != l.config.URL.Scheme {
		return nil, fmt.Errorf("the front listens with %s://, and the node with %s:// in the same place: give fronts and nodes the same listeners in the same order", scheme, l.config.URL.Scheme)
	}
	if len(chain) == 0 && l.config.ClientsShowCertificates() {
		return nil, errors.New("the client has shown no certificate to the front, and the node's listener asks for one: give the front the --tls-client-ca of the nodes")
	}
	var state *tls.ConnectionState
	if l.certs != nil {
		state = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13}
	}
	if len(chain) > 0 && l.certs != nil {
		chains, err := l.certs.VerifyClient(chain)
		if err != nil {
			return nil, err
		}
		state.PeerCertificates, state.VerifiedChains = chain, chains
	}
	if most := l.config.MaxConnections; l.open.Add(1) > int64(most) && most > 0 {
		l.open.Add(-1)
		l.refused.Add(1)
		return nil, errors.New("the listener has as many connections as it may (max-connections)")
	}
	return &Conn{Conn: nc, listener: l, origin: access.Origin{Listener: l.rules, Remote: proxied{client}, TLS: state, Fronted: true}, passed: true}, nil
}

// makeReady has a connection negotiate on a goroutine of its own if it has to, and hands it
// to Accept.
func (l *Listener) makeReady(c *Conn) {
	if !l.negotiates() {
		l.hand(c)
		return
	}
	h := l.options.Handshakes.Begin(c.Conn)
	go func() {
		defer failstop.End(l.options.Logger, "a handshake")
		l.negotiate(c, h)
	}()
}

// admit makes a Conn of nc, or closes it if there are too many.
func (l *Listener) admit(nc net.Conn) *Conn {
	if most := l.config.MaxConnections; l.open.Add(1) > int64(most) && most > 0 {
		l.open.Add(-1)
		l.refused.Add(1)
		l.options.Logger.Warn("closing a new connection: the listener has as many as it may (max-connections)",
			"listener", l.rules.Name, "remote", nc.RemoteAddr(), "maximum", most)
		_ = nc.Close()
		return nil
	}
	return &Conn{Conn: nc, listener: l, origin: access.Origin{Listener: l.rules, Remote: nc.RemoteAddr()}}
}

// negotiate makes a connection ready, and hands it to Accept or closes it.
func (l *Listener) negotiate(c *Conn, h *sockets.Handshake) {
	_ = c.SetDeadline(time.Now().Add(l.options.Timeout))
	err := c.begin(l)
	h.End() // WebSocket begins another one
	if err != nil {
		l.failedHandshake(c, err)
		_ = c.CloseNow()
		return
	}
	_ = c.SetDeadline(time.Time{})
	l.hand(c)
}

// hand waits until Accept takes a connection that is ready, or the listener is closed.
func (l *Listener) hand(c *Conn) {
	select {
	case l.ready <- c:
	case <-l.closed:
		_ = c.CloseNow()
	}
}

// maxReason is how many bytes of an error go to the log: it may have names of the peer's
// certificate in it.
const maxReason = 512

// failedHandshake reports a handshake that has failed.
func (l *Listener) failedHandshake(c *Conn, err error) {
	reason := err.Error()
	if refused := l.options.Refused; refused != nil {
		if subject, is := certs.Refused(err); is {
			refused(Refusal{Listener: l.rules.Name, Remote: c.RemoteAddr(), Subject: subject, Reason: reason})
		}
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	l.options.Logger.Info("a connection ended in its handshake", "listener", l.rules.Name, "remote", c.RemoteAddr(), "reason", reason)
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn // of bytes that are not encrypted: a *net.TCPConn or a *transport.TLSConn
	listener *Listener
	origin   access.Origin
	passed   bool // by another node, which has read what a balancer says
	gone     atomic.Bool
}

var _ transport.Streamer = (*Conn)(nil)

// begin reads the PROXY header and does the TLS handshake.
func (c *Conn) begin(l *Listener) error {
	if l.config.Proxy && !c.passed {
		h, err := proxy.Read(c.Conn)
		if err != nil {
			return err
		}
		if h.Client.IsValid() {
			c.origin.Remote = proxied{h.Client}
		} else {
			c.origin.Remote = proxied{c.Conn.RemoteAddr().(*net.TCPAddr).AddrPort()}
		}
	}
	if l.certs == nil {
		return nil
	}
	t := transport.NewTLSConn(c.Conn, l.certs.Config())
	if err := t.Accept(l.options.Turns, maxHandshake); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	state := t.ConnectionState()
	c.origin.TLS = &state
	c.Conn = t
	return nil
}

// Origin says where the connection came in.
func (c *Conn) Origin() *access.Origin { return &c.origin }

// RemoteAddr is the client's address, also behind a balancer.
func (c *Conn) RemoteAddr() net.Addr { return c.origin.Remote }

// Stream is the connection below.
func (c *Conn) Stream() net.Conn { return c.Conn }

// NetConn is the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, over TLS with the alert that ends the stream.
func (c *Conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// CloseNow closes the socket.
func (c *Conn) CloseNow() error {
	c.leave()
	return sockets.Close(c.Conn)
}

// leave stops counting the connection.
func (c *Conn) leave() {
	if !c.gone.Swap(true) {
		c.listener.open.Add(-1)
	}
}

// proxied is the address of a client behind a balancer, or of one that another node of the
// cluster has passed on. It is no *net.TCPAddr: wherever the client is said to come from, it
// is not on this machine, and gets nothing of what is reserved for clients that are.
type proxied struct{ netip.AddrPort }

func (proxied) Network() string { return "tcp" }

var _ net.Addr = proxied{}
