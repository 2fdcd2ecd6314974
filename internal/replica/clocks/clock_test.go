package clocks

import (
	"testing"
	"time"
)

// The server reads the clock for each command.
func BenchmarkWallMs(b *testing.B) {
	b.Run("machine", func(b *testing.B) {
		start := time.Now()
		for b.Loop() {
			if time.Now().UnixMilli() < start.UnixMilli() {
				b.Fatal("the clock went back")
			}
		}
	})
	b.Run("judged", func(b *testing.B) {
		c := NewClock(System(), skew)
		b.ReportAllocs()
		for b.Loop() {
			if c.WallMs() == 0 {
				b.Fatal("no time")
			}
		}
	})
}
