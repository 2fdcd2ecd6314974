package conformance

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestConnackAnnouncesEveryLimit(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) {
		c.Limits.ReceiveMaximum = 10
		c.Limits.TopicAliasMaximum = 5
		c.Limits.MaxPacketSize = 4096
		c.Limits.MaxKeepAlive = 30 * time.Second
		c.Limits.MaxSessionExpiry = 60 * time.Second
	})

	// When a client asks for more than the server grants.
	greedy := n.connect(mqtttest.ClientID("greedy"), mqtttest.KeepAlive(600), mqtttest.SessionExpiry(0xFFFFFFFF)).Connack
	if !greedy.HasServerKeepAlive || greedy.ServerKeepAlive != 30 {
		t.Errorf("Server Keep Alive: got %d, want 30", greedy.ServerKeepAlive)
	}
	if !greedy.HasSessionExpiry || greedy.SessionExpiry != 60 {
		t.Errorf("Session Expiry Interval: got %d, want 60", greedy.SessionExpiry)
	}
	if greedy.ReceiveMaximum != 10 {
		t.Errorf("Receive Maximum: got %d, want 10", greedy.ReceiveMaximum)
	}
	if greedy.TopicAliasMaximum != 5 {
		t.Errorf("Topic Alias Maximum: got %d, want 5", greedy.TopicAliasMaximum)
	}
	if greedy.MaximumPacketSize != 4096 {
		t.Errorf("Maximum Packet Size: got %d, want 4096", greedy.MaximumPacketSize)
	}

	// When a client switches its keep alive off: 0 is more than any bound.
	silent := n.connect(mqtttest.KeepAlive(0)).Connack
	if !silent.HasServerKeepAlive || silent.ServerKeepAlive != 30 {
		t.Errorf("Server Keep Alive for Keep Alive 0: got %d, want 30", silent.ServerKeepAlive)
	}

	// When a client asks for less: it gets what it asked for.
	modest := n.connect(mqtttest.KeepAlive(20), mqtttest.SessionExpiry(40)).Connack
	if modest.HasServerKeepAlive && modest.ServerKeepAlive != 20 {
		t.Errorf("Server Keep Alive for Keep Alive 20: got %d, want none or 20", modest.ServerKeepAlive)
	}
	if modest.HasSessionExpiry && modest.SessionExpiry != 40 {
		t.Errorf("Session Expiry Interval for 40: got %d, want none or 40", modest.SessionExpiry)
	}
}

func TestConnackOffersEveryFeature(t *testing.T) {
	t.Parallel()
	ack := start(t).connect().Connack
	if ack.HasMaximumQoS {
		t.Errorf("Maximum QoS: got %d, want none, that is 2", ack.MaximumQoS)
	}
	for _, feature := range []struct {
		name    string
		has, on bool // absent means available
	}{
		{"Retain", ack.HasRetainAvailable, ack.RetainAvailable},
		{"Wildcard Subscription", ack.HasWildcardSubscriptionAvailable, ack.WildcardSubscriptionAvailable},
		{"Subscription Identifiers", ack.HasSubscriptionIDsAvailable, ack.SubscriptionIDsAvailable},
		{"Shared Subscription", ack.HasSharedSubscriptionAvailable, ack.SharedSubscriptionAvailable},
	} {
		if feature.has && !feature.on {
			t.Errorf("%s: announced as not available", feature.name)
		}
	}
}

func TestAssignedClientIdentifier(t *testing.T) {
	t.Parallel()
	n := start(t)

	// Given two clients without a name, each gets one of its own.
	first := n.connect(mqtttest.SessionExpiry(60))
	second := n.connect(mqtttest.Resume())
	id := string(first.Connack.AssignedClientID)
	if id == "" || string(second.Connack.AssignedClientID) == "" {
		t.Fatalf("got assigned identifiers %q and %q, want both [MQTT-3.2.2-16]", id, second.Connack.AssignedClientID)
	}
	if id == string(second.Connack.AssignedClientID) {
		t.Fatalf("got %q twice, want unique identifiers", id)
	}
	if second.Connack.SessionPresent {
		t.Error("a session was present for a client without a name")
	}

	// The name that was assigned is the name of the session.
	first.Disconnect()
	again := n.connect(mqtttest.Persistent(id))
	if !again.Connack.SessionPresent {
		t.Errorf("no session under the assigned identifier %q", id)
	}
	if got := string(again.Connack.AssignedClientID); got != "" {
		t.Errorf("got assigned identifier %q for a client that named itself", got)
	}
}

