package conformance

import (
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func wantPresent(t *testing.T, c *client, want bool) {
	t.Helper()
	if got := c.Connack.SessionPresent; got != want {
		t.Fatalf("Session Present: got %v, want %v", got, want)
	}
}

func TestSessionOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		id, topic := "session"+versionName(v), "session/"+versionName(v)
		connect := func(opts ...mqtttest.Option) *client {
			return mqtttest.Connect(t, n.Addr, append(opts, mqtttest.Version(v))...)
		}
		publisher := connect()

		// Given a new session with a subscription.
		c := connect(mqtttest.Persistent(id))
		wantPresent(t, c, false)
		c.Subscribe(topic, 2)
		c.Disconnect()
		for i, m := range numbered(topic, 2, 10) {
			m.QoS = byte(1 + i%2)
			publisher.Publish(m)
		}

		// When it is resumed, what was published meanwhile comes in order, then what is published now.
		c = connect(mqtttest.Persistent(id))
		wantPresent(t, c, true)
		got := c.ReceiveN(10)
		wantPayloads(t, got, counted(0, 10))
		for i, m := range got {
			if m.Dup || m.QoS != byte(1+i%2) {
				t.Errorf("got %v, want QoS %d, not a duplicate", m, 1+i%2)
			}
		}
		publisher.Publish(message{Topic: topic, Payload: "now", QoS: 1})
		wantPayloads(t, c.ReceiveN(1), []string{"now"})
		c.Disconnect()
		publisher.Publish(message{Topic: topic, Payload: "lost", QoS: 1})

		// A clean start ends it, with its subscription and its queue [MQTT-3.1.2-4] [MQTT-3.2.2-2].
		c = connect(mqtttest.ClientID(id))
		wantPresent(t, c, false)
		publisher.Publish(message{Topic: topic, Payload: "to no subscriber", QoS: 1})
		c.Quiet()
		c.Disconnect()
		wantPresent(t, connect(mqtttest.Persistent(id)), false)
	})
}

func TestSessionWithoutExpiryEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.ClientID("brief"), mqtttest.Resume())
	c.Subscribe("brief", 1)
	c.Disconnect()
	n.connect().Publish(message{Topic: "brief", QoS: 1})
	c = n.connect(mqtttest.Persistent("brief"))
	wantPresent(t, c, false)
	c.Quiet()
}

func TestSessionExpires(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.ClientID("expires"), mqtttest.SessionExpiry(4))
	c.Subscribe("expires", 1)
	publisher := n.connect()
	c.Disconnect()
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "expires", QoS: 1}).Code, mqtt.Success)

	letPass(6 * time.Second)

	// No session matches any more, and a client that returns gets a new one [MQTT-3.1.2-23].
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "expires", QoS: 1}).Code, mqtt.NoMatchingSubscribers)
	c = n.connect(mqtttest.Persistent("expires"))
	wantPresent(t, c, false)
	c.Quiet()
}

func TestSessionExpiryBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxSessionExpiry = time.Second })
	forever := n.connect(mqtttest.ClientID("forever"), mqtttest.SessionExpiry(0xFFFFFFFF))
	if forever.Connack.SessionExpiry != 1 {
		t.Errorf("Session Expiry Interval: got %d, want 1", forever.Connack.SessionExpiry)
	}
	old := n.connect(mqtttest.ClientID("old"), mqtttest.V311(), mqtttest.Resume())
	forever.Disconnect()
	old.Disconnect()
	letPass(2200 * time.Millisecond)
	wantPresent(t, n.connect(mqtttest.Persistent("forever")), false)
	wantPresent(t, n.connect(mqtttest.Persistent("old"), mqtttest.V311()), false)
}

func TestSessionExpiryChangedByDisconnect(t *testing.T) {
	t.Parallel()
	n := start(t)
	leave := func(id string, expiry, changed uint32) bool {
		c := n.connect(mqtttest.ClientID(id), mqtttest.SessionExpiry(expiry))
		c.DisconnectWith(mqtt.Disconnect{HasSessionExpiry: true, SessionExpiry: changed})
		return n.connect(mqtttest.Persistent(id)).Connack.SessionPresent
	}
	if leave("ended", 3600, 0) {
		t.Error("a session is there that DISCONNECT ended")
	}
	if !leave("longer", 1, 3600) {
		t.Error("a session is gone that DISCONNECT prolonged")
	}
	if !leave("shorter", 3600, 1800) {
		t.Error("a session is gone that DISCONNECT shortened by half")
	}

	// From 0 it can't be changed: a protocol error (MQTT 5, section 3.14.2.2.2).
	c := n.connect(mqtttest.ClientID("none"))
	c.Write(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{HasSessionExpiry: true, SessionExpiry: 60}))
	p := c.ExpectDisconnect(mqtt.ProtocolError)
	wantReason(t, "DISCONNECT", p.Disconnect.ReasonString)
	wantPresent(t, n.connect(mqtttest.Persistent("none")), false)
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, first := range []mqtt.Version{mqtt.V311, mqtt.V5} {
		for _, second := range []mqtt.Version{mqtt.V311, mqtt.V5} {
			t.Run(versionName(first)+" by "+versionName(second), func(t *testing.T) {
				t.Parallel()
				id := "taken" + t.Name()
				old := mqtttest.Connect(t, n.Addr, mqtttest.Persistent(id), mqtttest.Version(first))
				old.Subscribe(id, 1)
				successor := mqtttest.Connect(t, n.Addr, mqtttest.Persistent(id), mqtttest.Version(second))
				wantPresent(t, successor, true)
				old.ExpectDisconnect(mqtt.SessionTakenOver) // [MQTT-3.1.4-3]
				mqtttest.Connect(t, n.Addr).Publish(message{Topic: id, Payload: "x", QoS: 1})
				wantContent(t, successor.Receive(), message{Topic: id, Payload: "x", QoS: 1})
			})
		}
	}
}

