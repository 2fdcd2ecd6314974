package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// No client sees anything of a transaction before it is durable: no subscriber at any QoS,
// no member of a shared subscription, also not one that gets the messages of another that
// has left, and no client that subscribes meanwhile to a topic whose retained message it
// stores or deletes. Then all see it.
func TestNothingOfATransactionIsSeenBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	addr := startOn(t, disk).Addrs()[0].String()
	connect := func(opts ...mqtttest.Option) *mqtttest.Client { return mqtttest.Connect(t, addr, opts...) }
	r := connect(mqtttest.ClientID("r"))
	r.Subscribe(responseTopic+"/r", 1)
	r.Publish(mqtttest.Message{Topic: "state/deleted", Payload: "old", QoS: 1, Retain: true})
	r.Publish(mqtttest.Message{Topic: "state/replaced", Payload: "old", QoS: 1, Retain: true})

	subscribers := map[string]*mqtttest.Client{}
	for name, sub := range map[string]struct {
		filter string
		qos    byte
		opts   []mqtttest.Option
	}{
		"QoS 0":                {"out", 0, nil},
		"QoS 1":                {"out", 1, nil},
		"QoS 2":                {"out", 2, nil},
		"on disk":              {"out", 1, []mqtttest.Option{mqtttest.Persistent("kept")}},
		"a member":             {"$share/g/out", 1, nil},
		"a member on disk":     {"$share/h/out", 1, []mqtttest.Option{mqtttest.Persistent("member")}},
		"a member at QoS 0":    {"$share/i/out", 0, nil},
		"the one to be heir":   {"$share/leaving/out", 1, []mqtttest.Option{mqtttest.Persistent("heir")}},
		"the one that returns": {"out", 1, []mqtttest.Option{mqtttest.Persistent("returns")}},
	} {
		subscribers[name] = connect(sub.opts...)
		subscribers[name].Subscribe(sub.filter, sub.qos)
	}
	leaving := connect(mqtttest.Persistent("leaving"))
	leaving.Subscribe("$share/leaving/out", 1)
	subscribers["the one that returns"].Disconnect()
	subscribers["the one that returns"].AwaitEnd()

	disk.Hold()
	r.Write(request(nil, "r", 1, stamp(), strings.Fields("TXN PUBLISH out 1 PUBLISH out 2 QOS 2 SET k v PUBLISH state/replaced new RETAIN PUBLISH state/new new RETAIN QOS 0")...))
	r.Write(request(nil, "r", 2, stamp(), "TXN", "PUBLISH", "state/deleted", "", "RETAIN"))
	r.Ping() // both have been handled
	disk.AwaitSync()
	leaving.Disconnect()
	leaving.AwaitEnd()
	later := connect()
	later.SendSubscribe(0, mqtttest.Sub{Filter: "state/#", QoS: 1})
	for name, c := range subscribers {
		if name != "the one that returns" {
			c.Ping()
			if got := c.Collect(); len(got) > 0 {
				t.Errorf("%s: got %v before the transaction is durable", name, got)
			}
		}
	}
	disk.Release(nil)

	for _, id := range []uint16{1, 2} {
		if ack := r.Expect(mqtt.PUBACK).Ack; ack.PacketID != id {
			t.Errorf("PUBACK of request %d, want that of %d", ack.PacketID, id)
		}
		if got := r.Receive(); !strings.HasPrefix(got.Payload, "*2\r\n:1\r\n") {
			t.Errorf("request %d: %q", id, got.Payload)
		}
	}
	subscribers["the one that returns"] = connect(mqtttest.Persistent("returns"), mqtttest.Resume())
	for name, c := range subscribers {
		got := mqtttest.Payloads(c.ReceiveN(2))
		if name == "the one to be heir" { // which got one of the two first
			slices.Sort(got)
		}
		if !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("%s: got %v", name, got)
		}
		c.Quiet()
	}
	later.Expect(mqtt.SUBACK)
	got := map[string]string{}
	for _, m := range later.ReceiveN(2) {
		got[m.Topic] = m.Payload
	}
	if got["state/replaced"] != "new" || got["state/new"] != "new" {
		t.Errorf("the one that subscribed meanwhile got %v", got)
	}
	later.Quiet()
}

// A member that comes before a transaction is durable gets nothing of it from the backlog of
// its group, and a subscriber nothing of what it retains.
func TestWhoComesBeforeATransactionIsDurableWaits(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	addr := startOn(t, disk).Addrs()[0].String()
	r := mqtttest.Connect(t, addr, mqtttest.ClientID("r"))
	r.Subscribe(responseTopic+"/r", 1)
	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	away.Subscribe("$share/g/out", 1)
	away.Disconnect()
	away.AwaitEnd()
	members := make([]*mqtttest.Client, 2) // by the QoS of their subscription
	for i := range members {
		members[i] = mqtttest.Connect(t, addr)
	}

	disk.Hold()
	r.Write(request(nil, "r", 1, stamp(), strings.Fields("TXN PUBLISH out 1 PUBLISH state new RETAIN")...))
	r.Ping()
	disk.AwaitSync()
	for qos, c := range members {
		c.Subscribe("$share/g/out", byte(qos))
		c.Ping()
		if got := c.Collect(); len(got) > 0 {
			t.Errorf("a member at QoS %d got %v before the transaction is durable", qos, got)
		}
	}
	later := mqtttest.Connect(t, addr)
	later.SendSubscribe(0, mqtttest.Sub{Filter: "state", QoS: 1})
	later.Expect(mqtt.SUBACK)
	if p, err := later.Read(time.Now().Add(100 * time.Millisecond)); err == nil { // its reader waits, so no PINGRESP could show that nothing comes
		t.Errorf("a subscriber got %v before the transaction is durable", p)
	}
	disk.Release(nil)

	if m := later.Receive(); m.Payload != "new" {
		t.Errorf("the subscriber got %v", m)
	}
	r.Expect(mqtt.PUBACK)
	if got := r.Receive(); !strings.HasPrefix(got.Payload, "*2\r\n:1\r\n") {
		t.Errorf("the reply is %q", got.Payload)
	}
	for got := 0; got == 0 && !t.Failed(); { // one of the members gets it
		for _, c := range members {
			got += len(c.Collect())
		}
	}
}
