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

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// ErrMalformed is returned for bytes that are not an MQTT packet, or too large a one.
var ErrMalformed = errors.New("the server sent what is no packet")

// Conn is a connection. One goroutine may read while another one writes.
type Conn struct {
	net.Conn
	maxPacket int    // in bytes
	in        []byte // read from the socket
	taken     int    // of in: handed out as packets
}

// New reads packets of up to maxPacket bytes from a connection.
func New(nc net.Conn, maxPacket int) *Conn { return &Conn{Conn: nc, maxPacket: maxPacket} }

// Packet is a whole packet: views that are valid until the next one is read.
type Packet struct {
	Header byte
	Body   []byte // what follows the fixed header
	Bytes  []byte // all of it
}

// Type is the packet's type.
func (p Packet) Type() mqtt.Type { return mqtt.TypeOf(p.Header) }

// Buffered returns the next packet if it has been read whole; ok is false if not.
func (c *Conn) Buffered() (p Packet, ok bool, err error) {
	unread := c.in[c.taken:]
	header, body, n, _, err := mqtt.Split(unread, c.maxPacket)
	if err != nil {
		return Packet{}, false, fmt.Errorf("%w: %w (% x)", ErrMalformed, err, unread[:min(len(unread), 32)])
	}
	if n == 0 {
		return Packet{}, false, nil
	}
	c.taken += n
	return Packet{header, body, unread[:n]}, true, nil
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
		if err := c.fill(); err != nil {
			return Packet{}, err
		}
	}
}

// fill reads once from the socket.
func (c *Conn) fill() error {
	c.in = append(c.in[:0], c.in[c.taken:]...)
	c.taken = 0
	if cap(c.in)-len(c.in) < 2<<10 {
		c.in = append(make([]byte, 0, 2*cap(c.in)+4<<10), c.in...)
	}
	n, err := c.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	if n > 0 {
		return nil
	}
	return err
}

// WriteFor writes bytes, and gives up after limit.
func (c *Conn) WriteFor(b []byte, limit time.Duration) error {
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}
