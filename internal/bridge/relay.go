package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Figures are those of one direction. They are safe for concurrent use.
type Figures struct {
	Messages atomic.Int64 // passed on; one that was sent again counts again
	Bytes    atomic.Int64 // of their payloads
	Refused  atomic.Int64 // by the receiving broker, for good
	Dropped  atomic.Int64 // not passed on, as the log says: too large, back where they have been, no rule for them, QoS 0 and too many wait
}

// ViaProperty is the user property in which a message has the names of the brokers whose bridges it
// has passed, one for each.
const ViaProperty = "holdfast-via"

// maxVia is how many bridges a message may have passed.
const maxVia = 16

// path is one direction of a link. It belongs to the goroutine that reads from the connection from.
type path struct {
	from, to *side
	back     *path // the other direction
	rules    rules
	figures  *Figures
	reserved func(name []byte) bool // topics whose messages do not pass
	limits   Limits                 // of the broker to
	self     string                 // this broker's name in ViaProperty
	// subscribed is called for each SUBACK.
	subscribed func()
	log        *slog.Logger

	name, props []byte // scratch
	// dropped has the packet identifiers of messages at QoS 2 that the link has acknowledged
	// itself.
	dropped map[uint16]struct{}
}

// Limits are what a broker refuses for which MQTT has no announcement. Zero: no bound.
type Limits struct {
	UserProperties int
	TopicLevels    int
}

// errRefusedForNow ends the connections of a link.
var errRefusedForNow = errors.New("the message is sent again on the next connection")

// run passes packets on until a connection fails.
func (p *path) run() error {
	for {
		if err := p.from.next(); err != nil {
			return err
		}
		if err := p.pass(); err != nil {
			return err
		}
		p.to.out.awaitRoom()
	}
}

// pass handles one packet.
func (p *path) pass() error {
	packet := &p.from.packet
	switch packet.Type {
	case mqtt.PUBLISH:
		return p.publish(&packet.Publish)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBCOMP:
		return p.acknowledged(packet.Type, &packet.Ack)
	case mqtt.PUBREL:
		return p.release(&packet.Ack)
	case mqtt.SUBACK:
		p.subscribed()
		if filter, code := refusedFilter(p.rules, &packet.Suback); filter != "" {
			p.log.Error("a broker refuses a subscription of a bridge: its messages do not pass", "broker", p.from.name, "filter", filter, "code", code)
		}
		return nil
	case mqtt.PINGRESP:
		return nil
	case mqtt.DISCONNECT:
		return p.from.disconnected()
	}
	return fmt.Errorf("%s sends %v, which a bridge does not await", p.from.name, packet.Type)
}

// publish passes a message on, or acknowledges it itself.
func (p *path) publish(m *mqtt.Publish) error {
	if len(m.Topic) == 0 {
		return fmt.Errorf("%s uses a topic alias that it has not been given", p.from.name)
	}
	d, reason := p.delivery(m)
	if reason != "" {
		p.figures.Dropped.Add(1)
		p.log.Warn("a bridge does not pass a message on", "from", p.from.name, "topic", string(m.Topic), "reason", reason)
		return p.settle(m)
	}
	p.to.out.append(func(dst []byte) []byte { return mqtt.AppendDelivery(dst, p.to.version, &d) })
	p.figures.Messages.Add(1)
	p.figures.Bytes.Add(int64(len(m.Payload)))
	if d.QoS == 0 {
		return p.settle(m)
	}
	return nil
}

// delivery makes the packet for the other broker, of views that are valid until the next one.
func (p *path) delivery(m *mqtt.Publish) (d mqtt.Delivery, reason string) {
	name, ok := p.rules.rename(p.name[:0], m.Topic)
	if p.name = name; !ok {
		return d, "no rule of the configuration matches it: the session has an old subscription"
	}
	if reason := p.refusal(m, name); reason != "" {
		return d, reason
	}
	p.props = mqtt.AppendForwardProps(p.props[:0], m.Props.Raw)
	p.props = mqtt.AppendUserProp(p.props, ViaProperty, p.self)
	d = mqtt.Delivery{
		QoS: m.QoS, Retain: m.Retain && p.to.retains, Topic: name,
		Expiry: m.Props.MessageExpiry, HasExpiry: m.Props.HasMessageExpiry, Props: p.props, Payload: m.Payload,
	}
	switch {
	case d.QoS > p.to.maxQoS:
		// The subscription asks for no more than the broker takes, but this message was sent
		// before the broker took less. At QoS 0 no acknowledgement confuses its sender.
		d.QoS = 0
	case d.QoS > 0:
		d.PacketID, d.Dup = m.PacketID, m.Dup
	}
	switch size := mqtt.DeliverySize(p.to.version, &d); {
	case p.to.maxPacket > 0 && size > p.to.maxPacket:
		return d, fmt.Sprintf("it has %d bytes, and %s takes %d", size, p.to.name, p.to.maxPacket)
	case d.QoS == 0 && p.to.out.size()+size > outputQoS0:
		return d, "it has QoS 0, and the other broker does not take messages as fast as they come"
	}
	return d, ""
}

