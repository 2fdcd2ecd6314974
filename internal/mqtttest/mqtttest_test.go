package mqtttest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// scripted is a client whose server is the test: it sends what the test puts
// in server, and what the client sent can be read there.
func scripted(t *testing.T, tb testing.TB, opts ...Option) (c *Client, server net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c = Dial(tb, listener.Addr().String())
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	connect := c.EncodeConnect(opts...)
	send(t, server, mqtt.AppendConnack(nil, c.version, &mqtt.Connack{}))
	c.Connect(opts...)
	wantSent(t, server, connect)
	return c, server
}

func send(t *testing.T, server net.Conn, packets ...[]byte) {
	t.Helper()
	if _, err := server.Write(bytes.Join(packets, nil)); err != nil {
		t.Fatal(err)
	}
}

// wantSent reads what the client sent.
func wantSent(t *testing.T, server net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(server, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("the client sent % x, want % x", got, want)
	}
}

// failing is a test that may fail: it keeps what it would have said.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// wantFailure runs what must fail a test.
func wantFailure(t *testing.T, f *failing, part string, run func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	<-done
	if !strings.Contains(f.said, part) {
		t.Errorf("it said %q, want %q in it", f.said, part)
	}
}

var pingresp = mqtt.AppendPingresp(nil)

func ack(kind mqtt.Type, id uint16) []byte {
	return mqtt.AppendAck(nil, mqtt.V5, kind, id, mqtt.Success, "")
}

func delivery(m Message) []byte { return EncodePublish(mqtt.V5, m) }

func TestDeliveriesAreAcknowledged(t *testing.T) {
	t.Parallel()
	c, server := scripted(t, t)
	one := Message{Topic: "a", Payload: "1", QoS: 1, PacketID: 7}
	two := Message{Topic: "a", Payload: "2", QoS: 2, PacketID: 8}
	send(t, server, delivery(one), delivery(two), ack(mqtt.PUBREL, 8), delivery(Message{Topic: "a", Payload: "0"}))
	if got := Payloads(c.ReceiveN(3)); !reflect.DeepEqual(got, []string{"1", "2", "0"}) {
		t.Errorf("got %q", got)
	}
	wantSent(t, server, append(append(ack(mqtt.PUBACK, 7), ack(mqtt.PUBREC, 8)...), ack(mqtt.PUBCOMP, 8)...))
}

func TestAcknowledgementsAreHeldBack(t *testing.T) {
	t.Parallel()
	c, server := scripted(t, t, HoldAcks())
	send(t, server, delivery(Message{Topic: "a", QoS: 2, PacketID: 8}))
	m := c.Receive()
	send(t, server, pingresp)
	c.Quiet()
	wantSent(t, server, mqtt.AppendPingreq(nil))
	send(t, server, ack(mqtt.PUBREL, 8))
	c.Acknowledge(m)
	wantSent(t, server, append(ack(mqtt.PUBREC, 8), ack(mqtt.PUBCOMP, 8)...))
}

func TestPublishKeepsWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	c, server := scripted(t, t)
	first, second := Message{Topic: "a", Payload: "1"}, Message{Topic: "a", Payload: "2"}
	send(t, server, delivery(first), ack(mqtt.PUBREC, 1), delivery(second), ack(mqtt.PUBCOMP, 1))
	c.Publish(Message{Topic: "b", QoS: 2})
	if got := Payloads(c.ReceiveN(2)); !reflect.DeepEqual(got, []string{"1", "2"}) {
		t.Errorf("got %q", got)
	}
}

func TestMessageSurvivesTheWire(t *testing.T) {
	t.Parallel()
	c, server := scripted(t, t)
	want := Message{
		Topic: "a", Payload: "p", QoS: 1, Retain: true, Dup: true, PacketID: 9,
		PayloadFormat: new(byte(0)), Expiry: new(uint32(5)), ContentType: new(""), ResponseTopic: new("r"),
		CorrelationData: new("\x00"), User: [][2]string{{"k", "v"}, {"k", "w"}},
	}
	send(t, server, delivery(want))
	if got := c.Receive(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTopicAliasesAreResolved(t *testing.T) {
	t.Parallel()
	c, server := scripted(t, t, TopicAliasMaximum(1))
	send(t, server, delivery(Message{Topic: "a", TopicAlias: 1}), delivery(Message{TopicAlias: 1}))
	if m := c.Receive(); m.Topic != "a" || m.ByAlias {
		t.Errorf("got %+v", m)
	}
	if m := c.Receive(); m.Topic != "a" || !m.ByAlias {
		t.Errorf("got %+v", m)
	}
}

func TestWhatMustFailFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, says string
		comes      []byte
		run        func(c *Client)
	}{
		{"silence broken", "want nothing", append(delivery(Message{Topic: "a"}), pingresp...), (*Client).Quiet},
		{"wrong packet", "want PUBLISH", pingresp, func(c *Client) { c.Receive() }},
		{"alias not allowed", "topic alias 1", delivery(Message{Topic: "a", TopicAlias: 1}), func(c *Client) { c.Receive() }},
		{"not closed", "want the connection closed", pingresp, (*Client).ExpectClosed},
		{"other code", "want DISCONNECT 0x81", mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.ProtocolError}),
			func(c *Client) { c.ExpectDisconnect(mqtt.MalformedPacket) }},
		{"refused publish", "Quota exceeded", mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, 1, mqtt.QuotaExceeded, ""),
			func(c *Client) { c.Publish(Message{Topic: "a", QoS: 1}) }},
		{"garbage", "no packet", []byte{0x00, 0x00}, func(c *Client) { c.Next() }},
		{"a client's packet", "a server must not send this packet", mqtt.AppendPingreq(nil), func(c *Client) { c.Next() }},
	} {
		t.Run(c.what, func(t *testing.T) {
			tb := &failing{TB: t}
			client, server := scripted(t, tb)
			send(t, server, c.comes)
			wantFailure(t, tb, c.says, func() { c.run(client) })
		})
	}
}

func TestClosedConnection(t *testing.T) {
	t.Parallel()
	c, server := scripted(t, t)
	send(t, server, mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.ServerShuttingDown}))
	server.Close()
	c.ExpectDisconnect(mqtt.ServerShuttingDown)
}
