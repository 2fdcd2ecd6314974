package conn

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
)

const patience = time.Minute

// reason is an error that the server sent.
type reason struct {
	what string
	code byte
	text string
}

func (r *reason) Error() string { return r.what + ": " + r.text }

func reasons(what string) func(byte, string) error {
	return func(code byte, text string) error { return &reason{what, code, text} }
}

// connectTo makes a connection whose server answers the CONNECT with ack. It is nil if the server
// refuses.
func connectTo(t *testing.T, ack mqtt.Connack, received func(*mqtt.Publish)) (*Conn, *wire.Conn, mqtt.Connect, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = theirs.Close() })
	server := wire.New(theirs, 1<<20)
	heard := make(chan mqtt.Connect, 1)
	go func() {
		var hello mqtt.Connect
		if f, err := server.Next(time.Now().Add(patience)); err == nil && hello.Decode(f.Clone().Body) == nil {
			_, _ = server.Write(mqtt.AppendConnack(nil, mqtt.V5, &ack))
		}
		heard <- hello
	}()
	c, err := New(t.Context(), &Config{
		ClientID: "c", Username: "u", Password: []byte("p"), KeepAlive: time.Hour,
		Servers: dial.By("", func(context.Context) (net.Conn, error) { return ours, nil }),
		Errors:  Errors{Refused: reasons("refused"), Rejected: reasons("rejected"), Disconnected: reasons("disconnected")},
	}, received)
	if err == nil {
		_, err = c.Handshake(t.Context(), &mqtt.Connect{})
	}
	return c, server, <-heard, err
}

func TestHandshakeSaysWhatIsConfigured(t *testing.T) {
	t.Parallel()
	c, server, hello, err := connectTo(t, mqtt.Connack{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(hello.ClientID) != "c" || string(hello.Username) != "u" || string(hello.Password) != "p" ||
		hello.KeepAlive != 3600 || hello.ReceiveMaximum != ReceiveMaximum || !hello.RequestProblemInfo {
		t.Errorf("CONNECT %+v", hello)
	}
	_ = server.Close()
	if err := c.Wait(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("a connection that is cut: %v", err)
	}
}

// What the server says becomes an error of the package that uses the connection.
func TestReasonsOfTheServer(t *testing.T) {
	t.Parallel()
	var r *reason
	if _, _, _, err := connectTo(t, mqtt.Connack{Code: mqtt.NotAuthorized, ReasonString: "no"}, nil); !errors.As(err, &r) || *r != (reason{"refused", 0x87, "no"}) {
		t.Errorf("a refusal: %v", err)
	}
	c, server, _, err := connectTo(t, mqtt.Connack{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var p mqtt.Subscribe
		if f, err := server.Next(time.Now().Add(patience)); err == nil && p.Decode(mqtt.V5, f.Body) == nil {
			_, _ = server.Write(mqtt.AppendSuback(nil, mqtt.V5, p.PacketID, []mqtt.ReasonCode{mqtt.QuotaExceeded}, "full"))
		}
	}()
	if err := c.Subscribe(t.Context(), "a"); !errors.As(err, &r) || *r != (reason{"rejected", 0x97, "full"}) {
		t.Errorf("a subscription: %v", err)
	}
	go server.Write(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.ServerShuttingDown, ReasonString: []byte("bye")}))
	if err := c.Wait(t.Context()); !errors.As(err, &r) || *r != (reason{"disconnected", 0x8B, "bye"}) || errors.Is(err, ErrLost) {
		t.Errorf("a DISCONNECT: %v", err)
	}
	if err := c.Unsubscribe(t.Context(), "a"); !errors.Is(err, ErrLost) {
		t.Errorf("after the end: %v", err)
	}
}

// A server without QoS 1 is of no use.
func TestServerWithQoS0Only(t *testing.T) {
	t.Parallel()
	if _, _, _, err := connectTo(t, mqtt.Connack{HasMaximumQoS: true}, nil); err == nil {
		t.Error("it is taken")
	}
}

// PUBACKs leave in the order of the messages, whatever order they are given in, and each once.
func TestAcksAreInOrder(t *testing.T) {
	t.Parallel()
	var acks *Acks
	numbers := make(chan uint64, 3)
	c, server, _, err := connectTo(t, mqtt.Connack{}, func(p *mqtt.Publish) { numbers <- acks.Expect(p.PacketID) })
	if err != nil {
		t.Fatal(err)
	}
	acks = c.Acks()
	for _, id := range []uint16{5, 3, 9} {
		if _, err := server.Write(mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{QoS: 1, PacketID: id, Topic: []byte("t")})); err != nil {
			t.Fatal(err)
		}
	}
	first, second, third := <-numbers, <-numbers, <-numbers
	for _, n := range []uint64{third, second, second, first, first} {
		acks.Give(n)
	}
	for _, want := range []uint16{5, 3, 9} {
		f, err := server.Next(time.Now().Add(patience))
		var a mqtt.Ack
		if err != nil || a.Decode(mqtt.V5, f.Type(), f.Body) != nil || f.Type() != mqtt.PUBACK || a.PacketID != want {
			t.Fatalf("got %v %+v, %v; want PUBACK %d", f.Type(), a, err, want)
		}
	}
	go c.Close()
	if f, err := server.Next(time.Now().Add(patience)); err != nil || f.Type() != mqtt.DISCONNECT {
		t.Errorf("then came %v, %v", f.Type(), err)
	}
}
