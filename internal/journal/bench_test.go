package journal

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// signal is a waiter that wakes the goroutine that appended; one of these is
// what a client with one request in flight amounts to.
type signal chan struct{}

func (s signal) Durable(Seq) { s <- struct{}{} }

// In the steady state appending and awaiting allocate nothing per call; what
// Pebble allocates per batch is shared by all of the batch.
func TestAppendDoesNotAllocate(t *testing.T) {
	j := mustOpen(t, Options{FS: vfs.NewMem(), BatchBytes: 256 << 10})
	defer mustClose(t, j)
	key, value := []byte("k-some-key-of-usual-size"), make([]byte, 64)
	var w Waiter = waiterFunc(func() {})
	const n = 50_000
	run := func() {
		for range n {
			j.Admit()
			a := j.Begin()
			k, v := a.SetDeferred(len(key), len(value))
			copy(k, key)
			copy(v, value)
			j.Await(a.End(w), w)
		}
		awaitComplete(j, j.Last())
	}
	run()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	if per := float64(after.Mallocs-before.Mallocs) / n; per > 0.1 {
		t.Errorf("%.3f allocations per append", per)
	}
}

// BenchmarkClosedLoop: each client appends one row and waits for it.
func BenchmarkClosedLoop(b *testing.B) {
	for _, clients := range []int{2, 50, 800} {
		b.Run(fmt.Sprintf("journal/clients=%d", clients), func(b *testing.B) {
			j := mustOpen(b, Options{Dir: b.TempDir()})
			defer mustClose(b, j)
			each(b, clients, func() func(key, value []byte) {
				done := make(signal, 1)
				return func(key, value []byte) {
					a := j.Begin()
					a.Set(key, value)
					a.End(done)
					<-done
				}
			})
			b.ReportMetric(float64(b.N)/float64(j.Complete()), "rows/batch")
		})
		b.Run(fmt.Sprintf("blocking/clients=%d", clients), func(b *testing.B) {
			db, err := pebble.Open(b.TempDir(), (&Journal{o: Options{FS: vfs.Default, Logger: slog.New(slog.DiscardHandler)}}).pebbleOptions())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			each(b, clients, func() func(key, value []byte) {
				return func(key, value []byte) {
					if err := db.Set(key, value, pebble.Sync); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// BenchmarkOpenLoop: writers do not wait for their rows; Admit bounds them.
func BenchmarkOpenLoop(b *testing.B) {
	for _, writers := range []int{2, 50} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			j := mustOpen(b, Options{Dir: b.TempDir()})
			defer mustClose(b, j)
			var called atomic.Int64
			var w Waiter = waiterFunc(func() { called.Add(1) })
			each(b, writers, func() func(key, value []byte) {
				return func(key, value []byte) {
					j.Admit()
					a := j.Begin()
					a.Set(key, value)
					a.End(w)
				}
			})
			awaitComplete(j, j.Last())
			b.ReportMetric(float64(b.N)/float64(j.Complete()), "rows/batch")
		})
	}
}

// each runs b.N writes, split among n goroutines with a writer of their own.
func each(b *testing.B, n int, newWriter func() func(key, value []byte)) {
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var wg sync.WaitGroup
	for id := range n {
		wg.Go(func() {
			write := newWriter()
			key, value := []byte("k0000000000"), make([]byte, 64)
			for i := 0; left.Add(-1) >= 0; i++ {
				copy(key[1:], fmt.Appendf(nil, "%03d%07d", id, i%100_000))
				write(key, value)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
