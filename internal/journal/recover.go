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
	f.whole, f.rows, f.end = h, h[frameHeader:], p+len(h)
	return f, true
}

// numbers reads a frame's, and up to which batch it says that all was on the disk.
func (d disguise) numbers(h []byte) (number, synced uint64) {
	number = binary.LittleEndian.Uint64(h[12:]) ^ uint64(d)
	return number, number - uint64(binary.LittleEndian.Uint32(h[20:]))
}

// recovered is what a start found in the log.
type recovered struct {
	disguise
	last     uint64    // number of the last batch
	segments []segment // with what may not be in tables yet, oldest first
	obsolete []string  // files with nothing that is needed
	batches  []frame   // that may not be in tables yet
	damage   []Damage  // in what is needed
}

// recoverLog reads the log from where the tables end. It changes nothing. Like
// the rest of a start it has all of it in memory, which maxSegments bounds.
//
// Where the frames end somebody has been cut off, or something is damaged. It is
// damage if there is a later segment, because one is begun when all before it is on
// the disk; if a later frame says that the one missing here was on the disk when it
// was written; or if flipping one single bit makes the frame whole. If none of these,
// it is a torn end: of something that nobody was told of.
func recoverLog(fsys vfs.FS, dir string, applied uint64, d disguise) (r recovered, err error) {
	r.disguise = d
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
		p := r.read(contents[i], &next, applied)
		if p > 0 {
			r.segments = append(r.segments, s)
		} else {
			r.obsolete = append(r.obsolete, s.name())
		}
		if i+1 < len(segments) && segments[i+1].first == next {
			continue
		}
		if found := r.judge(s, contents[i], p, next, segments[i+1:]); found != nil {
			r.damage = append(r.damage, *found)
		}
		break
	}
	r.last = next - 1
	return r, nil
}

// read takes the frames of a segment from *next on, and says where they end. Those up
// to applied may be damaged.
func (r *recovered) read(b []byte, next *uint64, applied uint64) (p int) {
	for {
		f, ok := r.readFrame(b, p)
		switch {
		case ok && f.number == *next:
			if f.number > applied {
				r.batches = append(r.batches, f)
			}
			*next, p = f.number+1, f.end
		case *next <= applied:
			*next = applied + 1
			p = r.findFrame(b, p, *next)
		default:
			return p
		}
	}
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
	if bit, found := d.flippedBit(b, p, next); found {
		damage.What = fmt.Sprintf("bit %d of byte %d has been flipped; everything from here on cannot be read", bit%8, bit/8)
		return damage
	}
	switch lost := (segment{first: next}); {
	case len(later) > 0 && later[0].first < next:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins before that", next-1, later[0].name())
	case len(later) > 0:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins with batch %d: what was between is damaged here, or was in %s", next-1, later[0].name(), later[0].first, lost.name())
	case d.wasSynced(b[min(p+1, len(b)):], next):
		damage.What = fmt.Sprintf("batch %d does not match its checksum, and more was written after it", next)
	default:
		return nil
	}
	return damage
}

// wasSynced says whether a frame anywhere in b shows that batch number was on the disk.
func (d disguise) wasSynced(b []byte, number uint64) bool {
	for p := 0; p+frameHeader <= len(b); p++ {
		// What can't be one is seen without its checksum: each takes up some of b.
		if n, synced := d.numbers(b[p:]); n <= number || n-number > uint64(len(b)/frameHeader+1) || synced < number || synced >= n {
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
