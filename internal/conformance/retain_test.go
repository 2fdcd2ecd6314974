package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestRetainedMessage(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		topic := "retained/" + versionName(v)
		publisher := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		connect := func() *client { return mqtttest.Connect(t, n.Addr, mqtttest.Version(v)) }
		live := connect()
		live.Subscribe(topic, 2)

		// When messages are retained, a live subscriber gets them as ordinary messages [MQTT-3.3.1-12].
		publisher.Publish(message{Topic: topic, Payload: "old", QoS: 2, Retain: true})
		publisher.Publish(message{Topic: topic, Payload: "new", QoS: 1, Retain: true})
		publisher.Publish(message{Topic: topic, Payload: "not retained", QoS: 1})
		for _, want := range []message{
			{Topic: topic, Payload: "old", QoS: 2}, {Topic: topic, Payload: "new", QoS: 1}, {Topic: topic, Payload: "not retained", QoS: 1},
		} {
			wantContent(t, live.Receive(), want)
		}

		// A new subscriber gets the last one, marked [MQTT-3.3.1-5] [MQTT-3.3.1-8].
		late := connect()
		late.Subscribe(topic, 2)
		wantContent(t, late.Receive(), message{Topic: topic, Payload: "new", QoS: 1, Retain: true})
		late.Quiet()

		// An empty payload ends it and is delivered like any other [MQTT-3.3.1-6] [MQTT-3.3.1-7].
		publisher.Publish(message{Topic: topic, QoS: 1, Retain: true})
		wantContent(t, late.Receive(), message{Topic: topic, QoS: 1})
		later := connect()
		later.Subscribe(topic, 2)
		later.Quiet()
	})
}

func TestRetainedQoSIsTheLower(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	for qos := byte(0); qos <= 2; qos++ {
		c.Publish(message{Topic: fmt.Sprint("r/", qos), Payload: "x", QoS: qos, Retain: true})
	}
	c.Subscribe("r/+", 1)
	got := map[string]byte{}
	for _, m := range c.ReceiveN(3) {
		got[m.Topic] = m.QoS
	}
	if got["r/0"] != 0 || got["r/1"] != 1 || got["r/2"] != 1 {
		t.Errorf("got %v", got)
	}
}

func TestRetainHandling(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.Publish(message{Topic: "handling", Payload: "kept", QoS: 1, Retain: true})
	subscribe := func(handling byte, want int) int {
		c.SubscribeWith(0, sub{Filter: "handling", QoS: 1, RetainHandling: handling})
		return len(collect(c, want))
	}
	for _, step := range []struct {
		what     string
		handling byte
		want     int
	}{
		{"1 and the subscription is new [MQTT-3.3.1-10]", 1, 1},
		{"1 and it is there", 1, 0},
		{"0 and it is there [MQTT-3.3.1-9]", 0, 1},
		{"2 [MQTT-3.3.1-11]", 2, 0},
	} {
		if got := subscribe(step.handling, step.want); got != step.want {
			t.Errorf("Retain Handling %s: got %d messages, want %d", step.what, got, step.want)
		}
	}
	c.Unsubscribe("handling")
	if got := subscribe(2, 0); got != 0 {
		t.Errorf("Retain Handling 2 and the subscription is new: got %d messages", got)
	}
	c.Unsubscribe("handling")
	if got := subscribe(1, 1); got != 1 {
		t.Errorf("Retain Handling 1 after UNSUBSCRIBE: got %d messages, want 1", got)
	}
}

// A session's subscription is there even if its connection is new.
func TestRetainHandlingOnResume(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.connect().Publish(message{Topic: "handling", Payload: "x", QoS: 1, Retain: true})
	c := n.connect(mqtttest.Persistent("handler"))
	c.SubscribeWith(0, sub{Filter: "handling", QoS: 1, RetainHandling: 1})
	c.Receive()
	c.Disconnect()
	c = n.connect(mqtttest.Persistent("handler"))
	c.Quiet()
	c.SubscribeWith(0, sub{Filter: "handling", QoS: 1, RetainHandling: 1})
	c.Quiet()
}

