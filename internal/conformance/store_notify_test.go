package conformance

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

func TestStoreNotifications(t *testing.T) {
	t.Parallel()
	n := start(t)
	const id, key = "wätcher", "key/\x00\xFF"
	watcher := n.requester(mqtttest.ClientID(id))
	writer := n.requester()

	// Without any subscription of its own (the Go SDK makes none).
	watcher.want(ok, "KEYNOTIFY", key)
	var last hlc.Timestamp
	rises := func(m message) {
		t.Helper()
		if v := version(t, m); v.Compare(last) <= 0 {
			t.Errorf("got version %v after %v, want only ever later ones", v, last)
		} else {
			last = v
		}
	}
	set := version(t, writer.want(ok, "SET", key, "1"))
	got := notified(t, watcher.client, id, key, setNotice("1"))
	rises(got)
	if last != set {
		t.Errorf("got version %v, want that of the SET, %v", last, set)
	}
	writer.want(ok, "SET", key, "1") // an equal value notifies, too
	rises(notified(t, watcher.client, id, key, setNotice("1")))
	writer.want(notApplied, "SET", key, "2", "NX") // what isn't applied doesn't
	writer.want(notApplied, "VDEL", key, "2")
	writer.want(blob("1"), "GET", key)
	writer.want(ok, "SET", "other", "2")
	writer.want(":1\r\n", "VDEL", key, "1")
	rises(notified(t, watcher.client, id, key, deleteNotice))
	writer.want(":0\r\n", "DEL", key)
	writer.want(ok, "SET", key, "")
	rises(notified(t, watcher.client, id, key, setNotice("")))
	writer.want(":1\r\n", "DEL", key)
	rises(notified(t, watcher.client, id, key, deleteNotice))
	watcher.Quiet()
	writer.Quiet()
}

func TestStoreNotificationsAreOnePerChange(t *testing.T) {
	t.Parallel()
	n := start(t)
	watcher, writer := n.requester(mqtttest.ClientID("twice")), n.requester()
	watcher.want(ok, "KEYNOTIFY", "k")
	watcher.want(ok, "KEYNOTIFY", "k", "GET")
	writer.want(ok, "SET", "k", "v")
	notified(t, watcher.client, "twice", "k", setNotice("v"))
	watcher.Quiet()

	// One STOP ends it, however often it was registered.
	watcher.want(ok, "KEYNOTIFY", "k", "STOP")
	watcher.want(":0\r\n", "KEYNOTIFY", "k", "STOP")
	writer.want(ok, "SET", "k", "w")
	watcher.Quiet()
}

// On one connection the notification of a change comes before the reply to it, STOP's
// reply comes after every notification, and no notification follows it.
func TestStoreNotificationOrder(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester(mqtttest.ClientID("order"))
	const count = 50
	var packets []byte
	send := func(args ...string) {
		m := r.request(command(args...))
		m.PacketID, m.CorrelationData = uint16(r.sent), new(args[0])
		packets = append(packets, mqtttest.EncodePublish(mqtt.V5, m)...)
	}
	send("KEYNOTIFY", "k")
	for i := range count {
		send("SET", "k", fmt.Sprint(i))
	}
	send("DEL", "k")
	send("KEYNOTIFY", "k", "STOP")
	send("SET", "k", "after")
	r.Write(packets)

	var got []string
	for len(got) < 2*count+5 {
		p := r.Next()
		switch {
		case p.Type == mqtt.PUBACK:
		case p.Publish.CorrelationData != nil:
			got = append(got, *p.Publish.CorrelationData+" "+p.Publish.Payload)
		default:
			got = append(got, p.Publish.Payload)
		}
	}
	want := []string{"KEYNOTIFY " + ok}
	for i := range count {
		want = append(want, setNotice(fmt.Sprint(i)), "SET "+ok)
	}
	want = append(want, deleteNotice, "DEL :1\r\n", "KEYNOTIFY "+ok, "SET "+ok)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("packet %d: got %q, want %q", i, got[i], want[i])
		}
	}
	r.Quiet()
}

func TestStoreNotificationsOfManyWriters(t *testing.T) {
	t.Parallel()
	n := start(t)
	const count, writers = 100, 3
	watchers := []*requester{n.requester(mqtttest.ClientID("w0")), n.requester(mqtttest.ClientID("w1"))}
	for _, w := range watchers {
		w.want(ok, "KEYNOTIFY", "k")
	}
	var all []*requester
	for i := range writers {
		r := n.requester()
		for j := range count {
			r.SendPublish(r.request(command("SET", "k", fmt.Sprint(i, " ", j))))
		}
		all = append(all, r)
	}
	// Every watcher sees every change, in the order of the versions.
	var orders [2][]string
	for i, w := range watchers {
		var last hlc.Timestamp
		for range count * writers {
			m := w.Receive()
			v := version(t, m)
			if v.Compare(last) <= 0 {
				t.Fatalf("got version %v after %v", v, last)
			}
			last = v
			orders[i] = append(orders[i], m.Payload)
		}
		w.Quiet()
	}
	for i := range orders[0] {
		if orders[0][i] != orders[1][i] {
			t.Fatalf("the watchers disagree on change %d: %q and %q", i, orders[0][i], orders[1][i])
		}
	}
	for _, r := range all {
		for range 2 * count {
			r.Next()
		}
		r.Quiet()
	}
}

func TestStoreRegistrationEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	n := start(t)
	writer := n.requester()
	for name, end := range map[string]func(c *client) *client{
		"disconnect": func(c *client) *client {
			c.Disconnect()
			return n.connect(mqtttest.Persistent("watcher"))
		},
		"takeover": func(c *client) *client {
			successor := n.connect(mqtttest.Persistent("watcher"))
			c.ExpectDisconnect(mqtt.SessionTakenOver)
			return successor
		},
	} {
		r := n.requester(mqtttest.Persistent("watcher"))
		r.want(ok, "KEYNOTIFY", name)
		r.Ping() // the answer's acknowledgement has arrived
		successor := end(r.client)
		wantPresent(t, successor, true)
		writer.want(ok, "SET", name, "v")
		successor.Quiet()
		// And it can be made again.
		r = requests(t, successor)
		r.want(":0\r\n", "KEYNOTIFY", name, "STOP")
		r.want(ok, "KEYNOTIFY", name)
		writer.want(ok, "SET", name, "w")
		notified(t, successor, "watcher", name, setNotice("w"))
		successor.Disconnect()
	}
}

func TestStoreUnacknowledgedNotificationIsSentAgain(t *testing.T) {
	t.Parallel()
	n := start(t)
	writer := n.requester()
	watcher := n.connect(mqtttest.Persistent("watcher"), mqtttest.HoldAcks())
	r := requests(t, watcher)
	id := r.SendPublish(r.request(command("KEYNOTIFY", "k")))
	r.AwaitAck(mqtt.PUBACK, id)
	r.Acknowledge(r.Receive())
	writer.want(ok, "SET", "k", "v")
	first := notified(t, watcher, "watcher", "k", setNotice("v"))
	watcher.Drop()

	watcher = n.connect(mqtttest.Persistent("watcher"), mqtttest.HoldAcks())
	again := notified(t, watcher, "watcher", "k", setNotice("v"))
	if !again.Dup || again.PacketID != first.PacketID {
		t.Errorf("got %v, want DUP and identifier %d", again, first.PacketID)
	}
	wantContent(t, again, first)
	watcher.Acknowledge(again)
	watcher.Quiet()
}

func TestStoreNotificationsWithoutASubscription(t *testing.T) {
	t.Parallel()
	n := start(t)
	// A client that listens nowhere still hears of the key.
	c := n.connect(mqtttest.ClientID("deaf"))
	m := message{
		Topic: invokeTopic, QoS: 1, Payload: command("KEYNOTIFY", "k"),
		ResponseTopic: new("nowhere"), CorrelationData: new("x"),
	}
	wantCode(t, "PUBACK", c.Offer(m).Code, mqtt.Success)
	n.requester().want(ok, "SET", "k", "v")
	notified(t, c, "deaf", "k", setNotice("v"))
}

// While a client leaves no room for notifications (Receive Maximum), a response at QoS 0
// does not wait behind them; one at QoS 1 does.
func TestStoreResponsesAtQoS0DoNotWaitForNotifications(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester(mqtttest.ClientID("qos0"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	r.SubscribeWith(0, sub{Filter: r.responses, QoS: 0})
	r.want(ok, "KEYNOTIFY", "k")
	r.want(ok, "SET", "k", "1")
	r.want(ok, "SET", "k", "2")
	first := notified(t, r.client, "qos0", "k", setNotice("1"))
	r.Quiet() // the other notification waits for the acknowledgement of the first
	r.Acknowledge(first)
	r.Acknowledge(notified(t, r.client, "qos0", "k", setNotice("2")))

	r.SubscribeWith(0, sub{Filter: r.responses, QoS: 1})
	id := r.SendPublish(r.request(command("SET", "k", "3")))
	r.AwaitAck(mqtt.PUBACK, id)
	third := notified(t, r.client, "qos0", "k", setNotice("3"))
	r.Quiet()
	r.Acknowledge(third)
	r.Receive()
}

// A notification that still waited for room in the client's Receive Maximum when the
// connection ended is kept like one that was sent.
func TestStoreUnsentNotificationIsKept(t *testing.T) {
	t.Parallel()
	n := start(t)
	writer := n.requester()
	watcher := n.connect(mqtttest.Persistent("watcher"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	r := requests(t, watcher)
	id := r.SendPublish(r.request(command("KEYNOTIFY", "k")))
	r.AwaitAck(mqtt.PUBACK, id)
	r.Acknowledge(r.Receive())
	writer.want(ok, "SET", "k", "1")
	writer.want(ok, "SET", "k", "2")
	notified(t, watcher, "watcher", "k", setNotice("1"))
	watcher.Quiet()
	watcher.Drop()

	watcher = n.connect(mqtttest.Persistent("watcher"))
	if again := notified(t, watcher, "watcher", "k", setNotice("1")); !again.Dup {
		t.Errorf("got %v, want DUP", again)
	}
	if second := notified(t, watcher, "watcher", "k", setNotice("2")); second.Dup {
		t.Errorf("got %v, want it without DUP: it was not sent before", second)
	}
	watcher.Quiet()
}
