package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A frame is what a segment has at some place.
type frame struct {
	number uint64
	synced uint64
	tight  bool   // its segment has less room ahead than usual, see writeLog.extend
	whole  []byte // a view
	rows   []byte // a part of it
	end    int    // where the next one begins
}

// readFrame reads the frame at b[p:]; false: there is no sound one.
func (d disguise) readFrame(b []byte, p int) (f frame, ok bool) {
	if len(b)-p < frameHeader {
		return f, false
	}
	h := b[p:]
	length := binary.LittleEndian.Uint32(h[8:])
	if uint64(length) > uint64(len(h)-frameHeader) {
		return f, false
	}
	h = h[:frameHeader+int(length)]
	if sums(h[8:]) != binary.LittleEndian.Uint64(h) {
		return f, false
	}
	f.number, f.synced = d.numbers(h)
	f.tight = binary.LittleEndian.Uint32(h[20:])&tightRoom != 0
	f.whole, f.rows, f.end = h, h[frameHeader:], p+len(h)
	return f, true
}

// isMark says whether the frame ends its segment: batch number begins another one.
func (f *frame) isMark() bool { return f.synced == f.number }

// numbers reads a frame's, and up to which batch it says that all was on the disk.
func (d disguise) numbers(h []byte) (number, synced uint64) {
	number = binary.LittleEndian.Uint64(h[12:]) ^ uint64(d)
	return number, number - uint64(binary.LittleEndian.Uint32(h[20:])&^tightRoom)
}

// logState is what the tables say of the log.
type logState struct {
	disguise
	applied uint64 // up to this batch the tables have the rows
	// logged: there is a log, and its last segment always has room ahead. A directory
	// that was last written by an older program doesn't say so.
	logged bool
}

// recovered is what a start found in the log.
type recovered struct {
	logState
	last     uint64    // number of the last batch
	segments []segment // with what may not be in tables yet, oldest first
	end      int64     // where the frames of the last of them end
	obsolete []string  // files with nothing that is needed
	batches  []frame   // that may not be in tables yet
	damage   []Damage  // in what is needed
	mended   []Damage  // in the last frames, where one bit made each whole
}

// recoverLog reads the log from where the tables end. It changes nothing. Like
// the rest of a start it has all of it in memory, which maxSegments bounds.
//
// Where the sound frames end, a crash has cut off what was being written, or something
// is damaged. It is damage, and the start is refused, if something proves that the
// frame that is missing here was on the disk once:
//   - there is a later segment: one is begun when all before it is on the disk;
//   - a later frame says that the missing one was on the disk when it was written;
//   - a mark says that another segment was begun, and there is none;
//   - the file is shorter than it was when its last durable frame was written: zeros are
//     always ahead, and the fsync of a frame covers them.
//
// If none of these, it is a torn end. A power cut leaves of an unsynced write any of its
// sectors and of the others what was there before: zeros, or an older batch. If flipping one bit makes
// the frame whole and gives it the right number, it is that frame: two checksums
// agree. Either the bit of an acknowledged batch went wrong, or a sector is
// old that differs from the new one in just that bit. The frame is mended and taken in both cases: the
// first must not be lost, and the second may be kept, as it was written after all
// before it. Any other frame at the end is dropped. What that can't tell: damage of more
// than one bit to the very last batch before a crash looks like a torn write.
func recoverLog(fsys vfs.FS, dir string, state logState) (r recovered, err error) {
	r.logState = state
	applied := state.applied
	segments, err := listSegments(fsys, dir)
	if err != nil {
		return r, err
	}
	for len(segments) > 1 && segments[1].first <= applied+1 {
		r.obsolete = append(r.obsolete, segments[0].name())
		segments = segments[1:]
	}
	r.last = applied
	if len(segments) == 0 {
		if r.logged {
			r.damage = append(r.damage, Damage{File: segment{first: applied + 1}.name(), Offset: -1, What: fmt.Sprintf("the log is missing, from batch %d on: there is no *%s", applied+1, segmentTail)})
		}
		return r, nil
	}
	if first := segments[0]; first.first > applied+1 {
		r.damage = append(r.damage, Damage{File: first.name(), Offset: 0, What: fmt.Sprintf("it begins with batch %d, and the log from batch %d on is missing", first.first, applied+1)})
		return r, nil
	}
	contents := make([][]byte, len(segments))
	for i, s := range segments {
		if contents[i], err = readFile(fsys, fsys.PathJoin(dir, s.name())); err != nil {
			return r, fmt.Errorf("%s cannot be read: %w", s.name(), err)
		}
	}
	next := segments[0].first
	for i, s := range segments {
		b, later := contents[i], segments[i+1:]
		p, last := r.read(b, 0, &next)
		for len(later) == 0 && r.mend(s, b, p, next) {
			p, last = r.read(b, p, &next)
		}
		if p > 0 {
			r.segments = append(r.segments, s)
			r.end = int64(p)
		} else {
			r.obsolete = append(r.obsolete, s.name())
		}
		if len(later) > 0 && later[0].first == next {
			continue
		}
		if found := r.judge(s, b, p, next, later); found != nil {
			r.damage = append(r.damage, *found)
		} else if found := r.cutShort(s, b, last); found != nil {
			r.damage = append(r.damage, *found)
		}
		break
	}
	r.last = next - 1
	return r, nil
}

