package conformance

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// MQTT 3.1 has the packets of 3.1.1 under the protocol name MQIsdp: its clients
// publish, subscribe and keep their sessions like those of 3.1.1.
func TestMQTT31(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial()
	// Given a client of MQTT 3.1, its CONNECT byte by byte.
	c.EncodeConnect(mqtttest.Version(mqtt.V31), mqtttest.HoldAcks())
	c.Write([]byte("\x10\x0f\x00\x06MQIsdp\x03\x00\x00\x3c\x00\x01c"))
	if ack := c.Expect(mqtt.CONNACK).Connack; ack.Code != mqtt.Success {
		t.Fatalf("refused with 0x%02x", byte(ack.Code))
	}
	// When it subscribes, and sends that again with DUP, which 3.1 has there.
	c.Write([]byte("\x82\x08\x00\x01\x00\x03a/b\x02"))
	c.Write([]byte("\x8a\x08\x00\x01\x00\x03a/b\x02"))
	for range 2 {
		if ack := c.Expect(mqtt.SUBACK).Suback; ack.Codes[0] != mqtt.GrantedQoS2 {
			t.Fatalf("SUBACK 0x%02x", byte(ack.Codes[0]))
		}
	}
	// Then a QoS 2 publish goes through, its PUBREL sent again with DUP.
	c.Write([]byte("\x34\x08\x00\x03a/b\x00\x09x"))
	c.AwaitAck(mqtt.PUBREC, 9)
	c.Write([]byte("\x62\x02\x00\x09"))
	c.Write([]byte("\x6a\x02\x00\x09"))
	c.AwaitAck(mqtt.PUBCOMP, 9)
	c.AwaitAck(mqtt.PUBCOMP, 9)
	got := c.Await("the message", func(p *mqtttest.Packet) bool { return p.Type == mqtt.PUBLISH })
	if got.Publish.Payload != "x" || got.Publish.QoS != 2 {
		t.Fatalf("got %v", got)
	}
	// And its session is kept, which its CONNACK cannot say: there the byte is reserved.
	c.Drop()
	back := n.connect(mqtttest.Version(mqtt.V31), mqtttest.ClientID("c"), mqtttest.Resume(), mqtttest.HoldAcks())
	if back.Connack.SessionPresent {
		t.Error("Session Present in a CONNACK of MQTT 3.1")
	}
	if again := back.Expect(mqtt.PUBLISH).Publish; again.Payload != "x" || !again.Dup {
		t.Errorf("got %v, want x again", again)
	}
	// An identifier longer than the 23 characters of 3.1 is no reason to turn a client away.
	n.connect(mqtttest.Version(mqtt.V31), mqtttest.ClientID("a client with a name of more than 23 characters")).Ping()
}

// A client before MQTT 5 can't say how many deliveries it can have under way.
// Mosquitto's clients and bridges are at a loss beyond 20.
func TestInflightWindowBeforeV5(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, v := range []mqtt.Version{mqtt.V31, mqtt.V311} {
		s := n.connect(mqtttest.Version(v), mqtttest.ClientID("slow"+v.String()), mqtttest.HoldAcks())
		s.Subscribe("window/"+v.String(), 2)
		publishAll(n.connect(), numbered("window/"+v.String(), 2, 30))
		got := collect(s, 20)
		wantPayloads(t, got, counted(0, 20))
		// One more for each that the client is done with.
		s.Write(mqtt.AppendAck(nil, v, mqtt.PUBREC, got[0].PacketID, mqtt.Success, ""))
		s.AwaitAck(mqtt.PUBREL, got[0].PacketID)
		s.Write(mqtt.AppendAck(nil, v, mqtt.PUBCOMP, got[0].PacketID, mqtt.Success, ""))
		wantPayloads(t, collect(s, 1), counted(20, 21))
	}
}

// bridge connects as Mosquitto's bridges do: MQTT 3.1.1 with bit 7 of the level set.
func bridge(n *node, id string, opts ...mqtttest.Option) *client {
	n.t.Helper()
	return n.connect(append([]mqtttest.Option{mqtttest.V311(), mqtttest.ClientID(id), mqtttest.Resume(),
		mqtttest.Raw(func(c *mqtt.Connect) { c.Bridge = true })}, opts...)...)
}

// A bridge doesn't get back what it publishes, and learns whether a message was
// retained, so that the other broker can retain it, too.
func TestBridge(t *testing.T) {
	t.Parallel()
	n := start(t)
	b, other := bridge(n, "edge"), n.connect()
	b.Subscribe("plant/#", 1)
	other.Subscribe("plant/#", 1)

	b.Publish(message{Topic: "plant/in", Payload: "from the other broker", QoS: 1, Retain: true})
	other.Publish(message{Topic: "plant/out", Payload: "from here", QoS: 1, Retain: true})

	got := collect(b, 1)
	wantPayloads(t, got, []string{"from here"})
	if !got[0].Retain {
		t.Error("RETAIN is not as it was published")
	}
	wantPayloads(t, collect(other, 2), []string{"from the other broker", "from here"})
}

// Bridges tell on $SYS/broker/connection/{name}/state whether they are connected:
// with a will, and with a retained message. The rest of $SYS stays the broker's own.
func TestBridgeNotifications(t *testing.T) {
	t.Parallel()
	n := start(t)
	const state = "$SYS/broker/connection/edge.plant/state"
	watcher := n.connect()
	watcher.Subscribe("$SYS/broker/connection/+/state", 1)

	b := bridge(n, "edge.plant", mqtttest.Will(message{Topic: state, Payload: "0", QoS: 1, Retain: true}, 0))
	b.Publish(message{Topic: state, Payload: "1", QoS: 1, Retain: true})
	wantPayloads(t, collect(watcher, 1), []string{"1"})

	// They are on disk and count like other retained messages.
	b.Disconnect()
	n.Restart()
	late := n.connect()
	late.Subscribe(state, 1)
	wantPayloads(t, collect(late, 1)[:1], []string{"1"})

	b = bridge(n, "edge.plant", mqtttest.Will(message{Topic: state, Payload: "0", QoS: 1, Retain: true}, 0))
	b.Drop()
	wantPayloads(t, collect(late, 1), []string{"0"})

	for _, topic := range []string{
		"$SYS/broker/connection/edge/plant/state", "$SYS/broker/connection//state", "$SYS/broker/connection/state",
		"$SYS/broker/connection/edge/state/more", "$SYS/broker/uptime", "$SYS/",
	} {
		wantCode(t, topic, late.Offer(message{Topic: topic, Payload: "mine", QoS: 1}).Code, mqtt.NotAuthorized)
		mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, mqtttest.Will(message{Topic: topic, Payload: "mine"}, 0))
	}
}