// In 3.1.1 a client without a name must want a clean session [MQTT-3.1.3-8].
func TestEmptyClientIdentifier311(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.connect(mqtttest.V311()).Ping()
	mqtttest.Refused(t, n.Addr, mqtt.ClientIdentifierNotValid, mqtttest.V311(), mqtttest.Resume())
}

func TestClientIdentifiers(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, id := range []string{
		"0123456789abcdefghijklm", // 23 bytes, the length that every server takes [MQTT-3.1.3-5]
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		"with spaces/and #+ signs",
		"grüße-日本-\U0001F600",
		strings.Repeat("x", 200),
	} {
		n.connect(mqtttest.ClientID(id)).Ping()
	}
	tooLong := mqtttest.ClientID(strings.Repeat("x", 2000))
	ack := mqtttest.Refused(t, n.Addr, mqtt.ClientIdentifierNotValid, tooLong)
	wantReason(t, "a client identifier beyond the bound", ack.ReasonString)
	mqtttest.Refused(t, n.Addr, mqtt.ClientIdentifierNotValid, mqtttest.V311(), tooLong)
}

func TestFirstPacketMustBeConnect(t *testing.T) {
	t.Parallel()
	n := start(t)
	for name, packet := range map[string][]byte{
		"PINGREQ":            {0xC0, 0},
		"PUBLISH":            {0x30, 6, 0, 1, 'a', 0, 'x', 'y'},
		"SUBSCRIBE":          {0x82, 7, 0, 1, 0, 0, 1, 'a', 0},
		"DISCONNECT":         {0xE0, 0},
		"AUTH":               {0xF0, 0},
		"reserved":           {0x00, 0},
		"text":               []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"CONNECT with flags": {0x11, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := mqtttest.Dial(t, n.Addr)
			c.Write(packet)
			c.ExpectClosed() // [MQTT-3.1.0-1]
		})
	}
	n.connect().Ping()
}

func TestSecondConnectIsAProtocolError(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		c := mqtttest.Connect(t, n.Addr, mqtttest.Version(v), mqtttest.ClientID("twice"+versionName(v)))
		c.SendConnect(mqtttest.Version(v), mqtttest.ClientID("twice"+versionName(v)))
		c.ExpectDisconnect(mqtt.ProtocolError) // [MQTT-3.1.0-2]
	})
}

func TestUnknownProtocolLevel(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, unknown := range []struct {
		level byte
		form  mqtt.Version // of the answer: the nearest that the client may understand
	}{{0, mqtt.V311}, {3, mqtt.V311}, {6, mqtt.V5}, {255, mqtt.V5}} {
		c := n.dial()
		connect := c.EncodeConnect(mqtttest.Version(unknown.form), mqtttest.ClientID("level"))
		connect[8] = unknown.level // after the fixed header and "MQTT" with its length
		c.Write(connect)
		ack := c.ExpectRefused(mqtt.UnsupportedProtocolVersion) // [MQTT-3.1.2-2]
		if unknown.form == mqtt.V5 {
			wantReason(t, "CONNACK", ack.ReasonString)
		}
	}
}

func TestUnknownProtocolNameIsClosed(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, name := range []string{"MQTx", "mqtt", ""} {
		body := append([]byte{0, byte(len(name))}, name...)
		body = append(body, 5, 2, 0, 60, 0, 0, 1, 'a')
		c := n.dial()
		c.Write(append([]byte{0x10, byte(len(body))}, body...))
		refusedOrClosed(t, c) // [MQTT-3.1.2-1]: it may say 0x84
	}
}

