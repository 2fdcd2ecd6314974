// Package wire is one MQTT connection of a test: bytes out, whole packets in, and nothing
// automatic.
//
// The test client of internal/mqtttest and those of the crash and abuse harnesses build on
// it. It knows where a packet begins and ends, and nothing of what it means.
package wire

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/fromserver"
)

// ErrMalformed is returned for bytes that are not an MQTT packet, or too large a one.
var ErrMalformed = errors.New("the server sent what is no packet")

// Conn is a connection. One goroutine may read while another one writes.
type Conn struct {
	net.Conn
	in *fromserver.Reader
}

// New reads packets of up to maxPacket bytes from a connection.
func New(nc net.Conn, maxPacket int) *Conn { return &Conn{nc, fromserver.NewReader(nc, maxPacket)} }

// Packet is a whole packet: views that are valid until the next one is read.
type Packet = fromserver.Frame

// Buffered returns the next packet if it has been read whole; ok is false if not.
func (c *Conn) Buffered() (p Packet, ok bool, err error) {
	if p, ok, err = c.in.Buffered(); err != nil {
		err = fmt.Errorf("%w: %w (% x)", ErrMalformed, err, c.in.Unread())
	}
	return p, ok, err
}

// Next waits for the next packet until a deadline; without one if it is zero. What has
// arrived of a packet at the deadline is kept.
func (c *Conn) Next(deadline time.Time) (Packet, error) {
	for set := false; ; {
		if p, ok, err := c.Buffered(); ok || err != nil {
			return p, err
		}
		if !set {
			if err := c.SetReadDeadline(deadline); err != nil {
				return Packet{}, err
			}
			set = true
		}
		if err := c.in.Fill(); err != nil {
			return Packet{}, err
		}
	}
}

// WriteFor writes bytes, and gives up after limit.
func (c *Conn) WriteFor(b []byte, limit time.Duration) error {
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}
