package server

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkMassExpiry has 60,000 keys expire at the same moment, 600 of them watched by
// a client over its socket. It reports how long after that moment the notifications
// arrived: the median and the last.
//
//	go test -run xxx -bench MassExpiry -benchtime 3x ./internal/server
func BenchmarkMassExpiry(b *testing.B) {
	const keys, watched, window = 60_000, 600, 500
	s := start(b)
	writer, watcher := dialWire(b, s, "writer", false), dialWire(b, s, "watcher", false)
	var late []time.Duration
	for round := range b.N {
		name := func(i int) string { return fmt.Sprintf("round-%d/key/%05d", round, i) }
		due := time.Now().Add(5 * time.Second)
		set := func(dst []byte, id uint16, key string) []byte {
			return request(dst, "writer", id, stamp(), "SET", key, "v", "PX", fmt.Sprint(time.Until(due).Milliseconds()))
		}
		for i := range watched {
			watcher.window(request(nil, "watcher", 1, "", "KEYNOTIFY", name(i)), 1)
		}
		var requests []byte
		for i := watched; i < keys; i += window {
			requests = requests[:0]
			for k := range min(window, keys-i) {
				requests = set(requests, uint16(k+1), name(i+k))
			}
			writer.window(requests, min(window, keys-i))
		}
		for i := range watched { // each by itself, so that its deadline is exact
			writer.window(set(nil, 1, name(i)), 1)
			watcher.takeDelivery()
		}
		if time.Until(due) < 100*time.Millisecond {
			b.Fatal("the keys were not all written ahead of their deadline")
		}
		for range watched {
			watcher.takeDelivery()
			if !bytes.Contains(watcher.publish.Payload, []byte("DELETE")) {
				b.Fatalf("notified of %q", watcher.publish.Payload)
			}
			late = append(late, time.Since(due))
		}
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(late[len(late)-1].Microseconds())/1000, "ms-last")
}
