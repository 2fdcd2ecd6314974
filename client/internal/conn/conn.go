package conn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

const (
	// ReceiveMaximum is how many messages the server may have under way to the client.
	// paho allocates a queue of that length per connection.
	ReceiveMaximum = 1024
	// reportWait bounds the wait for paho's report on why a connection ended.
	reportWait = time.Second
	// ackTimeout switches off paho's own timeouts: here contexts bound the waits.
	ackTimeout = 365 * 24 * time.Hour
)

// Conn is one MQTT connection, from its CONNECT to its end.
type Conn struct {
	cfg       *Config
	wire      *wire
	window    *window
	paho      *paho.Client
	maxPacket uint32     // bytes that the server accepts; 0: anything
	ended     chan error // what paho reported as the end; buffered
}

// New dials. received gets every message, in order. refused, if it is not nil, is called
// for each PUBACK that carries an error, with the correlation data of the message that was
// published. Both must not block.
func New(ctx context.Context, cfg *Config, refused func(correlation []byte, err error), received func(*paho.Publish)) (*Conn, error) {
	nc, err := cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg, wire: newWire(nc), window: newWindow(cfg.Errors.Rejected, refused), ended: make(chan error, 1)}
	c.paho = paho.NewClient(paho.ClientConfig{
		ClientID:      cfg.ClientID,
		Conn:          c.wire,
		Session:       c.window,
		PacketTimeout: ackTimeout,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(m paho.PublishReceived) (bool, error) {
			received(m.Packet)
			return true, nil
		}},
		OnClientError:      c.end,
		OnServerDisconnect: func(d *paho.Disconnect) { c.end(c.disconnected(d)) },
	})
	return c, nil
}

// Handshake completes packet from the configuration, and connects. When it fails,
// nothing is left of the connection.
func (c *Conn) Handshake(ctx context.Context, packet *paho.Connect) (sessionPresent bool, err error) {
	packet.ClientID = c.cfg.ClientID
	packet.KeepAlive = uint16(c.cfg.KeepAlive / time.Second)
	if packet.Properties == nil {
		packet.Properties = &paho.ConnectProperties{}
	}
	packet.Properties.ReceiveMaximum = ptr(uint16(ReceiveMaximum))
	packet.Properties.RequestProblemInfo = true
	if c.cfg.Username != "" {
		packet.UsernameFlag, packet.Username = true, c.cfg.Username
	}
	if c.cfg.Password != nil {
		packet.PasswordFlag, packet.Password = true, c.cfg.Password
	}
	if c.cfg.MaxPacketSizeBytes > 0 {
		packet.Properties.MaximumPacketSize = ptr(c.cfg.MaxPacketSizeBytes)
	}
	ack, err := c.paho.Connect(ctx, packet)
	if err != nil {
		if ack != nil && ack.ReasonCode >= 0x80 {
			return false, c.cfg.Errors.Refused(ack.ReasonCode, ack.Properties.ReasonString)
		}
		if cause := c.wire.cause(); cause != nil && ctx.Err() == nil {
			return false, fmt.Errorf("no CONNACK: %w", cause)
		}
		return false, fmt.Errorf("no CONNACK: %w", err)
	}
	if ack.Properties.MaximumPacketSize != nil {
		c.maxPacket = *ack.Properties.MaximumPacketSize
	}
	if ack.Properties.MaximumQoS != nil && *ack.Properties.MaximumQoS < 1 {
		c.Close()
		return false, errors.New("the server takes QoS 0 only; this client needs QoS 1")
	}
	return ack.SessionPresent, nil
}

// Subscribe makes one subscription at QoS 1.
func (c *Conn) Subscribe(ctx context.Context, filter string) error {
	ack, err := c.paho.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: 1}}})
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		reason := ""
		if ack.Properties != nil {
			reason = ack.Properties.ReasonString
		}
		return c.cfg.Errors.Rejected(ack.Reasons[0], reason)
	}
	return err
}

