package wal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// recovered is what a start found in the log.
type recovered struct {
	State
	last     uint64           // number of the last batch
	segments []segment        // with what may not be in tables yet, oldest first
	end      int64            // where the frames of the last of them end
	obsolete []string         // files with nothing that is needed
	batches  []Frame          // that may not be in tables yet
	damage   []datadir.Damage // in what is needed
	mended   []datadir.Damage // in the last frames, where one bit made each whole
}

// recoverLog reads the log from where the tables end. It changes nothing. It has all of the
// log in memory, which MaxSegments bounds.
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
// sectors and of the others what was there before: zeros, or an older batch. If flipping
// one bit makes the frame whole and gives it the right number, it is that frame: two
// checksums agree. Either the bit of an acknowledged batch went wrong, or a sector is old
// that differs from the new one in just that bit. The frame is mended and taken in both
// cases: the first must not be lost, and the second may be kept, as it was written after
// all before it. Any other frame at the end is dropped. Damage of more than one bit to the
// very last batch before a crash can't be told from a torn write.
func recoverLog(fsys vfs.FS, dir string, state State) (r recovered, err error) {
	r.State = state
	applied := state.Applied
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
		if r.Logged {
			r.damage = append(r.damage, datadir.Damage{File: SegmentName(applied + 1), Offset: -1, What: fmt.Sprintf("the log is missing, from batch %d on: there is no *%s", applied+1, Suffix)})
		}
		return r, nil
	}
	if first := segments[0]; first.first > applied+1 {
		r.damage = append(r.damage, datadir.Damage{File: first.name(), Offset: 0, What: fmt.Sprintf("it begins with batch %d, and the log from batch %d on is missing", first.first, applied+1)})
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
func (r *recovered) read(b []byte, p int, next *uint64) (end int, last Frame) {
	for {
		f, ok := r.ReadFrame(b, p)
		switch {
		case ok && f.Number == *next && !f.isMark():
			if f.Number > r.Applied {
				r.batches = append(r.batches, f)
			}
			*next, p, last = f.Number+1, f.End, f
		case *next <= r.Applied:
			*next = r.Applied + 1
			p = r.findFrame(b, p, *next)
		default:
			return p, last
		}
	}
}

// cutShort says that the end of the last segment, b, was cut off; nil: it was not, or
// nothing shows it. last is the last sound frame.
func (r *recovered) cutShort(s segment, b []byte, last Frame) *datadir.Damage {
	if !r.Logged || last.tight {
		return nil
	}
	end := r.endOf(b, last.synced)
	if len(b) >= end+RoomAhead {
		return nil
	}
	return &datadir.Damage{File: s.name(), Offset: int64(len(b)), What: fmt.Sprintf("it was cut off here: it had %d bytes at the least", end+RoomAhead)}
}

// endOf gives the end of batch number's frame in b; 0: there is none among the first
// sound ones.
func (m Mask) endOf(b []byte, number uint64) int {
	for p := 0; len(b)-p >= FrameHeader; {
		n, _ := m.numbers(b[p:])
		length := binary.LittleEndian.Uint32(b[p+8:])
		if uint64(length) > uint64(len(b)-p-FrameHeader) || n > number {
			break
		}
		p += FrameHeader + int(length)
		if n == number {
			return p
		}
	}
	return 0
}

// findFrame gives the place of batch number's frame at or behind b[p:], or p.
func (m Mask) findFrame(b []byte, p int, number uint64) int {
	for at := p; at+FrameHeader <= len(b); at++ {
		if n, _ := m.numbers(b[at:]); n != number {
			continue
		}
		if _, ok := m.ReadFrame(b, at); ok {
			return at
		}
	}
	return p
}

// judge says what is damaged at b[p:], where batch next should be; nil: nothing, it
// is the end.
func (m Mask) judge(s segment, b []byte, p int, next uint64, later []segment) *datadir.Damage {
	damage := &datadir.Damage{File: s.name(), Offset: int64(p)}
	lost := SegmentName(next)
	mark, ok := m.ReadFrame(b, p)
	switch {
	case len(later) == 0 && ok && mark.Number == next && mark.isMark():
		damage.What = fmt.Sprintf("the log goes on in %s, which is missing", lost)
		return damage
	case len(later) > 0 && later[0].first < next:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins before that", next-1, later[0].name())
	case len(later) > 0:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins with batch %d: what was between is damaged here, or was in %s", next-1, later[0].name(), later[0].first, lost)
	case m.wasSynced(b[min(p+1, len(b)):], next):
		damage.What = fmt.Sprintf("batch %d does not match its checksum, and more was written after it", next)
	default:
		return nil
	}
	if bit, found := m.flippedBit(b, p, next); found {
		damage.What = fmt.Sprintf("bit %d of byte %d has been flipped; everything from here on cannot be read", bit%8, bit/8)
	}
	return damage
}

// wasSynced says whether a frame anywhere in b shows that batch number was on the disk.
func (m Mask) wasSynced(b []byte, number uint64) bool {
	for p := 0; p+FrameHeader <= len(b); p++ {
		// What can't be one is seen without its checksum: each takes up some of b.
		if n, synced := m.numbers(b[p:]); n <= number || n-number > uint64(len(b)/FrameHeader+1) || synced < number || synced > n {
			continue
		}
		if _, ok := m.ReadFrame(b, p); ok {
			return true
		}
	}
	return false
}

// secure makes what was found in s durable. Frames of which no later frame says that they
// are on the disk are written again: where an fsync has failed, the operating system may have them in its
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
		if b.Number > synced && b.Number >= s.first && err == nil {
			_, err = f.WriteAt(b.whole, int64(b.End-len(b.whole)))
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
	if info, err := f.Stat(); err == nil && info.Size() >= r.end+FrameHeader {
		_ = writeMark(f, r.appendMark(nil, next), r.end)
	}
	_ = f.Close()
}
