package server

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// million is how many keys, or queued messages, a start has to cope with.
const million = 1_000_000

// startLarge starts a server on a data directory, with room for what is put into it.
// Nothing refers to the server but the caller.
func startLarge(b *testing.B, dir string) *Server {
	b.Helper()
	cfg := Default()
	cfg.Listen, cfg.DataDir, cfg.Durability = []string{"127.0.0.1:0"}, dir, journal.NoSync
	cfg.MaxKeys, cfg.Limits = 2*million, broker.Limits{MaxQueued: 2 * million, MaxQueuedBytes: 4 << 30}
	s, err := Start(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// benchmarkStart measures starts on a directory that fill has filled, and the
// memory that the server holds afterwards.
func benchmarkStart(b *testing.B, fill func(b *testing.B, s *Server)) {
	dir := b.TempDir()
	func() { // whose server is garbage afterwards
		s := startLarge(b, dir)
		fill(b, s)
		stop(b, s)
	}()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	for range b.N {
		s := startLarge(b, dir)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/million, "heap-B/each")
		stop(b, s)
		b.StartTimer()
	}
}

// BenchmarkStart: go test -run xxx -bench Start -benchtime 3x ./internal/server
func BenchmarkStart(b *testing.B) {
	value := bytes.Repeat([]byte("v"), 64)
	const window = 500
	b.Run("keys", func(b *testing.B) {
		benchmarkStart(b, func(b *testing.B, s *Server) {
			w, ts := dialWire(b, s, "client", false), stamp()
			var requests []byte
			for i := 0; i < million; i += window {
				requests = requests[:0]
				for k := range window {
					requests = request(requests, "client", uint16(k+1), ts, "SET", fmt.Sprintf("key/%028d", i+k), string(value))
				}
				w.window(requests, window)
			}
		})
	})
	b.Run("messages", func(b *testing.B) {
		benchmarkStart(b, func(b *testing.B, s *Server) {
			away := dialWire(b, s, "away", true)
			away.send(mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 2, Subscriptions: []mqtt.Subscription{{Filter: []byte("t"), QoS: 1}}}))
			away.expect(mqtt.SUBACK)
			away.conn.Close()
			w := dialWire(b, s, "publisher", false)
			var packets []byte
			for k := range window {
				packets = mqtt.AppendPublish(packets, mqtt.V5, &mqtt.Publish{QoS: 1, PacketID: uint16(k + 1), Topic: []byte("t"), Payload: value})
			}
			for range million / window {
				w.send(packets)
				for range window {
					w.expect(mqtt.PUBACK)
				}
			}
		})
	})
}
