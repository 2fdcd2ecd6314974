package backup

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// replayLog applies what can be read of the log.
func (s *salvage) replayLog() error {
	frames, first := wal.ReadPast(s.o.FS, s.o.Dir, s.mask(), func(d datadir.Damage) { s.found.Lost = append(s.found.Lost, d) })
	if _, logged := s.meta[string(wal.LoggedKey)]; logged && first == 0 {
		s.lose(s.o.Dir, -1, "the log is missing")
	}
	applied := appliedIn(s.meta[string(journal.AppliedKey)])
	// Batches up to applied are in tables, too. Those that the log has without a gap up to
	// there are applied again: that restores rows that were in bad blocks.
	begin := slices.IndexFunc(frames, func(f wal.Frame) bool { return f.Number > applied })
	if begin < 0 {
		begin = len(frames)
	}
	if first > applied+1 {
		s.lose(wal.SegmentName(applied+1), -1, "batches %d to %d are missing in the log", applied+1, first-1)
	}
	if begin > 0 && frames[begin-1].Number == applied {
		for begin--; begin > 0 && frames[begin-1].Number+1 == frames[begin].Number; begin-- {
		}
	}
	for _, f := range frames[begin:] {
		if err := s.replayFrame(f); err != nil {
			s.lose(wal.SegmentName(f.Number), -1, "batch %d can't be decoded: %v", f.Number, err)
		}
		if err := s.to.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// appliedIn reads a row AppliedKey; 0: there is none.
func appliedIn(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

func (s *salvage) replayFrame(f wal.Frame) error {
	s.to.Admit()
	a := s.to.Begin()
	defer a.End(nil)
	for r := batchrepr.Reader(f.Rows); ; {
		kind, key, value, more, err := r.Next()
		if err != nil || !more {
			return err
		}
		switch {
		case bytes.HasPrefix(key, []byte("m|")):
			s.meta[string(key)] = bytes.Clone(value)
		case kind == pebble.InternalKeyKindRangeDelete:
			a.DeleteRange(key, value)
		case kind == pebble.InternalKeyKindDelete:
			a.Delete(key)
		default:
			a.Set(key, value)
		}
		s.copied()
	}
}

// mask is the log's; nil: it can't be read.
func (s *salvage) mask() *wal.Mask {
	value := s.meta[string(wal.MaskKey)]
	if len(value) != 8 {
		return nil
	}
	mask := wal.Mask(binary.LittleEndian.Uint64(value))
	return &mask
}
