package fromserver

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/iotest"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// packets is one of each packet that a server sends.
func packets() map[string][]byte {
	props := mqtt.AppendUserProp(nil, "name", "value")
	return map[string][]byte{
		"CONNACK":          mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{SessionPresent: true, ReceiveMaximum: 7, MaximumPacketSize: 100, ServerKeepAlive: 3, HasServerKeepAlive: true, User: [][2]string{{"a", "b"}}}),
		"PUBLISH at QoS 0": mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{Topic: []byte("a/b"), Payload: []byte("payload"), Props: props}),
		"PUBLISH at QoS 2": mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{QoS: 2, PacketID: 9, Dup: true, Topic: []byte("a/b"), SubscriptionIDs: []uint32{1, 2}, HasExpiry: true, Expiry: 5}),
		"PUBACK":           mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, 1, mqtt.QuotaExceeded, "why"),
		"PUBREC":           mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBREC, 2, mqtt.Success, ""),
		"PUBREL":           mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBREL, 3, mqtt.PacketIdentifierNotFound, ""),
		"PUBCOMP":          mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBCOMP, 4, mqtt.Success, ""),
		"SUBACK":           mqtt.AppendSuback(nil, mqtt.V5, 5, []mqtt.ReasonCode{mqtt.GrantedQoS1, mqtt.NotAuthorized}, "why"),
		"UNSUBACK":         mqtt.AppendUnsuback(nil, mqtt.V5, 6, []mqtt.ReasonCode{mqtt.Success}, ""),
		"PINGRESP":         mqtt.AppendPingresp(nil),
		"DISCONNECT":       mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.SessionTakenOver, ReasonString: []byte("why")}),
		"AUTH":             mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.ContinueAuthentication, AuthMethod: []byte("m"), HasAuthMethod: true}),
	}
}

// encode is the packet that was decoded.
func encode(p *Packet) []byte {
	switch p.Type {
	case mqtt.CONNACK:
		return mqtt.AppendConnack(nil, mqtt.V5, &p.Connack)
	case mqtt.PUBLISH:
		return mqtt.AppendPublish(nil, mqtt.V5, &p.Publish)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		return mqtt.AppendAck(nil, mqtt.V5, p.Type, p.Ack.PacketID, p.Ack.Code, string(p.Ack.ReasonString))
	case mqtt.SUBACK:
		return mqtt.AppendSuback(nil, mqtt.V5, p.Suback.PacketID, p.Suback.Codes, string(p.Suback.ReasonString))
	case mqtt.UNSUBACK:
		return mqtt.AppendUnsuback(nil, mqtt.V5, p.Unsuback.PacketID, p.Unsuback.Codes, string(p.Unsuback.ReasonString))
	case mqtt.PINGRESP:
		return mqtt.AppendPingresp(nil)
	case mqtt.DISCONNECT:
		return mqtt.AppendDisconnect(nil, mqtt.V5, &p.Disconnect)
	default:
		return mqtt.AppendAuth(nil, &p.Auth)
	}
}

// A stream of all packets, in whatever pieces it comes, gives each of them.
func TestPacketsOutOfAStream(t *testing.T) {
	t.Parallel()
	var stream []byte
	var names []string
	all := packets()
	for name, b := range all {
		stream, names = append(stream, b...), append(names, name)
	}
	for how, from := range map[string]io.Reader{
		"byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"in one piece": bytes.NewReader(stream),
		"with the end": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(from, 1000)
		var p Packet
		for _, name := range names {
			f, err := r.Next()
			if err != nil || !bytes.Equal(f.Bytes, all[name]) || !reflect.DeepEqual(f.Clone(), f) {
				t.Fatalf("%s: %s: got %x, %v", how, name, f.Bytes, err)
			}
			if err := p.Decode(mqtt.V5, f); err != nil || !bytes.Equal(encode(&p), all[name]) {
				t.Errorf("%s: %s is decoded to %x, %v; want %x", how, name, encode(&p), err, all[name])
			}
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end: %v", how, err)
		}
	}
}

