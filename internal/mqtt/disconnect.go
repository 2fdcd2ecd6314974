package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Disconnect is a DISCONNECT packet. Its slices are views of the body it was decoded from.
type Disconnect struct {
	Code             ReasonCode
	SessionExpiry    uint32 // seconds
	HasSessionExpiry bool
	ReasonString     []byte // empty: absent
	ServerReference  []byte // empty: absent
	Raw              []byte // the property block
	Bounds           Bounds
}

// Decode decodes a DISCONNECT. It overwrites all of d but its Bounds. Whether the session's expiry may still be changed
// depends on CONNECT [MQTT-3.14.2-2] and is the caller's to judge.
func (d *Disconnect) Decode(v Version, body []byte) error {
	return asError(d.decode(v, body))
}

func (d *Disconnect) decode(v Version, body []byte) *Error {
	*d = Disconnect{Bounds: d.Bounds}
	if len(body) == 0 { // normal disconnection, no properties
		return nil
	}
	if v < V5 {
		return errDisconnectBody
	}
	d.Code = ReasonCode(body[0])
	if !d.Code.ValidIn(DISCONNECT) { // [MQTT-3.14.2-1]
		return errReasonCode
	}
	if len(body) == 1 { // no properties
		return nil
	}
	block, rest, err := cutBlock(body[1:])
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return errTrailing
	}
	d.Raw = block
	r := propReader{rest: block, allowed: disconnectProps, userLeft: d.Bounds.userPropsLeft()}
	for r.next() {
		switch r.id {
		case PropSessionExpiry:
			d.SessionExpiry, d.HasSessionExpiry = r.num, true
		case PropReasonString:
			d.ReasonString = r.data
		case PropServerReference:
			d.ServerReference = r.data
		}
	}
	return r.err
}

// AppendDisconnect appends d in its shortest form. In 3.1.1, where only clients send it, it has no body.
func AppendDisconnect(dst []byte, v Version, d *Disconnect) []byte {
	if v < V5 {
		return append(dst, DISCONNECT.header(), 0)
	}
	start := len(dst)
	dst = append(dst, DISCONNECT.header())
	dst, packet := wire.OpenLength(dst)
	dst = append(dst, byte(d.Code))
	dst, block := wire.OpenLength(dst)
	if d.HasSessionExpiry {
		dst = AppendUint32Prop(dst, PropSessionExpiry, d.SessionExpiry)
	}
	dst = appendReason(dst, d.ReasonString)
	if len(d.ServerReference) > 0 {
		dst = AppendStringProp(dst, PropServerReference, d.ServerReference)
	}
	dst = appendUserProps(dst, d.Raw)
	if len(dst) == block+1 { // no properties
		if d.Code == NormalDisconnection {
			return append(dst[:start], DISCONNECT.header(), 0)
		}
		return wire.CloseLength(dst[:block], packet)
	}
	dst = wire.CloseLength(dst, block)
	return wire.CloseLength(dst, packet)
}
