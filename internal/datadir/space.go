package datadir

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// Space on the disk
//
// A database that runs into a full disk has no good way left: Pebble retries its flushes
// forever, and commits hang. So the free space is looked at often, and Low is true while
// there is less than a reserve. Callers that can refuse work (writes of new data) ask for
// Low; what frees space or ends what was begun (deletions, acknowledgements, expiry) goes
// on from the reserve. The reserve is several times what is in memory and still has to be
// written as tables.
//
// The space is polled, because by the time that a write fails it is too late. The
// interval is short against the time that a disk takes to write a reserve.

const (
	// defaultReserve is the reserve on a large disk; on one of less than
	// 5 GiB it is a share of its size.
	defaultReserve = 256 << 20
	reserveShare   = 20 // a twentieth is 5 %
)

// Space is the room on the disk that a directory is on. It is safe for concurrent use.
type Space struct {
	fs      vfs.FS
	dir     string
	setting int64 // bytes of the reserve; 0: the default
	logger  *slog.Logger

	looking lockrank.Mutex[lockrank.Space] // one look at a time, so that each change is logged once, and one ballast
	free    atomic.Int64                   // bytes, as of the last look; -1: never seen
	reserve atomic.Int64                   // bytes
	low     atomic.Bool
	scarce  atomic.Bool

	borrowed atomic.Int64 // bytes of ballast that were released, whose room is to be given back
}

// NewSpace returns the space of a directory, of which so many bytes are to stay free. With
// 0 it is the smaller of 256 MiB and 5 % of the disk.
func NewSpace(fs vfs.FS, dir string, reserve int64, logger *slog.Logger) *Space {
	s := &Space{fs: fs, dir: dir, setting: reserve, logger: logger}
	s.free.Store(-1)
	return s
}

// enough is how much free space ends Low: somewhat more than the reserve, so that
// it does not come and go with every file.
func enough(reserve int64) int64 { return reserve + reserve/8 }

// Low reports whether the disk has less free space than the reserve: what makes
// the data grow should be refused. It recovers by itself.
func (s *Space) Low() bool { return s.low.Load() }

// Scarce reports whether a quarter of the reserve is in use: then even what only
// replaces older data should be refused, because the older data gives its space back
// later than the new takes it.
func (s *Space) Scarce() bool { return s.scarce.Load() }

// Free is the free space on the disk in bytes, and how much of it is reserved.
// known is false if the file system does not tell.
func (s *Space) Free() (free, reserve int64, known bool) {
	free = s.free.Load()
	return free, s.reserve.Load(), free >= 0
}

// Check asks the file system for the free space.
func (s *Space) Check() {
	s.looking.Lock()
	defer s.looking.Unlock()
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		if !errors.Is(err, vfs.ErrUnsupported) {
			s.logger.Debug("the free space is not known", "dir", s.dir, "error", err)
		}
		return
	}
	free, reserve := int64(usage.AvailBytes), s.reserveOf(usage)
	s.free.Store(free)
	s.reserve.Store(reserve)
	s.scarce.Store(free < reserve/4*3+s.owed())
	switch low := s.low.Load(); {
	case !low && free < reserve+s.owed():
		s.low.Store(true)
		s.logger.Error("the disk is nearly full: new data is refused until there is room",
			"dir", s.dir, "free_bytes", free, "reserve_bytes", reserve)
	case low && free >= enough(reserve)+s.owed():
		s.low.Store(false)
		s.logger.Info("the disk has room again: writes are accepted",
			"dir", s.dir, "free_bytes", free, "reserve_bytes", reserve)
	}
}

// Reserve asks the file system how many bytes of the disk are to stay free; known is false
// if it does not tell.
func (s *Space) Reserve() (bytes int64, known bool) {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		return 0, false
	}
	return s.reserveOf(usage), true
}

// CheckReserve refuses a reserve that is set and that the disk could not have free if it were empty: all
// new data would be refused for ever.
func (s *Space) CheckReserve() error {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil || usage.TotalBytes == 0 || s.setting == 0 || uint64(s.setting) < usage.TotalBytes {
		return nil
	}
	return fmt.Errorf("--disk-reserve is %s, and the whole disk of %s has %s: new data would always be refused; lower --disk-reserve, or choose a directory on a larger disk (--data)",
		units.FormatBytes(s.setting), s.dir, units.FormatBytes(int64(usage.TotalBytes)))
}

// CheckRoom refuses a disk on which a new database finds no room at all. That of a server which has run
// has its ballast.
func (s *Space) CheckRoom() error {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil || usage.TotalBytes == 0 || usage.AvailBytes >= leastForNew {
		return nil
	}
	return fmt.Errorf("the disk of %s has %s free, and a new data directory takes %s at least: make room on it, or choose a directory on another disk (--data)",
		s.dir, units.FormatBytes(int64(usage.AvailBytes)), units.FormatBytes(leastForNew))
}

// leastForNew is what a new database takes before the first row is written, rounded up.
const leastForNew = 1 << 20

func (s *Space) reserveOf(usage vfs.DiskUsage) int64 {
	if s.setting > 0 {
		return s.setting
	}
	return min(defaultReserve, int64(usage.TotalBytes/reserveShare))
}
