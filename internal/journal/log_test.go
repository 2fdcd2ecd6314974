package journal

import (
	"bytes"
	"encoding/binary"
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

	"holdfast/internal/journal/journaltest"
)

// survivor is a disk whose files outlive a process that did not let go of them.
type survivor struct{ vfs.FS }

func (survivor) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// segmentsOf are the names of a directory's segments, in their order.
func segmentsOf(t testing.TB, fs vfs.FS) (names []string) {
	t.Helper()
	all, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if _, ok := segmentNumber(name); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// smallSegments makes a journal that nothing was appended to yet begin a segment for
// every few rows.
func smallSegments(j *Journal) { j.log.limit = 200 }

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
		if _, ok := segmentNumber(op.Path[strings.LastIndex(op.Path, "/")+1:]); ok && op.Kind == errorfs.OpRemove {
			trimmed <- struct{}{}
		}
		return nil
	}))
	const starts = 12
	for n := range starts {
		j := mustOpen(t, Options{FS: fs})
		putAndWait(j, fmt.Sprintf("k%02d", n), "v")
		for len(segmentsOf(t, fs)) > maxSegments {
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
		{"for its file", errorfs.OpOpen, "/" + spareSegment, false},
		{"for what it holds", errorfs.OpFileWriteAt, "/" + spareSegment, false},
		{"for its name", errorfs.OpRename, "/" + spareSegment, false},
		{"to open it", errorfs.OpOpen, "3" + segmentTail, true},
		{"for the directory's fsync", errorfs.OpFileSync, "data", true},
		{"for the fsync of the one before", errorfs.OpFileSyncData, segmentTail, true},
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
			j := mustOpen(t, Options{FS: fs, Fatal: func(err error) { fatal <- err }})
			smallSegments(j)
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
	names := segmentsOf(t, files.plant(t))
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			without := files.but(name, nil)
			delete(without, name)
			got, err := without.open(t)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) && i > 0 {
				t.Errorf("%d rows of %d, %v, want %s named", len(got), rows, err, name)
			}
		})
	}

	// That the last one was begun says so too, when nothing is in it yet.
	name, last := names[len(names)-2], names[len(names)-1]
	empty := files.but(last, make([]byte, minExtent)).but(name, nil)
	if got, err := empty.open(t); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) {
		t.Errorf("%d rows, %v, want %s named", len(got), err, name)
	}
}

// severalSegments is a log of several segments, none of whose rows are in tables.
func severalSegments(t testing.TB) (files tree, rows int) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: fs})
	smallSegments(j)
	for ; len(segmentsOf(t, fs)) < maxSegments || rows%2 == 0; rows++ { // with one more tables would be written
		putAndWait(j, fmt.Sprintf("k%04d", rows), fmt.Sprint("value ", rows))
	}
	files = readTree(t, fs.CrashClone(vfs.CrashCloneCfg{}))
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

// but is a tree with another content of one file.
func (files tree) but(name string, content []byte) tree {
	other := tree{}
	for n, c := range files {
		other[n] = c
	}
	other[name] = content
	return other
}

// What follows the end of a recycled segment is what clients once sent. Nobody can
// make it look like a log that goes on, nor have a start search in it for long.
func TestNobodyCanPlantFrames(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	last := lastLog(t, files)
	content := bytes.TrimRight(files[last], "\x00")
	for name, planted := range map[string][]byte{
		"the next batch":     disguise(0).appendFrame(nil, uint64(rows+1), uint64(rows), []byte("\x01\x04evil\x01!\x01\x02k!\x01!")),
		"a later batch":      disguise(0).appendFrame([]byte("..."), uint64(rows+2), uint64(rows+1), nil),
		"a much later one":   disguise(0).appendFrame([]byte("..."), 1<<63, 1<<63-1<<31, nil),
		"many long ones":     bytes.Repeat([]byte{0, 0, 8, 0}, 1<<18), // half a MiB each
		"many too long ones": bytes.Repeat([]byte{0xff}, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := files.but(last, withRoom(append(bytes.Clone(content), planted...))).open(t)
			if err != nil || len(got) != rows || !isPrefix(got, rows) {
				t.Errorf("%d rows of %d, %v", len(got), rows, err)
			}
		})
	}
}

// A log without its database is no empty directory.
// A commit is one write and one fsync, and a segment is extended once for many.
func TestACommitIsOneWriteAndOneSync(t *testing.T) {
	t.Parallel()
	var writes, syncs, others atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, segmentTail):
			writes.Add(1)
		case op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, segmentTail):
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
				if op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, segmentTail) && op.Offset >= minExtent {
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
		if _, isLog := segmentNumber(name); !isLog {
			delete(files, name)
		}
	}
	if got, err := files.open(t); !errors.Is(err, ErrDamaged) {
		t.Errorf("%d rows, %v", len(got), err)
	}
}

