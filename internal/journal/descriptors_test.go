package journal

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// While no file descriptor is left, not even for tables, the log goes on to its next
// segments.
func TestTheLogGoesOnWithoutDescriptors(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	fsys := journaltest.NewCountedFS(vfs.NewMem(), 1000)
	j := mustOpen(t, Options{FS: fsys, Reserve: 1 << 20, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	write := func(n int) {
		t.Helper()
		for i := range n {
			done := make(chan struct{})
			a := j.Begin()
			a.Set([]byte(fmt.Sprintf("k|%06d", i)), make([]byte, 64<<10))
			a.End(waiterFunc(func() { close(done) }))
			select {
			case <-done:
			case <-j.failed:
				t.Fatalf("the journal failed: %v", j.failure())
			}
		}
	}
	write(1)
	fsys.Exhaust()
	exhausted := time.Now()
	first := currentSegment(t, fsys)
	write(600) // 38 MiB
	if last := currentSegment(t, fsys); last < first+4 {
		t.Errorf("the log went from %v to %v, which are no four segments", first, last)
	}
	most := 1 + int(time.Since(exhausted)/datadir.NoDescriptorsPause)
	if n := strings.Count(said.String(), "no file descriptor is left"); n < 1 || n > most {
		t.Errorf("it said %d times that there are no descriptors:\n%s", n, said.String())
	}

	// When there are some again tables are written, and it takes back what it keeps, until
	// its end.
	fsys.SetLimit(1000)
	if err := j.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	if fsys.OpenFiles() != 0 {
		t.Errorf("%d files are open after the end", fsys.OpenFiles())
	}
}

// currentSegment is the number of the segment that is written.
func currentSegment(t testing.TB, fs vfs.FS) uint64 {
	t.Helper()
	names := segmentsOf(t, fs)
	first, _ := wal.ParseSegmentName(names[len(names)-1])
	return first
}
