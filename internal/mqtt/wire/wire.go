package wire

import "encoding/binary"

const (
	// MaxString is the largest length of a string or of binary data, in bytes: what its two-byte prefix holds.
	MaxString = 65_535
	// MaxRemaining is the largest remaining length of a packet: what four bytes of variable byte integer hold.
	MaxRemaining = 268_435_455
)

// Text is what a string field can be made from.
type Text interface{ ~string | ~[]byte }

// Uint16 takes a two-byte integer from the front of b.
func Uint16(b []byte) (v uint16, rest []byte, ok bool) {
	if len(b) < 2 {
		return 0, nil, false
	}
	return uint16(b[0])<<8 | uint16(b[1]), b[2:], true
}

// Binary takes binary data with a two-byte length from the front of b.
func Binary(b []byte) (field, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	end := 2 + (int(b[0])<<8 | int(b[1]))
	if len(b) < end {
		return nil, nil, false
	}
	return b[2:end:end], b[end:], true
}

// Varint reads a variable byte integer. size is the number of its bytes, 0 if b ends inside it, -1 if it has a
// fifth byte or more bytes than it needs [MQTT-1.5.5-1].
func Varint(b []byte) (v uint32, size int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint32(b[0]), 1
	}
	return longVarint(b)
}

func longVarint(b []byte) (v uint32, size int) {
	for i, c := range b {
		v |= uint32(c&0x7F) << (7 * i)
		if c < 0x80 {
			if c == 0 && i > 0 {
				return 0, -1
			}
			return v, i + 1
		}
		if i == 3 {
			return 0, -1
		}
	}
	return 0, 0
}

// VarintSize returns the number of bytes that v takes as a variable byte integer.
func VarintSize(v uint32) int {
	switch {
	case v < 1<<7:
		return 1
	case v < 1<<14:
		return 2
	case v < 1<<21:
		return 3
	}
	return 4
}

// AppendVarint appends v as a variable byte integer. It panics if v does not fit: a packet that large must be
// refused long before.
func AppendVarint(dst []byte, v uint32) []byte {
	switch {
	case v < 1<<7:
		return append(dst, byte(v))
	case v < 1<<14:
		return append(dst, byte(v)|0x80, byte(v>>7))
	case v < 1<<21:
		return append(dst, byte(v)|0x80, byte(v>>7)|0x80, byte(v>>14))
	case v <= MaxRemaining:
		return append(dst, byte(v)|0x80, byte(v>>7)|0x80, byte(v>>14)|0x80, byte(v>>21))
	}
	panic("mqtt: a length over 268,435,455 bytes cannot be encoded")
}

// AppendText appends s with its two-byte length. It panics if s is longer than MaxString: cutting a topic or a
// value would silently make it another one. What came in by MQTT always fits; check what you build yourself.
func AppendText[T Text](dst []byte, s T) []byte {
	if len(s) > MaxString {
		panic("mqtt: a string or binary field over 65,535 bytes cannot be encoded")
	}
	dst = append(dst, byte(len(s)>>8), byte(len(s)))
	return append(dst, s...)
}

// OpenLength reserves room for a length that is not known yet; CloseLength fills it in. Between the two stands
// what the length counts. One byte is reserved, which is what nearly all blocks need; the rare longer length
// moves what was written.
func OpenLength(dst []byte) (grown []byte, at int) { return append(dst, 0), len(dst) }

func CloseLength(dst []byte, at int) []byte {
	n := len(dst) - at - 1
	if n < 1<<7 {
		dst[at] = byte(n)
		return dst
	}
	if n > MaxRemaining {
		panic("mqtt: a length over 268,435,455 bytes cannot be encoded")
	}
	var prefix [4]byte
	size := len(AppendVarint(prefix[:0], uint32(n)))
	dst = append(dst, prefix[:size-1]...) // any bytes: only the room matters
	copy(dst[at+size:], dst[at+1:at+1+n])
	AppendVarint(dst[at:at], uint32(n))
	return dst
}

func AppendUint16(dst []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(dst, v) }

// TextEnd returns where the string or binary data that starts at raw[i] ends, or -1 if raw ends before.
func TextEnd(raw []byte, i int) int {
	if i+2 > len(raw) {
		return -1
	}
	i += 2 + (int(raw[i])<<8 | int(raw[i+1]))
	if i > len(raw) {
		return -1
	}
	return i
}
