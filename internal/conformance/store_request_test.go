package conformance

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestStoreDialectsShareTheKeys(t *testing.T) {
	t.Parallel()
	n := start(t)
	current, preview := n.requester(), n.requester().preview()

	current.want("+OK\r\n", "SET", "shared", "current")
	preview.want(blob("current"), "GET", "shared")
	preview.want("+OK\r\n", "SET", "shared", "preview")
	current.want(blob("preview"), "GET", "shared")
	preview.want(":1\r\n", "VDEL", "shared", "preview")
	current.want("$-1\r\n", "GET", "shared")
	current.want("+OK\r\n", "KEYNOTIFY", "shared")
	preview.want(failure("unknown command"), "KEYNOTIFY", "shared")
}

func TestStoreDialectsKnowOnlyTheirOwnProperties(t *testing.T) {
	t.Parallel()
	n := start(t)
	current, preview := n.requester(), n.requester().preview()
	for _, c := range []struct {
		r     *requester
		other string
		token [2]string // own, other
	}{
		{current, "Timestamp", [2]string{"__ft", "FencingToken"}},
		{preview, "__ts", [2]string{"FencingToken", "__ft"}},
	} {
		m := c.r.request(command("SET", "k", "v"))
		m.User = [][2]string{{c.other, now()}}
		if got := c.r.ask(m); got.Payload != failure("missing timestamp") {
			t.Errorf("%s instead of %s: got %q", c.other, c.r.timestamp, got.Payload)
		}
		// The other dialect's fencing token protects nothing; the own one does.
		key := "fenced by " + c.token[0]
		m = c.r.request(command("SET", key, "v"))
		m.User = append(m.User, [2]string{c.token[1], now()})
		c.r.ask(m)
		c.r.want("+OK\r\n", "SET", key, "w")
		m = c.r.request(command("SET", key, "v"))
		m.User = append(m.User, [2]string{c.token[0], now()})
		c.r.ask(m)
		c.r.want(failure("a fencing token is required for this request"), "SET", key, "w")
	}
}

func TestStoreResponseProperties(t *testing.T) {
	t.Parallel()
	n := start(t)
	current, preview := n.requester(), n.requester().preview()
	check := func(r *requester, got message, want [][2]string) {
		t.Helper()
		if got.Topic != r.responses || got.QoS != 1 || got.Retain || got.Expiry != nil || got.ResponseTopic != nil || len(got.SubscriptionIDs) > 0 {
			t.Errorf("got %+v, want an answer at QoS 1 without more", got)
		}
		if got.ContentType == nil || *got.ContentType != "application/octet-stream" {
			t.Errorf("got content type %v", got.ContentType)
		}
		if got.PayloadFormat != nil && *got.PayloadFormat != 0 {
			t.Errorf("got payload format %d, want 0", *got.PayloadFormat)
		}
		byName := func(a, b [2]string) int { return strings.Compare(a[0], b[0]) }
		user := slices.SortedFunc(slices.Values(got.User), byName)
		if want := slices.SortedFunc(slices.Values(want), byName); !reflect.DeepEqual(user, want) {
			t.Errorf("%q: got user properties %q, want %q", got.Payload, user, want)
		}
	}
	stat, protocol := [2]string{"__stat", "200"}, [2]string{"__protVer", "1.0"}

	got := current.do("SET", "k", "v")
	set := version(t, got).String()
	check(current, got, [][2]string{{"__ts", set}, stat, protocol})
	check(current, current.do("GET", "k"), [][2]string{{"__ts", set}, stat, protocol})
	check(current, current.do("GET", "missing"), [][2]string{stat, protocol})
	check(current, current.do("NONSENSE"), [][2]string{stat, protocol}) // 200, as the real store says
	check(preview, preview.do("GET", "k"), [][2]string{{"Timestamp", set}})
	check(preview, preview.do("GET", "missing"), nil)
	check(preview, preview.do("NONSENSE"), nil)
}

