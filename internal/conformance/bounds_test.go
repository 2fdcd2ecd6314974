package conformance

import (
	"strings"
	"testing"

	"holdfast/internal/mqtt"
	"holdfast/internal/mqtttest"
	"holdfast/internal/server"
)

// When all queues together are at their bound, the session that holds most ends,
// and one whose client is away before one whose isn't.
func TestTotalQueueBound(t *testing.T) {
	t.Parallel()
	for name, bound := range map[string]func(*server.Config){
		"messages": func(c *server.Config) { c.Limits.MaxTotalQueued = 20 },
		"bytes":    func(c *server.Config) { c.Limits.MaxTotalQueuedBytes = 20 * int64(len("light")+1000) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, bound)
			for _, topic := range []string{"light", "heavy"} {
				c := n.connect(mqtttest.Persistent(topic))
				c.Subscribe(topic, 1)
				c.Disconnect()
			}
			publisher := n.connect()
			payload := strings.Repeat("x", 1000)
			for range 5 {
				publisher.Publish(message{Topic: "light", Payload: payload, QoS: 1})
			}
			for range 17 {
				publisher.Publish(message{Topic: "heavy", Payload: payload, QoS: 1})
			}
			light := n.connect(mqtttest.Persistent("light"))
			wantPresent(t, light, true)
			light.ReceiveN(5)
			wantPresent(t, n.connect(mqtttest.Persistent("heavy")), false)
		})
	}
}

// What waits for all members of a shared subscription counts, too.
func TestTotalQueueBoundOfSharedSubscriptions(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTotalQueued = 20 })
	for id, filter := range map[string]string{"light": "light", "member": "$share/group/heavy"} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe(filter, 1)
		c.Disconnect()
	}
	publisher := n.connect()
	publishAll(publisher, numbered("light", 1, 5))
	publishAll(publisher, numbered("heavy", 1, 17))
	light := n.connect(mqtttest.Persistent("light"))
	wantPresent(t, light, true)
	wantPayloads(t, light.ReceiveN(5), counted(0, 5))
	wantPresent(t, n.connect(mqtttest.Persistent("member")), false)
}

// A member of a shared subscription whose queue is full is passed over, and when
// it ends, what it didn't take goes to the others as they have room: nothing is
// lost, and nobody else's queue overflows from it.
func TestFullMemberLosesNothingOfASharedSubscription(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 10 })
	full := n.connect(mqtttest.Persistent("full"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	full.Subscribe("$share/group/work", 1)
	other := n.connect(mqtttest.Persistent("other"))
	other.Subscribe("$share/group/work", 1)
	const count = 40
	got := map[string]bool{}
	publisher := n.connect()
	for _, m := range numbered("work", 1, count) {
		publisher.Publish(m)
		for _, m := range other.Collect() {
			got[m.Payload] = true
		}
	}
	full.DisconnectWith(mqtt.Disconnect{HasSessionExpiry: true, SessionExpiry: 0})
	for len(got) < count {
		got[other.Receive().Payload] = true
	}
	for _, want := range counted(0, count) {
		if !got[want] {
			t.Errorf("message %s is lost", want)
		}
	}
}

// When all members are full the group keeps what comes, and gives it out as they
// acknowledge.
func TestFullMembersGetTheRestAsTheyAcknowledge(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 5 })
	c := n.connect(mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	c.Subscribe("$share/group/work", 1)
	publishAll(n.connect(), numbered("work", 1, 10))
	for i := range 10 {
		m := c.Receive()
		wantPayloads(t, []message{m}, counted(i, i+1))
		c.Acknowledge(m)
	}
	c.Quiet()
}

func TestInflightBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxInflight = 3 })
	c := n.connect(mqtttest.HoldAcks()) // with a Receive Maximum of 65,535
	c.Subscribe("window", 1)
	publishAll(n.connect(), numbered("window", 1, 5))
	window := c.ReceiveN(3)
	c.Quiet()
	c.Acknowledge(window[0])
	c.Receive()
	c.Quiet()
}

func TestClientIdentifierBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxClientID = 5 })
	n.connect(mqtttest.ClientID("12345"))
	ack := mqtttest.Refused(t, n.addr(), mqtt.ClientIdentifierNotValid, mqtttest.ClientID("123456"))
	wantReason(t, "CONNACK", ack.ReasonString)
}

func TestRetainedBoundInBytes(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxRetainedBytes = 1000 })
	c := n.connect()
	c.Publish(message{Topic: "r/1", QoS: 1, Retain: true, Payload: strings.Repeat("x", 600)})
	ack := c.Offer(message{Topic: "r/2", QoS: 1, Retain: true, Payload: strings.Repeat("x", 600)})
	wantCode(t, "PUBACK beyond", ack.Code, mqtt.QuotaExceeded)
	c.Publish(message{Topic: "r/1", QoS: 1, Retain: true, Payload: strings.Repeat("x", 900)})
}

// One SUBSCRIBE can't ask for more than a session may have, not even for the same
// again and again.
func TestFiltersOfOneSubscribeAreBounded(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxSubscriptions = 2 })
	c := n.connect()
	ack := c.OfferSubscribe(0, sub{Filter: "a", QoS: 1}, sub{Filter: "a", QoS: 2}, sub{Filter: "a"})
	for i, want := range []mqtt.ReasonCode{mqtt.GrantedQoS1, mqtt.GrantedQoS2, mqtt.QuotaExceeded} {
		wantCode(t, "SUBACK", ack.Codes[i], want)
	}
	c.Publish(message{Topic: "a", QoS: 2})
	if m := c.Receive(); m.QoS != 2 {
		t.Errorf("got QoS %d, want the last one granted", m.QoS)
	}
}
