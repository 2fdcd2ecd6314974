package mqtt

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// Publish is a PUBLISH packet as received. Everything in it is a view of the body it was decoded from.
type Publish struct {
	Dup, Retain bool
	QoS         byte
	PacketID    uint16 // 0 if QoS is 0
	Topic       []byte // empty if a topic alias stands for it
	Payload     []byte
	Props       PublishProps
	Bounds      Bounds
}

// PublishProps are the properties of a message, in a PUBLISH or a will. A field without its Has is zero.
type PublishProps struct {
	PayloadFormat    byte
	HasPayloadFormat bool

	HasMessageExpiry bool
	MessageExpiry    uint32 // seconds

	TopicAlias    uint16 // never 0 if present
	HasTopicAlias bool

	HasResponseTopic, HasCorrelationData, HasContentType bool
	ResponseTopic, CorrelationData, ContentType          []byte

	SubscriptionIDs []uint32 // only from a server; the array is reused by the next Decode
	Raw             []byte   // the whole property block as received, without its length; empty in 3.1.1
}

// Decode decodes a PUBLISH that a client sent to a server. It overwrites all of p but its Bounds, and leaves to the
// caller whether the payload is what Payload Format Indicator promises, and whether the topic alias is known. After an
// error p's content means nothing.
func (p *Publish) Decode(v Version, header byte, body []byte) error {
	return asError(p.decode(v, header, body, publishProps))
}

// DecodeDelivery decodes a PUBLISH that a server sent to a client: it differs from Decode only in that it may
// carry subscription identifiers [MQTT-3.3.4-6].
func (p *Publish) DecodeDelivery(v Version, header byte, body []byte) error {
	return asError(p.decode(v, header, body, deliveryProps))
}

func (p *Publish) decode(v Version, header byte, body []byte, allowed propSet) *Error {
	p.Dup = header&0x08 != 0
	p.QoS = header >> 1 & 0x03
	p.Retain = header&0x01 != 0
	p.PacketID = 0
	p.Props.reset()

	topic, rest, ok := wire.Binary(body)
	if !ok {
		return errShort
	}
	if err := checkTopicName(topic); err != nil {
		return err
	}
	p.Topic = topic

	switch p.QoS {
	case 0:
		if p.Dup { // [MQTT-3.3.1-2]
			return errDupQoS0
		}
	case 3: // [MQTT-3.3.1-4]
		return errQoS3
	default:
		if len(rest) < 2 {
			return errShort
		}
		p.PacketID = uint16(rest[0])<<8 | uint16(rest[1])
		if p.PacketID == 0 { // [MQTT-2.2.1-3]
			return errPacketID
		}
		rest = rest[2:]
	}

	if v >= V5 {
		block, payload, err := cutBlock(rest)
		if err != nil {
			return err
		}
		if err := p.Props.decode(block, allowed, nil, p.Bounds.userPropsLeft()); err != nil {
			return err
		}
		rest = payload
	}
	p.Payload = rest
	if len(topic) == 0 && !p.Props.HasTopicAlias {
		return errNoTopic
	}
	return nil
}

// reset is written out because *p = PublishProps{…} makes a copy of 160 bytes.
func (p *PublishProps) reset() {
	p.PayloadFormat, p.HasPayloadFormat = 0, false
	p.MessageExpiry, p.HasMessageExpiry = 0, false
	p.TopicAlias, p.HasTopicAlias = 0, false
	p.ResponseTopic, p.HasResponseTopic = nil, false
	p.CorrelationData, p.HasCorrelationData = nil, false
	p.ContentType, p.HasContentType = nil, false
	p.SubscriptionIDs = p.SubscriptionIDs[:0]
	p.Raw = nil
}

// decode reads the property block of a message in one pass. willDelay is where a will's delay goes; it is nil
// for a PUBLISH, whose allowed does not have it. userLeft is as in propReader. This is the hottest loop of the package; its like for every
// other packet is propReader.
func (p *PublishProps) decode(block []byte, allowed propSet, willDelay *uint32, userLeft int) *Error {
	p.Raw = block
	var seen propSet
	for i := 0; i < len(block); {
		id := PropertyID(block[i])
		i++
		if id == PropUser {
			if userLeft == 0 {
				return errUserProps
			}
			userLeft--
			end, err := checkPair(block, i)
			if err != nil {
				return err
			}
			i = end
			continue
		}
		if !allowed.has(id) {
			if id == PropSubscriptionID && allowed.has(PropTopicAlias) {
				return errSubIDFromClient
			}
			return errPropertyID
		}
		if seen.has(id) {
			return errPropertyTwice
		}
		seen |= 1 << id

		var end int
		var err *Error
		switch id {
		case PropResponseTopic, PropCorrelationData, PropContentType:
			end, err = p.decodeText(id, block, i)
		case PropSubscriptionID:
			end, err = p.decodeSubscriptionID(block, i)
			seen &^= 1 << PropSubscriptionID // one for each subscription that matches
		default:
			end, err = p.decodeNumber(id, block, i, willDelay)
		}
		if err != nil {
			return err
		}
		i = end
	}
	return nil
}

