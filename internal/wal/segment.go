package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

const (
	// Suffix ends the names of segments.
	Suffix = ".journal"
	// RoomAhead is how many bytes a segment's file has behind its last frame, at least,
	// unless the disk is full.
	RoomAhead = 64 << 10
	// maxExtent bounds by how much a segment is extended at once.
	maxExtent = 1 << 20

	spareSegment = "spare" + Suffix
)

var zeros [maxExtent]byte

// segment is a file of the log.
type segment struct {
	first uint64 // number of its first batch
	old   bool   // from an earlier run: may hold frames that were never acknowledged
	large bool   // much larger than a segment usually is, because of one batch
}

func (s segment) name() string { return SegmentName(s.first) }

// SegmentName is the name of the segment whose first batch has a number.
func SegmentName(first uint64) string { return fmt.Sprintf("%016x%s", first, Suffix) }

// ParseSegmentName reads a segment's name; ok is false if name is not one.
func ParseSegmentName(name string) (first uint64, ok bool) {
	text, ok := strings.CutSuffix(name, Suffix)
	first, err := strconv.ParseUint(text, 16, 64)
	return first, ok && err == nil && len(text) == 16
}

// listSegments lists a directory's segments in their order.
func listSegments(fsys vfs.FS, dir string) ([]segment, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var found []segment
	for _, name := range names {
		if first, ok := ParseSegmentName(name); ok {
			found = append(found, segment{first: first, old: true})
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].first < found[j].first })
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

// makeSegment makes a file with room for a few batches, durably.
func makeSegment(fsys vfs.FS, name string) error {
	f, err := fsys.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(zeros[:RoomAhead], 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fsys.Remove(name))
	}
	return nil
}

// FirstUsed returns the name of the first segment that has a frame or anything else but
// zeros; "": there is none. A log that was created and not begun has one segment of zeros.
func FirstUsed(fsys vfs.FS, dir string) (name string, err error) {
	segments, err := listSegments(fsys, dir)
	if err != nil {
		return "", err
	}
	for _, s := range segments {
		b, err := readFile(fsys, fsys.PathJoin(dir, s.name()))
		if err != nil {
			return "", fmt.Errorf("%s cannot be read: %w", s.name(), err)
		}
		if s.first > 1 || len(bytes.TrimLeft(b, "\x00")) > 0 {
			return s.name(), nil
		}
	}
	return "", nil
}

// Create durably makes a log without batches, whose first batch will have the number next.
// It is for a database that has all its rows in tables, because there is always a log.
func Create(fsys vfs.FS, dir string, next uint64) error {
	spare := fsys.PathJoin(dir, spareSegment)
	if err := makeSegment(fsys, spare); err != nil {
		return err
	}
	if err := fsys.Rename(spare, fsys.PathJoin(dir, SegmentName(next))); err != nil {
		return err
	}
	return datadir.SyncDir(fsys, dir)
}
