package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Ack is a PUBACK, PUBREC, PUBREL or PUBCOMP.
type Ack struct {
	PacketID     uint16
	Code         ReasonCode
	ReasonString []byte
	Raw          []byte // the property block
	Bounds       Bounds
}

// Decode decodes the body of a packet of type t. It overwrites all of a but its Bounds.
func (a *Ack) Decode(v Version, t Type, body []byte) error {
	return asError(a.decode(v, t, body))
}

func (a *Ack) decode(v Version, t Type, body []byte) *Error {
	*a = Ack{Bounds: a.Bounds}
	id, rest, err := cutPacketID(body)
	if err != nil {
		return err
	}
	a.PacketID = id
	if len(rest) == 0 { // Success and no properties
		return nil
	}
	if v < V5 {
		return errTrailing
	}
	a.Code = ReasonCode(rest[0])
	if !a.Code.ValidIn(t) {
		return errReasonCode
	}
	if len(rest) == 1 { // no properties
		return nil
	}
	a.ReasonString, a.Raw, rest, err = cutAckProps(rest[1:], a.Bounds.userPropsLeft())
	if err == nil && len(rest) > 0 {
		return errTrailing
	}
	return err
}

// cutAckProps takes a property block that may hold a Reason String and user properties from the front of b.
func cutAckProps(b []byte, userLeft int) (reason, raw, rest []byte, err *Error) {
	raw, rest, err = cutBlock(b)
	if err != nil {
		return nil, nil, nil, err
	}
	r := propReader{rest: raw, allowed: ackProps, userLeft: userLeft}
	for r.next() {
		if r.id == PropReasonString {
			reason = r.data
		}
	}
	return reason, raw, rest, r.err
}

// AppendAck appends a PUBACK, PUBREC, PUBREL or PUBCOMP in its shortest form. In 3.1.1 code and reason are left
// out. An empty reason is no Reason String; one over wire.MaxString bytes is cut.
func AppendAck(dst []byte, v Version, t Type, packetID uint16, code ReasonCode, reason string) []byte {
	if v < V5 || code == Success && reason == "" {
		return append(dst, t.header(), 2, byte(packetID>>8), byte(packetID))
	}
	if reason == "" {
		return append(dst, t.header(), 3, byte(packetID>>8), byte(packetID), byte(code))
	}
	dst = append(dst, t.header())
	dst, packet := wire.OpenLength(dst)
	dst = append(dst, byte(packetID>>8), byte(packetID), byte(code))
	dst, block := wire.OpenLength(dst)
	dst = appendReason(dst, reason)
	dst = wire.CloseLength(dst, block)
	return wire.CloseLength(dst, packet)
}
