package journal

import (
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// reclaimPause is how often room is made on a disk that is nearly full.
const reclaimPause = 2 * time.Second

// runReclaim makes deletions give their room back while the disk is low. In the
// ordinary course Pebble gets to it when enough else has been written; but while
// writes are refused nothing else is written, and low would last forever.
//
// A deletion is a small row that covers an old one; both go when the tables that
// they are in are merged. Merging writes the new table before it removes the old
// ones, so it needs as much room as it will leave behind, and it is done only
// where there is as much: the first ones make room for the next. If there is
// nowhere enough, the ballast is what it begins with.
func (j *Journal) runReclaim() {
	defer failstop.End(j.o.Logger, "the journal's merging of tables")
	tick := time.NewTicker(reclaimPause)
	defer tick.Stop()
	for {
		select {
		case <-j.ending.Done():
			return
		case <-j.failed:
			return
		case <-tick.C:
			for j.Low() && j.reclaim() {
			}
		}
	}
}

// reclaim merges the tables below one that has deletions, if there is room for
// it, and says whether it did.
func (j *Journal) reclaim() bool {
	before, _, _ := j.Free()
	if !j.flushDeletions() {
		return false
	}
	levels, err := j.db.SSTables()
	if err != nil {
		return false
	}
	deletions := false
	for _, tables := range levels {
		for i := range tables {
			t := &tables[i]
			if t.TableStats.NumDeletions == 0 {
				continue
			}
			deletions = true
			if !j.fits(levels, t) {
				continue
			}
			end := append(append([]byte(nil), t.Largest.UserKey...), 0)
			if err := j.db.Compact(j.ending, t.Smallest.UserKey, end, false); err != nil {
				j.o.Logger.Debug("making room on the disk", "error", pebblefile.PlainError(err))
				return false
			}
			j.CheckSpace()
			after, _, _ := j.Free()
			return after > before // if not, it would be no other next time
		}
	}
	if deletions {
		j.space.ReleaseBallast("merging tables to make room on the disk, in the room that was kept")
	}
	return false
}

// flushDeletions writes what was appended since it was last called as a table.
func (j *Journal) flushDeletions() bool {
	last := j.Last()
	if last == j.reclaimed {
		return true
	}
	if j.Flush() != nil {
		return false
	}
	j.reclaimed = last
	return true
}

// fits estimates whether the disk has room for what is left of t and everything
// below it once they are merged.
func (j *Journal) fits(levels [][]pebble.SSTableInfo, t *pebble.SSTableInfo) bool {
	var whole, deleted uint64
	for _, tables := range levels {
		for i := range tables {
			o := &tables[i]
			if string(o.Largest.UserKey) < string(t.Smallest.UserKey) || string(o.Smallest.UserKey) > string(t.Largest.UserKey) {
				continue
			}
			whole += o.Size
			deleted += o.TableStats.PointDeletionsBytesEstimate + o.TableStats.RangeDeletionsBytesEstimate
		}
	}
	free, _, known := j.Free()
	return known && whole-min(whole, deleted) <= uint64(free)
}
