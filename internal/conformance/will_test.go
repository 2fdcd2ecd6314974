package conformance

import (
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// mourner is a client that gets every will.
func mourner(t *testing.T, n *node) *client {
	t.Helper()
	c := mqtttest.Connect(t, n.Addr)
	c.Subscribe("will/#", 2)
	return c
}

func TestWillOnAbnormalDisconnect(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		m := mourner(t, n)
		for name, end := range map[string]func(c *client){
			"vanished":  func(c *client) { c.Drop() },
			"malformed": func(c *client) { c.Write([]byte{0xC1, 0}) },
			"violation": func(c *client) { c.SendConnect(mqtttest.Version(v)) },
		} {
			will := message{Topic: "will/" + versionName(v) + "/" + name, Payload: name, QoS: 1}
			end(mqtttest.Connect(t, n.Addr, mqtttest.Version(v), mqtttest.Will(will, 0)))
			for {
				if got := m.Receive(); got.Topic == will.Topic {
					wantContent(t, got, will) // [MQTT-3.1.2-8]
					break
				}
			}
		}
	})
}

func TestWillOnKeepAliveTimeout(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/silent", Payload: "x", QoS: 2}
	n.connect(mqtttest.KeepAlive(1), mqtttest.Will(will, 0))
	wantContent(t, m.Receive(), will)
}

func TestNoWillAfterNormalDisconnect(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := mqtttest.Will(message{Topic: "will/never", QoS: 1}, 0)
	for _, v := range []mqtt.Version{mqtt.V311, mqtt.V5} {
		n.connect(mqtttest.Version(v), will).Disconnect() // [MQTT-3.1.2-10]
	}
	// A will published now would come before this.
	n.connect(mqtttest.Will(message{Topic: "will/last", QoS: 1}, 0)).Drop()
	if got := m.Receive(); got.Topic != "will/last" {
		t.Errorf("got %v, want no will after a normal DISCONNECT", got)
	}
}

func TestWillOnRequest(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/wanted", Payload: "x", QoS: 1}
	n.connect(mqtttest.Will(will, 0)).DisconnectWith(mqtt.Disconnect{Code: mqtt.DisconnectWithWill})
	wantContent(t, m.Receive(), will)
}

func TestWillKeepsItsProperties(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{
		Topic: "will/properties", Payload: "\x00\x01", QoS: 2,
		PayloadFormat: new(byte(0)), ContentType: new("c"), ResponseTopic: new("r"), CorrelationData: new("d"),
		User: [][2]string{{"b", "1"}, {"a", "2"}, {"b", "3"}},
	}
	n.connect(mqtttest.Will(will, 0)).Drop()
	wantContent(t, m.Receive(), will)

	// Its expiry begins when it is published.
	will.Expiry = new(uint32(100))
	n.connect(mqtttest.Will(will, 0)).Drop()
	if e := m.Receive().Expiry; e == nil || *e > 100 || *e < 99 {
		t.Errorf("got expiry %v, want 100", e)
	}
}

func TestRetainedWill(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/retained", Payload: "x", QoS: 1, Retain: true}
	n.connect(mqtttest.Will(will, 0)).Drop()
	m.Receive() // it is published now
	late := n.connect()
	late.Subscribe("will/retained", 1)
	wantContent(t, late.Receive(), will) // [MQTT-3.1.2-15]
}

func TestDelayedWill(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/delayed", Payload: "x", QoS: 1}
	c := n.connect(mqtttest.Persistent("delayed"), mqtttest.Will(will, 1))
	dropped := time.Now()
	c.Drop()
	wantContent(t, m.Receive(), will)
	if waited := time.Since(dropped); waited < 900*time.Millisecond {
		t.Errorf("the will came after %v, want 1 s", waited)
	}
}

func TestDelayedWillIsCancelledByReturn(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/cancelled", QoS: 1}
	n.connect(mqtttest.Persistent("returns"), mqtttest.Will(will, 5)).Drop()

	// When the client is back before the delay has passed [MQTT-3.1.3-9], and without a will.
	if !n.connect(mqtttest.Persistent("returns")).Connack.SessionPresent {
		t.Fatal("the session is gone")
	}
	letPass(5500 * time.Millisecond)
	m.Quiet()
}

func TestDelayedWillIsCancelledByTakeover(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	first := n.connect(mqtttest.Persistent("taken"), mqtttest.Will(message{Topic: "will/taken", QoS: 1}, 5))
	n.connect(mqtttest.Persistent("taken"))
	first.ExpectDisconnect(mqtt.SessionTakenOver)
	letPass(5500 * time.Millisecond)
	m.Quiet()
}

// Without a delay the network connection's end is the end, even if the session
// goes on with another one (MQTT 5, section 3.1.4).
func TestUndelayedWillOnTakeover(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/taken", Payload: "x", QoS: 1}
	first := n.connect(mqtttest.Persistent("taken"), mqtttest.Will(will, 0))
	n.connect(mqtttest.Persistent("taken"))
	first.ExpectDisconnect(mqtt.SessionTakenOver)
	wantContent(t, m.Receive(), will)
}

func TestDelayedWillWhenTheSessionEndsFirst(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	for _, c := range []struct {
		what   string
		expiry uint32
		wait   time.Duration
	}{
		{"at once without a session", 0, 0},
		{"when the session expires", 1, 900 * time.Millisecond},
	} {
		// Given a will that would wait for an hour.
		will := message{Topic: "will/session", Payload: c.what, QoS: 1}
		client := n.connect(mqtttest.ClientID("short"), mqtttest.SessionExpiry(c.expiry), mqtttest.Will(will, 3600))
		dropped := time.Now()
		client.Drop()
		wantContent(t, m.Receive(), will) // [MQTT-3.1.2-8]: the delay, or the session's end if that comes first
		if waited := time.Since(dropped); waited < c.wait {
			t.Errorf("%s: the will came after %v, want %v", c.what, waited, c.wait)
		}
	}
}

func TestDelayedWillWhenACleanStartEndsTheSession(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/clean", Payload: "x", QoS: 1}
	n.connect(mqtttest.Persistent("clean"), mqtttest.Will(will, 3600)).Drop()
	n.connect(mqtttest.ClientID("clean"))
	wantContent(t, m.Receive(), will)
}

func TestDelayedWillFollowsAnExpiryChangedByDisconnect(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/changed", Payload: "x", QoS: 1}
	c := n.connect(mqtttest.Persistent("changed"), mqtttest.Will(will, 3600))
	c.DisconnectWith(mqtt.Disconnect{Code: mqtt.DisconnectWithWill, HasSessionExpiry: true, SessionExpiry: 0})
	wantContent(t, m.Receive(), will)
}

func TestWillIsPublishedOnce(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	will := message{Topic: "will/once", Payload: "x", QoS: 1}
	n.connect(mqtttest.Persistent("once"), mqtttest.Will(will, 0)).Drop()
	wantContent(t, m.Receive(), will)
	// The session has no will any more: nothing comes when it returns and leaves.
	n.connect(mqtttest.Persistent("once")).Drop()
	n.connect(mqtttest.ClientID("once"))
	m.Quiet()
}

func TestWillTopicsAreChecked(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, topic := range []string{"will/#", "will/+/x", ""} {
		c := n.dial()
		c.SendConnect(mqtttest.Will(message{Topic: topic}, 0))
		refusedOrClosed(t, c)
	}
}
