package wire

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
	"unsafe"
)

const (
	eachByte = 0x0101010101010101
	highBits = 0x80 * eachByte
	eachPlus = '+' * eachByte
	plusOnly = ('+' ^ '#') * eachByte // the one bit that '+' has and '#' has not
)

// ValidUTF8 reports whether b is a string as MQTT has it: well-formed UTF-8 without surrogates [MQTT-1.5.4-1]
// and without U+0000 [MQTT-1.5.4-2]. Control and non-characters, which the standard leaves to the receiver, are
// accepted, and U+FEFF is a character like any other [MQTT-1.5.4-3].
//
// Nearly every string on the wire is ASCII, so eight bytes are looked at together: w has a high bit where a byte
// is not ASCII, and w-eachByte gets one where a byte is 0. The last eight bytes may overlap those before them.
// What is found is gathered and judged once at the end, because branches would cost more than the rest. Only a
// string with such a byte pays for more.
func ValidUTF8(b []byte) bool {
	n := len(b)
	if n < 8 {
		for _, c := range b {
			if c-1 >= 0x7F {
				return validUTF8Slow(b)
			}
		}
		return true
	}
	odd := oddInText(binary.LittleEndian.Uint64(b[n-8:]))
	i := 0
	for ; i < n-32; i += 32 {
		four := (*[32]byte)(b[i:])
		odd |= oddInText(binary.LittleEndian.Uint64(four[0:])) | oddInText(binary.LittleEndian.Uint64(four[8:])) |
			oddInText(binary.LittleEndian.Uint64(four[16:])) | oddInText(binary.LittleEndian.Uint64(four[24:]))
	}
	for ; i < n-8; i += 8 {
		odd |= oddInText(binary.LittleEndian.Uint64(b[i:]))
	}
	return odd&highBits == 0 || validUTF8Slow(b)
}

// oddInText has a high bit if one of w's bytes is 0 or not ASCII.
func oddInText(w uint64) uint64 { return w | (w - eachByte) }

// ValidText is ValidUTF8 for a string, which it does not copy.
func ValidText(s string) bool { return ValidUTF8(unsafe.Slice(unsafe.StringData(s), len(s))) }

func validUTF8Slow(b []byte) bool {
	return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0
}

// ValidTopicName reports whether b is a well-formed string without wildcard characters [MQTT-3.3.2-2]; it may be
// empty. The trick is that of ValidUTF8, with two more bytes to look for.
func ValidTopicName(b []byte) bool {
	n := len(b)
	if n < 8 {
		for _, c := range b {
			if c-1 >= 0x7F || c == '+' || c == '#' {
				return validTopicNameSlow(b)
			}
		}
		return true
	}
	odd := oddInTopic(binary.LittleEndian.Uint64(b[n-8:]))
	for i := 0; i < n-8; i += 8 {
		odd |= oddInTopic(binary.LittleEndian.Uint64(b[i:]))
	}
	if odd&highBits != 0 {
		return validTopicNameSlow(b)
	}
	return true
}

// oddInTopic has a high bit if one of w's bytes is 0, '+', '#' or not ASCII. With plusOnly set '#' is '+'.
func oddInTopic(w uint64) uint64 {
	return w | (w - eachByte) | (((w | plusOnly) ^ eachPlus) - eachByte)
}

func validTopicNameSlow(b []byte) bool {
	return validUTF8Slow(b) && bytes.IndexByte(b, '+') < 0 && bytes.IndexByte(b, '#') < 0
}
