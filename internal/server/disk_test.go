package server

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// startOn starts a server with its data on this disk.
func startOn(t *testing.T, disk *journaltest.Disk, change ...func(*Config)) *Server {
	t.Helper()
	return startIn(t, "data", append(change, func(c *Config) { c.FS = disk })...)
}

// With the disk nearly full, what would be written is refused with the reason
// code for it, and everything else goes on.
func TestPublishesWhileTheDiskIsNearlyFull(t *testing.T) {
	t.Parallel()
	type message = mqtttest.Message
	disk := journaltest.NewDisk(vfs.NewMem())
	s := startOn(t, disk)
	space := func(free uint64) {
		disk.SetSpace(free, 100<<30)
		s.journal.CheckSpace()
	}
	addr := s.Addrs()[0].String()

	// Given a subscriber that is away with a message waiting, a retained
	// message, a subscriber whose session is not kept, and a publisher,
	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	away.Subscribe("kept/#", 2)
	away.Disconnect()
	away.AwaitEnd()
	passing := mqtttest.Connect(t, addr)
	passing.Subscribe("passing/#", 1)
	publisher := mqtttest.Connect(t, addr, mqtttest.Persistent("publisher"))
	publisher.Publish(message{Topic: "kept/1", Payload: "before", QoS: 1})
	publisher.Publish(message{Topic: "retained/1", Payload: "before", QoS: 1, Retain: true})

	// when the disk is nearly full,
	space(10 << 20)
	for _, c := range []struct {
		name string
		m    message
		want mqtt.ReasonCode
	}{
		{"QoS 1 into a queue on disk", message{Topic: "kept/2", QoS: 1}, mqtt.QuotaExceeded},
		{"QoS 2 into a queue on disk", message{Topic: "kept/2", QoS: 2}, mqtt.QuotaExceeded},
		{"QoS 2 from a session on disk", message{Topic: "unsubscribed", QoS: 2}, mqtt.QuotaExceeded},
		{"a retained message", message{Topic: "retained/2", Payload: "x", QoS: 1, Retain: true}, mqtt.QuotaExceeded},
		{"the end of a retained message", message{Topic: "retained/1", QoS: 1, Retain: true}, mqtt.NoMatchingSubscribers},
		{"QoS 1 without a subscriber", message{Topic: "unsubscribed", QoS: 1}, mqtt.NoMatchingSubscribers},
		{"QoS 1 to a session that is not kept", message{Topic: "passing/1", Payload: "x", QoS: 1}, mqtt.Success},
	} {
		if ack := publisher.Offer(c.m); ack.Code != c.want {
			t.Errorf("%s: %v (%s), want %v", c.name, ack.Code, ack.ReasonString, c.want)
		}
	}
	if m := passing.Receive(); m.Topic != "passing/1" {
		t.Errorf("the passing subscriber got %v", m)
	}

	// MQTT 3.1.1 has no way to refuse in a PUBACK; the client must keep it.
	old := mqtttest.Connect(t, addr, mqtttest.V311())
	old.SendPublish(message{Topic: "kept/2", QoS: 1})
	old.ExpectClosed()

	// then what waits can be fetched and acknowledged,
	away = mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	if m := away.Receive(); m.Payload != "before" {
		t.Errorf("the subscriber got %v", m)
	}
	away.Quiet()

	// and with room again everything is taken.
	space(10 << 30)
	publisher.Publish(message{Topic: "kept/3", Payload: "after", QoS: 2})
	if m := away.Receive(); m.Payload != "after" {
		t.Errorf("the subscriber got %v", m)
	}
}
