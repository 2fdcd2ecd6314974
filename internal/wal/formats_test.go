package wal

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// The file has a segment as the program writes it: a batch, one for which there was little room, one
// without rows, and the end frame. The program reads them as they were meant.
func TestFormOfASegment(t *testing.T) {
	t.Parallel()
	const mask = Mask(0x5be0cd19137e2179)
	var written []byte
	written = mask.AppendFrame(written, 70_001, 69_999, []byte("rows"))
	written = append(written, markTight(mask.AppendFrame(nil, 70_002, 70_001, []byte("more rows")))...)
	written = mask.AppendFrame(written, 70_003, 70_002, nil)
	written = mask.appendEndFrame(written, 70_004)
	type read struct {
		number, synced uint64
		rows           string
		tight, end     bool
	}
	b, at := goldenfile.Check(t, "segment", written), 0
	for _, want := range []read{
		{70_001, 69_999, "rows", false, false}, {70_002, 70_001, "more rows", true, false}, {70_003, 70_002, "", false, false}, {70_004, 70_004, "", false, true},
	} {
		f, ok := mask.ReadFrame(b, at)
		if got := (read{f.Number, f.synced, string(f.Rows), f.tight, f.isEndFrame()}); !ok || got != want {
			goldenfile.Differs(t, "segment", []any{got, ok}, want)
			return
		}
		at = f.End
	}
	if at != len(b) {
		t.Errorf("%d of %d bytes are read", at, len(b))
	}
	if name := SegmentName(70_001); name != "0000000000011171.journal" {
		t.Errorf("the segment that begins with batch 70001 is called %s: a start of another version does not find it", name)
	}
}
