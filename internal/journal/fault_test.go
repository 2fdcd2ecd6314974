package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// faults makes a kind of operation fail, from the nth on.
type faults struct {
	kinds []errorfs.OpKind
	file  string // part of the name; empty: any
	from  int64
	seen  atomic.Int64
	armed atomic.Bool
}

var errFault = errors.New("input/output error")

func (f *faults) maybe(op errorfs.Op) error {
	if !f.armed.Load() || !strings.Contains(op.Path, f.file) {
		return nil
	}
	for _, k := range f.kinds {
		if op.Kind == k && f.seen.Add(1) > f.from {
			return errFault
		}
	}
	return nil
}

// smallDisk makes memtables small, so that a few rows come through several logs
// and tables, and leaves no room for a ballast.
type smallDisk struct{ vfs.FS }

func (smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 8 << 20, TotalBytes: 8 << 20}, nil
}

// Whatever fails, and whenever: the rows of waiters that were called are there, Fatal is
// called once, and no waiter is called any more.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		kinds []errorfs.OpKind
		file  string
	}{
		{"writing the log", []errorfs.OpKind{errorfs.OpFileWriteAt}, wal.Suffix},
		{"syncing the log", []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData}, wal.Suffix},
		{"writing tables", []errorfs.OpKind{errorfs.OpFileWrite}, ".sst"},
		{"syncing tables", []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}, ".sst"},
		{"writing the manifest", []errorfs.OpKind{errorfs.OpFileWrite}, "MANIFEST"},
		{"syncing the manifest", []errorfs.OpKind{errorfs.OpFileSync}, "MANIFEST"},
		{"renaming", []errorfs.OpKind{errorfs.OpRename, errorfs.OpReuseForWrite}, ""},
		{"creating", []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite}, ""},
		{"everything that writes", []errorfs.OpKind{
			errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpCreate, errorfs.OpRename, errorfs.OpReuseForWrite,
		}, ""},
	} {
		for _, from := range []int64{0, 5} {
			t.Run(fmt.Sprintf("%s/%d", c.name, from), func(t *testing.T) {
				t.Parallel()
				lifeWithFault(t, &faults{kinds: c.kinds, file: c.file, from: from})
			})
		}
	}
}

func lifeWithFault(t *testing.T, f *faults) {
	mem := vfs.NewCrashableMem()
	mustCreate(t, smallDisk{mem})
	fatal := make(chan error, 10)
	j := mustOpen(t, Options{
		FS: smallDisk{errorfs.Wrap(mem, errorfs.InjectorFunc(f.maybe))}, Fatal: func(err error) { fatal <- err },
		CommitTimeout: 2 * time.Second, // Pebble retries tables forever
	})
	f.armed.Store(true)
	defer f.armed.Store(false) // what has failed tries its tables again forever

	// Rows are written, through several logs and tables, until the journal fails.
	var mu sync.Mutex
	acked, failed := 0, false
	value := strings.Repeat("v", 64<<10)
	var reason error
	for n := 0; reason == nil && n < 100; n++ {
		done := make(chan struct{})
		put(j, fmt.Sprintf("k|%04d", n), value, waiterFunc(func() {
			mu.Lock()
			defer mu.Unlock()
			if failed {
				t.Error("called back after the journal failed")
			}
			acked++
			close(done)
		}))
		select {
		case <-done:
		case reason = <-fatal:
			mu.Lock()
			failed = true
			mu.Unlock()
		}
	}
	if reason == nil {
		t.Logf("%d operations met, and all rows written", f.seen.Load())
		f.armed.Store(false)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	closed := j.Close()
	if reason == nil && closed != nil { // Pebble hung, and the watchdog saw it after all rows were written
		reason = <-fatal
	}
	if reason != nil && (closed == nil || !strings.Contains(closed.Error(), reason.Error())) {
		t.Errorf("Close said %v, Fatal %v", closed, reason)
	}
	if reason != nil && !strings.Contains(reason.Error(), errFault.Error()) || len(fatal) != 0 {
		t.Errorf("Fatal(%v), and %d more times", reason, len(fatal))
	}

	// What is on the disk now is what a start finds.
	mu.Lock()
	defer mu.Unlock()
	left := mustOpen(t, Options{FS: crashed})
	defer mustClose(t, left)
	rows := content(t, left)
	for n := range acked {
		if key := fmt.Sprintf("k|%04d", n); len(rows[key]) != len(value) {
			t.Errorf("row %s was acknowledged and is not there", key)
		}
	}
}

// tablesFindNoRoom makes a file system that has no room for tables as long as it is armed.
type tablesFindNoRoom struct {
	vfs.FS
	armed atomic.Bool
	tried chan struct{} // one was to be written
}

func newTablesFindNoRoom(fs vfs.FS) *tablesFindNoRoom {
	d := &tablesFindNoRoom{tried: make(chan struct{}, 1)}
	d.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !d.armed.Load() || op.Kind != errorfs.OpCreate || !strings.HasSuffix(op.Path, ".sst") {
			return nil
		}
		wake(d.tried)
		return syscall.ENOSPC
	}))
	return d
}

