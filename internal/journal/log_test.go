package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// survivor is a disk whose files outlive a process that did not let go of them.
type survivor struct{ vfs.FS }

func (survivor) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// lastNumber is that of the last batch in the log of a journal at rest.
func lastNumber(j *Journal) uint64 { return j.log.(*wal.Log).Last() }

// segmentsOf are the names of a directory's segments, in their order.
func segmentsOf(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	return journaltest.Names(t, fs, func(name string) bool { _, ok := wal.ParseSegmentName(name); return ok })
}

// smallSegments are so many bytes that each is full after a few rows.
const smallSegments = 200

// A start after the process was killed finds more than is on the disk: what the
// operating system still has in memory. What it goes on from must not be lost later.
func TestWhatAStartHasReadSurvivesTheNextCrash(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	disk := journaltest.NewDisk(survivor{mem})
	j := mustOpen(t, Options{FS: disk, Fatal: func(error) {}})

	// Given a process that was killed between its write and its fsync
	disk.Hold()
	put(j, "k1", "read by the next start", nil)
	disk.AwaitSync()

	// when the next one goes on from there, and the power fails,
	j = mustOpen(t, Options{FS: survivor{mem}})
	if got := fmt.Sprint(content(t, j)); got != "map[k1:read by the next start]" {
		t.Fatalf("the second process found %s", got)
	}
	putAndWait(j, "k2", "acknowledged")
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})

	// then both rows are there.
	left := mustOpen(t, Options{FS: crashed})
	if got := fmt.Sprint(content(t, left)); got != "map[k1:read by the next start k2:acknowledged]" {
		t.Errorf("after the crash there is %s", got)
	}
	mustClose(t, left)
	mustClose(t, j)
	disk.Release(errFault)
}

// However often a server is restarted and little is written, the log does not grow
// with each start.
func TestRestartsDoNotPileUpSegments(t *testing.T) {
	t.Parallel()
	trimmed := make(chan struct{}, 100)
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if _, ok := wal.ParseSegmentName(op.Path[strings.LastIndex(op.Path, "/")+1:]); ok && op.Kind == errorfs.OpRemove {
			trimmed <- struct{}{}
		}
		return nil
	}))
	const starts = 12
	for n := range starts {
		j := mustOpen(t, Options{FS: fs})
		putAndWait(j, fmt.Sprintf("k%02d", n), "v")
		for len(segmentsOf(t, fs)) > wal.MaxSegments {
			<-trimmed
		}
		mustClose(t, j)
	}
	j := mustOpen(t, Options{FS: fs})
	defer mustClose(t, j)
	if got := content(t, j); len(got) != starts {
		t.Errorf("%d rows of %d", len(got), starts)
	}
}

// Whatever step of beginning a segment finds no room: what is acknowledged is there
// afterwards.
func TestNoRoomForTheNextSegment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		kind  errorfs.OpKind
		path  string
		fatal bool // else the segment before goes on
	}{
		{"for its file", errorfs.OpOpen, "/spare" + wal.Suffix, false},
		{"for what it holds", errorfs.OpFileWriteAt, "/spare" + wal.Suffix, false},
		{"for its name", errorfs.OpRename, "/spare" + wal.Suffix, false},
		{"to open it", errorfs.OpOpen, "3" + wal.Suffix, true},
		{"for the directory's fsync", errorfs.OpFileSync, "data", true},
		{"for the fsync of the one before", errorfs.OpFileSyncData, wal.Suffix, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			var full atomic.Bool
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if full.Load() && op.Kind == c.kind && strings.HasSuffix(op.Path, c.path) {
					return syscall.ENOSPC
				}
				return nil
			}))
			fatal := make(chan error, 10)
			j := mustOpen(t, Options{FS: fs, Fatal: func(err error) { fatal <- err }, SegmentBytes: smallSegments})
			acked, failed := 0, false
			for ; acked < 20 && !failed; acked++ {
				full.Store(acked < 10)
				done := make(chan struct{})
				put(j, fmt.Sprintf("k%02d", acked), strings.Repeat("v", 50), waiterFunc(func() { close(done) }))
				select {
				case <-done:
				case <-fatal:
					failed = true
					acked--
				}
			}
			if failed != c.fatal {
				t.Errorf("failed: %v, want %v", failed, c.fatal)
			}
			if !failed {
				defer mustClose(t, j)
			}
			left := mustOpen(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
			defer mustClose(t, left)
			if got := content(t, left); len(got) < acked {
				t.Errorf("%d rows were acknowledged, %d are there", acked, len(got))
			}
		})
	}
}

// A segment is begun when all before it is on the disk. So where one is missing, or
// ends too soon, something was lost, whatever comes behind.
func TestMissingSegment(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	names := segmentsOf(t, files.Plant(t))
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			without := files.But(name, nil)
			delete(without, name)
			got, err := openTree(t, without)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) && i > 0 {
				t.Errorf("%d rows of %d, %v, want %s named", len(got), rows, err, name)
			}
		})
	}

	// That the last one was begun says so too, when nothing is in it yet.
	name, last := names[len(names)-2], names[len(names)-1]
	empty := files.But(last, make([]byte, wal.RoomAhead)).But(name, nil)
	if got, err := openTree(t, empty); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) {
		t.Errorf("%d rows, %v, want %s named", len(got), err, name)
	}
}