// refusal says why a message must not pass; empty: it may.
func (p *path) refusal(m *mqtt.Publish, name []byte) string {
	if p.reserved(name) {
		return "its topic is one of the state store or of the server's own figures"
	}
	if levels := bytes.Count(name, []byte{'/'}) + 1; p.limits.TopicLevels > 0 && levels > p.limits.TopicLevels {
		return fmt.Sprintf("its topic has %d levels, and %s takes %d", levels, p.to.name, p.limits.TopicLevels)
	}
	users, via := 0, 0
	for name, value := range mqtt.UserProps(m.Props.Raw) {
		users++
		if string(name) == ViaProperty {
			if via++; string(value) == p.self {
				return "it has passed this broker's bridges before"
			}
		}
	}
	switch {
	case via >= maxVia:
		return fmt.Sprintf("it has passed %d bridges", via)
	case p.limits.UserProperties > 0 && users >= p.limits.UserProperties:
		return fmt.Sprintf("it has %d user properties, and %s takes %d with that of the bridge", users, p.to.name, p.limits.UserProperties)
	}
	return ""
}

// settle acknowledges a message that is not passed on, or not acknowledged at the other end.
func (p *path) settle(m *mqtt.Publish) error {
	switch m.QoS {
	case 1:
		return p.answer(mqtt.PUBACK, m.PacketID)
	case 2:
		if p.dropped == nil {
			p.dropped = make(map[uint16]struct{})
		}
		p.dropped[m.PacketID] = struct{}{}
		return p.answer(mqtt.PUBREC, m.PacketID)
	}
	return nil
}

// answer acknowledges what the other broker is not asked about.
func (p *path) answer(t mqtt.Type, packetID uint16) error {
	if !p.from.out.acknowledge(func(dst []byte) []byte { return mqtt.AppendAck(dst, p.from.version, t, packetID, mqtt.Success, "") }) {
		return fmt.Errorf("%s sends messages and takes no acknowledgements", p.from.name)
	}
	return nil
}

// acknowledged passes back what the broker from says of a message that the link has brought it.
func (p *path) acknowledged(t mqtt.Type, a *mqtt.Ack) error {
	if a.Code.Failed() && t != mqtt.PUBCOMP {
		if !final(a.Code) {
			return fmt.Errorf("%w: %w", &Refusal{p.from.name, t, a.Code, string(a.ReasonString)}, errRefusedForNow)
		}
		p.back.figures.Refused.Add(1)
		p.log.Warn("a broker refuses a message of a bridge", "broker", p.from.name, "packet", t, "code", a.Code, "reason", string(a.ReasonString))
	}
	code := a.Code
	if !code.ValidIn(t) {
		code = mqtt.Success
	}
	p.to.acknowledge(t, a.PacketID, code)
	return nil
}

// final says whether the broker will refuse the same message each time.
func final(code mqtt.ReasonCode) bool {
	switch code {
	case mqtt.NotAuthorized, mqtt.TopicNameInvalid, mqtt.PayloadFormatInvalid, mqtt.PacketTooLarge:
		return true
	}
	return false
}

// release passes a PUBREL on, or answers it.
func (p *path) release(a *mqtt.Ack) error {
	if _, own := p.dropped[a.PacketID]; own {
		delete(p.dropped, a.PacketID)
		return p.answer(mqtt.PUBCOMP, a.PacketID)
	}
	p.to.acknowledge(mqtt.PUBREL, a.PacketID, mqtt.Success)
	return nil
}
