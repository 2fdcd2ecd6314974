package server

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// benchmarkPublish has publishers send to one subscriber each at QoS 1, inflight
// at a time, and waits for PUBACKs and deliveries, which the subscribers
// acknowledge at once. persistent: the subscribers' sessions outlive their
// connections, so each message goes to disk and comes off it again.
func benchmarkPublish(b *testing.B, publishers, inflight int, persistent bool, durability journal.Durability) {
	s := start(b, func(c *Config) { c.Durability = durability })
	payload := bytes.Repeat([]byte("v"), 64)
	type pair struct {
		publisher, subscriber *wire
		window                []byte
	}
	pairs := make([]pair, publishers)
	for i := range pairs {
		p := &pairs[i]
		p.publisher = dialWire(b, s, fmt.Sprint("publisher-", i), false)
		p.subscriber = dialWire(b, s, fmt.Sprint("subscriber-", i), persistent)
		topic := []byte(fmt.Sprint("bench/", i))
		p.subscriber.send(mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 2, Subscriptions: []mqtt.Subscription{{Filter: topic, QoS: 1}}}))
		p.subscriber.expect(mqtt.SUBACK)
		for k := range inflight {
			p.window = mqtt.AppendPublish(p.window, mqtt.V5, &mqtt.Publish{QoS: 1, PacketID: uint16(k + 1), Topic: topic, Payload: payload})
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	rounds := b.N/(publishers*inflight) + 1
	done := make(chan struct{})
	for i := range pairs {
		p := &pairs[i]
		go func() {
			for range rounds {
				p.publisher.send(p.window)
				for range inflight {
					p.publisher.expect(mqtt.PUBACK)
				}
			}
			done <- struct{}{}
		}()
		go func() {
			var acks []byte
			for n := 0; n < rounds*inflight; {
				acks = acks[:0]
				for {
					header, body := p.subscriber.next()
					if err := p.subscriber.publish.DecodeDelivery(mqtt.V5, header, body); err != nil {
						b.Error(err)
					}
					acks = mqtt.AppendAck(acks, mqtt.V5, mqtt.PUBACK, p.subscriber.publish.PacketID, mqtt.Success, "")
					n++
					if p.subscriber.r == p.subscriber.w {
						break
					}
				}
				p.subscriber.send(acks)
			}
			done <- struct{}{}
		}()
	}
	for range 2 * publishers {
		<-done
	}
	b.ReportMetric(float64(rounds*publishers*inflight)/b.Elapsed().Seconds(), "messages/s")
}

// What a queue on disk costs while its subscriber is there and acknowledges at
// once: persistent beside transient, and its fsync: sync beside none.
func BenchmarkPublish(b *testing.B) {
	for _, load := range []struct{ publishers, inflight int }{{50, 1}, {50, 16}, {200, 1}} {
		for _, c := range []struct {
			name       string
			persistent bool
			durability journal.Durability
		}{
			{"transient", false, journal.Sync},
			{"persistent/none", true, journal.NoSync},
			{"persistent/sync", true, journal.Sync},
		} {
			b.Run(fmt.Sprintf("%dx%d/%s", load.publishers, load.inflight, c.name), func(b *testing.B) {
				benchmarkPublish(b, load.publishers, load.inflight, c.persistent, c.durability)
			})
		}
	}
}
