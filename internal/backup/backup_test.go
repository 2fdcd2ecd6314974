package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

// backedUp is a file system with a journal in "data" and a backup of it in "copy", and
// the rows that both have.
func backedUp(t testing.TB, fsys vfs.FS, copies bool) (rows map[string]string) {
	t.Helper()
	j := mustOpen(t, journal.Options{FS: fsys})
	for n := range 50 {
		putAndWait(j, fmt.Sprintf("k%02d", n), "value")
	}
	if _, err := Backup(j, "copy", copies, nil); err != nil {
		t.Fatal(err)
	}
	rows = rowsIn(t, j)
	mustClose(t, j)
	return rows
}

// restored restores the backup in "copy", as cmd does, and gives its rows.
func restored(t testing.TB, fsys vfs.FS, dest string) (map[string]string, error) {
	t.Helper()
	_, err := Restore(fsys, "copy", dest, nil, func(dir string) error { return checkSound(t, fsys, dir) })
	if err != nil {
		return nil, err
	}
	j := mustOpen(t, journal.Options{FS: fsys, Dir: dest})
	defer mustClose(t, j)
	return rowsIn(t, j), nil
}

func checkSound(t testing.TB, fsys vfs.FS, dir string) error {
	t.Helper()
	j, damage, err := Check(journal.Options{Dir: dir, FS: fsys, Logger: slog.New(slog.DiscardHandler)}, nil)
	if err != nil {
		return err
	}
	if j != nil {
		mustClose(t, j)
	}
	if len(damage) > 0 {
		err = fmt.Errorf("%s is damaged: %v", dir, damage)
	}
	return err
}

// A backup that is not as it was written, in whichever file and however, is not
// restored, and a check says so; least of all when what is left of it could be opened.
func TestABackupThatIsNotWhole(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	rows := backedUp(t, mem, false)
	if err := checkSound(t, mem, "copy"); err != nil {
		t.Fatal(err)
	}
	if got, err := restored(t, mem, "restored"); err != nil || !sameRows(got, rows) {
		t.Fatalf("the whole one: %d rows of %d, %v", len(got), len(rows), err)
	}
	names, err := mem.List("copy")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !datadir.IsData(name) {
			continue
		}
		was, err := journaltest.ReadFile(mem, "copy/"+name)
		if err != nil {
			t.Fatal(err)
		}
		was = bytes.Clone(was)
		for what, content := range map[string][]byte{
			"gone":        nil,
			"cut to half": was[:len(was)/2],
			"emptied":     {},
			"longer":      append(bytes.Clone(was), 0),
			"changed":     append(bytes.Clone(was[:len(was)/2]), flipped(was[len(was)/2:])...),
		} {
			if bytes.Equal(was, content) && content != nil {
				continue // there was nothing in it
			}
			broken := vfs.NewMem()
			if _, err := vfs.Clone(mem, broken, "copy", "copy"); err != nil {
				t.Fatal(err)
			}
			err := broken.Remove("copy/" + name)
			if content != nil && err == nil {
				err = writeFile(broken, "copy/"+name, content)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := restored(t, broken, "restored"); err == nil {
				t.Errorf("%s is %s: %d rows of %d are restored", name, what, len(got), len(rows))
			}
			if left, _ := broken.List("restored"); len(left) > 0 {
				t.Errorf("%s is %s: what is left is %q", name, what, left)
			}
			if err := checkSound(t, broken, "copy"); err == nil && name != datadir.BackupList {
				t.Errorf("%s is %s: the check says nothing", name, what)
			}
		}
	}

	// All that a backup lacks that was cut off here is that its empty directory goes.
	if err := mem.MkdirAll("copy/"+datadir.Incomplete, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkSound(t, mem, "copy"); err != nil {
		t.Errorf("an empty directory %s is left: %v", datadir.Incomplete, err)
	}

	// What was added could be what is read instead, such as a marker.
	if err := writeFile(mem, "copy/marker.manifest.000999.MANIFEST-000001", nil); err != nil {
		t.Fatal(err)
	}
	if err := checkSound(t, mem, "copy"); err == nil {
		t.Error("a file more: the check says nothing")
	}
	if got, err := restored(t, mem, "again"); err != nil || !sameRows(got, rows) {
		t.Errorf("a file more: %d rows of %d, %v", len(got), len(rows), err)
	}
}

func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) > 0 {
		b[0] ^= 1
	}
	return b
}

func writeFile(fsys vfs.FS, path string, content []byte) error {
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Clone(content)) // MemFS may overwrite what it is given
	return errors.Join(err, f.Close())
}

