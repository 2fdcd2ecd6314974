package datadir

import (
	"errors"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Ballast
//
// A database on a full disk cannot be opened: recovery writes a manifest and a log before
// it does anything else. Then the remedy, which is to delete data through the server, is
// out of reach. So the data directory has a file of zeros, which takes up the room that a
// start needs. It is removed by a start that finds no room, and also when a running server
// can write or merge no tables: then its room lets the server go on. It is made again when
// the disk has room for it beyond the reserve.

const ballastBytes = 16 << 20

// FreeForStart removes the ballast if the disk has less room than a start needs.
func (s *Space) FreeForStart() {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err == nil && usage.AvailBytes < ballastBytes {
		s.ReleaseBallast("the disk is full: starting in the room that was kept for it")
	}
}

// ReleaseBallast removes the ballast and logs why; false: it was not there.
func (s *Space) ReleaseBallast(why string) bool {
	name := s.fs.PathJoin(s.dir, BallastName)
	switch err := s.fs.Remove(name); {
	case err == nil:
		s.borrowed.Store(true)
		s.logger.Warn(why, "dir", s.dir, "released_bytes", ballastBytes)
		return true
	case !errors.Is(err, fs.ErrNotExist):
		s.logger.Warn("the room that was kept on the disk cannot be released", "file", name, "error", err)
	}
	return false
}

// KeepBallast makes the ballast if it is not there and the disk has room for it
// beyond the reserve. Without it everything works but a start on a full disk.
func (s *Space) KeepBallast() {
	s.looking.Lock()
	defer s.looking.Unlock()
	free, reserve, known := s.Free()
	if !known || free < enough(reserve)+ballastBytes {
		return
	}
	s.borrowed.Store(false)
	name := s.fs.PathJoin(s.dir, BallastName)
	if info, err := s.fs.Stat(name); err == nil && info.Size() == ballastBytes {
		return
	}
	if err := writeBallast(s.fs, name); err != nil {
		s.logger.Warn("no room could be kept for a start on a full disk", "file", name, "error", err)
	}
}

// OwesBallast says whether the ballast was released and not made again.
func (s *Space) OwesBallast() bool { return s.borrowed.Load() }

// owed is the room that the ballast will take up again.
func (s *Space) owed() int64 {
	if s.OwesBallast() {
		return ballastBytes
	}
	return 0
}

// writeBallast writes zeros, as a file of holes would take up no room. It is not synced:
// a power cut may take it.
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
