package conformance

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestEveryQoSAndVersion(t *testing.T) {
	t.Parallel()
	n := start(t)
	versions := []mqtt.Version{mqtt.V311, mqtt.V5}
	for _, from := range versions {
		for _, to := range versions {
			t.Run(versionName(from)+" to "+versionName(to), func(t *testing.T) {
				t.Parallel()
				publisher := mqtttest.Connect(t, n.Addr, mqtttest.Version(from))
				subscriber := mqtttest.Connect(t, n.Addr, mqtttest.Version(to))
				for published := byte(0); published <= 2; published++ {
					for granted := byte(0); granted <= 2; granted++ {
						topic := fmt.Sprintf("%d-%d/%d/%d", from, to, published, granted)
						subscriber.Subscribe(topic, granted)

						publisher.Publish(message{Topic: topic, Payload: "payload", QoS: published})

						// [MQTT-3.8.4-8]: the lower of the two.
						want := message{Topic: topic, Payload: "payload", QoS: min(published, granted)}
						wantContent(t, subscriber.Receive(), want)
						subscriber.Quiet()
					}
				}
			})
		}
	}
}

func TestPropertiesArriveAsPublished(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher, subscriber, old := n.connect(), n.connect(), n.connect(mqtttest.V311())
	subscriber.Subscribe("p/#", 2)
	old.Subscribe("p/#", 2)

	for name, m := range map[string]message{
		"none":             {},
		"payload format":   {PayloadFormat: new(byte(1))},
		"binary format":    {PayloadFormat: new(byte(0))},
		"content type":     {ContentType: new("text/plain")},
		"response":         {ResponseTopic: new("re/ply"), CorrelationData: new("\x00\xFFbinary")},
		"empty":            {ContentType: new(""), CorrelationData: new("")},
		"user properties":  {User: [][2]string{{"b", "2"}, {"a", "1"}, {"b", "2"}, {"", ""}, {"a", "\uFEFFbom"}}},
		"everything at 1":  {QoS: 1, PayloadFormat: new(byte(1)), ContentType: new("c"), ResponseTopic: new("r"), CorrelationData: new("d"), User: [][2]string{{"k", "v"}}},
		"everything at 2":  {QoS: 2, PayloadFormat: new(byte(1)), ContentType: new("c"), ResponseTopic: new("r"), CorrelationData: new("d"), User: [][2]string{{"k", "v"}}},
		"an empty payload": {Payload: ""},
	} {
		m.Topic = "p/" + name
		if name != "an empty payload" {
			m.Payload = name
		}
		publisher.Publish(m)
		got := subscriber.Receive()
		wantContent(t, got, m) // [MQTT-3.3.2-17] and, for the user properties' order, [MQTT-3.3.2-18]
		if len(got.SubscriptionIDs) > 0 || got.Dup || got.Retain {
			t.Errorf("%s: got %+v, want nothing that was not published", name, got)
		}
		wantContent(t, old.Receive(), message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS})
	}
}

// A message without properties leaves as short as it can be.
func TestNoPropertyAppearsOnTheWire(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher, subscriber := n.connect(), n.connect()
	subscriber.Subscribe("bare", 0)
	m := message{Topic: "bare", Payload: "x"}
	for _, v := range []mqtt.Version{mqtt.V311, mqtt.V5} {
		from := publisher
		if v == mqtt.V311 {
			from = n.connect(mqtttest.V311())
		}
		from.Publish(m)
		got, want := subscriber.Expect(mqtt.PUBLISH).Bytes, mqtttest.EncodePublish(mqtt.V5, m)
		if !bytes.Equal(got, want) {
			t.Errorf("from %v: got % x, want % x", v, got, want)
		}
	}
}

