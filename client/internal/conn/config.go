package conn

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// Config is how connections are made and kept up.
type Config struct {
	ClientID           string
	Username           string
	Password           []byte        // nil: none
	Servers            *dial.Servers // make the network connection
	Timeout            time.Duration // of an attempt to connect, all servers together, and of a request without a deadline
	KeepAlive          time.Duration
	MinBackoff         time.Duration              // the first pause between two attempts to connect
	MaxBackoff         time.Duration              // the longest
	MaxPacketSizeBytes uint32                     // the largest packet that the server may send; 0: clientconn.DefaultMaxPacketBytes
	Sent               *clientconn.Unacknowledged // the messages of Publish that outlive a connection; nil: none does
	Logger             *slog.Logger
	Errors             Errors
}

// Errors makes errors, in the terms of the package that uses the connection, of the
// reason codes and Reason Strings that the server sends.
type Errors struct {
	Refused      func(code byte, reason string) error // CONNACK
	Rejected     func(code byte, reason string) error // PUBACK, SUBACK and UNSUBACK
	Disconnected func(code byte, reason string) error // DISCONNECT
	Another      func(err error) bool                 // whether another server of the cluster may accept what one has refused with err
}

// Attempt is the context of an attempt to connect to one of the servers, which has its share of
// Timeout.
func (c *Config) Attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	return c.Servers.Attempt(ctx, c.Timeout)
}

var (
	// ErrClosed means that Stop was called.
	ErrClosed = errors.New("the client is closed")
	// ErrNotConnected means that there was no connection for as long as the request
	// could wait.
	ErrNotConnected = errors.New("not connected")
	// ErrLost means that the connection has ended.
	ErrLost = errors.New("connection lost")
	// ErrTooLarge means that a packet is larger than the server takes, and was not sent.
	ErrTooLarge = clientconn.ErrTooLarge
)
