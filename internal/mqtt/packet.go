package mqtt

// Version is the protocol level as it stands in CONNECT.
type Version byte

const (
	V31  Version = 3 // MQTT 3.1: the same packets as 3.1.1, under the protocol name MQIsdp
	V311 Version = 4
	V5   Version = 5
)

// String returns the version's usual name.
func (v Version) String() string {
	switch v {
	case V31:
		return "3.1"
	case V311:
		return "3.1.1"
	case V5:
		return "5.0"
	}
	return "unknown"
}

// Type is the control packet type, the high four bits of the first byte.
type Type byte

const (
	CONNECT     Type = 1
	CONNACK     Type = 2
	PUBLISH     Type = 3
	PUBACK      Type = 4
	PUBREC      Type = 5
	PUBREL      Type = 6
	PUBCOMP     Type = 7
	SUBSCRIBE   Type = 8
	SUBACK      Type = 9
	UNSUBSCRIBE Type = 10
	UNSUBACK    Type = 11
	PINGREQ     Type = 12
	PINGRESP    Type = 13
	DISCONNECT  Type = 14
	AUTH        Type = 15
)

var typeNames = [16]string{
	"RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
}

// String returns the type's name as the standard writes it.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "RESERVED"
}

// TypeOf returns the type that a packet's first byte says.
func TypeOf(header byte) Type { return Type(header >> 4) }

// Asks reports whether the client that sends a packet with this first byte waits for an
// acknowledgement, or for the PINGRESP.
func Asks(header byte) bool {
	switch t := TypeOf(header); t {
	case PUBLISH:
		return header&0x06 != 0 // the bits of its QoS
	default:
		return t == SUBSCRIBE || t == UNSUBSCRIBE || t == PINGREQ
	}
}

// header returns the first byte of every packet of type t but PUBLISH, whose flags vary.
func (t Type) header() byte {
	switch t {
	case PUBREL, SUBSCRIBE, UNSUBSCRIBE: // [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1]
		return byte(t)<<4 | 0x02
	}
	return byte(t) << 4
}

// AppendPingreq appends a PINGREQ packet.
func AppendPingreq(dst []byte) []byte { return append(dst, byte(PINGREQ)<<4, 0) }

// AppendPingresp appends a PINGRESP packet.
func AppendPingresp(dst []byte) []byte { return append(dst, byte(PINGRESP)<<4, 0) }
