package client

import (
	"context"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/invoke"
	"github.com/holdfast-mqtt/holdfast/client/internal/watches"
)

// Client is a connection to a state store that repairs itself. It is safe for
// concurrent use, and best shared: requests of many goroutines travel
// together. Close it when done; until then it holds one connection and a
// handful of goroutines.
type Client struct {
	cfg     *config
	links   links
	watches *watches.Set[Event]
}

// links is where the connections come from.
type links interface {
	AwaitFirst(context.Context) error
	Live(context.Context) (*invoke.Link, error)
	Now() *invoke.Link // nil: there is no connection
	Bound(context.Context) (context.Context, context.CancelFunc)
	Why(ended error) error
	Context() context.Context
	Stop()
}

// newClient makes a client, and what its links need.
func newClient(cfg *config, from links) (*Client, *invoke.Config) {
	c := &Client{cfg: cfg, links: from, watches: watches.NewSet(from.Context(), event, isLasting)}
	return c, &invoke.Config{
		Config: &cfg.Config, Clock: cfg.clock, Errors: requestErrors,
		Notified: func(l *invoke.Link, change watches.Change) { c.watches.Notified(l, change) },
	}
}

// Dial connects to a state store and waits until it is reached. If the first
// attempt fails, Dial fails; from then on the client reconnects by itself.
//
// The address is host:port, or mqtt://, mqtts://, ws:// or wss:// and host,
// port and path. Ports default to 1883, 8883, 80 and 443. Several addresses, with commas
// between them, are those of up to 32 nodes of a cluster: "a:1883,b:1883,c:1883". The client
// connects to the first that answers, and to the next one when the connection is lost. Dial
// fails if all of them fail, or if one refuses the client for a reason of the client's, such
// as its password. A comma in a path is written %2C.
func Dial(ctx context.Context, addresses string, opts ...Option) (*Client, error) {
	c, err := New(addresses, opts...)
	if err != nil {
		return nil, err
	}
	if err := c.links.AwaitFirst(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// New is Dial without the wait: it connects in the background, as often as it
// takes, and requests wait for that. It fails only if an address or an option
// makes no sense.
func New(addresses string, opts ...Option) (*Client, error) {
	cfg, err := newConfig(addresses, opts)
	if err != nil {
		return nil, err
	}
	up := conn.NewUpkeep[*invoke.Link](&cfg.Config)
	c, requests := newClient(cfg, up)
	go up.Run(func() (*invoke.Link, error) { return invoke.Connect(up.Context(), requests) },
		func(l *invoke.Link) { c.watches.Up(l) }, c.watches.Down)
	return c, nil
}

// ClientID returns the MQTT client ID in use.
func (c *Client) ClientID() string { return c.cfg.ClientID }

// ClockAhead is how far this machine's clock was ahead of the server's when that refused a
// timestamp; 0: it has refused none. The client has corrected its timestamps by it.
func (c *Client) ClockAhead() time.Duration { return c.cfg.clock.Ahead() }

// MaxPacketSize is the largest packet, in bytes, that the server takes, as it said when it was
// reached last; 0: any, or it is not reached now.
func (c *Client) MaxPacketSize() uint32 {
	l := c.links.Now()
	if l == nil {
		return 0
	}
	return l.MaxPacket()
}

// Close disconnects. Requests in flight fail, with [ErrClosed] or, if they are
// writes that were sent, [ErrUnknownOutcome]; watches end with ErrClosed. Close
// returns when nothing of the client runs any more. Closing twice is harmless. Closing the
// client of a session ([Session.Client]) closes the session.
func (c *Client) Close() error {
	c.links.Stop()
	c.watches.Close()
	return nil
}