func TestQoS2IsDeliveredOnce(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		topic := "once" + versionName(v)
		publisher := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		subscriber := mqtttest.Connect(t, n.Addr)
		subscriber.Subscribe(topic, 2)

		// When the same identifier comes again before its PUBREL, with and without DUP.
		m := message{Topic: topic, Payload: "first", QoS: 2, PacketID: 7}
		publisher.SendPublish(m)
		publisher.AwaitAck(mqtt.PUBREC, 7)
		m.Dup = true
		publisher.SendPublish(m)
		publisher.AwaitAck(mqtt.PUBREC, 7)
		m.Dup = false
		publisher.SendPublish(m)
		publisher.AwaitAck(mqtt.PUBREC, 7)
		wantCode(t, "PUBCOMP", publisher.Release(7).Code, mqtt.Success)

		// Then it was delivered once [MQTT-4.3.3-10], and after PUBREL the identifier is free [MQTT-4.3.3-12].
		publisher.Publish(message{Topic: topic, Payload: "second", QoS: 2, PacketID: 7})
		wantPayloads(t, subscriber.ReceiveN(2), []string{"first", "second"})
		subscriber.Quiet()
	})
}

func TestQoS2IsDeliveredOnceAcrossConnections(t *testing.T) {
	t.Parallel()
	n := start(t)
	subscriber := n.connect()
	subscriber.Subscribe("once", 2)
	publisher := n.connect(mqtttest.Persistent("publisher"))
	m := message{Topic: "once", Payload: "only", QoS: 2, PacketID: 7}
	publisher.SendPublish(m)
	publisher.AwaitAck(mqtt.PUBREC, 7)
	publisher.Drop()

	// When the publisher comes back to its session and sends again what it doesn't know to be released.
	publisher = n.connect(mqtttest.Persistent("publisher"))
	if !publisher.Connack.SessionPresent {
		t.Fatal("the session is gone")
	}
	m.Dup = true
	publisher.SendPublish(m)
	publisher.AwaitAck(mqtt.PUBREC, 7)
	wantCode(t, "PUBCOMP", publisher.Release(7).Code, mqtt.Success)

	// A second PUBREL finds nothing: the identifier is not known any more.
	wantCode(t, "PUBCOMP", publisher.Release(7).Code, mqtt.PacketIdentifierNotFound)
	wantPayloads(t, subscriber.ReceiveN(1), []string{"only"})
	subscriber.Quiet()
}

func TestPubrelForUnknownIdentifier(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	ack := c.Release(4711)
	wantCode(t, "PUBCOMP", ack.Code, mqtt.PacketIdentifierNotFound)
	c.Quiet()

	// 3.1.1 has no way to say so and completes.
	old := n.connect(mqtttest.V311())
	old.Release(4711)
	old.Quiet()
}

func TestPubrecForUnknownIdentifier(t *testing.T) {
	t.Parallel()
	c := start(t).connect(mqtttest.HoldAcks())
	c.SendAck(mqtt.PUBREC, 4711, mqtt.Success)
	wantCode(t, "PUBREL", c.AwaitAck(mqtt.PUBREL, 4711).Ack.Code, mqtt.PacketIdentifierNotFound)
	c.Quiet()
}

func TestAcknowledgementsForUnknownIdentifiersAreHarmless(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.SendAck(mqtt.PUBACK, 4711, mqtt.Success)
	c.SendAck(mqtt.PUBCOMP, 4711, mqtt.Success)
	c.Quiet()
}

func TestNoMatchingSubscribers(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	wantCode(t, "PUBACK", c.Offer(message{Topic: "unsubscribed", QoS: 1}).Code, mqtt.NoMatchingSubscribers)
	wantCode(t, "PUBREC", c.Offer(message{Topic: "unsubscribed", QoS: 2}).Code, mqtt.NoMatchingSubscribers)

	n.connect().Subscribe("somebody", 0)
	wantCode(t, "PUBACK", c.Offer(message{Topic: "somebody", QoS: 1}).Code, mqtt.Success)
	wantCode(t, "PUBREC", c.Offer(message{Topic: "somebody", QoS: 2}).Code, mqtt.Success)

	// A session that is away is a subscriber, too.
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("away", 1)
	away.Disconnect()
	wantCode(t, "PUBACK", c.Offer(message{Topic: "away", QoS: 1}).Code, mqtt.Success)

	old := n.connect(mqtttest.V311())
	old.Publish(message{Topic: "unsubscribed", QoS: 1})
	old.Publish(message{Topic: "unsubscribed", QoS: 2})
}

