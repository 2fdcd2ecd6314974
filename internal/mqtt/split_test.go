package mqtt

import (
	"bytes"
	"errors"
	"testing"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	ping := []byte{0xC0, 0x00}
	long := append([]byte{0x30, 0x80, 0x01}, make([]byte, 128)...) // 128 bytes: a length of two
	huge := []byte{0x30, 0xFF, 0xFF, 0xFF, 0x7F}                   // claims 268,435,455 bytes

	cases := []struct {
		name      string
		b         []byte
		maxPacket int
		n, need   int
		code      ReasonCode
	}{
		{name: "nothing", b: nil},
		{name: "only a first byte", b: ping[:1]},
		{name: "a whole packet", b: ping, n: 2},
		{name: "a packet and the next one's beginning", b: append(bytes.Clone(ping), 0x30), n: 2},
		{name: "half a length", b: long[:2]},
		{name: "length but no body", b: long[:3], need: 131},
		{name: "all but one byte", b: long[:130], need: 131},
		{name: "all bytes", b: long, n: 131},
		{name: "exactly the maximum", b: long, maxPacket: 131, n: 131},
		{name: "one over the maximum", b: long, maxPacket: 130, code: PacketTooLarge},
		{name: "over the maximum, seen from the header alone", b: huge, maxPacket: 1 << 20, code: PacketTooLarge},
		{name: "the largest length", b: huge, need: 5 + 268_435_455},
		{name: "a length that goes on", b: []byte{0x30, 0x80, 0x80, 0x80, 0x80}, code: MalformedPacket},
		{name: "a length that may still be good", b: []byte{0x30, 0x80, 0x80, 0x80}},
		{name: "a length that is not minimal", b: []byte{0x30, 0x80, 0x00}, code: MalformedPacket},
		{name: "type 0 is refused at its first byte", b: []byte{0x00}, code: MalformedPacket},
		{name: "wrong flags are refused at the first byte", b: []byte{0x60}, code: MalformedPacket},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			header, body, n, need, err := Split(c.b, c.maxPacket)
			var refused *Error
			if errors.As(err, &refused) != (c.code != 0) || refused != nil && refused.Code != c.code {
				t.Fatalf("error %v, want %v", err, c.code)
			}
			if n != c.n || need != c.need {
				t.Errorf("n %d, need %d, want %d, %d", n, need, c.n, c.need)
			}
			if n > 0 && (header != c.b[0] || !bytes.Equal(body, c.b[n-len(body):n]) || cap(body) != len(body)) {
				t.Errorf("header %#x, body %x (cap %d) of %x", header, body, cap(body), c.b)
			}
		})
	}
}