// Each row of the table in protocol, section 2. "" is for what has no answer.
func TestStoreBadRequests(t *testing.T) {
	t.Parallel()
	n := start(t)
	requester := func(t *testing.T) *requester { return requests(t, mqtttest.Connect(t, n.Addr)) }
	notExecuted := func(t *testing.T, key string) {
		t.Helper()
		if got := requester(t).do("GET", key).Payload; got != missing {
			t.Errorf("the request was executed: got %q", got)
		}
	}

	t.Run("QoS 0", func(t *testing.T) {
		r := requester(t)
		m := r.request(command("SET", "qos0", "v"))
		m.QoS = 0
		r.Publish(m)
		r.Quiet()
		notExecuted(t, "qos0")
	})
	t.Run("3.1.1", func(t *testing.T) {
		old := mqtttest.Connect(t, n.Addr, mqtttest.V311())
		old.Publish(message{Topic: invokeTopic, Payload: command("SET", "old", "v"), QoS: 1})
		old.Publish(message{Topic: invokeTopic, Payload: command("SET", "old", "v"), QoS: 0})
		old.Quiet()
		notExecuted(t, "old")
	})
	t.Run("QoS 2", func(t *testing.T) {
		r := requester(t)
		m := r.request(command("SET", "qos2", "v"))
		m.QoS = 2
		ack := r.Offer(m)
		wantCode(t, "PUBREC", ack.Code, mqtt.ImplementationSpecificError)
		wantReason(t, "PUBREC", ack.ReasonString)
		r.Quiet()
		notExecuted(t, "qos2")
	})
	for what, c := range map[string]struct {
		names  string
		remove func(*message)
	}{
		"no response topic":      {"response topic", func(m *message) { m.ResponseTopic = nil }},
		"empty response topic":   {"response topic", func(m *message) { m.ResponseTopic = new("") }},
		"no correlation data":    {"correlation data", func(m *message) { m.CorrelationData = nil }},
		"empty correlation data": {"correlation data", func(m *message) { m.CorrelationData = new("") }},
	} {
		t.Run(what, func(t *testing.T) {
			r := requester(t)
			for range 2 { // the connection lives on
				m := r.request(command("SET", what, "v"))
				c.remove(&m)
				ack := r.Offer(m)
				wantCode(t, "PUBACK", ack.Code, mqtt.ImplementationSpecificError)
				if reason := strings.ToLower(string(ack.ReasonString)); !strings.Contains(reason, c.names) {
					t.Errorf("got Reason String %q, want the %s named", ack.ReasonString, c.names)
				}
			}
			r.Quiet()
			notExecuted(t, what)
		})
	}
	t.Run("response topic with a wildcard", func(t *testing.T) {
		for _, topic := range []string{"a/#", "+/b"} {
			r := requester(t)
			m := r.request(command("SET", "wildcard", "v"))
			m.ResponseTopic = &topic
			r.SendPublish(m)
			r.ExpectDisconnect(mqtt.ProtocolError)
		}
		notExecuted(t, "wildcard")
	})
	for i, topic := range []string{
		invokeTopic, previewTopic, notifyPrefix, notifyPrefix + "/", notifyPrefix + "x", notifyTopic("c", "k"),
	} {
		t.Run("response topic "+topic, func(t *testing.T) {
			r := requester(t)
			if i%2 == 1 {
				r.preview()
			}
			m := r.request(command("SET", "forbidden", "v"))
			m.ResponseTopic = &topic
			id := r.SendPublish(m)
			ack := r.Expect(mqtt.PUBACK).Ack
			wantCode(t, "PUBACK", ack.Code, mqtt.TopicNameInvalid)
			if ack.PacketID != id {
				t.Errorf("got PUBACK for %d, want %d", ack.PacketID, id)
			}
			r.ExpectDisconnect(mqtt.TopicNameInvalid)
			notExecuted(t, "forbidden")
		})
	}
	t.Run("payload", func(t *testing.T) {
		r := requester(t)
		if got := r.ask(r.request("nonsense")).Payload; got != failure("syntax error") {
			t.Errorf("got %q", got)
		}
		m := r.request(command("SET", "payload", "v"))
		m.User = [][2]string{{"__ts", "nonsense"}}
		if got := r.ask(m).Payload; got != failure("malformed timestamp") {
			t.Errorf("got %q", got)
		}
		notExecuted(t, "payload")
	})
}

