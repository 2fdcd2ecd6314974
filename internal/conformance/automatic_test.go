package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// got wants the next messages of a client, each "topic payload".
func got(t *testing.T, c *client, want ...string) {
	t.Helper()
	for _, w := range want {
		if m := c.Receive(); m.Topic+" "+m.Payload != w {
			t.Fatalf("got %v, want %s", m, w)
		}
	}
	c.Quiet()
}

// Clients have the subscriptions of the configuration when they have their CONNACK, whatever their
// version: with its options, and with retained messages.
func TestAutomaticSubscriptions(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) {
		c.AutoSubscribe = []string{
			"to/{principal.clientId}/# qos=2", "own/# qos=1 no-local", "kept/# qos=1 retain-as-published", "sensors clients=sensor-*",
		}
	})
	for _, version := range []mqtt.Version{mqtt.V311, mqtt.V5} {
		publisher := n.connect()
		publisher.Publish(message{Topic: "to/sensor-1/x", Payload: "retained", QoS: 1, Retain: true})
		publisher.Collect()
		c := n.connect(mqtttest.ClientID("sensor-1"), mqtttest.Version(version))
		if m := c.Receive(); m.Payload != "retained" || !m.Retain || m.QoS != 1 {
			t.Errorf("version %d: got %v, want the retained message", version, m)
		}
		publisher.Publish(message{Topic: "to/sensor-1", Payload: "1", QoS: 2})
		if m := c.Receive(); m.Payload != "1" || m.QoS != 2 {
			t.Errorf("version %d: got %v, want a message at QoS 2", version, m)
		}
		publisher.Publish(message{Topic: "to/sensor-2", Payload: "not for it", QoS: 1})
		publisher.Publish(message{Topic: "sensors", Payload: "2", QoS: 1})
		c.Publish(message{Topic: "own/1", Payload: "not for itself", QoS: 1})
		got(t, c, "sensors 2")
		publisher.Publish(message{Topic: "kept/1", Payload: "3", QoS: 1, Retain: true})
		if m := c.Receive(); m.Payload != "3" || !m.Retain {
			t.Errorf("version %d: got %v, want a message with RETAIN as it was published", version, m)
		}
		publisher.Publish(message{Topic: "kept/1", QoS: 1, Retain: true})
		c.Unsubscribe("to/sensor-1/#")
		c.Collect()
		publisher.Publish(message{Topic: "to/sensor-1", Payload: "4", QoS: 1})
		c.Quiet()
		c.Disconnect()
		publisher.Disconnect()
	}
}

// A session that is resumed has its automatic subscription without getting retained messages
// again, unless the rule says so; messages were queued for it meanwhile, and are there after a
// restart.
func TestAutomaticSubscriptionsOfASession(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	configure := func(c *server.Config) {
		c.DataDir, c.AutoSubscribe = dir, []string{"once/# qos=1", "again qos=1 retain-handling=0", "never retain-handling=2"}
	}
	n := start(t, configure)
	publisher := n.connect()
	publisher.Collect()
	for _, topic := range []string{"once/a", "again", "never"} {
		publisher.Publish(message{Topic: topic, Payload: "retained", QoS: 1, Retain: true})
	}
	publisher.Disconnect()
	c := n.connect(mqtttest.Persistent("c"))
	got(t, c, "once/a retained", "again retained")
	c.SubscribeWith(7, mqtttest.Sub{Filter: "once/#", QoS: 0, RetainHandling: 2}) // its own options and identifier
	c.Disconnect()
	c.AwaitEnd()
	c = n.connect(mqtttest.Persistent("c"))
	got(t, c, "again retained")
	c.Disconnect()
	c.AwaitEnd()
	n.connect(mqtttest.ClientID("p")).Publish(message{Topic: "once/b", Payload: "queued", QoS: 1})
	n.Stop()

	n = start(t, configure)
	c = n.connect(mqtttest.Persistent("c"))
	m := c.Receive()
	if m.Payload != "queued" || m.QoS != 1 || len(m.SubscriptionIDs) != 1 || m.SubscriptionIDs[0] != 7 {
		t.Errorf("got %v, want the message at the QoS of the rule, with the identifier that the client has given", m)
	}
	got(t, c, "again retained")
}

// The policy and the bounds decide about automatic subscriptions as about others. A client whose
// name is a wildcard gets nothing by it. The client stays connected.
func TestAutomaticSubscriptionsAreJudged(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	const policy = `rules: [{brokerResources: [{method: Connect}, {method: Publish, topics: ["#"]}, {method: Subscribe, topics: ["to/#", "a", "b"]}]}]`
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, func(c *server.Config) {
		c.Policy, c.Limits.MaxSubscriptions = rules, 2
		c.AutoSubscribe = []string{"secret", "to/{principal.clientId}", "of/{principal.username}", "a", "b"}
	})
	publisher := n.connect(mqtttest.ClientID("publisher"))
	for _, name := range []string{"c", "#", "+", "x/y"} {
		c := n.connect(mqtttest.ClientID(name))
		for _, topic := range []string{"secret", "to/c", "to/x", "to/x/y", "of/", "a", "b"} {
			publisher.Publish(message{Topic: topic, Payload: "x", QoS: 1})
		}
		if name == "c" {
			got(t, c, "to/c x", "a x") // b is one more than it may have
		} else {
			got(t, c, "a x", "b x")
		}
		c.Disconnect()
		c.AwaitEnd()
	}
}

// A member of a shared subscription that is made automatically gets its part, and what waited.
func TestAutomaticSharedSubscription(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) {
		c.AutoSubscribe = []string{"$share/workers/jobs qos=1 clients=worker-*"}
	})
	a := n.connect(mqtttest.Persistent("worker-a"))
	a.Disconnect()
	a.AwaitEnd()
	publisher := n.connect()
	publisher.Publish(message{Topic: "jobs", Payload: "1", QoS: 1})
	b := n.connect(mqtttest.ClientID("worker-b"))
	got(t, b, "jobs 1")
	publisher.Publish(message{Topic: "jobs", Payload: "2", QoS: 1})
	got(t, b, "jobs 2")
}
