package mqtttest

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/fromserver"
)

// Packet is one packet from the server. Exactly the field of its type is set;
// PINGRESP has none.
type Packet struct {
	Type  mqtt.Type
	Bytes []byte // the whole packet as it came; the other fields are views of it

	Connack    *mqtt.Connack
	Publish    *Message
	Ack        *mqtt.Ack // PUBACK, PUBREC, PUBREL, PUBCOMP
	Suback     *mqtt.Suback
	Unsuback   *mqtt.Unsuback
	Disconnect *mqtt.Disconnect
	Auth       *mqtt.Auth
}

// decode reads a packet; what it returns are views of the frame.
func decode(v mqtt.Version, f fromserver.Frame) (*Packet, error) {
	in := new(fromserver.Packet)
	if err := in.Decode(v, f); err != nil {
		return nil, fmt.Errorf("the server sent a bad %v: %w (% x)", in.Type, err, head(f.Bytes))
	}
	p := &Packet{Type: in.Type, Bytes: f.Bytes}
	switch p.Type {
	case mqtt.CONNACK:
		p.Connack = &in.Connack
	case mqtt.PUBLISH:
		p.Publish = toMessage(&in.Publish)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		p.Ack = &in.Ack
	case mqtt.SUBACK:
		p.Suback = &in.Suback
	case mqtt.UNSUBACK:
		p.Unsuback = &in.Unsuback
	case mqtt.DISCONNECT:
		p.Disconnect = &in.Disconnect
	case mqtt.AUTH:
		p.Auth = &in.Auth
	}
	return p, nil
}

// String says what the packet is, short enough for a failure message.
func (p *Packet) String() string {
	switch {
	case p.Connack != nil:
		return fmt.Sprintf("CONNACK 0x%02x session present %v %q", byte(p.Connack.Code), p.Connack.SessionPresent, p.Connack.ReasonString)
	case p.Publish != nil:
		return "PUBLISH " + p.Publish.String()
	case p.Ack != nil:
		return fmt.Sprintf("%v %d 0x%02x %q", p.Type, p.Ack.PacketID, byte(p.Ack.Code), p.Ack.ReasonString)
	case p.Suback != nil:
		return fmt.Sprintf("SUBACK %d % x %q", p.Suback.PacketID, p.Suback.Codes, p.Suback.ReasonString)
	case p.Unsuback != nil:
		return fmt.Sprintf("UNSUBACK %d % x %q", p.Unsuback.PacketID, p.Unsuback.Codes, p.Unsuback.ReasonString)
	case p.Disconnect != nil:
		return fmt.Sprintf("DISCONNECT 0x%02x %q", byte(p.Disconnect.Code), p.Disconnect.ReasonString)
	default:
		return p.Type.String()
	}
}
