package wal

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// ReadPast reads all sound batches of a damaged log, in order. It calls lost for each place
// where batches are missing. mask is the directory's; nil: the row MaskKey can't be read, and
// ReadPast computes the mask from the first frame of a segment. first is the number of the
// log's first batch; 0: there is no log.
func ReadPast(fsys vfs.FS, dir string, mask *Mask, lost func(datadir.Damage)) (frames []Frame, first uint64) {
	lose := func(file string, offset int64, format string, args ...any) {
		lost(datadir.Damage{File: file, Offset: offset, What: fmt.Sprintf(format, args...)})
	}
	segments, err := listSegments(fsys, dir)
	if err != nil {
		lose(dir, -1, "%v", err)
	}
	if mask == nil {
		mask = maskIn(fsys, dir, segments)
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
		last := s.first - 1
		found := mask.framesPast(b, &last, limit, func(p int, from, to uint64) {
			lose(s.name(), int64(p), "batches %d to %d can't be read", from, to)
		})
		frames = append(frames, found...)
		switch {
		case i+1 < len(segments) && last < limit-1:
			lose(s.name(), -1, "batches %d to %d can't be read", last+1, limit-1)
		case i+1 == len(segments) && mask.hasEndFrame(b, found):
			lose(SegmentName(last+1), -1, "it is missing, with all batches from %d on", last+1)
		}
	}
	return frames, first
}

// maskIn returns the mask that the first sound frame of a segment shows: its number is in the
// segment's name, too. It looks at the last segment only if it must: that file may have been
// used before, and hold no frame of its own yet.
func maskIn(fsys vfs.FS, dir string, segments []segment) *Mask {
	mask := new(Mask)
	for _, s := range segments {
		b, err := readFile(fsys, fsys.PathJoin(dir, s.name()))
		if f, ok := mask.ReadFrame(b, 0); ok && err == nil {
			*mask = Mask(f.Number ^ s.first)
			break
		}
	}
	return mask
}

// framesPast returns the sound frames of a segment with numbers above *last and below limit,
// and calls missing for those between them that it does not find.
func (m Mask) framesPast(b []byte, last *uint64, limit uint64, missing func(p int, from, to uint64)) (frames []Frame) {
	gap := -1
	for p := 0; p+FrameHeader <= len(b); {
		n, _ := m.numbers(b[p:])
		if n > *last && n < limit && n-*last <= uint64(len(b)/FrameHeader)+1 {
			if f, ok := m.ReadFrame(b, p); ok && !f.isEndFrame() {
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

// hasEndFrame says whether an end frame follows the last of a segment's frames.
func (m Mask) hasEndFrame(b []byte, frames []Frame) bool {
	if len(frames) == 0 {
		return false
	}
	last := frames[len(frames)-1]
	f, ok := m.ReadFrame(b, last.End)
	return ok && f.isEndFrame() && f.Number == last.Number+1
}
