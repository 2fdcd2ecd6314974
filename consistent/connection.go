package consistent

import (
	"context"
	"errors"

	"holdfast/client"
)

// Connection is the [Conn] to a server: one connection for the store, and one with a
// session that outlives it for the messages. Both repair themselves.
type Connection struct {
	store    *client.Client
	messages *client.Session
}

// Dial connects to a server, as [client.Dial] and [client.DialSession] do. A
// client ID given with [client.WithClientID] names the session, and with "-store"
// behind it the connection for the store: give one that stays the same, or what is
// published while the process is away is not for it.
func Dial(ctx context.Context, address string, opts ...client.Option) (*Connection, error) {
	messages, err := client.DialSession(ctx, address, opts...)
	if err != nil {
		return nil, err
	}
	store, err := client.Dial(ctx, address, append(opts[:len(opts):len(opts)], client.WithClientID(messages.ClientID()+"-store"))...)
	if err != nil {
		return nil, errors.Join(err, messages.Close())
	}
	return &Connection{store, messages}, nil
}

// Close disconnects, both.
func (c *Connection) Close() error { return errors.Join(c.messages.Close(), c.store.Close()) }

// Client is the connection to the store, for other uses of it.
func (c *Connection) Client() *client.Client { return c.store }

// Load implements Conn.
func (c *Connection) Load(ctx context.Context, key, messageID string) (client.Message, error) {
	return c.store.Load(ctx, key, messageID)
}

// Store implements Conn. A lost answer is an error: whether it was carried out, the
// next Load tells.
func (c *Connection) Store(ctx context.Context, r StoreRequest) (client.StoreResult, error) {
	return c.store.Store(ctx, r.Key, r.State, r.MessageID, r.Version, client.Captured(r.Context), client.Keep(r.Keep))
}

// Done implements Conn.
func (c *Connection) Done(ctx context.Context, key, messageID string) (bool, error) {
	return c.store.Done(ctx, key, messageID)
}

// Publish implements Conn.
func (c *Connection) Publish(ctx context.Context, messages ...Message) error {
	return c.messages.Publish(ctx, messages...)
}

// Subscribe implements Conn.
func (c *Connection) Subscribe(ctx context.Context, filters []string, deliver func(Delivery)) error {
	return c.messages.Subscribe(ctx, filters, deliver)
}

// MaxPacketSize implements Conn.
func (c *Connection) MaxPacketSize() uint32 { return c.messages.MaxPacketSize() }