// What was sent before a request that ends the connection is acknowledged before it, also if
// its acknowledgement waits for the disk [MQTT-4.6.0-2].
func TestStoreAcknowledgesInOrderBeforeItDisconnects(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	set, forbidden := r.request(command("SET", "k", "v")), r.request(command("GET", "k"))
	set.PacketID, forbidden.PacketID, forbidden.ResponseTopic = 101, 102, new(invokeTopic)
	r.Write(append(mqtttest.EncodePublish(mqtt.V5, set), mqtttest.EncodePublish(mqtt.V5, forbidden)...))
	if ack := r.Expect(mqtt.PUBACK).Ack; ack.PacketID != 101 || ack.Code != mqtt.Success {
		t.Fatalf("got PUBACK %+v, want that of the SET", ack)
	}
	if got := r.Receive(); got.Payload != ok {
		t.Errorf("got %v, want the response to the SET", got)
	}
	if ack := r.Expect(mqtt.PUBACK).Ack; ack.PacketID != 102 || ack.Code != mqtt.TopicNameInvalid {
		t.Fatalf("got PUBACK %+v, want that of the forbidden request", ack)
	}
	r.ExpectDisconnect(mqtt.TopicNameInvalid)
}

func TestStoreAcknowledgesWithoutASubscriber(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	m := r.request(command("SET", "k", "v"))
	m.ResponseTopic = new("nobody/listens")
	wantCode(t, "PUBACK", r.Offer(m).Code, mqtt.Success) // never 0x10: the .NET client throws on it
	r.want(blob("v"), "GET", "k")
}

func TestStoreIgnoresRetain(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	m := r.request(command("SET", "k", "v"))
	m.Retain = true
	if got := r.ask(m); got.Payload != "+OK\r\n" || got.Retain {
		t.Errorf("got %v", got)
	}
	late := n.connect()
	late.Subscribe("#", 1)
	late.Subscribe(r.responses, 1)
	late.Quiet()
}