func TestTakeoverByCleanStart(t *testing.T) {
	t.Parallel()
	n := start(t)
	old := n.connect(mqtttest.Persistent("clean"))
	old.Subscribe("clean", 1)
	successor := n.connect(mqtttest.ClientID("clean"))
	wantPresent(t, successor, false)
	old.ExpectDisconnect(mqtt.SessionTakenOver)
	n.connect().Publish(message{Topic: "clean", QoS: 1})
	successor.Quiet()
}

// A session without expiry ends with its connection, even if another connection of the
// client takes it over before the server has noticed that the first is gone.
func TestTakeoverOfASessionWithoutExpiry(t *testing.T) {
	t.Parallel()
	n := start(t)
	old := n.connect(mqtttest.ClientID("brief"))
	old.Subscribe("brief", 1)
	n.connect(mqtttest.Persistent("brief")).Quiet()
	old.ExpectDisconnect(mqtt.SessionTakenOver)
}

func TestUnacknowledgedIsSentAgain(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		id, topic := "again"+versionName(v), "again/"+versionName(v)
		connect := func() *client {
			return mqtttest.Connect(t, n.Addr, mqtttest.Persistent(id), mqtttest.Version(v), mqtttest.HoldAcks())
		}
		publisher := mqtttest.Connect(t, n.Addr)
		c := connect()
		c.Subscribe(topic, 2)
		for i, m := range numbered(topic, 1, 6) {
			m.QoS = byte(1 + i%2)
			publisher.Publish(m)
		}
		sent := c.ReceiveN(6)

		// Given: 0 complete, 1 and 3 received (PUBREC) and not complete, the rest not acknowledged at all.
		c.Acknowledge(sent[0])
		c.SendAck(mqtt.PUBREC, sent[1].PacketID, mqtt.Success)
		c.AwaitAck(mqtt.PUBREL, sent[1].PacketID)
		c.SendAck(mqtt.PUBREC, sent[3].PacketID, mqtt.Success)
		c.AwaitAck(mqtt.PUBREL, sent[3].PacketID)
		c.Drop()

		// When the session is resumed, what was not acknowledged comes again in its order, with DUP and the
		// same identifier; for what was received the PUBREL comes [MQTT-4.4.0-1].
		c = connect()
		wantPresent(t, c, true)
		want := map[uint16]bool{sent[1].PacketID: true, sent[3].PacketID: true}
		var again []message
		for range 5 {
			switch p := c.Next(); {
			case p.Type == mqtt.PUBREL && want[p.Ack.PacketID]:
				delete(want, p.Ack.PacketID)
				c.SendAck(mqtt.PUBCOMP, p.Ack.PacketID, mqtt.Success)
			case p.Type == mqtt.PUBLISH:
				again = append(again, *p.Publish)
			default:
				t.Fatalf("got %v", p)
			}
		}
		wantPayloads(t, again, []string{"2", "4", "5"})
		for i, m := range again {
			original := sent[[]int{2, 4, 5}[i]]
			if !m.Dup || m.PacketID != original.PacketID {
				t.Errorf("got %v, want DUP and identifier %d", m, original.PacketID)
			}
			wantContent(t, m, original)
			c.Acknowledge(m)
		}
		c.Quiet()
		c.Disconnect()

		// Then nothing is left.
		connect().Quiet()
	})
}

func TestQueueKeepsNoQoS0(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.Persistent("qos0"))
	c.Subscribe("published0", 1)
	c.Subscribe("granted0", 0)
	c.Disconnect()
	publisher := n.connect()
	publisher.Publish(message{Topic: "published0", QoS: 0})
	publisher.Publish(message{Topic: "granted0", QoS: 1})
	publisher.Publish(message{Topic: "published0", Payload: "kept", QoS: 1})
	// QoS 0 need not be kept for a client that is away (MQTT 5, section 3.1.2.5), and isn't.
	wantPayloads(t, collect(n.connect(mqtttest.Persistent("qos0")), 1), []string{"kept"})
}

func TestDisconnectWithReasonCode(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := n.connect()
	m.Subscribe("will", 1)
	// Any code but 0x00 leaves the will in place (MQTT 5, section 3.1.2.5).
	c := n.connect(mqtttest.Will(message{Topic: "will", QoS: 1}, 0))
	c.DisconnectWith(mqtt.Disconnect{Code: mqtt.UnspecifiedError})
	m.Receive()
}

// A client that comes back only to fetch what waits for it, and wants its
// session to end with that connection, gets all of it, however much it is.
func TestLastConnectionOfASessionGetsTheWholeQueue(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.Persistent("last"))
	c.Subscribe("queue", 1)
	c.Disconnect()
	const count = 5000
	publishAll(n.connect(), numbered("queue", 1, count))

	c = n.connect(mqtttest.ClientID("last"), mqtttest.Resume())
	wantPresent(t, c, true)
	wantPayloads(t, c.ReceiveN(count), counted(0, count))
	c.Disconnect()
	wantPresent(t, n.connect(mqtttest.Persistent("last")), false)
}

func TestLastConnectionOfASessionEndsItAcrossARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.Persistent("last"))
	c.Subscribe("queue", 1)
	c.Disconnect()
	c = n.connect(mqtttest.ClientID("last"), mqtttest.Resume())
	wantPresent(t, c, true)
	n.Restart()
	wantPresent(t, n.connect(mqtttest.Persistent("last")), false)
	wantCode(t, "PUBACK", n.connect().Offer(message{Topic: "queue", QoS: 1}).Code, mqtt.NoMatchingSubscribers)
}