// severalSegments is a log of several segments, none of whose rows are in tables.
func severalSegments(t testing.TB) (files tree, rows int) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: fs, SegmentBytes: smallSegments})
	for ; len(segmentsOf(t, fs)) < wal.MaxSegments || rows%2 == 0; rows++ { // with one more tables would be written
		putAndWait(j, fmt.Sprintf("k%04d", rows), fmt.Sprint("value ", rows))
	}
	files = journaltest.ReadTree(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	return files, rows
}

// isPrefix says whether rows are the first ones of severalSegments.
func isPrefix(got map[string]string, most int) bool {
	for n := range len(got) {
		if got[fmt.Sprintf("k%04d", n)] != fmt.Sprint("value ", n) {
			return false
		}
	}
	return len(got) <= most
}

// What follows the end of a recycled segment is what clients once sent. They can't
// make it look like a log that goes on, nor have a start search in it for long.
func TestClientsCannotPlantFrames(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	last := lastLog(t, files)
	content := bytes.TrimRight(files[last], "\x00")
	for name, planted := range map[string][]byte{
		"the next batch":     wal.Mask(0).AppendFrame(nil, uint64(rows+1), uint64(rows), []byte("\x01\x04evil\x01!\x01\x02k!\x01!")),
		"a later batch":      wal.Mask(0).AppendFrame([]byte("..."), uint64(rows+2), uint64(rows+1), nil),
		"a much later one":   wal.Mask(0).AppendFrame([]byte("..."), 1<<63, 1<<63-1<<31, nil),
		"many long ones":     bytes.Repeat([]byte{0, 0, 8, 0}, 1<<18), // half a MiB each
		"many too long ones": bytes.Repeat([]byte{0xff}, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := openTree(t, files.But(last, withRoom(append(bytes.Clone(content), planted...))))
			if err != nil || len(got) != rows || !isPrefix(got, rows) {
				t.Errorf("%d rows of %d, %v", len(got), rows, err)
			}
		})
	}
}

// A commit is one write and one fsync, and a segment is extended once for many.
func TestACommitIsOneWriteAndOneSync(t *testing.T) {
	t.Parallel()
	var writes, syncs, others atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, wal.Suffix):
			writes.Add(1)
		case op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, wal.Suffix):
			syncs.Add(1)
		case op.Kind.ReadOrWrite() == errorfs.OpIsWrite:
			others.Add(1)
		}
		return nil
	}))
	j := mustOpen(t, Options{FS: fs})
	defer mustClose(t, j)
	putAndWait(j, "k", "value")
	writes.Store(0)
	syncs.Store(0)
	others.Store(0)

	const commits = 200 // of 50 bytes: less than what a segment has room for
	for n := range commits {
		putAndWait(j, fmt.Sprintf("k%03d", n), "value")
	}

	if w, s, o := writes.Load(), syncs.Load(), others.Load(); w != commits || s != commits || o != 0 {
		t.Errorf("%d commits took %d writes and %d fsyncs of the log, and %d other changes of the disk", commits, w, s, o)
	}
}

// The log extends its segments in advance. Where a full disk, a quota or a limit of a
// file's size forbids that, it goes on as long as what there is to write has room.
func TestNoRoomAhead(t *testing.T) {
	t.Parallel()
	for _, limit := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		t.Run(limit.Error(), func(t *testing.T) {
			t.Parallel()
			var refused atomic.Int64
			fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, wal.Suffix) && op.Offset >= wal.RoomAhead {
					refused.Add(1)
					return limit
				}
				return nil
			}))
			j := mustOpen(t, Options{FS: fs, Fatal: func(err error) { panic(err) }})
			defer mustClose(t, j)
			for n := range 20 {
				putAndWait(j, fmt.Sprintf("k%02d", n), "value")
			}
			if got := content(t, j); len(got) != 20 {
				t.Errorf("%d rows, want 20", len(got))
			}
			if refused.Load() == 0 {
				t.Error("the log was never extended")
			}
		})
	}
}

func TestLogWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	files, _ := severalSegments(t)
	for name := range files {
		if _, isLog := wal.ParseSegmentName(name); !isLog {
			delete(files, name)
		}
	}
	if got, err := openTree(t, files); !errors.Is(err, ErrDamaged) {
		t.Errorf("%d rows, %v", len(got), err)
	}
}

