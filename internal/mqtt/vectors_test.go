package mqtt

// Every packet of the standard as bytes: what is valid, with the struct that it decodes to, and what is not,
// with the reason code that refuses it. How the bytes are written is explained at packet().

// both stands for either version.
const both Version = 0

func versions(v Version) []Version {
	if v == both {
		return []Version{V311, V5}
	}
	return []Version{v}
}

type validPacket struct {
	name    string
	version Version
	from    side
	bytes   string
	want    any
	loose   bool // there is a shorter or differently ordered form, so appending yields other bytes
}

var validPackets = []validPacket{
	// CONNECT
	{name: "3.1.1 minimal", version: V311, bytes: `10 { "MQTT" 04 02 0000 "" }`,
		want: &Connect{Version: V311, CleanStart: true, ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "3.1.1 keeps its session", version: V311, bytes: `10 { "MQTT" 04 00 003C "c1" }`,
		want: &Connect{Version: V311, KeepAlive: 60, ClientID: []byte("c1"), SessionExpiry: 0xFFFFFFFF, ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "3.1.1 with everything", version: V311, bytes: `10 { "MQTT" 04 F6 003C "c1" "t/w" "gone" "ada" "secret" }`,
		want: &Connect{Version: V311, CleanStart: true, KeepAlive: 60, ClientID: []byte("c1"),
			HasUsername: true, Username: []byte("ada"), HasPassword: true, Password: []byte("secret"),
			HasWill: true, Will: Will{QoS: 2, Retain: true, Topic: []byte("t/w"), Payload: []byte("gone")},
			ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "3.1", version: V31, bytes: `10 { "MQIsdp" 03 02 0000 "c" }`,
		want: &Connect{Version: V31, CleanStart: true, ClientID: []byte("c"), ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "3.1 from a bridge", version: V31, bytes: `10 { "MQIsdp" 83 02 0000 "c" }`,
		want: &Connect{Version: V31, Bridge: true, CleanStart: true, ClientID: []byte("c"), ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "3.1.1 from a bridge", version: V311, bytes: `10 { "MQTT" 84 00 003C "edge.plant" }`,
		want: &Connect{Version: V311, Bridge: true, KeepAlive: 60, ClientID: []byte("edge.plant"), SessionExpiry: 0xFFFFFFFF, ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "5 minimal", version: V5, bytes: `10 { "MQTT" 05 00 0000 {} "" }`,
		want: &Connect{Version: V5, ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "5 password without user name", version: V5, bytes: `10 { "MQTT" 05 42 0000 {} "" "token" }`,
		want: &Connect{Version: V5, CleanStart: true, HasPassword: true, Password: []byte("token"), ReceiveMaximum: 65535, RequestProblemInfo: true}},
	{name: "5 with everything", version: V5, bytes: `10 { "MQTT" 05 EE 001E
		{ 11 00000E10  21 0014  27 00010000  22 000A  19 01  17 00  15 "SCRAM-SHA-1"  16 "x"  26 "build" "7"  26 "build" "8" }
		"client-0001"
		{ 18 00000005  01 01  02 0000003C  08 "answers"  09 "id"  03 "text/plain"  26 "k" "v" }
		"status" "gone" "ada" "pw" }`,
		want: &Connect{Version: V5, CleanStart: true, KeepAlive: 30, ClientID: []byte("client-0001"),
			HasUsername: true, Username: []byte("ada"), HasPassword: true, Password: []byte("pw"),
			HasWill: true, Will: Will{QoS: 1, Retain: true, Topic: []byte("status"), Payload: []byte("gone"), DelayInterval: 5,
				Props: PublishProps{HasPayloadFormat: true, PayloadFormat: 1, HasMessageExpiry: true, MessageExpiry: 60,
					HasResponseTopic: true, ResponseTopic: []byte("answers"), HasCorrelationData: true, CorrelationData: []byte("id"),
					HasContentType: true, ContentType: []byte("text/plain"), Raw: packet(`26 "k" "v"`)}},
			SessionExpiry: 3600, ReceiveMaximum: 20, MaximumPacketSize: 65536, TopicAliasMaximum: 10,
			RequestResponseInfo: true, RequestProblemInfo: false,
			HasAuthMethod: true, AuthMethod: []byte("SCRAM-SHA-1"), HasAuthData: true, AuthData: []byte("x"),
			Raw: packet(`26 "build" "7"  26 "build" "8"`)}},
	{name: "5 defaults written out", version: V5, loose: true, bytes: `10 { "MQTT" 05 02 0000 { 11 00000000 21 FFFF 22 0000 19 00 17 01 } "c" }`,
		want: &Connect{Version: V5, CleanStart: true, ClientID: []byte("c"), ReceiveMaximum: 65535, RequestProblemInfo: true}},

	// CONNACK
	{name: "accepted", version: V311, from: server, bytes: `20 { 00 00 }`, want: &Connack{ReceiveMaximum: 65535}},
	{name: "session present", version: V311, from: server, bytes: `20 { 01 00 }`, want: &Connack{SessionPresent: true, ReceiveMaximum: 65535}},
	{name: "unacceptable version", version: V311, from: server, bytes: `20 { 00 01 }`, want: &Connack{Code: UnsupportedProtocolVersion, ReceiveMaximum: 65535}},
	{name: "identifier rejected", version: V311, from: server, bytes: `20 { 00 02 }`, want: &Connack{Code: ClientIdentifierNotValid, ReceiveMaximum: 65535}},
	{name: "server unavailable", version: V311, from: server, bytes: `20 { 00 03 }`, want: &Connack{Code: ServerUnavailable, ReceiveMaximum: 65535}},
	{name: "bad user name or password", version: V311, from: server, bytes: `20 { 00 04 }`, want: &Connack{Code: BadUserNameOrPassword, ReceiveMaximum: 65535}},
	{name: "not authorized", version: V311, from: server, bytes: `20 { 00 05 }`, want: &Connack{Code: NotAuthorized, ReceiveMaximum: 65535}},
	{name: "accepted", version: V5, from: server, bytes: `20 { 01 00 {} }`, want: &Connack{SessionPresent: true, ReceiveMaximum: 65535}},
	{name: "banned", version: V5, from: server, bytes: `20 { 00 8A { 1F "go away" } }`, want: &Connack{Code: Banned, ReasonString: "go away", ReceiveMaximum: 65535}},
	{name: "with everything", version: V5, from: server, bytes: `20 { 00 00 {
		11 00093A80  21 0064  24 01  25 00  27 00100000  22 0010  28 01  29 01  2A 00  13 003C
		12 "auto-1"  1F "welcome"  1A "responses/"  1C "other:1883"  15 "SCRAM-SHA-1"  16 "x"  26 "a" "1"  26 "b" "2" } }`,
		want: &Connack{HasSessionExpiry: true, SessionExpiry: 604800, ReceiveMaximum: 100, HasMaximumQoS: true, MaximumQoS: 1,
			HasRetainAvailable: true, MaximumPacketSize: 1 << 20, TopicAliasMaximum: 16,
			HasWildcardSubscriptionAvailable: true, WildcardSubscriptionAvailable: true,
			HasSubscriptionIDsAvailable: true, SubscriptionIDsAvailable: true, HasSharedSubscriptionAvailable: true,
			HasServerKeepAlive: true, ServerKeepAlive: 60, AssignedClientID: "auto-1", ReasonString: "welcome",
			ResponseInformation: "responses/", ServerReference: "other:1883", AuthMethod: "SCRAM-SHA-1", AuthData: []byte("x"),
			User: [][2]string{{"a", "1"}, {"b", "2"}}}},

	// PUBLISH
	{name: "QoS 0", version: V311, bytes: `30 { "a/b" 'hello' }`, want: &Publish{Topic: []byte("a/b"), Payload: []byte("hello")}},
	{name: "QoS 0 empty payload retained", version: V311, bytes: `31 { "a/b" }`, want: &Publish{Retain: true, Topic: []byte("a/b")}},
	{name: "QoS 1", version: V311, bytes: `32 { "a/b" 000A 'hello' }`, want: &Publish{QoS: 1, PacketID: 10, Topic: []byte("a/b"), Payload: []byte("hello")}},
	{name: "QoS 2 again", version: V311, bytes: `3C { "a/b" FFFF 'hello' }`, want: &Publish{Dup: true, QoS: 2, PacketID: 65535, Topic: []byte("a/b"), Payload: []byte("hello")}},
	{name: "topic of one character", version: both, bytes: `30 { "/" 00 }`, loose: true, want: nil},
	{name: "QoS 0", version: V5, bytes: `30 { "a/b" {} 'hello' }`, want: &Publish{Topic: []byte("a/b"), Payload: []byte("hello")}},
	{name: "QoS 1 again, retained", version: V5, bytes: `3B { "a/b" 000A {} 'hello' }`, want: &Publish{Dup: true, Retain: true, QoS: 1, PacketID: 10, Topic: []byte("a/b"), Payload: []byte("hello")}},
	{name: "topic alias", version: V5, bytes: `30 { "" { 23 0007 } 'hello' }`,
		want: &Publish{Payload: []byte("hello"), Props: PublishProps{HasTopicAlias: true, TopicAlias: 7}}},
	{name: "with everything", version: V5, bytes: `34 { "a/b" 000A {
		01 01  02 0000003C  23 0007  08 "answers/1"  09 "id"  03 "text/plain"  26 "a" "1"  26 "a" "2" } 'hello' }`,
		want: &Publish{QoS: 2, PacketID: 10, Topic: []byte("a/b"), Payload: []byte("hello"),
			Props: PublishProps{HasPayloadFormat: true, PayloadFormat: 1, HasMessageExpiry: true, MessageExpiry: 60,
				HasTopicAlias: true, TopicAlias: 7, HasResponseTopic: true, ResponseTopic: []byte("answers/1"),
				HasCorrelationData: true, CorrelationData: []byte("id"), HasContentType: true, ContentType: []byte("text/plain"),
				Raw: packet(`26 "a" "1"  26 "a" "2"`)}}},
	{name: "user property first", version: V5, loose: true, bytes: `30 { "a/b" { 26 "a" "1"  01 00 } }`,
		want: &Publish{Topic: []byte("a/b"), Props: PublishProps{HasPayloadFormat: true, Raw: packet(`26 "a" "1"`)}}},
	{name: "empty texts", version: V5, bytes: `30 { "a/b" { 08 "" 09 "" 03 "" 26 "" "" } }`,
		want: &Publish{Topic: []byte("a/b"), Props: PublishProps{HasResponseTopic: true, HasCorrelationData: true, HasContentType: true, Raw: packet(`26 "" ""`)}}},
	{name: "correlation data is not text", version: V5, bytes: `30 { "a/b" { 09 0003 00FFC0 } }`,
		want: &Publish{Topic: []byte("a/b"), Props: PublishProps{HasCorrelationData: true, CorrelationData: []byte{0, 0xFF, 0xC0}}}},
	{name: "topic beyond ASCII", version: V5, bytes: `30 { "größe/日本/🐝" {} }`, want: &Publish{Topic: []byte("größe/日本/🐝")}},
	{name: "subscription identifiers from a server", version: V5, from: server, bytes: `30 { "a/b" { 0B 01 0B FFFFFF7F 0B 8001 } }`,
		want: &Publish{Topic: []byte("a/b"), Props: PublishProps{SubscriptionIDs: []uint32{1, 268_435_455, 128}}}},
	{name: "property length of two bytes", version: V5, bytes: `30 { "a/b" { 26 "a" "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789" } 'x' }`, want: nil},

	// PUBACK, PUBREC, PUBREL, PUBCOMP
	{name: "PUBACK", version: both, bytes: `40 { 000A }`, want: &typedAck{PUBACK, Ack{PacketID: 10}}},
	{name: "PUBREC", version: both, bytes: `50 { 000A }`, want: &typedAck{PUBREC, Ack{PacketID: 10}}},
	{name: "PUBREL", version: both, bytes: `62 { 000A }`, want: &typedAck{PUBREL, Ack{PacketID: 10}}},
	{name: "PUBCOMP", version: both, bytes: `70 { 000A }`, want: &typedAck{PUBCOMP, Ack{PacketID: 10}}},
	{name: "PUBACK with code", version: V5, bytes: `40 { 000A 10 }`, want: &typedAck{PUBACK, Ack{PacketID: 10, Code: NoMatchingSubscribers}}},
	{name: "PUBREC quota exceeded", version: V5, bytes: `50 { 000A 97 { 1F "full" } }`, want: &typedAck{PUBREC, Ack{PacketID: 10, Code: QuotaExceeded, ReasonString: []byte("full")}}},
	{name: "PUBREL not found", version: V5, bytes: `62 { 000A 92 }`, want: &typedAck{PUBREL, Ack{PacketID: 10, Code: PacketIdentifierNotFound}}},
	{name: "PUBCOMP not found", version: V5, bytes: `70 { 000A 92 }`, want: &typedAck{PUBCOMP, Ack{PacketID: 10, Code: PacketIdentifierNotFound}}},
	{name: "PUBACK success and a reason", version: V5, bytes: `40 { 000A 00 { 1F "fine" } }`, want: &typedAck{PUBACK, Ack{PacketID: 10, ReasonString: []byte("fine")}}},
	{name: "PUBACK longer than it must be", version: V5, loose: true, bytes: `40 { 000A 00 {} }`, want: &typedAck{PUBACK, Ack{PacketID: 10}}},

	// SUBSCRIBE
	{name: "two filters", version: V311, bytes: `82 { 000A "a/b" 01 "c/#" 02 }`,
		want: &Subscribe{PacketID: 10, Subscriptions: []Subscription{{Filter: []byte("a/b"), QoS: 1}, {Filter: []byte("c/#"), QoS: 2}}}},
	{name: "one filter", version: V5, bytes: `82 { 000A {} "a/b" 00 }`,
		want: &Subscribe{PacketID: 10, Subscriptions: []Subscription{{Filter: []byte("a/b")}}}},
	{name: "with everything", version: V5, bytes: `82 { 000A { 0B 8001 26 "k" "v" } "a/+" 2E "$share/g/x" 19 }`,
		want: &Subscribe{PacketID: 10, SubscriptionID: 128, Raw: packet(`26 "k" "v"`), Subscriptions: []Subscription{
			{Filter: []byte("a/+"), QoS: 2, NoLocal: true, RetainAsPublished: true, RetainHandling: 2},
			{Filter: []byte("$share/g/x"), QoS: 1, RetainAsPublished: true, RetainHandling: 1}}}},
	{name: "an invalid filter is the caller's to refuse", version: V5, bytes: `82 { 000A {} "a/#/b" 00 "" 01 }`,
		want: &Subscribe{PacketID: 10, Subscriptions: []Subscription{{Filter: []byte("a/#/b")}, {QoS: 1}}}},

	// SUBACK
	{name: "granted and failed", version: V311, from: server, bytes: `90 { 000A 00 01 02 80 }`,
		want: &Suback{PacketID: 10, Codes: []ReasonCode{GrantedQoS0, GrantedQoS1, GrantedQoS2, UnspecifiedError}}},
	{name: "granted and failed", version: V5, from: server, bytes: `90 { 000A {} 01 87 8F A2 }`,
		want: &Suback{PacketID: 10, Codes: []ReasonCode{GrantedQoS1, NotAuthorized, TopicFilterInvalid, WildcardSubscriptionsNotSupported}}},
	{name: "with reason", version: V5, from: server, bytes: `90 { 000A { 1F "no" } 87 }`,
		want: &Suback{PacketID: 10, Codes: []ReasonCode{NotAuthorized}, ReasonString: []byte("no")}},

	// UNSUBSCRIBE
	{name: "two filters", version: V311, bytes: `A2 { 000A "a/b" "c/#" }`, want: &Unsubscribe{PacketID: 10, Filters: [][]byte{[]byte("a/b"), []byte("c/#")}}},
	{name: "with everything", version: V5, bytes: `A2 { 000A { 26 "k" "v" } "a/b" "c/#" }`,
		want: &Unsubscribe{PacketID: 10, Filters: [][]byte{[]byte("a/b"), []byte("c/#")}, Raw: packet(`26 "k" "v"`)}},

	// UNSUBACK
	{name: "no codes", version: V311, from: server, bytes: `B0 { 000A }`, want: &Unsuback{PacketID: 10}},
	{name: "codes", version: V5, from: server, bytes: `B0 { 000A { 1F "so so" } 00 11 }`,
		want: &Unsuback{PacketID: 10, Codes: []ReasonCode{Success, NoSubscriptionExisted}, ReasonString: []byte("so so")}},

	// PINGREQ, PINGRESP
	{name: "request", version: both, bytes: `C0 {}`, want: &ping{PINGREQ}},
	{name: "response", version: both, from: server, bytes: `D0 {}`, want: &ping{PINGRESP}},

	// DISCONNECT
	{name: "normal", version: both, bytes: `E0 {}`, want: &Disconnect{}},
	{name: "with will", version: V5, bytes: `E0 { 04 }`, want: &Disconnect{Code: DisconnectWithWill}},
	{name: "normal written out", version: V5, loose: true, bytes: `E0 { 00 {} }`, want: &Disconnect{}},
	{name: "with everything", version: V5, bytes: `E0 { 9C { 11 00000E10 1F "moved" 1C "other:1883" 26 "k" "v" } }`,
		want: &Disconnect{Code: UseAnotherServer, HasSessionExpiry: true, SessionExpiry: 3600, ReasonString: []byte("moved"),
			ServerReference: []byte("other:1883"), Raw: packet(`26 "k" "v"`)}},
	{name: "normal with session expiry", version: V5, bytes: `E0 { 00 { 11 00000000 } }`, want: &Disconnect{HasSessionExpiry: true}},

	// AUTH
	{name: "success", version: V5, bytes: `F0 {}`, want: &Auth{}},
	{name: "continue", version: V5, bytes: `F0 { 18 { 15 "M" 16 "d" 1F "more" 26 "k" "v" } }`,
		want: &Auth{Code: ContinueAuthentication, HasAuthMethod: true, AuthMethod: []byte("M"), HasAuthData: true, AuthData: []byte("d"),
			ReasonString: []byte("more"), Raw: packet(`26 "k" "v"`)}},
	{name: "again", version: V5, bytes: `F0 { 19 { 15 "M" } }`, want: &Auth{Code: Reauthenticate, HasAuthMethod: true, AuthMethod: []byte("M")}},
}

type invalidPacket struct {
	name    string
	version Version
	from    side
	bytes   string
	code    ReasonCode
}

var invalidPackets = []invalidPacket{
	// Fixed header
	{"type 0", both, client, `00 {}`, MalformedPacket},
	{"CONNECT with flags", both, client, `11 {}`, MalformedPacket},
	{"CONNACK with flags", both, server, `21 { 0000 }`, MalformedPacket},
	{"PUBACK with flags", both, client, `42 { 000A }`, MalformedPacket},
	{"PUBREC with flags", both, client, `51 { 000A }`, MalformedPacket},
	{"PUBREL without its flags", both, client, `60 { 000A }`, MalformedPacket},
	{"PUBREL with wrong flags", both, client, `63 { 000A }`, MalformedPacket},
	{"PUBCOMP with flags", both, client, `72 { 000A }`, MalformedPacket},
	{"SUBSCRIBE without its flags", both, client, `80 { 000A {} "a" 00 }`, MalformedPacket},
	{"SUBACK with flags", both, server, `92 { 000A {} 00 }`, MalformedPacket},
	{"UNSUBSCRIBE without its flags", both, client, `A0 { 000A {} "a" }`, MalformedPacket},
	{"UNSUBACK with flags", both, server, `B2 { 000A }`, MalformedPacket},
	{"PINGREQ with flags", both, client, `C1 {}`, MalformedPacket},
	{"PINGRESP with flags", both, server, `D8 {}`, MalformedPacket},
	{"DISCONNECT with flags", both, client, `E2 {}`, MalformedPacket},
	{"AUTH with flags", both, client, `F1 {}`, MalformedPacket},
	{"remaining length of five bytes", both, client, `30 FFFFFFFF01`, MalformedPacket},
	{"remaining length longer than it needs", both, client, `C0 8000`, MalformedPacket},
	{"remaining length longer than it needs, four bytes", both, client, `30 85808000 0003 'a/b'`, MalformedPacket},

	// CONNECT
	{"empty", both, client, `10 {}`, MalformedPacket},
	{"other protocol", both, client, `10 { "HTTP" 04 02 0000 "c" }`, MalformedPacket},
	{"protocol name in lower case", both, client, `10 { "mqtt" 04 02 0000 "c" }`, MalformedPacket},
	{"3.1.1 under the name of 3.1", both, client, `10 { "MQIsdp" 04 02 0000 "c" }`, UnsupportedProtocolVersion},
	{"5 with the bridge bit", both, client, `10 { "MQTT" 85 02 0000 {} "c" }`, UnsupportedProtocolVersion},
	{"level 3", both, client, `10 { "MQTT" 03 02 0000 "c" }`, UnsupportedProtocolVersion},
	{"level 6", both, client, `10 { "MQTT" 06 02 0000 {} "c" }`, UnsupportedProtocolVersion},
	{"level and nothing after it", both, client, `10 { "MQTT" 05 }`, MalformedPacket},
	{"without level", both, client, `10 { "MQTT" }`, MalformedPacket},
	{"reserved flag", V311, client, `10 { "MQTT" 04 03 0000 "c" }`, MalformedPacket},
	{"reserved flag", V5, client, `10 { "MQTT" 05 03 0000 {} "c" }`, MalformedPacket},
	{"will QoS without will", V5, client, `10 { "MQTT" 05 0A 0000 {} "c" }`, MalformedPacket},
	{"will retain without will", V5, client, `10 { "MQTT" 05 22 0000 {} "c" }`, MalformedPacket},
	{"will QoS 3", V5, client, `10 { "MQTT" 05 1E 0000 {} "c" {} "w" "x" }`, MalformedPacket},
	{"password without user name", V311, client, `10 { "MQTT" 04 42 0000 "c" "pw" }`, MalformedPacket},
	{"no identifier and no clean session", V311, client, `10 { "MQTT" 04 00 0000 "" }`, ClientIdentifierNotValid},
	{"without client identifier", V311, client, `10 { "MQTT" 04 02 0000 }`, MalformedPacket},
	{"without properties", V5, client, `10 { "MQTT" 05 02 0000 }`, MalformedPacket},
	{"user name announced but missing", V311, client, `10 { "MQTT" 04 82 0000 "c" }`, MalformedPacket},
	{"password announced but missing", V311, client, `10 { "MQTT" 04 C2 0000 "c" "u" }`, MalformedPacket},
	{"bytes after the end", V311, client, `10 { "MQTT" 04 02 0000 "c" 00 }`, MalformedPacket},
	{"bytes after the end", V5, client, `10 { "MQTT" 05 02 0000 {} "c" 00 }`, MalformedPacket},
	{"client identifier not UTF-8", V5, client, `10 { "MQTT" 05 02 0000 {} 0001 FF }`, MalformedPacket},
	{"client identifier with U+0000", V5, client, `10 { "MQTT" 05 02 0000 {} 0003 610062 }`, MalformedPacket},
	{"user name with a surrogate", V5, client, `10 { "MQTT" 05 82 0000 {} "c" 0003 EDA080 }`, MalformedPacket},
	{"will topic with wildcard", V5, client, `10 { "MQTT" 05 06 0000 {} "c" {} "w/#" "x" }`, TopicNameInvalid},
	{"will topic empty", V311, client, `10 { "MQTT" 04 06 0000 "c" "" "x" }`, TopicNameInvalid},
	{"will topic not UTF-8", V311, client, `10 { "MQTT" 04 06 0000 "c" 0001 C0 "x" }`, MalformedPacket},
	{"will payload missing", V311, client, `10 { "MQTT" 04 06 0000 "c" "w" }`, MalformedPacket},
	{"will with topic alias", V5, client, `10 { "MQTT" 05 06 0000 {} "c" { 23 0001 } "w" "x" }`, MalformedPacket},
	{"will with subscription identifier", V5, client, `10 { "MQTT" 05 06 0000 {} "c" { 0B 01 } "w" "x" }`, MalformedPacket},
	{"will delay twice", V5, client, `10 { "MQTT" 05 06 0000 {} "c" { 18 00000001 18 00000001 } "w" "x" }`, ProtocolError},
	{"will delay cut", V5, client, `10 { "MQTT" 05 06 0000 {} "c" { 18 0000 } "w" "x" }`, MalformedPacket},
	{"will response topic with wildcard", V5, client, `10 { "MQTT" 05 06 0000 {} "c" { 08 "a/+" } "w" "x" }`, ProtocolError},
	{"receive maximum 0", V5, client, `10 { "MQTT" 05 02 0000 { 21 0000 } "c" }`, ProtocolError},
	{"maximum packet size 0", V5, client, `10 { "MQTT" 05 02 0000 { 27 00000000 } "c" }`, ProtocolError},
	{"request problem information 2", V5, client, `10 { "MQTT" 05 02 0000 { 17 02 } "c" }`, ProtocolError},
	{"request response information 2", V5, client, `10 { "MQTT" 05 02 0000 { 19 02 } "c" }`, ProtocolError},
	{"session expiry twice", V5, client, `10 { "MQTT" 05 02 0000 { 11 00000001 11 00000001 } "c" }`, ProtocolError},
	{"authentication data alone", V5, client, `10 { "MQTT" 05 02 0000 { 16 "d" } "c" }`, ProtocolError},
	{"a property of CONNACK", V5, client, `10 { "MQTT" 05 02 0000 { 12 "x" } "c" }`, MalformedPacket},
	{"unknown property", V5, client, `10 { "MQTT" 05 02 0000 { 07 00 } "c" }`, MalformedPacket},
	{"property identifier above all", V5, client, `10 { "MQTT" 05 02 0000 { 7F 00 } "c" }`, MalformedPacket},
	{"property identifier of two bytes", V5, client, `10 { "MQTT" 05 02 0000 { A600 "k" "v" } "c" }`, MalformedPacket},
	{"number cut by the block's end", V5, client, `10 { "MQTT" 05 02 0000 { 11 0000 } "c" }`, MalformedPacket},
	{"text cut by the block's end", V5, client, `10 { "MQTT" 05 02 0000 { 15 0005 61 } "c" }`, MalformedPacket},
	{"user property without value", V5, client, `10 { "MQTT" 05 02 0000 { 26 "k" } "c" }`, MalformedPacket},
	{"property block longer than the packet", V5, client, `10 { "MQTT" 05 02 0000 FF7F "c" }`, MalformedPacket},
	{"property length of five bytes", V5, client, `10 { "MQTT" 05 02 0000 FFFFFFFF01 "c" }`, MalformedPacket},
	{"property length longer than it needs", V5, client, `10 { "MQTT" 05 02 0000 8000 "c" }`, MalformedPacket},

	// CONNACK
	{"empty", both, server, `20 {}`, MalformedPacket},
	{"reserved flags", V311, server, `20 { 02 00 }`, MalformedPacket},
	{"return code 6", V311, server, `20 { 00 06 }`, ProtocolError},
	{"bytes after the end", V311, server, `20 { 00 00 00 }`, MalformedPacket},
	{"session present in a refusal", V311, server, `20 { 01 05 }`, ProtocolError},
	{"session present in a refusal", V5, server, `20 { 01 87 {} }`, ProtocolError},
	{"a code of SUBACK", V5, server, `20 { 00 01 {} }`, ProtocolError},
	{"without properties", V5, server, `20 { 00 00 }`, MalformedPacket},
	{"bytes after the end", V5, server, `20 { 00 00 {} 00 }`, MalformedPacket},
	{"maximum QoS 2", V5, server, `20 { 00 00 { 24 02 } }`, ProtocolError},
	{"receive maximum 0", V5, server, `20 { 00 00 { 21 0000 } }`, ProtocolError},
	{"a property of PUBLISH", V5, server, `20 { 00 00 { 23 0001 } }`, MalformedPacket},
	{"assigned identifier twice", V5, server, `20 { 00 00 { 12 "a" 12 "b" } }`, ProtocolError},

	// PUBLISH
	{"empty", both, client, `30 {}`, MalformedPacket},
	{"topic cut", both, client, `30 { 0005 'a' }`, MalformedPacket},
	{"QoS 3", V311, client, `36 { "a" 000A }`, MalformedPacket},
	{"QoS 3", V5, client, `36 { "a" 000A {} }`, MalformedPacket},
	{"DUP at QoS 0", V311, client, `38 { "a" }`, MalformedPacket},
	{"DUP at QoS 0", V5, client, `38 { "a" {} }`, MalformedPacket},
	{"packet identifier 0", V311, client, `32 { "a" 0000 }`, ProtocolError},
	{"packet identifier 0", V5, client, `34 { "a" 0000 {} }`, ProtocolError},
	{"packet identifier missing", V311, client, `32 { "a" 00 }`, MalformedPacket},
	{"no topic", V311, client, `30 { "" 'x' }`, ProtocolError},
	{"no topic, no alias", V5, client, `30 { "" {} 'x' }`, ProtocolError},
	{"wildcard + in topic", V311, client, `30 { "a/+" }`, TopicNameInvalid},
	{"wildcard # in topic", V5, client, `30 { "a/#" {} }`, TopicNameInvalid},
	{"wildcard in a long topic", V5, client, `30 { "a/long/topic/with/+/in/it" {} }`, TopicNameInvalid},
	{"wildcard at the end of a long topic", V5, client, `30 { "a/long/topic/with/it/#" {} }`, TopicNameInvalid},
	{"wildcard in a topic beyond ASCII", V5, client, `30 { "größe/über/alles/+" {} }`, TopicNameInvalid},
	{"topic with U+0000", V311, client, `30 { 0003 610062 }`, MalformedPacket},
	{"long topic with U+0000", V5, client, `30 { 000C 'abcdefghij' 0061 {} }`, MalformedPacket},
	{"topic overlong", V5, client, `30 { 0002 C080 {} }`, MalformedPacket},
	{"topic with a surrogate", V5, client, `30 { 0003 EDBFBF {} }`, MalformedPacket},
	{"topic beyond U+10FFFF", V5, client, `30 { 0004 F4908080 {} }`, MalformedPacket},
	{"topic cut inside a character", V5, client, `30 { 0002 E697 {} }`, MalformedPacket},
	{"without properties", V5, client, `30 { "a" }`, MalformedPacket},
	{"properties cut", V5, client, `30 { "a" 05 0101 }`, MalformedPacket},
	{"property length of five bytes", V5, client, `30 { "a" 8080808001 }`, MalformedPacket},
	{"topic alias 0", V5, client, `30 { "a" { 23 0000 } }`, TopicAliasInvalid},
	{"topic alias cut", V5, client, `30 { "a" { 23 00 } }`, MalformedPacket},
	{"topic alias twice", V5, client, `30 { "a" { 23 0001 23 0001 } }`, ProtocolError},
	{"payload format 2", V5, client, `30 { "a" { 01 02 } }`, ProtocolError},
	{"payload format twice", V5, client, `30 { "a" { 01 00 01 00 } }`, ProtocolError},
	{"payload format cut", V5, client, `30 { "a" { 01 } }`, MalformedPacket},
	{"message expiry twice", V5, client, `30 { "a" { 02 00000001 02 00000001 } }`, ProtocolError},
	{"message expiry cut", V5, client, `30 { "a" { 02 000001 } }`, MalformedPacket},
	{"response topic with wildcard", V5, client, `30 { "a" { 08 "b/#" } }`, ProtocolError},
	{"response topic not UTF-8", V5, client, `30 { "a" { 08 0001 80 } }`, MalformedPacket},
	{"response topic twice", V5, client, `30 { "a" { 08 "b" 08 "b" } }`, ProtocolError},
	{"response topic cut", V5, client, `30 { "a" { 08 0002 'b' } }`, MalformedPacket},
	{"correlation data twice", V5, client, `30 { "a" { 09 "b" 09 "b" } }`, ProtocolError},
	{"content type twice", V5, client, `30 { "a" { 03 "b" 03 "b" } }`, ProtocolError},
	{"content type not UTF-8", V5, client, `30 { "a" { 03 0001 FE } }`, MalformedPacket},
	{"user property's name not UTF-8", V5, client, `30 { "a" { 26 0001 FE "v" } }`, MalformedPacket},
	{"user property's value not UTF-8", V5, client, `30 { "a" { 26 "k" 0001 FE } }`, MalformedPacket},
	{"user property without name", V5, client, `30 { "a" { 26 00 } }`, MalformedPacket},
	{"user property without value", V5, client, `30 { "a" { 26 "k" 0001 } }`, MalformedPacket},
	{"subscription identifier from a client", V5, client, `30 { "a" { 0B 01 } }`, ProtocolError},
	{"subscription identifier 0", V5, server, `30 { "a" { 0B 00 } }`, ProtocolError},
	{"subscription identifier cut", V5, server, `30 { "a" { 0B 80 } }`, MalformedPacket},
	{"subscription identifier of five bytes", V5, server, `30 { "a" { 0B 8080808001 } }`, MalformedPacket},
	{"a property of CONNECT", V5, client, `30 { "a" { 11 00000001 } }`, MalformedPacket},
	{"will delay", V5, client, `30 { "a" { 18 00000001 } }`, MalformedPacket},
	{"unknown property", V5, client, `30 { "a" { 00 } }`, MalformedPacket},
	{"property identifier of two bytes", V5, client, `30 { "a" { 8100 01 } }`, MalformedPacket},

	// PUBACK, PUBREC, PUBREL, PUBCOMP
	{"PUBACK empty", both, client, `40 {}`, MalformedPacket},
	{"PUBACK identifier cut", both, client, `40 { 00 }`, MalformedPacket},
	{"PUBACK identifier 0", both, client, `40 { 0000 }`, ProtocolError},
	{"PUBREL identifier 0", both, client, `62 { 0000 }`, ProtocolError},
	{"PUBACK with code", V311, client, `40 { 000A 00 }`, MalformedPacket},
	{"PUBACK with a code of PUBREL", V5, client, `40 { 000A 92 }`, ProtocolError},
	{"PUBREL with a code of PUBREC", V5, client, `62 { 000A 97 }`, ProtocolError},
	{"PUBCOMP with a code of PUBREC", V5, client, `70 { 000A 10 }`, ProtocolError},
	{"PUBREC with an unknown code", V5, client, `50 { 000A 7F }`, ProtocolError},
	{"PUBACK reason twice", V5, client, `40 { 000A 00 { 1F "a" 1F "b" } }`, ProtocolError},
	{"PUBACK with session expiry", V5, client, `40 { 000A 00 { 11 00000001 } }`, MalformedPacket},
	{"PUBACK bytes after the end", V5, client, `40 { 000A 00 {} 00 }`, MalformedPacket},
	{"PUBACK properties cut", V5, client, `40 { 000A 00 05 1F }`, MalformedPacket},

	// SUBSCRIBE
	{"empty", both, client, `82 {}`, MalformedPacket},
	{"packet identifier 0", V311, client, `82 { 0000 "a" 00 }`, ProtocolError},
	{"no filter", V311, client, `82 { 000A }`, ProtocolError},
	{"no filter", V5, client, `82 { 000A {} }`, ProtocolError},
	{"without properties", V5, client, `82 { 000A }`, MalformedPacket},
	{"without options", V311, client, `82 { 000A "a" }`, MalformedPacket},
	{"filter cut", V311, client, `82 { 000A 0005 'a' }`, MalformedPacket},
	{"filter not UTF-8", V311, client, `82 { 000A 0001 FF 00 }`, MalformedPacket},
	{"filter with U+0000", V5, client, `82 { 000A {} 0001 00 00 }`, MalformedPacket},
	{"QoS 3", V311, client, `82 { 000A "a" 03 }`, MalformedPacket},
	{"options of MQTT 5", V311, client, `82 { 000A "a" 04 }`, MalformedPacket},
	{"QoS 3", V5, client, `82 { 000A {} "a" 03 }`, ProtocolError},
	{"retain handling 3", V5, client, `82 { 000A {} "a" 30 }`, ProtocolError},
	{"reserved option bit 6", V5, client, `82 { 000A {} "a" 40 }`, MalformedPacket},
	{"reserved option bit 7", V5, client, `82 { 000A {} "a" 80 }`, MalformedPacket},
	{"no local on a shared subscription", V5, client, `82 { 000A {} "$share/g/a" 04 }`, ProtocolError},
	{"subscription identifier 0", V5, client, `82 { 000A { 0B 00 } "a" 00 }`, ProtocolError},
	{"subscription identifier twice", V5, client, `82 { 000A { 0B 01 0B 02 } "a" 00 }`, ProtocolError},
	{"reason string", V5, client, `82 { 000A { 1F "a" } "a" 00 }`, MalformedPacket},

	// SUBACK, UNSUBSCRIBE, UNSUBACK
	{"SUBACK without codes", V311, server, `90 { 000A }`, MalformedPacket},
	{"SUBACK with a code of MQTT 5", V311, server, `90 { 000A 87 }`, ProtocolError},
	{"SUBACK without codes", V5, server, `90 { 000A {} }`, MalformedPacket},
	{"SUBACK with a code of UNSUBACK", V5, server, `90 { 000A {} 11 }`, ProtocolError},
	{"SUBACK identifier 0", V5, server, `90 { 0000 {} 00 }`, ProtocolError},
	{"UNSUBSCRIBE packet identifier 0", V311, client, `A2 { 0000 "a" }`, ProtocolError},
	{"UNSUBSCRIBE no filter", V311, client, `A2 { 000A }`, ProtocolError},
	{"UNSUBSCRIBE no filter", V5, client, `A2 { 000A {} }`, ProtocolError},
	{"UNSUBSCRIBE with subscription identifier", V5, client, `A2 { 000A { 0B 01 } "a" }`, MalformedPacket},
	{"UNSUBSCRIBE filter not UTF-8", V5, client, `A2 { 000A {} 0002 C3 28 }`, MalformedPacket},
	{"UNSUBSCRIBE filter cut", V5, client, `A2 { 000A {} 00 }`, MalformedPacket},
	{"UNSUBACK with codes", V311, server, `B0 { 000A 00 }`, MalformedPacket},
	{"UNSUBACK without codes", V5, server, `B0 { 000A {} }`, MalformedPacket},
	{"UNSUBACK with a code of SUBACK", V5, server, `B0 { 000A {} 01 }`, ProtocolError},

	// PINGREQ, PINGRESP
	{"PINGREQ with a body", both, client, `C0 { 00 }`, MalformedPacket},
	{"PINGRESP with a body", both, server, `D0 { 00 }`, MalformedPacket},

	// DISCONNECT
	{"with a body", V311, client, `E0 { 00 }`, MalformedPacket},
	{"a code of CONNACK", V5, client, `E0 { 84 }`, ProtocolError},
	{"unknown code", V5, client, `E0 { FF }`, ProtocolError},
	{"session expiry twice", V5, client, `E0 { 00 { 11 00000001 11 00000001 } }`, ProtocolError},
	{"a property of CONNECT", V5, client, `E0 { 00 { 21 0001 } }`, MalformedPacket},
	{"bytes after the end", V5, client, `E0 { 00 {} 00 }`, MalformedPacket},
	{"properties cut", V5, client, `E0 { 00 80 }`, MalformedPacket},

	// AUTH
	{"AUTH in 3.1.1", V311, client, `F0 {}`, ProtocolError},
	{"a code of DISCONNECT", V5, client, `F0 { 04 { 15 "M" } }`, ProtocolError},
	{"without method", V5, client, `F0 { 18 {} }`, ProtocolError},
	{"without properties", V5, client, `F0 { 18 }`, MalformedPacket},
	{"method twice", V5, client, `F0 { 18 { 15 "M" 15 "M" } }`, ProtocolError},
	{"bytes after the end", V5, client, `F0 { 18 { 15 "M" } 00 }`, MalformedPacket},
}