// What a server must not send is an error with the code of a DISCONNECT.
func TestWhatAServerMustNotSend(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes string
		want  mqtt.ReasonCode
	}{
		"CONNECT":                           {"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", mqtt.ProtocolError},
		"SUBSCRIBE":                         {"\x82\x06\x00\x01\x00\x00\x00\x00", mqtt.ProtocolError},
		"PINGREQ":                           {"\xc0\x00", mqtt.ProtocolError},
		"PINGRESP with a body":              {"\xd0\x01\x00", mqtt.MalformedPacket},
		"type 0":                            {"\x00\x00", mqtt.MalformedPacket},
		"reserved flags":                    {"\x41\x02\x00\x01", mqtt.MalformedPacket},
		"a length of five bytes":            {"\x30\x80\x80\x80\x80\x01", mqtt.MalformedPacket},
		"a length with a byte too many":     {"\x30\x80\x00", mqtt.MalformedPacket},
		"one byte more than allowed":        {"\x30\xe7\x07", mqtt.PacketTooLarge},
		"a packet of 256 MiB":               {"\x30\xff\xff\xff\x7f", mqtt.PacketTooLarge},
		"PUBLISH at QoS 3":                  {"\x36\x07\x00\x01a\x00\x01\x00x", mqtt.MalformedPacket},
		"PUBLISH with DUP at QoS 0":         {"\x38\x04\x00\x01a\x00", mqtt.MalformedPacket},
		"PUBLISH with packet identifier 0":  {"\x32\x06\x00\x01a\x00\x00\x00", mqtt.ProtocolError},
		"PUBLISH without a topic":           {"\x30\x03\x00\x00\x00", mqtt.ProtocolError},
		"PUBLISH to a wildcard":             {"\x30\x04\x00\x01#\x00", mqtt.TopicNameInvalid},
		"PUBLISH to what is not UTF-8":      {"\x30\x04\x00\x01\xff\x00", mqtt.MalformedPacket},
		"PUBLISH cut short":                 {"\x30\x04\x00\x05a\x00", mqtt.MalformedPacket},
		"PUBLISH with too long a block":     {"\x30\x04\x00\x01a\x7f", mqtt.MalformedPacket},
		"PUBLISH with a property twice":     {"\x30\x08\x00\x01a\x04\x01\x01\x01\x01", mqtt.ProtocolError},
		"PUBLISH with a CONNACK's property": {"\x30\x07\x00\x01a\x03\x21\x00\x01", mqtt.MalformedPacket},
		"PUBACK without an identifier":      {"\x40\x00", mqtt.MalformedPacket},
		"PUBACK with an unknown code":       {"\x40\x03\x00\x01\x01", mqtt.ProtocolError},
		"SUBACK without codes":              {"\x90\x03\x00\x01\x00", mqtt.MalformedPacket},
		"CONNACK with reserved flags":       {"\x20\x03\x02\x00\x00", mqtt.MalformedPacket},
		"CONNACK with Receive Maximum 0":    {"\x20\x06\x00\x00\x03\x21\x00\x00", mqtt.ProtocolError},
		"CONNACK with bytes behind it":      {"\x20\x04\x00\x00\x00\x00", mqtt.MalformedPacket},
		"DISCONNECT with a session expiry":  {"\xe0\x07\x00\x05\x11\x00\x00\x00\x01", mqtt.ProtocolError},
		"AUTH without a method":             {"\xf0\x02\x18\x00", mqtt.ProtocolError},
	} {
		r := NewReader(bytes.NewReader([]byte(test.bytes)), 1000)
		f, err := r.Next()
		if err == nil {
			err = new(Packet).Decode(mqtt.V5, f)
		}
		var refused *mqtt.Error
		if !errors.As(err, &refused) || refused.Code != test.want || refused.Reason == "" {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if _, err := NewReader(bytes.NewReader(append([]byte{0x30, 0xe5, 0x07}, make([]byte, 997)...)), 1000).Next(); err != nil {
		t.Errorf("a packet of the largest size: %v", err)
	}
}

// Memory grows with the bytes that have come, not with the length that a packet claims, and
// a large packet's memory is released.
func TestReaderGrowsWithWhatComes(t *testing.T) {
	t.Parallel()
	const claimed = 64 << 20
	large := append([]byte{0x30, 0xfb, 0xff, 0xff, 0x1f}, make([]byte, 100_000)...)
	r := NewReader(bytes.NewReader(large), claimed)
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if got := cap(r.in); got > 4*len(large) {
		t.Errorf("%d bytes for %d that have come", got, len(large))
	}
	whole := append([]byte{0x30, 0x80, 0x80, 0x80, 0x01}, make([]byte, 2<<20)...)
	copy(whole[5:], "\x00\x01a\x00")
	r = NewReader(bytes.NewReader(append(whole, 0xd0, 0x00)), claimed)
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	_ = r.Fill()
	if got := cap(r.in); got > keepBytes {
		t.Errorf("%d bytes are kept", got)
	}
}

// No stream makes the reader panic, and what it accepts is encoded to a packet that is
// decoded to the same.
func FuzzServer(f *testing.F) {
	for _, b := range packets() {
		f.Add(b)
		f.Add(append(b, b...))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream), 1<<20)
		var p Packet
		for {
			frame, err := r.Next()
			if err == nil {
				err = p.Decode(mqtt.V5, frame)
			}
			if err != nil {
				var refused *mqtt.Error
				if !errors.Is(err, io.EOF) && (!errors.As(err, &refused) || !refused.Code.Failed()) {
					t.Fatalf("%x: %v", stream, err)
				}
				return
			}
			once := encode(&p)
			again, err := NewReader(bytes.NewReader(once), 2<<20).Next()
			var q Packet
			if err == nil {
				err = q.Decode(mqtt.V5, again)
			}
			if err != nil || !bytes.Equal(encode(&q), once) {
				t.Fatalf("%x is encoded to %x, and that to %x, %v", frame.Bytes, once, encode(&q), err)
			}
		}
	})
}