// read takes the frames of a segment from *next on, which begin at or behind b[p:], and
// says where they end. Those that are in tables may be damaged.
func (r *recovered) read(b []byte, p int, next *uint64) (end int, last frame) {
	for {
		f, ok := r.readFrame(b, p)
		switch {
		case ok && f.number == *next && !f.isMark():
			if f.number > r.applied {
				r.batches = append(r.batches, f)
			}
			*next, p, last = f.number+1, f.end, f
		case *next <= r.applied:
			*next = r.applied + 1
			p = r.findFrame(b, p, *next)
		default:
			return p, last
		}
	}
}

// mend makes the torn frame at b[p:] whole, in memory, if it is batch next, wrong in one
// bit, and nothing says that it was on the disk.
func (r *recovered) mend(s segment, b []byte, p int, next uint64) bool {
	if r.wasSynced(b[min(p+1, len(b)):], next) {
		return false
	}
	bit, found := r.flippedBit(b, p, next)
	if !found {
		return false
	}
	b[bit/8] ^= 1 << (bit % 8)
	r.mended = append(r.mended, Damage{File: s.name(), Offset: int64(p), What: fmt.Sprintf("bit %d of byte %d is wrong in batch %d, one of the last, as a write that was cut off may leave it; the batch is whole with that bit flipped", bit%8, bit/8, next)})
	return true
}

// cutShort says that the end of the last segment, b, was cut off; nil: it was not, or
// nothing shows it. last is the last sound frame.
func (r *recovered) cutShort(s segment, b []byte, last frame) *Damage {
	if !r.logged || last.tight {
		return nil
	}
	end := r.endOf(b, last.synced)
	if len(b) >= end+minExtent {
		return nil
	}
	return &Damage{File: s.name(), Offset: int64(len(b)), What: fmt.Sprintf("it was cut off here: it had %d bytes at the least", end+minExtent)}
}

// endOf gives the end of batch number's frame in b; 0: there is none among the first
// sound ones.
func (d disguise) endOf(b []byte, number uint64) int {
	for p := 0; len(b)-p >= frameHeader; {
		n, _ := d.numbers(b[p:])
		length := binary.LittleEndian.Uint32(b[p+8:])
		if uint64(length) > uint64(len(b)-p-frameHeader) || n > number {
			break
		}
		p += frameHeader + int(length)
		if n == number {
			return p
		}
	}
	return 0
}

// findFrame gives the place of batch number's frame at or behind b[p:], or p.
func (d disguise) findFrame(b []byte, p int, number uint64) int {
	for at := p; at+frameHeader <= len(b); at++ {
		if n, _ := d.numbers(b[at:]); n != number {
			continue
		}
		if _, ok := d.readFrame(b, at); ok {
			return at
		}
	}
	return p
}

// judge says what is damaged at b[p:], where batch next should be; nil: nothing, it
// is the end.
func (d disguise) judge(s segment, b []byte, p int, next uint64, later []segment) *Damage {
	damage := &Damage{File: s.name(), Offset: int64(p)}
	lost := segment{first: next}
	mark, ok := d.readFrame(b, p)
	switch {
	case len(later) == 0 && ok && mark.number == next && mark.isMark():
		damage.What = fmt.Sprintf("the log goes on in %s, which is missing", lost.name())
		return damage
	case len(later) > 0 && later[0].first < next:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins before that", next-1, later[0].name())
	case len(later) > 0:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins with batch %d: what was between is damaged here, or was in %s", next-1, later[0].name(), later[0].first, lost.name())
	case d.wasSynced(b[min(p+1, len(b)):], next):
		damage.What = fmt.Sprintf("batch %d does not match its checksum, and more was written after it", next)
	default:
		return nil
	}
	if bit, found := d.flippedBit(b, p, next); found {
		damage.What = fmt.Sprintf("bit %d of byte %d has been flipped; everything from here on cannot be read", bit%8, bit/8)
	}
	return damage
}

