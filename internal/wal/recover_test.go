package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

// Whichever bit of the log is flipped: either it is said, or all is there.
func TestEveryBitOfALog(t *testing.T) {
	t.Parallel()
	const tables = batchesEach / 2 // batches that are in tables already
	fs, segments, batches := shortLog(t)
	for _, applied := range []uint64{0, tables} {
		for s, b := range segments {
			for bit := range len(b) * 8 {
				b[bit/8] ^= 1 << (bit % 8)
				got, damage := recoverShort(t, fs, segments, applied)
				b[bit/8] ^= 1 << (bit % 8)
				if whole := slices.Equal(got, batches[applied:]); whole == (damage != nil) {
					t.Errorf("bit %d of byte %d of segment %d, %d in tables: %q, damage %v", bit%8, bit/8, s, applied, got, damage)
				}
			}
		}
	}
}

// Without the directory's mask, the frames of a file that was used before are not taken for
// batches of the segment that begins in it.
func TestOldFramesAreNotReadPast(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	var used, old []byte
	for n := range uint64(2) {
		used = shortMask.AppendFrame(used, 7+n, 6+n, []byte("new"))
		old = shortMask.AppendFrame(old, 2+n, 1+n, []byte("old"))
	}
	for first, content := range map[uint64][]byte{7: used, 9: old} {
		f, err := fs.Create("data/"+SegmentName(first), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	frames, _ := ReadPast(fs, "data", nil, func(d datadir.Damage) { t.Error(d) })
	for _, f := range frames {
		if string(f.Rows) != "new" {
			t.Errorf("batch %d has rows %q", f.Number, f.Rows)
		}
	}
	if len(frames) != 2 {
		t.Errorf("%d batches, want 2", len(frames))
	}
}

// Wherever the end was torn off: what is before it is there, and it is not called damage.
func TestEveryTornEnd(t *testing.T) {
	t.Parallel()
	fs, segments, batches := shortLog(t)
	before, last := segments[:len(segments)-1], segments[len(segments)-1]
	whole := len(batches) - batchesEach // before the cut
	end := 0
	for cut := range len(bytes.TrimRight(last, "\x00")) {
		if f, ok := shortMask.ReadFrame(last[:cut], end); ok {
			end = f.End
			whole++
		}
		for name, behind := range map[string][]byte{
			"cut off":     nil,
			"zeros":       make([]byte, 500),
			"old content": append(bytes.Repeat([]byte("\x00\xffold"), 20), segments[0]...),
		} {
			torn := append(slices.Clone(before), append(bytes.Clone(last[:cut]), behind...))
			if got, damage := recoverShort(t, fs, torn, 0); damage != nil || !slices.Equal(got, batches[:whole]) {
				t.Errorf("%d bytes, then %s: %q, want %d batches, damage %v", cut, name, got, whole, damage)
			}
		}
	}
}

const (
	shortMask   = Mask(0x5be0cd19137e2179)
	batchesEach = 4 // in each segment of shortLog
)

// shortLog is a log in three segments, with room ahead, and the rows of its batches.
func shortLog(t testing.TB) (fs *vfs.MemFS, segments [][]byte, batches []string) {
	t.Helper()
	fs = vfs.NewMem()
	if err := fs.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	segments = make([][]byte, 3)
	for s := range segments {
		for range batchesEach {
			n := uint64(len(batches) + 1)
			rows := journaltest.Row(fmt.Sprint("k", n), "vvvvv")
			segments[s] = shortMask.AppendFrame(segments[s], n, n-1, rows)
			batches = append(batches, string(rows))
		}
		segments[s] = append(segments[s], make([]byte, 20)...)
	}
	return fs, segments, batches
}

// recoverShort reads a log, and gives the rows that are not in tables.
func recoverShort(t testing.TB, fs *vfs.MemFS, segments [][]byte, applied uint64) (rows []string, damage []datadir.Damage) {
	t.Helper()
	for i, content := range segments {
		name := "data/" + SegmentName(uint64(i*batchesEach+1))
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(bytes.Clone(content)) // MemFS may overwrite what it is given
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := recoverLog(fs, "data", State{Mask: shortMask, Applied: applied}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.batches {
		rows = append(rows, string(f.Rows))
	}
	return rows, r.damage
}

// Whatever segments hold: what is read from them are batches without a gap, made of their
// own bytes.
func FuzzRecoverLog(f *testing.F) {
	_, segments, _ := shortLog(f)
	for _, b := range segments {
		f.Add(b, b[:len(b)/2], uint8(0))
		f.Add(b[:70], segments[0], uint8(5))
	}
	f.Add(bytes.Repeat([]byte{0, 0, 0x40, 0}, 100), []byte{}, uint8(1))
	f.Fuzz(func(t *testing.T, first, second []byte, applied uint8) {
		fs, _, _ := shortLog(t)
		// A fuzzer that had to find checksums would find nothing else.
		first, second = bytes.Clone(first), bytes.Clone(second)
		sealFrames(first, 1)
		sealFrames(second, batchesEach+1)
		recoverShort(t, fs, [][]byte{first, second}, uint64(applied))
		r, err := recoverLog(fs, "data", State{Mask: shortMask, Applied: uint64(applied)}, false)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for i, f := range r.batches {
			if f.Number != uint64(applied)+1+uint64(i) {
				t.Fatalf("batch %d is at place %d, with %d in tables", f.Number, i, applied)
			}
			size += len(f.Rows) + FrameHeader
		}
		if size > len(first)+len(second) {
			t.Fatalf("%d bytes were read from %d", size, len(first)+len(second))
		}
		if len(r.damage) == 0 && r.last != uint64(applied)+uint64(len(r.batches)) {
			t.Fatalf("it goes on from batch %d, with %d in tables and %d read", r.last, applied, len(r.batches))
		}
	})
}

// sealFrames gives what is as long as frames are the numbers from next on, and the right
// checksums, as far as their lengths go.
func sealFrames(b []byte, next uint64) {
	for len(b) >= FrameHeader {
		length := int(binary.LittleEndian.Uint32(b[8:])) % 512
		if length > len(b)-FrameHeader || b[0] == 0xff { // that is how it makes a damaged one
			return
		}
		binary.LittleEndian.PutUint32(b[8:], uint32(length))
		binary.LittleEndian.PutUint64(b[12:], next^uint64(shortMask))
		binary.LittleEndian.PutUint64(b, sums(b[8:FrameHeader+length]))
		b = b[FrameHeader+length:]
		next++
	}
}
