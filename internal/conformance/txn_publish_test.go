package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// publishes is what a session that ends with its connection, one that outlives it, one that
// is away and a shared subscription get of a transaction, at each QoS.
func TestTransactionPublishes(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	clean, kept := n.connect(), n.connect(mqtttest.Persistent("kept"))
	for _, c := range []*client{clean, kept} {
		c.Subscribe("out/0", 0)
		c.Subscribe("out/+", 2)
	}
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("out/#", 1)
	away.Disconnect()
	member := n.connect()
	member.Subscribe("$share/g/out/#", 1)

	if got := r.txn("IF k ABSENT SET k 1 PUBLISH out/0 zero QOS 0 PUBLISH out/1 one TYPE t CORRELATION c RESPONSE r FORMAT 1 EXPIRY 100 USER a b USER a c PUBLISH out/2 two QOS 2"); !done(got) {
		t.Fatalf("got %q", got)
	}
	for _, c := range []*client{clean, kept} {
		var got []string
		for range 3 {
			m := c.Receive()
			got = append(got, fmt.Sprintf("%s=%s@%d", m.Topic, m.Payload, m.QoS))
			if m.Topic != "out/1" {
				continue
			}
			if m.ContentType == nil || *m.ContentType != "t" || m.ResponseTopic == nil || *m.ResponseTopic != "r" || m.CorrelationData == nil || *m.CorrelationData != "c" ||
				m.PayloadFormat == nil || *m.PayloadFormat != 1 || m.Expiry == nil || *m.Expiry == 0 || *m.Expiry > 100 || !slices.Equal(m.User, [][2]string{{"a", "b"}, {"a", "c"}}) {
				t.Errorf("the message came as %+v", m)
			}
		}
		if all := strings.Join(got, " "); !strings.Contains(all, "out/0=zero@0") || !strings.Contains(all, "out/1=one@1 out/2=two@2") && !strings.Contains(all, "out/1=one@1 out/0=zero@0 out/2=two@2") {
			t.Errorf("got %s", all)
		}
	}
	for range 3 {
		member.Receive()
	}
	away = n.connect(mqtttest.Persistent("away"), mqtttest.Resume())
	for _, want := range []string{"one", "two"} {
		if m := away.Receive(); m.Payload != want {
			t.Errorf("the session that was away got %q, want %q", m.Payload, want)
		}
	}
	// Of one that fails nothing is published.
	if got := r.txn("IF k ABSENT PUBLISH out/1 not"); done(got) {
		t.Errorf("got %q", got)
	}
	if got := r.txn("PUBLISH out/1 last"); !done(got) {
		t.Errorf("got %q", got)
	}
	for _, c := range []*client{clean, kept, away, member} {
		if m := c.Receive(); m.Payload != "last" {
			t.Errorf("got %q, want what came last", m.Payload)
		}
	}
}

// Retained messages of a transaction replace and delete others, and survive a crash.
func TestTransactionRetains(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxRetained = 2 })
	r := n.requester()
	r.Publish(message{Topic: "state/old", Payload: "x", QoS: 1, Retain: true})
	if got := r.txn("PUBLISH state/a 1 RETAIN PUBLISH state/b 2 RETAIN QOS 0 SET k 1"); got != operationFailure(2, "the quota has been exceeded") {
		t.Errorf("beyond the bound: %q", got)
	}
	r.want(nilBlob, "GET", "k")
	m := r.do("TXN", "PUBLISH", "state/old", "", "RETAIN", "PUBLISH", "state/a", "1", "RETAIN", "PUBLISH", "state/b", "2", "RETAIN", "QOS", "0", "SET", "k", "1")
	if !done(m.Payload) {
		t.Errorf("at the bound: %q", m.Payload)
	}
	c := n.connect()
	c.Subscribe("state/#", 1)
	got := map[string]string{}
	for range 2 {
		m := c.Receive()
		got[m.Topic] = m.Payload
	}
	if got["state/a"] != "1" || got["state/b"] != "2" {
		t.Errorf("retained: %v", got)
	}
}

