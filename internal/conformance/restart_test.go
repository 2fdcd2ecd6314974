package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestSessionsSurviveARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	kept := n.connect(mqtttest.Persistent("kept"))
	kept.SubscribeWith(7, sub{Filter: "plain/+", QoS: 2, NoLocal: true, RetainAsPublished: true})
	kept.Subscribe("$share/group/shared", 1)
	kept.Subscribe("ended", 1)
	kept.Unsubscribe("ended")
	old := n.connect(mqtttest.Persistent("old"), mqtttest.V311())
	old.Subscribe("plain/a", 1)
	brief := n.connect(mqtttest.ClientID("brief"))
	brief.Subscribe("plain/a", 1)

	n.Restart()

	// Sessions that outlive their connections are there with their subscriptions and all their options.
	kept = n.connect(mqtttest.Persistent("kept"))
	wantPresent(t, kept, true)
	old = n.connect(mqtttest.Persistent("old"), mqtttest.V311())
	wantPresent(t, old, true)
	brief = n.connect(mqtttest.Persistent("brief"))
	wantPresent(t, brief, false)

	publisher := n.connect()
	publisher.Publish(message{Topic: "plain/a", Payload: "1", QoS: 2, Retain: true})
	got := kept.Receive()
	wantContent(t, got, message{Topic: "plain/a", Payload: "1", QoS: 2, Retain: true})
	if len(got.SubscriptionIDs) != 1 || got.SubscriptionIDs[0] != 7 {
		t.Errorf("got identifiers %v, want 7", got.SubscriptionIDs)
	}
	publisher.Publish(message{Topic: "shared", Payload: "2", QoS: 1})
	wantContent(t, kept.Receive(), message{Topic: "shared", Payload: "2", QoS: 1})
	publisher.Publish(message{Topic: "ended", QoS: 1})
	kept.Publish(message{Topic: "plain/a", Payload: "mine", QoS: 1})
	kept.Quiet()
	wantPayloads(t, old.ReceiveN(2), []string{"1", "mine"})
	brief.Quiet()
}

func TestSessionThatEndedDoesNotComeBack(t *testing.T) {
	t.Parallel()
	n := start(t)
	for id, end := range map[string]func(c *client){
		"clean start": func(c *client) {
			c.Disconnect()
			n.connect(mqtttest.ClientID("clean start")).Disconnect()
		},
		"DISCONNECT": func(c *client) {
			c.DisconnectWith(mqtt.Disconnect{HasSessionExpiry: true, SessionExpiry: 0})
		},
	} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe("a", 1)
		end(c)
	}
	n.Restart()
	publisher := n.connect()
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "a", QoS: 1}).Code, mqtt.NoMatchingSubscribers)
	for _, id := range []string{"clean start", "DISCONNECT"} {
		wantPresent(t, n.connect(mqtttest.Persistent(id)), false)
	}
}

func TestQueuesSurviveARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	connect := func() *client { return n.connect(mqtttest.Persistent("queue"), mqtttest.HoldAcks()) }
	c := connect()
	c.Subscribe("queue", 2)
	publisher := n.connect()
	messages := numbered("queue", 1, 20)
	for i := range messages {
		messages[i].QoS = byte(1 + i%2)
		messages[i].User = [][2]string{{"i", fmt.Sprint(i)}}
	}
	publishAll(publisher, messages[:10])
	sent := c.ReceiveN(10)
	c.Acknowledge(sent[0])
	c.Acknowledge(sent[1])
	c.Disconnect()
	publishAll(publisher, messages[10:])

	n.Restart()

	// What was not acknowledged comes in order; what had been sent has its identifier and DUP.
	c = connect()
	wantPresent(t, c, true)
	got := c.ReceiveN(18)
	wantPayloads(t, got, counted(2, 20))
	for i, m := range got {
		wantContent(t, m, messages[i+2])
		if i < 8 && (m.PacketID != sent[i+2].PacketID || !m.Dup) {
			t.Errorf("got %v, want DUP and identifier %d [MQTT-4.4.0-1]", m, sent[i+2].PacketID)
		}
		c.Acknowledge(m)
	}
	c.Quiet()
	c.Disconnect()
	n.Restart()
	connect().Quiet()
}

