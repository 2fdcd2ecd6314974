package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// Reason codes of DISCONNECT that only servers send are a protocol error of a
// client's [MQTT-3.14.2-1], which leaves its will.
func TestDisconnectCodesOfServers(t *testing.T) {
	t.Parallel()
	n := start(t)
	m := mourner(t, n)
	for _, code := range []mqtt.ReasonCode{0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2} {
		c := n.connect(mqtttest.Will(message{Topic: "will/code", Payload: fmt.Sprint(byte(code)), QoS: 1}, 0))
		c.Write([]byte{0xE0, 1, byte(code)})
		c.ExpectDisconnect(mqtt.ProtocolError)
		wantPayloads(t, collect(m, 1), []string{fmt.Sprint(byte(code))})
	}
	for _, code := range []mqtt.ReasonCode{0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99} {
		c := n.connect()
		c.Write([]byte{0xE0, 1, byte(code)})
		c.ExpectClosed()
	}
}

// A Response Topic is a topic name: it has at least one character, and no more levels
// than any other.
func TestResponseTopic(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTopicLevels = 8 })
	s := n.connect()
	s.Subscribe("requests", 2)
	levels := func(n int) *string { return new(strings.TrimSuffix(strings.Repeat("r/", n), "/")) }
	for qos := byte(0); qos <= 2; qos++ {
		c := n.connect()
		good := message{Topic: "requests", Payload: "answer me", QoS: qos, ResponseTopic: levels(8)}
		c.Publish(good)
		wantContent(t, s.Receive(), good)
		for _, n := range []int{9, 200} {
			if ack := c.Offer(message{Topic: "requests", QoS: qos, ResponseTopic: levels(n)}); qos > 0 {
				wantCode(t, "a response topic of too many levels", ack.Code, mqtt.TopicNameInvalid)
				wantReason(t, "a response topic of too many levels", ack.ReasonString)
			}
		}
		c.SendPublish(message{Topic: "requests", QoS: qos, ResponseTopic: new("")})
		p := c.ExpectDisconnect(mqtt.ProtocolError)
		wantReason(t, "an empty response topic", p.Disconnect.ReasonString)
		s.Quiet()
	}
	mqtttest.Refused(t, n.Addr, mqtt.ProtocolError, mqtttest.Will(message{Topic: "w", ResponseTopic: new("")}, 0))
	mqtttest.Refused(t, n.Addr, mqtt.TopicNameInvalid, mqtttest.Will(message{Topic: "w", ResponseTopic: levels(9)}, 0))
}

// A payload that isn't the UTF-8 which its Payload Format Indicator promises is
// refused (MQTT 5, section 3.3.2.3.2); U+0000 is UTF-8 like any other character.
func TestPayloadFormatIsChecked(t *testing.T) {
	t.Parallel()
	n := start(t)
	s := n.connect()
	s.Subscribe("text", 2)
	text := new(byte(1))
	for qos := byte(0); qos <= 2; qos++ {
		c := n.connect()
		for _, good := range []string{"", "größe\x00日本", strings.Repeat("x", 100)} {
			m := message{Topic: "text", Payload: good, QoS: qos, PayloadFormat: text}
			c.Publish(m)
			wantContent(t, s.Receive(), m)
		}
		c.Publish(message{Topic: "text", Payload: "\xff", QoS: qos, PayloadFormat: new(byte(0))})
		s.Receive()
		for _, bad := range []string{"\xff", "\xc0\x80", "\xed\xa0\x80", strings.Repeat("x", 100) + "\xe2\x82"} {
			id := c.SendPublish(message{Topic: "text", Payload: bad, QoS: qos, PayloadFormat: text})
			if qos == 0 { // there is no other way to say it
				p := c.ExpectDisconnect(mqtt.PayloadFormatInvalid)
				wantReason(t, "DISCONNECT", p.Disconnect.ReasonString)
				break
			}
			ack := c.AwaitAck([]mqtt.Type{mqtt.PUBACK, mqtt.PUBREC}[qos-1], id).Ack
			wantCode(t, "acknowledgement", ack.Code, mqtt.PayloadFormatInvalid)
			wantReason(t, "acknowledgement", ack.ReasonString)
		}
		s.Quiet()
	}
	will := message{Topic: "w", Payload: "\xff", PayloadFormat: text}
	wantReason(t, "CONNACK", mqtttest.Refused(t, n.Addr, mqtt.PayloadFormatInvalid, mqtttest.Will(will, 0)).ReasonString)
}

