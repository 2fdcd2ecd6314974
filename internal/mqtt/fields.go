package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// cutString takes a string from the front of b and checks that it is well formed.
func cutString(b []byte) (field, rest []byte, err *Error) {
	field, rest, ok := wire.Binary(b)
	if !ok {
		return nil, nil, errShort
	}
	if !wire.ValidUTF8(field) {
		return nil, nil, errUTF8
	}
	return field, rest, nil
}

// cutPacketID takes a packet identifier, which must not be 0 [MQTT-2.2.1-3], from the front of b.
func cutPacketID(b []byte) (id uint16, rest []byte, err *Error) {
	id, rest, ok := wire.Uint16(b)
	if !ok {
		return 0, nil, errShort
	}
	if id == 0 {
		return 0, nil, errPacketID
	}
	return id, rest, nil
}

// cutBlock takes a property block from the front of b, and its length prefix away.
func cutBlock(b []byte) (block, rest []byte, err *Error) {
	n, size := wire.Varint(b)
	if size <= 0 {
		if size == 0 {
			return nil, nil, errShort
		}
		return nil, nil, errVarint
	}
	end := size + int(n)
	if len(b) < end {
		return nil, nil, errShort
	}
	return b[size:end:end], b[end:], nil
}

func varintError(size int) *Error {
	if size == 0 {
		return errShort
	}
	return errVarint
}

// checkTopicName returns nil if b is a well-formed string without wildcard characters [MQTT-3.3.2-2]; it may be
// empty.
func checkTopicName(b []byte) *Error {
	if wire.ValidTopicName(b) {
		return nil
	}
	return topicNameError(b)
}

func topicNameError(b []byte) *Error {
	if !wire.ValidUTF8(b) {
		return errUTF8
	}
	return errTopicWildcard
}
