package conformance

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// patientTakeover lets a busy machine handle what a client had sent, however long it takes.
func patientTakeover(c *server.Config) { c.Limits.TakeoverWait = mqtttest.Deadline }

// What a client had sent over its old connection takes effect before the new
// connection is answered: its publishes are delivered, and its DISCONNECT withdraws
// the will [MQTT-3.14.4-3].
func TestWhatWasSentBeforeATakeoverCounts(t *testing.T) {
	t.Parallel()
	n := start(t, patientTakeover)
	watcher := n.connect()
	watcher.Subscribe("leaving/#", 1)
	for round := range 30 {
		old := n.connect(mqtttest.ClientID("hasty"), mqtttest.Will(message{Topic: "leaving/will", Payload: "left", QoS: 1}, 0))
		topic := fmt.Sprint("leaving/", round)
		var all []byte
		for _, m := range numbered(topic, 0, 400) {
			all = append(all, mqtttest.EncodePublish(mqtt.V5, m)...)
		}
		// Given a client that publishes, says goodbye,
		old.Write(mqtt.AppendDisconnect(all, mqtt.V5, &mqtt.Disconnect{}))
		// and connects again without waiting for anything.
		n.connect(mqtttest.ClientID("hasty")).Disconnect()
		// Then all of it has been delivered, and the will has not.
		got := watcher.Collect()
		wantPayloads(t, got, counted(0, 400))
	}
}

// A client that floods its old connection gets its new one all the same, and the
// old one learns why it ends.
func TestTakeoverOfAFlood(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.TakeoverWait = 200 * time.Millisecond })
	old := n.connect(mqtttest.Persistent("flood"))
	burst := bytes.Repeat(mqtttest.EncodePublish(mqtt.V5, message{Topic: "flood", Payload: "x"}), 1000)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for old.WriteErr(burst) == nil {
		}
	}()
	began := time.Now()
	wantPresent(t, n.connect(mqtttest.Persistent("flood")), true)
	wantSoon(t, "the takeover", began)
	<-over
}

// A session without expiry has ended when the client's next CONNECT is answered
// [MQTT-3.2.2-2], however long its end takes; the new session lives on.
func TestConnectWaitsForTheEndOfTheSession(t *testing.T) {
	t.Parallel()
	n := start(t, patientTakeover)
	for i := range 60 { // which get the will before the session ends
		n.connect(mqtttest.Persistent(fmt.Sprint("mourner", i))).Subscribe("brief/will", 1)
	}
	connect := func(c *client) *client {
		c.Connect(mqtttest.ClientID("brief"), mqtttest.Resume(), mqtttest.Will(message{Topic: "brief/will", QoS: 1}, 0))
		return c
	}
	c := connect(n.dial())
	for range 60 {
		next := n.dial()
		c.Write(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.DisconnectWithWill}))
		c = connect(next)
		wantPresent(t, c, false)
		c.Ping()
	}
}