// decodeText reads the string or binary data at block[i] and returns where it ends.
func (p *PublishProps) decodeText(id PropertyID, block []byte, i int) (end int, err *Error) {
	end = wire.TextEnd(block, i)
	if end < 0 {
		return 0, errShort
	}
	field := block[i+2 : end : end]
	switch id {
	case PropResponseTopic:
		if err := checkTopicName(field); err != nil {
			if err == errTopicWildcard { // [MQTT-3.3.2-14]
				err = errResponseTopic
			}
			return 0, err
		}
		p.ResponseTopic, p.HasResponseTopic = field, true
	case PropCorrelationData:
		p.CorrelationData, p.HasCorrelationData = field, true
	case PropContentType:
		if !wire.ValidUTF8(field) {
			return 0, errUTF8
		}
		p.ContentType, p.HasContentType = field, true
	}
	return end, nil
}

// decodeNumber reads the number of fixed size at block[i] and returns where it ends.
func (p *PublishProps) decodeNumber(id PropertyID, block []byte, i int, willDelay *uint32) (end int, err *Error) {
	b := block[i:]
	switch id {
	case PropPayloadFormat:
		if len(b) < 1 {
			return 0, errShort
		}
		if b[0] > 1 {
			return 0, errPropertyBool
		}
		p.PayloadFormat, p.HasPayloadFormat = b[0], true
		return i + 1, nil
	case PropTopicAlias:
		if len(b) < 2 {
			return 0, errShort
		}
		p.TopicAlias, p.HasTopicAlias = binary.BigEndian.Uint16(b), true
		if p.TopicAlias == 0 { // [MQTT-3.3.2-8]
			return 0, errAliasZero
		}
		return i + 2, nil
	}
	if len(b) < 4 {
		return 0, errShort
	}
	seconds := binary.BigEndian.Uint32(b)
	if id == PropMessageExpiry {
		p.MessageExpiry, p.HasMessageExpiry = seconds, true
	} else { // PropWillDelayInterval: only a will's allowed has it
		*willDelay = seconds
	}
	return i + 4, nil
}

func (p *PublishProps) decodeSubscriptionID(block []byte, i int) (end int, err *Error) {
	n, size := wire.Varint(block[i:])
	if size <= 0 {
		return 0, varintError(size)
	}
	if n == 0 {
		return 0, errPropertyZero
	}
	p.SubscriptionIDs = append(p.SubscriptionIDs, n)
	return i + size, nil
}

// checkPair checks the name and the value at block[i] and returns where they end.
func checkPair(block []byte, i int) (end int, err *Error) {
	nameEnd := wire.TextEnd(block, i)
	if nameEnd < 0 {
		return 0, errShort
	}
	end = wire.TextEnd(block, nameEnd)
	if end < 0 {
		return 0, errShort
	}
	if !wire.ValidUTF8(block[i+2:nameEnd]) || !wire.ValidUTF8(block[nameEnd+2:end]) {
		return 0, errUTF8
	}
	return end, nil
}

// append appends the block's properties: the fields that are set, then the user properties of Raw.
func (p *PublishProps) append(dst []byte) []byte {
	if p.HasPayloadFormat {
		dst = AppendByteProp(dst, PropPayloadFormat, p.PayloadFormat)
	}
	if p.HasMessageExpiry {
		dst = AppendUint32Prop(dst, PropMessageExpiry, p.MessageExpiry)
	}
	if p.HasTopicAlias {
		dst = AppendUint16Prop(dst, PropTopicAlias, p.TopicAlias)
	}
	if p.HasResponseTopic {
		dst = AppendStringProp(dst, PropResponseTopic, p.ResponseTopic)
	}
	if p.HasCorrelationData {
		dst = AppendStringProp(dst, PropCorrelationData, p.CorrelationData)
	}
	for _, id := range p.SubscriptionIDs {
		dst = AppendVarintProp(dst, PropSubscriptionID, id)
	}
	if p.HasContentType {
		dst = AppendStringProp(dst, PropContentType, p.ContentType)
	}
	return appendUserProps(dst, p.Raw)
}

// publishHeader returns a PUBLISH's first byte.
func publishHeader(qos byte, dup, retain bool) byte {
	header := byte(PUBLISH)<<4 | qos<<1
	if dup {
		header |= 0x08
	}
	if retain {
		header |= 0x01
	}
	return header
}

// AppendPublish appends p as a client sends it. In 3.1.1 the properties are left out. See [AppendDelivery] for
// the server's side.
func AppendPublish(dst []byte, v Version, p *Publish) []byte {
	dst = append(dst, publishHeader(p.QoS, p.Dup, p.Retain))
	dst, packet := wire.OpenLength(dst)
	dst = wire.AppendText(dst, p.Topic)
	if p.QoS > 0 {
		dst = wire.AppendUint16(dst, p.PacketID)
	}
	if v >= V5 {
		var block int
		dst, block = wire.OpenLength(dst)
		dst = p.Props.append(dst)
		dst = wire.CloseLength(dst, block)
	}
	dst = append(dst, p.Payload...)
	return wire.CloseLength(dst, packet)
}

// EmptyResponseTopic says whether there is a Response Topic and it is empty: a topic name has
// at least one character [MQTT-4.7.3-1].
func (p *PublishProps) EmptyResponseTopic() bool {
	return p.HasResponseTopic && len(p.ResponseTopic) == 0
}

// NotAsFormatted says whether the payload is not the UTF-8 that its Payload Format Indicator
// promises. The payload may contain U+0000, which MQTT forbids in its own strings only.
func (p *PublishProps) NotAsFormatted(payload []byte) bool {
	return p.PayloadFormat == 1 && !utf8.Valid(payload)
}
