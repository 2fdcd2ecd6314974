package broker

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// A PUBREC that the server knows nothing of is answered behind those that came before
// it, although their PUBRELs wait for the disk [MQTT-4.6.0-4].
func TestPubrelsComeInTheOrderOfPubrecs(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	n := run(t, disk, Limits{})
	c := n.connect(mqtttest.Persistent("c"), mqtttest.HoldAcks())
	c.Subscribe("news", 2)
	n.connect().Publish(publication{Topic: "news", QoS: 2})
	id := c.Receive().PacketID
	const unknown = 4711

	disk.Hold()
	defer disk.Release(nil)
	both := mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBREC, id, mqtt.Success, "")
	both = mqtt.AppendAck(both, mqtt.V5, mqtt.PUBREC, unknown, mqtt.Success, "")
	c.Write(both)
	c.Ping() // both have been handled
	disk.Release(nil)

	for _, want := range []uint16{id, unknown} {
		if got := c.Expect(mqtt.PUBREL).Ack.PacketID; got != want {
			t.Errorf("a PUBREL for %d, want %d first", got, want)
		}
	}
}

// A PUBREL that comes twice is answered when it is on disk that the identifier is free,
// the second time as well: after a crash the client's next publish with the identifier
// would be taken for the one before.
func TestARepeatedPubrelWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	n := run(t, disk, Limits{})
	c := n.connect(mqtttest.Persistent("c"), mqtttest.HoldAcks())
	id := c.SendPublish(publication{Topic: "news", QoS: 2})
	c.AwaitAck(mqtt.PUBREC, id)

	disk.Hold()
	defer disk.Release(nil)
	c.SendAck(mqtt.PUBREL, id, mqtt.Success)
	c.SendAck(mqtt.PUBREL, id, mqtt.Success)
	c.Write(mqtt.AppendPingreq(nil))
	c.Expect(mqtt.PINGRESP)
	disk.Release(nil)

	for _, want := range []mqtt.ReasonCode{mqtt.Success, mqtt.PacketIdentifierNotFound} {
		if got := c.Expect(mqtt.PUBCOMP).Ack.Code; got != want {
			t.Errorf("PUBCOMP %v, want %v", got, want)
		}
	}
}
