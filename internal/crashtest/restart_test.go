package crashtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// server is the broker on a directory and an address of its own.
type server struct {
	*testserver.Program
	t *testing.T
}

func startServer(t *testing.T) *server {
	t.Helper()
	return &server{testserver.Run(t, "--listen", testserver.FreeAddress()), t}
}

func (s *server) client() *client.Client {
	s.t.Helper()
	c, err := client.Dial(s.t.Context(), s.Addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func set(t *testing.T, c *client.Client, key, value string, opts ...client.SetOption) hlc.Timestamp {
	t.Helper()
	result, err := c.Set(t.Context(), key, []byte(value), opts...)
	if err != nil {
		t.Fatalf("set %q: %v", key, err)
	}
	return result.Version
}

func get(ctx context.Context, t *testing.T, c *client.Client, key string) (value string, version hlc.Timestamp, found bool) {
	t.Helper()
	v, found, err := c.Get(ctx, key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return string(v.Bytes), v.Version, found
}

func TestKilledStoreKeepsEveryWrite(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.client()
	token := hlc.Timestamp{Wall: uint64(time.Now().UnixMilli()), Counter: 1, Node: "lock"}

	// Given keys that were written, protected, given time, and deleted.
	versions := map[string]hlc.Timestamp{}
	var highest hlc.Timestamp
	for i := range 200 {
		key := fmt.Sprint("kept/", i)
		versions[key] = set(t, c, key, fmt.Sprint("value of ", i))
		highest = versions[key]
	}
	set(t, c, "fenced", "by a token", client.Fencing(token))
	set(t, c, "leased", "for an hour", client.Expiry(time.Hour))
	set(t, c, "deleted", "soon")
	if _, err := c.Del(t.Context(), "deleted"); err != nil {
		t.Fatal(err)
	}

	// When the broker is killed,
	s.Restart()
	c = s.client()

	// then they are what they were,
	for key, version := range versions {
		value, got, found := get(t.Context(), t, c, key)
		if want := "value of " + key[len("kept/"):]; !found || value != want || got != version {
			t.Errorf("%q is %q version %v, found %v; want %q version %v", key, value, got, found, want, version)
		}
	}
	if _, _, found := get(t.Context(), t, c, "leased"); !found {
		t.Error("a key with an hour to live is gone")
	}
	if _, _, found := get(t.Context(), t, c, "deleted"); found {
		t.Error("a deleted key is back")
	}
	if _, err := c.Set(t.Context(), "fenced", []byte("without")); err == nil {
		t.Error("the fencing token is forgotten")
	}
	// and versions go on rising.
	if v := set(t, c, "kept/0", "again"); v.Compare(highest) <= 0 {
		t.Errorf("version %v after the kill, %v before", v, highest)
	}
}

func TestExpiredKeysStayGone(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.client()

	// Given a key that expires while the broker runs, and one that will while it doesn't.
	set(t, c, "seen", "briefly", client.Expiry(20*time.Millisecond))
	w, err := c.Watch(t.Context(), "seen")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, found := get(t.Context(), t, c, "seen"); found {
		if e := <-w.Chan(); e.Kind != client.KeyDeleted {
			t.Fatalf("got %+v, want the expiry", e)
		}
	}
	deadline := time.Now().Add(100 * time.Millisecond)
	set(t, c, "unseen", "briefly", client.Expiry(100*time.Millisecond))

	// When it is killed and started, until the deadline has passed, and once more,
	for rounds := 0; rounds < 2 || time.Now().Before(deadline.Add(time.Duration(history.ClockSlack))); rounds++ {
		s.Restart()
	}
	s.Restart()
	c = s.client()

	// Then both are gone, for GET and for SET.
	for _, key := range []string{"seen", "unseen"} {
		if value, _, found := get(t.Context(), t, c, key); found {
			t.Errorf("%q is back: %q", key, value)
		}
		set(t, c, key, "new", client.IfAbsent())
	}
}

func TestKilledBrokerKeepsSessions(t *testing.T) {
	t.Parallel()
	s := startServer(t)

	// Given a session with subscriptions, one of them ended, and a session that has ended.
	c := mqtttest.Connect(t, s.Addr, mqtttest.Persistent("stays"))
	if c.Connack.SessionPresent {
		t.Fatal("a session before there was one")
	}
	c.Subscribe("kept/+", 1)
	c.Subscribe("left", 1)
	c.Unsubscribe("left")
	mqtttest.Connect(t, s.Addr, mqtttest.ClientID("goes"), mqtttest.SessionExpiry(0))

	// When the broker is killed,
	s.Restart()

	// then the one is there without being asked for again, and the other isn't.
	c = mqtttest.Connect(t, s.Addr, mqtttest.Persistent("stays"))
	if !c.Connack.SessionPresent {
		t.Error("the session is gone")
	}
	p := mqtttest.Connect(t, s.Addr, mqtttest.ClientID("publisher"))
	p.Publish(mqtttest.Message{Topic: "left", Payload: "no subscriber", QoS: 1})
	p.Publish(mqtttest.Message{Topic: "kept/1", Payload: "this comes", QoS: 1})
	if m := c.Receive(); m.Payload != "this comes" {
		t.Errorf("got %v", m)
	}
	if mqtttest.Connect(t, s.Addr, mqtttest.Persistent("goes")).Connack.SessionPresent {
		t.Error("a session that was to end with its connection is there")
	}
}

// A message that was sent stays marked as sent before, whatever came between: a
// connection that got only some of them again, and a kill while the client was away.
func TestRedeliveryStaysMarked(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const messages, some = 20, 5

	// Given messages that came and were not acknowledged before a kill,
	c := mqtttest.Connect(t, s.Addr, mqtttest.Persistent("reader"), mqtttest.HoldAcks())
	c.Subscribe("news", 1)
	p := mqtttest.Connect(t, s.Addr)
	for i := range messages {
		p.Publish(mqtttest.Message{Topic: "news", Payload: fmt.Sprint(i), QoS: 1})
	}
	for range messages {
		c.Receive()
	}
	s.Restart()

	// of which a connection got only some again, and ended,
	c = mqtttest.Connect(t, s.Addr, mqtttest.Persistent("reader"), mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(some))
	for range some {
		c.Receive()
	}
	c.Disconnect()
	// (this is on disk behind whatever the end of the connection put there)
	mqtttest.Connect(t, s.Addr).Publish(mqtttest.Message{Topic: "fence", Payload: "x", QoS: 1, Retain: true})
	s.Restart()

	// then all of them come marked.
	c = mqtttest.Connect(t, s.Addr, mqtttest.Persistent("reader"))
	for i := range messages {
		if m := c.Receive(); m.Payload != fmt.Sprint(i) || !m.Dup {
			t.Errorf("message %d comes as %v, want it with DUP [MQTT-3.3.1-1]", i, m)
		}
	}
}
