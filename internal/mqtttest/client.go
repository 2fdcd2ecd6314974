package mqtttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
)

// Deadline is how long a packet that must come may take. It is long because it
// only ever passes when a test fails; nothing waits for it otherwise.
const Deadline = time.Minute

// maxPacket bounds what the client accepts from the server, in bytes.
const maxPacket = 64 << 20

// Client is one connection to a broker. It belongs to one goroutine: the
// test's. Every method fails the test by tb.Fatal if what it promises doesn't
// happen; only [Client.Read], [Client.WriteErr] and [Client.WriteFor] return
// errors instead.
type Client struct {
	tb       testing.TB
	conn     *wire.Conn
	name     string // for failure messages
	version  mqtt.Version
	pending  []*Packet // read while looking for another packet, in order
	aliases  map[uint16]string
	aliasMax uint16
	holdAcks bool
	lastID   uint16

	// Connack is the server's answer, once Connect has returned.
	Connack *mqtt.Connack
}

// Dial opens a TCP connection to addr and sends nothing.
func Dial(tb testing.TB, addr string) *Client {
	tb.Helper()
	conn, err := net.DialTimeout("tcp", addr, Deadline)
	if err != nil {
		tb.Fatalf("dial the broker: %v", err)
	}
	return NewClient(tb, conn)
}

// NewClient speaks over a connection that the test made itself. The connection
// is closed when the test ends.
func NewClient(tb testing.TB, conn net.Conn) *Client {
	tb.Cleanup(func() { conn.Close() })
	return &Client{tb: tb, conn: wire.New(conn, maxPacket), name: conn.LocalAddr().String(), version: mqtt.V5}
}

// Version is the protocol version that the client speaks: MQTT 5 unless
// [V311] was asked for.
func (c *Client) Version() mqtt.Version { return c.version }

// fatalf fails the test and says which client it was.
func (c *Client) fatalf(format string, args ...any) {
	c.tb.Helper()
	c.tb.Fatalf("client %s: %s", c.name, fmt.Sprintf(format, args...))
}

// Write sends bytes as they are.
func (c *Client) Write(b []byte) {
	c.tb.Helper()
	if err := c.WriteErr(b); err != nil {
		c.fatalf("write %d bytes: %v", len(b), err)
	}
}

// WriteErr is Write for a connection that the server may have closed.
func (c *Client) WriteErr(b []byte) error { return c.WriteFor(b, Deadline) }

// WriteFor is WriteErr for a connection that the server may have stopped
// reading: after a time without progress it returns os.ErrDeadlineExceeded,
// and part of b may have been sent.
func (c *Client) WriteFor(b []byte, patience time.Duration) error {
	return c.conn.WriteFor(b, patience)
}

// Read returns the next packet from the socket as it came, without
// acknowledging it, or an error: io.EOF once the server has closed the
// connection, in whatever way. It passes by what Await has put aside, and is
// the only method that may be called from a goroutine of its own.
func (c *Client) Read(deadline time.Time) (*Packet, error) {
	p, err := c.conn.Next(deadline)
	if err != nil {
		return nil, closedAsEOF(err)
	}
	return decode(c.version, p.Clone())
}

// closedAsEOF makes one error of the ways in which a connection can end: a
// server that closes with bytes unread resets the connection.
func closedAsEOF(err error) error {
	if err == nil || errors.Is(err, wire.ErrMalformed) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return io.EOF
}

func head(b []byte) []byte { return b[:min(len(b), 32)] }

