// Package inside lets parts of the server be clients of its broker, as bridges are: they connect
// as any client does, and the broker knows who they are without a proof. The server package
// calls it; it never accepts a connection of another process.
package inside

import (
	"context"
	"fmt"
	"net"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Listener is a listener for clients that are a part of the server. Its connections are TCP's, over
// loopback, but no other process can connect to it.
type Listener struct {
	ready  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

// New makes a Listener.
func New() *Listener {
	closed, cancel := context.WithCancel(context.Background())
	return &Listener{make(chan net.Conn), closed, cancel}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.ready:
		return nc, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Dial makes a connection, which the server takes for one of this user.
func (l *Listener) Dial(ctx context.Context, user string) (net.Conn, error) {
	client, server, err := loopbackPair(ctx)
	if err != nil {
		return nil, err
	}
	origin := &access.Origin{Remote: server.RemoteAddr(), Inside: &access.Identity{ClientID: user, Username: user, Method: access.Inside, Owner: user}}
	select {
	case l.ready <- &conn{server, origin}:
		return client, nil
	case <-l.closed.Done():
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = client.Close(), server.Close()
	return nil, err
}

// conn is the server's end of such a connection.
type conn struct {
	*net.TCPConn
	origin *access.Origin
}

func (c *conn) Origin() *access.Origin { return c.origin }

// loopbackPair makes a TCP connection and gives both its ends.
func loopbackPair(ctx context.Context) (client net.Conn, server *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var d net.Dialer
	if client, err = d.DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = l.SetDeadline(deadline)
	}
	for {
		server, err := l.AcceptTCP()
		if err != nil {
			return nil, nil, fmt.Errorf("%w, %w", err, client.Close())
		}
		if server.RemoteAddr().String() == client.LocalAddr().String() {
			return client, server, nil
		}
		_ = server.Close() // another process's
	}
}

// Also adds the clients that are a part of the server to those that an authenticator
// knows; nil stays nil: then the broker asks no client who it is.
func Also(a access.Authenticator) access.Authenticator {
	if a == nil {
		return nil
	}
	return both{a}
}

// both is an authenticator that knows clients which are a part of the server, and asks
// another one about all others.
type both struct{ access.Authenticator }

func (a both) Connect(p *mqtt.Connect, clientID string, from *access.Origin, stop <-chan struct{}) access.Verdict {
	if from.Inside != nil {
		return access.Verdict{Identity: from.Inside}
	}
	return a.Authenticator.Connect(p, clientID, from, stop)
}

func (a both) Holds(id *access.Identity) bool {
	return id != nil && id.Method == access.Inside || a.Authenticator.Holds(id)
}
