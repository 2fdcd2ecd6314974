package front

import (
	"encoding/binary"
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// cursor is a place in a stream of packets.
type cursor struct {
	part  part
	typ   mqtt.Type // of the packet
	shift uint8     // in its length
	left  uint32    // its length, and then what is left of its body
}

type part uint8

const (
	atType part = iota // between two packets
	inLength
	inBody
)

var errLength = errors.New("a packet's length has more than 4 bytes")

// take goes on in p, to the end of the packet at the most. whole says whether it has got there.
func (k *cursor) take(p []byte) (n int, whole bool, err error) {
	for n < len(p) {
		switch k.part {
		case atType:
			*k = cursor{part: inLength, typ: mqtt.Type(p[n] >> 4)}
			n++
		case inLength:
			b := p[n]
			n++
			k.left |= uint32(b&0x7f) << k.shift
			k.shift += 7
			switch {
			case b&0x80 != 0 && k.shift == 28:
				return n, false, errLength
			case b&0x80 != 0:
			case k.left == 0:
				k.part = atType
				return n, true, nil
			default:
				k.part = inBody
			}
		case inBody:
			m := min(int(k.left), len(p)-n)
			n += m
			if k.left -= uint32(m); k.left == 0 {
				k.part = atType
				return n, true, nil
			}
		}
	}
	return n, false, nil
}

// body gives what is there of the body of the packet that p begins with; whole says whether its
// header is whole.
func body(p []byte) (b []byte, whole bool) {
	for i := 1; i < len(p) && i <= 4; i++ {
		if p[i]&0x80 == 0 {
			return p[i+1:], true
		}
	}
	return nil, false
}

// connect is what a front reads of a CONNECT.
type connect struct {
	version   mqtt.Version
	keepAlive uint16 // seconds; 0: none
}

var errNoConnect = errors.New("the connection does not begin with a CONNECT of MQTT")

// parseConnect reads the beginning of a CONNECT. whole says whether there was enough of it.
func parseConnect(p []byte) (c connect, whole bool, err error) {
	if len(p) > 0 && mqtt.Type(p[0]>>4) != mqtt.CONNECT {
		return c, false, errNoConnect
	}
	b, headed := body(p)
	switch {
	case !headed && len(p) > 4:
		return c, false, errNoConnect
	case len(b) < 2:
		return c, false, nil
	}
	name := int(binary.BigEndian.Uint16(b))
	if name != len("MQTT") && name != len("MQIsdp") {
		return c, false, errNoConnect
	}
	if b = b[2:]; len(b) < name+4 {
		return c, false, nil
	}
	if got := string(b[:name]); got != "MQTT" && got != "MQIsdp" {
		return c, false, errNoConnect
	}
	c.version, c.keepAlive = mqtt.Version(b[name]), binary.BigEndian.Uint16(b[name+2:])
	return c, true, nil
}

// maxConnack is how much of a CONNACK is looked at. The server writes the limits of a connection
// before its texts.
const maxConnack = 256

// parseConnack reads the beginning of a CONNACK: whether it is one that takes the client, and the
// keep-alive that the server asks for, if it does.
func parseConnack(p []byte, v mqtt.Version) (taken bool, keepAlive uint16, asked bool) {
	if len(p) == 0 || mqtt.Type(p[0]>>4) != mqtt.CONNACK {
		return false, 0, false
	}
	b, _ := body(p)
	if len(b) < 2 || b[1] != 0 {
		return false, 0, false
	}
	if v != mqtt.V5 {
		return true, 0, false
	}
	length, n := binary.Uvarint(b[2:min(len(b), 6)]) // of MQTT's form up to 4 bytes
	if n <= 0 {
		return true, 0, false
	}
	properties := b[2+n:]
	for properties = properties[:min(len(properties), int(length))]; len(properties) > 0; {
		size := 0
		switch id := mqtt.PropertyID(properties[0]); id {
		case mqtt.PropServerKeepAlive:
			if len(properties) >= 3 {
				return true, binary.BigEndian.Uint16(properties[1:]), true
			}
			return true, 0, false
		case mqtt.PropSessionExpiry, mqtt.PropMaximumPacketSize:
			size = 4
		case mqtt.PropReceiveMaximum, mqtt.PropTopicAliasMaximum:
			size = 2
		case mqtt.PropMaximumQoS, mqtt.PropRetainAvailable, mqtt.PropWildcardSubscriptionAvailable, mqtt.PropSubscriptionIDsAvailable, mqtt.PropSharedSubscriptionAvailable:
			size = 1
		default: // texts
			if len(properties) < 3 {
				return true, 0, false
			}
			size = 2 + int(binary.BigEndian.Uint16(properties[1:]))
			if id == mqtt.PropUser {
				if len(properties) < 1+size+2 {
					return true, 0, false
				}
				size += 2 + int(binary.BigEndian.Uint16(properties[1+size:]))
			}
		}
		if len(properties) < 1+size {
			return true, 0, false
		}
		properties = properties[1+size:]
	}
	return true, 0, false
}