func TestRetainedAgainOnResubscribe311(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.V311())
	c.Publish(message{Topic: "again", Payload: "x", QoS: 1, Retain: true})
	for range 2 { // MQTT 3.1.1 [MQTT-3.8.4-3]
		c.Subscribe("again", 1)
		wantContent(t, c.Receive(), message{Topic: "again", Payload: "x", QoS: 1, Retain: true})
	}
}

func TestRetainAsPublished(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.SubscribeWith(0, sub{Filter: "rap", QoS: 1, RetainAsPublished: true})
	c.Publish(message{Topic: "rap", Payload: "a", QoS: 1, Retain: true})
	c.Publish(message{Topic: "rap", Payload: "b", QoS: 1})
	wantContent(t, c.Receive(), message{Topic: "rap", Payload: "a", QoS: 1, Retain: true}) // [MQTT-3.3.1-13]
	wantContent(t, c.Receive(), message{Topic: "rap", Payload: "b", QoS: 1})
	// What is retained comes with the mark, whatever the option says.
	other := n.connect()
	other.SubscribeWith(0, sub{Filter: "rap", QoS: 1})
	wantContent(t, other.Receive(), message{Topic: "rap", Payload: "a", QoS: 1, Retain: true})
}

func TestRetainedKeepsItsProperties(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := message{
		Topic: "properties", Payload: "x", QoS: 1, Retain: true,
		PayloadFormat: new(byte(1)), ContentType: new("c"), ResponseTopic: new("r"), CorrelationData: new("d"),
		User: [][2]string{{"b", "1"}, {"a", "2"}, {"b", "3"}},
	}
	n.connect().Publish(m)
	c := n.connect()
	c.SubscribeWith(9, sub{Filter: "properties", QoS: 1})
	got := c.Receive()
	wantContent(t, got, m)
	if !slices.Equal(got.SubscriptionIDs, []uint32{9}) {
		t.Errorf("got identifiers %v, want 9", got.SubscriptionIDs)
	}
}

func TestRetainedMessageExpires(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.Publish(message{Topic: "e/short", Payload: "x", QoS: 1, Retain: true, Expiry: new(uint32(1))})
	c.Publish(message{Topic: "e/long", Payload: "x", QoS: 1, Retain: true, Expiry: new(uint32(100))})
	letPass(2100 * time.Millisecond)
	c.Subscribe("e/+", 1)
	got := collect(c, 1)
	if len(got) != 1 || got[0].Topic != "e/long" {
		t.Fatalf("got %v, want e/long", got)
	}
	if e := got[0].Expiry; e == nil || *e > 98 || *e < 60 {
		t.Errorf("got expiry %v, want about 98", e)
	}
}

func TestRetainedByWildcard(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	const count = 500
	for i := range count {
		c.SendPublish(message{Topic: fmt.Sprintf("w/%d/x", i), Payload: "x", Retain: true})
	}
	c.Publish(message{Topic: "$w/hidden", Payload: "x", Retain: true})
	c.Publish(message{Topic: "w/1/other", Payload: "x", Retain: true})

	c.Subscribe("w/+/x", 0)
	topics := map[string]bool{}
	for _, m := range c.ReceiveN(count) {
		topics[m.Topic] = true
	}
	if len(topics) != count {
		t.Errorf("got %d topics, want %d", len(topics), count)
	}
	c.Quiet()

	all := n.connect()
	all.Subscribe("#", 0)
	for _, m := range all.ReceiveN(count + 1) {
		if m.Topic == "$w/hidden" {
			t.Error("# matched a $ topic [MQTT-4.7.2-1]")
		}
	}
	all.Quiet()
}

func TestRetainedIsNotForSharedSubscriptions(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.Publish(message{Topic: "shared", Payload: "x", QoS: 1, Retain: true})
	c.Subscribe("$share/group/shared", 1)
	c.Quiet()
}

