package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Auth is an AUTH packet, which exists only in MQTT 5. Its slices are views of the body it was decoded from.
type Auth struct {
	Code                       ReasonCode
	AuthMethod, AuthData       []byte
	HasAuthMethod, HasAuthData bool
	ReasonString               []byte // empty: absent
	Raw                        []byte // the property block
	Bounds                     Bounds
}

// Decode decodes an AUTH. It overwrites all of a but its Bounds.
func (a *Auth) Decode(v Version, body []byte) error {
	return asError(a.decode(v, body))
}

func (a *Auth) decode(v Version, body []byte) *Error {
	*a = Auth{Bounds: a.Bounds}
	if v < V5 {
		return errNotInV311
	}
	if len(body) == 0 { // Success, no properties
		return nil
	}
	a.Code = ReasonCode(body[0])
	if !a.Code.ValidIn(AUTH) { // [MQTT-3.15.2-1]
		return errReasonCode
	}
	block, rest, err := cutBlock(body[1:])
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return errTrailing
	}
	a.Raw = block
	r := propReader{rest: block, allowed: authProps, userLeft: a.Bounds.userPropsLeft()}
	for r.next() {
		switch r.id {
		case PropAuthMethod:
			a.AuthMethod, a.HasAuthMethod = r.data, true
		case PropAuthData:
			a.AuthData, a.HasAuthData = r.data, true
		case PropReasonString:
			a.ReasonString = r.data
		}
	}
	if r.err == nil && !a.HasAuthMethod { // MQTT 5, section 3.15.2.2.2
		return errAuthWithoutMethod
	}
	return r.err
}

// AppendAuth appends a.
func AppendAuth(dst []byte, a *Auth) []byte {
	if a.Code == Success && !a.HasAuthMethod {
		return append(dst, AUTH.header(), 0)
	}
	dst = append(dst, AUTH.header())
	dst, packet := wire.OpenLength(dst)
	dst = append(dst, byte(a.Code))
	dst, block := wire.OpenLength(dst)
	if a.HasAuthMethod {
		dst = AppendStringProp(dst, PropAuthMethod, a.AuthMethod)
	}
	if a.HasAuthData {
		dst = AppendStringProp(dst, PropAuthData, a.AuthData)
	}
	dst = appendReason(dst, a.ReasonString)
	dst = appendUserProps(dst, a.Raw)
	dst = wire.CloseLength(dst, block)
	return wire.CloseLength(dst, packet)
}
