package wal

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// ReadPast reads all batches that a damaged log has, in order, past those that can't be
// read; lost is called for each place where some are missing. mask is the directory's, or
// nil if the row MaskKey can't be read: then a segment's first frame shows it. first is the
// batch that the log begins with; 0: there is no log.
func ReadPast(fsys vfs.FS, dir string, mask *Mask, lost func(datadir.Damage)) (frames []Frame, first uint64) {
	lose := func(file string, offset int64, format string, args ...any) {
		lost(datadir.Damage{File: file, Offset: offset, What: fmt.Sprintf(format, args...)})
	}
	segments, err := listSegments(fsys, dir)
	if err != nil {
		lose(dir, -1, "%v", err)
	}
	for i, s := range segments {
		if i == 0 {
			first = s.first
		}
		b, err := readFile(fsys, fsys.PathJoin(dir, s.name()))
		if err != nil {
			lose(s.name(), -1, "it can't be read: %v", err)
			continue
		}
		limit := uint64(1<<64 - 1)
		if i+1 < len(segments) {
			limit = segments[i+1].first
		}
		m := maskOf(mask, s, b)
		last := s.first - 1
		found := m.framesPast(b, &last, limit, func(p int, from, to uint64) {
			lose(s.name(), int64(p), "batches %d to %d can't be read", from, to)
		})
		frames = append(frames, found...)
		switch {
		case i+1 < len(segments) && last < limit-1:
			lose(s.name(), -1, "batches %d to %d can't be read", last+1, limit-1)
		case i+1 == len(segments) && m.isMarked(b, found):
			lose(SegmentName(last+1), -1, "it is missing, with all batches from %d on", last+1)
		}
	}
	return frames, first
}

// maskOf is the directory's mask, or what the first frame of a segment shows of it.
func maskOf(mask *Mask, s segment, b []byte) Mask {
	if mask != nil {
		return *mask
	}
	if f, ok := Mask(0).ReadFrame(b, 0); ok {
		return Mask(f.Number ^ s.first)
	}
	return 0
}

// framesPast gives the frames of a segment with numbers above *last and below limit, and
// says which are missing between them.
func (m Mask) framesPast(b []byte, last *uint64, limit uint64, missing func(p int, from, to uint64)) (frames []Frame) {
	gap := -1
	for p := 0; p+FrameHeader <= len(b); {
		n, _ := m.numbers(b[p:])
		if n > *last && n < limit && n-*last <= uint64(len(b)/FrameHeader)+1 {
			if f, ok := m.ReadFrame(b, p); ok && !f.isMark() {
				if n > *last+1 {
					missing(max(gap, 0), *last+1, n-1)
				}
				frames = append(frames, f)
				*last, p, gap = n, f.End, -1
				continue
			}
		}
		if gap < 0 {
			gap = p
			if bit, found := m.flippedBit(b, p, *last+1); found {
				b[bit/8] ^= 1 << (bit % 8)
				continue
			}
		}
		p++
	}
	return frames
}

// isMarked says whether a mark follows the last of a segment's frames.
func (m Mask) isMarked(b []byte, frames []Frame) bool {
	if len(frames) == 0 {
		return false
	}
	last := frames[len(frames)-1]
	f, ok := m.ReadFrame(b, last.End)
	return ok && f.isMark() && f.Number == last.Number+1
}