// Close doesn't wait for a checkpoint that waits for room on the disk, and takes nothing with it.
func TestCloseDuringACheckpointWithoutRoom(t *testing.T) {
	t.Parallel()
	d := newTablesFindNoRoom(vfs.NewMem())
	j := mustOpen(t, Options{FS: d})
	putAndWait(j, "k", "v")
	d.armed.Store(true)
	ended := make(chan error)
	go func() {
		ended <- j.Checkpoint("copy", false)
	}()
	<-d.tried
	mustClose(t, j)
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("the checkpoint ended with %v", err)
	}
	d.armed.Store(false)
	j = mustOpen(t, Options{FS: d})
	defer mustClose(t, j)
	if got := content(t, j); got["k"] != "v" {
		t.Errorf("after reopening: %v", got)
	}
}

// A start that finds no room for what the log has ends with a sentence on what to do.
func TestStartWithoutRoomForTables(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: mem})
	for i := range 8 {
		putAndWait(j, fmt.Sprint("k", i), strings.Repeat("v", 1<<20))
	}

	// The machine loses power, and the next start has memory for less.
	left := mem.CrashClone(vfs.CrashCloneCfg{})
	d := newTablesFindNoRoom(smallDisk{left})
	d.armed.Store(true)
	fatal, opened := make(chan error, 2), make(chan error)
	o := Options{
		Dir: "data", FS: d, CommitTimeout: 500 * time.Millisecond,
		Fatal: func(err error) { fatal <- err }, Logger: slog.New(slog.DiscardHandler),
	}
	go func() {
		_, err := Open(o)
		opened <- err
	}()
	said := <-fatal
	if !strings.Contains(said.Error(), "Make room") || !errors.Is(said, syscall.ENOSPC) {
		t.Errorf("Fatal(%v)", said)
	}

	// There is room again. Nothing is lost.
	d.armed.Store(false)
	if err := <-opened; !errors.Is(err, said) {
		t.Errorf("Open returned %v", err)
	}
	again := mustOpen(t, Options{FS: d})
	if got := content(t, again); len(got) != 8 {
		t.Errorf("%d rows of 8", len(got))
	}
	mustClose(t, again)
	mustClose(t, j)
}

// Where Pebble has no memory left it is not only rows that it doesn't take.
func TestTablesThatCannotBeBegun(t *testing.T) {
	t.Parallel()
	d := newTablesFindNoRoom(smallDisk{vfs.NewMem()})
	mustCreate(t, d) // for which a busy machine may take longer than CommitTimeout
	fatal := make(chan error, 1)
	j := mustOpen(t, Options{FS: d, CommitTimeout: 500 * time.Millisecond, Fatal: func(err error) { fatal <- err }})
	d.armed.Store(true)
	for i := range 8 * memTables { // which are small, as little is in them
		put(j, fmt.Sprint("k", i), "v", nil)
		j.WaitDurable()
		select {
		case j.toFlush <- struct{}{}:
		case <-j.failed:
		}
	}
	if err := <-fatal; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Fatal(%v)", err)
	}
	d.armed.Store(false)
}

