package server

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// What a client costs that subscribes to all of 200,000 retained messages: the time of each
// that it receives.
func BenchmarkReplay(b *testing.B) {
	const messages = 200_000
	s := start(b)
	publisher := dialWire(b, s, "publisher", false)
	for at := 0; at < messages; at += 1000 {
		var window []byte
		for i := range 1000 {
			window = mqtt.AppendPublish(window, mqtt.V5, &mqtt.Publish{
				QoS: 1, Retain: true, PacketID: uint16(i + 1),
				Topic: fmt.Appendf(nil, "plant/%d/sensor/%d", at/1000, i), Payload: []byte("a value of 16 by"),
			})
		}
		publisher.send(window)
		for range 1000 {
			publisher.expect(mqtt.PUBACK)
		}
	}
	subscriber := dialWire(b, s, "subscriber", false)
	subscribe := mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 2, Subscriptions: []mqtt.Subscription{{Filter: []byte("plant/#")}}})
	b.ReportAllocs()
	b.ResetTimer()
	for received := 0; received < b.N; {
		subscriber.send(subscribe)
		for n := 0; n < messages; {
			if header, _ := subscriber.next(); mqtt.TypeOf(header) == mqtt.PUBLISH {
				n++
			}
		}
		received += messages
	}
}
