package messages

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// link is one MQTT connection of pub or sub.
type link struct {
	*paho.Client
	session   *session
	conn      net.Conn
	maxPacket uint32     // bytes that the server takes; 0: any number
	ended     chan error // why the connection has ended, once; buffered
}

// session is what outlives a connection: packet identifiers, and handshakes of QoS 2.
type session struct {
	*state.State

	// Of a subscriber; nil otherwise. taken is asked before a received message is
	// acknowledged, and acknowledged is called after.
	taken        func() bool
	acknowledged func()
}

func newSession() *session { return &session{State: state.NewInMemory()} }

// Ack implements paho's SessionManager. A message at QoS 0 needs no acknowledgement.
func (s *session) Ack(p *packets.Publish) (err error) {
	if s.taken != nil && !s.taken() {
		return nil
	}
	if p.QoS > 0 {
		err = s.State.Ack(p)
	}
	if s.acknowledged != nil {
		s.acknowledged()
	}
	return err
}

// keepAliveSeconds bounds the time after which a dead connection is noticed, by half.
const keepAliveSeconds = 20

// openLink connects. packet has what is particular to the command; received gets each
// message, in order, and nil does without.
func openLink(ctx context.Context, c *connect.Flags, s *session, packet *paho.Connect, received func(*paho.Publish)) (*link, error) {
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
	conn, err := dialServer(ctx)
	if err != nil {
		return nil, connect.Unreachable(address, c.Timeout, err)
	}
	l := &link{session: s, conn: packets.NewThreadSafeConn(conn), ended: make(chan error, 1)}
	l.Client = paho.NewClient(paho.ClientConfig{
		Conn: l.conn, Session: s, PacketTimeout: c.Timeout,
		OnClientError: func(err error) { l.end(fmt.Errorf("the connection was lost: %w", err)) },
		OnServerDisconnect: func(d *paho.Disconnect) {
			l.end(fmt.Errorf("the server disconnected: %s", reason(d.ReasonCode, d.Properties.ReasonString)))
		},
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(m paho.PublishReceived) (bool, error) {
			if received != nil {
				received(m.Packet)
			}
			return true, nil
		}},
	})
	packet.KeepAlive = keepAliveSeconds
	c.ClientID = c.ClientIDFor(t) // the same over all connections of the command
	packet.ClientID = c.ClientID
	packet.UsernameFlag, packet.Username = c.Username != "", c.Username
	packet.Password = c.Secret()
	packet.PasswordFlag = packet.Password != nil
	if packet.Properties == nil {
		packet.Properties = &paho.ConnectProperties{}
	}
	packet.Properties.RequestProblemInfo = true
	ack, err := l.Connect(ctx, packet)
	if err != nil {
		_ = conn.Close()
		if ack != nil && ack.ReasonCode >= 0x80 {
			err = &client.ConnectError{Code: client.ReasonCode(ack.ReasonCode), Reason: ack.Properties.ReasonString}
		}
		return nil, connect.Unreachable(address, c.Timeout, err)
	}
	if ack.Properties.MaximumPacketSize != nil {
		l.maxPacket = *ack.Properties.MaximumPacketSize
	}
	return l, nil
}

// end notes why the connection has ended; only the first reason is kept.
func (l *link) end(err error) {
	select {
	case l.ended <- err:
	default:
	}
}

// reason is the text of a reason code and of the server's Reason String.
func reason(code byte, text string) string {
	s := fmt.Sprintf("%v (0x%02X)", mqtt.ReasonCode(code), code)
	if text != "" {
		s += ": " + text
	}
	return s
}

// close disconnects.
func (l *link) close() { _ = l.Disconnect(&paho.Disconnect{}) }

// publish sends a message. done gets its outcome when the server has it; at QoS 0 that
// is once it is sent.
func (l *link) publish(ctx context.Context, m *paho.Publish, timeout time.Duration) (done <-chan error, err error) {
	p := m.Packet()
	outcome := make(chan error, 1)
	if m.QoS == 0 {
		_, err := p.WriteTo(l.conn)
		outcome <- err
		return outcome, nil
	}
	acknowledged := make(chan packets.ControlPacket, 1)
	if err := l.session.AddToSession(ctx, p, acknowledged); err != nil {
		return nil, err
	}
	if _, err := p.WriteTo(l.conn); err != nil {
		return nil, err
	}
	go func() {
		expired := time.NewTimer(timeout)
		defer expired.Stop()
		select {
		case ack := <-acknowledged:
			outcome <- judge(&ack)
		case <-expired.C:
			outcome <- fmt.Errorf("no acknowledgement within %v", timeout)
		case <-ctx.Done():
			outcome <- pipeline.ErrInterrupted
		}
	}()
	return outcome, nil
}

var errConnectionLost = errors.New("the connection was lost before the server had acknowledged everything")

// judge reads the acknowledgement of a message.
func judge(ack *packets.ControlPacket) error {
	var code byte
	var properties *packets.Properties
	switch p := ack.Content.(type) {
	case *packets.Puback:
		code, properties = p.ReasonCode, p.Properties
	case *packets.Pubrec:
		code, properties = p.ReasonCode, p.Properties
	case *packets.Pubcomp:
		code, properties = p.ReasonCode, p.Properties
	default: // paho's sign that no acknowledgement will come
		return errConnectionLost
	}
	if code < 0x80 {
		return nil
	}
	refused := &client.RejectedError{Code: client.ReasonCode(code)}
	if properties != nil {
		refused.Reason = properties.ReasonString
	}
	return refused
}
