package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// headerError judges a first byte: its flags are fixed for every type but PUBLISH [MQTT-2.1.3-1], whose flags mean
// something and are judged by its Decode.
func headerError(header byte) *Error {
	t := TypeOf(header)
	switch {
	case t == PUBLISH:
		return nil
	case t == 0:
		return errType
	case header != t.header():
		return errFlags
	}
	return nil
}

// Split finds the first whole packet in b. n is its length, header its first byte, body a view of what follows
// the fixed header.
//
// n == 0 with a nil err says that more bytes are needed; need is then the whole packet's length if its header
// has been seen, else 0. Don't allocate by need alone: it is only what the peer claims.
//
// maxPacket bounds the whole packet, in bytes; 0 means no bound of our own. The errors, each an [*Error], are
// PacketTooLarge as soon as the header says so, and MalformedPacket for a remaining length of more than four
// bytes or more than it needs, for type 0, for wrong flags, and for a PINGREQ or PINGRESP with a body (they have
// no Decode).
func Split(b []byte, maxPacket int) (header byte, body []byte, n, need int, err error) {
	if len(b) == 0 {
		return 0, nil, 0, 0, nil
	}
	header = b[0]
	if e := headerError(header); e != nil {
		return header, nil, 0, 0, e
	}
	remaining, size := wire.Varint(b[1:])
	if size <= 0 {
		if size < 0 {
			return header, nil, 0, 0, errVarint
		}
		return header, nil, 0, 0, nil
	}
	if remaining > 0 && (TypeOf(header) == PINGREQ || TypeOf(header) == PINGRESP) {
		return header, nil, 0, 0, errPingBody
	}
	whole := 1 + size + int(remaining)
	if maxPacket > 0 && whole > maxPacket {
		return header, nil, 0, 0, errTooLarge
	}
	if len(b) < whole {
		return header, nil, 0, whole, nil
	}
	return header, b[1+size : whole : whole], whole, 0, nil
}

// ClearDup31 clears the DUP flag of the packet that begins b, where only MQTT 3.1 has one: its clients may set it on
// a PUBREL, SUBSCRIBE or UNSUBSCRIBE that they send again. Call it before Split, on a connection of that version.
func ClearDup31(b []byte) {
	if len(b) == 0 {
		return
	}
	switch TypeOf(b[0]) {
	case PUBREL, SUBSCRIBE, UNSUBSCRIBE:
		b[0] &^= 0x08
	}
}
