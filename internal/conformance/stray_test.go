package conformance

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// An acknowledgement that the state of a delivery does not allow changes nothing: it is
// answered where it has an answer, and neither frees a place in the Receive Maximum nor
// keeps the session from sending again what is not acknowledged. One that the state allows
// ends or continues the delivery, whatever its reason code.
func TestAcknowledgementsOutOfTurn(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher := n.connect()
	const none = mqtt.Type(0)
	type answer struct {
		typ  mqtt.Type
		code mqtt.ReasonCode
	}
	var (
		nothing  = answer{}
		unknown  = answer{mqtt.PUBREL, mqtt.PacketIdentifierNotFound}
		notOurs  = answer{mqtt.PUBCOMP, mqtt.PacketIdentifierNotFound}
		released = answer{mqtt.PUBREL, mqtt.Success}
	)
	// What a resumed session sends for the first message; the second one follows always.
	const published, release, over = mqtt.PUBLISH, mqtt.PUBREL, none

	for i, tc := range []struct {
		qos    byte
		before []mqtt.Type // acknowledgements of the first message that are in turn
		typ    mqtt.Type
		code   mqtt.ReasonCode
		want   answer
		first  mqtt.Type // what a resumed session sends for it
	}{
		{1, nil, mqtt.PUBACK, mqtt.Success, nothing, over},
		{1, nil, mqtt.PUBACK, mqtt.UnspecifiedError, nothing, over},
		{1, nil, mqtt.PUBREC, mqtt.Success, unknown, published},
		{1, nil, mqtt.PUBREC, mqtt.UnspecifiedError, nothing, published},
		{1, nil, mqtt.PUBREL, mqtt.Success, notOurs, published},
		{1, nil, mqtt.PUBCOMP, mqtt.Success, nothing, published},
		{1, []mqtt.Type{mqtt.PUBACK}, mqtt.PUBACK, mqtt.Success, nothing, over},
		{1, []mqtt.Type{mqtt.PUBACK}, mqtt.PUBREC, mqtt.Success, unknown, over},
		{1, []mqtt.Type{mqtt.PUBACK}, mqtt.PUBCOMP, mqtt.Success, nothing, over},

		{2, nil, mqtt.PUBACK, mqtt.Success, nothing, published},
		{2, nil, mqtt.PUBACK, mqtt.UnspecifiedError, nothing, published},
		{2, nil, mqtt.PUBREC, mqtt.UnspecifiedError, nothing, over},
		{2, nil, mqtt.PUBREL, mqtt.Success, notOurs, published},
		{2, nil, mqtt.PUBREL, mqtt.PacketIdentifierNotFound, notOurs, published},
		{2, nil, mqtt.PUBCOMP, mqtt.Success, nothing, published},
		{2, nil, mqtt.PUBCOMP, mqtt.PacketIdentifierNotFound, nothing, published},
		{2, []mqtt.Type{mqtt.PUBREC}, mqtt.PUBACK, mqtt.Success, nothing, release},
		{2, []mqtt.Type{mqtt.PUBREC}, mqtt.PUBREC, mqtt.Success, released, release},
		{2, []mqtt.Type{mqtt.PUBREC}, mqtt.PUBREL, mqtt.Success, notOurs, release},
		{2, []mqtt.Type{mqtt.PUBREC}, mqtt.PUBCOMP, mqtt.Success, nothing, over},
		{2, []mqtt.Type{mqtt.PUBREC}, mqtt.PUBCOMP, mqtt.PacketIdentifierNotFound, nothing, over},
		{2, []mqtt.Type{mqtt.PUBREC, mqtt.PUBCOMP}, mqtt.PUBACK, mqtt.Success, nothing, over},
		{2, []mqtt.Type{mqtt.PUBREC, mqtt.PUBCOMP}, mqtt.PUBREC, mqtt.Success, unknown, over},
		{2, []mqtt.Type{mqtt.PUBREC, mqtt.PUBCOMP}, mqtt.PUBREL, mqtt.Success, notOurs, over},
		{2, []mqtt.Type{mqtt.PUBREC, mqtt.PUBCOMP}, mqtt.PUBCOMP, mqtt.Success, nothing, over},
	} {
		what := fmt.Sprintf("QoS %d, %v after %v with 0x%02x", tc.qos, tc.typ, tc.before, byte(tc.code))
		topic := fmt.Sprint("stray/", i)
		// Given two messages, and room for one at a time,
		c := n.connect(mqtttest.Persistent(topic), mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
		c.Subscribe(topic, 2)
		publisher.Publish(message{Topic: topic, Payload: "first", QoS: tc.qos})
		publisher.Publish(message{Topic: topic, Payload: "second", QoS: tc.qos})
		id := c.Expect(mqtt.PUBLISH).Publish.PacketID
		for _, typ := range tc.before {
			c.SendAck(typ, id, mqtt.Success)
			if typ == mqtt.PUBREC {
				c.Expect(mqtt.PUBREL)
			} else if second := c.Expect(mqtt.PUBLISH).Publish; second.Payload != "second" {
				t.Fatalf("%s: got %v before it", what, second)
			}
		}
		// when an acknowledgement of the first comes,
		c.SendAck(tc.typ, id, tc.code)
		if tc.want != nothing {
			if p := c.Expect(tc.want.typ); p.Ack.PacketID != id || p.Ack.Code != tc.want.code {
				t.Errorf("%s: got %v, want %v 0x%02x", what, p, tc.want.typ, byte(tc.want.code))
			}
		}
		// then the second is sent in its place if that was the end of the first,
		if ended := len(tc.before) != int(tc.qos) && tc.first == over; ended {
			if p := c.Expect(mqtt.PUBLISH); p.Publish.Payload != "second" {
				t.Errorf("%s: got %v, want the second message", what, p)
			}
		}
		c.Quiet()
		c.Disconnect()
		// and the resumed session sends again what is not over.
		c = n.connect(mqtttest.Persistent(topic), mqtttest.HoldAcks())
		switch tc.first {
		case published:
			if p := c.Expect(mqtt.PUBLISH); p.Publish.Payload != "first" || !p.Publish.Dup {
				t.Errorf("%s: the session resumes with %v, want the first message", what, p)
			}
		case release:
			if p := c.Expect(mqtt.PUBREL); p.Ack.PacketID != id {
				t.Errorf("%s: the session resumes with %v, want PUBREL", what, p)
			}
		}
		if p := c.Expect(mqtt.PUBLISH); p.Publish.Payload != "second" {
			t.Errorf("%s: the session goes on with %v, want the second message", what, p)
		}
		c.Quiet()
		c.Disconnect()
	}
}