// oneRow is what Pebble makes of a batch that sets a row.
func oneRow(key, value string) []byte {
	rows := append([]byte{1}, byte(len(key)))
	rows = append(rows, key...)
	rows = binary.AppendUvarint(rows, uint64(len(value)))
	return append(rows, value...)
}

// A recycled segment is read up to where its own frames end, even if an older one begins
// at just that place.
func TestStaleFramesAreNotRead(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: mem})
	smallSegments(j)
	want := map[string]string{}
	for n := 0; len(want) < 4*maxSegments || n == 0; n++ {
		key, value := fmt.Sprintf("k%04d", n), fmt.Sprintf("%020d", n) // all frames are alike
		putAndWait(j, key, value)
		want[key] = value
	}
	if err := errors.Join(j.Flush(), j.trimLog()); err != nil {
		t.Fatal(err)
	}
	stale := func() bool { // in the newest segment, right behind its end
		names := segmentsOf(t, mem)
		content, err := readFile(mem, "data/"+names[len(names)-1])
		if err != nil {
			t.Fatal(err)
		}
		for p, last := 0, uint64(0); ; {
			f, ok := j.log.readFrame(content, p)
			if !ok || f.number < last {
				return ok
			}
			last, p = f.number, f.end
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
			if want := j.log.last + 2*uint64(n); again.base != want { // each start before made one, and its stop
				t.Errorf("start %d goes on from batch %d, want %d", n, again.base, want)
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

// A segment from before a crash may hold, behind its torn end, frames that nobody was told
// of. Their numbers are given out again, so it is not used again.
func TestWhatWasBehindATornEndNeverComesBack(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	mustClose(t, mustOpen(t, Options{FS: mem}))
	files := readTree(t, mem)
	name := lastLog(t, files)

	// Given a log of ten batches without fsync, of which a crash took the second
	j := mustOpen(t, Options{FS: files.plant(t)})
	d := j.log.disguise
	mustClose(t, j)
	var log []byte
	var size int
	for n := uint64(1); n <= 10; n++ {
		log = d.appendFrame(log, n, 0, oneRow("klost", fmt.Sprintf("%05d", n)))
		size = len(log) / int(n)
	}
	clear(log[size : 2*size])
	mem = vfs.NewCrashableMem()
	planted := files.but(name, withRoom(log)).plant(t)
	if _, err := vfs.Clone(planted, mem, "data", "data", vfs.CloneSync); err != nil {
		t.Fatal(err)
	}

	// when the next run gives out the same numbers, needs that segment no more, and begins
	// another, whose first frame ends where the sixth did
	j = mustOpen(t, Options{FS: mem})
	want := content(t, j)
	if got := fmt.Sprint(want); got != "map[klost:00001]" {
		t.Fatalf("after the crash: %s", got)
	}
	for _, key := range []string{"k2", "k3", "k4"} {
		putAndWait(j, key, "v")
		want[key] = "v"
	}
	if err := errors.Join(j.Flush(), j.trimLog()); err != nil {
		t.Fatal(err)
	}
	j.log.limit = 1
	value := strings.Repeat("v", 5*size-frameHeader-len(oneRow("k5", strings.Repeat("v", 200)))+200)
	putAndWait(j, "k5", value)
	want["k5"] = value
	if got := segmentsOf(t, mem); slices.Contains(got, name) || got[len(got)-1] != (segment{first: 5}).name() {
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

// Whichever bit of the log is flipped: either it is said, or all is there.
func TestEveryBitOfALog(t *testing.T) {
	t.Parallel()
	const tables = batchesEach / 2 // batches that are in tables already
	fs, segments, batches := shortLog(t)
	for _, applied := range []uint64{0, tables} {
		for s, b := range segments {
			for bit := range len(b) * 8 {
				b[bit/8] ^= 1 << (bit % 8)
				got, damage := recoverShort(t, fs, segments, applied)
				b[bit/8] ^= 1 << (bit % 8)
				if whole := slices.Equal(got, batches[applied:]); whole == (damage != nil) {
					t.Errorf("bit %d of byte %d of segment %d, %d in tables: %q, damage %v", bit%8, bit/8, s, applied, got, damage)
				}
			}
		}
	}
}

// Wherever the end was torn off: what is before it is there, and nobody calls it damage.
func TestEveryTornEnd(t *testing.T) {
	t.Parallel()
	fs, segments, batches := shortLog(t)
	before, last := segments[:len(segments)-1], segments[len(segments)-1]
	whole := len(batches) - batchesEach // before the cut
	end := 0
	for cut := range len(bytes.TrimRight(last, "\x00")) {
		if f, ok := shortDisguise.readFrame(last[:cut], end); ok {
			end = f.end
			whole++
		}
		for name, behind := range map[string][]byte{
			"cut off":     nil,
			"zeros":       make([]byte, 500),
			"old content": append(bytes.Repeat([]byte("\x00\xffold"), 20), segments[0]...),
		} {
			torn := append(slices.Clone(before), append(bytes.Clone(last[:cut]), behind...))
			if got, damage := recoverShort(t, fs, torn, 0); damage != nil || !slices.Equal(got, batches[:whole]) {
				t.Errorf("%d bytes, then %s: %q, want %d batches, damage %v", cut, name, got, whole, damage)
			}
		}
	}
}

const (
	shortDisguise = disguise(0x5be0cd19137e2179)
	batchesEach   = 4 // in each segment of shortLog
)

// shortLog is a log in three segments, with room ahead, and the rows of its batches.
func shortLog(t testing.TB) (fs *vfs.MemFS, segments [][]byte, batches []string) {
	t.Helper()
	fs = vfs.NewMem()
	if err := fs.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	segments = make([][]byte, 3)
	for s := range segments {
		for range batchesEach {
			n := uint64(len(batches) + 1)
			rows := oneRow(fmt.Sprint("k", n), "vvvvv")
			segments[s] = shortDisguise.appendFrame(segments[s], n, n-1, rows)
			batches = append(batches, string(rows))
		}
		segments[s] = append(segments[s], make([]byte, 20)...)
	}
	return fs, segments, batches
}

// recoverShort reads a log, and gives the rows that are not in tables.
func recoverShort(t testing.TB, fs *vfs.MemFS, segments [][]byte, applied uint64) (rows []string, damage []Damage) {
	t.Helper()
	for i, content := range segments {
		name := "data/" + segment{first: uint64(i*batchesEach + 1)}.name()
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(bytes.Clone(content)) // MemFS may overwrite what it is given
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := recoverLog(fs, "data", logState{disguise: shortDisguise, applied: applied})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.batches {
		rows = append(rows, string(f.rows))
	}
	return rows, r.damage
}

// A disk that does not give back what is on it is not an empty log: the start says so,
// and leaves everything for another try.
func TestLogThatCannotBeRead(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	for _, name := range segmentsOf(t, files.plant(t)) {
		for _, kind := range []errorfs.OpKind{errorfs.OpOpen, errorfs.OpFileRead} {
			fs := files.plant(t)
			broken := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == kind && strings.HasSuffix(op.Path, name) {
					return errFault
				}
				return nil
			}))
			if _, err := Open(Options{Dir: "data", FS: broken, Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, errFault) || !strings.Contains(err.Error(), name) {
				t.Errorf("operation %d on %s: %v", kind, name, err)
			}
			if got, err := readTree(t, fs).open(t); err != nil || len(got) != rows || !isPrefix(got, rows) {
				t.Errorf("operation %d on %s, and then: %d rows of %d, %v", kind, name, len(got), rows, err)
			}
		}
	}
}

// Whatever segments hold: what is read from them are batches without a gap, made of their
// own bytes.
func FuzzRecoverLog(f *testing.F) {
	_, segments, _ := shortLog(f)
	for _, b := range segments {
		f.Add(b, b[:len(b)/2], uint8(0))
		f.Add(b[:70], segments[0], uint8(5))
	}
	f.Add(bytes.Repeat([]byte{0, 0, 0x40, 0}, 100), []byte{}, uint8(1))
	f.Fuzz(func(t *testing.T, first, second []byte, applied uint8) {
		fs, _, _ := shortLog(t)
		// A fuzzer that had to find checksums would find nothing else.
		first, second = bytes.Clone(first), bytes.Clone(second)
		sealFrames(first, 1)
		sealFrames(second, batchesEach+1)
		recoverShort(t, fs, [][]byte{first, second}, uint64(applied))
		r, err := recoverLog(fs, "data", logState{disguise: shortDisguise, applied: uint64(applied)})
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for i, f := range r.batches {
			if f.number != uint64(applied)+1+uint64(i) {
				t.Fatalf("batch %d is at place %d, with %d in tables", f.number, i, applied)
			}
			size += len(f.rows) + frameHeader
		}
		if size > len(first)+len(second) {
			t.Fatalf("%d bytes were read from %d", size, len(first)+len(second))
		}
		if len(r.damage) == 0 && r.last != uint64(applied)+uint64(len(r.batches)) {
			t.Fatalf("it goes on from batch %d, with %d in tables and %d read", r.last, applied, len(r.batches))
		}
	})
}

// sealFrames gives what is as long as frames are the numbers from next on, and the right
// checksums, as far as their lengths go.
func sealFrames(b []byte, next uint64) {
	for len(b) >= frameHeader {
		length := int(binary.LittleEndian.Uint32(b[8:])) % 512
		if length > len(b)-frameHeader || b[0] == 0xff { // that is how it makes a damaged one
			return
		}
		binary.LittleEndian.PutUint32(b[8:], uint32(length))
		binary.LittleEndian.PutUint64(b[12:], next^uint64(shortDisguise))
		binary.LittleEndian.PutUint64(b, sums(b[8:frameHeader+length]))
		b = b[frameHeader+length:]
		next++
	}
}
