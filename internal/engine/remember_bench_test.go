package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

// How long a SET takes to be decided and appended while another client stores states of
// 4 MiB, with as much captured: both go through the locks that all writers share.
func BenchmarkSetBesideLargeStores(b *testing.B) {
	e := openBench(b, vfs.Default, b.TempDir())
	set, r := parse(b, "SET small value", e.clock.WallMs()), &pooledReply{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		s, r := e.Open(Origin{}), &pooledReply{}
		cmd := parse(b, "STORE large v m -", e.clock.WallMs())
		cmd.Value, cmd.Context = make([]byte, 4<<20), make([]byte, 4<<20)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			cmd.Message = fmt.Appendf(cmd.Message[:0], "m%d", i)
			sh, hash := e.shard(cmd.Key)
			sh.mu.Lock()
			rec := sh.table.find(cmd.Key, hash)
			if cmd.Version.Absent = !rec.live(); rec.live() {
				cmd.Version.At = sh.table.versionOf(rec)
			}
			sh.mu.Unlock()
			s.Do(cmd, r)
			settle(e)
		}
	}()
	s := e.Open(Origin{})
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		s.Do(set, r)
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

// What a remembered message takes on disk, before compression, with a key of 16 bytes, a
// CloudEvents identity of 50, a state of 64 and 100 bytes of captured values and
// digests: as long as it may be replayed, and after DONE.
func BenchmarkRememberedBytes(b *testing.B) {
	key, id := []byte("range/0123456789"), []byte(fmt.Sprintf("event:6:%-42s", "shots"))
	version := hlc.Timestamp{Wall: 1_795_000_000_000, Counter: 1, Node: "StateStore"}
	for name, memo := range map[string]*statestore.Memo{
		"stored": {Version: version, State: make([]byte, 64), Context: make([]byte, 100)},
		"done":   {Version: version, Done: true},
	} {
		b.Run(name, func(b *testing.B) {
			var bytes int
			for b.Loop() {
				row := appendMemoRow(nil, key, id)
				value := encodeMemo(nil, &memory{memo: memo, diskMs: 1_795_000_000_000}, 1)
				bytes = len(row) + len(value) + len(appendIndexRow(nil, 1_795_000_000_000, row))
			}
			b.ReportMetric(float64(bytes), "bytes/message")
		})
	}
}