// A client that subscribes while a topic is being written never gets a retained
// message after a newer message of that topic.
func TestRetainedNeverFollowsANewerMessage(t *testing.T) {
	t.Parallel()
	n := start(t)
	const count = 400
	publisher := n.connect()
	var subscribers []*client
	for i := range count {
		publisher.SendPublish(message{Topic: "state", Payload: fmt.Sprint(i), QoS: 1, Retain: true})
		if i%40 == 0 {
			c := n.connect(mqtttest.ClientID(fmt.Sprint("late", i)))
			c.SendSubscribe(0, sub{Filter: "state", QoS: 1})
			subscribers = append(subscribers, c)
		}
	}
	for _, c := range subscribers {
		last := -1
		for last != count-1 {
			p := c.Next()
			if p.Type != mqtt.PUBLISH {
				continue
			}
			var i int
			if _, err := fmt.Sscan(p.Publish.Payload, &i); err != nil || i <= last {
				t.Fatalf("got %v after %d", p, last)
			}
			if last >= 0 && i != last+1 {
				t.Fatalf("got %d after %d, want no hole", i, last)
			}
			last = i
		}
	}
}

func TestRetainedBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxRetained = 2 })
	c := n.connect()
	c.Publish(message{Topic: "r/1", QoS: 1, Retain: true, Payload: "1"})
	c.Publish(message{Topic: "r/2", QoS: 1, Retain: true, Payload: "2"})
	ack := c.Offer(message{Topic: "r/3", QoS: 1, Retain: true, Payload: "3"})
	wantCode(t, "PUBACK beyond", ack.Code, mqtt.QuotaExceeded)
	wantSetting(t, "PUBACK beyond", ack.ReasonString, "--max-retained-messages")
	// What is there can be replaced, and what is deleted makes room.
	c.Publish(message{Topic: "r/2", QoS: 1, Retain: true, Payload: "2b"})
	c.Publish(message{Topic: "r/1", QoS: 1, Retain: true})
	c.Publish(message{Topic: "r/3", QoS: 1, Retain: true, Payload: "3"})
}

// A client's own retained messages are its own on a No Local subscription, too
// [MQTT-3.8.3-3], and also after a restart.
func TestNoLocalOfRetained(t *testing.T) {
	t.Parallel()
	n := start(t)
	retained := func(id string) {
		n.connect(mqtttest.ClientID(id)).Publish(message{Topic: "local/" + id, Payload: id, QoS: 1, Retain: true})
	}
	retained("mine")
	retained("other")
	for range 2 {
		c := n.connect(mqtttest.ClientID("mine"))
		c.SubscribeWith(0, sub{Filter: "local/#", QoS: 1, NoLocal: true})
		wantPayloads(t, collect(c, 1), []string{"other"})
		c.Disconnect()
		n.Restart()
	}
}

// The same filter twice in one SUBSCRIBE is what two SUBSCRIBEs would be
// [MQTT-3.8.4-5]: the second replaces the first, each is answered, and each has what
// is retained sent as its own Retain Handling says.
func TestSameFilterTwiceInOneSubscribe(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher := n.connect()
	publisher.Publish(message{Topic: "twice", Payload: "kept", QoS: 1, Retain: true})
	for _, test := range []struct {
		handling [2]byte
		replays  int
	}{{[2]byte{0, 0}, 2}, {[2]byte{0, 1}, 1}, {[2]byte{1, 1}, 1}, {[2]byte{1, 0}, 2}, {[2]byte{0, 2}, 1}, {[2]byte{2, 0}, 1}, {[2]byte{2, 2}, 0}} {
		for _, opts := range [][]mqtttest.Option{{}, {mqtttest.Persistent(fmt.Sprint("twice", test.handling))}} {
			c := n.connect(opts...)
			ack := c.OfferSubscribe(0, sub{Filter: "twice", QoS: 2, RetainHandling: test.handling[0]}, sub{Filter: "twice", QoS: 1, RetainHandling: test.handling[1]})
			if len(ack.Codes) != 2 || ack.Codes[0] != mqtt.GrantedQoS2 || ack.Codes[1] != mqtt.GrantedQoS1 {
				t.Errorf("SUBACK % x", ack.Codes)
			}
			if got := collect(c, test.replays); len(got) != test.replays {
				t.Errorf("Retain Handling %v: got %d retained messages, want %d", test.handling, len(got), test.replays)
			}
			publisher.Publish(message{Topic: "twice", Payload: "live", QoS: 2})
			if got := collect(c, 1); len(got) != 1 || got[0].QoS != 1 {
				t.Errorf("got %v, want one message at QoS 1", got)
			}
			c.Disconnect()
		}
	}
}
