package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// When all queues together are near their bound, publishes are refused that would go
// to the session which holds most. Nothing that was acknowledged is lost, and the
// session that holds less still gets messages.
func TestTotalQueueBound(t *testing.T) {
	t.Parallel()
	for name, bound := range map[string]func(*server.Config){
		"messages": func(c *server.Config) { c.Limits.MaxTotalQueued = 20 },
		"bytes": func(c *server.Config) {
			c.Limits.MaxTotalQueuedBytes = 20 * int64(len("light")+1000+64)
			c.Limits.MaxQueuedBytes = c.Limits.MaxTotalQueuedBytes
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, bound)
			for _, topic := range []string{"light", "heavy"} {
				c := n.connect(mqtttest.Persistent(topic))
				c.Subscribe(topic, 1)
				c.Disconnect()
			}
			publisher := n.connect()
			publish := func(topic string, want mqtt.ReasonCode) {
				t.Helper()
				ack := publisher.Offer(message{Topic: topic, Payload: strings.Repeat("x", 1000), QoS: 1})
				wantCode(t, "PUBACK of "+topic, ack.Code, want)
				if want != mqtt.Success {
					wantSetting(t, "PUBACK", ack.ReasonString, "--max-total-queued-bytes")
				}
			}
			for range 4 {
				publish("light", mqtt.Success)
			}
			for range 14 {
				publish("heavy", mqtt.Success)
			}
			for range 10 {
				publish("heavy", mqtt.QuotaExceeded)
			}
			publish("light", mqtt.Success)
			for topic, count := range map[string]int{"light": 5, "heavy": 14} {
				c := n.connect(mqtttest.Persistent(topic))
				wantPresent(t, c, true)
				c.ReceiveN(count)
				c.Ping()
			}
			publish("heavy", mqtt.Success)
		})
	}
}

// What waits for all members of a shared subscription counts, too.
func TestTotalQueueBoundOfSharedSubscriptions(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTotalQueued = 20 })
	for id, filter := range map[string]string{"light": "light", "member": "$share/group/heavy"} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe(filter, 1)
		c.Disconnect()
	}
	publisher := n.connect()
	publishAll(publisher, numbered("light", 1, 4))
	publishAll(publisher, numbered("heavy", 1, 14))
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "heavy", QoS: 1}).Code, mqtt.QuotaExceeded)
	publisher.Publish(message{Topic: "light", Payload: "4", QoS: 1})
	wantPayloads(t, n.connect(mqtttest.Persistent("light")).ReceiveN(5), counted(0, 5))
	member := n.connect(mqtttest.Persistent("member"))
	wantPresent(t, member, true)
	wantPayloads(t, member.ReceiveN(14), counted(0, 14))
}

// A client that fills the bound of all queues with many sessions costs another one
// that holds less nothing.
func TestManySessionsThatFillTheBoundCostOthersNothing(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTotalQueued = 1000 })
	subscribe := func(id, topic string) {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe(topic, 1)
		c.Disconnect()
	}
	subscribe("honest", "honest")
	publisher := n.connect()
	publishAll(publisher, numbered("honest", 1, 15))
	for i := range 50 {
		subscribe(fmt.Sprint("greedy", i), "greedy")
	}
	refused := false
	for range 100 {
		refused = refused || publisher.Offer(message{Topic: "greedy", QoS: 1}).Code == mqtt.QuotaExceeded
	}
	if !refused {
		t.Error("no publish was refused")
	}
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "honest", Payload: "15", QoS: 1}).Code, mqtt.Success)
	honest := n.connect(mqtttest.Persistent("honest"))
	wantPresent(t, honest, true)
	wantPayloads(t, honest.ReceiveN(16), counted(0, 16))
}

// Messages that a client has acknowledged don't count although one before them
// isn't.
func TestAcknowledgedMessagesDontCount(t *testing.T) {
	t.Parallel()
	for _, policy := range []limits.QueueFull{limits.EndSession, limits.Reject} {
		n := start(t, func(c *server.Config) { c.Limits.MaxQueued, c.Limits.QueueFull = 20, policy })
		c := n.connect(mqtttest.Persistent("c"), mqtttest.HoldAcks())
		c.Subscribe("news", 1)
		publisher := n.connect()
		publisher.Publish(message{Topic: "news", Payload: "first", QoS: 1})
		first := c.Receive()
		for range 200 {
			wantCode(t, "PUBACK", publisher.Offer(message{Topic: "news", QoS: 1}).Code, mqtt.Success)
			c.Acknowledge(c.Receive())
			c.Ping()
		}
		c.Acknowledge(first)
		c.Quiet()
	}
}

