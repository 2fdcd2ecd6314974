// Package mqttconn opens MQTT connections as the connection flags say, for the commands
// that send packets of their own: pub, sub and bench. It knows no message.
package mqttconn

import (
	"context"
	"crypto/tls"
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

// Conn is a connection whose CONNECT follows the flags.
type Conn struct {
	*clientconn.Conn
	flags   *connect.Flags
	address string
	tls     *tls.Config
}

// Dial opens the network connection, within the flags' timeout.
func Dial(ctx context.Context, c *connect.Flags, cfg clientconn.Config) (*Conn, error) {
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
	return &Conn{Conn: clientconn.New(nc, cfg), flags: c, address: address, tls: t}, nil
}

// ClientID is the client ID that the flags say, or a random one.
func (c *Conn) ClientID() string { return c.flags.ClientIDFor(c.tls) }

// Connect sends the CONNECT, within the flags' timeout. packet has what is particular to the
// command; client ID, credentials and keep-alive are added. After an error, which is a
// [client.ConnectError] for a refusal, nothing is left of the connection.
func (c *Conn) Connect(ctx context.Context, packet *mqtt.Connect, clientID string) error {
	packet.KeepAlive = keepAliveSeconds
	packet.ClientID = []byte(clientID)
	packet.Username, packet.HasUsername = []byte(c.flags.Username), c.flags.Username != ""
	packet.Password = c.flags.Secret()
	packet.HasPassword = packet.Password != nil
	packet.RequestProblemInfo = true
	ctx, cancel := context.WithTimeout(ctx, c.flags.Timeout)
	defer cancel()
	if _, err := c.Conn.Connect(ctx, packet); err != nil {
		var said *clientconn.ReasonError
		if errors.As(err, &said) {
			err = &client.ConnectError{Code: client.ReasonCode(said.Code), Reason: said.Reason}
		}
		return connect.Unreachable(c.address, c.flags.Timeout, err)
	}
	return nil
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
