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
//
// Other programs can take the room that a running server has released. So there is a second,
// smaller file, which only a start removes: it finds room for its manifest also then.

// ballast is one of these files.
type ballast struct {
	name  string
	bytes int64
}

var (
	ofServer = ballast{BallastName, 16 << 20}
	ofStart  = ballast{StartBallastName, 4 << 20}
)

// FreeForStart removes a ballast if the disk has less room than a start needs: that of a running
// server first, and the one that only starts remove if that was not there.
func (s *Space) FreeForStart() {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		return
	}
	const why = "the disk is full: starting in the room that was kept for it"
	if usage.AvailBytes >= uint64(ofServer.bytes) || s.release(ofServer, why) {
		return
	}
	if usage.AvailBytes < uint64(ofStart.bytes) {
		s.release(ofStart, why)
	}
}

// ReleaseBallast removes the ballast of a running server and logs why; false: it was not there.
func (s *Space) ReleaseBallast(why string) bool { return s.release(ofServer, why) }

func (s *Space) release(b ballast, why string) bool {
	name, size := s.fs.PathJoin(s.dir, b.name), int64(0)
	if info, err := s.fs.Stat(name); err == nil {
		size = info.Size() // less if the server was killed while it wrote it
	}
	switch err := s.fs.Remove(name); {
	case err == nil:
		s.borrowed.Add(b.bytes)
		s.logger.Warn(why, "dir", s.dir, "released_bytes", size)
		return true
	case !errors.Is(err, fs.ErrNotExist):
		s.logger.Warn("the room that was kept on the disk cannot be released", "file", name, "error", err)
	}
	return false
}

// KeepBallast makes each ballast that is not there if the disk has room for it
// beyond the reserve. Without them everything works but a start on a full disk.
func (s *Space) KeepBallast() {
	s.looking.Lock()
	defer s.looking.Unlock()
	free, reserve, known := s.Free()
	if !known {
		return
	}
	for _, b := range []ballast{ofStart, ofServer} { // the smaller one may find room alone
		if free < enough(reserve)+b.bytes {
			return
		}
		name := s.fs.PathJoin(s.dir, b.name)
		if info, err := s.fs.Stat(name); err == nil && info.Size() == b.bytes {
			continue
		}
		if err := b.write(s.fs, name); err != nil {
			s.logger.Warn("no room could be kept for a start on a full disk", "file", name, "error", err)
			return
		}
		free -= b.bytes
		s.borrowed.Store(max(0, s.borrowed.Load()-b.bytes))
	}
	s.borrowed.Store(0)
}

// OwesBallast says whether a ballast was released and not made again.
func (s *Space) OwesBallast() bool { return s.owed() > 0 }

// owed is the room that the ballasts will take up again.
func (s *Space) owed() int64 { return s.borrowed.Load() }

// write writes zeros, as a file of holes would take up no room. It is not synced:
// a power cut may take it.
func (b ballast) write(fsys vfs.FS, name string) error {
	f, err := fsys.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for written := int64(0); written < b.bytes && err == nil; written += int64(len(zeros)) {
		_, err = f.Write(zeros)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fsys.Remove(name))
	}
	return nil
}
