package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// quotas is a policy that allows some users everything, and has a group of each with these
// quotas, in the form of YAML's flow maps.
func quotas(of map[string]string, others ...string) string {
	policy := "rules:"
	for _, user := range others {
		policy += everything(user)
	}
	groups := "\ngroups:"
	for user, quota := range of {
		policy += everything(user)
		groups += "\n  " + user + ": {usernames: [" + user + "], quotas: {" + quota + "}}"
	}
	if len(of) == 0 {
		return policy
	}
	return policy + groups
}

// Each quota of a principal holds over all of its connections, at its bound and not below,
// and another principal is not concerned.
func TestQuotaOfConnections(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "connections: 2"}, "lathe"))
	one := n.connect(as("press"))
	n.connect(as("press"), mqtttest.ClientID("two"))
	ack := mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("press"))
	wantSetting(t, "CONNACK", ack.ReasonString, "connections of the policy")
	n.connect(as("press"), mqtttest.ClientID("two")).Ping() // in place of its old connection
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("press"))
	for range 4 {
		n.connect(as("lathe"))
	}
	one.Disconnect()
	one.AwaitEnd()
	n.awaitConnected(t, as("press"))
}

// awaitConnected connects as soon as the server has noticed that another connection is gone.
func (n *governed) awaitConnected(t *testing.T, opts ...mqtttest.Option) *client {
	t.Helper()
	for deadline := time.Now().Add(mqtttest.Deadline); ; {
		c := n.dial()
		c.SendConnect(opts...)
		ack := c.Expect(mqtt.CONNACK).Connack
		if ack.Code == mqtt.Success {
			return c
		}
		if ack.Code != mqtt.QuotaExceeded || time.Now().After(deadline) {
			t.Fatalf("got CONNACK %v", ack.Code)
		}
		c.Drop()
	}
}

func TestQuotaOfSessions(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "sessions: 2"}, "lathe"))
	n.connect(as("press"))
	away := n.connect(as("press"), mqtttest.Persistent("away"))
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("press"))
	for range 4 {
		n.connect(as("lathe"))
	}
	away.Disconnect()
	away.AwaitEnd()
	n.awaitConnected(t, as("press")) // in place of the session that is away
}

// Subscriptions count over all sessions of a principal, also after a restart.
func TestQuotaOfSubscriptions(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "subscriptions: 3"}, "lathe"))
	one, two := n.connect(as("press"), mqtttest.Persistent("one")), n.connect(as("press"))
	one.Subscribe("a", 1)
	one.Subscribe("b", 1)
	ack := two.OfferSubscribe(0, sub{Filter: "c"}, sub{Filter: "d"})
	if want := []mqtt.ReasonCode{mqtt.GrantedQoS0, mqtt.QuotaExceeded}; !slices.Equal(ack.Codes, want) {
		t.Fatalf("got SUBACK %v, want %v", ack.Codes, want)
	}
	wantSetting(t, "SUBACK", ack.ReasonString, "subscriptions of the policy")
	two.Subscribe("c", 1) // again: it is no more than before
	lathe := n.connect(as("lathe"))
	for _, filter := range []string{"a", "b", "c", "d"} {
		lathe.Subscribe(filter, 1)
	}
	two.Unsubscribe("c")
	two.Subscribe("d", 0)
	two.Disconnect()
	n.Restart()
	three := n.connect(as("press"))
	three.Subscribe("e", 0)
	wantCode(t, "SUBACK", three.OfferSubscribe(0, sub{Filter: "f"}).Codes[0], mqtt.QuotaExceeded)
	n.connect(as("press"), mqtttest.ClientID("one")) // with a clean start
	three.Subscribe("f", 0)
	three.Subscribe("g", 0)
	wantCode(t, "SUBACK", three.OfferSubscribe(0, sub{Filter: "h"}).Codes[0], mqtt.QuotaExceeded)
}