// refusedOrClosed checks that the server ends the connection, after a CONNACK
// that says why or without one (MQTT 5, section 4.13: it may).
func refusedOrClosed(t *testing.T, c *client, codes ...mqtt.ReasonCode) {
	t.Helper()
	p, err := c.Read(time.Now().Add(mqtttest.Deadline))
	if errors.Is(err, io.EOF) {
		return
	}
	if err != nil {
		t.Fatalf("want a refusal or the connection closed, got %v", err)
	}
	if p.Type != mqtt.CONNACK || !p.Connack.Code.Failed() {
		t.Fatalf("got %v, want a refusal", p)
	}
	if len(codes) > 0 && !slices.Contains(codes, p.Connack.Code) {
		t.Fatalf("got %v, want one of % x", p, codes)
	}
	c.ExpectClosed()
}

// mqttString is a string as MQTT writes it.
func mqttString(s string) []byte {
	return append([]byte{byte(len(s) >> 8), byte(len(s))}, s...)
}

// packetOf is a packet with a fixed header and a body put together from parts.
func packetOf(header byte, parts ...[]byte) []byte {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	packet := []byte{header}
	for size := len(body); ; {
		digit := byte(size & 0x7F)
		if size >>= 7; size == 0 {
			return append(append(packet, digit), body...)
		}
		packet = append(packet, digit|0x80)
	}
}

func TestMalformedConnect(t *testing.T) {
	t.Parallel()
	n := start(t)
	name, id := mqttString("MQTT"), mqttString("broken")
	for _, broken := range []struct {
		what   string
		packet []byte
	}{
		{"reserved flag [MQTT-3.1.2-3]", packetOf(0x10, name, []byte{5, 0x03, 0, 60, 0}, id)},
		{"will QoS 3 [MQTT-3.1.2-12]", packetOf(0x10, name, []byte{5, 0x1E, 0, 60, 0}, id, []byte{0}, mqttString("w"), mqttString("x"))},
		{"will QoS without a will [MQTT-3.1.2-11]", packetOf(0x10, name, []byte{5, 0x0A, 0, 60, 0}, id)},
		{"will retain without a will [MQTT-3.1.2-13]", packetOf(0x10, name, []byte{5, 0x22, 0, 60, 0}, id)},
		{"no client identifier", packetOf(0x10, name, []byte{5, 2, 0, 60, 0})},
		{"client identifier that is no UTF-8 [MQTT-3.1.3-4]", packetOf(0x10, name, []byte{5, 2, 0, 60, 0}, mqttString("\xC3\x28"))},
		{"user name announced, not there", packetOf(0x10, name, []byte{5, 0x82, 0, 60, 0}, id)},
		{"bytes left over", packetOf(0x10, name, []byte{5, 2, 0, 60, 0}, id, []byte{1, 2, 3})},
		{"property twice", packetOf(0x10, name, []byte{5, 2, 0, 60, 10, 17, 0, 0, 0, 1, 17, 0, 0, 0, 1}, id)},
		{"Receive Maximum 0", packetOf(0x10, name, []byte{5, 2, 0, 60, 3, 33, 0, 0}, id)},
		{"Maximum Packet Size 0", packetOf(0x10, name, []byte{5, 2, 0, 60, 5, 39, 0, 0, 0, 0}, id)},
		{"a property of PUBLISH", packetOf(0x10, name, []byte{5, 2, 0, 60, 3, 35, 0, 1}, id)},
		{"properties longer than the packet", packetOf(0x10, name, []byte{5, 2, 0, 60, 100}, id)},
		{"authentication data without a method", packetOf(0x10, name, []byte{5, 2, 0, 60, 4, 22, 0, 1, 'x'}, id)},
		{"will topic with a wildcard", packetOf(0x10, name, []byte{5, 0x06, 0, 60, 0}, id, []byte{0}, mqttString("w/#"), mqttString("x"))},
		{"3.1.1: password without a user name [MQTT-3.1.2-22]", packetOf(0x10, name, []byte{4, 0x42, 0, 60}, id, mqttString("secret"))},
		{"3.1.1: reserved flag [MQTT-3.1.2-3]", packetOf(0x10, name, []byte{4, 0x03, 0, 60}, id)},
	} {
		t.Run(broken.what, func(t *testing.T) {
			c := mqtttest.Dial(t, n.Addr)
			if strings.HasPrefix(broken.what, "3.1.1") {
				c.EncodeConnect(mqtttest.V311())
			}
			c.Write(broken.packet)
			refusedOrClosed(t, c)
		})
	}
	n.connect().Ping()
}

