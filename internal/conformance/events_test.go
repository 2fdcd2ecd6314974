package conformance

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// event receives the next event, and checks its topic and some of its fields.
func event(t *testing.T, watcher *client, topic string, want map[string]any) {
	t.Helper()
	m := watcher.Receive()
	if m.Topic != "$SYS/brokers/holdfast/clients/"+topic || m.QoS != 0 || m.Retain {
		t.Fatalf("got %s %s, want %s", m.Topic, m.Payload, topic)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(m.Payload), &got); err != nil {
		t.Fatalf("%s: %q: %v", topic, m.Payload, err)
	}
	for field, value := range want {
		if got[field] != value {
			t.Errorf("%s: the field %s is %v, want %v: %s", topic, field, got[field], value, m.Payload)
		}
	}
	if at, is := got["ts"].(float64); !is || at < 1.7e12 {
		t.Errorf("%s: the time is %v", topic, got["ts"])
	}
}

// Subscribers of $SYS learn which clients connect, are taken over, leave and are refused, in
// this order, whatever is in the client ID.
func TestEventsOfClients(t *testing.T) {
	t.Parallel()
	n := start(t, patientTakeover, func(c *server.Config) { c.ClientEvents = 1000 })
	watcher := n.connect()
	watcher.Subscribe("$SYS/brokers/+/clients/#", 2)

	first := n.connect(mqtttest.Persistent("a/b"), mqtttest.KeepAlive(60), mqtttest.Credentials("bob", "x"))
	event(t, watcher, "a%2Fb/connected", map[string]any{
		"clientid": "a/b", "username": "bob", "ipaddress": "127.0.0.1", "proto_ver": 5.0, "proto_name": "MQTT", "keepalive": 60.0, "session_present": false, "reason_code": 0.0,
	})
	second := n.connect(mqtttest.Resume(), mqtttest.ClientID("a/b"))
	first.AwaitDisconnect(mqtt.SessionTakenOver)
	for _, kind := range []string{"disconnected", "takenover"} {
		event(t, watcher, "a%2Fb/"+kind, map[string]any{"by": "server", "reason": "takenover", "reason_code": 142.0})
	}
	event(t, watcher, "a%2Fb/connected", map[string]any{"session_present": true, "clean_start": false, "expiry_interval": 0.0})
	second.Disconnect()
	event(t, watcher, "a%2Fb/disconnected", map[string]any{"by": "client", "reason": "normal", "reason_code": 0.0})

	n.connect(mqtttest.ClientID("lost"), mqtttest.V311()).Drop()
	event(t, watcher, "lost/connected", map[string]any{"proto_ver": 4.0})
	event(t, watcher, "lost/disconnected", map[string]any{"by": "network", "reason": "tcp_closed", "reason_code": nil})

	n.dial().SendConnect(mqtttest.ClientID(strings.Repeat("x", 2000)))
	event(t, watcher, "/refused", map[string]any{"reason": "client_identifier_not_valid", "reason_code": float64(mqtt.ClientIdentifierNotValid)})

	// Only the server publishes them.
	if ack := watcher.Offer(message{Topic: "$SYS/brokers/holdfast/clients/x/connected", Payload: "{}", QoS: 1}); ack.Code != mqtt.NotAuthorized {
		t.Errorf("publishing an event: %v", ack.Code)
	}
}

// A server publishes no events unless that is asked for.
func TestNoEventsByDefault(t *testing.T) {
	t.Parallel()
	n := start(t)
	watcher := n.connect()
	watcher.Subscribe("$SYS/brokers/#", 0)
	n.connect(mqtttest.ClientID("c")).Disconnect()
	watcher.Quiet()
}
