package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// How long a SET takes to be decided and appended while another client stores states of
// 4 MiB, with as much captured: both go through the locks that all writers share.
func BenchmarkSetBesideLargeStores(b *testing.B) {
	e := openBench(b, vfs.Default, b.TempDir())
	set := parse(b, "SET small value", e.clock.WallMs())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		s := newCaller(e)
		cmd := parse(b, "STORE large v m -", e.clock.WallMs())
		cmd.Value, cmd.Context = make([]byte, 4<<20), make([]byte, 4<<20)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			cmd.Message = fmt.Appendf(cmd.Message[:0], "m%d", i)
			useVersionOfKey(e, cmd)
			s.do(cmd)
			settle(e)
		}
	}()
	s := newCaller(e)
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		s.do(set)
		took = append(took, time.Since(began))
		time.Sleep(100 * time.Microsecond)
	}
	close(stop)
	<-stopped
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
	settle(e)
}
