package mqtttest

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
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

// decode reads a whole packet whose last size bytes are its body.
func decode(v mqtt.Version, whole []byte, size int) (*Packet, error) {
	header, body := whole[0], whole[len(whole)-size:]
	p := &Packet{Type: mqtt.Type(header >> 4), Bytes: whole}
	var err error
	switch p.Type {
	case mqtt.CONNACK:
		p.Connack = new(mqtt.Connack)
		err = p.Connack.Decode(v, body)
	case mqtt.PUBLISH:
		p.Publish, err = decodeMessage(v, header, body)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		p.Ack = new(mqtt.Ack)
		err = p.Ack.Decode(v, p.Type, body)
	case mqtt.SUBACK:
		p.Suback = new(mqtt.Suback)
		err = p.Suback.Decode(v, body)
	case mqtt.UNSUBACK:
		p.Unsuback = new(mqtt.Unsuback)
		err = p.Unsuback.Decode(v, body)
	case mqtt.PINGRESP:
		if len(body) != 0 {
			err = fmt.Errorf("PINGRESP with a body")
		}
	case mqtt.DISCONNECT:
		p.Disconnect = new(mqtt.Disconnect)
		err = p.Disconnect.Decode(v, body)
		if v != mqtt.V5 {
			err = fmt.Errorf("a 3.1.1 server must not send DISCONNECT")
		}
	case mqtt.AUTH:
		p.Auth = new(mqtt.Auth)
		err = p.Auth.Decode(v, body)
	default:
		err = fmt.Errorf("a server must not send it")
	}
	if err != nil {
		return nil, fmt.Errorf("the server sent a bad %v: %w (% x)", p.Type, err, head(whole))
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
