package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// What clients publish, subscribe to, unsubscribe from and leave as a will is rewritten, and
// other clients see the new topics.
func TestTopicsAreRewritten(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) {
		c.TopicRewrites = []string{"old/+/speed -> new/{1}/v", "publish top/# -> {1}", "subscribe mine/# -> new/{1}"}
	})
	watcher := n.connect()
	watcher.Subscribe("new/#", 1)
	old := n.connect(mqtttest.Will(message{Topic: "old/9/speed", Payload: "will", QoS: 1}, 0))
	old.Subscribe("old/+/speed", 1)
	old.Publish(message{Topic: "old/7/speed", Payload: "1", QoS: 1, Retain: true})
	for _, c := range []*client{watcher, old} {
		if m := c.Receive(); m.Topic != "new/7/v" || m.Payload != "1" {
			t.Errorf("%+v", m)
		}
	}
	old.Publish(message{Topic: "$delayed/0/old/8/speed", Payload: "2", QoS: 1})
	if m := watcher.Receive(); m.Topic != "new/8/v" {
		t.Errorf("a message that is published later: %+v", m)
	}
	if m := old.Receive(); m.Topic != "new/8/v" {
		t.Errorf("a message that is published later: %+v", m)
	}
	old.Unsubscribe("old/+/speed")
	old.Publish(message{Topic: "old/7/speed", Payload: "3", QoS: 1})
	old.Quiet()
	if m := watcher.Receive(); m.Payload != "3" {
		t.Errorf("%+v", m)
	}
	late := n.connect()
	late.Subscribe("mine/7/v", 1)
	if m := late.Receive(); m.Topic != "new/7/v" || m.Payload != "1" || !m.Retain {
		t.Errorf("the retained message: %+v", m)
	}
	old.Drop()
	if m := watcher.Receive(); m.Topic != "new/9/v" || m.Payload != "will" {
		t.Errorf("the will: %+v", m)
	}
	for _, name := range []string{"top/$SYS/broker/uptime", "top", "top/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"} {
		if ack := watcher.Offer(message{Topic: name, Payload: "x", QoS: 1}); ack.Code != mqtt.TopicNameInvalid {
			t.Errorf("publishing to %s: %v, want that the topic is refused", name, ack.Code)
		}
	}
}

// The policy is asked about the topic that a client's was rewritten to.
func TestThePolicyIsAskedAboutTheNewTopic(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	const policy = `rules: [{brokerResources: [{method: Connect}, {method: Publish, topics: ["new/#", "secret/#"]}, {method: Subscribe, topics: ["new/#", "secret/#"]}]}]`
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, func(c *server.Config) {
		c.Policy, c.TopicRewrites = rules, []string{"old/# -> new/{1}", "secret/# -> hidden/{1}"}
	})
	c := n.connect()
	for name, want := range map[string]mqtt.ReasonCode{"old/1": mqtt.NoMatchingSubscribers, "new/1": mqtt.NoMatchingSubscribers, "secret/1": mqtt.NotAuthorized, "hidden/1": mqtt.NotAuthorized} {
		if ack := c.Offer(message{Topic: name, Payload: "x", QoS: 1}); ack.Code != want {
			t.Errorf("publishing to %s: %v, want %v", name, ack.Code, want)
		}
	}
	for filter, want := range map[string]mqtt.ReasonCode{"old/#": mqtt.GrantedQoS1, "secret/#": mqtt.NotAuthorized} {
		if ack := c.OfferSubscribe(0, mqtttest.Sub{Filter: filter, QoS: 1}); ack.Codes[0] != want {
			t.Errorf("subscribing to %s: %v, want %v", filter, ack.Codes[0], want)
		}
	}
}
