package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// invalidFilters are wrong by MQTT 5, section 4.7.1 and 4.8.2.
var invalidFilters = []string{
	"a/#/b", "#/a", "a#", "a/b#", "##", "+a", "a+", "a/b+", "a/+b/c", "++",
	"$share/", "$share/g", "$share/g/", "$share//a", "$share/g+/a", "$share/#/a", "$share/+/a", "$share/g/a#",
}

func TestInvalidFilters(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, old := n.connect(), n.connect(mqtttest.V311())
	for _, filter := range invalidFilters {
		// A bad filter among good ones does not spoil these [MQTT-3.8.4-5].
		ack := c.OfferSubscribe(0, sub{Filter: "good/1", QoS: 2}, sub{Filter: filter, QoS: 1}, sub{Filter: "good/2", QoS: 1})
		want := []mqtt.ReasonCode{mqtt.GrantedQoS2, mqtt.TopicFilterInvalid, mqtt.GrantedQoS1}
		if !slices.Equal(ack.Codes, want) {
			t.Errorf("%q: got % x, want % x", filter, ack.Codes, want)
		}
		wantReason(t, filter, ack.ReasonString)

		if strings.HasPrefix(filter, "$share") {
			continue // 3.1.1 doesn't know them
		}
		ack = old.OfferSubscribe(0, sub{Filter: "good/1", QoS: 2}, sub{Filter: filter, QoS: 1})
		if want := []mqtt.ReasonCode{mqtt.GrantedQoS2, mqtt.UnspecifiedError}; !slices.Equal(ack.Codes, want) {
			t.Errorf("3.1.1, %q: got % x, want % x", filter, ack.Codes, want)
		}
	}
}

// An empty filter may be taken as a bad filter or as a bad packet [MQTT-4.7.3-1].
func TestEmptyFilter(t *testing.T) {
	t.Parallel()
	c := start(t).connect()
	c.SendSubscribe(0, sub{Filter: ""})
	switch p := c.Next(); p.Type {
	case mqtt.SUBACK:
		wantCode(t, "SUBACK", p.Suback.Codes[0], mqtt.TopicFilterInvalid)
	case mqtt.DISCONNECT:
		if !slices.Contains([]mqtt.ReasonCode{0x81, 0x82, 0x8F}, p.Disconnect.Code) {
			t.Errorf("got %v", p)
		}
	default:
		t.Errorf("got %v", p)
	}
}

func TestGrantedQoSInOrder(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		c := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		ack := c.OfferSubscribe(0, sub{Filter: "a", QoS: 2}, sub{Filter: "b", QoS: 0}, sub{Filter: "c/#", QoS: 1}, sub{Filter: "a", QoS: 1})
		if want := []mqtt.ReasonCode{2, 0, 1, 1}; !slices.Equal(ack.Codes, want) {
			t.Errorf("got % x, want % x [MQTT-3.8.4-6]", ack.Codes, want)
		}
	})
}

func TestTopicFilters(t *testing.T) {
	t.Parallel()
	n := start(t)
	// The examples of MQTT 5, section 4.7, and their edges.
	topics := []string{
		"sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon",
		"sport", "sport/", "sport/tennis", "/finance", "finance", "$demo/monitor/Clients", "$demo", "/", "a//b", "a/b",
	}
	cases := []struct {
		filter string
		want   []string
	}{
		{"sport/tennis/player1/#", []string{"sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"}},
		{"sport/#", []string{"sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon", "sport", "sport/", "sport/tennis"}},
		{"sport/tennis/+", []string{"sport/tennis/player1"}},
		{"sport/+", []string{"sport/", "sport/tennis"}},
		{"sport/+/player1", []string{"sport/tennis/player1"}},
		{"+/tennis/#", []string{"sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon", "sport/tennis"}},
		{"+", []string{"sport", "finance"}},
		{"+/+", []string{"sport/", "sport/tennis", "/finance", "/", "a/b"}},
		{"/+", []string{"/finance", "/"}},
		{"#", without(topics, "$demo/monitor/Clients", "$demo")}, // [MQTT-4.7.2-1]
		{"+/monitor/Clients", nil},
		{"$demo/#", []string{"$demo/monitor/Clients", "$demo"}},
		{"$demo/monitor/+", []string{"$demo/monitor/Clients"}},
		{"$demo/+/Clients", []string{"$demo/monitor/Clients"}},
		{"a/+/b", []string{"a//b"}},
		{"a//b", []string{"a//b"}},
		{"/#", []string{"/finance", "/"}},
		{"finance", []string{"finance"}},
		{"Finance", nil},
	}
	subscribers := make([]*client, len(cases))
	for i, c := range cases {
		subscribers[i] = n.connect()
		subscribers[i].Subscribe(c.filter, 0)
	}
	publisher := n.connect()
	for _, topic := range topics {
		publisher.Publish(message{Topic: topic, QoS: 1})
	}
	for i, c := range cases {
		var got []string
		for _, m := range collect(subscribers[i], len(c.want)) {
			got = append(got, m.Topic)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.filter, got, c.want)
		}
	}
}

