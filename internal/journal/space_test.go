package journal

import (
	"bytes"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

func TestLow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		reserve     int64 // the setting
		free, total uint64
		want        bool
	}{
		{"a large disk", 0, 257 * mib, 100 * gib, false},
		{"a large disk, nearly full", 0, 255 * mib, 100 * gib, true},
		{"a small disk", 0, 51 * mib, 1000 * mib, false},
		{"a small disk, nearly full", 0, 49 * mib, 1000 * mib, true},
		{"a setting", 2 * gib, 3 * gib, 100 * gib, false},
		{"less than a setting", 2 * gib, 1 * gib, 100 * gib, true},
	} {
		d := journaltest.NewDisk(vfs.NewMem())
		d.SetSpace(c.free, c.total)
		j := mustOpen(t, Options{FS: d, Reserve: c.reserve})
		if j.Low() != c.want {
			t.Errorf("%s: low is %v", c.name, j.Low())
		}
		if scarce := c.reserve > 0 && c.want; j.Scarce() != scarce {
			t.Errorf("%s: scarce is %v", c.name, j.Scarce())
		}
		if free, _, known := j.Free(); free != int64(c.free) || !known {
			t.Errorf("%s: free %d, %v", c.name, free, known)
		}
		putAndWait(j, "k", "the journal itself goes on")
		mustClose(t, j)
	}
}

// It is said once when it begins and once when it ends, which is a little later:
// files come and go all the time.
func TestLowIsSaidOnceAndEnds(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := journaltest.NewDisk(vfs.NewMem())
	j := mustOpen(t, Options{FS: d, Reserve: 80 * mib, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for i, step := range []struct {
		free uint64
		low  bool
	}{{100, false}, {79, true}, {70, true}, {81, true}, {89, true}, {90, false}, {81, false}, {79, true}} {
		d.SetSpace(step.free*mib, gib)
		j.CheckSpace()
		if j.Low() != step.low {
			t.Errorf("step %d, %d MiB free: low is %v", i, step.free, j.Low())
		}
	}
	mustClose(t, j)
	if full, room := strings.Count(log.String(), "nearly full"), strings.Count(log.String(), "room again"); full != 2 || room != 1 {
		t.Errorf("said %d times that it is full, %d times that there is room:\n%s", full, room, log.String())
	}
}

func TestSpaceOfAFileSystemThatDoesNotTell(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem(), Reserve: gib})
	defer mustClose(t, j)
	if _, _, known := j.Free(); known || j.Low() {
		t.Errorf("free space known: %v, low: %v", known, j.Low())
	}
}

// A reserve that the whole disk does not have is refused with both figures, whether there is data or
// not; what only reads has no reserve.
func TestReserveLargerThanTheDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reserve int64
		refused bool
	}{{100*gib - 1, false}, {100 * gib, true}, {200 * gib, true}} {
		d := journaltest.NewDisk(vfs.NewMem())
		d.SetSpace(99*gib, 100*gib)
		_, err := openOn(d, c.reserve)
		if (err != nil) != c.refused || c.refused && (!strings.Contains(err.Error(), "--disk-reserve is") || !strings.Contains(err.Error(), "has 100.0 GiB")) {
			t.Errorf("%d bytes: %v", c.reserve, err)
		}
	}
	d := journaltest.NewDisk(vfs.NewMem())
	d.SetSpace(99*gib, 100*gib)
	mustClose(t, mustOpen(t, Options{FS: d}))
	if _, err := openOn(d, 200*gib); err == nil {
		t.Error("with data on the disk, the reserve is accepted")
	}
	mustClose(t, mustOpen(t, Options{FS: d, Reserve: 200 * gib, ReadOnly: true}))
}

// openOn opens a journal and closes it.
func openOn(fs vfs.FS, reserve int64) (*Journal, error) {
	j, err := Open(Options{Dir: "data", FS: fs, Reserve: reserve, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = j.Close()
	}
	return j, err
}

// A new data directory on a disk without room is refused at once, and with a sentence on what to do; a
// directory with data is opened.
func TestFirstStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		free    uint64
		refused bool
	}{{0, true}, {mib - 1, true}, {mib, false}} {
		d := journaltest.NewDisk(vfs.NewMem())
		d.SetSpace(c.free, gib)
		_, err := openOn(d, 0)
		if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "free, and a new data directory takes 1.0 MiB at least: make room") {
			t.Errorf("%d bytes free: %v", c.free, err)
		}
		d.SetSpace(gib/2, gib)
		if _, err := openOn(d, 0); err != nil {
			t.Errorf("with room again: %v", err)
		}
		d.SetSpace(0, gib)
		if _, err := openOn(d, 0); err != nil {
			t.Errorf("with data, and without room: %v", err)
		}
	}
}

