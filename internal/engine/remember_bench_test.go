package engine

import (
	"fmt"
	"testing"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

// What a remembered message takes on disk, before compression, with a key of 16 bytes, a
// CloudEvents identity of 50, a state of 64 and 100 bytes of captured values and
// digests: as long as it may be replayed, and after DONE.
func BenchmarkRememberedBytes(b *testing.B) {
	key, id := []byte("range/0123456789"), []byte(fmt.Sprintf("event:6:%-42s", "shots"))
	version := hlc.Timestamp{Wall: 1_795_000_000_000, Counter: 1, Node: "StateStore"}
	for name, memo := range map[string]*statestore.Memo{
		"stored": {Version: version, State: make([]byte, 64), Context: make([]byte, 100)},
		"done":   {Version: version, Done: true},
	} {
		b.Run(name, func(b *testing.B) {
			var bytes int
			for b.Loop() {
				row := appendMemoRow(nil, key, id)
				value := encodeMemo(nil, &memory{memo: memo, diskMs: 1_795_000_000_000}, 1)
				bytes = len(row) + len(value) + len(appendIndexRow(nil, 1_795_000_000_000, row))
			}
			b.ReportMetric(float64(bytes), "bytes/message")
		})
	}
}