// A session that chose so in its CONNECT has publishes refused when its queue is
// full, before any other session gets them, also after its client has gone and the
// server was started again.
func TestSessionChoosesBackpressure(t *testing.T) {
	t.Parallel()
	chooses := func(policy string) mqtttest.Option {
		return mqtttest.Raw(func(c *mqtt.Connect) { c.Raw = mqtt.AppendUserProp(nil, "holdfast-queue-full", policy) })
	}
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 5 })
	processor := n.connect(mqtttest.Persistent("processor"), chooses("reject"))
	processor.Subscribe("orders", 1)
	processor.Disconnect()
	other := n.connect()
	other.Subscribe("orders", 0)
	publisher := n.connect()
	publishAll(publisher, numbered("orders", 1, 5))
	wantCode(t, "PUBACK", publisher.Offer(message{Topic: "orders", QoS: 1}).Code, mqtt.QuotaExceeded)
	wantPayloads(t, collect(other, 5), counted(0, 5))

	n.Restart()
	publisher = n.connect()
	wantCode(t, "PUBACK after a restart", publisher.Offer(message{Topic: "orders", QoS: 1}).Code, mqtt.QuotaExceeded)
	processor = n.connect(mqtttest.Persistent("processor"), chooses("reject"))
	wantPayloads(t, processor.ReceiveN(5), counted(0, 5))
	processor.Ping()
	publisher.Publish(message{Topic: "orders", Payload: "5", QoS: 1})
	wantPayloads(t, processor.ReceiveN(1), []string{"5"})

	ack := mqtttest.Refused(t, n.Addr, mqtt.ImplementationSpecificError, chooses("whatever"))
	wantReason(t, "CONNACK", ack.ReasonString)
	strict := start(t, func(c *server.Config) { c.Limits.KeepQueueFull = true })
	ack = mqtttest.Refused(t, strict.Addr, mqtt.NotAuthorized, chooses("reject"))
	wantReason(t, "CONNACK", ack.ReasonString)
	strict.connect(chooses("end-session"))
}

// A member of a shared subscription whose queue is full is passed over, and when
// it ends, what it didn't take goes to the others as they have room: nothing is
// lost, and no other queue overflows from it.
func TestFullMemberLosesNothingOfASharedSubscription(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 10 })
	full := n.connect(mqtttest.Persistent("full"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	full.Subscribe("$share/group/work", 1)
	other := n.connect(mqtttest.Persistent("other"))
	other.Subscribe("$share/group/work", 1)
	const count = 40
	got := map[string]bool{}
	publisher := n.connect()
	for _, m := range numbered("work", 1, count) {
		publisher.Publish(m)
		for _, m := range other.Collect() {
			got[m.Payload] = true
		}
	}
	full.DisconnectWith(mqtt.Disconnect{HasSessionExpiry: true, SessionExpiry: 0})
	for len(got) < count {
		got[other.Receive().Payload] = true
	}
	for _, want := range counted(0, count) {
		if !got[want] {
			t.Errorf("message %s is lost", want)
		}
	}
}

// When all members are full the group keeps what comes, and gives it out as they
// acknowledge.
func TestFullMembersGetTheRestAsTheyAcknowledge(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 5 })
	c := n.connect(mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(1))
	c.Subscribe("$share/group/work", 1)
	publishAll(n.connect(), numbered("work", 1, 10))
	for i := range 10 {
		m := c.Receive()
		wantPayloads(t, []message{m}, counted(i, i+1))
		c.Acknowledge(m)
	}
	c.Quiet()
}

func TestInflightBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxInflight = 3 })
	c := n.connect(mqtttest.HoldAcks()) // with a Receive Maximum of 65,535
	c.Subscribe("window", 1)
	publishAll(n.connect(), numbered("window", 1, 5))
	window := c.ReceiveN(3)
	c.Quiet()
	c.Acknowledge(window[0])
	c.Receive()
	c.Quiet()
}

