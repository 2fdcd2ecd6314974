package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Client is a connection to a state store that repairs itself. It is safe for
// concurrent use, and best shared: requests of many goroutines travel
// together. Close it when done; until then it holds one connection and a
// handful of goroutines.
type Client struct {
	cfg     *config
	address string
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	stopped chan struct{} // closed when the connection loop has ended
	tried   chan struct{} // closed after the first attempt to connect
	watches *watches

	mu      sync.Mutex
	link    *link         // under mu: nil while there is no connection
	ready   chan struct{} // under mu: closed when link is set; then replaced when it is lost
	lastErr error         // under mu: why there is no connection
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
	select {
	case <-c.tried:
	case <-ctx.Done():
		_ = c.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, ctx.Err())
	}
	c.mu.Lock()
	link, cause := c.link, c.lastErr
	c.mu.Unlock()
	if link == nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, cause)
	}
	return c, nil
}

// New is Dial without the wait: it connects in the background, as often as it
// takes, and requests wait for that. It fails only if the address or an option
// makes no sense.
func New(address string, opts ...Option) (*Client, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if cfg.dial == nil {
		if cfg.dial, err = dialer(address, cfg.tls); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{
		cfg:     cfg,
		address: address,
		ctx:     ctx,
		cancel:  cancel,
		stopped: make(chan struct{}),
		tried:   make(chan struct{}),
		ready:   make(chan struct{}),
	}
	c.watches = newWatches(c)
	go c.run()
	return c, nil
}

// ClientID returns the MQTT client ID in use.
func (c *Client) ClientID() string { return c.cfg.clientID }

// Close disconnects. Requests in flight fail, with [ErrClosed] or, if they are
// writes that were sent, [ErrUnknownOutcome]; watches end with ErrClosed. Close
// returns when nothing of the client runs any more. Closing twice is harmless.
func (c *Client) Close() error {
	c.cancel()
	<-c.stopped
	c.watches.close()
	return nil
}

// run keeps the client connected until it is closed.
func (c *Client) run() {
	defer close(c.stopped)
	keepConnected(c.ctx, c.cfg, c.address, c.tried,
		func() (*link, error) { return connect(c.ctx, c.cfg, c.watches.notified) }, c.up, c.down)
}

func (c *Client) up(l *link) {
	c.mu.Lock()
	c.cfg.sayConnected(c.address, c.lastErr != nil)
	c.link, c.lastErr = l, nil
	close(c.ready)
	c.mu.Unlock()
	c.watches.linkUp(l)
}

func (c *Client) down(cause error) {
	c.mu.Lock()
	if c.link != nil {
		c.link = nil
		c.ready = make(chan struct{})
	}
	c.lastErr = cause
	c.mu.Unlock()
	c.watches.linkDown()
}

// live returns the connection, waiting for it if there is none.
func (c *Client) live(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, ready := c.link, c.ready
		c.mu.Unlock()
		if c.ctx.Err() != nil {
			return nil, ErrClosed
		}
		if l != nil {
			return l, nil
		}
		select {
		case <-ready:
		case <-c.ctx.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			c.mu.Lock()
			cause := c.lastErr
			c.mu.Unlock()
			return nil, notConnected(cause, ctx.Err())
		}
	}
}

// notConnected says that nothing could be sent until a context ended, and why.
func notConnected(cause, ended error) error {
	if cause == nil || errors.Is(cause, ended) {
		return fmt.Errorf("%w: %w", ErrNotConnected, ended)
	}
	return fmt.Errorf("%w: %w (%w)", ErrNotConnected, cause, ended)
}
