package journal

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Log is where batches become durable. The pipeline stands on it and knows nothing of how
// that is done: on files of this machine (package wal, the only implementation), or on
// those of several machines.
//
// A start calls Replay, then Begin. From then on the committer calls Commit, one call at a
// time, the applier Trim, a watcher Check; Sync may be called beside all of them. A log of
// Options.Log may be replayed for long, so Trim is called then, too. Close is
// the last call, and also the only one after Replay if the journal is only read.
type Log interface {
	// Replay calls fn with each batch that the database may not have, in the order of their
	// numbers, and ends with the first error of fn. rows are valid until Begin.
	Replay(fn func(number uint64, rows []byte) error) error
	// Begin makes the log ready for Commit. What Replay gave is durable afterwards.
	Begin() error
	// Commit appends a batch's rows (as Pebble encodes them) and returns its number when
	// they are durable; with another Durability than Sync, when they are written. Numbers
	// rise, also from one run to the next, and may skip some. rows are not kept. An error
	// ends the journal: whether the batch is durable is not known then.
	Commit(rows []byte) (number uint64, err error)
	// Sync returns when all batches that were committed before are durable.
	Sync() error
	// Trim tells that the database has the rows of all batches up to a number in tables:
	// Replay will not be asked for them again. The log may drop them.
	Trim(applied uint64) error
	// Check says why batches would not be found by the next start, although Commit
	// succeeds; nil: they will. It is called some times a second.
	Check() error
	// Close makes all that was committed durable.
	Close() error
}

// FsyncTimer is a Log of Options.Log that says how long each of its fsyncs has taken, in
// nanoseconds, for Figures.Fsyncs. Its method is safe for concurrent use.
type FsyncTimer interface{ Fsyncs() histogram.Snapshot }

// LogOptions is what a journal gives the log that it opens.
type LogOptions struct {
	// Applied is the number of the last batch that the database has; 0 in a new one.
	Applied uint64
	// Sync: Commit returns when the batch is durable.
	Sync bool
	// Long is to be called when the log is long: the journal then has tables written, and
	// calls Trim. It doesn't block.
	Long func()
	// NoRoom is to be called when the disk has no room for a batch. True: it has made room.
	NoRoom func() bool
	// Copy is Journal.Checkpoint for the owner of the log, which may call it from any goroutine, also
	// while Replay runs: the copy has what was durable, or was given by Replay, at the call. It
	// waits for no Commit. It fails with ErrClosed when the journal is being closed.
	Copy func(dir string, copies bool) error
	// TableSize is Journal.TableSize.
	TableSize func() (tables int, bytes int64)
}

// ErrLost is what a Log's Commit fails with, wrapped, if batches become durable elsewhere from now on;
// reads may, too. It is an ErrClosed: the server ends, and its database has what was committed.
var ErrLost = fmt.Errorf("%w: its log may not be written to any more", ErrClosed)

// errMoved is what Log.Check says of a directory that is not there any more.
var errMoved = wal.ErrMoved

// openLog opens the log; damaged: although it is, to look at what is before the damage.
func (j *Journal) openLog(damaged bool) (Log, error) {
	if j.o.Log != nil {
		applied, err := readApplied(j.db.NewIter(nil))
		if err != nil {
			return nil, err
		}
		return j.o.Log(LogOptions{Applied: applied, Sync: j.o.Durability.mode == modeSync, Long: j.wantTables, NoRoom: j.makeRoomForLog, Copy: j.copyDurable, TableSize: j.TableSize})
	}
	l, err := readFiles(j.o, j.db, wal.Options{
		SegmentBytes: j.segmentBytes(), Sync: j.o.Durability.mode == modeSync, Long: j.wantTables, NoRoom: j.makeRoomForLog, Fsyncs: j.fsyncs,
	})
	if err != nil {
		return nil, err
	}
	if !damaged {
		if err := refusal(j.o.Dir, l.Damage()); err != nil {
			return nil, err
		}
	}
	j.sayMended(l.Mended())
	return l, nil
}

// readFiles reads the log in o's directory from where a database's tables end.
func readFiles(o Options, db pebble.Reader, w wal.Options) (*wal.Log, error) {
	applied, err := readApplied(db.NewIter(nil))
	if err != nil {
		return nil, err
	}
	state, err := wal.ReadState(db, applied)
	if err != nil {
		return nil, err
	}
	w.FS, w.Dir = o.FS, o.Dir
	return wal.Read(w, state)
}

// segmentBytes is how large a segment of the log may grow: on a small disk no larger than a
// memtable, see memTableSize.
func (j *Journal) segmentBytes() int64 {
	if j.o.SegmentBytes > 0 {
		return j.o.SegmentBytes
	}
	return min(wal.DefaultSegmentBytes, int64(j.memTableSize()))
}

// makeRoomForLog releases the ballast because the log found no room on the disk.
func (j *Journal) makeRoomForLog() bool {
	made := j.space.ReleaseBallast("the log found no room on the disk: going on in the room that was kept")
	if made {
		j.noRoom()
	}
	return made
}

// makeRoomForManifest does the same for the manifest of the tables.
func (j *Journal) makeRoomForManifest() {
	if j.space.ReleaseBallast("the manifest of the tables found no room on the disk: going on in the room that was kept") {
		j.noRoom()
	}
}

// waitsForRoom logs that the manifest of the tables waits for room on the disk.
func (j *Journal) waitsForRoom(atMost time.Duration) {
	j.o.Logger.Warn("waiting until the disk has room for the manifest of the tables: remove other files from it", "dir", j.o.Dir, "at_most", atMost)
}

// sayMended logs what the start has made whole.
func (j *Journal) sayMended(what []datadir.Damage) {
	j.mended = append(j.mended, what...)
	for _, d := range what {
		j.o.Logger.Warn("mended the end of what was written before a crash", "dir", j.o.Dir, "file", d.File, "offset", d.Offset, "what", d.What)
	}
}