// malformed are packets that no client may send, with the reason codes that the
// specification gives or allows.
var malformed = []struct {
	what   string
	packet []byte
	codes  []mqtt.ReasonCode
}{
	{"reserved packet type", []byte{0x00, 0}, []mqtt.ReasonCode{0x81}},
	{"PINGREQ with flags", []byte{0xC1, 0}, []mqtt.ReasonCode{0x81}},
	{"PINGREQ with a body", []byte{0xC0, 1, 0}, []mqtt.ReasonCode{0x81}},
	{"remaining length of five bytes", []byte{0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x01}, []mqtt.ReasonCode{0x81}},
	{"PUBLISH with QoS 3 [MQTT-3.3.1-4]", packetOf(0x36, mqttString("a"), []byte{0, 1, 0}), []mqtt.ReasonCode{0x81}},
	{"PUBLISH QoS 0 with DUP [MQTT-3.3.1-2]", packetOf(0x38, mqttString("a"), []byte{0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"PUBLISH with packet identifier 0 [MQTT-2.2.1-3]", packetOf(0x32, mqttString("a"), []byte{0, 0, 0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"PUBLISH without a packet identifier", packetOf(0x32, mqttString("a")), []mqtt.ReasonCode{0x81}},
	{"PUBLISH without a topic", packetOf(0x30), []mqtt.ReasonCode{0x81}},
	{"topic longer than the packet", []byte{0x30, 4, 0, 9, 'a', 'b'}, []mqtt.ReasonCode{0x81}},
	{"topic that is no UTF-8 [MQTT-1.5.4-1]", packetOf(0x30, mqttString("\xC3\x28"), []byte{0}), []mqtt.ReasonCode{0x81}},
	{"topic with a surrogate [MQTT-1.5.4-1]", packetOf(0x30, mqttString("\xED\xA0\x80"), []byte{0}), []mqtt.ReasonCode{0x81}},
	{"topic with U+0000 [MQTT-1.5.4-2]", packetOf(0x30, mqttString("a\x00b"), []byte{0}), []mqtt.ReasonCode{0x81}},
	{"overlong UTF-8", packetOf(0x30, mqttString("\xC0\xAF"), []byte{0}), []mqtt.ReasonCode{0x81}},
	{"empty topic and no alias [MQTT-4.7.3-1]", packetOf(0x30, mqttString(""), []byte{0}), []mqtt.ReasonCode{0x82}},
	{"topic with # [MQTT-3.3.2-2]", packetOf(0x30, mqttString("a/#"), []byte{0}), []mqtt.ReasonCode{0x81, 0x82, 0x90}},
	{"topic with + [MQTT-3.3.2-2]", packetOf(0x32, mqttString("a/+/b"), []byte{0, 1, 0}), []mqtt.ReasonCode{0x81, 0x82, 0x90}},
	{"properties longer than the packet", packetOf(0x30, mqttString("a"), []byte{50, 1}), []mqtt.ReasonCode{0x81}},
	{"truncated property", packetOf(0x30, mqttString("a"), []byte{3, 2, 0, 0}), []mqtt.ReasonCode{0x81}},
	{"unknown property", packetOf(0x30, mqttString("a"), []byte{2, 5, 0}), []mqtt.ReasonCode{0x81}},
	{"property of CONNECT in PUBLISH", packetOf(0x30, mqttString("a"), []byte{5, 17, 0, 0, 0, 1}), []mqtt.ReasonCode{0x81, 0x82}},
	{"property twice", packetOf(0x30, mqttString("a"), []byte{4, 1, 0, 1, 0}), []mqtt.ReasonCode{0x82}},
	{"content type that is no UTF-8", packetOf(0x30, mqttString("a"), []byte{5, 3, 0, 2, 0xC3, 0x28}), []mqtt.ReasonCode{0x81}},
	{"user property with U+0000", packetOf(0x30, mqttString("a"), []byte{7, 38, 0, 1, 0, 0, 1, 'v'}), []mqtt.ReasonCode{0x81}},
	{"payload format 2", packetOf(0x30, mqttString("a"), []byte{2, 1, 2}), []mqtt.ReasonCode{0x81, 0x82}},
	{"subscription identifier from a client [MQTT-3.3.4-6]", packetOf(0x30, mqttString("a"), []byte{2, 11, 1}), []mqtt.ReasonCode{0x81, 0x82}},
	{"response topic with a wildcard [MQTT-3.3.2-14]", packetOf(0x30, mqttString("a"), []byte{6, 8, 0, 3, 'b', '/', '#'}), []mqtt.ReasonCode{0x82}},
	{"topic alias 0 [MQTT-3.3.2-8]", packetOf(0x30, mqttString("a"), []byte{3, 35, 0, 0}), []mqtt.ReasonCode{0x81, 0x82, 0x94}},
	{"SUBSCRIBE with wrong flags [MQTT-3.8.1-1]", packetOf(0x80, []byte{0, 1, 0}, mqttString("a"), []byte{0}), []mqtt.ReasonCode{0x81}},
	{"SUBSCRIBE without filters [MQTT-3.8.3-2]", packetOf(0x82, []byte{0, 1, 0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"SUBSCRIBE without options", packetOf(0x82, []byte{0, 1, 0}, mqttString("a")), []mqtt.ReasonCode{0x81}},
	{"SUBSCRIBE with packet identifier 0", packetOf(0x82, []byte{0, 0, 0}, mqttString("a"), []byte{0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"SUBSCRIBE with QoS 3", packetOf(0x82, []byte{0, 1, 0}, mqttString("a"), []byte{3}), []mqtt.ReasonCode{0x81, 0x82}},
	{"SUBSCRIBE with Retain Handling 3", packetOf(0x82, []byte{0, 1, 0}, mqttString("a"), []byte{0x30}), []mqtt.ReasonCode{0x81, 0x82}},
	{"SUBSCRIBE with reserved bits [MQTT-3.8.3-5]", packetOf(0x82, []byte{0, 1, 0}, mqttString("a"), []byte{0x40}), []mqtt.ReasonCode{0x81}},
	{"subscription identifier 0", packetOf(0x82, []byte{0, 1, 2, 11, 0}, mqttString("a"), []byte{0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"filter that is no UTF-8", packetOf(0x82, []byte{0, 1, 0}, mqttString("\xFF"), []byte{0}), []mqtt.ReasonCode{0x81}},
	{"No Local on a shared subscription [MQTT-3.8.3-4]", packetOf(0x82, []byte{0, 1, 0}, mqttString("$share/g/a"), []byte{0x04}), []mqtt.ReasonCode{0x82}},
	{"UNSUBSCRIBE without filters [MQTT-3.10.3-2]", packetOf(0xA2, []byte{0, 1, 0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"UNSUBSCRIBE with wrong flags [MQTT-3.10.1-1]", packetOf(0xA0, []byte{0, 1, 0}, mqttString("a")), []mqtt.ReasonCode{0x81}},
	{"PUBREL with wrong flags [MQTT-3.6.1-1]", packetOf(0x60, []byte{0, 1}), []mqtt.ReasonCode{0x81}},
	{"PUBACK without a packet identifier", packetOf(0x40), []mqtt.ReasonCode{0x81}},
	{"DISCONNECT with flags [MQTT-3.14.1-1]", []byte{0xE1, 0}, []mqtt.ReasonCode{0x81}},
	{"CONNACK from a client", packetOf(0x20, []byte{0, 0, 0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"SUBACK from a client", packetOf(0x90, []byte{0, 1, 0, 0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"UNSUBACK from a client", packetOf(0xB0, []byte{0, 1, 0, 0}), []mqtt.ReasonCode{0x81, 0x82}},
	{"PINGRESP from a client", []byte{0xD0, 0}, []mqtt.ReasonCode{0x81, 0x82}},
	{"AUTH without a method in CONNECT [MQTT-4.12.0-6]", []byte{0xF0, 0}, []mqtt.ReasonCode{0x81, 0x82}},
	{"re-authentication without a method in CONNECT", packetOf(0xF0, []byte{0x19, 5, 21, 0, 2, 'm', 'e'}), []mqtt.ReasonCode{0x82}},
}

func TestMalformedPackets(t *testing.T) {
	t.Parallel()
	n := start(t)
	bystander := n.connect(mqtttest.ClientID("bystander"))
	bystander.Subscribe("#", 1)
	for _, broken := range malformed {
		t.Run(broken.what, func(t *testing.T) {
			c := mqtttest.Connect(t, n.Addr)
			c.Write(broken.packet)
			p := c.Expect(mqtt.DISCONNECT)
			if !slices.Contains(broken.codes, p.Disconnect.Code) {
				t.Errorf("got %v, want one of % x", p, broken.codes)
			}
			wantReason(t, "DISCONNECT", p.Disconnect.ReasonString)
			c.ExpectClosed()
		})
	}
	// The other connections are unaffected.
	bystander.Quiet()
}

func TestMalformedPackets311(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, broken := range []struct {
		what   string
		packet []byte
	}{
		{"reserved packet type", []byte{0x00, 0}},
		{"AUTH, which 3.1.1 doesn't have", []byte{0xF0, 0}},
		{"PUBLISH with QoS 3", packetOf(0x36, mqttString("a"), []byte{0, 1})},
		{"PUBLISH with packet identifier 0", packetOf(0x32, mqttString("a"), []byte{0, 0})},
		{"topic with a wildcard", packetOf(0x30, mqttString("a/#"))},
		{"topic that is no UTF-8", packetOf(0x30, mqttString("\xC3\x28"))},
		{"empty topic", packetOf(0x30, mqttString(""))},
		{"SUBSCRIBE without filters [MQTT-3.8.3-3]", packetOf(0x82, []byte{0, 1})},
		{"SUBSCRIBE with the options of MQTT 5 [MQTT-3-8.3-4]", packetOf(0x82, []byte{0, 1}, mqttString("a"), []byte{0x2C})},
		{"SUBSCRIBE with QoS 3", packetOf(0x82, []byte{0, 1}, mqttString("a"), []byte{3})},
		{"DISCONNECT with flags", []byte{0xE1, 0}},
		{"PINGREQ with a body", []byte{0xC0, 1, 0}},
	} {
		t.Run(broken.what, func(t *testing.T) {
			c := mqtttest.Connect(t, n.Addr, mqtttest.V311())
			c.Write(broken.packet)
			c.ExpectClosed()
		})
	}
}

func TestOversizedPacketFromClient(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxPacketSize = 1024 })
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		// Given a packet of exactly the size that is allowed: it is taken.
		c := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		m := message{Topic: "size"}
		m.Payload = strings.Repeat("x", 1024-len(mqtttest.EncodePublish(v, m))-1) // the length takes one byte more
		packet := mqtttest.EncodePublish(v, m)
		if len(packet) != 1024 {
			t.Fatalf("the test's packet has %d bytes, want 1024", len(packet))
		}
		c.Write(packet)
		c.Quiet()

		// One byte more is refused as soon as its length is known.
		m.Payload += "x"
		c.Write(mqtttest.EncodePublish(v, m)[:5])
		c.ExpectDisconnect(mqtt.PacketTooLarge)
	})
	c := n.dial()
	connect := c.EncodeConnect(mqtttest.Raw(func(m *mqtt.Connect) {
		m.Username, m.HasUsername = []byte(strings.Repeat("u", 2000)), true
	}))
	c.Write(connect[:16])
	refusedOrClosed(t, c, mqtt.PacketTooLarge)
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		// Given a client that promised a packet every second and sends none.
		connected := time.Now()
		c := mqtttest.Connect(t, n.Addr, mqtttest.Version(v), mqtttest.KeepAlive(1))

		// Then it is disconnected after one and a half [MQTT-3.1.2-22].
		c.ExpectDisconnect(mqtt.KeepAliveTimeout)
		if took := time.Since(connected); took < 1400*time.Millisecond {
			t.Errorf("disconnected after %v, want 1.5 s", took)
		}
	})
}

func TestKeepAliveCountsEveryPacket(t *testing.T) {
	t.Parallel()
	n := start(t)
	const keepAlive = 4 // seconds, as a busy machine can hold the test up for some
	pinging := n.connect(mqtttest.KeepAlive(keepAlive))
	publishing := n.connect(mqtttest.KeepAlive(keepAlive))
	for began := time.Now(); time.Since(began) < 2*keepAlive*time.Second; letPass(250 * time.Millisecond) {
		pinging.Ping()
		publishing.SendPublish(message{Topic: "alive"})
	}
	pinging.Quiet()
	publishing.Quiet()
}

func TestServerKeepAliveIsWhatCounts(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxKeepAlive = time.Second })
	c := n.connect(mqtttest.KeepAlive(3600))
	if c.Connack.ServerKeepAlive != 1 {
		t.Fatalf("Server Keep Alive: got %d, want 1", c.Connack.ServerKeepAlive)
	}
	c.ExpectDisconnect(mqtt.KeepAliveTimeout)
}

func TestUnknownAuthenticationMethod(t *testing.T) {
	t.Parallel()
	n := start(t)
	ack := mqtttest.Refused(t, n.Addr, mqtt.BadAuthenticationMethod, mqtttest.Raw(func(c *mqtt.Connect) {
		c.AuthMethod, c.HasAuthMethod = []byte("SCRAM-SHA-1"), true
	}))
	wantReason(t, "CONNACK", ack.ReasonString)
}

func TestConnectionsBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxConnections = 2 })
	first, second := n.connect(), n.connect()

	ack := mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded)
	wantSetting(t, "CONNACK", ack.ReasonString, "--max-connections")
	first.Quiet()
	second.Quiet()

	// When one leaves there is room for another; the server may learn of it a moment after the client.
	second.Disconnect()
	for {
		c := n.dial()
		c.SendConnect()
		if p := c.Expect(mqtt.CONNACK); p.Connack.Code == mqtt.Success {
			c.Ping()
			return
		}
		c.ExpectClosed()
	}
}

func TestSessionsBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxSessions = 2 })
	// What ends for others is a session that is away and empty: these aren't.
	n.connect(mqtttest.Persistent("one"))
	n.connect(mqtttest.Persistent("two"))

	ack := mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, mqtttest.Persistent("three"))
	wantSetting(t, "CONNACK", ack.ReasonString, "--max-sessions")
	if c := n.connect(mqtttest.Persistent("two")); !c.Connack.SessionPresent {
		t.Error("a session that was there was lost at the bound")
	}
}

