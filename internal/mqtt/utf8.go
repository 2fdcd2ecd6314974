package mqtt

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

const (
	eachByte  = 0x0101010101010101
	highBits  = 0x80 * eachByte
	eachPlus  = '+' * eachByte
	eachSharp = '#' * eachByte
)

// ValidUTF8 reports whether b is a string as MQTT has it: well-formed UTF-8 without surrogates [MQTT-1.5.4-1]
// and without U+0000 [MQTT-1.5.4-2]. Control and non-characters, which the standard leaves to the receiver, are
// accepted, and U+FEFF is a character like any other [MQTT-1.5.4-3].
//
// Nearly every string on the wire is ASCII, so eight bytes are looked at together: w has a high bit where a byte
// is not ASCII, and w-eachByte gets one where a byte is 0. Only a string with such a byte pays for more.
func ValidUTF8(b []byte) bool {
	n := len(b)
	if n < 8 {
		for i, c := range b {
			if c-1 >= 0x7F {
				return validUTF8Slow(b[i:])
			}
		}
		return true
	}
	i := 0
	for ; i <= n-8; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		if (w|(w-eachByte))&highBits != 0 {
			return validUTF8Slow(b[i:])
		}
	}
	w := binary.LittleEndian.Uint64(b[n-8:]) // the rest, and some bytes again
	return (w|(w-eachByte))&highBits == 0 || validUTF8Slow(b[i:])
}

func validUTF8Slow(b []byte) bool {
	return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0
}

// checkTopicName returns nil if b is a well-formed string without wildcard characters [MQTT-3.3.2-2]; it may be
// empty. The trick is that of ValidUTF8, with two more bytes to look for.
func checkTopicName(b []byte) *Error {
	n := len(b)
	if n < 8 {
		for _, c := range b {
			if c-1 >= 0x7F || c == '+' || c == '#' {
				return checkTopicNameSlow(b)
			}
		}
		return nil
	}
	for i := 0; i <= n-8; i += 8 {
		if oddInTopic(binary.LittleEndian.Uint64(b[i:])) {
			return checkTopicNameSlow(b)
		}
	}
	if oddInTopic(binary.LittleEndian.Uint64(b[n-8:])) {
		return checkTopicNameSlow(b)
	}
	return nil
}

// oddInTopic reports whether one of w's bytes is 0, '+', '#' or not ASCII.
func oddInTopic(w uint64) bool {
	return (w|(w-eachByte)|((w^eachPlus)-eachByte)|((w^eachSharp)-eachByte))&highBits != 0
}

func checkTopicNameSlow(b []byte) *Error {
	if !validUTF8Slow(b) {
		return errUTF8
	}
	if bytes.IndexByte(b, '+') >= 0 || bytes.IndexByte(b, '#') >= 0 {
		return errTopicWildcard
	}
	return nil
}
