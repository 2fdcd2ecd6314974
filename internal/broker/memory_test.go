package broker

import (
	"net"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
	"holdfast/internal/mqtttest"
)

// deaf connects a client whose socket takes little, and that reads nothing unless
// the test does.
func (n *node) deaf(opts ...mqtttest.Option) *mqtttest.Client {
	n.t.Helper()
	socket, err := net.Dial("tcp", n.addr)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := socket.(*net.TCPConn).SetReadBuffer(256 << 10); err != nil {
		n.t.Fatal(err)
	}
	c := mqtttest.NewClient(n.t, socket)
	c.Connect(opts...)
	return c
}

// A payload that many subscribers don't read is in memory once, and each gets it
// whole when it does read.
func TestPayloadIsInMemoryOnceForAllSubscribers(t *testing.T) {
	t.Parallel()
	const subscribers, size = 10, 4 << 20
	for qos := range byte(3) {
		n := run(t, vfs.NewMem(), Limits{})
		all := make([]*mqtttest.Client, subscribers)
		for i := range all {
			all[i] = n.deaf()
			all[i].Subscribe("big", qos)
		}
		payload := strings.Repeat("0123456789abcdef", size/16)
		n.connect().Publish(message{Topic: "big", QoS: qos, Payload: payload})
		until(t, "the message to wait", func() bool { return n.memory.UsedBy(memory.Output) > size })
		if used := n.memory.UsedBy(memory.Output); used > size+subscribers*1000 {
			t.Errorf("QoS %d: %d bytes are charged for one message of %d", qos, used, size)
		}
		for i, c := range all {
			if m := c.Expect(mqtt.PUBLISH).Publish; m.Payload != payload {
				t.Fatalf("QoS %d: subscriber %d got %d bytes, or other ones", qos, i, len(m.Payload))
			}
		}
		n.allCredited()
	}
}