func TestRefusedQoS2DeliveryIsOver(t *testing.T) {
	t.Parallel()
	n := start(t)
	subscriber := n.connect(mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	subscriber.Subscribe("refused", 2)
	publisher := n.connect()
	publishAll(publisher, numbered("refused", 2, 2))

	// When the subscriber refuses the first by PUBREC.
	first := subscriber.Receive()
	subscriber.SendAck(mqtt.PUBREC, first.PacketID, mqtt.UnspecifiedError)

	// Then no PUBREL follows, and the next message takes its place (MQTT 5, section 4.9).
	second := subscriber.Receive()
	wantPayloads(t, []message{first, second}, counted(0, 2))
	subscriber.Acknowledge(second)
	subscriber.Quiet()
}

func TestRefusedQoS1DeliveryIsOver(t *testing.T) {
	t.Parallel()
	n := start(t)
	subscriber := n.connect(mqtttest.Persistent("refuser"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	subscriber.Subscribe("refused", 1)
	publishAll(n.connect(), numbered("refused", 1, 2))
	first := subscriber.Receive()
	subscriber.SendAck(mqtt.PUBACK, first.PacketID, mqtt.QuotaExceeded)
	second := subscriber.Receive()
	wantPayloads(t, []message{first, second}, counted(0, 2))
	subscriber.Disconnect()

	// Only what was not acknowledged at all is sent again.
	again := n.connect(mqtttest.Persistent("refuser"))
	wantPayloads(t, collect(again, 1), counted(1, 2))
}

func TestOrderOfMessagesAndAcknowledgements(t *testing.T) {
	t.Parallel()
	n := start(t)
	const count = 600 // within the server's Receive Maximum
	subscriber, publisher := n.connect(), n.connect()
	subscriber.SubscribeWith(0, sub{Filter: "order/#", QoS: 2})

	// Given messages of QoS 1 and 2 sent without waiting for anything.
	var packets []byte
	for i := range count {
		packets = append(packets, mqtttest.EncodePublish(mqtt.V5, message{
			Topic: "order/a", Payload: fmt.Sprint(i), QoS: byte(1 + i%2), PacketID: uint16(1 + i),
		})...)
	}
	publisher.Write(packets)

	// Then each acknowledgement comes in the order of its PUBLISH [MQTT-4.6.0-2] [MQTT-4.6.0-3].
	for i := range count {
		p := publisher.Next()
		want := mqtt.PUBACK
		if i%2 == 1 {
			want = mqtt.PUBREC
		}
		if p.Type != want || p.Ack.PacketID != uint16(1+i) || p.Ack.Code != mqtt.Success {
			t.Fatalf("acknowledgement %d: got %v, want %v", i, p, want)
		}
	}
	// PUBCOMP likewise, in the order of PUBREL [MQTT-4.6.0-4].
	for id := uint16(2); id <= count; id += 2 {
		publisher.SendAck(mqtt.PUBREL, id, mqtt.Success)
	}
	for id := uint16(2); id <= count; id += 2 {
		if p := publisher.Expect(mqtt.PUBCOMP); p.Ack.PacketID != id {
			t.Fatalf("got %v, want PUBCOMP %d", p, id)
		}
	}
	// And the messages of each QoS arrive in the order in which they were sent [MQTT-4.6.0-6].
	var last [3]int
	for _, m := range subscriber.ReceiveN(count) {
		var i int
		if _, err := fmt.Sscan(m.Payload, &i); err != nil || i < last[m.QoS] {
			t.Fatalf("got %v after %d", m, last[m.QoS])
		}
		last[m.QoS] = i
	}
}

func TestOrderOfOneQoS(t *testing.T) {
	t.Parallel()
	n := start(t)
	for qos := byte(0); qos <= 2; qos++ {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			t.Parallel()
			topic := fmt.Sprint("order/", qos)
			subscriber, publisher := mqtttest.Connect(t, n.Addr), mqtttest.Connect(t, n.Addr)
			subscriber.Subscribe(topic, qos)
			const count = 300
			publishAll(publisher, numbered(topic, qos, count))
			wantPayloads(t, subscriber.ReceiveN(count), counted(0, count))
		})
	}
}

func TestTopicNamesAreExact(t *testing.T) {
	t.Parallel()
	n := start(t)
	subscriber, publisher := n.connect(), n.connect()
	names := []string{
		"a", "A", "/a", "a/", "/", "//", "a b/ c", "/finance", "finance",
		"ä/日本", "\uFEFFa", // [MQTT-1.5.4-3]: U+FEFF is a character like others
		"a\u0301", "á", // and nothing is normalised [MQTT-4.7.3-4]
		"\U0001F600", strings.Repeat("l", 60000),
	}
	for _, name := range names {
		subscriber.Subscribe(name, 1)
	}
	for _, name := range names {
		publisher.Publish(message{Topic: name, Payload: name, QoS: 1})
		if got := subscriber.Receive(); got.Topic != name || got.Payload != name {
			t.Errorf("got %v, want %q", got, name)
		}
	}
	subscriber.Quiet()
}

func TestTopicLevelsBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTopicLevels = 4 })
	c := n.connect()
	c.Subscribe("a/b/c/d", 1)
	wantCode(t, "PUBACK at the bound", c.Offer(message{Topic: "a/b/c/d", QoS: 1}).Code, mqtt.Success)

	suback := c.OfferSubscribe(0, sub{Filter: "a/b/c/d/e"})
	wantCode(t, "SUBACK beyond", suback.Codes[0], mqtt.TopicFilterInvalid)
	wantReason(t, "SUBACK beyond", suback.ReasonString)
	puback := c.Offer(message{Topic: "a/b/c/d/e", QoS: 1})
	wantCode(t, "PUBACK beyond", puback.Code, mqtt.TopicNameInvalid)
	wantReason(t, "PUBACK beyond", puback.ReasonString)
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		topic := "large" + versionName(v)
		publisher := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		subscriber := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		for qos := byte(0); qos <= 2; qos++ {
			subscriber.Subscribe(topic, qos)
			// The socket takes it only bit by bit: it is far larger than any buffer.
			payload := strings.Repeat(fmt.Sprint(qos), 3<<20)
			publisher.Publish(message{Topic: topic, Payload: payload, QoS: qos})
			if got := subscriber.Receive(); got.Payload != payload {
				t.Errorf("QoS %d: got %d bytes, want %d of the same", qos, len(got.Payload), len(payload))
			}
		}
	})
}

