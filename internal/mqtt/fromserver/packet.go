package fromserver

import "github.com/holdfast-mqtt/holdfast/internal/mqtt"

// Packet is a packet from a server. Only the field of its type means anything; PINGRESP has
// none. One Packet is decoded to many times: its slices are reused.
type Packet struct {
	Type       mqtt.Type
	Connack    mqtt.Connack
	Publish    mqtt.Publish
	Ack        mqtt.Ack // PUBACK, PUBREC, PUBREL, PUBCOMP
	Suback     mqtt.Suback
	Unsuback   mqtt.Unsuback
	Disconnect mqtt.Disconnect
	Auth       mqtt.Auth
}

var (
	errDirection     = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a server must not send this packet"}
	errSessionExpiry = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a server's DISCONNECT has a Session Expiry Interval"}
)

// Decode reads a packet, and judges all that can be judged without knowing what was sent
// before. The error is an [*mqtt.Error].
func (p *Packet) Decode(v mqtt.Version, f Frame) error {
	p.Type = f.Type()
	switch p.Type {
	case mqtt.CONNACK:
		return p.Connack.Decode(v, f.Body)
	case mqtt.PUBLISH:
		return p.Publish.DecodeDelivery(v, f.Header, f.Body)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		return p.Ack.Decode(v, p.Type, f.Body)
	case mqtt.SUBACK:
		return p.Suback.Decode(v, f.Body)
	case mqtt.UNSUBACK:
		return p.Unsuback.Decode(v, f.Body)
	case mqtt.PINGRESP: // that it has no body is the Reader's to check
		return nil
	case mqtt.DISCONNECT:
		if v < mqtt.V5 { // MQTT 3.1.1, section 3.14
			return errDirection
		}
		if err := p.Disconnect.Decode(v, f.Body); err != nil {
			return err
		}
		if p.Disconnect.HasSessionExpiry { // [MQTT-3.14.2-2]
			return errSessionExpiry
		}
		return nil
	case mqtt.AUTH:
		return p.Auth.Decode(v, f.Body)
	}
	return errDirection
}
