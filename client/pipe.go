package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

const (
	// receiveMaximum is how many messages the server may have under way to us.
	// paho allocates a queue of that length per connection.
	receiveMaximum = 1024
	// farewellWait bounds the wait for paho's word on why a connection ended.
	farewellWait = time.Second
	// ackTimeout replaces paho's own waits: here contexts bound them.
	ackTimeout = 365 * 24 * time.Hour
)

// pipe is one MQTT connection, from its CONNECT to its end: what a [Client]'s and
// a [Session]'s have in common.
type pipe struct {
	cfg       *config
	wire      *wire
	window    *window
	paho      *paho.Client
	maxPacket uint32     // bytes that the server accepts; 0: anything
	ended     chan error // what paho reported as the end; buffered
}

// newPipe dials. received gets every message, in order; for refused see window.
func newPipe(ctx context.Context, cfg *config, refused func([]byte, error), received func(paho.PublishReceived) (bool, error)) (*pipe, error) {
	nc, err := cfg.dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &pipe{cfg: cfg, wire: newWire(nc), window: newWindow(refused), ended: make(chan error, 1)}
	p.paho = paho.NewClient(paho.ClientConfig{
		ClientID:           cfg.clientID,
		Conn:               p.wire,
		Session:            p.window,
		PacketTimeout:      ackTimeout,
		OnPublishReceived:  []func(paho.PublishReceived) (bool, error){received},
		OnClientError:      p.end,
		OnServerDisconnect: func(d *paho.Disconnect) { p.end(disconnected(d)) },
	})
	return p, nil
}

// handshake completes packet from the configuration, and connects. When it fails,
// nothing is left of the connection.
func (p *pipe) handshake(ctx context.Context, packet *paho.Connect) (sessionPresent bool, err error) {
	packet.ClientID = p.cfg.clientID
	packet.KeepAlive = uint16(p.cfg.keepAlive / time.Second)
	if packet.Properties == nil {
		packet.Properties = &paho.ConnectProperties{}
	}
	packet.Properties.ReceiveMaximum = ptr(uint16(receiveMaximum))
	packet.Properties.RequestProblemInfo = true
	if p.cfg.username != "" {
		packet.UsernameFlag, packet.Username = true, p.cfg.username
	}
	if p.cfg.password != nil {
		packet.PasswordFlag, packet.Password = true, p.cfg.password
	}
	if p.cfg.maxPacketSizeBytes > 0 {
		packet.Properties.MaximumPacketSize = ptr(p.cfg.maxPacketSizeBytes)
	}
	ack, err := p.paho.Connect(ctx, packet)
	if err != nil {
		if ack != nil && ack.ReasonCode >= 0x80 {
			return false, &ConnectError{Code: ack.ReasonCode, Reason: ack.Properties.ReasonString}
		}
		if cause := p.wire.cause(); cause != nil && ctx.Err() == nil {
			return false, fmt.Errorf("no CONNACK: %w", cause)
		}
		return false, fmt.Errorf("no CONNACK: %w", err)
	}
	if ack.Properties.MaximumPacketSize != nil {
		p.maxPacket = *ack.Properties.MaximumPacketSize
	}
	if ack.Properties.MaximumQoS != nil && *ack.Properties.MaximumQoS < 1 {
		p.close()
		return false, errors.New("the server takes QoS 0 only; the state store protocol needs QoS 1")
	}
	return ack.SessionPresent, nil
}

// subscribe makes one subscription at QoS 1, with an identifier if one is given.
func (p *pipe) subscribe(ctx context.Context, filter string, identifier *int) error {
	packet := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: 1}}}
	if identifier != nil {
		packet.Properties = &paho.SubscribeProperties{SubscriptionIdentifier: identifier}
	}
	ack, err := p.paho.Subscribe(ctx, packet)
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		rejected := &RejectedError{Code: ack.Reasons[0]}
		if ack.Properties != nil {
			rejected.Reason = ack.Properties.ReasonString
		}
		return rejected
	}
	return err
}

func ptr[T any](v T) *T { return &v }

// disconnected is the error for a server's DISCONNECT.
func disconnected(d *paho.Disconnect) error {
	reason := ""
	if d.Properties != nil {
		reason = d.Properties.ReasonString
	}
	return errors.New(withReason("the server disconnected", d.ReasonCode, reason))
}

// end is paho's word on why the connection ended; the first counts.
func (p *pipe) end(err error) {
	select {
	case p.ended <- err:
	default:
	}
}

// wait blocks until the connection has ended by itself, or ctx has and it has
// been closed, and says why.
func (p *pipe) wait(ctx context.Context) error {
	select {
	case <-p.paho.Done():
		return p.whyEnded()
	case <-ctx.Done():
		p.close()
		return ErrClosed
	}
}

// whyEnded prefers what the server said, then what the socket said.
func (p *pipe) whyEnded() error {
	var reported error
	select {
	case reported = <-p.ended:
	case <-time.After(farewellWait):
		reported = errConnectionLost
	}
	if p.window.farewell() != nil {
		return reported
	}
	if cause := p.wire.cause(); cause != nil {
		return fmt.Errorf("%w: %w", errConnectionLost, cause)
	}
	return fmt.Errorf("%w: %w", errConnectionLost, reported)
}

// close says goodbye [MQTT-3.14] and closes the connection.
func (p *pipe) close() {
	_ = p.paho.Disconnect(&paho.Disconnect{ReasonCode: 0})
}