func without(all []string, some ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

func TestSubscriptionIdentifiers(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, publisher := n.connect(), n.connect()
	c.SubscribeWith(1, sub{Filter: "id/a", QoS: 0})
	c.SubscribeWith(268435455, sub{Filter: "id/+", QoS: 2}, sub{Filter: "other", QoS: 0})
	c.SubscribeWith(3, sub{Filter: "id/#", QoS: 1})
	c.SubscribeWith(0, sub{Filter: "+/a", QoS: 1})

	publisher.Publish(message{Topic: "id/a", Payload: "x", QoS: 2})

	// One message for all matching subscriptions, or one for each [MQTT-3.3.4-2]: either way each identifier
	// comes once, and the highest QoS is respected.
	var ids []uint32
	var qos byte
	for _, m := range collect(c, 1) {
		wantContent(t, message{Topic: m.Topic, Payload: m.Payload}, message{Topic: "id/a", Payload: "x"})
		ids = append(ids, m.SubscriptionIDs...)
		qos = max(qos, m.QoS)
	}
	slices.Sort(ids)
	if want := []uint32{1, 3, 268435455}; !slices.Equal(ids, want) || qos != 2 {
		t.Errorf("got identifiers %v at QoS %d, want %v at 2", ids, qos, want)
	}

	// A subscription made again without an identifier has none.
	c.SubscribeWith(0, sub{Filter: "other", QoS: 0})
	publisher.Publish(message{Topic: "other", QoS: 0})
	if got := c.Receive(); len(got.SubscriptionIDs) != 0 {
		t.Errorf("got identifiers %v, want none", got.SubscriptionIDs)
	}
}

func TestOverlappingSubscriptions311(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.V311())
	c.Subscribe("over/#", 1)
	c.Subscribe("over/a", 2)
	n.connect().Publish(message{Topic: "over/a", QoS: 2})
	var qos byte
	for _, m := range collect(c, 1) {
		qos = max(qos, m.QoS)
	}
	if qos != 2 { // [MQTT-3.3.5-1]
		t.Errorf("got QoS %d, want the highest of all matching subscriptions", qos)
	}
}

func TestSubscribeReplaces(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, publisher := n.connect(), n.connect()
	c.SubscribeWith(7, sub{Filter: "replace", QoS: 2, NoLocal: true})

	// When the same filter is subscribed to with other options [MQTT-3.8.4-3].
	c.SubscribeWith(8, sub{Filter: "replace", QoS: 1})

	publisher.Publish(message{Topic: "replace", Payload: "theirs", QoS: 2})
	c.Publish(message{Topic: "replace", Payload: "mine", QoS: 2})
	for _, want := range []string{"theirs", "mine"} {
		got := c.Receive()
		if got.Payload != want || got.QoS != 1 || !slices.Equal(got.SubscriptionIDs, []uint32{8}) {
			t.Errorf("got %v with identifiers %v, want %q at QoS 1 with 8", got, got.SubscriptionIDs, want)
		}
	}
	c.Quiet()

	// One UNSUBSCRIBE ends it.
	wantCode(t, "UNSUBACK", c.Unsubscribe("replace").Codes[0], mqtt.Success)
	publisher.Publish(message{Topic: "replace", QoS: 1})
	c.Quiet()
}

func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, publisher := n.connect(), n.connect()
	c.Subscribe("u/#", 1)
	c.Subscribe("u/+", 1)
	c.Subscribe("$share/g/u/a", 1)
	// Filters are compared as text [MQTT-3.10.4-1].
	ack := c.Unsubscribe("u/#", "u/a", "u/+", "u/#", "$share/h/u/a", "$share/g/u/a")
	want := []mqtt.ReasonCode{0x00, 0x11, 0x00, 0x11, 0x11, 0x00}
	if !slices.Equal(ack.Codes, want) {
		t.Errorf("got % x, want % x", ack.Codes, want)
	}
	publisher.Publish(message{Topic: "u/a", QoS: 1})
	c.Quiet()

	old := n.connect(mqtttest.V311())
	old.Subscribe("u/a", 1)
	old.Unsubscribe("u/a", "never")
	publisher.Publish(message{Topic: "u/a", QoS: 1})
	old.Quiet()
}

