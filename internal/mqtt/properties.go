package mqtt

import (
	"iter"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// PropertyID names a property (MQTT 5, section 2.2.2.2).
type PropertyID byte

const (
	PropPayloadFormat                 PropertyID = 1
	PropMessageExpiry                 PropertyID = 2
	PropContentType                   PropertyID = 3
	PropResponseTopic                 PropertyID = 8
	PropCorrelationData               PropertyID = 9
	PropSubscriptionID                PropertyID = 11
	PropSessionExpiry                 PropertyID = 17
	PropAssignedClientID              PropertyID = 18
	PropServerKeepAlive               PropertyID = 19
	PropAuthMethod                    PropertyID = 21
	PropAuthData                      PropertyID = 22
	PropRequestProblemInfo            PropertyID = 23
	PropWillDelayInterval             PropertyID = 24
	PropRequestResponseInfo           PropertyID = 25
	PropResponseInformation           PropertyID = 26
	PropServerReference               PropertyID = 28
	PropReasonString                  PropertyID = 31
	PropReceiveMaximum                PropertyID = 33
	PropTopicAliasMaximum             PropertyID = 34
	PropTopicAlias                    PropertyID = 35
	PropMaximumQoS                    PropertyID = 36
	PropRetainAvailable               PropertyID = 37
	PropUser                          PropertyID = 38
	PropMaximumPacketSize             PropertyID = 39
	PropWildcardSubscriptionAvailable PropertyID = 40
	PropSubscriptionIDsAvailable      PropertyID = 41
	PropSharedSubscriptionAvailable   PropertyID = 42
)

// propSet is a bit set of properties. All identifiers are below 64; a byte above cannot be one of them, nor the
// start of one, since an identifier's variable byte integer must be minimal.
type propSet uint64

func propsOf(ids ...PropertyID) (s propSet) {
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

func (s propSet) has(id PropertyID) bool { return id < 64 && s>>id&1 != 0 }

// Which packet may carry which property (MQTT 5, table 2-4).
var (
	messageProps    = propsOf(PropPayloadFormat, PropMessageExpiry, PropContentType, PropResponseTopic, PropCorrelationData, PropUser)
	publishProps    = messageProps | propsOf(PropTopicAlias)     // from a client
	deliveryProps   = publishProps | propsOf(PropSubscriptionID) // from a server [MQTT-3.3.4-6]
	willProps       = messageProps | propsOf(PropWillDelayInterval)
	connectProps    = propsOf(PropSessionExpiry, PropAuthMethod, PropAuthData, PropRequestProblemInfo, PropRequestResponseInfo, PropReceiveMaximum, PropTopicAliasMaximum, PropMaximumPacketSize, PropUser)
	connackProps    = propsOf(PropSessionExpiry, PropAssignedClientID, PropServerKeepAlive, PropAuthMethod, PropAuthData, PropResponseInformation, PropServerReference, PropReasonString, PropReceiveMaximum, PropTopicAliasMaximum, PropMaximumQoS, PropRetainAvailable, PropUser, PropMaximumPacketSize, PropWildcardSubscriptionAvailable, PropSubscriptionIDsAvailable, PropSharedSubscriptionAvailable)
	ackProps        = propsOf(PropReasonString, PropUser) // PUBACK … PUBCOMP, SUBACK, UNSUBACK
	subscribeProps  = propsOf(PropSubscriptionID, PropUser)
	userPropsOnly   = propsOf(PropUser)
	disconnectProps = propsOf(PropSessionExpiry, PropServerReference, PropReasonString, PropUser)
	authProps       = propsOf(PropAuthMethod, PropAuthData, PropReasonString, PropUser)
)

// kind is how a property's value is encoded.
type kind byte

const (
	kindNone kind = iota
	kindBool      // a byte that may be 0 or 1
	kindUint16
	kindUint16NotZero
	kindUint32
	kindUint32NotZero
	kindVarintNotZero
	kindString
	kindBinary
	kindPair
)

var kinds = [64]kind{
	PropPayloadFormat:                 kindBool,
	PropMessageExpiry:                 kindUint32,
	PropContentType:                   kindString,
	PropResponseTopic:                 kindString,
	PropCorrelationData:               kindBinary,
	PropSubscriptionID:                kindVarintNotZero,
	PropSessionExpiry:                 kindUint32,
	PropAssignedClientID:              kindString,
	PropServerKeepAlive:               kindUint16,
	PropAuthMethod:                    kindString,
	PropAuthData:                      kindBinary,
	PropRequestProblemInfo:            kindBool,
	PropWillDelayInterval:             kindUint32,
	PropRequestResponseInfo:           kindBool,
	PropResponseInformation:           kindString,
	PropServerReference:               kindString,
	PropReasonString:                  kindString,
	PropReceiveMaximum:                kindUint16NotZero,
	PropTopicAliasMaximum:             kindUint16,
	PropTopicAlias:                    kindUint16NotZero,
	PropMaximumQoS:                    kindBool,
	PropRetainAvailable:               kindBool,
	PropUser:                          kindPair,
	PropMaximumPacketSize:             kindUint32NotZero,
	PropWildcardSubscriptionAvailable: kindBool,
	PropSubscriptionIDsAvailable:      kindBool,
	PropSharedSubscriptionAvailable:   kindBool,
}

// fixedSizes are the sizes of the kinds that have one.
var fixedSizes = [...]int{
	kindBool: 1, kindUint16: 2, kindUint16NotZero: 2, kindUint32: 4, kindUint32NotZero: 4, kindPair: 0,
}

// propReader walks over a property block and validates it on the way: for next() { switch r.id … }, then
// r.err. What it finds stands in num (numbers) or data (strings, binary data, a user property's name).
// PUBLISH has its own loop, which is this one unrolled for the six properties of a message.
type propReader struct {
	rest          []byte
	allowed, seen propSet
	userLeft      int // user properties that may still come; below 0: any number
	err           *Error

	id          PropertyID
	num         uint32
	data, value []byte
}

// next reads one property. It is false at the end of the block and at the first error.
func (r *propReader) next() bool {
	if r.err != nil || len(r.rest) == 0 {
		return false
	}
	id := PropertyID(r.rest[0])
	if !r.allowed.has(id) {
		r.err = errPropertyID
		return false
	}
	if r.seen.has(id) {
		r.err = errPropertyTwice
		return false
	}
	if id != PropUser {
		r.seen |= 1 << id
	} else if r.userLeft == 0 {
		r.err = errUserProps
		return false
	} else {
		r.userLeft--
	}
	r.id = id
	r.rest, r.err = r.read(r.rest[1:])
	return r.err == nil
}

func (r *propReader) read(b []byte) (rest []byte, err *Error) {
	k := kinds[r.id]
	switch k {
	case kindString, kindBinary, kindPair:
		return r.readText(k, b)
	case kindVarintNotZero:
		n, size := wire.Varint(b)
		if size <= 0 {
			return nil, varintError(size)
		}
		r.num, b = n, b[size:]
	default:
		size := fixedSizes[k]
		if len(b) < size {
			return nil, errShort
		}
		r.num = 0
		for _, c := range b[:size] {
			r.num = r.num<<8 | uint32(c)
		}
		b = b[size:]
	}
	return b, rangeError(k, r.num)
}

func (r *propReader) readText(k kind, b []byte) (rest []byte, err *Error) {
	if k == kindBinary {
		var ok bool
		if r.data, b, ok = wire.Binary(b); !ok {
			return nil, errShort
		}
		return b, nil
	}
	if r.data, b, err = cutString(b); err != nil || k == kindString {
		return b, err
	}
	r.value, b, err = cutString(b)
	return b, err
}

func rangeError(k kind, n uint32) *Error {
	switch k {
	case kindBool:
		if n > 1 {
			return errPropertyBool
		}
	case kindUint16NotZero, kindUint32NotZero, kindVarintNotZero:
		if n == 0 {
			return errPropertyZero
		}
	}
	return nil
}

// propEnd returns where the property that starts at raw[i] ends, or -1 if raw was never validated and ends
// before.
func propEnd(raw []byte, i int) int {
	id := PropertyID(raw[i])
	i++
	if id == PropUser { // the most frequent one
		if i = wire.TextEnd(raw, i); i < 0 {
			return -1
		}
		return wire.TextEnd(raw, i)
	}
	if id >= 64 {
		return -1
	}
	switch k := kinds[id]; k {
	case kindString, kindBinary:
		return wire.TextEnd(raw, i)
	case kindVarintNotZero:
		_, size := wire.Varint(raw[i:])
		if size <= 0 {
			return -1
		}
		return i + size
	default:
		size := fixedSizes[k]
		if size == 0 || i+size > len(raw) {
			return -1
		}
		return i + size
	}
}

// UserProps ranges over the user properties of a validated property block (a packet's Raw) in their order.
// Names and values are views. It allocates nothing when ranged over directly.
func UserProps(raw []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := 0; i < len(raw); {
			end := propEnd(raw, i)
			if end < 0 {
				return
			}
			if PropertyID(raw[i]) == PropUser && !yield(pairAt(raw[i:end])) {
				return
			}
			i = end
		}
	}
}

// pairAt returns the name and value of the user property that prop is.
func pairAt(prop []byte) (name, value []byte) {
	nameEnd := 3 + (int(prop[1])<<8 | int(prop[2]))
	return prop[3:nameEnd:nameEnd], prop[nameEnd+2 : len(prop) : len(prop)]
}

// FindUserProp returns the value of the first user property of that name in a validated property block.
func FindUserProp(raw []byte, name string) (value []byte, ok bool) {
	for i := 0; i < len(raw); {
		end := propEnd(raw, i)
		if end < 0 {
			return nil, false
		}
		if PropertyID(raw[i]) == PropUser {
			if n, v := pairAt(raw[i:end]); string(n) == name {
				return v, true
			}
		}
		i = end
	}
	return nil, false
}

// notForwarded are the properties that speak to this broker only, or that it computes anew for each receiver.
var notForwarded = propsOf(PropTopicAlias, PropMessageExpiry, PropSubscriptionID, PropWillDelayInterval)

// AppendForwardProps appends what a receiver is to see of a PUBLISH's or will's validated property block: every
// property, unaltered and in its order [MQTT-3.3.2-17], except Topic Alias, Message Expiry Interval,
// Subscription Identifier and Will Delay Interval. No length prefix: the result is a [Delivery]'s Props.
func AppendForwardProps(dst, raw []byte) []byte {
	start := 0 // of the run that is to be copied in one piece
	for i := 0; i < len(raw); {
		end := propEnd(raw, i)
		if end < 0 {
			return append(dst, raw[start:i]...)
		}
		if notForwarded.has(PropertyID(raw[i])) {
			dst = append(dst, raw[start:i]...)
			start = end
		}
		i = end
	}
	return append(dst, raw[start:]...)
}

// AppendWithoutUserProps appends a validated property block without the user properties of these names.
func AppendWithoutUserProps(dst, raw []byte, names ...string) []byte {
	for i := 0; i < len(raw); {
		end := propEnd(raw, i)
		if end < 0 {
			return dst
		}
		keep := true
		if PropertyID(raw[i]) == PropUser {
			name, _ := pairAt(raw[i:end])
			keep = !slices.Contains(names, string(name))
		}
		if keep {
			dst = append(dst, raw[i:end]...)
		}
		i = end
	}
	return dst
}

// appendUserProps appends only the user properties of a property block.
func appendUserProps(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		end := propEnd(raw, i)
		if end < 0 {
			return dst
		}
		if PropertyID(raw[i]) == PropUser {
			dst = append(dst, raw[i:end]...)
		}
		i = end
	}
	return dst
}

