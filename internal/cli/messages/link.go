package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/mqttconn"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// link is one MQTT connection of pub or sub.
type link struct {
	*mqttconn.Conn
	ended chan error // why the connection has ended, once; buffered
}

// openLink connects. packet has what is particular to the command; received gets each
// message, in order. unreleased is what sub has received at QoS 2, over all connections.
func openLink(ctx context.Context, b *mqttconn.Broker, unreleased *clientconn.Unreleased, packet *mqtt.Connect, received func(*link, *mqtt.Publish)) (*link, error) {
	l := &link{ended: make(chan error, 1)}
	err := b.Open(ctx, clientconn.Config{
		MaxPacketBytes: clientconn.LargestPacketBytes, QoS2: unreleased,
		Received: func(m *mqtt.Publish) { received(l, m) },
	}, packet, func(c *mqttconn.Conn) { l.Conn = c })
	if err != nil {
		return nil, err
	}
	go func() {
		<-l.Done()
		l.ended <- l.WhyEnded()
	}()
	return l, nil
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

func (a acknowledgement) Acknowledged(o clientconn.Outcome) { a <- mqttconn.Rejected(o.Err()) }
func (a acknowledgement) Lost()                             { a <- errConnectionLost }
