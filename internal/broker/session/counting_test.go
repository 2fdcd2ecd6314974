package session

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/histogram"
)

// BenchmarkCounting does all that counts a GET, on all processors at once, whose readers add to the
// same counters: a packet, a publish in, one out, the command, and the time of one command in 64.
// docs/metrics.md compares it with what a GET takes.
func BenchmarkCounting(b *testing.B) {
	for _, gets := range []int{1, 16} { // that a reader handles at a time
		b.Run(fmt.Sprintf("gets=%d", gets), func(b *testing.B) {
			env := &Env{}
			var commands atomic.Int64
			latency := histogram.New(1000)
			b.RunParallel(func(pb *testing.PB) {
				t := &Turn{env: env}
				for n := 1; pb.Next(); n++ {
					var began time.Time
					if n%64 == 0 {
						began = time.Now()
					}
					t.PacketsIn++
					t.In.Add(1, 40)
					t.out.Add(1, 80)
					t.Count(&commands)
					if !began.IsZero() {
						latency.Observe(int64(time.Since(began)))
					}
					if n%gets == 0 {
						t.count()
					}
				}
				t.count()
			})
			if got := env.Counters.PacketsIn.Load(); got != int64(b.N) {
				b.Errorf("%d packets were counted, want %d", got, b.N)
			}
		})
	}
}
