package client

import (
	"context"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/watches"
)

// Client is a connection to a state store that repairs itself. It is safe for
// concurrent use, and best shared: requests of many goroutines travel
// together. Close it when done; until then it holds one connection and a
// handful of goroutines.
type Client struct {
	cfg     *config
	conn    *conn.Upkeep[*link]
	watches *watches.Set[Event]
}

// Dial connects to a state store and waits until it is reached. If the first
// attempt fails, Dial fails; from then on the client reconnects by itself.
//
// The address is host:port, or mqtt://, mqtts://, ws:// or wss:// and host,
// port and path. Ports default to 1883, 8883, 80 and 443.
func Dial(ctx context.Context, address string, opts ...Option) (*Client, error) {
	c, err := New(address, opts...)
	if err != nil {
		return nil, err
	}
	if err := c.conn.AwaitFirst(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// New is Dial without the wait: it connects in the background, as often as it
// takes, and requests wait for that. It fails only if the address or an option
// makes no sense.
func New(address string, opts ...Option) (*Client, error) {
	cfg, err := newConfig(address, opts)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, conn: conn.NewUpkeep[*link](&cfg.Config, address)}
	c.watches = watches.NewSet(c.conn.Context(), event, isLasting)
	notified := func(l *link, change watches.Change) { c.watches.Notified(l, change) }
	go c.conn.Run(
		func() (*link, error) { return connect(c.conn.Context(), cfg, notified) },
		func(l *link) { c.watches.Up(l) }, c.watches.Down)
	return c, nil
}

// ClientID returns the MQTT client ID in use.
func (c *Client) ClientID() string { return c.cfg.ClientID }

// ClockAhead is how far this machine's clock was ahead of the server's when that refused a
// timestamp; 0: it has refused none. The client has corrected its timestamps by it.
func (c *Client) ClockAhead() time.Duration { return c.cfg.clock.Ahead() }

// Close disconnects. Requests in flight fail, with [ErrClosed] or, if they are
// writes that were sent, [ErrUnknownOutcome]; watches end with ErrClosed. Close
// returns when nothing of the client runs any more. Closing twice is harmless.
func (c *Client) Close() error {
	c.conn.Stop()
	c.watches.Close()
	return nil
}
