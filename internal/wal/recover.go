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
	verified []segment        // the first of segments, whose batches are not in batches (Options.Large)
	batches  []Frame          // that may not be in tables yet
	damage   []datadir.Damage // in what is needed
	mended   []datadir.Damage // in the last frames, where one bit made each whole
}

// recoverLog reads the log from where the tables end. It changes nothing. It has all of the
// log in memory, which MaxSegments bounds; with large, one segment after the other.
//
// Where the sound frames end, either a crash has torn the last write, or the log is
// damaged. It is damage, and the start is refused, if something proves that the frame that
// is missing here was on the disk once:
//   - there is a later segment: a segment begins only when all before it is on the disk;
//   - a later frame says that the missing one was on the disk when it was written;
//   - an end frame says that another segment was begun, and there is none;
//   - the file is shorter than it was when its last durable frame was written: zeros are
//     always ahead, and the fsync of a frame covers them. Which frame that is, the last one
//     says, or the header of the one behind it that is not whole.
//
// Otherwise it is a torn end. After a power cut, any subset of the sectors of an unsynced
// write may be on the disk; the other sectors have their former content: zeros, or an older
// batch. If flipping one bit makes the frame sound and gives it the right number, then it is
// that frame, because two checksums agree. There are two possibilities: a bit of an
// acknowledged batch has flipped, or one sector has its former content, which differs from
// the new content in just that bit. recoverLog flips the bit back and keeps the frame in
// both cases: an acknowledged batch must not be lost, and a batch that was not acknowledged
// may be kept. Any other frame at the end is dropped. Damage of more than one bit to the
// very last batch before a crash can't be told from a torn write.
func recoverLog(fsys vfs.FS, dir string, state State, large bool) (r recovered, err error) {
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
	next := segments[0].first
	for i, s := range segments {
		b, err := readFile(fsys, fsys.PathJoin(dir, s.name()))
		if err != nil {
			return r, fmt.Errorf("%s cannot be read: %w", s.name(), err)
		}
		later := segments[i+1:]
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
			if large { // a later segment shows that these batches are on the disk
				r.verified, r.batches = r.segments, nil
			}
			continue
		}
		if found := r.judge(s, b, p, next, later); found != nil {
			r.damage = append(r.damage, *found)
		} else if found := r.cutShort(s, b, p, next, last); found != nil {
			r.damage = append(r.damage, *found)
		}
		break
	}
	r.last = next - 1
	return r, nil
}

// read adds the frames of a segment from batch *next on, which begin at b[p:] or behind it,
// and returns where they end. Frames whose rows are in tables may be damaged.
func (r *recovered) read(b []byte, p int, next *uint64) (end int, last Frame) {
	for {
		f, ok := r.ReadFrame(b, p)
		switch {
		case ok && f.Number == *next && !f.isEndFrame():
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

// cutShort returns the damage if the end of b, the last segment, was cut off; nil: it was
// not, or nothing shows it. last is the last sound frame, and batch next should be at b[p:].
func (r *recovered) cutShort(s segment, b []byte, p int, next uint64, last Frame) *datadir.Damage {
	synced, tight := last.synced, last.tight
	if begun, ok := r.begun(b, p); ok && begun.Number == next {
		synced, tight = begun.synced, begun.tight
	}
	if !r.Logged || tight {
		return nil
	}
	end := r.endOf(b, synced)
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

// findFrame returns where the frame of batch number begins, at b[p:] or behind it; p if there
// is none.
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

// judge returns what is damaged at b[p:], where batch next should be; nil: nothing is, the
// log ends here.
func (m Mask) judge(s segment, b []byte, p int, next uint64, later []segment) *datadir.Damage {
	damage := &datadir.Damage{File: s.name(), Offset: int64(p)}
	lost := SegmentName(next)
	at, ok := m.ReadFrame(b, p)
	switch {
	case len(later) == 0 && ok && at.Number == next && at.isEndFrame():
		damage.What = fmt.Sprintf("the log goes on in %s, which is missing", lost)
	case len(later) > 0 && later[0].first < next:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins before that", next-1, later[0].name())
	case len(later) > 0:
		damage.What = fmt.Sprintf("it ends with batch %d, and %s begins with batch %d: what was between is damaged here, or was in %s", next-1, later[0].name(), later[0].first, lost)
	case m.wasSynced(b[min(p+1, len(b)):], next):
		damage.What = fmt.Sprintf("batch %d does not match its checksum, and more was written after it", next)
	default:
		return nil
	}
	return damage
}

// wasSynced says whether a frame anywhere in b shows that batch number was on the disk.
func (m Mask) wasSynced(b []byte, number uint64) bool {
	for p := 0; p+FrameHeader <= len(b); p++ {
		// Most places are no frame, which their numbers show without a checksum: b has room for
		// only so many frames after the missing one.
		if n, synced := m.numbers(b[p:]); n <= number || n-number > uint64(len(b)/FrameHeader+1) || synced < number || synced > n {
			continue
		}
		if _, ok := m.ReadFrame(b, p); ok {
			return true
		}
	}
	return false
}

// secure makes the frames of s durable. It writes those again of which no later frame says
// that they are on the disk: if an fsync has failed, the operating system may have them in
// its cache only, as pages that it takes for written and that another fsync does not write.
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

// endSegment writes an end frame to the segment that was the last one of the former run:
// batch next begins another one.
func (r recovered) endSegment(fsys vfs.FS, dir string, next uint64) {
	if len(r.segments) == 0 {
		return
	}
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, r.segments[len(r.segments)-1].name()), vfs.WriteCategoryUnspecified)
	if err != nil {
		return // nothing is lost without it
	}
	if info, err := f.Stat(); err == nil && info.Size() >= r.end+FrameHeader {
		_ = writeEndFrame(f, r.appendEndFrame(nil, next), r.end)
	}
	_ = f.Close()
}
