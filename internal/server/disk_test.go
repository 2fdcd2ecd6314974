package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
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

// requests are those of one client, each with its reply.
type requests struct {
	*mqtttest.Client
	t    *testing.T
	name string
}

// want sends a request, and checks what it answers. quota is the name of the setting that a quota
// error must give.
func (r *requests) want(reply, quota string, args ...string) {
	r.t.Helper()
	got := answer(r.Client, r.name, args...)
	if named, _ := got.UserProp(protocol.QuotaProperty); !strings.HasPrefix(got.Payload, reply) || named != quota {
		r.t.Errorf("%q: %q (quota %q), want %q (%q)", args, got.Payload, named, reply, quota)
	}
}

// With the disk nearly full, a transaction that needs room is refused as a whole, with the reason,
// and one that makes room is done. So are LOAD, STORE and DONE. Nothing is lost, and with room again
// all is accepted.
func TestTransactionsWhileTheDiskIsNearlyFull(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	s := startOn(t, disk)
	space := func(free uint64) {
		disk.SetSpace(free, 100<<30)
		s.journal.CheckSpace()
	}
	addr := s.Addrs()[0].String()
	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	away.Subscribe("out/#", 1)
	away.Disconnect()
	away.AwaitEnd()
	r := &requests{mqtttest.Connect(t, addr, mqtttest.Persistent("r"), mqtttest.HoldAcks()), t, "r"}
	r.Subscribe("in", 1)
	r.Subscribe("answers/r", 0)
	publisher := mqtttest.Connect(t, addr)
	publisher.Publish(mqtttest.Message{Topic: "in", Payload: "first", QoS: 1})
	publisher.Publish(mqtttest.Message{Topic: "in", Payload: "second", QoS: 1})
	inputs := r.ReceiveN(2)
	first, second := fmt.Sprint(inputs[0].PacketID), fmt.Sprint(inputs[1].PacketID)
	for _, text := range []string{"SET old x", "SET gone x", "STORE state one m1 -"} {
		r.want("+OK\r\n", "", strings.Fields(text)...)
	}
	const later = " USER holdfast-deliver-after 3600000 USER holdfast-timer-id "
	r.want("*2\r\n:1\r\n", "", strings.Fields("TXN PUBLISH out/later x"+later+"kept PUBLISH out/later x"+later+"cancelled")...)
	state := answer(r.Client, r.name, "GET", "state")
	version, _ := state.UserProp(protocol.TimeProperty)

	const quota, reserve = "the quota has been exceeded\r\n", "disk-reserve"
	whole := "TXN SET old y SET new v PUBLISH out/1 x PUBLISH out/2 x RETAIN PUBLISH out/3 x" + later + "new ONCE done m CANCEL kept SETTLE " + first
	refused := func() {
		t.Helper()
		for text, op := range map[string]int{
			whole: 2,
			"TXN SET old y PUBLISH out/1 x SETTLE " + first: 2,
			"TXN SET old y ONCE done m":                     2,
			"TXN DEL old PUBLISH out/1 x RETAIN QOS 0":      2,
			"TXN DEL old PUBLISH out/1 x" + later + "new":   2,
			"TXN CANCEL kept PUBLISH out/1 x QOS 2":         2,
			"TXN CANCEL kept PUBLISH out/1 x" + later + "x": 2,
		} {
			if s.journal.Scarce() && strings.HasPrefix(text, "TXN SET") {
				op = 1
			}
			r.want(fmt.Sprintf("-ERR operation %d: %s", op, quota), reserve, strings.Fields(text)...)
		}
		r.want("-ERR "+quota, reserve, "SET", "new", "v")
		r.want("-ERR "+quota, reserve, "STORE", "state", "two", "m2", version)
		r.want("-ERR "+quota, reserve, "STORE", "new", "v", "m2", "-")
	}
	unchanged := func() {
		t.Helper()
		r.want("$-1\r\n", "", "GET", "new")
		r.want("*3\r\n:0\r\n", "", "LOAD", "done", "m")
		if list := answer(r.Client, r.name, "TIMERS", "").Payload; strings.Count(list, "*3\r\n") != 1 || !strings.Contains(list, "kept") {
			t.Errorf("timers: %q", list)
		}
	}

	// When the disk is nearly full, nothing of what is refused is done,
	space(200 << 20)
	refused()
	r.want("$1\r\nx\r\n", "", "GET", "old")
	// and what makes room is, or needs none:
	r.want("*3\r\n:1\r\n", "", "TXN", "CANCEL", "cancelled", "DEL", "gone")
	r.want("*2\r\n:1\r\n", "", "TXN", "SET", "old", "z", "PUBLISH", "nowhere", "x", "SETTLE", second)
	unchanged()
	space(100 << 20) // a quarter of the reserve is used
	refused()
	r.want("*3\r\n:1\r\n", "", "LOAD", "state", "m1")
	r.want(":0\r\n", "", "STORE", "state", "one", "m1", "-")
	r.want(":1\r\n", "", "DONE", "state", "m1")
	r.want("$1\r\nz\r\n", "", "GET", "old")
	unchanged()

	// Over a restart nothing of it comes back,
	r.Drop()
	stop(t, s)
	s = startOn(t, disk)
	s.journal.CheckSpace()
	addr = s.Addrs()[0].String()
	r.Client = mqtttest.Connect(t, addr, mqtttest.Persistent("r"), mqtttest.HoldAcks())
	if m := r.Receive(); m.Payload != "first" {
		t.Errorf("the client gets %v, want the message that no transaction has acknowledged", m)
	} else {
		whole = whole[:strings.LastIndex(whole, " ")+1] + fmt.Sprint(m.PacketID)
	}
	r.Quiet()
	refused()
	r.want("$1\r\nz\r\n", "", "GET", "old")
	r.want("*3\r\n:2\r\n", "", "LOAD", "state", "m1")
	unchanged()
	away = mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	away.Quiet()

	// and with room again the whole is done, once.
	space(10 << 30)
	r.want("*3\r\n:1\r\n", "", strings.Fields(whole)...)
	r.want("*2\r\n:0\r\n", "", strings.Fields(whole)...) // done before
	r.want("+OK\r\n", "", "STORE", "state", "two", "m2", version)
	if got := []string{away.Receive().Topic, away.Receive().Topic}; !slices.Equal(got, []string{"out/1", "out/2"}) {
		t.Errorf("the subscriber got %q", got)
	}
	away.Quiet()
	if list := answer(r.Client, r.name, "TIMERS", "").Payload; strings.Count(list, "*3\r\n") != 1 || !strings.Contains(list, "$3\r\nnew\r\n") {
		t.Errorf("timers: %q", list)
	}
	r.Drop()
	r.Client = mqtttest.Connect(t, addr, mqtttest.Persistent("r"))
	r.Quiet()
}

