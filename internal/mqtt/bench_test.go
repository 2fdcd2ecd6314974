package mqtt

import (
	"bytes"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// storeRequest is the packet that the broker sees most: a GET for the state store, with what SDKs send along.
func storeRequest() (header byte, body []byte) {
	props := AppendUserProp(nil, "__ts", "001696374425000:00001:client-0001")
	props = AppendUserProp(props, "__protVer", "1.0")
	props = AppendUserProp(props, "__srcId", "client-0001")
	p := Publish{
		QoS: 1, PacketID: 4711,
		Topic:   []byte("statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"),
		Payload: []byte("*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n"),
		Props: PublishProps{
			HasResponseTopic: true, ResponseTopic: []byte("clients/client-0001/services/statestore/_any_/command/invoke/response"),
			HasCorrelationData: true, CorrelationData: bytes.Repeat([]byte{0xA7}, 16),
			HasContentType: true, ContentType: []byte("application/octet-stream"),
			HasMessageExpiry: true, MessageExpiry: 10,
			HasPayloadFormat: true,
			Raw:              props,
		},
	}
	return split(AppendPublish(nil, V5, &p))
}

// telemetry is the other frequent packet: a QoS 0 reading without properties.
func telemetry() (header byte, body []byte) {
	p := Publish{Topic: []byte("plant/7/line/3/temperature"), Payload: []byte(`{"value":21.5}`)}
	return split(AppendPublish(nil, V5, &p))
}

// storeResponse is the answer to storeRequest.
func storeResponse() *Delivery {
	props := AppendByteProp(nil, PropPayloadFormat, 0)
	props = AppendStringProp(props, PropContentType, "application/octet-stream")
	props = AppendStringProp(props, PropCorrelationData, bytes.Repeat([]byte{0xA7}, 16))
	props = AppendUserProp(props, "__ts", "001696374425000:00001:StateStore")
	props = AppendUserProp(props, "__stat", "200")
	props = AppendUserProp(props, "__protVer", "1.0")
	return &Delivery{
		QoS: 1, PacketID: 17,
		Topic:     []byte("clients/client-0001/services/statestore/_any_/command/invoke/response"),
		HasExpiry: true, Expiry: 9,
		Props:   props,
		Payload: []byte("$64\r\n" + string(bytes.Repeat([]byte{'v'}, 64)) + "\r\n"),
	}
}

// split takes a packet apart that is known to be whole.
func split(packet []byte) (header byte, body []byte) {
	header, body, n, _, err := Split(packet, 0)
	if err != nil || n != len(packet) {
		panic("not one whole packet")
	}
	return header, body
}

// hotPaths are what runs for every packet. None of it may allocate.
var hotPaths = []struct {
	name string
	make func() func()
}{
	{"Split", func() func() {
		packet := AppendDelivery(nil, V5, storeResponse())
		return func() { sinkHeader, sinkBody, _, _, _ = Split(packet, 1<<20) }
	}},
	{"DecodePublishStoreRequest", func() func() {
		header, body := storeRequest()
		p := new(Publish)
		return func() { sinkErr = p.Decode(V5, header, body) }
	}},
	{"DecodePublishTelemetry", func() func() {
		header, body := telemetry()
		p := new(Publish)
		return func() { sinkErr = p.Decode(V5, header, body) }
	}},
	{"DecodePublishInvalid", func() func() {
		header, body := storeRequest()
		body = body[:len(body)-60]
		p := new(Publish)
		return func() { sinkErr = p.Decode(V5, header, body) }
	}},
	{"DecodeAck", func() func() {
		a := new(Ack)
		body := []byte{0x12, 0x34}
		return func() { sinkErr = a.Decode(V5, PUBACK, body) }
	}},
	{"AppendDelivery", func() func() {
		d := storeResponse()
		dst := make([]byte, 0, 1024)
		return func() { sinkBody = AppendDelivery(dst, V5, d) }
	}},
	{"AppendDeliveryV311", func() func() {
		d := storeResponse()
		dst := make([]byte, 0, 1024)
		return func() { sinkBody = AppendDelivery(dst, V311, d) }
	}},
	{"DeliverySize", func() func() {
		d := storeResponse()
		return func() { sinkInt = DeliverySize(V5, d) }
	}},
	{"AppendForwardProps", func() func() {
		header, body := storeRequest()
		var p Publish
		sinkErr = p.Decode(V5, header, body)
		dst := make([]byte, 0, 1024)
		return func() { sinkBody = AppendForwardProps(dst, p.Props.Raw) }
	}},
	{"AppendPublish", func() func() {
		header, body := storeRequest()
		p := new(Publish)
		sinkErr = p.Decode(V5, header, body)
		dst := make([]byte, 0, 1024)
		return func() { sinkBody = AppendPublish(dst, V5, p) }
	}},
	{"AppendAck", func() func() {
		dst := make([]byte, 0, 64)
		return func() { sinkBody = AppendAck(dst, V5, PUBACK, 4711, Success, "") }
	}},
	{"AppendAckReason", func() func() {
		dst := make([]byte, 0, 64)
		return func() { sinkBody = AppendAck(dst, V5, PUBACK, 4711, QuotaExceeded, "the quota is used up") }
	}},
	{"FindUserProp", func() func() {
		header, body := storeRequest()
		var p Publish
		sinkErr = p.Decode(V5, header, body)
		return func() { sinkBody, _ = FindUserProp(p.Props.Raw, "__srcId") }
	}},
	{"UserProps", func() func() {
		header, body := storeRequest()
		var p Publish
		sinkErr = p.Decode(V5, header, body)
		return func() {
			n := 0
			for name, value := range UserProps(p.Props.Raw) {
				n += len(name) + len(value)
			}
			sinkInt = n
		}
	}},
	{"ValidUTF8", func() func() {
		topic := []byte("clients/client-0001/services/statestore/_any_/command/invoke/response")
		return func() { sinkBool = wire.ValidUTF8(topic) }
	}},
	{"DecodeSubscribe", func() func() {
		s := Subscribe{PacketID: 1, SubscriptionID: 7, Subscriptions: []Subscription{
			{Filter: []byte("a/+/c"), QoS: 1}, {Filter: []byte("$share/group/d/#"), QoS: 2},
		}}
		_, body := split(AppendSubscribe(nil, V5, &s))
		return func() { sinkErr = s.Decode(V5, body) }
	}},
	{"DecodeUnsubscribe", func() func() {
		u := Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("a/+/c"), []byte("b")}}
		_, body := split(AppendUnsubscribe(nil, V5, &u))
		return func() { sinkErr = u.Decode(V5, body) }
	}},
	{"DecodeConnect", func() func() {
		_, body := split(AppendConnect(nil, fullConnect()))
		c := new(Connect)
		return func() { sinkErr = c.Decode(body) }
	}},
	{"DecodeDisconnect", func() func() {
		_, body := split(AppendDisconnect(nil, V5, &Disconnect{Code: ServerBusy, ReasonString: []byte("come back later")}))
		d := new(Disconnect)
		return func() { sinkErr = d.Decode(V5, body) }
	}},
}

