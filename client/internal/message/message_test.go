package message

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

type property struct{ Name, Value string }

type testMessage = Message[[]property, property]

// sent is a message as its receiver gets it.
func sent(t *testing.T, m testMessage) (testMessage, *mqtt.Publish) {
	t.Helper()
	header, body, _, _, err := mqtt.Split(m.Append(nil, 7), 0)
	var p mqtt.Publish
	if err == nil {
		err = p.DecodeDelivery(mqtt.V5, header, body)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Of[[]property](&p), &p
}

func TestMessageThereAndBack(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 65_535)
	for name, m := range map[string]testMessage{
		"a topic alone": {Topic: "t", Payload: []byte{}},
		"everything": {
			Topic: "plant/7", Payload: []byte("21.5"), ContentType: "text/plain", ResponseTopic: "answers", CorrelationData: []byte{0, 1},
			UserProperties: []property{{"a", "1"}, {"a", ""}, {"", "é"}}, UTF8: true, Retain: true, Expiry: time.Hour,
		},
		"no correlation data, and empty": {Topic: "t", Payload: []byte{}, CorrelationData: []byte{}},
		"the longest strings": {
			Topic: large, Payload: []byte(large), ContentType: large, ResponseTopic: large, CorrelationData: []byte(large),
			UserProperties: []property{{large, large}},
		},
	} {
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, p := sent(t, m); !reflect.DeepEqual(got, m) || p.QoS != 1 || p.PacketID != 7 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if got, _ := sent(t, testMessage{Topic: "t", Expiry: time.Millisecond}); got.Expiry != time.Second {
		t.Errorf("an expiry is rounded up to seconds: %v", got.Expiry)
	}
	if got, _ := sent(t, testMessage{Topic: "t", Expiry: 1 << 62}); got.Expiry != (1<<32-1)*time.Second {
		t.Errorf("the longest expiry: %v", got.Expiry)
	}
}

// What a message holds is its own: an application may write to its bytes.
func TestBytesOfAMessage(t *testing.T) {
	t.Parallel()
	m, p := sent(t, testMessage{Topic: "t", Payload: []byte("payload"), CorrelationData: []byte("data")})
	_ = append(m.Payload, "more"...)
	p.Topic[0], p.Payload[0] = 'x', 'x'
	if m.Topic != "t" || string(m.Payload) != "payload" || string(m.CorrelationData) != "data" {
		t.Errorf("%+v", m)
	}
}

func TestMessagesThatCannotBeSent(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 65_536)
	for name, m := range map[string]testMessage{
		"no topic":                       {},
		"a wildcard in the response":     {Topic: "t", ResponseTopic: "#"},
		"a long content type":            {Topic: "t", ContentType: large},
		"long correlation data":          {Topic: "t", CorrelationData: []byte(large)},
		"a user property that is binary": {Topic: "t", UserProperties: []property{{"a", "b"}, {"a", "\xff"}}},
		"a long name":                    {Topic: "t", UserProperties: []property{{large, ""}}},
	} {
		if err := m.Check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A message that is received takes three allocations: its strings, its bytes, and the list
// of its user properties. Without user properties they are two.
func TestMessageAllocations(t *testing.T) {
	props := mqtt.AppendStringProp(nil, mqtt.PropCorrelationData, "correlation")
	props = mqtt.AppendStringProp(props, mqtt.PropContentType, "text/plain")
	with := mqtt.AppendUserProp(mqtt.AppendUserProp(bytes.Clone(props), "name", "value"), "another", "value")
	for most, props := range map[float64][]byte{2: props, 3: with} {
		packet := mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{QoS: 1, PacketID: 1, Topic: []byte("plant/7/temperature"), Props: props, Payload: make([]byte, 100)})
		header, body, _, _, err := mqtt.Split(packet, 0)
		if err != nil {
			t.Fatal(err)
		}
		var p mqtt.Publish
		var m Message[[]property, property]
		if n := testing.AllocsPerRun(100, func() {
			if err := p.DecodeDelivery(mqtt.V5, header, body); err != nil {
				t.Error(err)
			}
			m = Of[[]property](&p)
		}); n > most {
			t.Errorf("%v allocations, at most %v are wanted", n, most)
		}
		buffer := make([]byte, 0, 1000)
		if n := testing.AllocsPerRun(100, func() { buffer = m.Append(buffer[:0], 1) }); n > 0 {
			t.Errorf("sending it again: %v allocations", n)
		}
		if !bytes.Equal(bytes.Clone(buffer)[len(buffer)-100:], m.Payload) {
			t.Error("the packet has another payload")
		}
	}
}
