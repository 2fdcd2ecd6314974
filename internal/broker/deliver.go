package broker

import (
	"holdfast/internal/failstop"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
)

// drained is called when the output has become empty after it was full.
func (c *Conn) drained() {
	defer failstop.End(c.b.log, "feeding a drained output")
	s := c.session
	if s == nil {
		return
	}
	c.b.work(func(t *Turn) {
		t.hurried = true
		s.mu.Lock()
		if s.conn == c {
			s.pump(t)
			t.touch(c)
		}
		s.mu.Unlock()
		c.b.goOn(t, s)
	})
}

// deliver appends one PUBLISH to the output, or says false because the client
// doesn't take packets that large [MQTT-3.1.2-24]. m is the message that d.Payload
// belongs to, or nil: a large one is referred to and not copied.
func (c *Conn) deliver(t *Turn, d *mqtt.Delivery, m *Message) bool {
	shared := m != nil && (m.value != nil || len(d.Payload) >= shareFrom)
	var payload []byte
	switch {
	case !shared:
	case m.value != nil:
		d.Rest = len(m.value) + len(m.rest())
	default:
		d.Rest, payload, d.Payload = len(d.Payload), d.Payload, nil
	}
	c.tr.Lock()
	if c.aliasOutMax > 0 {
		c.alias(d)
	}
	if c.maxPacket > 0 && mqtt.DeliverySize(c.version, d) > c.maxPacket {
		c.tr.Unlock()
		c.b.stats.TooLarge.Add(1)
		return false
	}
	if n := len(d.Topic) + len(d.Props) + len(d.Payload); n > sureRoom {
		c.tr.Grow(n + maxOverhead + 5*len(d.SubscriptionIDs))
	}
	c.tr.SetOut(mqtt.AppendDelivery(c.tr.Out(), c.version, d))
	if shared {
		m.keep()
		c.b.charge(m, memory.Output)
		if payload != nil {
			c.tr.AppendShared(payload, m)
		} else {
			rest := m.rest() // m may be gone after the next call
			c.tr.AppendShared(m.value, m)
			c.tr.Append(rest)
		}
	}
	c.tr.Unlock()
	t.messagesOut++
	return true
}

// shareFrom is how many bytes a payload has at least that outputs refer to in place
// of copying it.
const shareFrom = 16 << 10

// An output has room for 512 bytes without being asked for more.
const (
	maxOverhead = 32 // bytes of a PUBLISH besides topic, properties, subscription identifiers and payload
	sureRoom    = 512 - maxOverhead - 32
)

// alias puts a topic alias in place of the topic, or gives one while there are
// some left; the output lock is held.
func (c *Conn) alias(d *mqtt.Delivery) {
	if a, known := c.aliasOut[string(d.Topic)]; known {
		d.Alias, d.Topic = a, nil
		return
	}
	if len(c.aliasOut) >= c.aliasOutMax || int(c.aliasOutBytes)+len(d.Topic) > c.b.limits.MaxAliasBytes ||
		!c.b.memory.Take(memory.Subscriptions, int64(len(d.Topic))) {
		return
	}
	c.aliasOutBytes += int32(len(d.Topic))
	d.Alias = uint16(len(c.aliasOut) + 1)
	if c.maxPacket > 0 && mqtt.DeliverySize(c.version, d) > c.maxPacket {
		d.Alias = 0 // the client would never see it
		c.aliasOutBytes -= int32(len(d.Topic))
		c.b.memory.Credit(memory.Subscriptions, int64(len(d.Topic)))
		return
	}
	if c.aliasOut == nil {
		c.aliasOut = make(map[string]uint16)
	}
	c.aliasOut[string(d.Topic)] = d.Alias
}

// fits says whether a message of a handler's is within the client's Maximum Packet Size.
func (c *Conn) fits(m *Message) bool {
	if c.maxPacket == 0 {
		return true
	}
	d := mqtt.Delivery{QoS: 1, PacketID: 1, Topic: m.topic(), Props: m.props(), Payload: m.payload(), Rest: len(m.value) + len(m.rest()), HasExpiry: m.expiresAt != 0}
	return mqtt.DeliverySize(c.version, &d) <= c.maxPacket
}

// writeAck appends an acknowledgement that needs no order.
func (c *Conn) writeAck(t *Turn, typ mqtt.Type, id uint16, code mqtt.ReasonCode, reason string) {
	c.append(reason, func(dst []byte, reason string) []byte {
		return mqtt.AppendAck(dst, c.version, typ, id, code, reason)
	})
	t.touch(c)
}

// append appends a packet to the output, without its Reason String if the packet
// would be larger than the client takes [MQTT-3.4.2-2 and its kin].
func (c *Conn) append(reason string, encode func(dst []byte, reason string) []byte) {
	c.tr.Lock()
	defer c.tr.Unlock()
	out := c.tr.Out()
	before := len(out)
	out = encode(out, reason)
	if reason != "" && c.maxPacket > 0 && len(out)-before > c.maxPacket {
		out = encode(out[:before], "")
	}
	if c.maxPacket > 0 && len(out)-before > c.maxPacket {
		out = out[:before] // the refusal of a CONNECT whose client takes next to nothing
	}
	c.tr.SetOut(out)
}
