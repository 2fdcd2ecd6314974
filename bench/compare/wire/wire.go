// Package wire is just enough of MQTT 5 for a load generator and for servers
// that answer it: framing without validation and without allocation. Who calls
// it trusts the other side, which is a process that it started itself.
package wire

import "encoding/binary"

// First bytes of the packets that occur here.
const (
	Connect     = 0x10
	Connack     = 0x20
	Publish     = 0x30
	Puback      = 0x40
	Pubrec      = 0x50
	Pubrel      = 0x62
	Pubcomp     = 0x70
	Subscribe   = 0x82
	Suback      = 0x90
	Unsubscribe = 0xA2
	Pingreq     = 0xC0
	Pingresp    = 0xD0
	Disconnect  = 0xE0
)

// Property identifiers (MQTT 5, section 2.2.2.2).
const (
	PropPayloadFormat = 0x01
	PropContentType   = 0x03
	PropResponseTopic = 0x08
	PropCorrelation   = 0x09
	PropUser          = 0x26
)

// The state store's topics and what the store says in every answer.
const (
	InvokeTopic  = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	NotifyPrefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
)

// Split gives the first whole packet in b, its length n, and a view of its
// body. n is 0 if bytes are missing.
func Split(b []byte) (header byte, body []byte, n int) {
	size, shift := 0, 0
	for i := 1; i < len(b) && i < 5; i++ {
		size |= int(b[i]&0x7F) << shift
		if b[i] < 0x80 {
			n = i + 1 + size
			if n > len(b) {
				return 0, nil, 0
			}
			return b[0], b[i+1 : n], n
		}
		shift += 7
	}
	return 0, nil, 0
}

// Message is a PUBLISH taken apart.
type Message struct {
	ID                    uint16 // 0 at QoS 0
	Topic, Props, Payload []byte
}

// Parse takes a PUBLISH apart. It panics on one that is cut short.
func (m *Message) Parse(header byte, body []byte) {
	size := int(binary.BigEndian.Uint16(body))
	m.Topic, body = body[2:2+size], body[2+size:]
	m.ID = 0
	if header&0x06 != 0 {
		m.ID, body = binary.BigEndian.Uint16(body), body[2:]
	}
	size, n := varint(body)
	m.Props, m.Payload = body[n:n+size], body[n+size:]
}

// Request finds what a responder needs in a PUBLISH's properties.
func (m *Message) Request() (responseTopic, correlation []byte) {
	for p := m.Props; len(p) > 0; {
		id := p[0]
		p = p[1:]
		switch id {
		case PropPayloadFormat:
			p = p[1:]
		case 0x02: // message expiry
			p = p[4:]
		case 0x23: // topic alias
			p = p[2:]
		case PropUser:
			p = p[2+int(binary.BigEndian.Uint16(p)):]
			p = p[2+int(binary.BigEndian.Uint16(p)):]
		default:
			n := int(binary.BigEndian.Uint16(p))
			v := p[2 : 2+n]
			p = p[2+n:]
			switch id {
			case PropResponseTopic:
				responseTopic = v
			case PropCorrelation:
				correlation = v
			}
		}
	}
	return responseTopic, correlation
}

// AppendPublish appends a PUBLISH. id is ignored at QoS 0.
func AppendPublish[T ~string | ~[]byte](dst []byte, qos byte, retain bool, id uint16, topic T, props, payload []byte) []byte {
	size := 2 + len(topic) + varintSize(len(props)) + len(props) + len(payload)
	header := byte(Publish | qos<<1)
	if qos > 0 {
		size += 2
	}
	if retain {
		header |= 1
	}
	dst = AppendVarint(append(dst, header), size)
	dst = AppendString(dst, topic)
	if qos > 0 {
		dst = binary.BigEndian.AppendUint16(dst, id)
	}
	dst = AppendVarint(dst, len(props))
	return append(append(dst, props...), payload...)
}

// AppendConnect appends a CONNECT with Clean Start. expiry is the session's, in
// seconds; keepAlive too.
func AppendConnect(dst []byte, client string, expiry uint32, keepAlive uint16) []byte {
	body := AppendString(nil, "MQTT")
	body = append(body, 5, 0x02)
	body = binary.BigEndian.AppendUint16(body, keepAlive)
	if expiry > 0 {
		body = append(body, 5, 0x11)
		body = binary.BigEndian.AppendUint32(body, expiry)
	} else {
		body = append(body, 0)
	}
	body = AppendString(body, client)
	return append(AppendVarint(append(dst, Connect), len(body)), body...)
}

// AppendSubscribe appends a SUBSCRIBE to one filter.
func AppendSubscribe(dst []byte, id uint16, filter string, qos byte) []byte {
	dst = AppendVarint(append(dst, Subscribe), 2+1+2+len(filter)+1)
	dst = append(binary.BigEndian.AppendUint16(dst, id), 0)
	return append(AppendString(dst, filter), qos)
}

// AppendUnsubscribe appends an UNSUBSCRIBE from one filter.
func AppendUnsubscribe(dst []byte, id uint16, filter string) []byte {
	dst = AppendVarint(append(dst, Unsubscribe), 2+1+2+len(filter))
	dst = append(binary.BigEndian.AppendUint16(dst, id), 0)
	return AppendString(dst, filter)
}

// AppendAck appends a successful PUBACK, PUBREC, PUBREL or PUBCOMP.
func AppendAck(dst []byte, header byte, id uint16) []byte {
	return append(dst, header, 2, byte(id>>8), byte(id))
}

// AppendString appends a string with its length.
func AppendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// AppendProp appends a property whose value is a string or binary data.
func AppendProp[T ~string | ~[]byte](dst []byte, id byte, value T) []byte {
	return AppendString(append(dst, id), value)
}

// AppendUser appends a user property.
func AppendUser(dst []byte, name, value string) []byte {
	return AppendString(AppendString(append(dst, PropUser), name), value)
}

// AppendVarint appends a variable byte integer, such as the length of a packet.
func AppendVarint(dst []byte, n int) []byte {
	for n >= 0x80 {
		dst = append(dst, byte(n)|0x80)
		n >>= 7
	}
	return append(dst, byte(n))
}

func varint(b []byte) (value, n int) {
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		value |= int(b[i]&0x7F) << shift
		if b[i] < 0x80 {
			return value, i + 1
		}
	}
}

func varintSize(n int) int {
	size := 1
	for n >= 0x80 {
		n >>= 7
		size++
	}
	return size
}