// The response to a request comes although as many messages are inflight as may be: beyond the
// server's bound if the client takes more, and no second one before that is acknowledged.
func TestResponseBeyondTheInflightBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxInflight = 3 })
	c := n.connect(mqtttest.HoldAcks())
	r := requests(t, c)
	c.Subscribe("window", 1)
	publishAll(n.connect(), numbered("window", 1, 5))
	window := c.ReceiveN(3)
	first := r.want("+OK\r\n", "SET", "key", "value")
	request := r.request(command("GET", "key"))
	wantCode(t, "PUBACK of the second request", c.Offer(request).Code, mqtt.Success)
	c.Quiet()
	c.Acknowledge(first)
	if second := r.answer(*request.CorrelationData); second.Payload != "$5\r\nvalue\r\n" {
		t.Errorf("got %v, want the second response", second)
	}
	c.Quiet()
	c.Acknowledge(window[0])
	c.Quiet()
}

func TestClientIdentifierBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxClientID = 5 })
	n.connect(mqtttest.ClientID("12345"))
	ack := mqtttest.Refused(t, n.Addr, mqtt.ClientIdentifierNotValid, mqtttest.ClientID("123456"))
	wantReason(t, "CONNACK", ack.ReasonString)
}

func TestRetainedBoundInBytes(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxRetainedBytes = 1000 })
	c := n.connect()
	c.Publish(message{Topic: "r/1", QoS: 1, Retain: true, Payload: strings.Repeat("x", 600)})
	ack := c.Offer(message{Topic: "r/2", QoS: 1, Retain: true, Payload: strings.Repeat("x", 600)})
	wantCode(t, "PUBACK beyond", ack.Code, mqtt.QuotaExceeded)
	c.Publish(message{Topic: "r/1", QoS: 1, Retain: true, Payload: strings.Repeat("x", 900)})
}

// One SUBSCRIBE can't ask for more than a session may have, not even for the same
// again and again.
func TestFiltersOfOneSubscribeAreBounded(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxSubscriptions = 2 })
	c := n.connect()
	ack := c.OfferSubscribe(0, sub{Filter: "a", QoS: 1}, sub{Filter: "a", QoS: 2}, sub{Filter: "a"})
	for i, want := range []mqtt.ReasonCode{mqtt.GrantedQoS1, mqtt.GrantedQoS2, mqtt.QuotaExceeded} {
		wantCode(t, "SUBACK", ack.Codes[i], want)
	}
	c.Publish(message{Topic: "a", QoS: 2})
	if m := c.Receive(); m.QoS != 2 {
		t.Errorf("got QoS %d, want the last one granted", m.QoS)
	}
}

// What finds the retained store full is delivered all the same, and what was retained
// on its topic stays. A client of MQTT 5 is told; one before it can't be, and must not
// be made to send the message again and again.
func TestDeliveredAlthoughTheRetainedStoreIsFull(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxRetainedBytes = 100 })
	s := n.connect(mqtttest.Persistent("live"))
	s.Subscribe("full/#", 2)
	n.connect(mqtttest.ClientID("publisher")).Publish(message{Topic: "full/a", Payload: "kept", QoS: 1, Retain: true})
	s.Receive()
	large := message{Topic: "full/a", Payload: strings.Repeat("x", 200), Retain: true}
	for qos := byte(0); qos <= 2; qos++ {
		large.QoS = qos
		c := n.connect()
		if ack := c.Offer(large); qos > 0 {
			wantCode(t, "acknowledgement", ack.Code, mqtt.QuotaExceeded)
			wantSetting(t, "acknowledgement", ack.ReasonString, "--max-retained-bytes")
		}
		old := n.connect(mqtttest.V311())
		old.Publish(large)
		wantPayloads(t, collect(s, 2), []string{large.Payload, large.Payload})
		// The packet identifier of a refused QoS 2 publish is free again.
		c.Publish(message{Topic: "full/b", Payload: "next", QoS: 2, PacketID: 1})
		wantPayloads(t, collect(s, 1), []string{"next"})
	}
	late := n.connect()
	late.Subscribe("full/#", 1)
	wantPayloads(t, collect(late, 1), []string{"kept"})
}

