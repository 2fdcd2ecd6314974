// Package clients keeps the listeners for clients open on a node of a cluster while the leader changes:
// while this node leads its server has their connections, and otherwise the relay passes them
// on to the leader. It also gives the server those that other nodes pass on.
//
// It outlives the server, which ends with each office of the node.
package clients

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/relay"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Magic is how a connection begins on which another node passes a client on, for
// node.Options.Streams. Receive is its handler.
const Magic = "holdfast client1"

// headerTimeout is how long the other node may take to say who the client is.
const headerTimeout = 5 * time.Second

// Options of Open.
type Options struct {
	Listeners []listen.Config // those of the server, in the same order on all nodes
	// Bound wraps the TCP listeners, as in listen.Options. nil: they stay as they are.
	Bound          func(l net.Listener, loopback bool) net.Listener
	MaxConnections int          // that are held or passed on; 0: the relay's default
	MaxBuffered    int64        // bytes of the large buffers of what is passed on; 0: the relay's default
	Dialer         *port.Dialer // how the leader is reached; nil: without TLS
	Logger         *slog.Logger
}

// Clients has the listeners of a node. Its methods are safe for concurrent use.
type Clients struct {
	o       Options
	relay   *relay.Relay
	sockets []*relay.Socket
	running sync.WaitGroup
	ending  context.Context
	end     context.CancelFunc

	mu      lockrank.Mutex[lockrank.ReplicaClients]
	serving []*listen.Listener // mu: by place; nil: the server does not serve there at the moment
}

// Open listens for clients. They are held until Follow knows a leader, or a server takes them.
func Open(o Options) (*Clients, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Dialer == nil {
		o.Dialer = port.NewDialer(nil, o.Logger)
	}
	c := &Clients{o: o, serving: make([]*listen.Listener, len(o.Listeners))}
	c.ending, c.end = context.WithCancel(context.Background())
	c.relay = relay.New(relay.Options{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return o.Dialer.Dial(ctx, address, Magic)
		},
		MaxConnections: o.MaxConnections, MaxBuffered: o.MaxBuffered, Logger: o.Logger,
	})
	for i := range o.Listeners {
		l := &o.Listeners[i]
		tcp, err := sockets.Listen(l.URL.Host)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", l.URL, err), c.Close())
		}
		if o.Bound != nil {
			tcp = o.Bound(tcp, !l.Proxy)
		}
		c.sockets = append(c.sockets, c.relay.Listen(tcp, *l))
	}
	return c, nil
}

// Follow has the relay follow what a node knows of the leader, until Close.
func (c *Clients) Follow(n *node.Node) {
	c.running.Go(func() {
		defer failstop.End(c.o.Logger, "the watcher of the cluster's leader")
		for {
			changed := n.Changes()
			s := n.Status()
			address, known := s.LeaderAddress()
			switch {
			case s.Role == node.Leader:
				c.relay.Follow(relay.Leader{Term: s.Term})
				c.relay.CloseAll()
			case known:
				c.relay.Follow(relay.Leader{Term: s.Term, Address: address})
			default:
				c.relay.Follow(relay.Leader{Term: s.Term})
			}
			select {
			case <-changed:
			case <-c.ending.Done():
				return
			}
		}
	})
}

// Listen opens the listener with this place for a server that serves clients from now on,
// because its node leads. The server closes it when it ends.
func (c *Clients) Listen(place int, config listen.Config, o listen.Options) (*listen.Listener, error) {
	l, err := listen.OpenOn(lent{c.sockets[place].Lead(), func() { c.take(place, nil) }}, config, o)
	if err != nil {
		return nil, err
	}
	c.take(place, l)
	return l, nil
}

func (c *Clients) take(place int, l *listen.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving[place] = l
}

// lent is a listener whose owner is told when it is closed.
type lent struct {
	net.Listener
	closed func()
}

func (l lent) Close() error {
	l.closed()
	return l.Listener.Close()
}

// Receive takes a client that another node passes on, or lets that node know that this one
// does not serve clients.
func (c *Clients) Receive(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(headerTimeout))
	err := relay.Receive(conn, func(h proxy.Header) func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if h.Listener < 0 || h.Listener >= len(c.serving) || c.serving[h.Listener] == nil {
			return nil
		}
		l := c.serving[h.Listener]
		return func() {
			_ = conn.SetDeadline(time.Time{})
			l.Pass(conn, h.Client)
		}
	})
	if err == nil {
		return
	}
	if !errors.Is(err, relay.ErrNotTaken) {
		c.o.Logger.Warn("a client that another node passes on was not taken", "node", conn.RemoteAddr().String(), "error", err)
	}
	_ = conn.Close()
}

// Addrs are the addresses of the listeners, in their order.
func (c *Clients) Addrs() (all []net.Addr) {
	for _, s := range c.sockets {
		all = append(all, s.Addr())
	}
	return all
}

// SetMaxConnections replaces Options.MaxConnections. What there is beyond stays.
func (c *Clients) SetMaxConnections(most int) { c.relay.SetMaxConnections(most) }

// Figures are those of the relay.
func (c *Clients) Figures() relay.Figures { return c.relay.Figures() }

// Close closes the listeners and all connections that are held or passed on.
func (c *Clients) Close() error {
	c.end()
	err := c.relay.Close()
	c.running.Wait()
	return err
}