// wasSynced says whether a frame anywhere in b shows that batch number was on the disk.
func (d disguise) wasSynced(b []byte, number uint64) bool {
	for p := 0; p+frameHeader <= len(b); p++ {
		// What can't be one is seen without its checksum: each takes up some of b.
		if n, synced := d.numbers(b[p:]); n <= number || n-number > uint64(len(b)/frameHeader+1) || synced < number || synced > n {
			continue
		}
		if _, ok := d.readFrame(b, p); ok {
			return true
		}
	}
	return false
}

// flippedBit looks for the one bit of the frame at b[p:] that makes it sound, and
// batch number next, when flipped; it gives the bit's place in b.
func (d disguise) flippedBit(b []byte, p int, next uint64) (bit int, found bool) {
	if len(b)-p < frameHeader {
		return 0, false
	}
	for i := (p + 8) * 8; i < (p+12)*8; i++ { // in the length: its end is elsewhere
		if d.mends(b, p, i, next) {
			return i, true
		}
	}
	length := binary.LittleEndian.Uint32(b[p+8:])
	if uint64(length) > uint64(len(b)-p-frameHeader) { // compared before it is an int, which may have 32 bits
		return 0, false
	}
	end := p + frameHeader + int(length)
	wrong := sums(b[p+8:end]) ^ binary.LittleEndian.Uint64(b[p:])
	switch {
	case wrong == 0: // it is sound, and has another number: the end
		return 0, false
	case bits.OnesCount64(wrong) == 1: // in the sums
		bit = p*8 + bits.TrailingZeros64(wrong)
		return bit, d.mends(b, p, bit, next)
	}
	bit, found = wrongBit(end-p-8, wrong, castagnoli, crc32.IEEETable)
	bit += (p + 8) * 8
	return bit, found && d.mends(b, p, bit, next)
}

// mends says whether flipping a bit makes the frame at b[p:] that of batch next.
func (d disguise) mends(b []byte, p, bit int, next uint64) bool {
	b[bit/8] ^= 1 << (bit % 8)
	f, ok := d.readFrame(b, p)
	b[bit/8] ^= 1 << (bit % 8)
	return ok && f.number == next
}

func listSegments(fsys vfs.FS, dir string) ([]segment, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var found []segment
	for _, name := range names {
		if first, ok := segmentNumber(name); ok {
			found = append(found, segment{first: first, old: true})
		}
	}
	slices.SortFunc(found, func(a, b segment) int { return cmp.Compare(a.first, b.first) })
	return found, nil
}

func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// replay gives to what the log has beyond the tables.
func (j *Journal) replay(to pebble.Writer, r recovered) error {
	var rows []byte
	for i, f := range r.batches {
		rows = append(rows, f.rows...)
		if len(rows) < applyBytes && i+1 < len(r.batches) {
			continue
		}
		if err := j.apply(to, rows, f.number); err != nil {
			return fmt.Errorf("rows up to batch %d in the log: %w", f.number, err)
		}
		rows = rows[:0]
	}
	return nil
}

// secure makes what was found in s durable. Frames that no other says are on the disk are
// written again: where an fsync has failed, the operating system may have them in its
// memory only, as pages that it takes for written, which another fsync passes over.
func (r recovered) secure(fsys vfs.FS, dir string, s segment) error {
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, s.name()), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	var synced uint64
	for _, b := range r.batches {
		synced = max(synced, b.synced)
	}
	for _, b := range r.batches {
		if b.number > synced && b.number >= s.first && err == nil {
			_, err = f.WriteAt(b.whole, int64(b.end-len(b.whole)))
		}
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// mark says at the end of the segment that was the last one that another was begun with
// batch next.
func (r recovered) mark(fsys vfs.FS, dir string, next uint64) {
	if len(r.segments) == 0 {
		return
	}
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, r.segments[len(r.segments)-1].name()), vfs.WriteCategoryUnspecified)
	if err != nil {
		return // nothing is lost without it
	}
	if info, err := f.Stat(); err == nil && info.Size() >= r.end+frameHeader {
		_ = writeMark(f, r.appendMark(nil, next), r.end)
	}
	_ = f.Close()
}
