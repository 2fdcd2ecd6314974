package mqtttest

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Message is an application message as a PUBLISH carries it, in either
// direction. A property that is nil or zero is absent, so two messages that
// are equal by reflect.DeepEqual were equal on the wire.
type Message struct {
	Topic   string
	Payload string
	QoS     byte
	Retain  bool

	// PacketID is given by the client when a message is sent with 0.
	PacketID uint16
	Dup      bool

	PayloadFormat   *byte
	Expiry          *uint32 // seconds
	ContentType     *string
	ResponseTopic   *string
	CorrelationData *string
	SubscriptionIDs []uint32
	User            [][2]string

	TopicAlias uint16
	// ByAlias: the topic was not on the wire, the alias stood for it.
	ByAlias bool
}

// Content is the message without what belongs to its way: packet identifier,
// DUP, topic alias, subscription identifiers. What a publisher sends and what
// a subscriber gets have the same Content, but for QoS and RETAIN.
func (m Message) Content() Message {
	m.PacketID, m.Dup, m.TopicAlias, m.ByAlias, m.SubscriptionIDs = 0, false, 0, false, nil
	return m
}

// UserProp is the first user property of that name.
func (m Message) UserProp(name string) (value string, ok bool) {
	for _, pair := range m.User {
		if pair[0] == name {
			return pair[1], true
		}
	}
	return "", false
}

func (m Message) String() string {
	payload := m.Payload
	if len(payload) > 64 {
		payload = fmt.Sprintf("%s… (%d bytes)", payload[:64], len(payload))
	}
	return fmt.Sprintf("%q %q qos %d id %d retain %v dup %v user %q", m.Topic, payload, m.QoS, m.PacketID, m.Retain, m.Dup, m.User)
}

func toMessage(p *mqtt.Publish) *Message {
	m := &Message{
		Topic: string(p.Topic), Payload: string(p.Payload), QoS: p.QoS, Retain: p.Retain,
		PacketID: p.PacketID, Dup: p.Dup, SubscriptionIDs: p.Props.SubscriptionIDs,
		TopicAlias: p.Props.TopicAlias,
	}
	if p.Props.HasPayloadFormat {
		m.PayloadFormat = new(p.Props.PayloadFormat)
	}
	if p.Props.HasMessageExpiry {
		m.Expiry = new(p.Props.MessageExpiry)
	}
	if p.Props.HasContentType {
		m.ContentType = new(string(p.Props.ContentType))
	}
	if p.Props.HasResponseTopic {
		m.ResponseTopic = new(string(p.Props.ResponseTopic))
	}
	if p.Props.HasCorrelationData {
		m.CorrelationData = new(string(p.Props.CorrelationData))
	}
	for name, value := range mqtt.UserProps(p.Props.Raw) {
		m.User = append(m.User, [2]string{string(name), string(value)})
	}
	return m
}

// props is the message's property block in the codec's form.
func (m Message) props() mqtt.PublishProps {
	var p mqtt.PublishProps
	if m.PayloadFormat != nil {
		p.PayloadFormat, p.HasPayloadFormat = *m.PayloadFormat, true
	}
	if m.Expiry != nil {
		p.MessageExpiry, p.HasMessageExpiry = *m.Expiry, true
	}
	if m.ContentType != nil {
		p.ContentType, p.HasContentType = []byte(*m.ContentType), true
	}
	if m.ResponseTopic != nil {
		p.ResponseTopic, p.HasResponseTopic = []byte(*m.ResponseTopic), true
	}
	if m.CorrelationData != nil {
		p.CorrelationData, p.HasCorrelationData = []byte(*m.CorrelationData), true
	}
	if m.TopicAlias != 0 {
		p.TopicAlias, p.HasTopicAlias = m.TopicAlias, true
	}
	for _, pair := range m.User {
		p.Raw = mqtt.AppendUserProp(p.Raw, pair[0], pair[1])
	}
	return p
}

// EncodePublish is the PUBLISH of this message, byte by byte as given.
func EncodePublish(v mqtt.Version, m Message) []byte {
	return mqtt.AppendPublish(nil, v, &mqtt.Publish{
		Dup: m.Dup, Retain: m.Retain, QoS: m.QoS, PacketID: m.PacketID,
		Topic: []byte(m.Topic), Payload: []byte(m.Payload), Props: m.props(),
	})
}

// nextID gives the client's packet identifiers, 1 to 65535 in turn.
func (c *Client) nextID() uint16 {
	c.lastID++
	if c.lastID == 0 {
		c.lastID = 1
	}
	return c.lastID
}

