package broker

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// The power fails after any of the syncs of a run: whatever had been acknowledged
// until then is there, in order and once. Messages go to two queues at QoS 1 and
// 2, some of them retained.
func TestPowerLossKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	const count = 24
	fs := newCrashes()
	n := run(t, fs, Limits{})
	for _, id := range []string{"one", "two"} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe("news/#", 2)
		c.Disconnect()
	}
	publisher := n.connect(mqtttest.Persistent("publisher"))

	fs.record()
	for i := range int64(count) {
		publisher.Publish(publication{Topic: "news/today", Payload: fmt.Sprint(i), QoS: byte(1 + i%2), Retain: i%3 == 0})
		fs.acked.Store(i + 1)
	}
	left := fs.stop()

	if len(left) < count {
		t.Fatalf("%d syncs for %d messages that were acknowledged one after the other", len(left), count)
	}
	for crash, fs2 := range left {
		acked := int(fs.ackedAt[crash])
		n := run(t, fs2, Limits{})
		for _, id := range []string{"one", "two"} {
			got := n.connect(mqtttest.Persistent(id)).Collect()
			if len(got) < acked || len(got) > acked+1 {
				t.Fatalf("crash %d: %d messages wait for %s, %d were acknowledged", crash, len(got), id, acked)
			}
			for i, m := range got {
				if m.Payload != fmt.Sprint(i) {
					t.Errorf("crash %d: message %d for %s is %v", crash, i, id, m)
				}
			}
		}
		late := n.connect()
		late.Subscribe("news/#", 2)
		if retained := late.Collect(); acked > 0 && (len(retained) != 1 || !retained[0].Retain) {
			t.Errorf("crash %d: %v is retained", crash, retained)
		}
		n.stop()
	}
}

// A QoS 2 publish that was under way when the power failed goes on where it
// stood, whatever of it had been acknowledged: the subscriber gets it once.
func TestPowerLossInTheMiddleOfQoS2(t *testing.T) {
	t.Parallel()
	const count = 8
	fs := newCrashes()
	n := run(t, fs, Limits{})
	c := n.connect(mqtttest.Persistent("reader"))
	c.Subscribe("news", 2)
	c.Disconnect()
	publisher := n.connect(mqtttest.Persistent("publisher"))
	fs.record()
	for i := range int64(count) {
		id := uint16(i + 1)
		publisher.SendPublish(publication{Topic: "news", Payload: fmt.Sprint(i), QoS: 2, PacketID: id})
		publisher.AwaitAck(mqtt.PUBREC, id)
		fs.acked.Store(2*i + 1) // PUBREC has come
		publisher.Release(id)
		fs.acked.Store(2*i + 2) // PUBCOMP has come
	}
	left := fs.stop()

	for crash, fs2 := range left {
		next, received := fs.ackedAt[crash]/2, fs.ackedAt[crash]%2 == 1
		id := uint16(next + 1)
		n := run(t, fs2, Limits{})
		again := n.connect(mqtttest.Persistent("publisher"))
		if next < count && !received {
			again.Write(mqtttest.EncodePublish(mqtt.V5, publication{Topic: "news", Payload: fmt.Sprint(next), QoS: 2, PacketID: id, Dup: true}))
			again.AwaitAck(mqtt.PUBREC, id)
		}
		if next < count {
			again.Release(id)
		}
		got := n.connect(mqtttest.Persistent("reader")).Collect()
		if want := min(int(next)+1, count); len(got) != want {
			t.Errorf("crash %d: got %v, want %d messages", crash, mqtttest.Payloads(got), want)
		}
		n.stop()
	}
}
