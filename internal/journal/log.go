package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/lockrank"
)

// The log
//
// A batch is durable when it is in the log: one write and one fsync. Pebble has a
// log of its own, but a batch gets into it only together with its way into the
// memtable, which costs ten times as much (a search for each row, through memory
// that no cache holds), and two goroutines have to be woken on the way. So
// Pebble's is switched off; rows reach Pebble later, many batches at once (see
// apply.go), and a start reads back from here what had not been written to tables.
//
// The log is a row of segments, files named after the number of the first batch
// in them. A segment holds frames:
//
//	sums      8   of all that follows, to the frame's end (see sums)
//	length    4   of the rows
//	number    8   of the batch, disguised: one more than that of the frame before
//	unsynced  4   batches, this one and those before, not known to be on the disk by then;
//	              the highest bit: the room ahead is less than usual
//	rows          as Pebble encodes those of a batch
//
// all of it little-endian. The numbers go on from one run of the program to the
// next. When a segment is full the next one begins; and each run begins one.
//
// A file that grows with every write makes every fsync write its length as well.
// So a segment is extended by zeros, a good deal at a time, and one that isn't
// needed any more is used again, under its new name, with what it held. What is
// there beyond the last frame therefore is zeros, or frames with lower numbers. And
// there is always something: whenever a frame is durable, minExtent bytes more are,
// unless the disk is full, which the next frames say. So a file that was cut off is told
// from one whose last write was (see recoverLog).
//
// When the next segment has been begun a mark is put at the end of the one before: a
// frame without rows and with nothing unsynced, which no other has, and with the number
// of the batch that the next segment begins with. It is no batch, and nothing waits for
// it; it shows that a segment is missing. That there is a log at all is said in the row
// loggedKey. From the moment that Pebble has that row there always is a segment.
//
// That there is old content matters where a start looks for what was written behind a
// place that is damaged. Rows are what clients sent, so there could be frames among
// them that never were any. So numbers are disguised by 8 random bytes, a directory's
// own, which no client can know.
//
// A segment is not needed any more when the rows of all its batches are in tables.
// In every batch that it gets Pebble is told in the row appliedKey up to where it
// has them; tables are written in order, so what a table says of that row holds for
// all others.

const (
	frameHeader  = 24
	tightRoom    = 1 << 31 // of the field unsynced
	segmentTail  = ".journal"
	spareSegment = "spare" + segmentTail
	// segmentBytes is where the next segment begins, unless the disk is small.
	segmentBytes = 8 << 20
	// maxSegments is how many segments make Pebble write tables, in order that
	// they are not needed any more. They are what a start has to read.
	maxSegments = 3
	// minExtent and maxExtent bound by how much a segment is extended at once.
	minExtent, maxExtent = 64 << 10, 1 << 20
	// maxKeptFrame bounds the memory that the log holds on to.
	maxKeptFrame = 1 << 20
)

var (
	appliedKey  = []byte("m|applied")
	disguiseKey = []byte("m|disguise")
	loggedKey   = []byte("m|logged")
)

// disguise is what the numbers in a directory's frames are XORed with.
type disguise uint64

// segment is a file of the log.
type segment struct {
	first uint64 // number of its first batch
	old   bool   // from an earlier run: may hold frames that nobody acknowledged
	large bool   // much larger than a segment usually is, because of one batch
}

func (s segment) name() string { return fmt.Sprintf("%016x%s", s.first, segmentTail) }

// segmentNumber reads a segment's name.
func segmentNumber(name string) (first uint64, ok bool) {
	text, ok := strings.CutSuffix(name, segmentTail)
	first, err := strconv.ParseUint(text, 16, 64)
	return first, ok && err == nil && len(text) == 16
}

// writeLog is the end of the log. The committer writes; anybody may sync and trim.
type writeLog struct {
	j *Journal
	disguise
	last uint64 // number of the batch written last; the committer's
	size int64  // of what the current segment holds; the committer's
	// extent is up to where the current segment's file has been written; the
	// committer's.
	extent int64
	tight  bool   // the current segment could not be extended once; the committer's
	limit  int64  // of a segment, in bytes
	frame  []byte // scratch of the committer
	id     fileID // scratch, guarded by syncing

	syncing  lockrank.Mutex[lockrank.Syncing] // held over an fsync, and while a segment is closed
	file     vfs.File                         // the current segment; the committer changes it, with syncing held
	failed   error                            // guarded by syncing: of the first fsync that failed
	mu       lockrank.Mutex[lockrank.Log]
	written  uint64    // guarded by mu: last
	synced   uint64    // guarded by mu: up to here batches are known to be on the disk
	segments []segment // guarded by mu: those needed, oldest first; the current one is last
	spare    bool      // guarded by mu: there is a segment to be used again
}

