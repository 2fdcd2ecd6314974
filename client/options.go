package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/invoke"
	"github.com/holdfast-mqtt/holdfast/client/internal/message"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

const (
	defaultTimeout       = 10 * time.Second
	defaultKeepAlive     = 20 * time.Second
	defaultMinBackoff    = 50 * time.Millisecond
	defaultMaxBackoff    = 10 * time.Second
	defaultWatchQueue    = 64
	defaultRescan        = time.Second
	defaultSessionExpiry = 24 * time.Hour

	minPacketBytes = 1024 // with less, an answer has room for hardly more than its topic
)

// Option configures a [Client] or a [Session]: an argument of [Dial], [New] and
// [DialSession].
//
// In this module, options of what lasts (a client, a lock, a processor) begin with
// With; those of a single request (Expiry, IfVersion, RetryWrites, …) do not.
type Option interface{ applyClient(*config) }

type optionFunc func(*config)

func (f optionFunc) applyClient(c *config) { f(c) }

type config struct {
	conn.Config
	tls           *tls.Config
	dial          func(context.Context) (net.Conn, error) // nil: Servers are made of the addresses
	retryWrites   bool
	sessionExpiry time.Duration
	queueFull     QueueFull
	randomID      bool // the client ID was made up, so no later process resumes the session
	clock         *hlc.Clock
}

// WithClientID sets the MQTT client ID. Two clients must not share one: the server
// disconnects the first when the second connects. It must not contain '/', '+', '#'.
// The default, also for "", is "holdfast-" and 16 random hexadecimal digits.
func WithClientID(id string) Option {
	return optionFunc(func(c *config) { c.ClientID = id })
}

// WithCredentials sets the user name and password of the connection.
func WithCredentials(username string, password []byte) Option {
	return optionFunc(func(c *config) { c.Username, c.Password = username, password })
}

// WithTLS sets the TLS configuration for the schemes mqtts and wss, and makes
// an address without a scheme mean mqtts. An empty ServerName is filled in. nil is as
// without the option.
func WithTLS(t *tls.Config) Option {
	return optionFunc(func(c *config) { c.tls = t })
}

// WithDialer replaces the way a network connection is made; the addresses given
// to [Dial] or [New] are then only a name. dial is called once per attempt and
// its context bounds the attempt. It must return a connection on which MQTT
// can be spoken at once. nil is as without the option.
func WithDialer(dial func(ctx context.Context) (net.Conn, error)) Option {
	return optionFunc(func(c *config) { c.dial = dial })
}

// WithTimeout bounds operations whose context has no deadline, and each
// attempt to connect, of which each of several servers gets its share. The default is 10 s.
// It doesn't bound [Client.Watch]'s events, nor [Session.Messages].
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) { c.Timeout = d })
}

// WithKeepAlive sets the MQTT Keep Alive, in whole seconds from 1 s to 65,535 s.
// A dead connection is noticed within twice that time. The default is 20 s.
func WithKeepAlive(d time.Duration) Option {
	return optionFunc(func(c *config) { c.KeepAlive = d })
}

// WithSessionExpiry sets for how long the server keeps a [Session] without
// connection, and the messages for it, in whole seconds from 1 s to 2³²−2 s. The
// default is one day. It means nothing to a [Client].
func WithSessionExpiry(d time.Duration) Option {
	return optionFunc(func(c *config) { c.sessionExpiry = d })
}

// QueueFull says what the server does when its queue of messages for a [Session] is full.
type QueueFull string

const (
	QueueFullReject     QueueFull = "reject"      // refuse publishes ([ReasonQuotaExceeded]): nothing is lost
	QueueFullDropOldest QueueFull = "drop-oldest" // drop the oldest message that was not sent
	QueueFullEndSession QueueFull = "end-session" // end the session with all that waits in it
)

// WithQueueFull chooses that. By default, or with "", the server's setting decides. Holdfast
// refuses the connection if it leaves clients no choice (--keep-queue-full); other servers
// ignore it (user property holdfast-queue-full of CONNECT), and so does a [Client].
func WithQueueFull(q QueueFull) Option {
	return optionFunc(func(c *config) { c.queueFull = q })
}

// WithBackoff bounds the pause between two attempts to connect: it starts near
// min, doubles with each failure up to max, and is spread at random by half.
// The defaults are 50 ms and 10 s.
func WithBackoff(minimum, maximum time.Duration) Option {
	return optionFunc(func(c *config) { c.MinBackoff, c.MaxBackoff = minimum, maximum })
}