func TestQuotaOfKeys(t *testing.T) {
	t.Parallel()
	const exceeded = "the quota has been exceeded"
	n := startGoverned(t, quotas(map[string]string{"press": "keys: 2, keyBytes: 20"}, "lathe"), func(c *server.Config) { c.MaxClientKeys = 3 })
	one, two := n.requester(as("press")), n.requester(as("press"))
	one.want(ok, "SET", "a", "v")
	two.want(ok, "SET", "b", "v")
	one.want(failure(exceeded), "SET", "c", "v")
	two.want(ok, "SET", "b", strings.Repeat("v", 17)) // 2 and 18 bytes
	two.want(failure(exceeded), "SET", "b", strings.Repeat("v", 18))
	two.want(":1\r\n", "DEL", "a")
	two.want(ok, "SET", "b", strings.Repeat("v", 19))
	lathe := n.requester(as("lathe"))
	for _, key := range []string{"x", "y", "z"} {
		lathe.want(ok, "SET", key, strings.Repeat("v", 100))
	}
	lathe.want(failure(exceeded), "SET", "more", "v") // by the server's setting

	n.govern(quotas(map[string]string{"press": "keys: 4"}, "lathe"))
	two.want(ok, "SET", "b", strings.Repeat("v", 18))
	two.want(ok, "SET", "c", "v")
}

// Retained messages count for the principal, whichever of its clients has published them,
// also after a restart. A will counts as well.
func TestQuotaOfRetainedMessages(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "retainedMessages: 3", "lathe": "retainedBytes: 100"}))
	one, two := n.connect(as("press"), mqtttest.ClientID("one")), n.connect(as("press"), mqtttest.ClientID("two"))
	offered(t, one, "the first", retain("1", "x"), mqtt.NoMatchingSubscribers)
	offered(t, two, "the second", retain("2", "x"), mqtt.NoMatchingSubscribers)
	dying := n.connect(as("press"), mqtttest.Will(retain("3", "x"), 0))
	dying.Drop()
	watcher := n.connect(as("lathe"))
	watcher.Subscribe("3", 0)
	watcher.Receive()
	offered(t, one, "the fourth", retain("4", "x"), mqtt.QuotaExceeded)
	offered(t, two, "one in place of the first", retain("1", "other"), mqtt.NoMatchingSubscribers)
	n.Restart()
	two = n.connect(as("press"), mqtttest.ClientID("three"))
	offered(t, two, "the fourth, after a restart", retain("4", "x"), mqtt.QuotaExceeded)
	offered(t, two, "a deletion", retain("3", ""), mqtt.NoMatchingSubscribers)
	offered(t, two, "one in place of the deleted", retain("4", "x"), mqtt.NoMatchingSubscribers)

	lathe := n.connect(as("lathe"), mqtttest.ClientID("l"))
	size := len("r") + len("l")
	offered(t, lathe, "as many bytes as may be", retain("r", strings.Repeat("x", 100-size)), mqtt.NoMatchingSubscribers)
	offered(t, lathe, "a byte more", retain("r", strings.Repeat("x", 101-size)), mqtt.QuotaExceeded)
}

// How far ahead of the clock timestamps may be can be less than the server allows, and not
// more.
func TestQuotaOfTimestampSkew(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "timestampSkew: 10s", "lathe": "timestampSkew: 10m"}, "olga"))
	tooFar := failure("the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized")
	for user, want := range map[string]map[time.Duration]string{
		"press": {5 * time.Second: ok, 40 * time.Second: tooFar, 2 * time.Minute: tooFar},
		"lathe": {5 * time.Second: ok, 40 * time.Second: ok, 2 * time.Minute: tooFar},
		"olga":  {5 * time.Second: ok, 40 * time.Second: ok, 2 * time.Minute: tooFar},
	} {
		r := n.requester(as(user))
		for by, want := range want {
			m := r.request(command("SET", user, "v"))
			m.User = [][2]string{{"__ts", ahead(by)}}
			if got := r.ask(m).Payload; got != want {
				t.Errorf("%s, %v ahead: got %q, want %q", user, by, got, want)
			}
		}
	}
}

// Of several groups the largest of each quota applies.
func TestQuotaOfSeveralGroups(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("press")+`
groups:
  small: {usernames: [press], quotas: {subscriptions: 1, keys: 2}}
  large: {usernames: [press], quotas: {subscriptions: 2, keys: 1}}`)
	c := n.connect(as("press"))
	ack := c.OfferSubscribe(0, sub{Filter: "a"}, sub{Filter: "b"}, sub{Filter: "c"})
	if want := []mqtt.ReasonCode{mqtt.GrantedQoS0, mqtt.GrantedQoS0, mqtt.QuotaExceeded}; !slices.Equal(ack.Codes, want) {
		t.Fatalf("got SUBACK %v, want %v", ack.Codes, want)
	}
}

