package mqtt

import (
	"bytes"
	"testing"
)

func TestAppendDelivery(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 200)
	cases := []struct {
		name    string
		version Version
		d       Delivery
		want    string
	}{
		{"3.1.1 QoS 0", V311, Delivery{Topic: []byte("a/b"), Payload: []byte("hello")}, `30 { "a/b" 'hello' }`},
		{"3.1.1 QoS 2 again", V311, Delivery{QoS: 2, Dup: true, PacketID: 10, Topic: []byte("a/b")}, `3C { "a/b" 000A }`},
		{"3.1.1 has no properties", V311, Delivery{Retain: true, Topic: []byte("a"), HasExpiry: true, Expiry: 9,
			SubscriptionIDs: []uint32{1}, Props: packet(`03 "t"`)}, `31 { "a" }`},
		{"5 QoS 0", V5, Delivery{Topic: []byte("a/b"), Payload: []byte("hello")}, `30 { "a/b" {} 'hello' }`},
		{"5 QoS 1", V5, Delivery{QoS: 1, PacketID: 0x1234, Topic: []byte("a/b")}, `32 { "a/b" 1234 {} }`},
		{"5 alias instead of topic", V5, Delivery{Alias: 7, Payload: []byte("x")}, `30 { "" { 23 0007 } 'x' }`},
		{"5 with everything", V5, Delivery{QoS: 1, Dup: true, Retain: true, PacketID: 10, Topic: []byte("a"), Alias: 7,
			HasExpiry: true, Expiry: 9, SubscriptionIDs: []uint32{1, 128, 16_384, 2_097_152}, Props: packet(`03 "t" 26 "k" "v"`), Payload: []byte("x")},
			`3B { "a" 000A { 23 0007 02 00000009 0B 01 0B 8001 0B 808001 0B 80808001 03 "t" 26 "k" "v" } 'x' }`},
		{"5 long block", V5, Delivery{Topic: []byte("a"), Props: AppendStringProp(nil, PropContentType, long)},
			`30 { "a" { 03 "` + string(long) + `" } }`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := packet(c.want)
			got := AppendDelivery([]byte("before"), c.version, &c.d)
			if !bytes.Equal(got, append([]byte("before"), want...)) {
				t.Errorf("got\n%x, want\n%x", got, want)
			}
			if n := DeliverySize(c.version, &c.d); n != len(want) {
				t.Errorf("size %d, want %d", n, len(want))
			}
		})
	}
}

// What one client publishes another receives: the broker's way from Decode to AppendDelivery.
func TestForward(t *testing.T) {
	t.Parallel()
	// Given a message with everything that a client may send,
	header, body := split(packet(`32 { "a/b" 000A {
		26 "a" "1"  01 01  02 0000003C  23 0007  08 "answers"  09 "id"  03 "text/plain"  26 "a" "2" } 'hello' }`))
	var in Publish
	if err := in.Decode(V5, header, body); err != nil {
		t.Fatal(err)
	}
	// when it is delivered through a subscription with an identifier, 20 seconds later,
	d := Delivery{QoS: 1, PacketID: 77, Topic: in.Topic, Payload: in.Payload, HasExpiry: true, Expiry: in.Props.MessageExpiry - 20,
		SubscriptionIDs: []uint32{5}, Props: AppendForwardProps(nil, in.Props.Raw)}
	got := AppendDelivery(nil, V5, &d)
	// then the rest is as it was sent, in the same order.
	want := packet(`32 { "a/b" 004D { 02 00000028 0B 05
		26 "a" "1"  01 01  08 "answers"  09 "id"  03 "text/plain"  26 "a" "2" } 'hello' }`)
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%x, want\n%x", got, want)
	}
}

func TestDecodeReusesTheStruct(t *testing.T) {
	t.Parallel()
	// Given a struct that was full,
	var p Publish
	header, body := split(packet(`3D { "a/b" 000A { 01 01 02 0000003C 23 0007 08 "r" 09 "c" 03 "t" 0B 05 26 "k" "v" } 'hello' }`))
	if err := p.DecodeDelivery(V5, header, body); err != nil {
		t.Fatal(err)
	}
	// when an empty packet is decoded into it, nothing of the first one is left.
	header, body = split(packet(`30 { "x" }`))
	if err := p.Decode(V311, header, body); err != nil {
		t.Fatal(err)
	}
	if got, want := show(&p), show(&Publish{Topic: []byte("x")}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestConnackReturnCodes(t *testing.T) {
	t.Parallel()
	for code, want := range map[ReasonCode]string{
		Success:                    `20 { 01 00 }`,
		UnsupportedProtocolVersion: `20 { 00 01 }`,
		ClientIdentifierNotValid:   `20 { 00 02 }`,
		ServerBusy:                 `20 { 00 03 }`,
		ServerUnavailable:          `20 { 00 03 }`,
		BadUserNameOrPassword:      `20 { 00 04 }`,
		Banned:                     `20 { 00 05 }`,
		NotAuthorized:              `20 { 00 05 }`,
		MalformedPacket:            ``, // closed without a CONNACK
		TopicNameInvalid:           ``,
	} {
		got := AppendConnack(nil, V311, &Connack{SessionPresent: true, Code: code, AssignedClientID: "x"})
		if !bytes.Equal(got, packet(want)) {
			t.Errorf("%v: got %x, want %s", code, got, want)
		}
	}
	// A refusal never says session present [MQTT-3.2.2-6].
	if got, want := AppendConnack(nil, V5, &Connack{SessionPresent: true, Code: Banned}), packet(`20 { 00 8A {} }`); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestSubackOfV311(t *testing.T) {
	t.Parallel()
	codes := []ReasonCode{GrantedQoS2, NotAuthorized, TopicFilterInvalid}
	if got, want := AppendSuback(nil, V311, 10, codes, "why"), packet(`90 { 000A 02 80 80 }`); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if got, want := AppendUnsuback(nil, V311, 10, codes, "why"), packet(`B0 { 000A }`); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestUnsupportedVersionIsKept(t *testing.T) {
	t.Parallel()
	for notation, want := range map[string]Version{
		`"MQTT" 06 02 0000 {} "c"`: 6,
		`"MQTT" 83 02 0000 "c"`:    3,
		`"MQIsdp" 06 02 0000 "c"`:  4,
	} {
		c := Connect{}
		if err := c.Decode(packet(notation)); err == nil || c.Version != want {
			t.Errorf("%s: version %d, error %v, want version %d and an error", notation, c.Version, err, want)
		}
	}
}
