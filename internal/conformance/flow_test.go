package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestReceiveMaximumOfTheClient(t *testing.T) {
	t.Parallel()
	n := start(t)
	for qos := byte(1); qos <= 2; qos++ {
		topic := fmt.Sprint("window/", qos)
		c := n.connect(mqtttest.ReceiveMaximum(3), mqtttest.HoldAcks())
		c.Subscribe(topic, 2)
		publishAll(n.connect(), numbered(topic, qos, 10))

		// Three are under way, and no more [MQTT-3.3.4-9].
		window := c.ReceiveN(3)
		c.Quiet()

		// Each acknowledgement lets one follow; with QoS 2 that is the PUBCOMP.
		for i := 3; i < 10; i++ {
			first := window[0]
			if qos == 2 {
				c.SendAck(mqtt.PUBREC, first.PacketID, mqtt.Success)
				c.AwaitAck(mqtt.PUBREL, first.PacketID)
				c.Quiet()
				c.SendAck(mqtt.PUBCOMP, first.PacketID, mqtt.Success)
			} else {
				c.Acknowledge(first)
			}
			window = append(window[1:], c.Receive())
			c.Quiet()
			wantPayloads(t, window, counted(i-2, i+1))
		}
	}
}

// A client that sends more than the server's Receive Maximum at once is held up, and
// not disconnected: all that it sent is acknowledged and delivered, once and in order.
func TestBurstBeyondTheReceiveMaximumOfTheServer(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.ReceiveMaximum = 5 })
	for qos := byte(1); qos <= 2; qos++ {
		topic := fmt.Sprint("burst/", qos)
		s := n.connect(mqtttest.Persistent(topic))
		s.Subscribe(topic, qos)
		c := n.connect()
		if c.Connack.ReceiveMaximum != 5 {
			t.Fatalf("Receive Maximum: got %d, want 5", c.Connack.ReceiveMaximum)
		}
		// Given a burst of three times what the server allows, in one write.
		var burst []byte
		for i, m := range numbered(topic, qos, 15) {
			m.PacketID = uint16(1 + i)
			burst = append(burst, mqtttest.EncodePublish(mqtt.V5, m)...)
		}
		c.Write(burst)
		for id := uint16(1); id <= 15; id++ {
			if qos == 1 {
				c.AwaitAck(mqtt.PUBACK, id)
				continue
			}
			c.AwaitAck(mqtt.PUBREC, id)
			c.SendAck(mqtt.PUBREL, id, mqtt.Success)
		}
		for id := uint16(1); id <= 15 && qos == 2; id++ {
			c.AwaitAck(mqtt.PUBCOMP, id)
		}
		wantPayloads(t, s.ReceiveN(15), counted(0, 15))
		s.Quiet()
	}
}

// With all places taken by QoS 2 handshakes, the client's QoS 1 publishes go on, and
// so does what ends a handshake: the server must read on to find the PUBREL.
func TestHandshakesBeyondTheReceiveMaximumOfTheServer(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.ReceiveMaximum = 5 })
	c := n.connect()
	const bound = 4 * 5
	for id := uint16(1); id <= bound; id++ {
		c.SendPublish(message{Topic: "window", QoS: 2, PacketID: id})
		c.AwaitAck(mqtt.PUBREC, id)
		c.Publish(message{Topic: "window", QoS: 1, PacketID: 1000 + id})
	}
	c.Release(1)
	c.SendPublish(message{Topic: "window", QoS: 2, PacketID: 1})
	c.AwaitAck(mqtt.PUBREC, 1)

	// One more than four times the bound is too much; what is due comes before the
	// DISCONNECT.
	c.SendPublish(message{Topic: "window", QoS: 1, PacketID: 2001})
	c.SendPublish(message{Topic: "window", QoS: 2, PacketID: bound + 1})
	c.AwaitAck(mqtt.PUBACK, 2001)
	p := c.ExpectDisconnect(mqtt.ReceiveMaximumExceeded) // [MQTT-3.3.4-7]
	wantReason(t, "DISCONNECT", p.Disconnect.ReasonString)
}