// WithMaxPacketSize announces the largest MQTT packet, in bytes, that the
// server may send, from 1,024 to 268,435,460. Larger values then cannot be read; a Get of
// one times out, because the server must drop the answer [MQTT-3.1.2-24]. A server
// that sends a larger packet all the same is disconnected. The default, also for 0,
// is 64 MiB.
func WithMaxPacketSize(bytes uint32) Option {
	return optionFunc(func(c *config) { c.MaxPacketSizeBytes = bytes })
}

// WithClock shares a hybrid logical clock with other clients of the process.
// By default, also with nil, each client has its own, whose node ID is the client ID.
func WithClock(clock *hlc.Clock) Option {
	return optionFunc(func(c *config) { c.clock = clock })
}

// WithLogger receives one line when the connection is made or lost. By default
// nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) { c.Logger = l })
}

// newConfig fails only if an address or an option makes no sense.
func newConfig(addresses string, opts []Option) (*config, error) {
	c := &config{
		Config: conn.Config{
			Timeout:    defaultTimeout,
			KeepAlive:  defaultKeepAlive,
			MinBackoff: defaultMinBackoff,
			MaxBackoff: defaultMaxBackoff,
			Logger:     slog.New(slog.DiscardHandler),
			Errors:     connErrors,
		},
		sessionExpiry: defaultSessionExpiry,
	}
	for _, o := range opts {
		o.applyClient(c)
	}
	if c.ClientID == "" {
		c.ClientID, c.randomID = randomClientID(), true
	}
	if c.clock == nil {
		c.clock = hlc.NewClock(nodeID(c.ClientID))
	}
	if c.dial != nil {
		c.Servers = dial.By(addresses, c.dial)
	}
	err := c.check()
	if err != nil || c.Servers != nil {
		return c, err
	}
	if c.Servers, err = dial.To(addresses, c.tls); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidOption, err)
	}
	return c, nil
}

func (c *config) check() error {
	switch {
	case !utf8.ValidString(c.ClientID) || strings.ContainsAny(c.ClientID, "/+#\x00"):
		return fmt.Errorf("%w: WithClientID(%q): it becomes a level of the response topic, so it must be UTF-8 without '/', '+', '#' and NUL", ErrInvalidOption, c.ClientID)
	case len(c.ClientID) > invoke.MaxNodeBytes || !message.ValidText(c.Username) || len(c.Password) > wire.MaxString:
		return fmt.Errorf("%w: a client ID has up to %d bytes, a user name and a password up to %d, and a user name is UTF-8 without NUL", ErrInvalidOption, invoke.MaxNodeBytes, wire.MaxString)
	case c.MaxPacketSizeBytes != 0 && c.MaxPacketSizeBytes < minPacketBytes || c.MaxPacketSizeBytes > clientconn.LargestPacketBytes:
		return fmt.Errorf("%w: WithMaxPacketSize(%d): it must be from %d to %d, or 0 for the default", ErrInvalidOption, c.MaxPacketSizeBytes, minPacketBytes, clientconn.LargestPacketBytes)
	case c.Logger == nil:
		return fmt.Errorf("%w: WithLogger(nil): leave the option out to log nothing", ErrInvalidOption)
	case c.Timeout <= 0:
		return fmt.Errorf("%w: WithTimeout(%v): it must be positive", ErrInvalidOption, c.Timeout)
	case c.KeepAlive < time.Second || c.KeepAlive > 65535*time.Second:
		return fmt.Errorf("%w: WithKeepAlive(%v): it must be from 1s to 65535s", ErrInvalidOption, c.KeepAlive)
	case c.sessionExpiry < time.Second || c.sessionExpiry > (1<<32-2)*time.Second:
		return fmt.Errorf("%w: WithSessionExpiry(%v): it must be from 1s to %ds", ErrInvalidOption, c.sessionExpiry, int64(1<<32-2))
	case c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff:
		return fmt.Errorf("%w: WithBackoff(%v, %v): the first must be positive and the second no smaller", ErrInvalidOption, c.MinBackoff, c.MaxBackoff)
	}
	return nil
}

func randomClientID() string {
	var b [8]byte
	rand.Read(b[:])
	return "holdfast-" + hex.EncodeToString(b[:])
}

// nodeID makes a clock's node ID of a client ID: a colon would end it
// (protocol, section 4).
func nodeID(clientID string) string { return strings.ReplaceAll(clientID, ":", "-") }
