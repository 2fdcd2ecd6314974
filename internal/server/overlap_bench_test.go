package server

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// What a publish costs that 8,192 filters of one client match: the client gets one copy.
func BenchmarkOverlappingFilters(b *testing.B) {
	const levels = 13
	s := start(b)
	subscriber := dialWire(b, s, "subscriber", false)
	for bits := range 1 << levels {
		var filter []byte
		for l := range levels {
			if l > 0 {
				filter = append(filter, '/')
			}
			if bits>>l&1 != 0 {
				filter = append(filter, '+')
			} else {
				filter = append(filter, "level"...)
			}
		}
		subscriber.subscribe(filter, 0)
	}
	topic := []byte("level")
	for range levels - 1 {
		topic = append(topic, "/level"...)
	}
	publish := mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: topic, Payload: []byte("x")})
	publisher := dialWire(b, s, "publisher", false)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		publisher.send(publish)
		subscriber.takeDelivery()
	}
}