func TestStoreUserProperties(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	for _, c := range []struct {
		what string
		user [][2]string
		want string
	}{
		{"unknown ones", [][2]string{{"$partition", "1"}, {"__ts", now()}, {"__srcId", "me"}, {"$high_priority", ""}, {"metriccategory", "x"}}, "+OK\r\n"},
		{"the first of a repeated one", [][2]string{{"__ts", now()}, {"__ts", "nonsense"}}, "+OK\r\n"},
		{"and only the first", [][2]string{{"__ts", "nonsense"}, {"__ts", now()}}, failure("malformed timestamp")},
		{"none", nil, failure("missing timestamp")},
		{"a name of another case", [][2]string{{"__TS", now()}}, failure("missing timestamp")},
	} {
		m := r.request(command("SET", "k", "v"))
		m.User = c.user
		if got := r.ask(m).Payload; got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
}

func TestStoreMessageExpiry(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	m := r.request(command("SET", "k", "v"))
	m.Expiry = new(uint32(10))
	got := r.ask(m)
	if got.Expiry == nil || *got.Expiry < 1 || *got.Expiry > 10 {
		t.Errorf("got expiry %v, want what is left of 10", got.Expiry)
	}
	m = r.request(command("GET", "k"))
	m.Expiry = new(uint32(1))
	if got := r.ask(m); got.Expiry == nil || *got.Expiry != 1 {
		t.Errorf("got expiry %v, want 1: rounded up", got.Expiry)
	}
	if got := r.do("GET", "k"); got.Expiry != nil {
		t.Errorf("got expiry %d for a request without one", *got.Expiry)
	}
}

func TestStoreExecutesARedeliveredRequest(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	m := r.request(command("SET", "k", "v"))
	m.PacketID = 1000
	first := version(t, r.ask(m))
	m.Dup = true
	if second := version(t, r.ask(m)); second.Compare(first) <= 0 {
		t.Errorf("got %v after %v, want a later version", second, first)
	}
}

func TestStoreByTopicAlias(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	m := r.request(command("SET", "k", "v"))
	m.TopicAlias = 1
	r.ask(m)
	m = r.request(command("GET", "k"))
	m.Topic, m.TopicAlias = "", 1
	if got := r.ask(m).Payload; got != blob("v") {
		t.Errorf("got %q", got)
	}
}

func TestStoreOverWebSocket(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := mqtttest.DialWebSocket(t, n.WebSocket)
	c.Connect(mqtttest.ClientID("web"))
	r := requests(t, c)
	r.want("+OK\r\n", "KEYNOTIFY", "k")
	r.want("+OK\r\n", "SET", "k", strings.Repeat("x", 100_000))
	notified(t, c, "web", "k", setNotice(strings.Repeat("x", 100_000)))
	n.requester().want(blob(strings.Repeat("x", 100_000)), "GET", "k")
}

func TestStoreTopicsAreItsOwn(t *testing.T) {
	t.Parallel()
	n := start(t)

	// The request topics can't be subscribed to …
	c, old := n.connect(), n.connect(mqtttest.V311())
	for _, filter := range []string{invokeTopic, previewTopic, "$share/g/" + invokeTopic, "$share/g/" + previewTopic} {
		ack := c.OfferSubscribe(0, sub{Filter: filter, QoS: 1}, sub{Filter: "beside", QoS: 1})
		wantCode(t, filter, ack.Codes[0], mqtt.NotAuthorized)
		wantCode(t, "the filter beside it", ack.Codes[1], mqtt.GrantedQoS1)
		wantReason(t, filter, ack.ReasonString)
		wantCode(t, "3.1.1 "+filter, old.OfferSubscribe(0, sub{Filter: filter, QoS: 1}).Codes[0], mqtt.UnspecifiedError)
	}

	// … and a wildcard does not match them.
	for _, filter := range []string{
		"#", "statestore/#", "statestore/v1/+/command/invoke", "+/+/+/+/+", "$services/#",
		"$services/statestore/_any_/command/invoke/+", "$share/g/#", "$share/g/statestore/#",
	} {
		c.Subscribe(filter, 1)
	}
	r := n.requester()
	m := r.request(command("SET", "k", "v"))
	m.ResponseTopic = new("answer/one/level/more/than+fits"[:20]) // matched by # and $share/g/# alone
	wantCode(t, "PUBACK", r.Offer(m).Code, mqtt.Success)
	preview := n.requester().preview()
	preview.do("GET", "k")
	for _, m := range c.Collect() {
		if m.CorrelationData == nil || strings.HasPrefix(m.Payload, "*") {
			t.Errorf("got %v, want no request", m)
		}
	}
}

func TestStoreNotificationTopicsArePrivate(t *testing.T) {
	t.Parallel()
	n := start(t)
	watcher := n.requester(mqtttest.ClientID("watcher"))
	eavesdropper := n.connect()

	// Any filter there is granted as asked, and matches nothing.
	filters := []string{
		notifyPrefix + "/#", notifyPrefix + "/+/command/notify/+", notifyTopic("watcher", "k"), notifyTopic("other", "k"),
		notifyPrefix + "/{clientId}/command/notify/{keyName}",
	}
	for _, c := range []*client{watcher.client, eavesdropper} {
		for i, filter := range filters {
			c.Subscribe(filter, byte(i%3))
		}
	}
	// Nor does a wildcard match a notification.
	eavesdropper.Subscribe("#", 1)
	eavesdropper.Subscribe("clients/#", 1)
	eavesdropper.Subscribe("clients/statestore/v1/+/+/command/notify/+", 1)
	eavesdropper.Subscribe("$share/g/clients/#", 1)

	watcher.want("+OK\r\n", "KEYNOTIFY", "k")
	id := watcher.SendPublish(watcher.request(command("SET", "k", "v")))
	notified(t, watcher.client, "watcher", "k", setNotice("v"))
	watcher.AwaitAck(mqtt.PUBACK, id)
	watcher.Receive() // the answer
	watcher.Quiet()   // once, however many filters there are
	for _, m := range eavesdropper.Collect() {
		if strings.HasPrefix(m.Topic, notifyPrefix) {
			t.Errorf("got %v, want it told to its client only", m)
		}
	}
}

func TestStoreTopicsCantBePublishedTo(t *testing.T) {
	t.Parallel()
	n := start(t)
	victim := n.requester(mqtttest.ClientID("victim"))
	victim.want("+OK\r\n", "KEYNOTIFY", "k")
	c := n.connect()
	for _, topic := range []string{notifyPrefix, notifyPrefix + "/x", notifyPrefix + "x", notifyPrefix + "x/y", notifyTopic("victim", "k")} {
		for qos := byte(1); qos <= 2; qos++ {
			ack := c.Offer(message{Topic: topic, Payload: setNotice("forged"), QoS: qos})
			wantCode(t, topic, ack.Code, mqtt.NotAuthorized)
			wantReason(t, topic, ack.ReasonString)
		}
		will := mqtttest.Will(message{Topic: topic, Payload: "x", QoS: 1}, 0)
		ack := mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, will)
		wantReason(t, "will to "+topic, ack.ReasonString)
	}
	for _, topic := range []string{invokeTopic, previewTopic} {
		will := mqtttest.Will(message{Topic: topic, Payload: command("SET", "will", "v"), QoS: 1}, 0)
		ack := mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, will)
		wantReason(t, "will to "+topic, ack.ReasonString)
		mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, will, mqtttest.V311())
	}
	// QoS 0 and 3.1.1 can't be told; no client gets them.
	n.connect().SendPublish(message{Topic: notifyTopic("victim", "k"), Payload: setNotice("forged")})
	victim.Quiet()
	victim.want("$-1\r\n", "GET", "will")
}