// Unsubscribe ends one subscription. One that the server doesn't have is no error.
func (c *Conn) Unsubscribe(ctx context.Context, filter string) error {
	ack, err := c.paho.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{filter}})
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		reason := ""
		if ack.Properties != nil {
			reason = ack.Properties.ReasonString
		}
		return c.cfg.Errors.Rejected(ack.Reasons[0], reason)
	}
	return err
}

func ptr[T any](v T) *T { return &v }

// disconnected is the error for a server's DISCONNECT.
func (c *Conn) disconnected(d *paho.Disconnect) error {
	reason := ""
	if d.Properties != nil {
		reason = d.Properties.ReasonString
	}
	return c.cfg.Errors.Disconnected(d.ReasonCode, reason)
}

// end notes what paho says about why the connection ended; the first report counts.
func (c *Conn) end(err error) {
	select {
	case c.ended <- err:
	default:
	}
}

// Wait blocks until the connection has ended by itself, or ctx has and it has
// been closed, and says why.
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.paho.Done():
		return c.WhyEnded()
	case <-ctx.Done():
		c.Close()
		return ErrClosed
	}
}

// WhyEnded says why the connection has ended. It prefers what the server said, then what the socket said.
func (c *Conn) WhyEnded() error {
	var reported error
	select {
	case reported = <-c.ended:
	case <-time.After(reportWait):
		reported = ErrLost
	}
	if c.window.disconnected() != nil {
		return reported
	}
	if cause := c.wire.cause(); cause != nil {
		return fmt.Errorf("%w: %w", ErrLost, cause)
	}
	return fmt.Errorf("%w: %w", ErrLost, reported)
}

// Close sends DISCONNECT [MQTT-3.14] and closes the connection.
func (c *Conn) Close() {
	_ = c.paho.Disconnect(&paho.Disconnect{ReasonCode: 0})
}

// Disconnect sends a DISCONNECT with properties, and closes the connection.
func (c *Conn) Disconnect(packet *paho.Disconnect) { _ = c.paho.Disconnect(packet) }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.paho.Done() }

// MaxPacket is the largest packet, in bytes, that the server takes; 0: any.
func (c *Conn) MaxPacket() uint32 { return c.maxPacket }

// WaitRoom blocks while too much output waits for the socket.
func (c *Conn) WaitRoom(ctx context.Context) error { return c.wire.waitRoom(ctx) }

// Publish sends a PUBLISH at QoS 1 and does not wait for its PUBACK. It waits for a slot
// of the server's Receive Maximum. Without an error the packet is on its way, or the
// connection has just ended.
func (c *Conn) Publish(ctx context.Context, p *paho.Publish) error {
	_, err := c.paho.PublishWithOptions(ctx, p, paho.PublishOptions{Method: paho.PublishMethod_AsyncSend})
	switch {
	case err == nil, errors.Is(err, paho.ErrNetworkErrorAfterStored):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Send is Publish for a caller that waits for the PUBACK: what comes through the channel
// goes to [Conn.Outcome].
func (c *Conn) Send(ctx context.Context, m *paho.Publish) (<-chan packets.ControlPacket, error) {
	if err := c.wire.waitRoom(ctx); err != nil {
		return nil, err
	}
	p := m.Packet()
	ack := make(chan packets.ControlPacket, 1)
	if err := c.window.AddToSession(ctx, p, ack); err != nil {
		return nil, err
	}
	if _, err := p.WriteTo(c.wire); err != nil {
		return nil, err
	}
	return ack, nil
}

// Outcome is nil for a PUBACK without an error. It is ErrLost for what the window sends
// in place of a PUBACK when the connection is lost.
func (c *Conn) Outcome(ack packets.ControlPacket) error {
	puback, ok := ack.Content.(*packets.Puback)
	switch {
	case !ok:
		return ErrLost
	case puback.ReasonCode >= 0x80:
		return c.window.rejection(puback)
	}
	return nil
}

// AckByHand returns the Acks that acknowledges messages from now on. Otherwise paho does,
// as soon as received has returned. It is to be called before Handshake.
func (c *Conn) AckByHand() *Acks {
	c.window.manual = true
	return &Acks{window: c.window}
}