// sums is the checksum of a frame: two of 32 bits, so that damage can be told from
// a torn end even where only one bit is wrong (see flippedBit). Both are computed
// at many bytes a cycle.
func sums(b []byte) uint64 {
	return uint64(crc32.Checksum(b, castagnoli))<<32 | uint64(crc32.ChecksumIEEE(b))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// startLog begins the first segment of this run, after the batches that were found.
// Of those the disk may not have all: a process that was killed between its write and
// its fsync leaves the rest in the operating system's memory.
func (j *Journal) startLog(found recovered) (*writeLog, error) {
	l := &writeLog{j: j, disguise: found.disguise, last: found.last, written: found.last, synced: found.last, segments: found.segments}
	l.limit = min(segmentBytes, int64(j.memTableSize()))
	fsys := j.o.FS
	if n := len(found.segments); n > 0 { // those before it were synced before it was begun
		if err := found.secure(fsys, j.o.Dir, found.segments[n-1]); err != nil {
			return nil, fmt.Errorf("%s could not be synced: %w", found.segments[n-1].name(), err)
		}
	}
	// There is a segment at every moment. One of the same name is replaced.
	next := segment{first: l.last + 1}.name()
	obsolete := slices.DeleteFunc(slices.Clone(found.obsolete), func(name string) bool { return name == next })
	var kept []string
	if n := len(obsolete); n > 0 && len(found.segments) == 0 {
		obsolete, kept = obsolete[:n-1], obsolete[n-1:]
	}
	if err := j.removeAll(append(obsolete, spareSegment)); err != nil { // may hold what was never acknowledged
		return nil, err
	}
	s, err := l.place()
	if err == nil {
		err = l.begin(s)
	}
	if err == nil {
		err = j.removeAll(kept)
	}
	if err != nil {
		return l, err
	}
	found.mark(fsys, j.o.Dir, s.first)
	if len(l.segments) > maxSegments { // each start begins one, however little it writes
		j.wantTables()
	}
	return l, nil
}

// removeAll removes files of the data directory that may not be there.
func (j *Journal) removeAll(names []string) error {
	for _, name := range names {
		if err := j.o.FS.Remove(j.o.FS.PathJoin(j.o.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// place gives the next segment its place in the directory. All before it are on the
// disk by then, see recoverLog. If it fails nothing is changed.
func (l *writeLog) place() (segment, error) {
	fsys, s := l.j.o.FS, segment{first: l.last + 1}
	spare := fsys.PathJoin(l.j.o.Dir, spareSegment)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.spare {
		if err := makeSegment(fsys, spare); err != nil {
			return s, err
		}
	}
	l.spare = true
	if err := fsys.Rename(spare, fsys.PathJoin(l.j.o.Dir, s.name())); err != nil {
		return s, err
	}
	l.spare = false
	return s, nil
}

// begin makes s the current segment.
func (l *writeLog) begin(s segment) error {
	fsys := l.j.o.FS
	f, err := fsys.OpenReadWrite(fsys.PathJoin(l.j.o.Dir, s.name()), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = syncDir(fsys, l.j.o.Dir)
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

// makeSegment makes a file with room for a few batches, durably.
func makeSegment(fsys vfs.FS, name string) error {
	f, err := fsys.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(zeros[:minExtent], 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fsys.Remove(name))
	}
	return nil
}

// makeLog makes a log of no batches, durably, for a database that has all its rows in
// tables: there is always a log.
func makeLog(fsys vfs.FS, dir string) error {
	spare := fsys.PathJoin(dir, spareSegment)
	if err := makeSegment(fsys, spare); err != nil {
		return err
	}
	if err := fsys.Rename(spare, fsys.PathJoin(dir, segment{first: 1}.name())); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

// append writes a batch's rows, and sees to it that they are on the disk if sync is
// set. The committer's.
func (l *writeLog) append(rows []byte, sync bool) error {
	if l.size > 0 && l.size+int64(frameHeader+len(rows)) > l.limit {
		if err := l.next(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	synced := l.synced
	l.mu.Unlock()
	l.last++
	l.frame = l.appendFrame(l.frame[:0], l.last, synced, rows)
	if l.tight {
		l.frame = markTight(l.frame)
	}
	if err := l.write(l.frame, l.size); err != nil {
		return err
	}
	l.size += int64(len(l.frame))
	switch err := l.extend(); {
	case isNoRoom(err):
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
	if sync {
		return l.sync()
	}
	return nil
}

func (d disguise) appendFrame(dst []byte, number, synced uint64, rows []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, 8)...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(rows)))
	dst = binary.LittleEndian.AppendUint64(dst, number^uint64(d))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(number-synced)) // a segment bounds it
	dst = append(dst, rows...)
	binary.LittleEndian.PutUint64(dst[at:], sums(dst[at+8:]))
	return dst
}

// appendMark appends the frame that ends a segment, when one has been begun with this batch.
func (d disguise) appendMark(dst []byte, next uint64) []byte {
	return d.appendFrame(dst, next, next, nil)
}

// writeMark puts a mark behind the last frame of a segment, durably.
func writeMark(f vfs.File, mark []byte, end int64) error {
	if _, err := f.WriteAt(mark, end); err != nil {
		return err
	}
	return f.SyncData()
}

// markTight makes a frame say that its segment has less room ahead than usual.
func markTight(frame []byte) []byte {
	unsynced := frame[20:24]
	binary.LittleEndian.PutUint32(unsynced, binary.LittleEndian.Uint32(unsynced)|tightRoom)
	binary.LittleEndian.PutUint64(frame, sums(frame[8:]))
	return frame
}

var zeros [maxExtent]byte

// extend keeps room ahead: for the next frames not to change the file's length, and
// for what is yet to be written when others have filled the disk.
func (l *writeLog) extend() error {
	l.extent = max(l.extent, l.size)
	if l.extent-l.size >= minExtent {
		return nil
	}
	by := max(minExtent, min(l.extent, maxExtent))
	_, err := l.file.WriteAt(zeros[:by], l.extent)
	if err == nil {
		l.extent += by
	}
	return err
}

// write goes on in the room of the ballast when the disk is full.
func (l *writeLog) write(p []byte, at int64) error {
	n, err := l.file.WriteAt(p, at)
	if isNoRoom(err) && l.j.releaseBallast("the log found no room on the disk: going on in the room that was kept") {
		l.j.noRoom()
		_, err = l.file.WriteAt(p[n:], at+int64(n))
	}
	return err
}

// sync makes everything that was written durable, if it isn't. After it has failed once it does not
// succeed again: the next fsync would not write what that one didn't (see secure).
func (l *writeLog) sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	target, synced := l.written, l.synced
	l.mu.Unlock()
	if l.failed == nil && synced < target {
		l.failed = l.file.SyncData()
		if l.failed == nil && !l.id.hasName(l.file) {
			l.failed = errRemoved
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

// next ends the current segment, and has tables written if there are many. If the disk
// has no room for another the current one goes on.
func (l *writeLog) next() error {
	if err := l.sync(); err != nil {
		return err
	}
	l.syncing.Lock()
	defer l.syncing.Unlock()
	s, err := l.place()
	if isNoRoom(err) {
		return nil
	}
	full, end, room := l.file, l.size, l.extent-l.size
	l.mu.Lock()
	l.segments[len(l.segments)-1].large = l.extent > max(2*l.limit, maxExtent)
	l.mu.Unlock()
	if err == nil {
		err = l.begin(s)
	}
	if err != nil {
		return fmt.Errorf("%s could not be begun: %w", s.name(), err)
	}
	if room >= frameHeader {
		_ = writeMark(full, l.appendMark(nil, s.first), end) // nothing is lost without it
	}
	l.mu.Lock()
	many := len(l.segments) > maxSegments
	l.mu.Unlock()
	if many {
		l.j.wantTables()
	}
	return full.Close()
}

// trim removes the segments whose batches up to applied are in tables. One is kept
// to be used again.
func (l *writeLog) trim(applied uint64) error {
	fsys := l.j.o.FS
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.segments) > 1 && l.segments[1].first <= applied+1 {
		s := l.segments[0]
		name := fsys.PathJoin(l.j.o.Dir, s.name())
		var err error
		if s.old || s.large || l.spare {
			err = fsys.Remove(name)
		} else {
			err = fsys.Rename(name, fsys.PathJoin(l.j.o.Dir, spareSegment))
			l.spare = err == nil
		}
		if err != nil {
			return err
		}
		l.segments = l.segments[1:]
	}
	return nil
}

// close makes everything durable and closes the file. The last frame is an empty one that
// says so: without it nobody could tell damage to the frame before from a torn end.
func (l *writeLog) close() error {
	err := l.sync()
	if err == nil {
		_ = l.append(nil, true) // nothing is lost without it
	}
	return errors.Join(err, l.file.Close())
}