func TestStoreResponseIsRoutedLikeAPublish(t *testing.T) {
	t.Parallel()
	n := start(t)
	r, other, atZero, shared := n.requester(), n.connect(), n.connect(), n.connect()
	other.SubscribeWith(7, sub{Filter: r.responses, QoS: 2})
	atZero.Subscribe("clients/#", 0)
	shared.Subscribe("$share/g/clients/+/services/#", 1)

	got := r.want("+OK\r\n", "SET", "k", "v")
	for c, want := range map[*client]byte{other: 1, atZero: 0, shared: 1} {
		m := c.Receive()
		if m.QoS != want {
			t.Errorf("got %v, want QoS %d", m, want)
		}
		m.QoS = got.QoS
		wantContent(t, m, got)
		c.Quiet()
	}
}

func TestStoreResponseWaitsForAPersistentSession(t *testing.T) {
	t.Parallel()
	n := start(t)
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("answers/away", 1)
	away.Disconnect()

	r := n.requester()
	m := r.request(command("SET", "k", "v"))
	m.ResponseTopic = new("answers/away")
	wantCode(t, "PUBACK", r.Offer(m).Code, mqtt.Success)

	away = n.connect(mqtttest.Persistent("away"))
	if got := away.Receive(); got.Payload != "+OK\r\n" || *got.CorrelationData != *m.CorrelationData {
		t.Errorf("got %v, want the answer", got)
	}
	away.Quiet()
}

// A requester that is gone before its answer finds it when it returns.
func TestStoreRequesterReturns(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester(mqtttest.Persistent("returns"), mqtttest.HoldAcks())
	m := r.request(command("SET", "k", "v"))
	r.SendPublish(m)
	r.HalfClose()
	r.AwaitEnd() // the server has seen the request, and the end behind it

	again := n.connect(mqtttest.Persistent("returns"))
	wantPresent(t, again, true)
	p := again.Await("response", func(p *mqtttest.Packet) bool { return p.Type == mqtt.PUBLISH })
	if got := p.Publish; got.Payload != "+OK\r\n" || *got.CorrelationData != *m.CorrelationData {
		t.Errorf("got %v, want the answer", got)
	}
}

