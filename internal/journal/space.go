package journal

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/failstop"
	"holdfast/internal/lockrank"
)

// Space on the disk
//
// A database that runs into a full disk has no good way left: Pebble retries
// its flushes for ever, and commits hang. So the journal looks at the free space
// and says Low while there is less than a reserve. Those who can refuse work
// (writes of new data) ask for Low; what makes room or ends what was begun
// (deletions, acknowledgements, expiry) goes on from the reserve. The reserve is
// several times what is in memory and still has to be written as tables.
//
// The journal polls instead of reacting to errors, because by the time that a
// write fails it is too late. The interval is short against the time that a
// disk takes to write a reserve.

const (
	// defaultReserve is the reserve on a large disk; on one of less than
	// 5 GiB it is a share of its size.
	defaultReserve = 256 << 20
	reserveShare   = 20 // a twentieth is 5 %

	minMemTable = 1 << 20

	spaceInterval = 250 * time.Millisecond
	// stuckAfter is how long Pebble may take for rows, which takes it milliseconds.
	stuckAfter = time.Second
)

// space is what is known of the disk.
type space struct {
	looking lockrank.Mutex[lockrank.Space] // one look at a time, so that each change is said once, and one ballast
	free    atomic.Int64                   // bytes, as of the last look; -1: never seen
	reserve atomic.Int64                   // bytes
	low     atomic.Bool
	scarce  atomic.Bool

	borrowed atomic.Bool // the ballast was released, and its room is to be given back
}

// enough is how much free space ends Low: somewhat more than the reserve, so that
// it does not come and go with every file.
func enough(reserve int64) int64 { return reserve + reserve/8 }

// Low reports whether the disk has less free space than the reserve: what makes
// the data grow should be refused. It recovers by itself.
func (j *Journal) Low() bool { return j.space.low.Load() }

// Scarce reports whether a quarter of the reserve is in use: then even what only
// replaces older data should be refused, because the older data gives its space back
// later than the new takes it.
func (j *Journal) Scarce() bool { return j.space.scarce.Load() }

// Free is the free space on the disk in bytes, and how much of it is reserved.
// known is false if the file system does not tell.
func (j *Journal) Free() (free, reserve int64, known bool) {
	free = j.space.free.Load()
	return free, j.space.reserve.Load(), free >= 0
}

// CheckSpace looks at the free space. The journal does it by itself all the
// time; a test that has changed its disk calls it.
func (j *Journal) CheckSpace() {
	j.space.looking.Lock()
	defer j.space.looking.Unlock()
	usage, err := j.o.FS.GetDiskUsage(j.o.Dir)
	if err != nil {
		if !errors.Is(err, vfs.ErrUnsupported) {
			j.o.Logger.Debug("the free space is not known", "dir", j.o.Dir, "error", err)
		}
		return
	}
	free, reserve := int64(usage.AvailBytes), j.reserve(usage)
	j.space.free.Store(free)
	j.space.reserve.Store(reserve)
	j.space.scarce.Store(free < reserve/4*3+j.owed())
	switch low := j.space.low.Load(); {
	case !low && free < reserve+j.owed():
		j.space.low.Store(true)
		j.o.Logger.Error("the disk is nearly full: new data is refused until there is room",
			"dir", j.o.Dir, "free_bytes", free, "reserve_bytes", reserve)
	case low && free >= enough(reserve)+j.owed():
		j.space.low.Store(false)
		j.o.Logger.Info("the disk has room again: writes are accepted",
			"dir", j.o.Dir, "free_bytes", free, "reserve_bytes", reserve)
	}
}

// noRoom makes runSpace look, because something found no room on the disk.
func (j *Journal) noRoom() {
	select {
	case j.full <- struct{}{}:
	default: // it is about to look
	}
}

// owed is the room that the ballast will take up again.
func (j *Journal) owed() int64 {
	if j.space.borrowed.Load() {
		return ballastBytes
	}
	return 0
}

func (j *Journal) reserve(usage vfs.DiskUsage) int64 {
	if j.o.Reserve > 0 {
		return j.o.Reserve
	}
	return min(defaultReserve, int64(usage.TotalBytes/reserveShare))
}

// memTableSize is how large a memtable may grow, and a segment of the log at the most:
// what memory has when writes are refused is yet to be written, and has to fit into
// the reserve, also on a disk where that is small. All memtables may take half of it.
func (j *Journal) memTableSize() uint64 {
	usage, err := j.o.FS.GetDiskUsage(j.o.Dir)
	if err != nil {
		return memTableBytes
	}
	return min(memTableBytes, max(minMemTable, uint64(j.reserve(usage))/(2*memTables)))
}

// runSpace polls the free space.
func (j *Journal) runSpace() {
	defer failstop.End(j.o.Logger, "the journal's look at the disk")
	j.keepBallast()
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	for {
		select {
		case <-j.drained:
			return
		case <-j.failed:
			return
		case <-j.full: // sooner than it was seen
			j.CheckSpace()
		case <-tick.C:
			j.pollSpace(j.uptime.now())
		}
	}
}

// pollSpace lets go of the ballast if nothing else helps, and keeps it again when the
// disk has room, for tables, too. The same goes for file descriptors.
func (j *Journal) pollSpace(now time.Duration) {
	j.thrifty.keep()
	if j.stuckWithoutRoom(now) {
		j.releaseBallast(roomForTables)
	}
	wasLow := j.Low()
	j.CheckSpace()
	if (wasLow || j.space.borrowed.Load() && j.lastBackground.Load() == nil) && !j.Low() {
		j.keepBallast()
	}
}

// stuckWithoutRoom says whether Pebble takes no rows because it can't write tables. That
// it can't is no reason by itself: it tries again, and what is in memory is in the log.
func (j *Journal) stuckWithoutRoom(now time.Duration) bool {
	last := j.lastBackground.Load()
	return last != nil && isNoRoom(*last) && j.hangs(now, stuckAfter)
}