// figure awaits a figure on $SYS.
func figure(t *testing.T, c *client, name, want string) {
	t.Helper()
	filter := "$SYS/" + name
	c.Subscribe(filter, 0)
	for last := ""; last != want; {
		last = c.Receive().Payload
	}
	c.Unsubscribe(filter)
}

// slow are quotas by which a second packet of a kilobyte, the largest that the server takes,
// waits for a quarter of an hour.
const slow = "publishBytesPerSecond: 1"

func startSlow(t *testing.T) (n *governed, olga *client) {
	t.Helper()
	n = startGoverned(t, quotas(map[string]string{"press": slow}, "lathe", "olga"), func(c *server.Config) {
		c.Limits.MaxPacketSize, c.Limits.TakeoverWait, c.SysInterval = 1<<10, 50*time.Millisecond, 20*time.Millisecond
	})
	return n, n.connect(as("olga"))
}

// kilobyte is a message whose packet is nearly as large as packets may be.
func kilobyte(topic string) message {
	return message{Topic: topic, QoS: 1, Payload: strings.Repeat("x", 1000)}
}

// A client that publishes faster than its principal may is not refused, and not
// disconnected: its connection is not read until it may go on. Other connections of the
// principal wait as well, also to send nothing but a PUBLISH of a few bytes; what they
// are sent comes all the same. Other principals are not concerned.
func TestPublishRateIsBackpressure(t *testing.T) {
	t.Parallel()
	n, olga := startSlow(t)
	const keepAlive = 4 // seconds, as a busy machine can hold the test up for some
	one := n.connect(as("press"), mqtttest.KeepAlive(keepAlive))
	two := n.connect(as("press"))
	two.Subscribe("news", 0)
	wantCode(t, "PUBACK", one.Offer(kilobyte("t")).Code, mqtt.NoMatchingSubscribers)
	held := one.SendPublish(kilobyte("t"))
	figure(t, olga, "broker/publish/messages/held up", "1")
	alsoHeld := two.SendPublish(kilobyte("t"))
	figure(t, olga, "broker/publish/messages/held up", "2")

	lathe := n.connect(as("lathe"))
	for range 3 {
		wantCode(t, "PUBACK", lathe.Offer(kilobyte("t")).Code, mqtt.NoMatchingSubscribers)
	}
	lathe.Publish(message{Topic: "news", Payload: "to one that is held up"})
	if got := two.Receive().Payload; got != "to one that is held up" {
		t.Errorf("a client that is held up got %q", got)
	}
	letPass((keepAlive*3/2 + 1) * time.Second)
	figure(t, olga, "broker/connections/timeouts", "0")

	n.govern(quotas(nil, "press", "lathe", "olga"))
	wantCode(t, "PUBACK", one.AwaitAck(mqtt.PUBACK, held).Ack.Code, mqtt.NoMatchingSubscribers)
	wantCode(t, "PUBACK", two.AwaitAck(mqtt.PUBACK, alsoHeld).Ack.Code, mqtt.NoMatchingSubscribers)
}

// A connection that is held up ends like any other: when its client connects again, when an
// operator ends it, when the server stops.
func TestAConnectionThatIsHeldUpEnds(t *testing.T) {
	t.Parallel()
	n, olga := startSlow(t)
	one := n.connect(as("press"), mqtttest.ClientID("one"))
	one.Offer(kilobyte("t"))
	for i, id := range []string{"one", "kicked", "last"} {
		c := one
		if id != "one" {
			c = n.connect(as("press"), mqtttest.ClientID(id))
		}
		c.SendPublish(kilobyte("t"))
		figure(t, olga, "broker/publish/messages/held up", fmt.Sprint(i+1))
		switch id {
		case "one":
			n.connect(as("press"), mqtttest.ClientID("one")).Ping()
			c.AwaitDisconnect(mqtt.SessionTakenOver)
		case "kicked":
			n.kick(t, id)
			c.AwaitDisconnect(mqtt.AdministrativeAction)
		default:
			n.Stop()
			c.AwaitDisconnect(mqtt.ServerShuttingDown)
		}
	}
}