func TestStorePipelinedRequests(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	const count = 300
	r.want("+OK\r\n", "SET", "durable", "x")

	// Given SETs, which wait for the disk, and GETs, which need not, in one write.
	var packets []byte
	for i := range count {
		for j, payload := range []string{command("SET", "k", fmt.Sprint(i)), command("GET", "k"), command("GET", "durable")} {
			m := r.request(payload)
			m.PacketID = uint16(1 + i*3 + j)
			m.CorrelationData = new(fmt.Sprint(m.PacketID))
			packets = append(packets, mqtttest.EncodePublish(mqtt.V5, m)...)
		}
	}
	r.Write(packets)

	// Then every request is acknowledged in its order [MQTT-4.6.0-2], and each GET sees the SET before it.
	next := uint16(1)
	answers := map[string]string{}
	for next <= 3*count || len(answers) < 3*count {
		switch p := r.Next(); p.Type {
		case mqtt.PUBACK:
			if p.Ack.PacketID != next || p.Ack.Code != mqtt.Success {
				t.Fatalf("got %v, want PUBACK %d", p, next)
			}
			next++
		case mqtt.PUBLISH:
			answers[*p.Publish.CorrelationData] = p.Publish.Payload
		default:
			t.Fatalf("got %v", p)
		}
	}
	for i := range count {
		got := []string{answers[fmt.Sprint(1+i*3)], answers[fmt.Sprint(2+i*3)], answers[fmt.Sprint(3+i*3)]}
		want := []string{"+OK\r\n", blob(fmt.Sprint(i)), blob("x")}
		if !slices.Equal(got, want) {
			t.Fatalf("request %d: got %q, want %q", i, got, want)
		}
	}
}

func TestStoreAnswerTooLargeForTheClient(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.requester().want("+OK\r\n", "SET", "large", strings.Repeat("x", 2000))
	r := n.requester(mqtttest.ClientID("small"), mqtttest.MaximumPacketSize(1000))
	r.want("+OK\r\n", "KEYNOTIFY", "large")

	wantCode(t, "PUBACK", r.Offer(r.request(command("GET", "large"))).Code, mqtt.Success)
	r.Quiet()
	// A notification likewise; what fits still comes.
	n.requester().want("+OK\r\n", "SET", "large", strings.Repeat("y", 2000))
	n.requester().want("+OK\r\n", "SET", "large", "small now")
	notified(t, r.client, "small", "large", setNotice("small now"))
	r.want(blob("small now"), "GET", "large")
}

func TestStoreWatchesBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.MaxWatches = 2 })
	r := n.requester()
	r.want("+OK\r\n", "KEYNOTIFY", "a")
	r.want("+OK\r\n", "KEYNOTIFY", "b")
	r.want("+OK\r\n", "KEYNOTIFY", "a")
	r.want(failure("the quota has been exceeded"), "KEYNOTIFY", "c")
	r.want("+OK\r\n", "KEYNOTIFY", "a", "STOP")
	r.want("+OK\r\n", "KEYNOTIFY", "c")
	n.requester().want("+OK\r\n", "KEYNOTIFY", "a")
}

func TestStoreNotificationsBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxNotifications = 10 })
	// Given a watcher that doesn't acknowledge, hence a window that stays full.
	watcher := n.requester(mqtttest.ClientID("watcher"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(5))
	id := watcher.SendPublish(watcher.request(command("KEYNOTIFY", "k")))
	watcher.AwaitAck(mqtt.PUBACK, id)
	watcher.Acknowledge(watcher.Receive())

	writer := n.requester()
	for i := range 40 {
		writer.want("+OK\r\n", "SET", "k", fmt.Sprint(i))
	}

	// Then it gets the beginning and is disconnected, never left with a hole (protocol, section 6).
	deadline := time.Now().Add(mqtttest.Deadline)
	for i := 0; ; i++ {
		p, err := watcher.Read(deadline)
		if err != nil {
			t.Fatalf("want DISCONNECT 0x97, got %v", err)
		}
		if p.Type == mqtt.DISCONNECT {
			wantCode(t, "DISCONNECT", p.Disconnect.Code, mqtt.QuotaExceeded)
			return
		}
		if p.Type != mqtt.PUBLISH || p.Publish.Payload != setNotice(fmt.Sprint(i)) {
			t.Fatalf("got %v, want notification %d", p, i)
		}
	}
}