// A recycled segment is read up to where its own frames end, even if an older one begins
// at just that place.
func TestStaleFramesAreNotRead(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: mem, SegmentBytes: smallSegments})
	want := map[string]string{}
	for n := 0; len(want) < 4*wal.MaxSegments || n == 0; n++ {
		key, value := fmt.Sprintf("k%04d", n), fmt.Sprintf("%020d", n) // all frames are alike
		putAndWait(j, key, value)
		want[key] = value
	}
	if err := errors.Join(j.Flush(), j.TrimLog()); err != nil {
		t.Fatal(err)
	}
	mask, err := wal.ReadMask(j.db)
	if err != nil {
		t.Fatal(err)
	}
	stale := func() bool { // in the newest segment, right behind its end
		names := segmentsOf(t, mem)
		content, err := journaltest.ReadFile(mem, "data/"+names[len(names)-1])
		if err != nil {
			t.Fatal(err)
		}
		for p, last := 0, uint64(0); ; {
			f, ok := mask.ReadFrame(content, p)
			if !ok || f.Number < last {
				return ok
			}
			last, p = f.Number, f.End
		}
	}
	for n := 0; !stale(); n++ {
		key := fmt.Sprintf("k|%03d", n)
		putAndWait(j, key, fmt.Sprintf("%020d", n))
		want[key] = fmt.Sprintf("%020d", n)
	}
	for _, percent := range []int{0, 100} { // of each file all is there
		left := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 1))})
		for n := range 3 {
			again := mustOpen(t, Options{FS: left})
			began := lastNumber(again)
			if want := lastNumber(j) + uint64(n); began != want { // each start before made one
				t.Errorf("start %d goes on from batch %d, want %d", n, began, want)
			}
			if got := content(t, again); n == 0 && !sameRows(got, want) || len(got) != len(want)+n {
				t.Errorf("start %d: %v, want %v", n, got, want)
			}
			putAndWait(again, fmt.Sprint("kmore", n), "v")
			mustClose(t, again)
		}
	}
	mustClose(t, j)
}

// A segment from before a crash may hold, behind its torn end, frames that were not
// acknowledged. Their numbers are given out again, so it is not used again.
func TestWhatWasBehindATornEndNeverComesBack(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	mustClose(t, mustOpen(t, Options{FS: mem}))
	files := journaltest.ReadTree(t, mem)
	name := lastLog(t, files)

	// Given a log of ten batches without fsync, of which a crash took the second
	j := mustOpen(t, Options{FS: files.Plant(t)})
	mask, err := wal.ReadMask(j.db)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	var log []byte
	var size int
	for n := uint64(1); n <= 10; n++ {
		log = mask.AppendFrame(log, n, 0, journaltest.Row("klost", fmt.Sprintf("%05d", n)))
		size = len(log) / int(n)
	}
	clear(log[size : 2*size])
	mem = vfs.NewCrashableMem()
	planted := files.But(name, withRoom(log)).Plant(t)
	if _, err := vfs.Clone(planted, mem, "data", "data", vfs.CloneSync); err != nil {
		t.Fatal(err)
	}

	// when the next run gives out the same numbers, needs that segment no more, and begins
	// another, whose first frame ends where the sixth did
	j = mustOpen(t, Options{FS: mem, SegmentBytes: 5 * int64(size)})
	want := content(t, j)
	if got := fmt.Sprint(want); got != "map[klost:00001]" {
		t.Fatalf("after the crash: %s", got)
	}
	for _, key := range []string{"k2", "k3", "k4"} {
		putAndWait(j, key, "v")
		want[key] = "v"
	}
	if err := errors.Join(j.Flush(), j.TrimLog()); err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("v", 5*size-wal.FrameHeader-len(journaltest.Row("k5", strings.Repeat("v", 200)))+200)
	putAndWait(j, "k5", value)
	want["k5"] = value
	if got := segmentsOf(t, mem); slices.Contains(got, name) || got[len(got)-1] != wal.SegmentName(5) {
		t.Fatalf("there are the segments %v", got)
	}

	// then a start finds what was written since, and no more.
	left := mustOpen(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if got := content(t, left); !sameRows(got, want) {
		t.Errorf("after all: %v", got)
	}
	mustClose(t, left)
	mustClose(t, j)
}

// A disk that does not give back what is on it is not an empty log: the start says so,
// and leaves everything for another try.
func TestLogThatCannotBeRead(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	for _, name := range segmentsOf(t, files.Plant(t)) {
		for _, kind := range []errorfs.OpKind{errorfs.OpOpen, errorfs.OpFileRead} {
			fs := files.Plant(t)
			broken := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == kind && strings.HasSuffix(op.Path, name) {
					return errFault
				}
				return nil
			}))
			if _, err := Open(Options{Dir: "data", FS: broken, Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, errFault) || !strings.Contains(err.Error(), name) {
				t.Errorf("operation %d on %s: %v", kind, name, err)
			}
			if got, err := openTree(t, journaltest.ReadTree(t, fs)); err != nil || len(got) != rows || !isPrefix(got, rows) {
				t.Errorf("operation %d on %s, and then: %d rows of %d, %v", kind, name, len(got), rows, err)
			}
		}
	}
}