func TestReceiveMaximumOfTheServerIsNotUsedUp(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.ReceiveMaximum = 2 })
	c := n.connect()
	for range 20 {
		c.Publish(message{Topic: "a", QoS: 1})
		c.Publish(message{Topic: "a", QoS: 2})
		c.Offer(message{Topic: notifyPrefix + "/x", QoS: 1}) // refused
		c.Offer(message{Topic: notifyPrefix + "/x", QoS: 2})
		c.Publish(message{Topic: "a"})
	}
}

func TestMaximumPacketSizeOfTheClient(t *testing.T) {
	t.Parallel()
	n := start(t)
	const limit = 200
	c := n.connect(mqtttest.ClientID("small"), mqtttest.MaximumPacketSize(limit), mqtttest.ReceiveMaximum(1))
	c.Subscribe("size", 2)
	publisher := n.connect()
	exact := message{Topic: "size", QoS: 1, PacketID: 1}
	exact.Payload = strings.Repeat("e", limit-len(mqtttest.EncodePublish(mqtt.V5, exact))-1)
	if size := len(mqtttest.EncodePublish(mqtt.V5, exact)); size != limit {
		t.Fatalf("the test's packet has %d bytes, want %d", size, limit)
	}
	tooLarge := exact
	tooLarge.Payload += "e"

	// What is too large is not sent [MQTT-3.1.2-24] and taken as delivered [MQTT-3.1.2-25]: what follows is.
	for qos := byte(0); qos <= 2; qos++ {
		tooLarge.QoS = qos
		if qos == 0 {
			tooLarge.Payload += "ee"
		}
		publisher.Publish(tooLarge)
	}
	publisher.Publish(exact)
	wantContent(t, c.Receive(), exact)
	c.Quiet()
}

// The packets that a client with a very small Maximum Packet Size gets are
// never larger than that.
func TestExplanationsGiveWayToTheMaximumPacketSize(t *testing.T) {
	t.Parallel()
	n := start(t)
	const limit = 64 // room for CONNACK
	c := n.connect(mqtttest.ClientID("tiny"), mqtttest.MaximumPacketSize(limit))
	c.SendSubscribe(0, sub{Filter: "a/#/b"})
	c.SendPublish(message{Topic: notifyPrefix + "/x", QoS: 1})
	c.SendPublish(message{Topic: notifyPrefix + "/x", QoS: 2})
	for range 3 {
		if p := c.Next(); len(p.Bytes) > limit {
			t.Errorf("got %v with %d bytes, allowed are %d", p, len(p.Bytes), limit)
		}
	}
	c.Write([]byte{0xC1, 0})
	if p := c.ExpectDisconnect(mqtt.MalformedPacket); len(p.Bytes) > limit {
		t.Errorf("got %v with %d bytes, allowed are %d", p, len(p.Bytes), limit)
	}
}

func TestTopicAliasOfTheClient(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.TopicAliasMaximum = 3 })
	subscriber, c := n.connect(), n.connect(mqtttest.Persistent("alias"))
	subscriber.Subscribe("#", 1)
	if c.Connack.TopicAliasMaximum != 3 {
		t.Fatalf("Topic Alias Maximum: got %d, want 3", c.Connack.TopicAliasMaximum)
	}
	for _, step := range []struct {
		topic string
		alias uint16
		want  string
	}{
		{"first", 1, "first"},
		{"", 1, "first"},
		{"third", 3, "third"},
		{"", 1, "first"},
		{"changed", 1, "changed"}, // an alias may be given another topic [MQTT-3.3.2-12]
		{"", 1, "changed"},
		{"", 3, "third"},
		{"plain", 0, "plain"},
	} {
		for qos := byte(0); qos <= 2; qos++ {
			c.Publish(message{Topic: step.topic, TopicAlias: step.alias, Payload: "x", QoS: qos})
			got := subscriber.Receive()
			wantContent(t, got, message{Topic: step.want, Payload: "x", QoS: min(qos, 1)})
			if got.TopicAlias != 0 {
				t.Errorf("got topic alias %d of another connection", got.TopicAlias)
			}
		}
	}

	// An alias ends with its connection [MQTT-3.3.2-7].
	c.Disconnect()
	c = n.connect(mqtttest.Persistent("alias"))
	c.SendPublish(message{TopicAlias: 1, Payload: "x"})
	c.ExpectDisconnect(mqtt.ProtocolError)

	for _, alias := range []uint16{4, 65535} {
		c = n.connect()
		c.SendPublish(message{Topic: "over", TopicAlias: alias})
		p := c.ExpectDisconnect(mqtt.TopicAliasInvalid) // [MQTT-3.3.2-9]
		wantReason(t, "DISCONNECT", p.Disconnect.ReasonString)
	}
	subscriber.Quiet()
}

