package clientconn

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
)

// patience is how long anything may take before it counts as never happening.
const patience = time.Minute

// server is the other end of a connection. Nothing is taken off a pipe that isn't read, so
// a test decides when the socket stalls.
type server struct {
	t *testing.T
	*wire.Conn
}

// dial makes a connection that is not connected yet.
func dial(t *testing.T, cfg Config) (*Conn, *server) {
	t.Helper()
	ours, theirs := net.Pipe()
	s := &server{t, wire.New(theirs, 1<<20)}
	t.Cleanup(func() { _ = theirs.Close() })
	return New(ours, cfg), s
}

// connect connects, with this CONNACK.
func connect(t *testing.T, cfg Config, hello mqtt.Connect, ack mqtt.Connack) (*Conn, *server) {
	t.Helper()
	c, s := dial(t, cfg)
	go func() {
		if _, err := s.Conn.Next(time.Now().Add(patience)); err == nil {
			_, _ = s.Write(mqtt.AppendConnack(nil, mqtt.V5, &ack))
		}
	}()
	if _, err := c.Connect(within(t), &hello); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); <-c.Done() })
	return c, s
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// send writes packets.
func (s *server) send(packets ...[]byte) {
	s.t.Helper()
	for _, b := range packets {
		if err := s.WriteFor(b, patience); err != nil {
			s.t.Fatal(err)
		}
	}
}

// next is the next packet of the client.
func (s *server) next() wire.Packet {
	s.t.Helper()
	f, err := s.Conn.Next(time.Now().Add(patience))
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// publish is the next packet, which must be a PUBLISH.
func (s *server) publish() mqtt.Publish {
	s.t.Helper()
	var p mqtt.Publish
	f := s.next().Clone()
	if err := p.Decode(mqtt.V5, f.Header, f.Body); err != nil || f.Type() != mqtt.PUBLISH {
		s.t.Fatalf("got %v %x, %v", f.Type(), f.Bytes, err)
	}
	return p
}

// wantAck checks the next packet, which must be an acknowledgement.
func (s *server) wantAck(kind mqtt.Type, id uint16, code mqtt.ReasonCode) {
	s.t.Helper()
	var a mqtt.Ack
	f := s.next()
	if err := a.Decode(mqtt.V5, f.Type(), f.Body); err != nil || f.Type() != kind || a.PacketID != id || a.Code != code {
		s.t.Fatalf("got %v %+v, %v; want %v %d %v", f.Type(), a, err, kind, id, code)
	}
}

// wantDisconnect checks that a DISCONNECT comes, and then the end.
func (s *server) wantDisconnect(code mqtt.ReasonCode) {
	s.t.Helper()
	var d mqtt.Disconnect
	f := s.next()
	if err := d.Decode(mqtt.V5, f.Body); err != nil || f.Type() != mqtt.DISCONNECT || d.Code != code || !code.FromClient() {
		s.t.Fatalf("got %v %+v, %v; want DISCONNECT %v", f.Type(), d, err, code)
	}
	if f, err := s.Conn.Next(time.Now().Add(patience)); err == nil {
		s.t.Fatalf("after the DISCONNECT came %v", f.Type())
	}
}

func ack(kind mqtt.Type, id uint16, code mqtt.ReasonCode) []byte {
	return mqtt.AppendAck(nil, mqtt.V5, kind, id, code, "")
}

func delivery(qos byte, id uint16) []byte {
	return mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{QoS: qos, PacketID: id, Topic: []byte("t")})
}

// outcomes is a Pending.
type outcomes chan Outcome

var lost = Outcome{Type: mqtt.PINGRESP} // stands for Lost

func (o outcomes) Acknowledged(out Outcome) { o <- out }
func (o outcomes) Lost()                    { o <- lost }

// publish sends a message of the client and returns what gets its outcome.
func publish(t *testing.T, c *Conn, qos byte) outcomes {
	t.Helper()
	o := make(outcomes, 1)
	if err := c.Send(within(t), qos, o, message(qos)); err != nil {
		t.Fatal(err)
	}
	return o
}

func message(qos byte) func([]byte, uint16) []byte {
	return func(dst []byte, id uint16) []byte {
		return mqtt.AppendPublish(dst, mqtt.V5, &mqtt.Publish{QoS: qos, PacketID: id, Topic: []byte("t")})
	}
}

// acknowledging is a Config whose messages are acknowledged at once, and counted.
func acknowledging(c **Conn, got chan<- uint16) Config {
	return Config{Received: func(p *mqtt.Publish) {
		got <- p.PacketID
		(*c).Acknowledge(p.QoS, p.PacketID)
	}}
}
