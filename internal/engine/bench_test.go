package engine

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// caller gives commands and uses one Call for all of them, as the service does.
type caller struct {
	s    Session
	call Call
}

func newCaller(e *Local) *caller { return &caller{s: e.Open(Origin{})} }

func (c *caller) do(cmd *statestore.Command) {
	c.call.Command = *cmd
	c.s.Do(&c.call)
	c.call.Clear()
}

func openBench(t testing.TB, fs vfs.FS, dir string) *Local {
	j, err := journal.Open(journal.Options{Dir: dir, FS: fs, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(Options{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func settle(e *Local) {
	done := make(chan struct{})
	e.journal.Begin().End(waiter(func() { close(done) }))
	<-done
	for e.journal.Complete() < e.journal.Last() {
		runtime.Gosched()
	}
}

// A GET of a durable key allocates nothing, with a deadline or without; a miss
// neither.
func TestGetDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates by itself; the run without it counts")
	}
	e := openBench(t, vfs.NewMem(), "data")
	s := newCaller(e)
	now := e.clock.WallMs()
	s.do(parse(t, "SET k v", now))
	s.do(parse(t, "SET lease v PX=1000000", now))
	settle(e)
	for _, key := range []string{"k", "lease", "missing"} {
		cmd := parse(t, "GET "+key, now)
		if n := testing.AllocsPerRun(1000, func() { s.do(cmd) }); n != 0 {
			t.Errorf("GET %s: %v allocations", key, n)
		}
	}
}

// A SET of an existing key allocates nothing; what a batch costs is shared by all of
// it.
func TestSetDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates by itself; the run without it counts")
	}
	e := openBench(t, vfs.NewMem(), "data")
	s := newCaller(e)
	cmd := parse(t, "SET key-of-usual-size value", e.clock.WallMs())
	const n = 50_000
	run := func() {
		for range n / 500 {
			for range 500 {
				s.do(cmd)
			}
			settle(e)
		}
	}
	run()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	if per := float64(after.Mallocs-before.Mallocs) / n; per > 0.1 {
		t.Errorf("%.2f allocations per SET", per)
	}
}

func BenchmarkGet(b *testing.B) {
	e := openBench(b, vfs.NewMem(), "data")
	s := newCaller(e)
	var cmds []*statestore.Command
	for i := range 10_000 {
		s.do(parse(b, fmt.Sprintf("SET key-%d value", i), e.clock.WallMs()))
		cmds = append(cmds, parse(b, fmt.Sprintf("GET key-%d", i), 0))
	}
	settle(e)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		s := newCaller(e)
		for i := 0; pb.Next(); i++ {
			s.do(cmds[i%len(cmds)])
		}
	})
}

func BenchmarkSet(b *testing.B) {
	e := openBench(b, vfs.Default, b.TempDir())
	value := make([]byte, 64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		s := newCaller(e)
		cmd := parse(b, "SET k v", e.clock.WallMs())
		cmd.Value = value
		for i := 0; pb.Next(); i++ {
			cmd.Key = fmt.Appendf(cmd.Key[:0], "key-%d", i%100_000)
			s.do(cmd)
		}
	})
	settle(e)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sets/s")
}

func BenchmarkLoad(b *testing.B) {
	e := openBench(b, vfs.Default, b.TempDir())
	s := newCaller(e)
	cmd := parse(b, "SET k v", e.clock.WallMs())
	cmd.Value = make([]byte, 64)
	const keys = 200_000
	for i := range keys {
		cmd.Key = fmt.Appendf(cmd.Key[:0], "key-%d", i)
		s.do(cmd)
	}
	settle(e)
	var before, after runtime.MemStats
	for b.Loop() {
		e.journal.SetMeta(e.appendMeta) // or the journal keeps the last round's engine
		runtime.GC()
		runtime.ReadMemStats(&before)
		again, err := Open(Options{Journal: e.journal})
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/keys, "B/key") // of which 74 are key and value
		b.ReportMetric(float64(keys)/again.loaded.Seconds(), "keys/s")
		again.Close()
	}
}
