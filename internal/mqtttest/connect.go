package mqtttest

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Option changes a CONNECT, or how the client behaves once connected. What no
// option names is left out: MQTT 5, clean start, no client identifier, keep
// alive 60 s, acknowledgements sent at once.
type Option func(*settings)

type settings struct {
	connect  mqtt.Connect
	holdAcks bool
}

// V311 speaks MQTT 3.1.1.
func V311() Option { return func(s *settings) { s.connect.Version = mqtt.V311 } }

// Version speaks the version given, for tests that run over both.
func Version(v mqtt.Version) Option { return func(s *settings) { s.connect.Version = v } }

// ClientID names the client.
func ClientID(id string) Option { return func(s *settings) { s.connect.ClientID = []byte(id) } }

// Resume asks for the session that is there, if any (Clean Start 0; Clean
// Session 0 in 3.1.1).
func Resume() Option { return func(s *settings) { s.connect.CleanStart = false } }

// SessionExpiry keeps the session for so many seconds after the connection.
func SessionExpiry(seconds uint32) Option {
	return func(s *settings) { s.connect.SessionExpiry = seconds }
}

// Persistent is a named session that outlives its connection: resumed if it is
// there, kept for an hour.
func Persistent(id string) Option {
	return func(s *settings) {
		s.connect.ClientID, s.connect.CleanStart, s.connect.SessionExpiry = []byte(id), false, 3600
	}
}

// KeepAlive in seconds; 0 switches it off.
func KeepAlive(seconds uint16) Option { return func(s *settings) { s.connect.KeepAlive = seconds } }

// ReceiveMaximum bounds the unacknowledged QoS 1 and 2 deliveries.
func ReceiveMaximum(n uint16) Option { return func(s *settings) { s.connect.ReceiveMaximum = n } }

// MaximumPacketSize is the largest packet, in bytes, that the client accepts.
func MaximumPacketSize(n uint32) Option {
	return func(s *settings) { s.connect.MaximumPacketSize = n }
}

// TopicAliasMaximum lets the server use so many topic aliases.
func TopicAliasMaximum(n uint16) Option {
	return func(s *settings) { s.connect.TopicAliasMaximum = n }
}

// NoProblemInfo sets Request Problem Information to 0.
func NoProblemInfo() Option {
	return func(s *settings) { s.connect.RequestProblemInfo = false }
}

// Credentials gives a user name and a password.
func Credentials(user, password string) Option {
	return func(s *settings) {
		s.connect.Username, s.connect.HasUsername = []byte(user), true
		s.connect.Password, s.connect.HasPassword = []byte(password), true
	}
}

// Will leaves a message for the time after the client; delay is the Will Delay Interval in
// seconds.
func Will(m Message, delay uint32) Option {
	return func(s *settings) {
		s.connect.HasWill = true
		s.connect.Will = mqtt.Will{
			QoS: m.QoS, Retain: m.Retain, Topic: []byte(m.Topic), Payload: []byte(m.Payload),
			DelayInterval: delay, Props: m.props(),
		}
	}
}

// Raw changes the CONNECT in a way that has no option of its own.
func Raw(change func(*mqtt.Connect)) Option {
	return func(s *settings) { change(&s.connect) }
}

// HoldAcks leaves every acknowledgement to the test.
func HoldAcks() Option { return func(s *settings) { s.holdAcks = true } }

// Connect dials and connects; the server must accept.
func Connect(tb testing.TB, addr string, opts ...Option) *Client {
	tb.Helper()
	c := Dial(tb, addr)
	c.Connect(opts...)
	return c
}

// Refused dials and connects; the server must answer with this code and close. It
// returns the CONNACK.
func Refused(tb testing.TB, addr string, code mqtt.ReasonCode, opts ...Option) *mqtt.Connack {
	tb.Helper()
	c := Dial(tb, addr)
	c.SendConnect(opts...)
	return c.ExpectRefused(code)
}

// Connect sends a CONNECT; the server must accept.
func (c *Client) Connect(opts ...Option) *mqtt.Connack {
	c.tb.Helper()
	c.SendConnect(opts...)
	c.Connack = c.Expect(mqtt.CONNACK).Connack
	if c.Connack.Code != mqtt.Success {
		c.fatalf("connect: refused with 0x%02x %v: %s", byte(c.Connack.Code), c.Connack.Code, c.Connack.ReasonString)
	}
	return c.Connack
}

// SendConnect sends a CONNECT and doesn't wait for the answer.
func (c *Client) SendConnect(opts ...Option) {
	c.tb.Helper()
	c.Write(c.EncodeConnect(opts...))
}

// EncodeConnect is the CONNECT of these options, for tests that break it; the
// client takes on the options' behaviour.
func (c *Client) EncodeConnect(opts ...Option) []byte {
	s := settings{connect: mqtt.Connect{
		Version: mqtt.V5, CleanStart: true, KeepAlive: 60,
		ReceiveMaximum: 65535, RequestProblemInfo: true,
	}}
	for _, o := range opts {
		o(&s)
	}
	c.version, c.holdAcks = s.connect.Version, s.holdAcks
	c.aliases, c.aliasMax = map[uint16]string{}, s.connect.TopicAliasMaximum
	if id := string(s.connect.ClientID); id != "" {
		c.name = id
	}
	return mqtt.AppendConnect(nil, &s.connect)
}

// ExpectRefused checks that the server answers the CONNECT with this code and
// closes.
func (c *Client) ExpectRefused(code mqtt.ReasonCode) *mqtt.Connack {
	c.tb.Helper()
	connack := c.Expect(mqtt.CONNACK).Connack
	if connack.Code != code {
		c.fatalf("got CONNACK 0x%02x %v (%s), want 0x%02x %v",
			byte(connack.Code), connack.Code, connack.ReasonString, byte(code), code)
	}
	if connack.SessionPresent {
		c.fatalf("got Session Present in a refusal [MQTT-3.2.2-6]")
	}
	c.ExpectClosed()
	return connack
}
