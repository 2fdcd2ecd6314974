package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// doorkeeper is an Authenticator, and Permissions, for tests: a client is its user name, and may
// do anything that has nothing secret in it, but for publishing where it is to listen.
type doorkeeper struct {
	access.AllowAll
	refuse map[string]mqtt.ReasonCode // by user name
}

func (d doorkeeper) Connect(p *mqtt.Connect, clientID string, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	user := string(p.Username)
	if code := d.refuse[user]; code != mqtt.Success {
		return access.Verdict{Code: code, Reason: "the doorkeeper doesn't know you"}
	}
	return access.Verdict{Identity: &access.Identity{ClientID: clientID, Username: user}}
}

func (doorkeeper) Reauthenticate(*access.Identity, *mqtt.Auth, *access.Origin, <-chan struct{}) access.Verdict {
	return access.Verdict{Code: mqtt.NotAuthorized}
}

func (doorkeeper) Holds(*access.Identity) bool { return true }

func (doorkeeper) MayConnect(*access.Identity) bool { return true }

func (doorkeeper) MayPublish(_ *access.Identity, topic []byte) bool {
	return !strings.Contains(string(topic), "secret") && !strings.Contains(string(topic), "listen")
}

func (doorkeeper) MaySubscribe(_ *access.Identity, filter []byte) bool {
	return !strings.Contains(string(filter), "secret")
}

func (doorkeeper) MayRead(id *access.Identity, key []byte) bool {
	return id.Username != "limited" || !strings.Contains(string(key), "private")
}

func (doorkeeper) MayWrite(id *access.Identity, key []byte) bool {
	return id.Username != "limited" || strings.HasPrefix(string(key), "mine")
}

// guarded is a server with a doorkeeper.
func guarded(t *testing.T, d doorkeeper) *node {
	t.Helper()
	return start(t, func(c *server.Config) { c.Auth, c.May = d, d })
}

func TestConnectIsRefused(t *testing.T) {
	t.Parallel()
	codes := map[string]mqtt.ReasonCode{
		"wrong": mqtt.BadUserNameOrPassword, "banned": mqtt.NotAuthorized, "early": mqtt.ServerUnavailable,
	}
	n := guarded(t, doorkeeper{refuse: codes})
	for user, code := range codes {
		ack := mqtttest.Refused(t, n.Addr, code, mqtttest.Credentials(user, "secret"))
		wantReason(t, user, ack.ReasonString)
		mqtttest.Refused(t, n.Addr, code, mqtttest.Credentials(user, "secret"), mqtttest.V311())
	}
	n.connect(mqtttest.Credentials("known", "secret")).Ping()
}

func TestPublishAndSubscribeAreRefused(t *testing.T) {
	t.Parallel()
	n := guarded(t, doorkeeper{})
	listener, c, old := n.connect(), n.connect(), n.connect(mqtttest.V311())
	listener.Subscribe("#", 1)

	for qos := byte(1); qos <= 2; qos++ {
		ack := c.Offer(message{Topic: "a/secret", QoS: qos})
		wantCode(t, "acknowledgement", ack.Code, mqtt.NotAuthorized)
		wantReason(t, "acknowledgement", ack.ReasonString)
	}
	c.Publish(message{Topic: "a/secret"})
	c.Publish(message{Topic: "a/secret", Payload: "x", Retain: true})
	// 3.1.1 can't say it: it acknowledges, or closes [MQTT 3.1.1, MQTT-3.3.5-2]. We acknowledge.
	old.Publish(message{Topic: "a/secret", QoS: 1})
	old.Publish(message{Topic: "a/secret", QoS: 2})
	listener.Quiet()

	ack := c.OfferSubscribe(0, sub{Filter: "a/secret", QoS: 1}, sub{Filter: "$share/g/a/secret"}, sub{Filter: "open", QoS: 2})
	if want := []mqtt.ReasonCode{mqtt.NotAuthorized, mqtt.NotAuthorized, mqtt.GrantedQoS2}; !slices.Equal(ack.Codes, want) {
		t.Errorf("got % x, want % x", ack.Codes, want)
	}
	wantReason(t, "SUBACK", ack.ReasonString)
	wantCode(t, "3.1.1", old.OfferSubscribe(0, sub{Filter: "a/secret"}).Codes[0], mqtt.UnspecifiedError)

	connack := mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, mqtttest.Will(message{Topic: "a/secret"}, 0))
	wantReason(t, "CONNACK", connack.ReasonString)
}

