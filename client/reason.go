package client

import "fmt"

// ReasonCode says why a server refused a request or ended a connection (MQTT 5,
// section 2.4). It is the Code of a [ConnectError], a [RejectedError] and a
// [DisconnectError].
type ReasonCode byte

// The reason codes that a server sends in a CONNACK, PUBACK, SUBACK, UNSUBACK or
// DISCONNECT.
const (
	ReasonNormalDisconnection     ReasonCode = 0x00
	ReasonUnspecified             ReasonCode = 0x80
	ReasonMalformedPacket         ReasonCode = 0x81
	ReasonProtocolError           ReasonCode = 0x82
	ReasonImplementationSpecific  ReasonCode = 0x83
	ReasonUnsupportedVersion      ReasonCode = 0x84
	ReasonClientIDNotValid        ReasonCode = 0x85
	ReasonBadCredentials          ReasonCode = 0x86
	ReasonNotAuthorized           ReasonCode = 0x87
	ReasonServerUnavailable       ReasonCode = 0x88
	ReasonServerBusy              ReasonCode = 0x89
	ReasonBanned                  ReasonCode = 0x8A
	ReasonServerShuttingDown      ReasonCode = 0x8B
	ReasonBadAuthenticationMethod ReasonCode = 0x8C
	ReasonKeepAliveTimeout        ReasonCode = 0x8D
	ReasonSessionTakenOver        ReasonCode = 0x8E // another client has connected with the same client ID
	ReasonTopicFilterInvalid      ReasonCode = 0x8F
	ReasonTopicNameInvalid        ReasonCode = 0x90
	ReasonReceiveMaximumExceeded  ReasonCode = 0x93
	ReasonTopicAliasInvalid       ReasonCode = 0x94
	ReasonPacketTooLarge          ReasonCode = 0x95
	ReasonMessageRateTooHigh      ReasonCode = 0x96
	ReasonQuotaExceeded           ReasonCode = 0x97
	ReasonAdministrativeAction    ReasonCode = 0x98
	ReasonPayloadFormatInvalid    ReasonCode = 0x99
	ReasonRetainNotSupported      ReasonCode = 0x9A
	ReasonQoSNotSupported         ReasonCode = 0x9B
	ReasonUseAnotherServer        ReasonCode = 0x9C
	ReasonServerMoved             ReasonCode = 0x9D
	ReasonSharedNotSupported      ReasonCode = 0x9E
	ReasonConnectionRateExceeded  ReasonCode = 0x9F
	ReasonMaximumConnectTime      ReasonCode = 0xA0
	ReasonWildcardsNotSupported   ReasonCode = 0xA2
)

// String gives the specification's name of the code and its number, for example
// "not authorized (0x87)".
func (c ReasonCode) String() string {
	name, ok := reasonNames[c]
	if !ok {
		name = "reason code"
	}
	return fmt.Sprintf("%s (0x%02X)", name, byte(c))
}

var reasonNames = map[ReasonCode]string{
	ReasonNormalDisconnection:     "normal disconnection",
	ReasonUnspecified:             "unspecified error",
	ReasonMalformedPacket:         "malformed packet",
	ReasonProtocolError:           "protocol error",
	ReasonImplementationSpecific:  "implementation specific error",
	ReasonUnsupportedVersion:      "unsupported protocol version",
	ReasonClientIDNotValid:        "client identifier not valid",
	ReasonBadCredentials:          "bad user name or password",
	ReasonNotAuthorized:           "not authorized",
	ReasonServerUnavailable:       "server unavailable",
	ReasonServerBusy:              "server busy",
	ReasonBanned:                  "banned",
	ReasonServerShuttingDown:      "server shutting down",
	ReasonBadAuthenticationMethod: "bad authentication method",
	ReasonKeepAliveTimeout:        "keep alive timeout",
	ReasonSessionTakenOver:        "session taken over: another client uses the same client ID",
	ReasonTopicFilterInvalid:      "topic filter invalid",
	ReasonTopicNameInvalid:        "topic name invalid",
	ReasonReceiveMaximumExceeded:  "receive maximum exceeded",
	ReasonTopicAliasInvalid:       "topic alias invalid",
	ReasonPacketTooLarge:          "packet too large",
	ReasonMessageRateTooHigh:      "message rate too high",
	ReasonQuotaExceeded:           "quota exceeded",
	ReasonAdministrativeAction:    "administrative action",
	ReasonPayloadFormatInvalid:    "payload format invalid",
	ReasonRetainNotSupported:      "retain not supported",
	ReasonQoSNotSupported:         "QoS not supported",
	ReasonUseAnotherServer:        "use another server",
	ReasonServerMoved:             "server moved",
	ReasonSharedNotSupported:      "shared subscriptions not supported",
	ReasonConnectionRateExceeded:  "connection rate exceeded",
	ReasonMaximumConnectTime:      "maximum connect time",
	ReasonWildcardsNotSupported:   "wildcard subscriptions not supported",
}

func withReason(what string, code ReasonCode, reason string) string {
	text := what + ": " + code.String()
	if reason != "" {
		text += ": " + reason
	}
	return text
}