// A timer that is due while the disk is nearly full waits, also over a restart, and is delivered
// once when there is room again.
func TestTimersWhileTheDiskIsNearlyFull(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	reject := func(c *Config) { c.Limits.QueueFull, c.Limits.MaxQueued = limits.Reject, 1 }
	s := startOn(t, disk, reject)
	space := func(free uint64) {
		disk.SetSpace(free, 100<<30)
		s.journal.CheckSpace()
	}
	addr := s.Addrs()[0].String()
	connect := func(name string) *mqtttest.Client { return mqtttest.Connect(t, addr, mqtttest.Persistent(name)) }
	// looked awaits that Serve has looked at a timer that is due once more.
	looked := func() {
		t.Helper()
		before := s.broker.Levels().Timers.LagMs
		for deadline := time.Now().Add(mqtttest.Deadline); s.broker.Levels().Timers.LagMs == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no timer is looked at")
			}
		}
	}
	timer := func(payload string) mqtttest.Message {
		return mqtttest.Message{Topic: "out", Payload: payload, QoS: 1, User: [][2]string{{"holdfast-deliver-after", "0"}, {"holdfast-timer-id", payload}}}
	}

	// Given a timer that is due and waits, because a queue is full,
	away := connect("away")
	away.Subscribe("out", 1)
	away.Disconnect()
	away.AwaitEnd()
	r := &requests{connect("r"), t, "r"}
	r.Subscribe("answers/r", 0)
	r.Publish(mqtttest.Message{Topic: "out", Payload: "before", QoS: 1})
	r.Publish(timer("a"))
	// when the disk is nearly full, and then the queue has room,
	space(10 << 20)
	if ack := r.Offer(timer("b")); ack.Code != mqtt.QuotaExceeded || len(ack.ReasonString) == 0 {
		t.Errorf("another timer: 0x%02x %q", byte(ack.Code), ack.ReasonString)
	}
	away = connect("away")
	if m := away.Receive(); m.Payload != "before" {
		t.Errorf("got %v", m)
	}
	// it is not delivered, and neither is it after a restart,
	looked()
	away.Quiet()
	r.want("*1\r\n*1\r\n*3\r\n$1\r\na\r\n", "", "TIMERS", "")
	away.Drop()
	r.Drop()
	stop(t, s)
	s = startOn(t, disk, reject)
	s.journal.CheckSpace()
	addr = s.Addrs()[0].String()
	away, r.Client = connect("away"), connect("r")
	looked()
	away.Quiet()
	r.want("*1\r\n*1\r\n*3\r\n$1\r\na\r\n", "", "TIMERS", "")
	// but when there is room.
	space(10 << 30)
	if m := away.Receive(); m.Payload != "a" {
		t.Errorf("got %v", m)
	}
	r.Publish(timer("b"))
	if m := away.Receive(); m.Payload != "b" {
		t.Errorf("got %v", m)
	}
	away.Quiet()
	r.want("*1\r\n*0\r\n", "", "TIMERS", "")
}