// What a transaction publishes is routed like any message of its client: No Local, several
// subscriptions of a session, RETAIN as published.
func TestTransactionIsRoutedLikeAPublish(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	r.SubscribeWith(0, sub{Filter: "out/+", QoS: 1, NoLocal: true})
	two := n.connect()
	two.SubscribeWith(7, sub{Filter: "out/a", QoS: 0, RetainAsPublished: true})
	two.SubscribeWith(9, sub{Filter: "out/#", QoS: 2})
	if got := r.txn("PUBLISH out/a 1 QOS 2 RETAIN PUBLISH out/b 2"); !done(got) {
		t.Fatalf("got %q", got)
	}
	for _, want := range []struct {
		payload string
		qos     byte
		retain  bool
		ids     int
	}{{"1", 2, true, 2}, {"2", 1, false, 1}} {
		if m := two.Receive(); m.Payload != want.payload || m.QoS != want.qos || m.Retain != want.retain || len(m.SubscriptionIDs) != want.ids {
			t.Errorf("got %v with identifiers %v, want %+v", m, m.SubscriptionIDs, want)
		}
	}
	two.Quiet()
	r.Quiet()
}

// What is done already for its message is not published again, and what is published to a
// topic without subscribers is done.
func TestTransactionPublishesOnce(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	c := n.connect()
	c.Subscribe("out", 1)
	for i := range 3 {
		got := r.txn("ONCE k m SET k 1 PUBLISH out once PUBLISH nowhere x")
		if done(got) != (i == 0) || i > 0 && !strings.HasPrefix(got, "*2\r\n:0\r\n") {
			t.Errorf("try %d: %q", i, got)
		}
	}
	if m := c.Receive(); m.Payload != "once" {
		t.Errorf("got %v", m)
	}
	c.Quiet()
}

// Messages at QoS 0 that a transaction publishes to very many are all sent.
func TestTransactionPublishesToMany(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	const topics, filters = 20, 60
	c := n.connect()
	for i := range filters {
		c.Subscribe(fmt.Sprintf("$share/g%d/out/#", i), 0)
	}
	if got := r.txn(strings.Repeat("PUBLISH out/x m QOS 0 ", topics)); !done(got) {
		t.Fatalf("got %q", got)
	}
	c.ReceiveN(topics * filters)
	c.Quiet()
}

// A queue that is full refuses the whole, whatever its session does with other messages
// then, and nothing of it stays in other queues.
func TestTransactionWithAFullQueue(t *testing.T) {
	t.Parallel()
	const full = "the queue of a subscriber is full"
	for _, policy := range []limits.QueueFull{limits.EndSession, limits.Reject} {
		for name, filter := range map[string]string{"a session": "out", "a shared subscription": "$share/g/out"} {
			t.Run(string(policy)+", "+name, func(t *testing.T) {
				t.Parallel()
				n := start(t, func(c *server.Config) { c.Limits.MaxQueued, c.Limits.QueueFull = 3, policy })
				r := n.requester()
				away := n.connect(mqtttest.Persistent("away"))
				away.Subscribe(filter, 1)
				away.Disconnect()
				away.AwaitEnd()
				listener := n.connect()
				listener.Subscribe("+", 1) // which no response matches
				text := func(messages int) string {
					return "SET k " + strconv.Itoa(messages) + strings.Repeat(" PUBLISH out m", messages)
				}
				if got := r.txn(text(4)); got != operationFailure(5, full) {
					t.Errorf("one beyond the bound: %q", got)
				}
				r.want(nilBlob, "GET", "k")
				if got := r.txn(text(3)); !done(got) {
					t.Errorf("at the bound: %q", got)
				}
				if got := r.txn(text(1)); got != operationFailure(2, full) {
					t.Errorf("when it is full: %q", got)
				}
				for range 3 {
					if m := listener.Receive(); m.Topic != "out" {
						t.Errorf("got a message to %s", m.Topic)
					}
				}
				away = n.connect(mqtttest.Persistent("away"), mqtttest.Resume())
				away.ReceiveN(3)
				away.Quiet()
				listener.Quiet()
				if got := r.txn(text(3)); !done(got) {
					t.Errorf("when there is room again: %q", got)
				}
				away.ReceiveN(3)
			})
		}
	}
}

