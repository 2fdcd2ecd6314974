package client

import "context"

// Client is a connection to a state store that repairs itself. It is safe for
// concurrent use, and best shared: requests of many goroutines travel
// together. Close it when done; until then it holds one connection and a
// handful of goroutines.
type Client struct {
	upkeep[*link]
	watches *watches
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
	if err := c.awaitFirst(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// New is Dial without the wait: it connects in the background, as often as it
// takes, and requests wait for that. It fails only if the address or an option
// makes no sense.
func New(address string, opts ...Option) (*Client, error) {
	c := &Client{}
	if err := c.configure(address, opts); err != nil {
		return nil, err
	}
	c.watches = newWatches(c)
	go c.run(func() (*link, error) { return connect(c.ctx, c.cfg, c.watches.notified) }, c.watches.linkUp, c.watches.linkDown)
	return c, nil
}

// ClientID returns the MQTT client ID in use.
func (c *Client) ClientID() string { return c.cfg.clientID }

// Close disconnects. Requests in flight fail, with [ErrClosed] or, if they are
// writes that were sent, [ErrUnknownOutcome]; watches end with ErrClosed. Close
// returns when nothing of the client runs any more. Closing twice is harmless.
func (c *Client) Close() error {
	c.stop()
	c.watches.close()
	return nil
}
