package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// heldBySessions waits until sessions are charged with at least low and less than high bytes.
func (n *node) heldBySessions(what string, low, high int64) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("%s: sessions hold %d to %d bytes", what, low, high), func() bool {
		used := n.memory.UsedBy(memory.Sessions)
		return used >= low && used < high
	})
}

// A will is charged as long as it may be published, however it ends.
func TestWillsAreCharged(t *testing.T) {
	t.Parallel()
	const size = 60_000
	fs := vfs.NewMem()
	n := run(t, fs, Limits{})
	will := mqtttest.Will(publication{Topic: "will", Payload: strings.Repeat("x", size)}, 0)
	delayed := mqtttest.Will(publication{Topic: "will", Payload: strings.Repeat("x", size)}, 1000)

	withdrawn := n.connect(mqtttest.ClientID("withdrawn"), will)
	n.heldBySessions("a client with a will", size, 2*size)
	withdrawn.Disconnect()
	n.heldBySessions("withdrawn by a DISCONNECT", 0, 1)

	n.connect(mqtttest.ClientID("published"), will).Drop()
	n.heldBySessions("published", 0, 1)

	back := n.connect(mqtttest.Persistent("back"), delayed)
	back.Drop()
	until(t, "the client to be away", func() bool { return !n.connected("back") })
	n.heldBySessions("delayed", size, 2*size)
	n.connect(mqtttest.Persistent("back"), delayed)
	n.heldBySessions("replaced by one of the same size", size, 2*size)
	n.connect(mqtttest.Persistent("back")).Disconnect()
	n.heldBySessions("the client back without a will", 1, size)
	n.broker.Sessions.EndSession("back")
	n.heldBySessions("the session ended", 0, 1)

	n.connect(mqtttest.Persistent("ended"), delayed).Drop()
	until(t, "the client to be away", func() bool { return n.broker.Sessions.Lookup("ended") != nil && !n.connected("ended") })
	n.stop()
	n = run(t, fs, Limits{})
	n.heldBySessions("read from disk", size, 2*size)
	n.broker.Sessions.EndSession("ended")
	n.heldBySessions("published with the end of its session", 0, 1)
}

func (n *node) connected(id string) bool {
	info, _ := n.broker.Sessions.Info(id)
	return info.Connected
}

// When memory for state is at its bound a CONNECT with a will is refused, and leaves
// nothing behind. One whose will takes no more than the session's old one is accepted.
func TestWillsAreRefusedAtTheBoundOfMemory(t *testing.T) {
	t.Parallel()
	const limit, size, little = 1 << 20, 60_000, 1000
	n := runWith(t, vfs.NewMem(), Limits{}, memory.NewPool(limit))
	will := func(size int) mqtttest.Option {
		return mqtttest.Will(publication{Topic: "will", Payload: strings.Repeat("x", size)}, 1000)
	}
	first := n.connect(mqtttest.Persistent("first"), will(little))
	for i := 0; n.memory.Room(memory.Sessions) > 2*size; i++ {
		n.connect(mqtttest.Persistent(fmt.Sprint("other/", i)), will(size))
	}
	n.connect(mqtttest.Persistent("last"), will(size))

	levels, used := n.broker.Levels(), n.memory.Used()
	forgotten := func(most int64) { // the CONNECTs so far: with their buffers as well memory would be so short that connections end
		t.Helper()
		until(t, "what was sent to be forgotten", func() bool { return n.memory.Used() <= most })
	}
	ack := mqtttest.Refused(t, n.addr, mqtt.QuotaExceeded, mqtttest.Persistent("refused"), will(size))
	if ack.ReasonString == "" {
		t.Error("the CONNACK says no reason")
	}
	forgotten(used)
	mqtttest.Refused(t, n.addr, mqtt.ServerUnavailable, mqtttest.V311(), mqtttest.ClientID("old"), will(size))
	if n.broker.Levels().Sessions != levels.Sessions || n.memory.UsedBy(memory.Sessions) > limit*6/8 {
		t.Errorf("%d sessions with %d bytes after the refusal, want %d", n.broker.Levels().Sessions, n.memory.UsedBy(memory.Sessions), levels.Sessions)
	}

	first.Drop()
	first = n.connect(mqtttest.Persistent("first"), will(little))
	first.Drop()
	until(t, "the client to be away", func() bool { return !n.connected("first") })
	forgotten(used)
	mqtttest.Refused(t, n.addr, mqtt.QuotaExceeded, mqtttest.Persistent("first"), will(65_000))
	if s := n.broker.Sessions.Lookup("first"); s == nil || s.Will == nil || len(s.Will.Message.Payload()) != little {
		t.Error("the refused CONNECT has cost the session its will")
	}
	n.broker.Sessions.EndSession("last")
	forgotten(used - size)
	n.connect(mqtttest.Persistent("refused"), will(size))
}

// Identifiers of QoS 2 publishes that wait for their PUBREL are charged, whatever the
// version; at the bound the publish is refused.
func TestHandshakesOfQoS2AreCharged(t *testing.T) {
	t.Parallel()
	const limit = 80 << 10
	n := runWith(t, vfs.NewMem(), Limits{}, memory.NewPool(limit))
	c := n.connect(mqtttest.ClientID("c"))
	publish := func(id uint16) mqtt.ReasonCode {
		c.SendPublish(publication{Topic: "t", QoS: 2, PacketID: id})
		return c.AwaitAck(mqtt.PUBREC, id).Ack.Code
	}
	id := uint16(1)
	for ; !publish(id).Failed(); id++ {
		if used := n.memory.UsedBy(memory.Sessions); used > limit*6/8 {
			t.Fatalf("%d handshakes take %d bytes", id, used)
		}
	}
	if id < 1000 || publish(id) != mqtt.QuotaExceeded {
		t.Errorf("handshake %d was refused with %v", id, publish(id))
	}
	if publish(1).Failed() { // it has its place
		t.Error("a publish that was sent again is refused")
	}
	c.Release(1)
	if code := publish(id); code.Failed() {
		t.Errorf("after a PUBREL: %v", code)
	}
	c.Disconnect()
	n.heldBySessions("the session ended", 0, 1)

	old := n.connect(mqtttest.V311(), mqtttest.ClientID("old"))
	for id := range uint16(5000) {
		if old.WriteErr(mqtttest.EncodePublish(mqtt.V311, publication{Topic: "t", QoS: 2, PacketID: id + 1})) != nil {
			break
		}
	}
	old.AwaitEnd()
	n.heldBySessions("the session of a client before version 5 ended", 0, 1)
}
