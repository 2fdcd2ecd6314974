package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Suback is a SUBACK packet: one code for each filter of the SUBSCRIBE, in its order. Codes' array is reused by
// the next Decode.
type Suback struct {
	PacketID     uint16
	Codes        []ReasonCode
	ReasonString []byte
	Raw          []byte // the property block
}

// Decode decodes a SUBACK. It overwrites all of s. In 3.1.1 a failure is UnspecifiedError.
func (s *Suback) Decode(v Version, body []byte) error {
	return asError(s.decode(v, body))
}

func (s *Suback) decode(v Version, body []byte) *Error {
	*s = Suback{Codes: s.Codes[:0]}
	id, rest, err := cutPacketID(body)
	if err != nil {
		return err
	}
	s.PacketID = id
	if v >= V5 {
		if s.ReasonString, s.Raw, rest, err = cutAckProps(rest, -1); err != nil {
			return err
		}
	}
	for _, b := range rest {
		if v < V5 && b > 2 && b != 0x80 { // MQTT 3.1.1 [MQTT-3.9.3-2]
			return errReasonCode
		}
	}
	s.Codes, err = appendCodes(s.Codes, SUBACK, rest)
	return err
}

// appendCodes reads the reason codes that a SUBACK or UNSUBACK ends with.
func appendCodes(codes []ReasonCode, t Type, b []byte) ([]ReasonCode, *Error) {
	if len(b) == 0 {
		return codes, errAckWithoutAnyCodes
	}
	for _, c := range b {
		if !ReasonCode(c).ValidIn(t) {
			return codes, errReasonCode
		}
		codes = append(codes, ReasonCode(c))
	}
	return codes, nil
}

// Unsuback is an UNSUBACK packet. In 3.1.1 it has no codes.
type Unsuback struct {
	PacketID     uint16
	Codes        []ReasonCode
	ReasonString []byte
	Raw          []byte // the property block
}

// Decode decodes an UNSUBACK. It overwrites all of u.
func (u *Unsuback) Decode(v Version, body []byte) error {
	return asError(u.decode(v, body))
}

func (u *Unsuback) decode(v Version, body []byte) *Error {
	*u = Unsuback{Codes: u.Codes[:0]}
	id, rest, err := cutPacketID(body)
	if err != nil {
		return err
	}
	u.PacketID = id
	if v < V5 {
		if len(rest) > 0 {
			return errTrailing
		}
		return nil
	}
	if u.ReasonString, u.Raw, rest, err = cutAckProps(rest, -1); err != nil {
		return err
	}
	u.Codes, err = appendCodes(u.Codes, UNSUBACK, rest)
	return err
}

// AppendSuback appends a SUBACK. In 3.1.1 every failure becomes 0x80, and reason is left out.
func AppendSuback(dst []byte, v Version, packetID uint16, codes []ReasonCode, reason string) []byte {
	dst = append(dst, SUBACK.header())
	dst, packet := wire.OpenLength(dst)
	dst = wire.AppendUint16(dst, packetID)
	if v >= V5 {
		dst = appendReasonBlock(dst, reason)
	}
	for _, c := range codes {
		if v < V5 && c.Failed() {
			c = UnspecifiedError
		}
		dst = append(dst, byte(c))
	}
	return wire.CloseLength(dst, packet)
}

// AppendUnsuback appends an UNSUBACK. In 3.1.1 codes and reason are left out.
func AppendUnsuback(dst []byte, v Version, packetID uint16, codes []ReasonCode, reason string) []byte {
	dst = append(dst, UNSUBACK.header())
	dst, packet := wire.OpenLength(dst)
	dst = wire.AppendUint16(dst, packetID)
	if v >= V5 {
		dst = appendReasonBlock(dst, reason)
		for _, c := range codes {
			dst = append(dst, byte(c))
		}
	}
	return wire.CloseLength(dst, packet)
}

// appendReasonBlock appends a property block that holds at most a Reason String.
func appendReasonBlock(dst []byte, reason string) []byte {
	dst, block := wire.OpenLength(dst)
	dst = appendReason(dst, reason)
	return wire.CloseLength(dst, block)
}