// A session that drops its oldest messages takes those of a transaction, and drops others.
func TestTransactionDropsTheOldest(t *testing.T) {
	t.Parallel()
	for name, filter := range map[string]string{"a session": "out", "a shared subscription": "$share/g/out"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, func(c *server.Config) { c.Limits.MaxQueued, c.Limits.QueueFull = 3, limits.DropOldest })
			r := n.requester()
			away := n.connect(mqtttest.Persistent("away"))
			away.Subscribe(filter, 1)
			away.Disconnect()
			away.AwaitEnd()
			for i := range 3 {
				if got := r.txn(fmt.Sprintf("PUBLISH out %d PUBLISH out %d", 2*i, 2*i+1)); !done(got) {
					t.Errorf("got %q", got)
				}
			}
			away = n.connect(mqtttest.Persistent("away"), mqtttest.Resume())
			if got := mqtttest.Payloads(away.ReceiveN(3)); got[2] != "5" || got[0] != "3" {
				t.Errorf("got %v, want the last three", got)
			}
			away.Quiet()
		})
	}
}

// A transaction has a bound of deliveries.
func TestTransactionDeliveries(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTxnDeliveries = 4 })
	r := n.requester()
	var subscribers []*client
	for qos := range byte(3) {
		c := n.connect()
		c.Subscribe("out", min(qos, 1))
		subscribers = append(subscribers, c)
	}
	last := n.connect()
	last.Subscribe("$share/g/last", 1)
	if got := r.txn("PUBLISH out a PUBLISH last b SET k 1"); !done(got) {
		t.Errorf("at the bound: %q", got)
	}
	m := r.do(strings.Fields("TXN PUBLISH out c SET k 2 PUBLISH last d PUBLISH last e PUBLISH nowhere f")...)
	if m.Payload != operationFailure(4, "the quota has been exceeded") {
		t.Errorf("one more: %q", m.Payload)
	}
	if quota, _ := m.UserProp("holdfast-quota"); quota != "max-txn-deliveries" {
		t.Errorf("the quota is %q", quota)
	}
	r.want(blob("1"), "GET", "k")
	for _, c := range append(subscribers, last) {
		if m := c.Receive(); m.Payload != "a" && m.Payload != "b" {
			t.Errorf("got %v", m)
		}
		c.Quiet()
	}
}

// The permissions and the quotas of a client bound what its transactions publish.
func TestPolicyOfTransactionsThatPublish(t *testing.T) {
	t.Parallel()
	const pressMay = "up/press/x"
	n := startGoverned(t, "rules:"+everything("admin")+machines)
	admin := n.requester(as("admin"))
	admin.Subscribe("up/#", 1)
	press := &requester{t: t, client: n.connect(as("press"), mqtttest.ClientID("p1")), topic: invokeTopic, timestamp: "__ts", responses: "answers/p1"}
	press.Subscribe("answers/p1", 1)
	for text, denied := range map[string]int{
		"SET press:1 a PUBLISH secret/x x":                                2,
		"PUBLISH secret/x x SET press:1 a":                                1,
		"SET press:1 a PUBLISH secret/x x PUBLISH $SYS/x x":               2,
		"PUBLISH " + pressMay + " x RESPONSE secret/x SET press:1 a":      1,
		"PUBLISH " + pressMay + " x SET press:1 a PUBLISH secret/x x":     3,
		"PUBLISH " + pressMay + " x IF shared EXISTS PUBLISH secret/x x":  3,
		"PUBLISH " + pressMay + " x PUBLISH secret/x x SET elsewhere:1 a": 3,
	} {
		if got := press.txn(text); got != operationFailure(denied, "not authorized") {
			t.Errorf("TXN %s: %q, want operation %d denied", text, got, denied)
		}
	}
	if got := press.txn("SET press:1 b PUBLISH " + pressMay + " x"); !done(got) {
		t.Errorf("what is allowed: %q", got)
	}
	if m := admin.Receive(); m.Topic != pressMay {
		t.Errorf("got %v", m)
	}
	admin.want(blob("b"), "GET", "press:1")
}