func TestMessageExpiryCountsDown(t *testing.T) {
	t.Parallel()
	n := start(t)
	subscriber := n.connect(mqtttest.Persistent("expiry"))
	subscriber.Subscribe("expiry/#", 1)
	subscriber.Disconnect()
	publisher := n.connect()
	published := time.Now()
	publisher.Publish(message{Topic: "expiry/short", QoS: 1, Expiry: new(uint32(1))})
	publisher.Publish(message{Topic: "expiry/long", QoS: 1, Expiry: new(uint32(100))})
	publisher.Publish(message{Topic: "expiry/none", QoS: 1})
	old := n.connect(mqtttest.V311(), mqtttest.ClientID("old"), mqtttest.Resume())
	old.Subscribe("expiry/#", 1)
	old.Disconnect()
	publisher.Publish(message{Topic: "expiry/short", QoS: 1, Expiry: new(uint32(1))})

	// When two seconds pass before the subscriber returns.
	letPass(2200 * time.Millisecond)
	got := collect(n.connect(mqtttest.Persistent("expiry")), 2)

	// Then what has expired is gone [MQTT-3.3.2-5], and the rest says what is left [MQTT-3.3.2-6].
	if len(got) != 2 || got[0].Topic != "expiry/long" || got[1].Topic != "expiry/none" {
		t.Fatalf("got %v, want expiry/long and expiry/none", got)
	}
	waited := uint32(time.Since(published) / time.Second)
	if e := got[0].Expiry; e == nil || *e > 98 || *e < 100-waited-1 {
		t.Errorf("got expiry %v after %d s, want 100 less the time waited", e, waited)
	}
	if got[1].Expiry != nil {
		t.Errorf("got expiry %d for a message without one", *got[1].Expiry)
	}
	if got := n.connect(mqtttest.V311(), mqtttest.ClientID("old"), mqtttest.Resume()).Collect(); len(got) != 0 {
		t.Errorf("3.1.1: got %v, want nothing", got)
	}
}

// What is delivered at once still has all its time.
func TestMessageExpiryOfALiveDelivery(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.Subscribe("live", 1)
	c.Publish(message{Topic: "live", QoS: 1, Expiry: new(uint32(100))})
	if e := c.Receive().Expiry; e == nil || *e > 100 || *e < 99 {
		t.Errorf("got expiry %v, want 100", e)
	}
}