// invited refuses every request to the store.
type invited struct{ doorkeeper }

func (invited) MayPublish(_ *access.Identity, topic []byte) bool {
	return string(topic) != invokeTopic && string(topic) != previewTopic
}

func TestStoreRequestsNeedPermission(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.May = invited{} })
	for _, r := range []*requester{n.requester(), n.requester().preview()} {
		ack := r.Offer(r.request(command("SET", "k", "v")))
		wantCode(t, "PUBACK", ack.Code, mqtt.NotAuthorized)
		wantReason(t, "PUBACK", ack.ReasonString)
		r.Quiet()
	}
}

// Protocol, section 2: a client cannot use the store to publish where it may not
// publish itself. The response reaches its own subscriptions.
func TestStoreDoesNotPublishForAClientThatMayNot(t *testing.T) {
	t.Parallel()
	n := guarded(t, doorkeeper{})
	listener := n.connect()
	listener.Subscribe("a/+", 1)
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("a/+", 1)
	away.Disconnect()
	shared := n.connect()
	shared.Subscribe("$share/g/a/+", 1)

	r := n.requester()
	r.SubscribeWith(0, sub{Filter: "a/+", QoS: 1, NoLocal: true})
	m := r.request(command("SET", "k", "v"))
	m.ResponseTopic = new("a/listen")
	if got := r.ask(m); got.Topic != "a/listen" || got.Payload != ok {
		t.Errorf("got %v, want the answer", got)
	}
	listener.Quiet()
	shared.Quiet()
	n.connect(mqtttest.Persistent("away")).Quiet()

	// Without a subscription of its own it gets no answer, and the request is executed all the same.
	r.Unsubscribe("a/+")
	m = r.request(command("SET", "k", "w"))
	m.ResponseTopic = new("a/listen")
	wantCode(t, "PUBACK", r.Offer(m).Code, mqtt.Success)
	r.Quiet()
	r.want(blob("w"), "GET", "k")
	listener.Quiet()
}

func TestStoreKeysNeedPermission(t *testing.T) {
	t.Parallel()
	n := guarded(t, doorkeeper{})
	owner, limited := n.requester(), n.requester(mqtttest.Credentials("limited", ""))
	for _, key := range []string{"private/a", "theirs", "mine"} {
		owner.want(ok, "SET", key, "v")
	}
	denied := failure("not authorized")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"GET", "private/a"}, denied},
		{[]string{"GET", "private/none"}, denied},
		{[]string{"KEYNOTIFY", "private/a"}, denied},
		{[]string{"GET", "theirs"}, blob("v")},
		{[]string{"SET", "theirs", "w"}, denied},
		{[]string{"DEL", "theirs"}, denied},
		{[]string{"VDEL", "theirs", "v"}, denied},
		{[]string{"SET", "theirs", "w", "NONSENSE"}, failure("syntax error")}, // options come first
		{[]string{"SET", "mine", "w"}, ok},
	} {
		if got := limited.do(c.args...).Payload; got != c.want {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
	// It comes before the timestamp.
	m := limited.request(command("SET", "theirs", "w"))
	m.User = nil
	if got := limited.ask(m).Payload; got != denied {
		t.Errorf("without a timestamp: got %q, want %q", got, denied)
	}
}

// Protocol, section 7: only keys that the client may read are in a page.
func TestStoreScanShowsOnlyReadableKeys(t *testing.T) {
	t.Parallel()
	n := guarded(t, doorkeeper{})
	owner, limited := n.requester(), n.requester(mqtttest.Credentials("limited", ""))
	for _, key := range []string{"a", "private/a", "private/b", "z"} {
		owner.want(ok, "SET", key, "v")
	}
	owner.want("*1\r\n*4\r\n"+blob("a")+blob("private/a")+blob("private/b")+blob("z"), "SCAN", "*")
	limited.want("*1\r\n*2\r\n"+blob("a")+blob("z"), "SCAN", "*")
	limited.want("*1\r\n*0\r\n", "SCAN", "private/*")
}