func TestQuotasOfTransactionsThatPublish(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "retainedMessages: 1, publishesPerSecond: 40"}, "lathe"), func(c *server.Config) { c.SysInterval = 50 * time.Millisecond })
	r := n.requester(as("press"))
	if got := r.txn("PUBLISH a 1 RETAIN PUBLISH b 2 RETAIN SET k 1"); got != operationFailure(2, "the quota has been exceeded") {
		t.Errorf("beyond the quota of retained messages: %q", got)
	}
	r.want(nilBlob, "GET", "k")
	if got := r.txn("PUBLISH a 1 RETAIN PUBLISH a 2 RETAIN SET k 1"); !done(got) {
		t.Errorf("at the quota of retained messages: %q", got)
	}
	if got := r.txn(strings.Repeat("PUBLISH c x QOS 0 ", 100)); !done(got) {
		t.Errorf("at once: %q", got)
	}
	r.want(blob("1"), "GET", "k") // when the rate allows it
	lathe := n.connect(as("lathe"))
	lathe.Subscribe("$SYS/broker/publish/messages/held up", 0)
	for lathe.Receive().Payload == "0" { // which the messages count for
	}
}

func TestTransactionRefusesWhatMayNotBePublished(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	for text, want := range map[string]string{
		"SET k 1 PUBLISH a/# x":                 "2 the topic name is invalid",
		"PUBLISH $SYS/x x SET k 1":              "1 the topic is reserved",
		"PUBLISH " + invokeTopic + " x SET k 1": "1 the topic is reserved",
		"PUBLISH clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/x x SET k 1": "1 the topic is reserved",
		"PUBLISH " + strings.Repeat("a/", 128) + " x SET k 1":                            "1 the topic name is invalid",
		"PUBLISH a x QOS 3 SET k 1":                                                      "1 syntax error",
		"PUBLISH a \xff FORMAT 1 SET k 1":                                                "1 the payload is not UTF-8 as its format says",
		"PUBLISH a x TYPE \xff SET k 1":                                                  "1 a property of the message is invalid",
		"PUBLISH a x RESPONSE b/+ SET k 1":                                               "1 a property of the message is invalid",
		"PUBLISH a x TYPE":                                                               "1 syntax error",
		"PUBLISH a":                                                                      "1 wrong number of arguments",
		"SETTLE 7 SET k 1":                                                               "1 no message with this packet identifier is under way",
		"SETTLE 65536":                                                                   "1 syntax error",
		"SETTLE 7 SETTLE 7":                                                              "2 an earlier operation settles the same message",
		"SET k 1 PUBLISH":                                                                "2 wrong number of arguments",
		"SET k 1 SETTLE":                                                                 "2 wrong number of arguments",
		"PUBLISH a x QOS 1 QOS 1":                                                        "1 syntax error",
		"PUBLISH a x RETAIN RETAIN":                                                      "1 syntax error",
		"PUBLISH a x TYPE a TYPE b":                                                      "1 syntax error",
		"PUBLISH a x EXPIRY 4294967296":                                                  "1 syntax error",
		"PUBLISH a x FORMAT 2":                                                           "1 syntax error",
		"PUBLISH a x USER name":                                                          "1 syntax error",
		"PUBLISH a x CORRELATION " + strings.Repeat("c", 65_536):                         "1 syntax error",
		"PUBLISH " + strings.Repeat("t", 65_536) + " x SET k 1":                          "1 the topic name is invalid",
		"PUBLISH a x" + strings.Repeat(" USER n v", 1001):                                "1 a property of the message is invalid",
	} {
		op, text2, _ := strings.Cut(want, " ")
		number, _ := strconv.Atoi(op)
		if got := r.txn(text); got != operationFailure(number, text2) {
			t.Errorf("%.60s: %q, want %s", text, got, want)
		}
	}
	r.want(nilBlob, "GET", "k")
}
