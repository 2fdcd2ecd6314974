package journal

import (
	"errors"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Ballast
//
// A database on a full disk cannot be opened: recovery writes a manifest and a
// log before it does anything else. Then the remedy, which is to delete data
// through the server, is out of reach. So the data directory has a file of
// nothing, which takes up the room that a start needs. It is removed at a start
// that finds no room, and also when a running server can take no rows or
// merge any: then it is what lets it go on until there is room. It is made again
// when there is plenty.

const (
	ballastName  = "ballast"
	ballastBytes = 16 << 20

	roomForTables = "tables found no room on the disk: going on in the room that was kept"
)

// makeStartRoom removes the ballast if the disk has less room than a start needs.
func (j *Journal) makeStartRoom() {
	usage, err := j.o.FS.GetDiskUsage(j.o.Dir)
	if err == nil && usage.AvailBytes < ballastBytes {
		j.releaseBallast("the disk is full: starting in the room that was kept for it")
	}
}

// releaseBallast removes the ballast and says why; false: it was not there.
func (j *Journal) releaseBallast(why string) bool {
	name := j.o.FS.PathJoin(j.o.Dir, ballastName)
	switch err := j.o.FS.Remove(name); {
	case err == nil:
		j.space.borrowed.Store(true)
		j.o.Logger.Warn(why, "dir", j.o.Dir, "released_bytes", ballastBytes)
		return true
	case !errors.Is(err, fs.ErrNotExist):
		j.o.Logger.Warn("the room that was kept on the disk cannot be released", "file", name, "error", err)
	}
	return false
}

// keepBallast makes the ballast if it is not there and the disk has room for it
// beyond the reserve. Without it everything works but a start on a full disk.
func (j *Journal) keepBallast() {
	j.space.looking.Lock()
	defer j.space.looking.Unlock()
	free, reserve, known := j.Free()
	if !known || free < enough(reserve)+ballastBytes {
		return
	}
	j.space.borrowed.Store(false)
	name := j.o.FS.PathJoin(j.o.Dir, ballastName)
	if info, err := j.o.FS.Stat(name); err == nil && info.Size() == ballastBytes {
		return
	}
	if err := writeBallast(j.o.FS, name); err != nil {
		j.o.Logger.Warn("no room could be kept for a start on a full disk", "file", name, "error", err)
	}
}

// writeBallast writes zeros, as a file of holes would take up no room. When they
// reach the disk is of no matter.
func writeBallast(fsys vfs.FS, name string) error {
	f, err := fsys.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for written := 0; written < ballastBytes && err == nil; written += len(zeros) {
		_, err = f.Write(zeros)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fsys.Remove(name))
	}
	return nil
}