func TestUnsubscribeLetsDeliveriesUnderWayComplete(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.HoldAcks())
	c.Subscribe("complete", 2)
	n.connect().Publish(message{Topic: "complete", QoS: 2})
	m := c.Receive()
	c.Unsubscribe("complete")
	c.Acknowledge(m) // PUBREL still comes [MQTT-3.10.4-3]
	c.Quiet()
}

func TestNoLocal(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, other := n.connect(mqtttest.Persistent("local")), n.connect()
	c.SubscribeWith(0, sub{Filter: "nolocal", QoS: 1, NoLocal: true}, sub{Filter: "local", QoS: 1})

	c.Publish(message{Topic: "nolocal", Payload: "mine", QoS: 1}) // [MQTT-3.8.3-3]
	c.Publish(message{Topic: "local", Payload: "mine", QoS: 1})
	other.Publish(message{Topic: "nolocal", Payload: "theirs", QoS: 1})
	got := c.ReceiveN(2)
	if got[0].Topic != "local" || got[1].Payload != "theirs" {
		t.Errorf("got %v, want local, then theirs", got)
	}
	c.Quiet()

	// The same client identifier on its next connection is the same client.
	c.Disconnect()
	c = n.connect(mqtttest.Persistent("local"))
	c.Publish(message{Topic: "nolocal", Payload: "mine", QoS: 1})
	c.Quiet()
}

func TestSubscriptionsBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxSubscriptions = 2 })
	c := n.connect()
	c.Subscribe("one", 0)
	c.Subscribe("two", 0)
	ack := c.OfferSubscribe(0, sub{Filter: "three"})
	wantCode(t, "SUBACK beyond", ack.Codes[0], mqtt.QuotaExceeded)
	wantSetting(t, "SUBACK beyond", ack.ReasonString, "--max-subscriptions")
	// A subscription that is there can be made again.
	c.Subscribe("two", 1)
	c.Unsubscribe("one")
	c.Subscribe("three", 0)

	old := n.connect(mqtttest.V311())
	ack = old.OfferSubscribe(0, sub{Filter: "one"}, sub{Filter: "two"}, sub{Filter: "three"})
	wantCode(t, "3.1.1 SUBACK beyond", ack.Codes[2], mqtt.UnspecifiedError)
}

// receivedBy collects what each member got and checks that together they got
// each of the payloads once.
func receivedBy(t *testing.T, members []*client, want []string) (counts []int) {
	t.Helper()
	counts = make([]int, len(members))
	var all []message
	gather := func() {
		for i, m := range members {
			got := m.Collect()
			counts[i] += len(got)
			all = append(all, got...)
		}
	}
	for began := time.Now(); len(all) < len(want) && time.Since(began) < mqtttest.Deadline; {
		gather()
	}
	gather() // what is too much
	wantEachOnce(t, all, want)
	return counts
}

// wantEachOnce checks that the payloads came once each, in any order.
func wantEachOnce(t *testing.T, got []message, want []string) {
	t.Helper()
	payloads := slices.Sorted(slices.Values(mqtttest.Payloads(got)))
	if want := slices.Sorted(slices.Values(want)); !slices.Equal(payloads, want) {
		t.Fatalf("got %d messages %q, want each of %d once", len(payloads), payloads, len(want))
	}
}

func TestSharedSubscriptionIsBalanced(t *testing.T) {
	t.Parallel()
	n := start(t)
	const count = 300
	var members, others []*client
	for range 3 {
		member := n.connect()
		member.Subscribe("$share/group/shared/+", 1)
		members = append(members, member)
	}
	for range 2 {
		other := n.connect()
		other.Subscribe("$share/other/shared/a", 1)
		others = append(others, other)
	}
	alone := n.connect()
	alone.Subscribe("shared/a", 1)

	publishAll(n.connect(), numbered("shared/a", 1, count))

	for i, got := range receivedBy(t, members, counted(0, count)) {
		if got < count/6 {
			t.Errorf("member %d got %d of %d messages", i, got, count)
		}
	}
	receivedBy(t, others, counted(0, count))
	receivedBy(t, []*client{alone}, counted(0, count))
}