// take is Read with the client's part of the protocol: aliases are resolved and,
// unless acknowledgements are held back, deliveries acknowledged. The PUBREL
// of an acknowledged QoS 2 delivery is answered and not handed out.
func (c *Client) take(deadline time.Time) (*Packet, error) {
	for {
		p, err := c.Read(deadline)
		if err != nil {
			return nil, err
		}
		if p.Type == mqtt.PUBLISH {
			if err := c.resolve(p.Publish); err != nil {
				return nil, err
			}
		}
		if c.holdAcks {
			return p, nil
		}
		switch {
		case p.Type == mqtt.PUBREL:
			// The server may have closed the connection: its DISCONNECT is still to be read.
			_ = c.WriteErr(mqtt.AppendAck(nil, c.version, mqtt.PUBCOMP, p.Ack.PacketID, mqtt.Success, ""))
			continue
		case p.Type == mqtt.PUBLISH && p.Publish.QoS > 0:
			// The packet counts even if the server is already gone.
			_ = c.WriteErr(mqtt.AppendAck(nil, c.version, firstAck(p.Publish.QoS), p.Publish.PacketID, mqtt.Success, ""))
		}
		return p, nil
	}
}

func firstAck(qos byte) mqtt.Type {
	if qos == 2 {
		return mqtt.PUBREC
	}
	return mqtt.PUBACK
}

// resolve fills in the topic that a topic alias stands for, and holds the
// server to what the client allowed [MQTT-3.1.2-26].
func (c *Client) resolve(m *Message) error {
	if m.TopicAlias == 0 {
		return nil
	}
	if m.TopicAlias > c.aliasMax {
		return fmt.Errorf("the server used topic alias %d, allowed are %d", m.TopicAlias, c.aliasMax)
	}
	if m.Topic != "" {
		c.aliases[m.TopicAlias] = m.Topic
		return nil
	}
	topic, known := c.aliases[m.TopicAlias]
	if !known {
		return fmt.Errorf("the server used topic alias %d before it said what it means", m.TopicAlias)
	}
	m.Topic, m.ByAlias = topic, true
	return nil
}

// Next returns the next packet, whatever it is.
func (c *Client) Next() *Packet {
	c.tb.Helper()
	if len(c.pending) > 0 {
		p := c.pending[0]
		c.pending = c.pending[1:]
		return p
	}
	p, err := c.take(time.Now().Add(Deadline))
	if err != nil {
		c.fatalf("no packet: %v", err)
	}
	return p
}

// Expect returns the next packet, which must be of this type.
func (c *Client) Expect(want mqtt.Type) *Packet {
	c.tb.Helper()
	p := c.Next()
	if p.Type != want {
		c.fatalf("got %v, want %v", p, want)
	}
	return p
}

// Await returns the first packet that matches. Those before it are kept, in
// order, for the calls that follow.
func (c *Client) Await(what string, match func(*Packet) bool) *Packet {
	c.tb.Helper()
	for i, p := range c.pending {
		if match(p) {
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			return p
		}
	}
	deadline := time.Now().Add(Deadline)
	for {
		p, err := c.take(deadline)
		if err != nil {
			c.fatalf("no %s: %v; came instead: %v", what, err, c.pending)
		}
		if match(p) {
			return p
		}
		c.pending = append(c.pending, p)
	}
}

// AwaitAck awaits an acknowledgement of one type for one packet identifier.
func (c *Client) AwaitAck(t mqtt.Type, id uint16) *Packet {
	c.tb.Helper()
	return c.Await(fmt.Sprintf("%v for packet %d", t, id), func(p *Packet) bool {
		return p.Type == t && p.Ack.PacketID == id
	})
}

// Ping is a fence: when it returns, the server has handled everything that this
// client sent before. Packets that come meanwhile are kept.
func (c *Client) Ping() {
	c.tb.Helper()
	c.Write(mqtt.AppendPingreq(nil))
	c.Await("PINGRESP", func(p *Packet) bool { return p.Type == mqtt.PINGRESP })
}

// Quiet checks that nothing has been sent to this client: the next packet is
// the PINGRESP that it asks for here. To show that a message of another client is
// not delivered, let that client's publish be acknowledged first.
func (c *Client) Quiet() {
	c.tb.Helper()
	c.Write(mqtt.AppendPingreq(nil))
	if p := c.Next(); p.Type != mqtt.PINGRESP {
		c.fatalf("got %v, want nothing", p)
	}
}