func TestTopicAliasOfTheServer(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher := n.connect()
	c := n.connect(mqtttest.TopicAliasMaximum(2))
	c.Subscribe("alias/#", 2)

	// Given more topics than aliases, each published often: the client resolves what the server says and fails
	// on an alias that it wasn't told of or didn't allow.
	var aliased int
	for range 5 {
		for i := range 4 {
			for qos := byte(0); qos <= 2; qos++ {
				m := message{Topic: fmt.Sprint("alias/", i), Payload: fmt.Sprint(qos), QoS: qos}
				publisher.Publish(m)
				got := c.Receive()
				wantContent(t, got, m)
				if got.ByAlias {
					aliased++
				}
			}
		}
	}
	if aliased == 0 {
		t.Error("no topic was replaced by its alias")
	}
}

func TestTopicAliasOfTheServerEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher := n.connect()
	opts := []mqtttest.Option{mqtttest.Persistent("alias"), mqtttest.TopicAliasMaximum(5), mqtttest.HoldAcks()}
	c := n.connect(opts...)
	c.Subscribe("alias", 1)
	publishAll(publisher, numbered("alias", 1, 5))
	c.ReceiveN(5)
	c.Drop()

	// When the unacknowledged messages are sent again, their topic is said again.
	c = n.connect(opts...)
	again := c.ReceiveN(5)
	wantPayloads(t, again, counted(0, 5))
	c.Drop()
	c = n.connect(mqtttest.Persistent("alias")) // this one allows no aliases
	wantPayloads(t, c.ReceiveN(5), counted(0, 5))
}

// queueOf is a session that is away, with room for a number of messages.
func queueOf(t *testing.T, n *node, id string) {
	t.Helper()
	c := mqtttest.Connect(t, n.Addr, mqtttest.Persistent(id))
	c.Subscribe("queue/#", 1)
	c.Disconnect()
}

func TestQueueBoundEndsTheSession(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 10 })
	publisher := n.connect()

	// Up to its bound the queue keeps everything.
	queueOf(t, n, "full")
	publishAll(publisher, numbered("queue/a", 1, 10))
	c := n.connect(mqtttest.Persistent("full"))
	wantPresent(t, c, true)
	wantPayloads(t, collect(c, 10), counted(0, 10))
	c.Disconnect()

	// Beyond, the session ends: never a hole, and no publisher notices.
	other := n.connect()
	other.Subscribe("queue/#", 0) // it acknowledges nothing, so it has no queue
	for _, m := range numbered("queue/a", 1, 12) {
		wantCode(t, "PUBACK for message "+m.Payload, publisher.Offer(m).Code, mqtt.Success)
	}
	c = n.connect(mqtttest.Persistent("full"))
	wantPresent(t, c, false)
	c.Quiet()
	wantPayloads(t, collect(other, 12), counted(0, 12))
}

