package mqtt

// ReasonCode is the result of an operation (MQTT 5, section 2.4). Codes from 0x80 up are failures.
type ReasonCode byte

const (
	Success                             ReasonCode = 0x00
	NormalDisconnection                 ReasonCode = 0x00
	GrantedQoS0                         ReasonCode = 0x00
	GrantedQoS1                         ReasonCode = 0x01
	GrantedQoS2                         ReasonCode = 0x02
	DisconnectWithWill                  ReasonCode = 0x04
	NoMatchingSubscribers               ReasonCode = 0x10
	NoSubscriptionExisted               ReasonCode = 0x11
	ContinueAuthentication              ReasonCode = 0x18
	Reauthenticate                      ReasonCode = 0x19
	UnspecifiedError                    ReasonCode = 0x80
	MalformedPacket                     ReasonCode = 0x81
	ProtocolError                       ReasonCode = 0x82
	ImplementationSpecificError         ReasonCode = 0x83
	UnsupportedProtocolVersion          ReasonCode = 0x84
	ClientIdentifierNotValid            ReasonCode = 0x85
	BadUserNameOrPassword               ReasonCode = 0x86
	NotAuthorized                       ReasonCode = 0x87
	ServerUnavailable                   ReasonCode = 0x88
	ServerBusy                          ReasonCode = 0x89
	Banned                              ReasonCode = 0x8A
	ServerShuttingDown                  ReasonCode = 0x8B
	BadAuthenticationMethod             ReasonCode = 0x8C
	KeepAliveTimeout                    ReasonCode = 0x8D
	SessionTakenOver                    ReasonCode = 0x8E
	TopicFilterInvalid                  ReasonCode = 0x8F
	TopicNameInvalid                    ReasonCode = 0x90
	PacketIdentifierInUse               ReasonCode = 0x91
	PacketIdentifierNotFound            ReasonCode = 0x92
	ReceiveMaximumExceeded              ReasonCode = 0x93
	TopicAliasInvalid                   ReasonCode = 0x94
	PacketTooLarge                      ReasonCode = 0x95
	MessageRateTooHigh                  ReasonCode = 0x96
	QuotaExceeded                       ReasonCode = 0x97
	AdministrativeAction                ReasonCode = 0x98
	PayloadFormatInvalid                ReasonCode = 0x99
	RetainNotSupported                  ReasonCode = 0x9A
	QoSNotSupported                     ReasonCode = 0x9B
	UseAnotherServer                    ReasonCode = 0x9C
	ServerMoved                         ReasonCode = 0x9D
	SharedSubscriptionsNotSupported     ReasonCode = 0x9E
	ConnectionRateExceeded              ReasonCode = 0x9F
	MaximumConnectTime                  ReasonCode = 0xA0
	SubscriptionIdentifiersNotSupported ReasonCode = 0xA1
	WildcardSubscriptionsNotSupported   ReasonCode = 0xA2
)

// AboutServer reports whether a CONNACK's code is about the server or its load, and not about the client:
// another server of the same cluster may accept the connection.
func (c ReasonCode) AboutServer() bool {
	switch c {
	case UnspecifiedError, ImplementationSpecificError, ServerUnavailable, ServerBusy, QuotaExceeded, UseAnotherServer, ServerMoved, ConnectionRateExceeded:
		return true
	}
	return false
}

// typeSet is a bit set of packet types.
type typeSet uint16

func typesOf(types ...Type) (s typeSet) {
	for _, t := range types {
		s |= 1 << t
	}
	return s
}

