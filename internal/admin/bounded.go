package admin

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// bounded closes connections beyond MaxConnections, and the oldest of those that wait beyond
// MaxWaiting: connections on which nothing comes keep no probe out.
type bounded struct {
	net.Listener
	open    atomic.Int64
	turned  *atomic.Int64
	waiting *sockets.Handshakes // connections without a whole request
}

func (l *bounded) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &counted{Conn: nc, of: l}
		c.wait()
		if l.open.Add(1) <= MaxConnections {
			return c, nil
		}
		l.turned.Add(1)
		_ = c.Close()
	}
}

// counted is a connection that has a place.
type counted struct {
	net.Conn
	of      *bounded
	gone    atomic.Bool
	waiting atomic.Pointer[sockets.Handshake] // nil: a request is served
}

// wait says that the connection has no whole request. One that is closed, or waits already, ends no
// other one for it.
func (c *counted) wait() {
	if c.gone.Load() || c.waiting.Load() != nil {
		return
	}
	c.waiting.Store(c.of.waiting.Begin(c))
	if c.gone.Load() {
		c.serve()
	}
}

// serve says that it does not wait any more.
func (c *counted) serve() {
	if h := c.waiting.Swap(nil); h != nil {
		h.End()
	}
}

func (c *counted) Close() error {
	if !c.gone.Swap(true) {
		c.of.open.Add(-1)
		c.serve()
	}
	return c.Conn.Close()
}

// countedOf finds it below TLS; nil: there is none.
func countedOf(nc net.Conn) *counted {
	if secured, is := nc.(interface{ NetConn() net.Conn }); is {
		nc = secured.NetConn()
	}
	c, _ := nc.(*counted)
	return c
}

type connKey struct{}

// withConn lets serving find the connection of a request. It is http.Server.ConnContext.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, countedOf(nc))
}

// serving notes when a request is there, with its body. One that is answered before that, because it is
// refused for example, has its answer at once: otherwise net/http would wait for the body first.
func serving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*counted)
		switch {
		case c == nil:
		case r.ContentLength == 0:
			c.serve()
		default:
			_ = http.NewResponseController(w).EnableFullDuplex()
			r = r.WithContext(r.Context()) // net/http needs its own Body
			b := &body{ReadCloser: r.Body, of: c}
			r.Body = b
			a := &answering{ResponseWriter: w, body: b}
			defer a.begin()
			w = a
		}
		next.ServeHTTP(w, r)
	})
}

// answering writes the answer to a request with a body. One that is given before the body is read is the last of its
// connection: where an answer need not wait for the body, net/http cannot read the next request behind it.
type answering struct {
	http.ResponseWriter
	body  *body
	begun bool
}

func (a *answering) begin() {
	if !a.begun && !a.body.ended {
		a.Header().Set("Connection", "close")
	}
	a.begun = true
}

func (a *answering) WriteHeader(status int) {
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answering) Write(p []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// body is that of a request, whose connection waits until it is read to its end.
type body struct {
	io.ReadCloser
	of    *counted
	ended bool // it is read
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended = true
		b.of.serve()
	}
	return n, err
}

// noteIdle notes that a connection waits for its next request. It is http.Server.ConnState.
func noteIdle(nc net.Conn, state http.ConnState) {
	if c := countedOf(nc); c != nil && state == http.StateIdle {
		c.wait()
	}
}