func TestQueueBoundInBytes(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueuedBytes = 100_000 })
	publisher := n.connect()
	queueOf(t, n, "heavy")
	payload := strings.Repeat("x", 10_000)
	for range 8 {
		publisher.Publish(message{Topic: "queue/a", Payload: payload, QoS: 1})
	}
	c := n.connect(mqtttest.Persistent("heavy"))
	wantPresent(t, c, true)
	if got := collect(c, 8); len(got) != 8 {
		t.Errorf("got %d messages, want 8", len(got))
	}
	c.Disconnect()
	for range 12 {
		publisher.Publish(message{Topic: "queue/a", Payload: payload, QoS: 1})
	}
	wantPresent(t, n.connect(mqtttest.Persistent("heavy")), false)
}

func TestQueueBoundRejects(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued, c.Limits.QueueFull = 10, "reject" })
	publisher, other := n.connect(), n.connect()
	queueOf(t, n, "full")
	other.Subscribe("queue/#", 0) // it acknowledges nothing, so it has no queue
	publishAll(publisher, numbered("queue/a", 1, 10))

	// 0x97 means that no session got it.
	for qos := byte(1); qos <= 2; qos++ {
		ack := publisher.Offer(message{Topic: "queue/a", Payload: "refused", QoS: qos})
		wantCode(t, "acknowledgement", ack.Code, mqtt.QuotaExceeded)
		wantSetting(t, "acknowledgement", ack.ReasonString, "--max-queued-messages")
	}
	wantPayloads(t, collect(other, 10), counted(0, 10))
	c := n.connect(mqtttest.Persistent("full"))
	wantPresent(t, c, true)
	wantPayloads(t, collect(c, 10), counted(0, 10))
	publisher.Publish(message{Topic: "queue/a", Payload: "again", QoS: 1})
	wantPayloads(t, c.ReceiveN(1), []string{"again"})
}

func TestQueueBoundDropsTheOldest(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued, c.Limits.QueueFull = 10, "drop-oldest" })
	queueOf(t, n, "full")
	publishAll(n.connect(), numbered("queue/a", 1, 15))
	c := n.connect(mqtttest.Persistent("full"))
	wantPresent(t, c, true)
	wantPayloads(t, collect(c, 10), counted(5, 15))
}

// MQTT 3.1.1 has no Receive Maximum: such a client can't know how much may be
// under way, so it isn't disconnected for more.
func TestNoReceiveMaximumBefore5(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.ReceiveMaximum, c.Limits.MaxInflight = 5, 5 })
	receiver := n.connect(mqtttest.Persistent("receiver"))
	receiver.Subscribe("window", 2)
	c := n.connect(mqtttest.V311())
	const count = 300
	for id := uint16(1); id <= count; id++ {
		c.SendPublish(message{Topic: "window", QoS: 2, PacketID: id, Payload: fmt.Sprint(id - 1)})
	}
	for id := uint16(1); id <= count; id++ {
		c.AwaitAck(mqtt.PUBREC, id)
	}
	for id := uint16(1); id <= count; id++ {
		c.Release(id)
	}
	for _, m := range numbered("window", 1, count) {
		m.PacketID = uint16(1)
		c.SendPublish(m)
	}
	for range count {
		c.AwaitAck(mqtt.PUBACK, 1)
	}
	wantPayloads(t, receiver.ReceiveN(2*count), append(counted(0, count), counted(0, count)...))
}

// What a packet sets off for its own sender, at the very end, leaves as well.
func TestPublisherHearsOfTheWillThatItSetOff(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 1 })
	c := n.connect()
	c.Subscribe("will", 0)
	full := n.connect(mqtttest.Persistent("full"), mqtttest.Will(message{Topic: "will", Payload: "gone"}, 3600))
	full.Subscribe("queue", 1)
	full.DisconnectWith(mqtt.Disconnect{Code: mqtt.DisconnectWithWill}) // and the server has noticed
	c.Publish(message{Topic: "queue", QoS: 1})
	c.SendPublish(message{Topic: "queue", QoS: 1, PacketID: 9}) // the queue is full, the session ends, its will is due
	c.AwaitAck(mqtt.PUBACK, 9)
	wantContent(t, c.Receive(), message{Topic: "will", Payload: "gone"})
}