// The functions that follow build property blocks, such as a Delivery's Props. A string or binary value is at
// most wire.MaxString bytes; they panic beyond it.

// AppendUserProp appends a user property.
func AppendUserProp[N, V wire.Text](dst []byte, name N, value V) []byte {
	dst = append(dst, byte(PropUser))
	dst = wire.AppendText(dst, name)
	return wire.AppendText(dst, value)
}

// AppendStringProp appends a property whose value is a string or binary data.
func AppendStringProp[V wire.Text](dst []byte, id PropertyID, value V) []byte {
	return wire.AppendText(append(dst, byte(id)), value)
}

// AppendByteProp appends a property whose value is one byte.
func AppendByteProp(dst []byte, id PropertyID, value byte) []byte {
	return append(dst, byte(id), value)
}

// AppendUint16Prop appends a property whose value is a two-byte integer.
func AppendUint16Prop(dst []byte, id PropertyID, value uint16) []byte {
	return append(dst, byte(id), byte(value>>8), byte(value))
}

// AppendUint32Prop appends a property whose value is a four-byte integer.
func AppendUint32Prop(dst []byte, id PropertyID, value uint32) []byte {
	return append(dst, byte(id), byte(value>>24), byte(value>>16), byte(value>>8), byte(value))
}

// AppendVarintProp appends a property whose value is a variable byte integer: a Subscription Identifier.
func AppendVarintProp(dst []byte, id PropertyID, value uint32) []byte {
	return wire.AppendVarint(append(dst, byte(id)), value)
}

// appendBoolProp appends a property whose value is 0 or 1.
func appendBoolProp(dst []byte, id PropertyID, value bool) []byte {
	if value {
		return append(dst, byte(id), 1)
	}
	return append(dst, byte(id), 0)
}

// appendReason appends a Reason String unless it is empty. It is for people, so one that is too long is cut
// rather than refused, between characters.
func appendReason[T wire.Text](dst []byte, reason T) []byte {
	if len(reason) == 0 {
		return dst
	}
	return AppendStringProp(dst, PropReasonString, cutReason(reason))
}

func cutReason[T wire.Text](reason T) T {
	if len(reason) <= wire.MaxString {
		return reason
	}
	n := wire.MaxString
	for n > wire.MaxString-4 && reason[n]&0xC0 == 0x80 { // never between the bytes of one character
		n--
	}
	return reason[:n]
}