func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.ConnectTimeout = 200 * time.Millisecond })
	silent, halfway := n.dial(), n.dial()
	halfway.Write([]byte{0x10, 100, 0, 4, 'M'})
	silent.ExpectClosed()
	halfway.ExpectClosed()
}

// The time is for the whole CONNECT, however busily its bytes trickle in.
func TestConnectTimeoutForATrickle(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.ConnectTimeout = 200 * time.Millisecond })
	c := n.dial()
	packet := c.EncodeConnect(mqtttest.ClientID(strings.Repeat("x", 5000)))
	sent := 0
	for sent < len(packet)-1 && c.WriteErr(packet[sent:sent+1]) == nil {
		sent++
		letPass(10 * time.Millisecond)
	}
	if sent == len(packet)-1 {
		t.Error("the connection was still open when all bytes but one were sent")
	}
	c.ExpectClosed()
}

func TestRefusalFitsTheClientsMaximumPacketSize(t *testing.T) {
	t.Parallel()
	n := start(t)
	ack := mqtttest.Refused(t, n.Addr, mqtt.ClientIdentifierNotValid,
		mqtttest.ClientID(strings.Repeat("x", 2000)), mqtttest.MaximumPacketSize(20))
	if ack.ReasonString != "" {
		t.Errorf("got the Reason String %q in a packet that is too large [MQTT-3.2.2-19]", ack.ReasonString)
	}
}

