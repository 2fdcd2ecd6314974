package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

const (
	// DefaultSegmentBytes is where the next segment begins.
	DefaultSegmentBytes = 8 << 20
	// MaxSegments bounds what a start must read: when the log has more segments, it asks
	// the database to write tables (Options.Long).
	MaxSegments = 3
	// maxKeptFrame bounds the buffer for frames that the log keeps between two batches.
	maxKeptFrame = 1 << 20
)

// Rows of the database that are the log's.
var (
	MaskKey   = []byte("m|disguise")
	LoggedKey = []byte("m|logged")
)

// ErrRemoved: the file of the current segment has no name any more, so what is written to
// it is lost.
var ErrRemoved = errors.New("the log was deleted while the server ran (was the data directory?): what came after that is not acknowledged")

// ErrMoved: the current segment isn't where a start would look for it.
var ErrMoved = errors.New("the data directory was deleted, moved or replaced while the server ran")

// Options of Read.
type Options struct {
	FS  vfs.FS
	Dir string
	// SegmentBytes is where the next segment begins. 0: DefaultSegmentBytes.
	SegmentBytes int64
	// Sync has Commit wait for its fsync.
	Sync bool
	// NoRoom is called when the disk has no room for a batch. It returns true if it has
	// made room; then the batch is written again.
	NoRoom func() bool
	// Long is called when the log is long: tables should be written, so that it can be
	// trimmed. It must not block.
	Long func()
	// Large: the log may be larger than memory. Read keeps the batches of the last segment
	// only, and Replay reads those of the others again.
	Large bool
	// Fsyncs counts how long each fsync takes, in nanoseconds. nil: none does.
	Fsyncs *histogram.Histogram
}

// Log is the write-ahead log in a data directory. One goroutine calls Replay, Begin, Commit
// and Close; Sync, Trim and Check may be called by any, after Begin.
type Log struct {
	o     Options
	found recovered // until Begin

	mask Mask
	last uint64 // number of the batch written last; the committer's
	size int64  // of what the current segment holds; the committer's
	// extent is up to where the current segment's file has been written; the
	// committer's.
	extent int64
	tight  bool             // the current segment could not be extended once; the committer's
	frame  []byte           // scratch of the committer
	named  datadir.Presence // scratch, guarded by syncing

	syncing  lockrank.Mutex[lockrank.Syncing] // held over an fsync, and while a segment is closed
	file     vfs.File                         // the current segment; nil until Begin; the committer changes it, with syncing held
	failed   error                            // guarded by syncing: of the first fsync that failed
	mu       lockrank.Mutex[lockrank.Log]
	written  uint64    // guarded by mu: last
	synced   uint64    // guarded by mu: up to here batches are known to be on the disk
	segments []segment // guarded by mu: those needed, oldest first; the current one is last
	spare    bool      // guarded by mu: there is a segment to be used again
}

// Read reads the log in a directory, from where state says that the tables end. It changes
// nothing, also where there is damage (see Damage).
func Read(o Options, state State) (*Log, error) {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	found, err := recoverLog(o.FS, o.Dir, state, o.Large)
	if err != nil {
		return nil, err
	}
	return &Log{
		o: o, found: found,
		mask: found.Mask, last: found.last, written: found.last, synced: found.last, segments: found.segments,
	}, nil
}

// Damage is what Read found missing or wrong among the batches that tables may not have. If
// there is damage, Replay ends before it, and Begin must not be called.
func (l *Log) Damage() []datadir.Damage { return l.found.damage }

// Mended is what Read repaired at the end of the log, in memory. Begin writes it.
func (l *Log) Mended() []datadir.Damage { return l.found.mended }

// Last is the number of the last batch.
func (l *Log) Last() uint64 { return l.last }

// Replay calls fn with each batch that tables may not have, in their order. rows are valid
// until Begin, or, with Options.Large, until fn returns.
func (l *Log) Replay(fn func(number uint64, rows []byte) error) error {
	for _, s := range l.found.verified {
		if err := l.replaySegment(s, fn); err != nil {
			return err
		}
	}
	for _, f := range l.found.batches {
		if err := fn(f.Number, f.Rows); err != nil {
			return err
		}
	}
	return nil
}

