package mqtttest

import "github.com/holdfast-mqtt/holdfast/internal/mqtt"

// Sub is one filter of a SUBSCRIBE with its options.
type Sub struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte
}

// Subscribe subscribes to one filter; the server must grant the QoS asked for.
func (c *Client) Subscribe(filter string, qos byte) {
	c.tb.Helper()
	c.SubscribeWith(0, Sub{Filter: filter, QoS: qos})
}

// SubscribeWith subscribes to filters under one subscription identifier (0:
// none); the server must grant every QoS asked for.
func (c *Client) SubscribeWith(identifier uint32, subs ...Sub) {
	c.tb.Helper()
	ack := c.OfferSubscribe(identifier, subs...)
	for i, s := range subs {
		if ack.Codes[i] != mqtt.ReasonCode(s.QoS) {
			c.fatalf("subscribe to %q: got 0x%02x %v (%s), want QoS %d", s.Filter, byte(ack.Codes[i]), ack.Codes[i], ack.ReasonString, s.QoS)
		}
	}
}

// OfferSubscribe is SubscribeWith for filters that may be refused: it returns
// the SUBACK. Packets that come before it are kept.
func (c *Client) OfferSubscribe(identifier uint32, subs ...Sub) *mqtt.Suback {
	c.tb.Helper()
	id := c.SendSubscribe(identifier, subs...)
	ack := c.Await("SUBACK", func(p *Packet) bool { return p.Type == mqtt.SUBACK && p.Suback.PacketID == id }).Suback
	if len(ack.Codes) != len(subs) {
		c.fatalf("got %d codes in SUBACK, want %d [MQTT-3.8.4-6]", len(ack.Codes), len(subs))
	}
	return ack
}

// SendSubscribe sends a SUBSCRIBE and returns its packet identifier.
func (c *Client) SendSubscribe(identifier uint32, subs ...Sub) uint16 {
	c.tb.Helper()
	s := mqtt.Subscribe{PacketID: c.nextID(), SubscriptionID: identifier}
	for _, sub := range subs {
		s.Subscriptions = append(s.Subscriptions, mqtt.Subscription{
			Filter: []byte(sub.Filter), QoS: sub.QoS, NoLocal: sub.NoLocal,
			RetainAsPublished: sub.RetainAsPublished, RetainHandling: sub.RetainHandling,
		})
	}
	c.Write(mqtt.AppendSubscribe(nil, c.version, &s))
	return s.PacketID
}

// Unsubscribe ends subscriptions and returns the UNSUBACK.
func (c *Client) Unsubscribe(filters ...string) *mqtt.Unsuback {
	c.tb.Helper()
	u := mqtt.Unsubscribe{PacketID: c.nextID()}
	for _, f := range filters {
		u.Filters = append(u.Filters, []byte(f))
	}
	c.Write(mqtt.AppendUnsubscribe(nil, c.version, &u))
	ack := c.Await("UNSUBACK", func(p *Packet) bool {
		return p.Type == mqtt.UNSUBACK && p.Unsuback.PacketID == u.PacketID
	}).Unsuback
	if c.version == mqtt.V5 && len(ack.Codes) != len(filters) {
		c.fatalf("got %d codes in UNSUBACK, want %d [MQTT-3.11.3-1]", len(ack.Codes), len(filters))
	}
	return ack
}