// Connecting again gives a principal no new burst.
func TestConnectingAgainDoesNotRefillARate(t *testing.T) {
	t.Parallel()
	n, olga := startSlow(t)
	one := n.connect(as("press"))
	one.Offer(kilobyte("t"))
	one.Disconnect()
	one.AwaitEnd()
	figure(t, olga, "broker/principals/count", "1") // the server has noticed
	two := n.connect(as("press"))
	held := two.SendPublish(kilobyte("t"))
	figure(t, olga, "broker/publish/messages/held up", "1")
	n.govern(quotas(nil, "press", "lathe", "olga"))
	two.AwaitAck(mqtt.PUBACK, held)
}

// kick has an operator disconnect a client.
func (n *governed) kick(t *testing.T, clientID string) {
	t.Helper()
	for acted, err := range server.ActOnSessions(context.Background(), n.Config.DataDir, server.Kick, slices.Values([]string{clientID})) {
		if err != nil || !acted.Found {
			t.Fatalf("kick %s: found %v, %v", clientID, acted.Found, err)
		}
	}
}

// Publishes that are counted by their number: what comes beyond the burst waits, and is not
// lost.
func TestPublishesPerSecond(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(map[string]string{"press": "publishesPerSecond: 1000"}, "lathe"))
	reader := n.connect(as("lathe"))
	reader.Subscribe("t", 1)
	press := n.connect(as("press"))
	publishAll(press, numbered("t", 1, 1500))
	wantPayloads(t, reader.ReceiveN(1500), counted(0, 1500))
}

// When all connections are taken, the principal that has most of them loses its newest to
// one that has fewer, down to an equal share.
func TestPrincipalWithMostConnectionsMakesRoom(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, quotas(nil, "press", "lathe"), func(c *server.Config) { c.Limits.MaxConnections = 4 })
	var press []*client
	for range 4 {
		press = append(press, n.connect(as("press")))
	}
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("press"))
	for i := range 2 {
		n.connect(as("lathe")).Ping()
		d := press[3-i].AwaitDisconnect(mqtt.QuotaExceeded).Disconnect
		wantSetting(t, "DISCONNECT", d.ReasonString, "--max-connections")
	}
	for _, user := range []string{"lathe", "press"} {
		mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as(user))
		mqtttest.Refused(t, n.Addr, mqtt.ServerUnavailable, as(user), mqtttest.V311())
	}
	press[0].Ping()
	press[1].Ping()
}

// A server that one principal has filled, with connections and with sessions, has room for
// an administrator, who lists and kicks.
func TestAdministratorGetsIntoAFullServer(t *testing.T) {
	t.Parallel()
	const most = 3
	n := startGoverned(t, quotas(map[string]string{"admin": "reserve: true"}, "press"), func(c *server.Config) {
		l := &c.Limits
		l.MaxConnections, l.MaxSessions, l.MaxSessionsPerPrincipal, l.ReservedConnections = most, most, most, 2
		c.SysInterval = 20 * time.Millisecond
	})
	var press []*client
	for i := range most {
		press = append(press, n.connect(as("press"), mqtttest.ClientID(fmt.Sprint("press-", i))))
	}
	silent := n.dialAll(t, 66) // beyond all places: none of them sends a CONNECT
	one := n.connect(as("admin"), mqtttest.ClientID("admin-1"))
	two := n.connect(as("admin"), mqtttest.ClientID("admin-2"))
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("press"))
	figure(t, one, "broker/connections/reserved", "2")
	figure(t, one, "broker/principals/most connections", "3 user:press")
	figure(t, one, "broker/principals/most sessions", "3 user:press")
	for _, c := range press {
		c.Ping()
	}
	var listed []string
	for s, err := range server.Sessions(context.Background(), n.Config.DataDir) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, s.ClientID)
	}
	if want := []string{"admin-1", "admin-2", "press-0", "press-1", "press-2"}; !slices.Equal(listed, want) {
		t.Errorf("an operator lists %q, want %q", listed, want)
	}
	n.kick(t, "press-1")
	press[1].AwaitDisconnect(mqtt.AdministrativeAction)
	for _, c := range silent {
		c.Drop()
	}
	two.Disconnect()
	one.Disconnect()
	n.awaitConnected(t, as("press"))
}

// dialAll opens connections that send nothing.
func (n *node) dialAll(t *testing.T, count int) (all []*client) {
	t.Helper()
	for range count {
		all = append(all, n.dial())
	}
	return all
}