// Room is kept on the disk, and let go of when there is none for a start or for
// a table.
func TestBallast(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	fs := vfs.NewMem()
	d := journaltest.NewDisk(fs)
	there := func() bool {
		info, err := fs.Stat("data/" + datadir.BallastName)
		return err == nil && info.Size() > 0
	}
	o := Options{FS: d, Reserve: 100 * mib, Logger: slog.New(slog.NewTextHandler(&log, nil))}

	d.SetSpace(127*mib, gib) // not enough for both
	j := mustOpen(t, o)
	j.space.KeepBallast()
	if there() {
		t.Error("ballast was made although the disk is nearly full")
	}
	d.SetSpace(200*mib, gib)
	j.CheckSpace()
	j.space.KeepBallast()
	if !there() {
		t.Error("no ballast was made")
	}
	mustClose(t, j)

	// A start on a full disk uses it, and it is owed back.
	d.SetSpace(5*mib, gib)
	j = mustOpen(t, o)
	if there() {
		t.Error("a start on a full disk has left the ballast")
	}
	d.SetSpace(120*mib, gib)
	j.CheckSpace()
	if !j.Low() {
		t.Error("low has ended although the room is the ballast's")
	}
	d.SetSpace(130*mib, gib)
	j.CheckSpace()
	if j.Low() {
		t.Error("low has not ended")
	}
	mustClose(t, j)
	if !strings.Contains(log.String(), "starting in the room that was kept") {
		t.Errorf("it said\n%s", log.String())
	}
}

// saysWhatIsNotThere is a file system on which removing what is not there fails, as on a disk:
// errorfs says that it was removed.
type saysWhatIsNotThere struct {
	files vfs.FS
	vfs.FS
}

func (f saysWhatIsNotThere) Remove(name string) error { return f.files.Remove(name) }

// What a running server has released of the room, other programs may have taken. A start goes on in
// room that only starts take; it is kept again, too.
func TestStartWhenTheBallastIsGone(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	there := func(name string) bool { _, err := fs.Stat("data/" + name); return err == nil }
	// While the room is kept, the manifest finds none.
	d := journaltest.NewDisk(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "MANIFEST") && there(datadir.StartBallastName) && !there(datadir.BallastName) {
			return syscall.ENOSPC
		}
		return nil
	})))
	o := Options{FS: saysWhatIsNotThere{fs, d}, Reserve: 100 * mib}
	open := func(free uint64) *Journal {
		d.SetSpace(free*mib, gib)
		j := mustOpen(t, o)
		j.full <- struct{}{}
		j.full <- struct{}{} // taken once runSpace has kept what there is room for
		return j
	}
	j := open(120) // beyond the reserve, for the smaller one only
	if !there(datadir.StartBallastName) || there(datadir.BallastName) {
		t.Error("the room for a start is not kept alone")
	}
	mustClose(t, j)
	j = open(1)
	if there(datadir.StartBallastName) {
		t.Error("a start on a full disk has not taken the room")
	}
	mustClose(t, j)
	j = open(200)
	if !there(datadir.StartBallastName) || !there(datadir.BallastName) {
		t.Error("the room is not kept again")
	}
	j.space.ReleaseBallast("for a running server")
	mustClose(t, j)
	mustClose(t, open(1))
	if there(datadir.StartBallastName) {
		t.Error("a start on a full disk has not taken the room that was left")
	}
}

// Room that a running server had to go on in is kept again when the disk has as much,
// although writes were never refused; and what was wrong with tables once is forgotten.
func TestBallastComesBack(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	tables := newTablesFindNoRoom(mem)
	d := journaltest.NewDisk(tables)
	d.SetSpace(200*mib, gib)
	j := mustOpen(t, Options{FS: d, Reserve: 100 * mib})
	defer mustClose(t, j)
	putAndWait(j, "k", "v")
	j.full <- struct{}{}
	j.full <- struct{}{} // taken once runSpace has kept the ballast
	later := j.uptime.Now() + time.Hour

	// Tables find no room, and Pebble takes no rows.
	tables.armed.Store(true)
	flushed := make(chan error)
	go func() { flushed <- j.Flush() }()
	<-tables.tried
	<-tables.tried // so the first try has been reported
	j.syncing.Begin(j.uptime)
	if !j.stuckWithoutRoom(later) {
		t.Error("nothing is stuck")
	}
	j.pollSpace(later)
	if _, err := mem.Stat("data/" + datadir.BallastName); err == nil {
		t.Error("the ballast is kept while tables find no room")
	}

	// They do.
	tables.armed.Store(false)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	if j.stuckWithoutRoom(later) {
		t.Error("an error of the past makes what is slow look stuck")
	}
	j.pollSpace(later)
	if _, err := mem.Stat("data/" + datadir.BallastName); err != nil {
		t.Errorf("the ballast has not come back: %v", err)
	}
	j.syncing.End()
}

// The manifest of the tables finds no room, and the journal goes on in the room that was kept.
func TestManifestInTheBallast(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	ballast := func() bool { _, err := mem.Stat("data/" + datadir.BallastName); return err == nil }
	d := journaltest.NewDisk(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "MANIFEST") && ballast() {
			return syscall.ENOSPC
		}
		return nil
	})))
	d.SetSpace(200*mib, gib)
	j := mustOpen(t, Options{FS: d, Reserve: 100 * mib, Fatal: func(err error) { t.Error(err) }})
	j.full <- struct{}{}
	j.full <- struct{}{} // taken once runSpace has kept the ballast
	if !ballast() {
		t.Fatal("there is no ballast")
	}
	d.SetSpace(5*mib, gib) // so it is not made again
	putAndWait(j, "k", "v")
	if err := j.Flush(); err != nil {
		t.Fatal(err)
	}
	if ballast() {
		t.Error("the manifest was written, though the ballast is there")
	}
	mustClose(t, j)
}