// reasons is the table of MQTT 5, section 2.4: each code's name and the packets that may carry it.
var reasons = [256]struct {
	name string
	in   typeSet
}{
	Success: {"Success", typesOf(CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)},

	GrantedQoS1:                         {"Granted QoS 1", typesOf(SUBACK)},
	GrantedQoS2:                         {"Granted QoS 2", typesOf(SUBACK)},
	DisconnectWithWill:                  {"Disconnect with Will Message", typesOf(DISCONNECT)},
	NoMatchingSubscribers:               {"No matching subscribers", typesOf(PUBACK, PUBREC)},
	NoSubscriptionExisted:               {"No subscription existed", typesOf(UNSUBACK)},
	ContinueAuthentication:              {"Continue authentication", typesOf(AUTH)},
	Reauthenticate:                      {"Re-authenticate", typesOf(AUTH)},
	UnspecifiedError:                    {"Unspecified error", typesOf(CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)},
	MalformedPacket:                     {"Malformed Packet", typesOf(CONNACK, DISCONNECT)},
	ProtocolError:                       {"Protocol Error", typesOf(CONNACK, DISCONNECT)},
	ImplementationSpecificError:         {"Implementation specific error", typesOf(CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)},
	UnsupportedProtocolVersion:          {"Unsupported Protocol Version", typesOf(CONNACK)},
	ClientIdentifierNotValid:            {"Client Identifier not valid", typesOf(CONNACK)},
	BadUserNameOrPassword:               {"Bad User Name or Password", typesOf(CONNACK)},
	NotAuthorized:                       {"Not authorized", typesOf(CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)},
	ServerUnavailable:                   {"Server unavailable", typesOf(CONNACK)},
	ServerBusy:                          {"Server busy", typesOf(CONNACK, DISCONNECT)},
	Banned:                              {"Banned", typesOf(CONNACK)},
	ServerShuttingDown:                  {"Server shutting down", typesOf(DISCONNECT)},
	BadAuthenticationMethod:             {"Bad authentication method", typesOf(CONNACK, DISCONNECT)},
	KeepAliveTimeout:                    {"Keep Alive timeout", typesOf(DISCONNECT)},
	SessionTakenOver:                    {"Session taken over", typesOf(DISCONNECT)},
	TopicFilterInvalid:                  {"Topic Filter invalid", typesOf(SUBACK, UNSUBACK, DISCONNECT)},
	TopicNameInvalid:                    {"Topic Name invalid", typesOf(CONNACK, PUBACK, PUBREC, DISCONNECT)},
	PacketIdentifierInUse:               {"Packet Identifier in use", typesOf(PUBACK, PUBREC, SUBACK, UNSUBACK)},
	PacketIdentifierNotFound:            {"Packet Identifier not found", typesOf(PUBREL, PUBCOMP)},
	ReceiveMaximumExceeded:              {"Receive Maximum exceeded", typesOf(DISCONNECT)},
	TopicAliasInvalid:                   {"Topic Alias invalid", typesOf(DISCONNECT)},
	PacketTooLarge:                      {"Packet too large", typesOf(CONNACK, DISCONNECT)},
	MessageRateTooHigh:                  {"Message rate too high", typesOf(DISCONNECT)},
	QuotaExceeded:                       {"Quota exceeded", typesOf(CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT)},
	AdministrativeAction:                {"Administrative action", typesOf(DISCONNECT)},
	PayloadFormatInvalid:                {"Payload format invalid", typesOf(CONNACK, PUBACK, PUBREC, DISCONNECT)},
	RetainNotSupported:                  {"Retain not supported", typesOf(CONNACK, DISCONNECT)},
	QoSNotSupported:                     {"QoS not supported", typesOf(CONNACK, DISCONNECT)},
	UseAnotherServer:                    {"Use another server", typesOf(CONNACK, DISCONNECT)},
	ServerMoved:                         {"Server moved", typesOf(CONNACK, DISCONNECT)},
	SharedSubscriptionsNotSupported:     {"Shared Subscriptions not supported", typesOf(SUBACK, DISCONNECT)},
	ConnectionRateExceeded:              {"Connection rate exceeded", typesOf(CONNACK, DISCONNECT)},
	MaximumConnectTime:                  {"Maximum connect time", typesOf(DISCONNECT)},
	SubscriptionIdentifiersNotSupported: {"Subscription Identifiers not supported", typesOf(SUBACK, DISCONNECT)},
	WildcardSubscriptionsNotSupported:   {"Wildcard Subscriptions not supported", typesOf(SUBACK, DISCONNECT)},
}

// String returns the code's name in the standard; 0x00 is "Success" in every packet.
func (c ReasonCode) String() string {
	if name := reasons[c].name; name != "" {
		return name
	}
	return "Unknown reason code"
}

// Failed reports whether c says that the operation failed.
func (c ReasonCode) Failed() bool { return c >= 0x80 }

// FromClient reports whether a client may send a DISCONNECT with c (MQTT 5, table 3-10).
func (c ReasonCode) FromClient() bool {
	switch c {
	case NormalDisconnection, DisconnectWithWill, UnspecifiedError, MalformedPacket, ProtocolError, ImplementationSpecificError,
		TopicNameInvalid, ReceiveMaximumExceeded, TopicAliasInvalid, PacketTooLarge, MessageRateTooHigh, QuotaExceeded,
		AdministrativeAction, PayloadFormatInvalid:
		return true
	}
	return false
}

// ValidIn reports whether a packet of type t may carry c.
func (c ReasonCode) ValidIn(t Type) bool { return reasons[c].in>>t&1 != 0 }