// replaySegment calls fn with each batch of a segment that Read has verified.
func (l *Log) replaySegment(s segment, fn func(number uint64, rows []byte) error) error {
	again := recovered{State: l.found.State}
	b, err := readFile(l.o.FS, l.o.FS.PathJoin(l.o.Dir, s.name()))
	if err != nil {
		return fmt.Errorf("%s cannot be read: %w", s.name(), err)
	}
	next := s.first
	again.read(b, 0, &next)
	for _, f := range again.batches {
		if err := fn(f.Number, f.Rows); err != nil {
			return err
		}
	}
	return nil
}

// Begin begins the first segment of this run, behind the batches that Read found. It makes
// those durable first: if the former process was killed between a write and its fsync, they
// may be in the operating system's cache only.
func (l *Log) Begin() error {
	fsys, found := l.o.FS, l.found
	if n := len(found.segments); n > 0 { // those before it were synced before it was begun
		if err := found.secure(fsys, l.o.Dir, found.segments[n-1]); err != nil {
			return fmt.Errorf("%s could not be synced: %w", found.segments[n-1].name(), err)
		}
	}
	// There is a segment at every moment; one with the same name is replaced.
	next := SegmentName(l.last + 1)
	obsolete := slices.DeleteFunc(slices.Clone(found.obsolete), func(name string) bool { return name == next })
	var kept []string
	if n := len(obsolete); n > 0 && len(found.segments) == 0 {
		obsolete, kept = obsolete[:n-1], obsolete[n-1:]
	}
	if err := l.removeAll(append(obsolete, spareSegment)); err != nil { // the spare may hold batches that were never acknowledged
		return err
	}
	s, err := l.nameNext()
	if err == nil {
		err = l.open(s)
	}
	if err == nil {
		err = l.removeAll(kept)
	}
	if err != nil {
		return err
	}
	found.endSegment(fsys, l.o.Dir, s.first)
	if len(l.segments) > MaxSegments { // each start begins one, however little it writes
		l.o.Long()
	}
	l.found = recovered{}
	return nil
}