var (
	sinkErr    error
	sinkHeader byte
	sinkBody   []byte
	sinkInt    int
	sinkBool   bool
)

func BenchmarkHotPaths(b *testing.B) {
	for _, path := range hotPaths {
		b.Run(path.name, func(b *testing.B) {
			run := path.make()
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	for _, path := range hotPaths {
		run := path.make()
		run() // grow what is reused
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations for one packet, want 0", path.name, n)
		}
	}
}

// fullConnect is a CONNECT with everything in it.
func fullConnect() *Connect {
	return &Connect{
		Version: V5, CleanStart: true, KeepAlive: 30, ClientID: []byte("client-0001"),
		HasUsername: true, Username: []byte("ada"), HasPassword: true, Password: []byte{0, 1, 2},
		HasWill: true, Will: Will{
			QoS: 1, Retain: true, Topic: []byte("status/client-0001"), Payload: []byte("gone"), DelayInterval: 5,
			Props: PublishProps{
				HasPayloadFormat: true, PayloadFormat: 1,
				HasMessageExpiry: true, MessageExpiry: 60,
				HasContentType: true, ContentType: []byte("text/plain"),
				HasResponseTopic: true, ResponseTopic: []byte("answers"),
				HasCorrelationData: true, CorrelationData: []byte{1, 2},
				Raw: AppendUserProp(nil, "k", "v"),
			},
		},
		SessionExpiry: 3600, ReceiveMaximum: 20, MaximumPacketSize: 65_536, TopicAliasMaximum: 10,
		RequestResponseInfo: true,
		HasAuthMethod:       true, AuthMethod: []byte("SCRAM-SHA-1"), HasAuthData: true, AuthData: []byte{9},
		Raw: AppendUserProp(nil, "build", "7"),
	}
}