func TestQoS2SurvivesARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	receiver := n.connect(mqtttest.Persistent("receiver"))
	receiver.Subscribe("once", 2)
	sender := n.connect(mqtttest.Persistent("sender"))
	m := message{Topic: "once", Payload: "x", QoS: 2, PacketID: 9}
	sender.SendPublish(m)
	sender.AwaitAck(mqtt.PUBREC, 9)
	receiver.Receive()

	n.Restart()

	// The sender doesn't know what became of it and sends it again: no subscriber gets it twice.
	receiver = n.connect(mqtttest.Persistent("receiver"))
	sender = n.connect(mqtttest.Persistent("sender"))
	wantPresent(t, sender, true)
	m.Dup = true
	sender.SendPublish(m)
	sender.AwaitAck(mqtt.PUBREC, 9)
	wantCode(t, "PUBCOMP", sender.Release(9).Code, mqtt.Success)
	for _, again := range receiver.Collect() {
		if !again.Dup {
			t.Errorf("got %v, want at most the same delivery again", again)
		}
	}
}

// Of a delivery that the client has received only the release is left.
func TestReleaseSurvivesARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	connect := func() *client { return n.connect(mqtttest.Persistent("release"), mqtttest.HoldAcks()) }
	c := connect()
	c.Subscribe("release", 2)
	n.connect().Publish(message{Topic: "release", QoS: 2})
	m := c.Receive()
	c.SendAck(mqtt.PUBREC, m.PacketID, mqtt.Success)
	c.AwaitAck(mqtt.PUBREL, m.PacketID)
	n.Restart()

	c = connect()
	if p := c.Expect(mqtt.PUBREL); p.Ack.PacketID != m.PacketID {
		t.Errorf("got %v, want PUBREL %d", p, m.PacketID)
	}
	c.SendAck(mqtt.PUBCOMP, m.PacketID, mqtt.Success)
	c.Quiet()
	c.Disconnect()
	n.Restart()
	connect().Quiet()
}

func TestGroupQueueSurvivesARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, id := range []string{"one", "two"} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe("$share/group/away", 1)
		c.Disconnect()
	}
	publishAll(n.connect(), numbered("away", 1, 10))
	n.Restart()
	members := []*client{n.connect(mqtttest.Persistent("one")), n.connect(mqtttest.Persistent("two"))}
	receivedBy(t, members, counted(0, 10))
}

// Time goes by while no server runs.
func TestMessagesExpireAcrossARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.Persistent("expiry"))
	c.Subscribe("queued/#", 1)
	c.Disconnect()
	publisher := n.connect()
	for _, kind := range []string{"queued", "retained"} {
		retain := kind == "retained"
		publisher.Publish(message{Topic: kind + "/short", Payload: "x", QoS: 1, Retain: retain, Expiry: new(uint32(1))})
		publisher.Publish(message{Topic: kind + "/long", Payload: "x", QoS: 1, Retain: retain, Expiry: new(uint32(100))})
	}
	n.Stop()
	letPass(2200 * time.Millisecond)
	n.StartAgain()

	c = n.connect(mqtttest.Persistent("expiry"))
	check := func(topic string) {
		t.Helper()
		if m := c.Receive(); m.Topic != topic || m.Expiry == nil || *m.Expiry > 98 || *m.Expiry < 60 {
			t.Errorf("got %v with expiry %v, want %s with about 98", m, m.Expiry, topic)
		}
		c.Quiet()
	}
	check("queued/long")
	c.Subscribe("retained/#", 1)
	check("retained/long")
}

func TestDelayedWillSurvivesARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := n.connect(mqtttest.Persistent("mourner"))
	m.Subscribe("will/#", 1)
	will := message{Topic: "will/restart", Payload: "x", QoS: 1, User: [][2]string{{"k", "v"}}}
	n.connect(mqtttest.Persistent("gone"), mqtttest.Will(will, 1)).Drop()
	n.Restart()
	m = n.connect(mqtttest.Persistent("mourner"))
	wantContent(t, m.Receive(), will)

	// A client that returns in time has none published, whichever server it returns to.
	n.connect(mqtttest.Persistent("back"), mqtttest.Will(will, 3600)).Drop()
	n.Restart()
	n.connect(mqtttest.Persistent("back")).Disconnect()
	n.connect(mqtttest.ClientID("back")).Ping() // a will that is still there would come now, as the session ends
	n.connect(mqtttest.Persistent("mourner")).Quiet()
}

func TestRetainedMessagesSurviveARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	m := message{Topic: "r/kept", Payload: "x", QoS: 1, Retain: true, User: [][2]string{{"k", "v"}}}
	c.Publish(m)
	c.Publish(message{Topic: "r/deleted", Payload: "x", QoS: 1, Retain: true})
	c.Publish(message{Topic: "r/deleted", QoS: 1, Retain: true})
	n.Restart()
	c = n.connect()
	c.Subscribe("r/#", 1)
	wantContent(t, c.Receive(), m)
	c.Quiet()
}

func TestKeysSurviveARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	ahead := time.Now().Add(30 * time.Second).UnixMilli()
	m := r.request(command("SET", "k", "v"))
	m.User = [][2]string{{"__ts", fmt.Sprintf("%d:7:me", ahead)}, {"__ft", now()}}
	first := version(t, r.ask(m))
	r.want(ok, "SET", "deleted", "v")
	r.want(":1\r\n", "DEL", "deleted")
	r.want(ok, "SET", "short", "v", "PX", "100")
	r.want(ok, "SET", "long", "v", "PX", "100000")
	r.want(ok, "KEYNOTIFY", "k")
	last := version(t, r.want(ok, "SET", "last", "v"))

	n.Stop()
	letPass(150 * time.Millisecond)
	n.StartAgain()

	// Values, versions, fencing tokens and deadlines are what they were; registrations ended.
	r = n.requester()
	if v := version(t, r.want(blob("v"), "GET", "k")); v != first {
		t.Errorf("got version %v, want %v", v, first)
	}
	r.want(failure("a fencing token is required for this request"), "SET", "k", "w")
	r.want(missing, "GET", "deleted")
	r.want(missing, "GET", "short")
	r.want(blob("v"), "GET", "long")
	r.want(":0\r\n", "KEYNOTIFY", "k", "STOP")

	// And versions rise, although the last one was ahead of the clock.
	if v := version(t, r.want(ok, "SET", "k2", "v")); v.Compare(last) <= 0 {
		t.Errorf("got version %v after %v", v, last)
	}
}

// A deletion's version counts, too: what comes after a restart is later.
func TestVersionsRiseAfterADeletionAndARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	watcher := n.requester(mqtttest.ClientID("watcher"))
	m := watcher.request(command("SET", "k", "v"))
	m.User = [][2]string{{"__ts", ahead(30 * time.Second)}}
	watcher.ask(m)
	watcher.want(ok, "KEYNOTIFY", "k")
	watcher.want(":1\r\n", "DEL", "k")
	deletion := version(t, notified(t, watcher.client, "watcher", "k", deleteNotice))

	n.Restart()
	if v := version(t, n.requester().want(ok, "SET", "k", "v")); v.Compare(deletion) <= 0 {
		t.Errorf("got version %v after the deletion's %v", v, deletion)
	}
}

func TestShutdownSaysSo(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, old := n.connect(), n.connect(mqtttest.V311())
	n.Stop()
	c.ExpectDisconnect(mqtt.ServerShuttingDown)
	old.ExpectClosed()
}

func TestDirectoryBelongsToOneServer(t *testing.T) {
	t.Parallel()
	n := start(t)
	if s, err := server.Start(n.Config); err == nil {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Log(err)
		}
		t.Fatal("two servers share a directory")
	}
	n.connect().Ping()
}

// What a member of a shared subscription may have been sent at QoS 2 goes to
// no other member, even if its session ends [MQTT-4.8.2-5]: a restart in between
// doesn't change that.
func TestSharedQoS2IsForOneMemberAcrossARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	chosen := n.connect(mqtttest.Persistent("chosen"), mqtttest.HoldAcks())
	chosen.Subscribe("$share/group/once", 2)
	n.connect().Publish(message{Topic: "once", Payload: "x", QoS: 2})
	chosen.Receive()

	n.Restart()

	other := n.connect(mqtttest.Persistent("other"))
	other.Subscribe("$share/group/once", 2)
	n.connect(mqtttest.ClientID("chosen")) // a clean start: the session ends
	other.Quiet()
}
