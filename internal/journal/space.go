package journal

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

const (
	minMemTable = 1 << 20

	spaceInterval = 250 * time.Millisecond
	// stuckAfter is how long Pebble may take for rows, which takes it milliseconds.
	stuckAfter = time.Second

	roomForTables = "tables found no room on the disk: going on in the room that was kept"
)

// Low reports whether the disk has less free space than the reserve: what makes
// the data grow should be refused. It recovers by itself.
func (j *Journal) Low() bool { return j.space.Low() }

// Scarce reports whether a quarter of the reserve is in use: then even what only
// replaces older data should be refused, because the older data gives its space back
// later than the new takes it.
func (j *Journal) Scarce() bool { return j.space.Scarce() }

// Free is the free space on the disk in bytes, and how much of it is reserved.
// known is false if the file system does not tell.
func (j *Journal) Free() (free, reserve int64, known bool) { return j.space.Free() }

// CheckSpace looks at the free space. The journal does it by itself all the
// time; a test that has changed its disk calls it.
func (j *Journal) CheckSpace() { j.space.Check() }

// noRoom makes runSpace look, because something found no room on the disk.
func (j *Journal) noRoom() { wake(j.full) }

// memTableSize is how large a memtable may grow, and a segment of the log at the most:
// what memory has when writes are refused is yet to be written, and has to fit into
// the reserve, also on a disk where that is small. All memtables may take half of it.
func (j *Journal) memTableSize() uint64 {
	reserve, known := j.space.Reserve()
	if !known {
		return memTableBytes
	}
	return min(memTableBytes, max(minMemTable, uint64(reserve)/(2*memTables)))
}

// runSpace polls the free space.
func (j *Journal) runSpace() {
	defer failstop.End(j.o.Logger, "the journal's look at the disk")
	j.space.KeepBallast()
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
			j.pollSpace(j.uptime.Now())
		}
	}
}

// pollSpace releases the ballast if nothing else helps, and makes it again when the disk
// has room, for tables, too. The same goes for file descriptors.
func (j *Journal) pollSpace(now time.Duration) {
	j.descriptors.Fill()
	if j.stuckWithoutRoom(now) {
		j.space.ReleaseBallast(roomForTables)
	}
	wasLow := j.Low()
	j.CheckSpace()
	if (wasLow || j.space.OwesBallast() && j.lastBackground.Load() == nil) && !j.Low() {
		j.space.KeepBallast()
	}
}

// stuckWithoutRoom says whether Pebble takes no rows because it can't write tables. That
// it can't is no reason by itself: it tries again, and what is in memory is in the log.
func (j *Journal) stuckWithoutRoom(now time.Duration) bool {
	last := j.lastBackground.Load()
	return last != nil && datadir.IsNoRoom(*last) && j.hangs(now, stuckAfter)
}