func TestReasonStringsOnlyIfAskedFor(t *testing.T) {
	t.Parallel()
	n := start(t)
	refusals := func(c *client) (reasons map[string]string) {
		suback := c.OfferSubscribe(0, sub{Filter: "a/#/b"})
		wantCode(t, "SUBACK", suback.Codes[0], mqtt.TopicFilterInvalid)
		unsuback := c.Unsubscribe("a/#/b")
		if !unsuback.Codes[0].Failed() && unsuback.Codes[0] != mqtt.NoSubscriptionExisted {
			t.Errorf("UNSUBACK for an invalid filter: got 0x%02x", byte(unsuback.Codes[0]))
		}
		puback := c.Offer(message{Topic: notifyPrefix + "/x", QoS: 1})
		wantCode(t, "PUBACK", puback.Code, mqtt.NotAuthorized)
		pubrec := c.Offer(message{Topic: notifyPrefix + "/x", QoS: 2})
		wantCode(t, "PUBREC", pubrec.Code, mqtt.NotAuthorized)
		return map[string]string{
			"SUBACK": string(suback.ReasonString), "PUBACK": string(puback.ReasonString), "PUBREC": string(pubrec.ReasonString),
		}
	}

	for packet, reason := range refusals(n.connect()) {
		wantReason(t, packet, reason)
	}
	// [MQTT-3.1.2-29]
	terse := n.connect(mqtttest.NoProblemInfo())
	for packet, reason := range refusals(terse) {
		if reason != "" {
			t.Errorf("%s: got Reason String %q with Request Problem Information 0", packet, reason)
		}
	}
	// Messages are delivered with their user properties all the same.
	m := message{Topic: "a", Payload: "x", User: [][2]string{{"name", "value"}}}
	terse.Subscribe("a", 0)
	terse.Publish(m)
	wantContent(t, terse.Receive(), m)
	// CONNACK and DISCONNECT may say why, too.
	terse.Write([]byte{0xC1, 0})
	terse.ExpectDisconnect(mqtt.MalformedPacket)
}

