package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// link is one MQTT connection of pub or sub.
type link struct {
	*clientconn.Conn
	ended chan error // why the connection has ended, once; buffered
}

// keepAliveSeconds bounds the time after which a dead connection is noticed, by half.
const keepAliveSeconds = 20

// openLink connects. packet has what is particular to the command; received gets each
// message, in order. unreleased is what sub has received at QoS 2, over all connections.
func openLink(ctx context.Context, c *connect.Flags, unreleased *clientconn.Unreleased, packet *mqtt.Connect, received func(*link, *mqtt.Publish)) (*link, error) {
	address, err := c.Address()
	if err != nil {
		return nil, err
	}
	t, err := c.TLSConfig()
	if err != nil {
		return nil, err
	}
	dialServer, err := dial.To(address, t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name("hostname"), err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	nc, err := dialServer(ctx)
	if err != nil {
		return nil, connect.Unreachable(address, c.Timeout, err)
	}
	l := &link{ended: make(chan error, 1)}
	l.Conn = clientconn.New(nc, clientconn.Config{
		MaxPacketBytes: clientconn.LargestPacketBytes, QoS2: unreleased,
		Received: func(m *mqtt.Publish) { received(l, m) },
	})
	packet.KeepAlive = keepAliveSeconds
	c.ClientID = c.ClientIDFor(t) // the same over all connections of the command
	packet.ClientID = []byte(c.ClientID)
	packet.Username, packet.HasUsername = []byte(c.Username), c.Username != ""
	packet.Password = c.Secret()
	packet.HasPassword = packet.Password != nil
	packet.RequestProblemInfo = true
	if _, err := l.Connect(ctx, packet); err != nil {
		var said *clientconn.ReasonError
		if errors.As(err, &said) {
			err = &client.ConnectError{Code: client.ReasonCode(said.Code), Reason: said.Reason}
		}
		return nil, connect.Unreachable(address, c.Timeout, err)
	}
	go func() {
		<-l.Done()
		l.ended <- l.whyEnded()
	}()
	return l, nil
}

// whyEnded says why the connection has ended.
func (l *link) whyEnded() error {
	var said *clientconn.ReasonError
	if !errors.As(l.Err(), &said) {
		return fmt.Errorf("the connection was lost: %w", l.Err())
	}
	text := fmt.Sprintf("%v (0x%02X)", said.Code, byte(said.Code))
	if said.Reason != "" {
		text += ": " + said.Reason
	}
	return fmt.Errorf("the server disconnected: %s", text)
}

// close disconnects.
func (l *link) close() { l.Disconnect(&mqtt.Disconnect{}) }

// publish sends a message. done gets its outcome when the server has it; at QoS 0 that
// is once it is sent.
func (l *link) publish(ctx context.Context, m *mqtt.Delivery, timeout time.Duration) (done <-chan error, err error) {
	outcome := make(chan error, 1)
	if m.QoS == 0 {
		err := l.SendQoS0(ctx, func(dst []byte) []byte { return mqtt.AppendDelivery(dst, mqtt.V5, m) })
		outcome <- err
		return outcome, nil
	}
	acknowledged := make(acknowledgement, 1)
	err = l.Send(ctx, m.QoS, acknowledged, func(dst []byte, packetID uint16) []byte {
		m.PacketID = packetID
		return mqtt.AppendDelivery(dst, mqtt.V5, m)
	})
	if err != nil {
		return nil, err
	}
	go func() {
		expired := time.NewTimer(timeout)
		defer expired.Stop()
		select {
		case err := <-acknowledged:
			outcome <- err
		case <-expired.C:
			outcome <- fmt.Errorf("no acknowledgement within %v", timeout)
		case <-ctx.Done():
			outcome <- pipeline.ErrInterrupted
		}
	}()
	return outcome, nil
}

var errConnectionLost = errors.New("the connection was lost before the server had acknowledged everything")

// acknowledgement gets the outcome of a message. It implements clientconn.Pending.
type acknowledgement chan error

func (a acknowledgement) Acknowledged(o clientconn.Outcome) { a <- rejected(o.Err()) }
func (a acknowledgement) Lost()                             { a <- errConnectionLost }

// rejected is the error of package client for what the server has refused.
func rejected(err error) error {
	var said *clientconn.ReasonError
	if !errors.As(err, &said) {
		return err
	}
	return &client.RejectedError{Code: client.ReasonCode(said.Code), Reason: said.Reason}
}
