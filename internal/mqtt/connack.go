package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Connack is a CONNACK packet. A field without its Has is absent if it is zero. Its strings are copies: only
// clients decode a CONNACK, once for each connection.
type Connack struct {
	SessionPresent bool
	Code           ReasonCode

	SessionExpiry    uint32 // seconds
	HasSessionExpiry bool

	ReceiveMaximum uint16 // Decode says 65535 if absent; AppendConnack leaves out 0 and 65535

	MaximumQoS    byte // 0 or 1; absent: 2
	HasMaximumQoS bool

	RetainAvailable    bool // absent: available
	HasRetainAvailable bool

	MaximumPacketSize uint32 // bytes; 0: none
	AssignedClientID  string
	TopicAliasMaximum uint16
	ReasonString      string

	WildcardSubscriptionAvailable    bool // absent: available, and likewise the two that follow
	HasWildcardSubscriptionAvailable bool
	SubscriptionIDsAvailable         bool
	HasSubscriptionIDsAvailable      bool
	SharedSubscriptionAvailable      bool
	HasSharedSubscriptionAvailable   bool

	ServerKeepAlive    uint16 // seconds
	HasServerKeepAlive bool

	ResponseInformation string
	ServerReference     string
	AuthMethod          string
	AuthData            []byte // nil: absent
	User                [][2]string
}

// AppendConnack appends c. In 3.1.1 the code becomes one of that version's return codes, and the properties are
// left out. A failure for which 3.1.1 has no return code appends nothing at all: the standard wants the
// connection closed without a CONNACK.
func AppendConnack(dst []byte, v Version, c *Connack) []byte {
	var flags byte
	if c.SessionPresent && c.Code == Success && v != V31 { // [MQTT-3.2.2-6]; in MQTT 3.1 the byte is reserved
		flags = 1
	}
	if v < V5 {
		code, ok := returnCode(c.Code)
		if !ok {
			return dst
		}
		return append(dst, CONNACK.header(), 2, flags, code)
	}
	dst = append(dst, CONNACK.header())
	dst, packet := wire.OpenLength(dst)
	dst = append(dst, flags, byte(c.Code))
	dst, block := wire.OpenLength(dst)
	dst = c.appendLimits(dst)
	dst = c.appendTexts(dst)
	dst = wire.CloseLength(dst, block)
	return wire.CloseLength(dst, packet)
}

// returnCode returns the 3.1.1 return code (MQTT 3.1.1, table 3.1) that says most nearly what code says.
func returnCode(code ReasonCode) (rc byte, ok bool) {
	switch code {
	case Success:
		return 0, true
	case UnsupportedProtocolVersion:
		return 1, true
	case ClientIdentifierNotValid:
		return 2, true
	case ServerUnavailable, ServerBusy, ServerShuttingDown, UseAnotherServer, ServerMoved, ConnectionRateExceeded,
		QuotaExceeded, UnspecifiedError, ImplementationSpecificError:
		return 3, true
	case BadUserNameOrPassword, BadAuthenticationMethod:
		return 4, true
	case NotAuthorized, Banned:
		return 5, true
	}
	return 0, false
}

// returnCodes are the reason codes that stand for the 3.1.1 return codes.
var returnCodes = [...]ReasonCode{
	Success, UnsupportedProtocolVersion, ClientIdentifierNotValid, ServerUnavailable, BadUserNameOrPassword, NotAuthorized,
}

// appendLimits appends what the server can and cannot do.
func (c *Connack) appendLimits(dst []byte) []byte {
	if c.HasSessionExpiry {
		dst = AppendUint32Prop(dst, PropSessionExpiry, c.SessionExpiry)
	}
	if c.ReceiveMaximum != 0 && c.ReceiveMaximum != maxReceiveMaximum {
		dst = AppendUint16Prop(dst, PropReceiveMaximum, c.ReceiveMaximum)
	}
	if c.HasMaximumQoS {
		dst = AppendByteProp(dst, PropMaximumQoS, c.MaximumQoS)
	}
	if c.HasRetainAvailable {
		dst = appendBoolProp(dst, PropRetainAvailable, c.RetainAvailable)
	}
	if c.MaximumPacketSize != 0 {
		dst = AppendUint32Prop(dst, PropMaximumPacketSize, c.MaximumPacketSize)
	}
	if c.TopicAliasMaximum != 0 {
		dst = AppendUint16Prop(dst, PropTopicAliasMaximum, c.TopicAliasMaximum)
	}
	if c.HasWildcardSubscriptionAvailable {
		dst = appendBoolProp(dst, PropWildcardSubscriptionAvailable, c.WildcardSubscriptionAvailable)
	}
	if c.HasSubscriptionIDsAvailable {
		dst = appendBoolProp(dst, PropSubscriptionIDsAvailable, c.SubscriptionIDsAvailable)
	}
	if c.HasSharedSubscriptionAvailable {
		dst = appendBoolProp(dst, PropSharedSubscriptionAvailable, c.SharedSubscriptionAvailable)
	}
	if c.HasServerKeepAlive {
		dst = AppendUint16Prop(dst, PropServerKeepAlive, c.ServerKeepAlive)
	}
	return dst
}

