package consistent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/letters"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/stores"
)

// Connection is the [Conn] to a server: one connection for the store, and one with a session that
// outlives it for the messages. Both repair themselves.
type Connection struct {
	store    *client.Client
	messages *client.Session
}

// Dial connects to a server, or to a node of a cluster, as [client.Dial] and [client.DialSession] do. The session gets the
// client ID of [client.WithClientID], and the connection for the store the same with "-store"
// appended. Without a client ID Dial fails: it must stay the same, or a process that is started
// again does not get the messages that were published in between. Each instance has one of its own.
// Only one [Processor] at a time runs on a connection.
//
// Other than there, the session outlives its connection for 7 days, as long as messages are
// remembered by default; the server refuses publishes when its queue for the session is full,
// rather than end the session ([client.WithQueueFull]); and the connections log to [slog.Default].
// Options replace each of these.
func Dial(ctx context.Context, addresses string, opts ...client.Option) (*Connection, error) {
	opts = append([]client.Option{client.WithSessionExpiry(defaultKeep), client.WithQueueFull(client.QueueFullReject), client.WithLogger(slog.Default())}, opts...)
	messages, err := client.DialSession(ctx, addresses, opts...)
	if err != nil {
		return nil, err
	}
	if !messages.Named() {
		return nil, errors.Join(fmt.Errorf("%w: give WithClientID a name that this instance keeps: a process without one does not get what was published while it was away", client.ErrInvalidOption), messages.Close())
	}
	store, err := client.Dial(ctx, addresses, append(opts[:len(opts):len(opts)], client.WithClientID(messages.ClientID()+"-store"))...)
	if err != nil {
		return nil, errors.Join(err, messages.Close())
	}
	return &Connection{store, messages}, nil
}

// Close closes both connections.
func (c *Connection) Close() error { return errors.Join(c.messages.Close(), c.store.Close()) }

// Client is the connection to the store, for other uses of it.
func (c *Connection) Client() *client.Client { return c.store }

// Load implements Conn.
func (c *Connection) Load(ctx context.Context, key, messageID string) (client.LoadResult, error) {
	return c.store.Load(ctx, key, messageID)
}

// Store implements Conn. A lost answer is an error; the next Load tells whether the STORE was
// executed.
func (c *Connection) Store(ctx context.Context, r StoreRequest) (client.StoreResult, error) {
	return stores.Send(ctx, c.store, &r)
}

// Done implements Conn.
func (c *Connection) Done(ctx context.Context, r DoneRequest) (bool, error) {
	return c.store.Done(ctx, r.Key, r.MessageID, client.OfVersion(r.Version), client.Leave(r.Digest))
}

// Transact implements Conn. It goes over the connection of the messages, so that it can acknowledge
// them.
func (c *Connection) Transact(ctx context.Context, r TxnRequest) (TxnResult, error) {
	return commit.Send(ctx, c.messages.Client(), &r)
}

// TransactsTogether implements TogetherConn.
func (c *Connection) TransactsTogether() bool { return true }

// Set implements Conn.
func (c *Connection) Set(ctx context.Context, key string, value []byte, expiry time.Duration) error {
	_, err := c.store.Set(ctx, key, value, client.Expiry(expiry), client.RetryWrites())
	return err
}

// Usage implements Conn.
func (c *Connection) Usage(ctx context.Context, prefix string) (keys int, bytes int64, err error) {
	return letters.Usage(ctx, c.store, prefix)
}

// ClockAhead implements Conn.
func (c *Connection) ClockAhead() time.Duration { return c.store.ClockAhead() }

// Publish implements Conn.
func (c *Connection) Publish(ctx context.Context, messages ...Message) error {
	return c.messages.Publish(ctx, messages...)
}

// Subscribe implements Conn.
func (c *Connection) Subscribe(ctx context.Context, filters ...string) error {
	return c.messages.Subscribe(ctx, filters...)
}

// Messages implements Conn.
func (c *Connection) Messages(ctx context.Context) iter.Seq2[Delivery, error] {
	return c.messages.Messages(ctx)
}

// SessionExpiry implements Conn.
func (c *Connection) SessionExpiry() time.Duration { return c.messages.Expiry() }

// MaxPacketSize implements Conn.
func (c *Connection) MaxPacketSize() uint32 { return c.messages.MaxPacketSize() }