// No packet is larger than the client's Maximum Packet Size [MQTT-3.1.2-24], however
// small that is: a client that couldn't even take its CONNACK isn't let in.
func TestMaximumPacketSizeHoldsForEveryPacket(t *testing.T) {
	t.Parallel()
	n := start(t)
	accepted := 0
	for limit := 1; limit <= 64; limit++ {
		c := n.dial()
		c.SendConnect(mqtttest.MaximumPacketSize(uint32(limit)), mqtttest.ClientID("small"))
		p, err := c.Read(time.Now().Add(mqtttest.Deadline))
		if err != nil {
			if limit >= 5 { // bytes of the smallest CONNACK
				t.Errorf("limit %d: closed without a CONNACK", limit)
			}
			continue
		}
		within := func(p *mqtttest.Packet) *mqtttest.Packet {
			if len(p.Bytes) > limit {
				t.Errorf("limit %d: got %v of %d bytes", limit, p, len(p.Bytes))
			}
			return p
		}
		if within(p).Connack.Code != mqtt.Success {
			wantCode(t, "CONNACK", p.Connack.Code, mqtt.PacketTooLarge)
			c.ExpectClosed()
			continue
		}
		accepted++
		c.SendPublish(message{Topic: notifyPrefix + "/x", QoS: 1})
		c.SendPublish(message{Topic: notifyPrefix + "/x", QoS: 2})
		within(c.Next())
		within(c.Next())
		// SUBACK and UNSUBACK have a code for each filter: they can't do without them.
		filters := make([]sub, limit-5) // the most that fit
		names := make([]string, len(filters))
		for i := range filters {
			names[i] = "a/" + fmt.Sprint(i)
			filters[i] = sub{Filter: names[i]}
		}
		filters[0].Filter = "a/#/b" // has a Reason String if there is room
		c.SendSubscribe(0, filters...)
		if p := within(c.Next()); p.Type != mqtt.SUBACK || len(p.Suback.Codes) != len(filters) {
			t.Errorf("limit %d: got %v, want a SUBACK", limit, p)
		}
		if ack := c.Unsubscribe(names...); len(ack.Codes) != len(names) {
			t.Errorf("limit %d: got %d codes in UNSUBACK", limit, len(ack.Codes))
		}
		c.SendSubscribe(0, append(filters, filters[1])...)
		if p := within(c.Next()); p.Type != mqtt.DISCONNECT || p.Disconnect.Code != mqtt.PacketTooLarge {
			t.Errorf("limit %d: got %v, want DISCONNECT 0x95", limit, p)
		}
	}
	if accepted < 40 {
		t.Errorf("only %d of the connections were accepted", accepted)
	}
}

// Bytes of a packet keep a connection alive only as long as one packet may take: a
// client that trickles one for ever is disconnected, whatever its keep-alive.
func TestTrickledPacket(t *testing.T) {
	t.Parallel()
	// A busy machine can hold the test up for a second in the middle of a packet.
	const packetTimeout = 3 * time.Second
	n := start(t, func(c *server.Config) { c.Limits.PacketTimeout = packetTimeout })
	for _, keepAlive := range []uint16{0, 1, 60} {
		t.Run(fmt.Sprint("keep-alive ", keepAlive), func(t *testing.T) {
			t.Parallel()
			c := mqtttest.Connect(t, n.Addr, mqtttest.KeepAlive(keepAlive))
			// A stream of packets may go on for as long as it likes, each of them begun
			// before the last one is handled.
			whole := mqtttest.EncodePublish(mqtt.V5, message{Topic: "t", Payload: "slow"})
			c.Write(whole[:5])
			for range 25 {
				letPass(packetTimeout / 20)
				c.Write(append(append([]byte(nil), whole[5:]...), whole[:5]...))
			}
			// But not a packet without an end.
			c.Write(whole[5:])
			c.Write([]byte{0x30, 0xFF, 0x01})
			for began := time.Now(); ; {
				_ = c.WriteErr([]byte{0})
				if p, err := c.Read(time.Now().Add(20 * time.Millisecond)); err == nil {
					if p.Type != mqtt.DISCONNECT || p.Disconnect.Code != mqtt.KeepAliveTimeout {
						t.Errorf("got %v, want DISCONNECT 0x8D", p)
					}
					break
				}
				if took := time.Since(began); took > mqtttest.Deadline {
					t.Fatalf("a packet was borne with for %v", took)
				}
			}
		})
	}
}