// A packet with more user properties than it may have ends the connection, or keeps it
// from beginning, before anything is done for it.
func TestUserPropertiesOfOnePacketAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 10
	n := start(t, func(c *server.Config) { c.Limits.MaxUserProperties = bound })
	props := func(n int) (raw []byte) {
		for range n {
			raw = mqtt.AppendUserProp(raw, "", "")
		}
		return raw
	}
	publish := func(n int) []byte {
		return mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{QoS: 1, PacketID: 1, Topic: []byte("t"), Props: mqtt.PublishProps{Raw: props(n)}})
	}
	packets := map[string]func(n int) []byte{
		"PUBLISH": publish,
		"SUBSCRIBE": func(n int) []byte {
			return mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 1, Raw: props(n), Subscriptions: []mqtt.Subscription{{Filter: []byte("t")}}})
		},
		"UNSUBSCRIBE": func(n int) []byte {
			return mqtt.AppendUnsubscribe(nil, mqtt.V5, &mqtt.Unsubscribe{PacketID: 1, Raw: props(n), Filters: [][]byte{[]byte("t")}})
		},
	}
	for name, packet := range packets {
		c := n.connect()
		c.Write(packet(bound))
		c.Next() // its acknowledgement
		c.Write(packet(bound + 1))
		wantSetting(t, "DISCONNECT after "+name, c.ExpectDisconnect(mqtt.QuotaExceeded).Disconnect.ReasonString, "max-user-properties")
		c.ExpectClosed()
	}

	large := n.connect()
	large.Write(publish(838_840))
	large.ExpectDisconnect(mqtt.QuotaExceeded)

	inConnect := func(n int) mqtttest.Option { return mqtttest.Raw(func(p *mqtt.Connect) { p.Raw = props(n) }) }
	n.connect(inConnect(bound)).Ping()
	ack := mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, inConnect(bound+1))
	wantSetting(t, "CONNACK", ack.ReasonString, "max-user-properties")
	inWill := func(n int) mqtttest.Option {
		return mqtttest.Raw(func(p *mqtt.Connect) {
			p.HasWill = true
			p.Will = mqtt.Will{Topic: []byte("will"), Props: mqtt.PublishProps{Raw: props(n)}}
		})
	}
	n.connect(inWill(bound)).Ping()
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, inWill(bound+1))
}

// A larger CONNECT than the setting allows closes the connection: its sender is not
// authenticated yet. The setting makes room for a large will, or token.
func TestConnectsAreBoundedByTheirBytes(t *testing.T) {
	t.Parallel()
	sized := func(bytes int) mqtttest.Option {
		return mqtttest.Raw(func(p *mqtt.Connect) {
			p.HasWill, p.Will = true, mqtt.Will{Topic: []byte("will"), Payload: make([]byte, bytes-256)}
			for len(mqtt.AppendConnect(nil, p)) < bytes {
				p.Will.Payload = append(p.Will.Payload, 0)
			}
		})
	}
	for name, bound := range map[string]int{"the default": 64 << 10, "less": 2000, "more": 65_560} {
		n := start(t, func(c *server.Config) {
			if name != "the default" {
				c.Limits.MaxConnectSize = bound
			}
		})
		n.connect(sized(bound)).Ping()
		c := n.dial()
		c.SendConnect(sized(bound + 1))
		c.ExpectClosed()
	}
}

// Filters that a session may not have are refused one by one [MQTT-3.8.4-6], but a packet
// of more than twice as many as it may have ends the connection.
func TestPacketsOfVeryManyFiltersEndTheConnection(t *testing.T) {
	t.Parallel()
	const bound = 10
	n := start(t, func(c *server.Config) { c.Limits.MaxSubscriptions = bound })
	filters := func(n int) (subs []sub, filters []string) {
		for i := range n {
			filter := fmt.Sprintf("%x", i)
			subs, filters = append(subs, sub{Filter: filter}), append(filters, filter)
		}
		return subs, filters
	}
	c := n.connect()
	many, names := filters(2 * bound)
	ack := c.OfferSubscribe(0, many...)
	for i, code := range ack.Codes {
		want := mqtt.GrantedQoS0
		if i >= bound {
			want = mqtt.QuotaExceeded
		}
		wantCode(t, "SUBACK", code, want)
	}
	c.Unsubscribe(names...)

	for _, count := range []int{2*bound + 1, 478_374} {
		many, names := filters(count)
		unsubscribe := mqtt.Unsubscribe{PacketID: 1}
		for _, name := range names {
			unsubscribe.Filters = append(unsubscribe.Filters, []byte(name))
		}
		c := n.connect()
		c.SendSubscribe(0, many...)
		wantSetting(t, "DISCONNECT", c.ExpectDisconnect(mqtt.QuotaExceeded).Disconnect.ReasonString, "max-subscriptions")
		c = n.connect()
		c.Write(mqtt.AppendUnsubscribe(nil, mqtt.V5, &unsubscribe))
		c.ExpectDisconnect(mqtt.QuotaExceeded)
		old := n.connect(mqtttest.V311())
		old.SendSubscribe(0, many...)
		old.ExpectClosed()
	}
}
