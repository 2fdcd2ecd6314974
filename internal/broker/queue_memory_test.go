package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// What waits for sessions whose clients are away is on disk, and hardly any of it in
// memory, whatever the messages' size; what is in memory is charged.
func TestQueuesOfClientsThatAreAwayTakeLittleMemory(t *testing.T) {
	t.Parallel()
	const sessions, each, size = 8, 40, 64 << 10
	n := run(t, vfs.NewMem(), Limits{})
	for i := range sessions {
		c := n.connect(mqtttest.Persistent(fmt.Sprint("c", i)))
		c.Subscribe(fmt.Sprint("news/", i), 1)
		c.Disconnect()
	}
	publisher := n.connect()
	for i := range sessions {
		for range each {
			publisher.Publish(publication{Topic: fmt.Sprint("news/", i), Payload: strings.Repeat("x", size), QoS: 1})
		}
	}
	// Each may have one that was not on disk yet when the last came.
	if used, most := n.memory.UsedBy(memory.Queues), int64(sessions*3*(size+1000)); used > most {
		t.Errorf("%d messages of %d bytes in %d queues take %d bytes of memory, want at most %d", each, size, sessions, used, most)
	}
	if stored := n.broker.StoredBytes(); stored < sessions*each*size {
		t.Errorf("%d bytes count as stored", stored)
	}
	for i := range sessions {
		n.connect(mqtttest.Persistent(fmt.Sprint("c", i)), mqtttest.ReceiveMaximum(5)).ReceiveN(each)
	}
	until(t, "everything to be credited", func() bool { return n.memory.UsedBy(memory.Queues) == 0 })
}

// A session that ends with its connection has its queue in memory only: it is
// charged, and bounded in bytes, small as the messages may be.
func TestQueueInMemoryIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const bound = 100 << 10
	n := run(t, vfs.NewMem(), Limits{MaxQueuedMemory: bound})
	c := n.connect(mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
	c.Subscribe("news", 1)
	publisher := n.connect()
	for range bound/(queue.SlotOverhead+4) - 10 {
		publisher.Publish(publication{Topic: "news", QoS: 1})
	}
	if used := n.memory.UsedBy(memory.Queues); used < bound/10*9 || used > bound {
		t.Errorf("%d bytes are charged, the bound is %d", used, bound)
	}
	for range 20 {
		publisher.Publish(publication{Topic: "news", QoS: 1})
	}
	c.Receive()
	c.AwaitDisconnect(mqtt.QuotaExceeded)
	until(t, "everything to be credited", func() bool { return n.memory.UsedBy(memory.Queues) == 0 })
}

// When memory gets tight, queues on disk keep in memory hardly more than the next
// message, also those of connected clients, and everything still comes in order.
func TestTightMemoryEmptiesWindows(t *testing.T) {
	t.Parallel()
	const count, size = 100, 2000
	pool := memory.NewPool(64 << 20)
	n := runWith(t, vfs.NewMem(), Limits{}, pool)
	c := n.connect(mqtttest.Persistent("c"), mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
	c.Subscribe("news", 1)
	publisher := n.connect()
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			publisher.Publish(publication{Topic: "news", Payload: fmt.Sprint(i, strings.Repeat("x", size)), QoS: 1})
		}
	}
	publish(0, count)
	if used := pool.UsedBy(memory.Queues); used < count*size {
		t.Errorf("%d bytes of the window are charged, want all of %d", used, count*size)
	}
	other := pool.Limit() / 8 * 3
	pool.Charge(memory.Input, other)
	publish(count, count+5)
	if used := pool.UsedBy(memory.Queues); used > 10*size {
		t.Errorf("%d bytes are charged while memory is tight", used)
	}
	pool.Credit(memory.Input, other)
	for i := range count + 5 {
		m := c.Receive()
		if !strings.HasPrefix(m.Payload, fmt.Sprint(i, "x")) {
			t.Fatalf("message %d is %v", i, m)
		}
		c.Acknowledge(m)
	}
}

// What a member of a shared subscription is sent is charged until it acknowledges it, and
// credited then: also if the member's session ends with its connection.
func TestSharedMessagesUnderWayAreCharged(t *testing.T) {
	t.Parallel()
	const count, size = 100, 500
	n := run(t, vfs.NewMem(), Limits{})
	c := n.connect(mqtttest.HoldAcks())
	c.Subscribe("$share/group/shared", 1)
	publisher := n.connect()
	for range 3 {
		for range count {
			publisher.Publish(publication{Topic: "shared", Payload: strings.Repeat("x", size), QoS: 1})
		}
		messages := c.ReceiveN(count)
		if used := n.memory.UsedBy(memory.Queues); used < count*size {
			t.Errorf("%d bytes are charged for %d messages that are not acknowledged", used, count)
		}
		for _, m := range messages {
			c.Acknowledge(m)
		}
		until(t, "everything to be credited", func() bool { return n.memory.UsedBy(memory.Queues) == 0 })
	}
	c.Disconnect()
	publisher.Disconnect()
	if used := n.memory.UsedBy(memory.Queues); used != 0 {
		t.Errorf("%d bytes are charged when all have gone", used)
	}
}