func TestSharedSubscriptionAfterAMemberLeaves(t *testing.T) {
	t.Parallel()
	n := start(t)
	const count = 40
	staying, leaving, publisher := n.connect(), n.connect(mqtttest.HoldAcks()), n.connect()
	staying.Subscribe("$share/group/leave", 1)
	leaving.Subscribe("$share/group/leave", 1)
	publishAll(publisher, numbered("leave", 1, count))

	// When a member ends its session without having acknowledged its part.
	leaving.Receive()
	leaving.Disconnect()

	// Then the others get that part, too (MQTT 5, section 4.8.2), and all that follows.
	publishAll(publisher, numbered("leave", 1, count+5)[count:])
	got := staying.ReceiveN(count + 5)
	wantEachOnce(t, got, counted(0, count+5))
	staying.Quiet()
}

func TestSharedSubscriptionAfterUnsubscribe(t *testing.T) {
	t.Parallel()
	n := start(t)
	staying, leaving, publisher := n.connect(), n.connect(), n.connect()
	staying.Subscribe("$share/group/leave", 1)
	leaving.Subscribe("$share/group/leave", 1)
	wantCode(t, "UNSUBACK", leaving.Unsubscribe("$share/group/leave").Codes[0], mqtt.Success)
	publishAll(publisher, numbered("leave", 1, 10))
	wantPayloads(t, staying.ReceiveN(10), counted(0, 10))
	leaving.Quiet()
}

func TestSharedSubscriptionPrefersMembersOnline(t *testing.T) {
	t.Parallel()
	n := start(t)
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("$share/group/online", 1)
	here := n.connect()
	here.Subscribe("$share/group/online", 1)
	away.Disconnect()
	publishAll(n.connect(), numbered("online", 1, 20))
	wantPayloads(t, here.ReceiveN(20), counted(0, 20))
	if got := n.connect(mqtttest.Persistent("away")).Collect(); len(got) != 0 {
		t.Errorf("the member that was away got %d messages", len(got))
	}
}

func TestSharedSubscriptionWithAllMembersAway(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, id := range []string{"one", "two"} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe("$share/group/away", 1)
		c.Disconnect()
	}
	publisher := n.connect()
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "away", Payload: "0", QoS: 1}).Code, mqtt.Success)
	publishAll(publisher, numbered("away", 1, 10)[1:])

	// Then the messages wait for the group: each comes once, to a member that returns.
	one := n.connect(mqtttest.Persistent("one"))
	two := n.connect(mqtttest.Persistent("two"))
	receivedBy(t, []*client{one, two}, counted(0, 10))
}

func TestSharedSubscriptionRespectsARefusal(t *testing.T) {
	t.Parallel()
	n := start(t)
	refusing, other := n.connect(mqtttest.HoldAcks()), n.connect()
	refusing.Subscribe("$share/group/refuse", 1)
	other.Subscribe("$share/group/refuse", 1)
	publishAll(n.connect(), numbered("refuse", 1, 10))

	// When a member refuses its part, that part goes to no other member [MQTT-4.8.2-6].
	refused := append([]message{refusing.Receive()}, refusing.Collect()...)
	for _, m := range refused {
		refusing.SendAck(mqtt.PUBACK, m.PacketID, mqtt.UnspecifiedError)
	}
	refusing.Disconnect()
	if got := collect(other, 10-len(refused)); len(got)+len(refused) != 10 {
		t.Errorf("got %d messages, want the %d that were not refused", len(got), 10-len(refused))
	}
}

func TestSharedSubscriptionQoSPerMember(t *testing.T) {
	t.Parallel()
	n := start(t)
	var members []*client
	for qos := byte(0); qos <= 2; qos++ {
		c := n.connect()
		c.Subscribe("$share/group/qos", qos)
		members = append(members, c)
	}
	publishAll(n.connect(), numbered("qos", 2, 30))
	for qos, c := range members {
		got := append([]message{c.Receive()}, c.Collect()...)
		for _, m := range got {
			if m.QoS != byte(qos) {
				t.Errorf("got %v, want QoS %d", m, qos)
			}
		}
	}
}

func TestManySubscriptionsInOnePacket(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	var subs []sub
	for i := range 1000 {
		subs = append(subs, sub{Filter: fmt.Sprint("many/", i), QoS: byte(i % 3)})
	}
	c.SubscribeWith(5, subs...)
	n.connect().Publish(message{Topic: "many/999", QoS: 1})
	if got := c.Receive(); got.Topic != "many/999" || got.QoS != 0 {
		t.Errorf("got %v", got)
	}
	var filters []string
	for _, s := range subs {
		filters = append(filters, s.Filter)
	}
	for i, code := range c.Unsubscribe(filters...).Codes {
		wantCode(t, filters[i], code, mqtt.Success)
	}
}