// Collect returns every message that has been sent to this client, up to a
// fence as in Ping. Other packets are kept.
func (c *Client) Collect() []Message {
	c.tb.Helper()
	c.Ping()
	var messages []Message
	rest := c.pending[:0]
	for _, p := range c.pending {
		if p.Type == mqtt.PUBLISH {
			messages = append(messages, *p.Publish)
		} else {
			rest = append(rest, p)
		}
	}
	c.pending = rest
	return messages
}

// ExpectClosed checks that the server closes the connection without another
// packet.
func (c *Client) ExpectClosed() {
	c.tb.Helper()
	if len(c.pending) > 0 {
		c.fatalf("got %v, want the connection closed", c.pending[0])
	}
	p, err := c.take(time.Now().Add(Deadline))
	switch {
	case err == nil:
		c.fatalf("got %v, want the connection closed", p)
	case !errors.Is(err, io.EOF):
		c.fatalf("want the connection closed, got %v", err)
	}
}

// ExpectDisconnect checks that the next packet is a DISCONNECT with this code
// and that the server then closes the connection. A 3.1.1 server can't say
// why [MQTT 3.1.1, section 3.14], so there it is the closing alone.
func (c *Client) ExpectDisconnect(code mqtt.ReasonCode) *Packet {
	c.tb.Helper()
	if c.version != mqtt.V5 {
		c.ExpectClosed()
		return nil
	}
	p := c.Next()
	if p.Type != mqtt.DISCONNECT || p.Disconnect.Code != code {
		c.fatalf("got %v, want DISCONNECT 0x%02x %v", p, byte(code), code)
	}
	c.ExpectClosed()
	return p
}

// AwaitDisconnect is ExpectDisconnect for a connection on which other packets
// may come first; they are dropped.
func (c *Client) AwaitDisconnect(code mqtt.ReasonCode) *Packet {
	c.tb.Helper()
	p := c.Await("DISCONNECT", func(p *Packet) bool { return p.Type == mqtt.DISCONNECT })
	c.pending = nil
	if p.Disconnect.Code != code {
		c.fatalf("got %v, want DISCONNECT 0x%02x %v", p, byte(code), code)
	}
	c.ExpectClosed()
	return p
}

// Disconnect sends a DISCONNECT and waits until the server has closed the
// connection, so that the server has seen it when Disconnect returns.
func (c *Client) Disconnect() {
	c.tb.Helper()
	c.DisconnectWith(mqtt.Disconnect{})
}

// DisconnectWith is Disconnect with a reason code or properties.
func (c *Client) DisconnectWith(d mqtt.Disconnect) {
	c.tb.Helper()
	c.Write(mqtt.AppendDisconnect(nil, c.version, &d))
	c.AwaitEnd()
}

// AwaitEnd reads, without acknowledging anything, until the server closes the
// connection, which it must do without a DISCONNECT of its own.
func (c *Client) AwaitEnd() {
	c.tb.Helper()
	deadline := time.Now().Add(Deadline)
	for {
		p, err := c.Read(deadline)
		if errors.Is(err, io.EOF) {
			c.conn.Close()
			return
		}
		if err != nil {
			c.fatalf("want the connection closed, got %v", err)
		}
		if p.Type == mqtt.DISCONNECT {
			c.fatalf("got %v, want the connection closed without it", p)
		}
	}
}

// Drop closes the socket without a DISCONNECT: the client has vanished.
func (c *Client) Drop() { c.conn.Close() }

// HalfClose ends the client's sending side only.
func (c *Client) HalfClose() {
	c.tb.Helper()
	tcp, ok := c.conn.Conn.(*net.TCPConn)
	if !ok {
		c.fatalf("HalfClose needs a TCP connection, have %T", c.conn.Conn)
	}
	if err := tcp.CloseWrite(); err != nil {
		c.fatalf("half close: %v", err)
	}
}
