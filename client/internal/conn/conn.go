package conn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// ReceiveMaximum is how many messages the server may have under way to the client.
const ReceiveMaximum = 1024

// Conn is one MQTT connection, from its CONNECT to its end.
type Conn struct {
	*clientconn.Conn
	cfg *Config
}

// New dials. received gets every message, in order, as views that are valid until it
// returns; it must not block.
func New(ctx context.Context, cfg *Config, received func(*mqtt.Publish)) (*Conn, error) {
	nc, err := cfg.Servers.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &Conn{clientconn.New(nc, clientconn.Config{Received: received, MaxPacketBytes: cfg.MaxPacketSizeBytes, Sent: cfg.Sent}), cfg}, nil
}

// Handshake completes packet from the configuration, and connects. When it fails,
// nothing is left of the connection.
func (c *Conn) Handshake(ctx context.Context, packet *mqtt.Connect) (sessionPresent bool, err error) {
	packet.ClientID = []byte(c.cfg.ClientID)
	packet.KeepAlive = uint16(c.cfg.KeepAlive / time.Second)
	packet.ReceiveMaximum = ReceiveMaximum
	packet.RequestProblemInfo = true
	if c.cfg.Username != "" {
		packet.Username, packet.HasUsername = []byte(c.cfg.Username), true
	}
	if c.cfg.Password != nil {
		packet.Password, packet.HasPassword = c.cfg.Password, true
	}
	ack, err := c.Connect(ctx, packet)
	if err != nil {
		return false, c.cfg.Errors.of(err)
	}
	if ack.HasMaximumQoS && ack.MaximumQoS < 1 {
		c.Close()
		return false, errors.New("the server takes QoS 0 only; this client needs QoS 1")
	}
	return ack.SessionPresent, nil
}

// LimitBytes is the largest packet that can be sent.
func (c *Conn) LimitBytes() int64 {
	if n := c.MaxPacket(); n > 0 {
		return int64(n)
	}
	return clientconn.LargestPacketBytes
}

// Subscribe makes one subscription at QoS 1.
func (c *Conn) Subscribe(ctx context.Context, filter string) error {
	return c.Judge(c.Conn.Subscribe(ctx, &mqtt.Subscribe{Subscriptions: []mqtt.Subscription{{Filter: []byte(filter), QoS: 1}}}))
}

// Unsubscribe ends one subscription. One that the server doesn't have is no error.
func (c *Conn) Unsubscribe(ctx context.Context, filter string) error {
	return c.Judge(c.Conn.Unsubscribe(ctx, &mqtt.Unsubscribe{Filters: [][]byte{[]byte(filter)}}))
}

// Judge returns the error of a request in the terms of the package that uses the
// connection. It is ErrLost for the end of the connection.
func (c *Conn) Judge(err error) error {
	if errors.Is(err, clientconn.ErrEnded) {
		return ErrLost
	}
	return c.cfg.Errors.of(err)
}

// of turns what the server said into an error of the package that uses the connection.
func (e *Errors) of(err error) error {
	var said *clientconn.ReasonError
	switch {
	case !errors.As(err, &said):
		return err
	case said.Packet == mqtt.CONNACK:
		return e.Refused(byte(said.Code), said.Reason)
	case said.Packet == mqtt.DISCONNECT:
		return e.Disconnected(byte(said.Code), said.Reason)
	}
	return e.Rejected(byte(said.Code), said.Reason)
}

// Wait blocks until the connection has ended by itself, or ctx has and it has
// been closed, and says why.
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.Done():
		return c.WhyEnded()
	case <-ctx.Done():
		c.Close()
		return ErrClosed
	}
}

// WhyEnded says why the connection has ended, after Done.
func (c *Conn) WhyEnded() error {
	err := c.Err()
	if said := c.cfg.Errors.of(err); said != err {
		return said
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Close sends DISCONNECT [MQTT-3.14], closes the connection, and returns when it has ended.
func (c *Conn) Close() { c.CloseWith(&mqtt.Disconnect{}) }

// CloseWith is Close with a DISCONNECT that says more.
func (c *Conn) CloseWith(d *mqtt.Disconnect) {
	c.Disconnect(d)
	<-c.Done()
}

// Acks returns the Acks that acknowledges the connection's messages.
func (c *Conn) Acks() *Acks { return &Acks{conn: c.Conn} }
