// Package mqttconn opens MQTT connections as the connection flags say, for the commands
// that send packets of their own: pub, sub and bench. It knows no message.
package mqttconn

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// keepAliveSeconds bounds the time after which a dead connection is noticed, by half.
const keepAliveSeconds = 20

// Broker is the broker that the flags lead to, by one address or by those of several nodes. Its
// connections have the same client ID: the one of the flags, or a random one.
type Broker struct {
	flags    *connect.Flags
	servers  *dial.Servers
	clientID string
}

// NewBroker fails if the flags contradict each other, or a file of theirs cannot be read.
func NewBroker(c *connect.Flags) (*Broker, error) {
	addresses, err := c.Addresses()
	if err != nil {
		return nil, err
	}
	t, err := c.TLSConfig()
	if err != nil {
		return nil, err
	}
	servers, err := dial.To(addresses, t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name("hostname"), err)
	}
	return &Broker{c, servers, c.ClientIDFor(t)}, nil
}

// Conn is a connection whose CONNECT followed the flags.
type Conn struct{ *clientconn.Conn }

// Open connects within the flags' timeout, to one node after the other until one accepts the
// connection. packet has what is particular to the command; client ID, credentials and keep-alive are
// added. dialed gets each connection before its CONNECT, and so before messages come over it. After an
// error, which wraps a [client.ConnectError] for a refusal, nothing is left of any of them.
func (b *Broker) Open(ctx context.Context, cfg clientconn.Config, packet *mqtt.Connect, dialed func(*Conn)) error {
	packet.KeepAlive = keepAliveSeconds
	packet.ClientID = []byte(b.clientID)
	packet.Username, packet.HasUsername = []byte(b.flags.Username), b.flags.Username != ""
	packet.Password = b.flags.Secret()
	packet.HasPassword = packet.Password != nil
	packet.RequestProblemInfo = true
	var err error
	for range b.servers.Len() {
		var another bool
		if another, err = b.try(ctx, cfg, packet, dialed); !another {
			break
		}
	}
	return err
}

// try connects to one node, which has its share of the timeout. It says whether another may be of use.
func (b *Broker) try(ctx context.Context, cfg clientconn.Config, packet *mqtt.Connect, dialed func(*Conn)) (another bool, err error) {
	ctx, cancel := b.servers.Attempt(ctx, b.flags.Timeout)
	defer cancel()
	nc, err := b.servers.Dial(ctx)
	if err != nil {
		return false, b.unreachable(err)
	}
	c := &Conn{clientconn.New(nc, cfg)}
	dialed(c)
	if _, err = c.Connect(ctx, packet); err == nil {
		return false, nil
	}
	another = true
	var said *clientconn.ReasonError
	if errors.As(err, &said) {
		another = said.Code.AboutServer()
		err = &client.ConnectError{Code: client.ReasonCode(said.Code), Reason: said.Reason}
	}
	return another, b.unreachable(err)
}

func (b *Broker) unreachable(err error) error {
	return connect.Unreachable(b.servers.Reached(), b.flags.Timeout, err)
}

// WhyEnded says, after Done, why the connection has ended.
func (c *Conn) WhyEnded() error {
	var said *clientconn.ReasonError
	if !errors.As(c.Err(), &said) {
		return fmt.Errorf("the connection was lost: %w", c.Err())
	}
	text := fmt.Sprintf("%v (0x%02X)", said.Code, byte(said.Code))
	if said.Reason != "" {
		text += ": " + said.Reason
	}
	return fmt.Errorf("the server disconnected: %s", text)
}

// Rejected is the error of package client for what the server has refused.
func Rejected(err error) error {
	var said *clientconn.ReasonError
	if !errors.As(err, &said) {
		return err
	}
	return &client.RejectedError{Code: client.ReasonCode(said.Code), Reason: said.Reason}
}