func TestPacketsMayFollowConnectAtOnce(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		// Given CONNECT, SUBSCRIBE and PUBLISH in one write [MQTT-3.1.4-5].
		c := mqtttest.Dial(t, n.Addr)
		packets := c.EncodeConnect(mqtttest.Version(v))
		properties := []byte{0}
		if v == mqtt.V311 {
			properties = nil
		}
		topic := "eager" + versionName(v)
		packets = append(packets, packetOf(0x82, []byte{0, 9}, properties, mqttString(topic), []byte{1})...)
		packets = append(packets, mqtttest.EncodePublish(v, message{Topic: topic, Payload: "hello"})...)
		c.Write(packets)

		if p := c.Expect(mqtt.CONNACK); p.Connack.Code != mqtt.Success {
			t.Fatalf("got %v", p)
		}
		c.Expect(mqtt.SUBACK)
		if got := c.Receive().Payload; got != "hello" {
			t.Errorf("got %q, want hello", got)
		}
	})
}

func TestPacketsByteByByte(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial()
	packets := c.EncodeConnect(mqtttest.ClientID("slow"))
	packets = append(packets, packetOf(0x82, []byte{0, 9, 0}, mqttString("slow"), []byte{0})...)
	packets = append(packets, mqtttest.EncodePublish(mqtt.V5, message{Topic: "slow", Payload: strings.Repeat("x", 200)})...)
	for i := range packets {
		c.Write(packets[i : i+1])
	}
	c.Expect(mqtt.CONNACK)
	c.Expect(mqtt.SUBACK)
	if got := len(c.Receive().Payload); got != 200 {
		t.Errorf("got %d bytes, want 200", got)
	}
}
