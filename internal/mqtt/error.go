package mqtt

// Error is why a packet was refused. Code is what a DISCONNECT or CONNACK should say, Reason is for the log and
// for the Reason String. Every error of this package is an *Error.
type Error struct {
	Code   ReasonCode
	Reason string
}

// Error returns the code's name and the reason.
func (e *Error) Error() string { return "mqtt: " + e.Code.String() + ": " + e.Reason }

// All errors are values made here, so that refusing a packet costs no more than accepting one: a client that
// floods the broker with malformed packets must not make it format strings.
var (
	errShort           = &Error{MalformedPacket, "the packet ends before its fields do"}
	errTrailing        = &Error{MalformedPacket, "bytes are left after the packet's last field"}
	errVarint          = &Error{MalformedPacket, "a variable byte integer is longer than it may be"}
	errType            = &Error{MalformedPacket, "packet type 0 is reserved"}
	errFlags           = &Error{MalformedPacket, "reserved flags in the first byte are not as the standard sets them"}
	errPingBody        = &Error{MalformedPacket, "PINGREQ and PINGRESP have no body"}
	errTooLarge        = &Error{PacketTooLarge, "the packet is larger than the maximum packet size"}
	errUTF8            = &Error{MalformedPacket, "a string is not well-formed UTF-8 or contains U+0000"}
	errPacketID        = &Error{ProtocolError, "the packet identifier is 0"}
	errReasonCode      = &Error{ProtocolError, "the reason code does not belong in this packet"}
	errNotInV311       = &Error{ProtocolError, "the packet does not exist in MQTT 3.1.1"}
	errPropertyID      = &Error{MalformedPacket, "a property does not belong in this packet"}
	errPropertyTwice   = &Error{ProtocolError, "a property that may occur once occurs twice"}
	errPropertyBool    = &Error{ProtocolError, "a property that may be 0 or 1 has another value"}
	errPropertyZero    = &Error{ProtocolError, "a property that must not be 0 is 0"}
	errUserProps       = &Error{QuotaExceeded, "the packet has more user properties than the server's max-user-properties"}
	errAliasZero       = &Error{TopicAliasInvalid, "the topic alias is 0"}
	errQoS3            = &Error{MalformedPacket, "QoS 3 does not exist"}
	errDupQoS0         = &Error{MalformedPacket, "DUP is set on a QoS 0 message"}
	errNoTopic         = &Error{ProtocolError, "neither topic name nor topic alias"}
	errTopicWildcard   = &Error{TopicNameInvalid, "the topic name contains a wildcard character"}
	errResponseTopic   = &Error{ProtocolError, "the response topic contains a wildcard character"}
	errSubIDFromClient = &Error{ProtocolError, "a client's PUBLISH carries a subscription identifier"}

	errProtocolName   = &Error{MalformedPacket, "the protocol name is neither MQTT nor MQIsdp"}
	errProtocolLevel  = &Error{UnsupportedProtocolVersion, "the server speaks MQTT 3.1, 3.1.1 and 5 only"}
	errConnectFlag    = &Error{MalformedPacket, "the reserved connect flag is set"}
	errWillFlags      = &Error{MalformedPacket, "will QoS or will retain without a will"}
	errWillQoS3       = &Error{MalformedPacket, "will QoS 3 does not exist"}
	errWillTopic      = &Error{TopicNameInvalid, "the will topic is empty"}
	errPasswordAlone  = &Error{MalformedPacket, "a password without a user name"}
	errClientIDEmpty  = &Error{ClientIdentifierNotValid, "an empty client identifier needs a clean session"}
	errAuthDataAlone  = &Error{ProtocolError, "authentication data without an authentication method"}
	errConnackFlags   = &Error{MalformedPacket, "reserved connect acknowledge flags are set"}
	errSessionPresent = &Error{ProtocolError, "session present in a refusal"}

	errNoFilters          = &Error{ProtocolError, "no topic filter"}
	errFilters            = &Error{QuotaExceeded, "the packet has more than twice as many topic filters as the server's max-subscriptions"}
	errSubscribeReserved  = &Error{MalformedPacket, "reserved subscription option bits are set"}
	errSubscribeQoS       = &Error{ProtocolError, "a subscription asks for QoS 3"}
	errRetainHandling     = &Error{ProtocolError, "retain handling 3 does not exist"}
	errNoLocalShared      = &Error{ProtocolError, "no local on a shared subscription"}
	errDisconnectBody     = &Error{MalformedPacket, "DISCONNECT of MQTT 3.1.1 has no body"}
	errAuthWithoutMethod  = &Error{ProtocolError, "AUTH without an authentication method"}
	errAckWithoutAnyCodes = &Error{MalformedPacket, "an acknowledgement without reason codes"}
)

// asError keeps a nil *Error from becoming an error that is not nil.
func asError(e *Error) error {
	if e != nil {
		return e
	}
	return nil
}
