package broker

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// Outputs refer to a large payload where its message keeps it, and never to the
// publisher's read buffer, which the next packet overwrites.
func TestLargePayloadIsNotReadOver(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	subscribers := []*mqtttest.Client{n.connect(), n.connect(), n.connect()}
	for _, c := range subscribers {
		c.Subscribe("big", 0)
	}
	publisher := n.connect()
	const size = 40_000
	var burst []byte
	for letter := 'a'; letter <= 'z'; letter++ {
		burst = append(burst, mqtttest.EncodePublish(mqtt.V5, publication{Topic: "big", Payload: strings.Repeat(string(letter), size)})...)
	}
	for range 5 {
		publisher.Write(burst)
		publisher.Ping()
		for i, c := range subscribers {
			for _, m := range c.Collect() { // not all of them: an output that is full drops some
				if strings.Count(m.Payload, m.Payload[:1]) != size {
					t.Fatalf("subscriber %d got a message of several letters", i)
				}
			}
		}
	}
}
