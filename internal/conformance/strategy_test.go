package conformance

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// Of a group with the strategy sticky one member gets all messages in their order, and when its
// connection ends the other one goes on with what it had not acknowledged; by hash-topic each
// topic has one member.
func TestStrategiesOfSharedSubscriptions(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) {
		c.Limits.SharedStrategy = limits.HashTopic
		c.Limits.SharedStrategies = map[string]limits.Strategy{"one": limits.Sticky}
	})
	publisher := n.connect()
	first, second := n.connect(mqtttest.ClientID("first"), mqtttest.HoldAcks()), n.connect(mqtttest.ClientID("second"))
	first.Subscribe("$share/one/jobs", 1)
	second.Subscribe("$share/one/jobs", 1)
	for i := range 10 {
		publisher.Publish(message{Topic: "jobs", Payload: fmt.Sprint(i), QoS: 1})
	}
	wantPayloads(t, first.ReceiveN(10), counted(0, 10))
	second.Quiet()
	first.Drop()
	wantPayloads(t, second.ReceiveN(10), counted(0, 10))

	third := n.connect(mqtttest.ClientID("third"))
	second.Subscribe("$share/lines/line/+", 1)
	third.Subscribe("$share/lines/line/+", 1)
	const topics, rounds = 20, 5
	for round := range rounds {
		for i := range topics {
			publisher.Publish(message{Topic: fmt.Sprint("line/", i), Payload: fmt.Sprint(round), QoS: 1})
		}
	}
	got := map[string]int{}
	for _, c := range []*client{second, third} {
		for _, m := range c.Collect() {
			got[m.Topic]++
			if got[m.Topic]%rounds != 0 && m.Payload == fmt.Sprint(rounds-1) {
				t.Errorf("%s: another member got a part of the messages", m.Topic)
			}
		}
	}
	for topic, n := range got {
		if n != rounds {
			t.Errorf("%s: %d messages, want %d", topic, n, rounds)
		}
	}
	if len(got) != topics {
		t.Errorf("messages of %d topics, want %d", len(got), topics)
	}
}
