package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/mqttconn"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// Retained messages come when a client subscribes, and no packet says that all have come. Of
// Holdfast the end is known all the same: it sends the retained messages of one subscription
// behind those of an earlier one. So a second subscription, to the server's version, ends the
// first. Any other server, and one that does not show its version, has sent all when no message has
// come for a while.

// Subscription identifiers.
const (
	ofRetained = 1
	ofVersion  = 2
)

const versionTopic = "$SYS/broker/version"

// retained gives the retained messages that match a filter to write, in the order in which the
// server sends them. settle is how long no message may come before all have come, if the server
// does not show where their end is.
func retained(ctx context.Context, c *connect.Flags, filter string, settle time.Duration, write func(*mqtt.Publish) error) error {
	r := &retainedReader{write: write, came: make(chan struct{}, 1), end: make(chan error, 1)}
	broker, err := mqttconn.NewBroker(c)
	if err != nil {
		return err
	}
	err = broker.Open(ctx, clientconn.Config{
		MaxPacketBytes: clientconn.LargestPacketBytes, QoS2: new(clientconn.Unreleased), Received: r.received,
	}, &mqtt.Connect{CleanStart: true}, func(c *mqttconn.Conn) { r.conn = c })
	if err != nil {
		return err
	}
	conn := r.conn
	defer conn.Disconnect(&mqtt.Disconnect{})
	if err := subscribe(ctx, c, conn, filter, ofRetained, 2); err != nil {
		return fmt.Errorf("topic filter %q: %w", filter, err)
	}
	var refused *clientconn.ReasonError
	if err := subscribe(ctx, c, conn, versionTopic, ofVersion, 0); err != nil && !errors.As(err, &refused) {
		return err
	}
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case err := <-r.end:
			return err
		case <-r.came:
			quiet.Reset(settle)
		case <-quiet.C:
			return r.stop()
		case <-conn.Done():
			select {
			case err := <-r.end: // before the connection ended
				return err
			default:
				return conn.WhyEnded()
			}
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), r.stop())
		}
	}
}

func subscribe(ctx context.Context, c *connect.Flags, conn *mqttconn.Conn, filter string, id uint32, qos byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := conn.Subscribe(ctx, &mqtt.Subscribe{SubscriptionID: id, Subscriptions: []mqtt.Subscription{{Filter: []byte(filter), QoS: qos}}})
	switch {
	case errors.Is(err, clientconn.ErrEnded):
		return conn.WhyEnded()
	case err != nil && id == ofRetained:
		return mqttconn.Rejected(err)
	}
	return err
}

// retainedReader writes what comes. Its method received is called by the goroutine that reads the
// connection, the others by that of the command.
type retainedReader struct {
	write func(*mqtt.Publish) error
	conn  *mqttconn.Conn // set before the CONNECT
	came  chan struct{}  // gets one when a message has come
	end   chan error     // gets one when the end has come, or write has failed

	mu   sync.Mutex
	over bool // under mu: nothing is written any more
}

func (r *retainedReader) received(m *mqtt.Publish) {
	r.conn.Acknowledge(m.QoS, m.PacketID)
	of := uint32(0)
	if len(m.Props.SubscriptionIDs) > 0 {
		of = m.Props.SubscriptionIDs[0]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.over || !m.Retain: // published meanwhile
	case of == ofVersion:
		if bytes.HasPrefix(m.Payload, []byte("holdfast ")) {
			r.over = true
			r.end <- nil
		}
	default:
		if err := r.write(m); err != nil {
			r.over = true
			r.end <- err
			return
		}
		select {
		case r.came <- struct{}{}:
		default:
		}
	}
}

// stop has nothing written any more.
func (r *retainedReader) stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	select {
	case err := <-r.end:
		return err
	default:
		return nil
	}
}
