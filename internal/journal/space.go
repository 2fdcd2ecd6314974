package journal

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
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

	spaceInterval = 250 * time.Millisecond
)

// space is what is known of the disk.
type space struct {
	looking sync.Mutex   // one look at a time, so that each change is said once
	free    atomic.Int64 // bytes, as of the last look; -1: never seen
	reserve atomic.Int64 // bytes
	low     atomic.Bool
}

// Low reports whether the disk has less free space than the reserve: what makes
// the data grow should be refused. It recovers by itself.
func (j *Journal) Low() bool { return j.space.low.Load() }

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
	free, reserve := int64(usage.AvailBytes), j.o.Reserve
	if reserve <= 0 {
		reserve = min(defaultReserve, int64(usage.TotalBytes/reserveShare))
	}
	j.space.free.Store(free)
	j.space.reserve.Store(reserve)
	switch low := j.space.low.Load(); {
	case !low && free < reserve:
		j.space.low.Store(true)
		j.o.Logger.Error("the disk is nearly full: writes are refused until there is room",
			"dir", j.o.Dir, "free_bytes", free, "reserve_bytes", reserve)
	case low && free >= reserve+reserve/8: // not at every file that comes and goes
		j.space.low.Store(false)
		j.o.Logger.Info("the disk has room again: writes are accepted",
			"dir", j.o.Dir, "free_bytes", free, "reserve_bytes", reserve)
	}
}

// runSpace polls the free space.
func (j *Journal) runSpace() {
	j.keepBallast()
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	for {
		select {
		case <-j.drained:
			return
		case <-j.failed:
			return
		case <-tick.C:
			wasLow := j.Low()
			j.CheckSpace()
			if wasLow && !j.Low() {
				j.keepBallast()
			}
		}
	}
}