// removeAll removes files of the data directory, of which some may not exist.
func (l *Log) removeAll(names []string) error {
	for _, name := range names {
		if err := l.o.FS.Remove(l.o.FS.PathJoin(l.o.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// nameNext gives the next segment its name in the directory. All before it are on the disk
// by then, see recoverLog. If it fails nothing is changed.
func (l *Log) nameNext() (segment, error) {
	fsys, s := l.o.FS, segment{first: l.last + 1}
	spare := fsys.PathJoin(l.o.Dir, spareSegment)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.spare {
		if err := makeSegment(fsys, spare); err != nil {
			return s, err
		}
	}
	l.spare = true
	if err := fsys.Rename(spare, fsys.PathJoin(l.o.Dir, s.name())); err != nil {
		return s, err
	}
	l.spare = false
	return s, nil
}

// open makes s the current segment.
func (l *Log) open(s segment) error {
	fsys := l.o.FS
	f, err := fsys.OpenReadWrite(fsys.PathJoin(l.o.Dir, s.name()), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = datadir.SyncDir(fsys, l.o.Dir)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size, l.extent, l.tight = f, 0, info.Size(), false
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = append(l.segments, s)
	return nil
}

// Commit writes a batch's rows and returns its number, one above that of the batch before.
// With Options.Sync the batch is on the disk then.
func (l *Log) Commit(rows []byte) (number uint64, err error) {
	if err := l.write(rows); err != nil {
		return 0, err
	}
	if l.o.Sync {
		err = l.Sync()
	}
	return l.last, err
}

// write writes a batch behind those before it.
func (l *Log) write(rows []byte) error {
	if l.size > 0 && l.size+int64(FrameHeader+len(rows)) > l.o.SegmentBytes {
		if err := l.beginNext(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	synced := l.synced
	l.mu.Unlock()
	l.last++
	l.frame = l.mask.AppendFrame(l.frame[:0], l.last, synced, rows)
	if l.tight {
		l.frame = markTight(l.frame)
	}
	if err := l.writeAt(l.frame, l.size); err != nil {
		return err
	}
	l.size += int64(len(l.frame))
	switch err := l.extend(); {
	case datadir.IsNoRoom(err):
		l.tight = true
	case err != nil:
		return err
	}
	if cap(l.frame) > maxKeptFrame {
		l.frame = nil
	}
	l.mu.Lock()
	l.written = l.last
	l.mu.Unlock()
	return nil
}

// extend keeps room behind the last frame, so that the next frames do not change the file's
// length, and can still be written when other programs have filled the disk.
func (l *Log) extend() error {
	l.extent = max(l.extent, l.size)
	if l.extent-l.size >= RoomAhead {
		return nil
	}
	by := max(RoomAhead, min(l.extent, maxExtent))
	_, err := l.file.WriteAt(zeros[:by], l.extent)
	if err == nil {
		l.extent += by
	}
	return err
}

// writeAt writes p. If the disk is full, it writes the rest once Options.NoRoom has made
// room.
func (l *Log) writeAt(p []byte, at int64) error {
	n, err := l.file.WriteAt(p, at)
	if datadir.IsNoRoom(err) && l.o.NoRoom() {
		_, err = l.file.WriteAt(p[n:], at+int64(n))
	}
	return err
}

// Sync makes everything that was written durable. Once it has failed it does not succeed
// again: another fsync would not write what the failed one did not (see secure).
func (l *Log) Sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	target, synced := l.written, l.synced
	l.mu.Unlock()
	if l.failed == nil && synced < target {
		began := time.Now()
		l.failed = l.file.SyncData()
		l.o.Fsyncs.Observe(int64(time.Since(began)))
		if l.failed == nil && !l.named.HasName(l.file) {
			l.failed = ErrRemoved
		}
	}
	if l.failed != nil {
		return l.failed
	}
	l.mu.Lock()
	l.synced = target
	l.mu.Unlock()
	return nil
}

// beginNext ends the current segment and begins the next, and asks for tables if there are
// many segments. If the disk has no room for another segment, the current one continues.
func (l *Log) beginNext() error {
	if err := l.Sync(); err != nil {
		return err
	}
	l.syncing.Lock()
	defer l.syncing.Unlock()
	s, err := l.nameNext()
	if datadir.IsNoRoom(err) {
		return nil
	}
	full, end, room := l.file, l.size, l.extent-l.size
	l.mu.Lock()
	l.segments[len(l.segments)-1].large = l.extent > max(2*l.o.SegmentBytes, maxExtent)
	l.mu.Unlock()
	if err == nil {
		err = l.open(s)
	}
	if err != nil {
		return fmt.Errorf("%s could not be begun: %w", s.name(), err)
	}
	if room >= FrameHeader {
		_ = writeEndFrame(full, l.mask.appendEndFrame(nil, s.first), end) // nothing is lost without it
	}
	l.mu.Lock()
	many := len(l.segments) > MaxSegments
	l.mu.Unlock()
	if many {
		l.o.Long()
	}
	return full.Close()
}

// Trim removes the segments whose batches are in tables, which have all batches up to
// applied. It keeps one file, to be used again.
func (l *Log) Trim(applied uint64) error {
	fsys := l.o.FS
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.segments) > 1 && l.segments[1].first <= applied+1 {
		s := l.segments[0]
		name := fsys.PathJoin(l.o.Dir, s.name())
		var err error
		if s.old || s.large || l.spare {
			err = fsys.Remove(name)
		} else {
			err = fsys.Rename(name, fsys.PathJoin(l.o.Dir, spareSegment))
			l.spare = err == nil
		}
		if err != nil {
			return err
		}
		l.segments = l.segments[1:]
	}
	return nil
}

// Check returns ErrMoved if the current segment isn't where a start would look for it.
func (l *Log) Check() error {
	l.syncing.Lock() // the file is not closed meanwhile
	defer l.syncing.Unlock()
	l.mu.Lock()
	name := l.segments[len(l.segments)-1].name()
	l.mu.Unlock()
	if !datadir.IsAt(l.file, l.o.FS.PathJoin(l.o.Dir, name)) {
		return ErrMoved
	}
	return nil
}

// dropSpare removes the file that is kept to be used again.
func (l *Log) dropSpare() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spare && l.o.FS.Remove(l.o.FS.PathJoin(l.o.Dir, spareSegment)) == nil {
		l.spare = false
	}
}

// Close makes everything durable and closes the file. Before that it begins another segment:
// without one, damage to the last batch, or a file that was cut short, could not be told from
// a torn end. Nothing is lost if that fails.
func (l *Log) Close() error {
	if l.file == nil { // never begun
		return nil
	}
	err := l.Sync()
	if err == nil && l.size > 0 {
		l.dropSpare() // so that the segment has zeros only: a salvage must not read old frames in it
		failed := l.beginNext()
		if failed == nil && l.size > 0 && l.write(nil) == nil { // the disk has no room for a segment: an empty batch shows damage to the one before it
			_ = l.Sync()
		}
	}
	return errors.Join(err, l.file.Close())
}
