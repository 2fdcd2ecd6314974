package journal

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// While no file descriptor is left, not even for tables, the log goes on to its next
// segments.
func TestTheLogGoesOnWithoutDescriptors(t *testing.T) {
	t.Parallel()
	var said logs.Text
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
	text := said.String()
	most := 1 + int(time.Since(exhausted)/datadir.NoDescriptorsPause)
	if n := strings.Count(text, "no file descriptor is left"); n < 1 || n > most {
		t.Errorf("it said %d times that there are no descriptors:\n%s", n, text)
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

// While tables find no file descriptor, writes wait, and that time does not count towards
// CommitTimeout (TestTimeInWhichTheProcessDidNotRun), so the process does not end. When
// there are descriptors again, the writes go on.
func TestWritesWaitForDescriptorsOfTables(t *testing.T) {
	t.Parallel()
	var exhausted atomic.Bool
	exhausted.Store(true)
	tables := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") && exhausted.Load() {
			return syscall.ENFILE
		}
		return nil
	})
	var said logs.Text
	mem := vfs.NewMem()
	mustCreate(t, smallDisk{mem})
	j := mustOpen(t, Options{
		FS:     smallDisk{errorfs.Wrap(mem, tables)},
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
		Fatal:  func(err error) { t.Errorf("the journal failed: %v", err) },
	})
	const rows = 400 // 25 MiB, more than the memtables and what may wait for them
	written := make(chan struct{})
	var acknowledged atomic.Int32
	go func() {
		defer close(written)
		for i := range rows {
			j.Admit()
			put(j, fmt.Sprintf("k|%06d", i), strings.Repeat("v", 64<<10), waiterFunc(func() { acknowledged.Add(1) }))
		}
	}()
	for deadline := time.Now().Add(time.Minute); j.uptime.Skipped() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the time in which writes wait counts")
		}
	}
	if n := acknowledged.Load(); n == rows {
		t.Errorf("all %d rows are acknowledged: none had to wait", n)
	}
	exhausted.Store(false)
	<-written
	j.WaitDurable()
	mustClose(t, j)
	if n := acknowledged.Load(); n != rows {
		t.Errorf("%d rows are acknowledged, want %d", n, rows)
	}
	if !strings.Contains(said.String(), "tables find no file descriptor") {
		t.Errorf("the log does not name the cause:\n%s", said.String())
	}
}

// currentSegment is the number of the segment that is written.
func currentSegment(t testing.TB, fs vfs.FS) uint64 {
	t.Helper()
	names := segmentsOf(t, fs)
	first, _ := wal.ParseSegmentName(names[len(names)-1])
	return first
}