// Cut off at whichever step, a backup is whole or said to be none, no server starts on it,
// and it can be repeated into the same directory. So can a restore.
func TestACopyThatIsCutOff(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 8))
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	var left []*vfs.MemFS
	fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if changesDisk(op) && (strings.HasPrefix(op.Path, "copy") || strings.HasPrefix(op.Path, "restored")) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: len(left) % 2 * 100, RNG: rng}))
		}
		return nil
	}))
	rows := backedUp(t, fsys, false)
	whole := len(left)
	if got, err := restored(t, fsys, "restored"); err != nil || !sameRows(got, rows) {
		t.Fatalf("%d rows of %d, %v", len(got), len(rows), err)
	}
	for i, crashed := range left {
		if i%journaltest.Stride() != 0 {
			continue
		}
		if names, _ := crashed.List("copy"); len(names) > 0 {
			if j, err := journal.Open(journal.Options{FS: crashed, Dir: "copy", Logger: slog.New(slog.DiscardHandler)}); err == nil {
				mustClose(t, j)
				t.Fatalf("cut off at step %d: a server starts on the backup", i)
			}
		}
		if _, err := Restore(crashed, "copy", "elsewhere", nil, nil); i > whole && err != nil {
			t.Errorf("cut off at step %d: the backup is whole, and %v", i, err)
		} else if err == nil {
			if err := checkSound(t, crashed, "copy"); err != nil {
				t.Errorf("cut off at step %d: the backup can be restored, and the check says: %v", i, err)
			}
			j := mustOpen(t, journal.Options{FS: crashed, Dir: "elsewhere"})
			if got := rowsIn(t, j); !sameRows(got, rows) {
				t.Errorf("cut off at step %d: %d rows of %d", i, len(got), len(rows))
			}
			mustClose(t, j)
			if got, err := restored(t, crashed, "restored"); err == nil && !sameRows(got, rows) || err != nil && !strings.Contains(err.Error(), "not empty") {
				t.Errorf("cut off at step %d, and restored again: %d rows of %d, %v", i, len(got), len(rows), err)
			}
			continue
		}
		j := mustOpen(t, journal.Options{FS: crashed})
		_, err := Backup(j, "copy", false, nil)
		mustClose(t, j)
		if got, restoreErr := restored(t, crashed, "restored"); err != nil || restoreErr != nil || !sameRows(got, rows) {
			t.Errorf("cut off at step %d, and repeated: %d rows of %d, %v, %v", i, len(got), len(rows), err, restoreErr)
		}
	}
	t.Logf("%d steps, %d of them of the backup", len(left), whole)
}

// Of two backups at once into the same directory, as when one was asked for again because
// its command was interrupted, none is done that can't be restored.
func TestTwoBackupsAtOnce(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem()
	j := mustOpen(t, journal.Options{FS: fsys})
	for n := range 50 {
		putAndWait(j, fmt.Sprintf("k%02d", n), "value")
	}
	rows := rowsIn(t, j)
	var again error
	if _, err := Backup(j, "copy", false, func(Progress) {
		if again == nil {
			_, again = Backup(j, "copy", false, nil)
		}
	}); err != nil {
		t.Errorf("the first: %v", err)
	}
	if !errors.Is(again, ErrUnderWay) {
		t.Errorf("the second, meanwhile: %v, want ErrUnderWay", again)
	}
	if _, err := Backup(j, "another", false, nil); err != nil {
		t.Errorf("one more, afterwards: %v", err)
	}
	mustClose(t, j)
	if got, err := restored(t, fsys, "restored"); err != nil || !sameRows(got, rows) {
		t.Errorf("%d rows of %d, %v", len(got), len(rows), err)
	}
}

// What is in the way is left alone, also beside what a backup left that was cut off.
func TestABackupOverwritesNothing(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	j := mustOpen(t, journal.Options{FS: mem})
	defer mustClose(t, j)
	if err := errors.Join(mem.MkdirAll("copy/"+datadir.Incomplete, 0o700), writeFile(mem, "copy/incomplete/notes", nil), writeFile(mem, "copy/thesis", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := Backup(j, "copy", false, nil); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Error(err)
	}
	for _, name := range []string{"copy/thesis", "copy/incomplete/notes"} {
		if _, err := mem.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

// While a copy is made, no other is made in the same directory; it is whole in the end.
func TestOneCopyAtATime(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"restore", "salvage"} {
		mem := vfs.NewMem()
		rows := backedUp(t, mem, false)
		intrude := func(dir string) error {
			_, err := Restore(mem, "copy", "new", nil, nil)
			if !errors.Is(err, datadir.ErrLocked) {
				t.Errorf("a restore during a %s: %v", first, err)
			}
			_, err = Salvage(journal.Options{Dir: "data", FS: mem}, "new", nil, func(*journal.Journal) error { return nil }, func(string) error { return nil })
			if !errors.Is(err, datadir.ErrLocked) {
				t.Errorf("a salvage during a %s: %v", first, err)
			}
			return checkSound(t, mem, dir)
		}
		var err error
		if first == "restore" {
			_, err = Restore(mem, "copy", "new", nil, intrude)
		} else {
			_, err = Salvage(journal.Options{Dir: "data", FS: mem}, "new", nil, func(*journal.Journal) error { return nil }, intrude)
		}
		if err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if _, err := mem.Stat("new/LOCK"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the lock is still there: %v", first, err)
		}
		j := mustOpen(t, journal.Options{FS: mem, Dir: "new"})
		if got := rowsIn(t, j); !sameRows(got, rows) {
			t.Errorf("%s: %d rows of %d", first, len(got), len(rows))
		}
		mustClose(t, j)
	}
}

// A file system that can't link, and one that could but shall not.
func TestBackupWithoutLinks(t *testing.T) {
	t.Parallel()
	for _, copies := range []bool{false, true} {
		links := 0
		fsys := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpLink {
				links++
				return fs.ErrPermission // what FAT says
			}
			return nil
		}))
		rows := backedUp(t, fsys, copies)
		if got, err := restored(t, fsys, "restored"); err != nil || !sameRows(got, rows) {
			t.Errorf("copies %v: %d rows of %d, %v", copies, len(got), len(rows), err)
		}
		if copies != (links == 0) {
			t.Errorf("copies %v: %d links", copies, links)
		}
	}
}