// SendPublish sends a message and doesn't wait for any answer. It returns the
// packet identifier: the message's own, or one that it gives.
func (c *Client) SendPublish(m Message) uint16 {
	c.tb.Helper()
	if m.QoS > 0 && m.PacketID == 0 {
		m.PacketID = c.nextID()
	}
	c.Write(EncodePublish(c.version, m))
	return m.PacketID
}

// Publish sends a message and completes its exchange, so that the server has
// taken and routed it when Publish returns; for QoS 0 it waits for a Ping. The
// server must accept. Packets that come meanwhile are kept.
func (c *Client) Publish(m Message) {
	c.tb.Helper()
	if ack := c.Offer(m); ack != nil && ack.Code.Failed() {
		c.fatalf("publish to %q: got 0x%02x %v (%s)", m.Topic, byte(ack.Code), ack.Code, ack.ReasonString)
	}
}

// Offer is Publish for a message that may be refused: it returns the
// acknowledgement that decides, PUBACK or PUBREC, and nil for QoS 0.
func (c *Client) Offer(m Message) *mqtt.Ack {
	c.tb.Helper()
	id := c.SendPublish(m)
	switch m.QoS {
	case 0:
		c.Ping()
		return nil
	case 1:
		return c.AwaitAck(mqtt.PUBACK, id).Ack
	default:
		ack := c.AwaitAck(mqtt.PUBREC, id).Ack
		if !ack.Code.Failed() {
			c.Release(id)
		}
		return ack
	}
}

// pipeline is how many messages PublishAll has under way, if the server's
// Receive Maximum allows it.
const pipeline = 200

// PublishAll is Publish for many messages, sent without waiting for each
// other's acknowledgements.
func (c *Client) PublishAll(messages []Message) {
	c.tb.Helper()
	window := pipeline
	if c.Connack != nil && c.version == mqtt.V5 {
		window = min(window, int(c.Connack.ReceiveMaximum))
	}
	for len(messages) > 0 {
		batch := messages[:min(window, len(messages))]
		messages = messages[len(batch):]
		c.publishBatch(batch)
	}
	c.Ping() // for those of QoS 0
}

func (c *Client) publishBatch(batch []Message) {
	c.tb.Helper()
	ids := make([]uint16, len(batch))
	for i, m := range batch {
		ids[i] = c.SendPublish(m)
	}
	for i, m := range batch {
		if m.QoS == 0 {
			continue
		}
		ack := c.AwaitAck(firstAck(m.QoS), ids[i]).Ack
		if ack.Code.Failed() {
			c.fatalf("publish to %q: got 0x%02x %v (%s)", m.Topic, byte(ack.Code), ack.Code, ack.ReasonString)
		}
		if m.QoS == 2 {
			c.SendAck(mqtt.PUBREL, ids[i], mqtt.Success)
		}
	}
	for i, m := range batch {
		if m.QoS == 2 {
			c.AwaitAck(mqtt.PUBCOMP, ids[i])
		}
	}
}

// Release sends PUBREL and awaits PUBCOMP, which it returns.
func (c *Client) Release(id uint16) *mqtt.Ack {
	c.tb.Helper()
	c.SendAck(mqtt.PUBREL, id, mqtt.Success)
	return c.AwaitAck(mqtt.PUBCOMP, id).Ack
}

// SendAck sends PUBACK, PUBREC, PUBREL or PUBCOMP.
func (c *Client) SendAck(t mqtt.Type, id uint16, code mqtt.ReasonCode) {
	c.tb.Helper()
	c.Write(mqtt.AppendAck(nil, c.version, t, id, code, ""))
}

// Acknowledge completes the exchange of a delivery whose acknowledgement was
// held back.
func (c *Client) Acknowledge(m Message) {
	c.tb.Helper()
	switch m.QoS {
	case 1:
		c.SendAck(mqtt.PUBACK, m.PacketID, mqtt.Success)
	case 2:
		c.SendAck(mqtt.PUBREC, m.PacketID, mqtt.Success)
		c.AwaitAck(mqtt.PUBREL, m.PacketID)
		c.SendAck(mqtt.PUBCOMP, m.PacketID, mqtt.Success)
	}
}

// Receive returns the next packet, which must be a PUBLISH.
func (c *Client) Receive() Message {
	c.tb.Helper()
	return *c.Expect(mqtt.PUBLISH).Publish
}

// ReceiveN returns the next n packets, which must all be PUBLISH.
func (c *Client) ReceiveN(n int) []Message {
	c.tb.Helper()
	messages := make([]Message, 0, n)
	for range n {
		messages = append(messages, c.Receive())
	}
	return messages
}

// Payloads is what the messages say, in order.
func Payloads(messages []Message) []string {
	payloads := make([]string, len(messages))
	for i, m := range messages {
		payloads[i] = m.Payload
	}
	return payloads
}
