package conformance

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// The topics of protocol, section 1, copied from there: the tests don't take them from
// the code.
const (
	invokeTopic  = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	previewTopic = "$services/statestore/_any_/command/invoke/request"
	notifyPrefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
)

// requester is a client that asks the store and reads its answers.
type requester struct {
	t *testing.T
	*client
	topic     string // where requests go
	timestamp string // the dialect's name for a request's version
	responses string // where answers come
	sent      int
}

// requests makes a requester of a connected client. It subscribes as the Go SDK
// does, with No Local.
func requests(t *testing.T, c *client) *requester {
	t.Helper()
	r := &requester{t: t, client: c, topic: invokeTopic, timestamp: "__ts"}
	r.responses = fmt.Sprintf("clients/%d/services/statestore/_any_/command/invoke/response", counter.Add(1))
	c.SubscribeWith(0, sub{Filter: r.responses, QoS: 1, NoLocal: true})
	return r
}

// counter gives each requester its own response topic.
var counter atomic.Int64

func (n *node) requester(opts ...mqtttest.Option) *requester {
	n.t.Helper()
	return requests(n.t, n.connect(opts...))
}

// preview makes a requester speak the dialect of 2023.
func (r *requester) preview() *requester {
	r.topic, r.timestamp = previewTopic, "Timestamp"
	return r
}

// command is a payload: an array of blob strings (protocol, section 3).
func command(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

// now is a version as a client of the store would give, padded as the SDKs do.
func now() string { return ahead(0) }

func ahead(d time.Duration) string {
	return fmt.Sprintf("%015d:%05d:test", time.Now().Add(d).UnixMilli(), 0)
}

// request is a good request with this payload. Tests break what they are about.
func (r *requester) request(payload string) message {
	r.sent++
	return message{
		Topic: r.topic, QoS: 1, Payload: payload,
		ResponseTopic: &r.responses, CorrelationData: new(fmt.Sprintf("\x00correlation\xFF%d", r.sent)),
		User: [][2]string{{r.timestamp, now()}},
	}
}

// do sends a command and returns the store's answer.
func (r *requester) do(args ...string) message {
	r.t.Helper()
	return r.ask(r.request(command(args...)))
}

// ask sends a request, which must be acknowledged with Success, and returns the
// answer. Other packets are kept.
func (r *requester) ask(m message) message {
	r.t.Helper()
	id := r.SendPublish(m)
	if ack := r.AwaitAck(mqtt.PUBACK, id).Ack; ack.Code != mqtt.Success {
		r.t.Fatalf("%q: got PUBACK 0x%02x %v (%s)", m.Payload, byte(ack.Code), ack.Code, ack.ReasonString)
	}
	return r.answer(*m.CorrelationData)
}

// answer awaits the answer with this correlation data.
func (r *requester) answer(correlation string) message {
	r.t.Helper()
	p := r.Await("response", func(p *mqtttest.Packet) bool {
		return p.Type == mqtt.PUBLISH && p.Publish.CorrelationData != nil && *p.Publish.CorrelationData == correlation
	})
	return *p.Publish
}

// want sends a command and checks what it answers.
func (r *requester) want(reply string, args ...string) message {
	r.t.Helper()
	got := r.do(args...)
	if got.Payload != reply {
		r.t.Fatalf("%q: got %q, want %q", args, got.Payload, reply)
	}
	return got
}

// version is the version that a message carries.
func version(t *testing.T, m message) hlc.Timestamp {
	t.Helper()
	text, ok := m.UserProp("__ts")
	if !ok {
		text, ok = m.UserProp("Timestamp")
	}
	if !ok {
		t.Fatalf("got no version in %v", m)
	}
	v, err := hlc.Parse(text)
	if err != nil {
		t.Fatalf("got version %q: %v", text, err)
	}
	return v
}

func wantNoVersion(t *testing.T, what string, m message) {
	t.Helper()
	if v, ok := m.UserProp("__ts"); ok {
		t.Errorf("%s: got version %q, want none (the Go SDK takes one as \"present\")", what, v)
	}
}

// blob is a value as GET answers it.
func blob(value string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(value), value) }

// failure is an error as the store says it.
func failure(text string) string { return "-ERR " + text + "\r\n" }

// notifyTopic is the topic of a client's notifications about a key.
func notifyTopic(clientID, key string) string {
	return fmt.Sprintf("%s/%X/command/notify/%X", notifyPrefix, clientID, key)
}

// notified returns the next packet, which must be a notification about key with
// this payload, and checks all that comes with it.
func notified(t *testing.T, c *client, clientID, key, payload string) message {
	t.Helper()
	m := c.Receive()
	if m.Topic != notifyTopic(clientID, key) || m.Payload != payload {
		t.Fatalf("got %v, want a notification %q to %s", m, payload, notifyTopic(clientID, key))
	}
	checkNotification(t, m)
	return m
}

func checkNotification(t *testing.T, m message) {
	t.Helper()
	if m.QoS != 1 || m.Retain {
		t.Errorf("got %v, want QoS 1, not retained", m)
	}
	if m.ContentType == nil || *m.ContentType != "application/octet-stream" {
		t.Errorf("got content type %v", m.ContentType)
	}
	if len(m.User) != 3 {
		t.Errorf("got user properties %q, want __ts, __protVer and __srcId", m.User)
	}
	if v, _ := m.UserProp("__protVer"); v != "1.0" {
		t.Errorf("got __protVer %q, want 1.0", v)
	}
	if v, _ := m.UserProp("__srcId"); v != "StateStore" {
		t.Errorf("got __srcId %q, want StateStore", v)
	}
	version(t, m)
	if m.ResponseTopic != nil || m.CorrelationData != nil || m.Expiry != nil || len(m.SubscriptionIDs) > 0 {
		t.Errorf("got %+v, want no other properties", m)
	}
}

func setNotice(value string) string { return command("NOTIFY", "SET", "VALUE", value) }

var deleteNotice = command("NOTIFY", "DELETE")