// pageCache is a disk under an operating system that takes the pages of a file for
// written when it could not write them: an fsync says so once, the next one does nothing.
type pageCache struct {
	vfs.FS
	mu     sync.Mutex
	fails  bool               // guarded by mu: the disk
	lost   map[string]bool    // guarded by mu: files with pages that were not written
	writes map[string][]int64 // guarded by mu: where, by file
}

func (c *pageCache) OpenReadWrite(name string, category vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.OpenReadWrite(name, category, o...)
	return cachedFile{f, c, name}, err
}

type cachedFile struct {
	vfs.File
	*pageCache
	name string
}

func (f cachedFile) WriteAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost[f.name] = false
	f.writes[f.name] = append(f.writes[f.name], at)
	return f.File.WriteAt(p, at)
}

func (f cachedFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.fails:
		f.lost[f.name] = true
		return errFault
	case f.lost[f.name]:
		return nil
	}
	return f.File.Sync()
}

func (f cachedFile) SyncData() error { return f.Sync() }

// endOfLog is where the frames of a log of one segment end.
func endOfLog(t testing.TB, mem *vfs.MemFS) int64 {
	t.Helper()
	content, err := journaltest.ReadFile(mem, "data/"+wal.SegmentName(1))
	if err != nil {
		t.Fatal(err)
	}
	ends := frameEnds(content)
	return int64(ends[len(ends)-1])
}

// What a start reads after an fsync has failed may not be on the disk, and no error
// says so again. It is there before it is acknowledged.
func TestStartAfterAFailedSync(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	c := &pageCache{FS: survivor{mem}, lost: map[string]bool{}, writes: map[string][]int64{}}
	fatal := make(chan error, 1)
	j := mustOpen(t, Options{FS: c, Fatal: func(err error) { fatal <- err }})
	putAndWait(j, "k1", "acknowledged")
	end := endOfLog(t, mem)
	c.mu.Lock()
	c.fails = true
	c.mu.Unlock()
	put(j, "k2", "not acknowledged", nil)
	<-fatal
	c.mu.Lock()
	c.fails, c.writes = false, map[string][]int64{}
	c.mu.Unlock()
	endFrame := endOfLog(t, mem) // where the next start says that it has begun a segment
	if err := j.log.Sync(); !errors.Is(err, errFault) {
		t.Errorf("the fsync after the one that failed said %v", err)
	}

	j = mustOpen(t, Options{FS: c})
	rows := content(t, j)
	c.mu.Lock()
	if got := c.writes["data/"+wal.SegmentName(1)]; !slices.Equal(got, []int64{end, endFrame}) {
		t.Errorf("what was written again, and the end frame, are at %d, want %d and %d only", got, end, endFrame)
	}
	c.mu.Unlock()
	crashed := mustOpen(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if got := content(t, crashed); fmt.Sprint(got) != fmt.Sprint(rows) {
		t.Errorf("a start read %v, and after a crash there was %v", rows, got)
	}
	mustClose(t, crashed)
	mustClose(t, j)
}

// A directory that cannot be written to at the start is said so, by Open or by Fatal,
// and left for another try.
func TestFaultsAtTheStart(t *testing.T) {
	t.Parallel()
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpRename, errorfs.OpCreate} {
		for from := range int64(4) {
			t.Run(fmt.Sprintf("operation %v, from %d on", kind, from), func(t *testing.T) {
				t.Parallel()
				mem := vfs.NewCrashableMem()
				f := &faults{kinds: []errorfs.OpKind{kind}, from: from}
				f.armed.Store(true)
				said := make(chan error, 2)
				o := Options{Dir: "data", Logger: slog.New(slog.DiscardHandler), FS: errorfs.Wrap(mem, errorfs.InjectorFunc(f.maybe)), Fatal: func(err error) { said <- err }, CommitTimeout: 4 * time.Second}
				go func() {
					j, err := Open(o) // after Fatal it never returns: the process is to end
					if err == nil {
						f.armed.Store(false)
						err = j.Close()
					}
					said <- err
				}()
				if err := <-said; err != nil && !strings.Contains(err.Error(), errFault.Error()) {
					t.Error(err)
				}
				f.armed.Store(false)
				mustClose(t, mustOpen(t, Options{Dir: "data", FS: mem.CrashClone(vfs.CrashCloneCfg{})}))
			})
		}
	}
}