func (c *Connack) appendTexts(dst []byte) []byte {
	dst = appendIfAny(dst, PropAssignedClientID, c.AssignedClientID)
	dst = appendReason(dst, c.ReasonString)
	dst = appendIfAny(dst, PropResponseInformation, c.ResponseInformation)
	dst = appendIfAny(dst, PropServerReference, c.ServerReference)
	dst = appendIfAny(dst, PropAuthMethod, c.AuthMethod)
	if c.AuthData != nil {
		dst = AppendStringProp(dst, PropAuthData, c.AuthData)
	}
	for _, u := range c.User {
		dst = AppendUserProp(dst, u[0], u[1])
	}
	return dst
}

func appendIfAny(dst []byte, id PropertyID, s string) []byte {
	if s == "" {
		return dst
	}
	return AppendStringProp(dst, id, s)
}

// Decode decodes a CONNACK. It overwrites all of c. In 3.1.1 Code is the reason code nearest to the return code.
func (c *Connack) Decode(v Version, body []byte) error {
	return asError(c.decode(v, body))
}

func (c *Connack) decode(v Version, body []byte) *Error {
	*c = Connack{ReceiveMaximum: maxReceiveMaximum}
	if len(body) < 2 {
		return errShort
	}
	if body[0] > 1 { // [MQTT-3.2.2-1]
		return errConnackFlags
	}
	c.SessionPresent = body[0] == 1
	if v < V5 {
		if int(body[1]) >= len(returnCodes) {
			return errReasonCode
		}
		c.Code = returnCodes[body[1]]
		if len(body) > 2 {
			return errTrailing
		}
	} else {
		c.Code = ReasonCode(body[1])
		if !c.Code.ValidIn(CONNACK) {
			return errReasonCode
		}
		if err := c.decodeProps(body[2:]); err != nil {
			return err
		}
	}
	if c.SessionPresent && c.Code != Success { // [MQTT-3.2.2-6]
		return errSessionPresent
	}
	return nil
}

func (c *Connack) decodeProps(b []byte) *Error {
	block, rest, err := cutBlock(b)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return errTrailing
	}
	r := propReader{rest: block, allowed: connackProps, userLeft: -1}
	for r.next() {
		c.setNumber(r.id, r.num)
		c.setText(r.id, r.data, r.value)
	}
	return r.err
}

func (c *Connack) setNumber(id PropertyID, n uint32) {
	switch id {
	case PropSessionExpiry:
		c.SessionExpiry, c.HasSessionExpiry = n, true
	case PropReceiveMaximum:
		c.ReceiveMaximum = uint16(n)
	case PropMaximumQoS:
		c.MaximumQoS, c.HasMaximumQoS = byte(n), true
	case PropRetainAvailable:
		c.RetainAvailable, c.HasRetainAvailable = n == 1, true
	case PropMaximumPacketSize:
		c.MaximumPacketSize = n
	case PropTopicAliasMaximum:
		c.TopicAliasMaximum = uint16(n)
	case PropWildcardSubscriptionAvailable:
		c.WildcardSubscriptionAvailable, c.HasWildcardSubscriptionAvailable = n == 1, true
	case PropSubscriptionIDsAvailable:
		c.SubscriptionIDsAvailable, c.HasSubscriptionIDsAvailable = n == 1, true
	case PropSharedSubscriptionAvailable:
		c.SharedSubscriptionAvailable, c.HasSharedSubscriptionAvailable = n == 1, true
	case PropServerKeepAlive:
		c.ServerKeepAlive, c.HasServerKeepAlive = uint16(n), true
	}
}

func (c *Connack) setText(id PropertyID, data, value []byte) {
	switch id {
	case PropAssignedClientID:
		c.AssignedClientID = string(data)
	case PropReasonString:
		c.ReasonString = string(data)
	case PropResponseInformation:
		c.ResponseInformation = string(data)
	case PropServerReference:
		c.ServerReference = string(data)
	case PropAuthMethod:
		c.AuthMethod = string(data)
	case PropAuthData:
		c.AuthData = append([]byte{}, data...)
	case PropUser:
		c.User = append(c.User, [2]string{string(data), string(value)})
	}
}
